package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"taskproxy/examples/grpc-service/helloworld"
	"taskproxy/examples/http-service/httpservice"
	"taskproxy/examples/websocket-service/livepage"
)

// The whole way, from an annotation to a caller's answer: one demo, and the calls that it invites to make.
func TestDemo(t *testing.T) {
	tmp := t.TempDir()
	r := startDemo(t, tmp, "--listen=127.0.0.1:0")
	t.Run("calls", func(t *testing.T) {
		t.Run("HTTP", func(t *testing.T) { t.Parallel(); testHTTP(t, r) })
		t.Run("gRPC", func(t *testing.T) {
			t.Parallel() // with the others, but not with each other: they would take each other's turns
			t.Run("unary", func(t *testing.T) { testGRPC(t, r) })
			t.Run("stream", func(t *testing.T) { testGRPCStream(t, r) })
			t.Run("reflection and health", func(t *testing.T) { testGRPCReflection(t, r) })
		})
		t.Run("WebSocket", func(t *testing.T) { t.Parallel(); testWebSocket(t, r) })
		t.Run("Spark", func(t *testing.T) { t.Parallel(); testSpark(t, r) })
		t.Run("event stream", func(t *testing.T) { t.Parallel(); testEvents(t, r) })
		t.Run("admin", func(t *testing.T) { t.Parallel(); testAdmin(t, r) })
		t.Run("log-in link", func(t *testing.T) { t.Parallel(); testLogin(t, r) })
		t.Run("guide", func(t *testing.T) { t.Parallel(); testGuide(t, r) })
	})
	t.Run("metrics", func(t *testing.T) { testMetrics(t, r) })
	if got := jobProcesses(t); len(got) != 8 {
		t.Errorf("got processes %q, want the eight jobs", got)
	}
	// Somebody still listens to a stream without an end when Ctrl-C comes.
	events := openEvents(t, r)
	defer events.Close()
	if code := r.end(); code != 0 {
		t.Errorf("got exit code %d, want 0", code)
	}
	expectNoJobs(t)
	expectEmpty(t, tmp)
	for _, user := range r.ready.Users {
		for _, secret := range []string{user.Token, user.Cookie} {
			if strings.Contains(r.stderr.String(), secret) {
				t.Errorf("the log holds a secret of %s", user.Login)
			}
		}
	}
}

// domain returns the address of the task's service.
func (r *running) domain(t *testing.T, task string) string {
	t.Helper()
	for _, row := range r.ready.Services {
		if row.TaskName == task {
			return row.Domain
		}
	}
	t.Fatalf("the ready file has no service of task %q", task)
	return ""
}

// address is the proxy's host:port.
func (r *running) address() string { return strings.TrimPrefix(r.ready.Proxy, "http://") }

// get calls the proxy with a Host for "/" and returns the answer with its body read.
func (r *running) get(t *testing.T, host string, header http.Header) (status int, answer http.Header, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.ready.Proxy+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = host
	request.Header = header.Clone()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(content)
}

