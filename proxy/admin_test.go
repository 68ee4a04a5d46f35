package proxy

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"taskproxy/discovery"
)

func TestAdmin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, echoJob("a")))
	w.get(host(s), "/")
	w.get(host(s), "/", "-")
	ready := false
	admin := httptest.NewServer(NewAdmin(AdminConfig{Ready: func() bool { return ready }, Gatherer: w.registry, Hosts: []string{"admin.example.com"}}))
	defer admin.Close()
	get := func(host, path string) (int, string) {
		t.Helper()
		r, _ := http.NewRequestWithContext(t.Context(), "GET", admin.URL+path, nil)
		r.Host = host
		res, err := w.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(b)
	}
	for _, c := range []struct {
		host, path string
		status     int
	}{
		{"", "/healthz", 200},
		{"10.1.2.3:9102", "/healthz", 200},
		{"[::1]:9102", "/healthz", 200},
		{"localhost:9102", "/healthz", 200},
		{"Admin.example.com.", "/healthz", 200},
		{"evil.test", "/healthz", 421},
		{"evil.test", "/metrics", 421},
		{"localhost", "/readyz", 503},
		{"localhost", "/nothing", 404},
	} {
		if got, _ := get(c.host, c.path); got != c.status {
			t.Errorf("%s%s: got %d, want %d", c.host, c.path, got, c.status)
		}
	}
	ready = true
	if got, _ := get("localhost", "/readyz"); got != 200 {
		t.Errorf("ready: got %d", got)
	}
	for _, path := range []string{"/metrics", "/metrics/prometheus"} {
		_, text := get("localhost", path)
		for _, line := range []string{
			`yt_task_proxy_requests_total{code="200",protocol="http"} 1`,
			`yt_task_proxy_requests_total{code="401",protocol="http"} 1`,
			`yt_task_proxy_request_errors_total{fault="caller",reason="no_credentials"} 1`,
			`yt_task_proxy_request_errors_total{fault="job",reason="connect_failed"} 0`,
			`yt_task_proxy_requests_total{code="101",protocol="websocket"} 0`,
			`yt_task_proxy_requests_total{code="16",protocol="grpc"} 0`,
			`yt_task_proxy_auth_failed_total{reason="access_denied"} 0`,
			`yt_task_proxy_auth_errors_total{stage="authorize"} 0`,
			`yt_task_proxy_received_bytes_total{protocol="http"} 0`,
			`yt_task_proxy_auth_success_total{reason="authorized"} 1`,
			`yt_task_proxy_auth_failed_total{reason="no_credentials"} 1`,
			`yt_task_proxy_streams{protocol="http"} 0`,
			`yt_task_proxy_endpoints_set_aside 0`,
			`yt_task_proxy_request_duration_seconds_count{protocol="http"} 2`,
		} {
			if !strings.Contains(text, line) {
				t.Errorf("%s lacks %s", path, line)
			}
		}
		if strings.Contains(text, "alice") || strings.Contains(text, s.OperationID) {
			t.Errorf("%s names somebody", path)
		}
	}
	if problems, err := testutil.GatherAndLint(w.registry); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

func TestAccessLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{Task: "t\x1b[31m\n", Name: strings.Repeat("n", 1000)}, serve(t, echoJob("a")))
	a := w.do(w.request("POST", host(s), "/p%0A?token=s3cret", strings.NewReader("12345"), "Authorization: "+aliceOAuth, "Cookie: YTCypressCookie=s3cret"))
	record := w.log.wait(t, a.Header.Get("X-Request-Id"))
	for key, want := range map[string]any{
		"user": "alice", "method": "POST", "host": host(s), "path": "/p%0A", "operation_id": s.OperationID, "task": `"t\x1b[31m\n"`,
		"service": `"` + strings.Repeat("n", 256) + `"`, "endpoint": s.Endpoints[0].Addr, "status": 200.0, "cached": false,
		"source": "authorization", "decision": "allow", "request_id": a.Header.Get("X-Request-Id"), "bytes_in": 5.0, "bytes_out": float64(len(a.body)), "protocol": "http", "reason": nil,
	} {
		if got := record[key]; got != want {
			t.Errorf("%s: got %v, want %v", key, got, want)
		}
	}
	if remote, _ := record["remote"].(string); !strings.HasPrefix(remote, "127.0.0.1:") {
		t.Errorf("remote %v", record["remote"])
	}
	if record["duration_us"].(float64) <= 0 {
		t.Errorf("duration %v", record["duration_us"])
	}
	if strings.Contains(fmt.Sprint(record), "s3cret") {
		t.Errorf("a secret in the log: %v", record)
	}
}