func testHTTP(t *testing.T, r *running) {
	domain := r.domain(t, "example_http_server")
	id, base, _ := strings.Cut(domain, ".")
	alice, bob := r.user(t, "alice"), r.user(t, "bob")
	oauth := func(user user) string { return "OAuth " + user.Token }
	tests := []struct {
		name   string
		host   string
		header http.Header
		want   int
	}{
		{name: "by host, OAuth", host: domain, header: http.Header{"Authorization": {oauth(alice)}}, want: 200},
		{name: "by host, Bearer", host: domain, header: http.Header{"Authorization": {"Bearer " + alice.Token}}, want: 200},
		{name: "by host, cookie", host: domain, header: http.Header{"Cookie": {alice.CookieName + "=" + alice.Cookie}}, want: 200},
		{name: "by host with a port", host: domain + ":8080", header: http.Header{"Authorization": {oauth(alice)}}, want: 200},
		{name: "by id", host: r.address(), header: http.Header{"Authorization": {oauth(alice)}, "X-Yt-Taskproxy-Id": {id}}, want: 200},
		{name: "by host and another id", host: domain, header: http.Header{"Authorization": {oauth(alice)}, "X-Yt-Taskproxy-Id": {"00000000"}}, want: 400},
		{name: "bob", host: domain, header: http.Header{"Authorization": {oauth(bob)}}, want: 403},
		{name: "nobody", host: domain, header: http.Header{}, want: 401},
		{name: "a wrong token", host: domain, header: http.Header{"Authorization": {"OAuth frob"}}, want: 401},
		{name: "an unknown id", host: "00000000." + base, header: http.Header{"Authorization": {oauth(alice)}}, want: 404},
		{name: "an unknown id, nobody", host: "00000000." + base, header: http.Header{}, want: 401},
	}
	for _, test := range tests {
		test.header.Set("Accept", "application/json")
		status, header, body := r.get(t, test.host, test.header)
		if status != test.want {
			t.Errorf("%s: got %d %q, want %d", test.name, status, body, test.want)
			continue
		}
		if status != http.StatusOK {
			if header.Get("X-Yt-Taskproxy-Error") == "" {
				t.Errorf("%s: the answer names no reason", test.name)
			}
			continue
		}
		var answer httpservice.Answer
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			t.Fatalf("%s: %v in %q", test.name, err, body)
		}
		if answer.User != "alice" {
			t.Errorf("%s: got login %q at the job, want alice", test.name, answer.User)
		}
		if strings.Contains(body, alice.Token) || strings.Contains(body, alice.Cookie) {
			t.Errorf("%s: a credential reached the job", test.name)
		}
	}

	answered := map[string]bool{}
	for range 2 {
		_, _, body := r.get(t, domain, http.Header{"Authorization": {oauth(alice)}})
		answered[body] = true
	}
	// Other calls run at the same time, but to other services: the turn here is this test's alone.
	if len(answered) != 2 {
		t.Errorf("got %v from two calls, want two jobs", answered)
	}
}

// dial connects a gRPC client to the proxy in a service's name.
func (r *running) dial(t *testing.T, authority string) *grpc.ClientConn {
	t.Helper()
	connection, err := dialGRPC(r.address(), authority)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return connection
}

func testGRPC(t *testing.T, r *running) {
	domain := r.domain(t, "example_grpc_server")
	id, base, _ := strings.Cut(domain, ".")
	alice, bob := r.user(t, "alice"), r.user(t, "bob")
	tests := []struct {
		name      string
		authority string
		metadata  []string
		want      codes.Code
	}{
		{name: "OAuth", authority: domain, metadata: []string{"authorization", "OAuth " + alice.Token}, want: codes.OK},
		{name: "Bearer", authority: domain, metadata: []string{"authorization", "Bearer " + alice.Token}, want: codes.OK},
		{name: "cookie", authority: domain, metadata: []string{"cookie", alice.CookieName + "=" + alice.Cookie}, want: codes.OK},
		{name: "by id", authority: r.address(), metadata: []string{"x-yt-taskproxy-id", id, "authorization", "OAuth " + alice.Token}, want: codes.OK},
		{name: "bob", authority: domain, metadata: []string{"authorization", "OAuth " + bob.Token}, want: codes.PermissionDenied},
		{name: "nobody", authority: domain, want: codes.Unauthenticated},
		{name: "an unknown id", authority: "00000000." + base, metadata: []string{"authorization", "OAuth " + alice.Token}, want: codes.NotFound},
	}
	answered := map[string]bool{}
	for _, test := range tests {
		client := helloworld.NewGreeterClient(r.dial(t, test.authority))
		ctx := metadata.AppendToOutgoingContext(t.Context(), test.metadata...)
		reply, err := client.SayHello(ctx, &helloworld.HelloRequest{})
		if status.Code(err) != test.want {
			t.Errorf("%s: got %v, want code %v", test.name, err, test.want)
			continue
		}
		if err != nil {
			continue
		}
		answered[reply.GetJobId()] = true
		if got := reply.GetUser(); got != "alice" {
			t.Errorf("%s: got login %q at the job, want alice", test.name, got)
		}
		for _, key := range []string{"authorization", "cookie"} {
			if slices.Contains(reply.GetMetadata(), key) {
				t.Errorf("%s: a credential reached the job", test.name)
			}
		}
	}
	if len(answered) != 2 {
		t.Errorf("got answers of %d jobs, want two", len(answered))
	}
}