// What a caller writes takes so much room in the log and no more, and breaks no line.
func TestAccessLogCutsWhatCallersWrite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, echoJob("a")))
	a := w.get(host(s), "/"+strings.Repeat("p", 5000))
	if path := w.log.wait(t, a.Header.Get("X-Request-Id"))["path"].(string); len(path) > 270 || !strings.HasPrefix(path, `"/ppp`) {
		t.Errorf("%d bytes of the path: %.300s", len(path), path)
	}
	a = w.get(strings.Repeat("h", 5000)+"."+base, "/\"'\\?secret=1")
	record := w.log.wait(t, a.Header.Get("X-Request-Id"))
	if host := record["host"].(string); len(host) > 270 {
		t.Errorf("%d bytes of the host", len(host))
	}
	for key, value := range record {
		if text, _ := value.(string); strings.ContainsAny(text, "\n\x1b") || strings.Contains(text, "secret") {
			t.Errorf("%s is %q", key, text)
		}
	}
}

func TestAccessLogTellsTheDecision(t *testing.T) {
	t.Parallel()
	told := func(w *world, a answer) any { return w.log.wait(t, a.Header.Get("X-Request-Id"))["decision"] }
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, echoJob("a")))
	for _, c := range []struct {
		host, credentials string
		want              any
	}{
		{host(s), aliceOAuth, "allow"},
		{host(s), "OAuth " + bobToken, "deny"},
		{host(s), "OAuth nobody's", "deny"},
		{host(s), "-", "deny"},
		{"00000000." + base, aliceOAuth, nil},
	} {
		a := w.get(c.host, "/", "Authorization: "+c.credentials)
		if got := told(w, a); got != c.want {
			t.Errorf("%s with %s: got %v, want %v", c.host, c.credentials, got, c.want)
		}
	}
	open := newWorld(t, func(c *Config) { c.Authorizer, c.AuthDisabled = nil, true })
	s = open.publish(discovery.Service{}, serve(t, echoJob("a")))
	if got := told(open, open.get(host(s), "/")); got != "open" {
		t.Errorf("without authentication: got %v", got)
	}
	if got := (&exchange{authorized: true, held: true}).decision(false); got != "allow_stale" {
		t.Errorf("by an old yes: got %v", got)
	}
	if got := (&exchange{failure: causeNoCluster}).decision(false); got != "undecided" {
		t.Errorf("while the cluster is away: got %v", got)
	}
	if got := (&exchange{peer: true}).decision(false); got != "peer" {
		t.Errorf("by the peer's address: got %v", got)
	}
}

// A panic in the handler and what strangers make net/http say are records, not raw lines.
func TestServerLog(t *testing.T) {
	t.Parallel()
	var buf bytes.Buffer
	logger := slog.New(slog.NewJSONHandler(&buf, &slog.HandlerOptions{Level: slog.LevelDebug}))
	server := NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("oops") }), logger)
	l := listen(t)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	_, _ = io.ReadAll(conn)
	conn.Close()
	server.Close()
	<-done
	if got := buf.String(); !strings.Contains(got, `"msg":"handler panicked"`) || strings.Count(got, "\n") != 1 {
		t.Errorf("logged %q", got)
	}
}