// asAlice is the test's context with her token for gRPC.
func (r *running) asAlice(t *testing.T) context.Context {
	return metadata.AppendToOutgoingContext(t.Context(), "authorization", "OAuth "+r.user(t, "alice").Token)
}

func testGRPCStream(t *testing.T, r *running) {
	client := helloworld.NewGreeterClient(r.dial(t, r.domain(t, "example_grpc_server")))
	stream, err := client.SayHelloStream(r.asAlice(t), &helloworld.HelloStreamRequest{Count: 3, PauseMs: 1})
	if err != nil {
		t.Fatal(err)
	}
	jobs := map[string]int{}
	for {
		reply, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		jobs[reply.GetJobId()]++
	}
	if len(jobs) != 1 || slices.Max(mapValues(jobs)) != 3 {
		t.Errorf("got replies %v, want three of one job", jobs)
	}
}

func mapValues(m map[string]int) (values []int) {
	for _, value := range m {
		values = append(values, value)
	}
	return values
}

func testGRPCReflection(t *testing.T, r *running) {
	connection := r.dial(t, r.domain(t, "example_grpc_server"))
	health, err := healthpb.NewHealthClient(connection).Check(r.asAlice(t), &healthpb.HealthCheckRequest{Service: "helloworld.Greeter"})
	if err != nil || health.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("got %v, %v, want SERVING", health, err)
	}
	stream, err := reflectionpb.NewServerReflectionClient(connection).ServerReflectionInfo(r.asAlice(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
	}); err != nil {
		t.Fatal(err)
	}
	response, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if got := response.GetListServicesResponse().GetService(); len(got) < 3 {
		t.Errorf("got services %v, want the greeter, health and reflection", got)
	}
}

func testWebSocket(t *testing.T, r *running) {
	alice := r.user(t, "alice")
	domain := r.domain(t, "example_page")
	connection, _, err := websocket.Dial(t.Context(), "ws://"+r.address()+"/echo?greet", &websocket.DialOptions{
		Host: domain,
		HTTPHeader: http.Header{
			"Cookie": {alice.CookieName + "=" + alice.Cookie},
			"Origin": {"http://" + domain}, // as the page itself would
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer connection.CloseNow()
	connection.SetReadLimit(1 << 20)
	_, greeting, err := connection.Read(t.Context())
	if err != nil || !strings.HasPrefix(string(greeting), "Hello, alice!") {
		t.Fatalf("got %q, %v, want a greeting for alice", greeting, err)
	}
	for _, message := range []string{"one", strings.Repeat("x", 100_000)} {
		if err := connection.Write(t.Context(), websocket.MessageText, []byte(message)); err != nil {
			t.Fatal(err)
		}
		if _, got, err := connection.Read(t.Context()); err != nil || string(got) != message {
			t.Fatalf("got %d bytes, %v, want the %d that were sent", len(got), err, len(message))
		}
	}
	if err := connection.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Errorf("got %v, want a clean close", err)
	}
}

// openEvents returns the event stream once its answer has begun.
func openEvents(t *testing.T, r *running) io.ReadCloser {
	t.Helper()
	alice := r.user(t, "alice")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.ready.Proxy+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = r.domain(t, "example_page")
	request.Header.Set("Cookie", alice.CookieName+"="+alice.Cookie)
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		t.Fatalf("got %s, want 200", response.Status)
	}
	return response.Body
}

// The Spark samples are found by what they say about themselves, and answer those who may.
func testSpark(t *testing.T, r *running) {
	alice, bob := r.user(t, "alice"), r.user(t, "bob")
	services := map[string]string{}
	for _, row := range r.ready.Services {
		if !strings.HasPrefix(row.TaskName, "example_") {
			services[row.TaskName+"_"+row.Service] = row.Domain
		}
	}
	answered := map[string]string{}
	for name, domain := range services {
		header := http.Header{"Authorization": {"OAuth " + alice.Token}, "Accept": {"application/json"}}
		status, _, body := r.get(t, domain, header)
		var answer httpservice.Answer
		if err := json.Unmarshal([]byte(body), &answer); status != http.StatusOK || err != nil {
			t.Errorf("%s: got %d %q, want an answer for alice", name, status, body)
			continue
		}
		if strings.Contains(body, alice.Token) {
			t.Errorf("%s: a credential reached the job", name)
		}
		if answer.Job.Task == "driver" && (answer.Job.Port < 27000 || answer.Job.Port > 27999) {
			t.Errorf("%s: it listens at %d, want one of Spark's own ports", name, answer.Job.Port)
		}
		answered[name] = answer.Job.Task
		if status, _, _ := r.get(t, domain, http.Header{"Authorization": {"OAuth " + bob.Token}}); status != http.StatusForbidden {
			t.Errorf("%s: got %d for bob, want 403", name, status)
		}
	}
	want := map[string]string{"driver_ui": "driver", "master_ui": "master", "master_rest": "master", "history_ui": "history"}
	if !maps.Equal(answered, want) {
		t.Errorf("got answers of %v, want %v", answered, want)
	}
}

func testEvents(t *testing.T, r *running) {
	events := openEvents(t, r)
	defer events.Close()
	lines := bufio.NewScanner(events)
	for n := 1; n <= 2; {
		if !lines.Scan() {
			t.Fatalf("the stream ended before tick %d: %v", n, lines.Err())
		}
		data, found := strings.CutPrefix(lines.Text(), "data: ")
		if !found {
			continue
		}
		var tick livepage.Tick
		if err := json.Unmarshal([]byte(data), &tick); err != nil {
			t.Fatal(err)
		}
		if tick.N != n || tick.User != "alice" || tick.Job.JobID == "" {
			t.Fatalf("got %+v, want tick %d for alice", tick, n)
		}
		n++
	}
}

func testAdmin(t *testing.T, r *running) {
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.ready.Admin+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		transport := &http.Transport{}
		defer transport.CloseIdleConnections()
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s: got %s, want 200", path, response.Status)
		}
	}
}

// The link gives a browser the cookie for every service, and only the link does.
func testLogin(t *testing.T, r *running) {
	alice := r.user(t, "alice")
	_, after, found := strings.Cut(r.stdout.String(), "http://login."+r.ready.BaseDomain+":")
	if !found {
		t.Fatalf("no link in:\n%s", r.stdout)
	}
	link, _, _ := strings.Cut(after, "\n")
	port, path, _ := strings.Cut(link, "/")
	open := func(path string) *http.Response {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:"+port+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		transport := &http.Transport{}
		defer transport.CloseIdleConnections()
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response
	}
	response := open("/" + path)
	cookies := response.Cookies()
	if len(cookies) != 1 || cookies[0].Value != alice.Cookie || cookies[0].Domain != r.ready.BaseDomain || !cookies[0].HttpOnly {
		t.Errorf("got cookies %v, want alice's for %s", cookies, r.ready.BaseDomain)
	}
	if got, want := response.Header.Get("Location"), "http://"+r.domain(t, "example_page")+":"; !strings.HasPrefix(got, want) {
		t.Errorf("got location %q, want the page's", got)
	}
	for _, path := range []string{"/", "/alice", "/frob/alice"} {
		response := open(path)
		if response.StatusCode != http.StatusNotFound || len(response.Cookies()) > 0 {
			t.Errorf("%s: got %s and cookies %v, want 404 and none", path, response.Status, response.Cookies())
		}
	}
}

// The ticks come in their order, and the commands name every service.
func testGuide(t *testing.T, r *running) {
	output := r.stdout.String()
	rest := output
	for _, step := range []string{"✓ cluster up", "✓ services started", "✓ discovered", "✓ reachable"} {
		_, after, found := strings.Cut(rest, step)
		if !found {
			t.Fatalf("no %q after the steps before it in:\n%s", step, output)
		}
		rest = after
	}
	for _, row := range r.ready.Services {
		if !strings.Contains(rest, row.Domain) {
			t.Errorf("the guide does not name %s", row.Domain)
		}
	}
	for _, word := range []string{"curl -H 'Authorization: OAuth", "Authorization: Bearer", "Cookie: ", "x-yt-taskproxy-id: ", "-H 'Host: ", "grpcurl -plaintext -authority"} {
		if !strings.Contains(rest, word) {
			t.Errorf("the guide shows no command with %q", word)
		}
	}
}
