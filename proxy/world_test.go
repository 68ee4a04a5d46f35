package proxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"taskproxy/auth"
	"taskproxy/discovery"
	"taskproxy/ytclient"
)

// The credentials of these tests. Every one contains "s3cret", and no job may ever see that (guard).
const (
	base       = "proxy.test"
	cookieName = "YTCypressCookie"
	aliceToken = "s3cret-alice"
	bobToken   = "s3cret-bob"
	aliceOAuth = "OAuth " + aliceToken
)

// closures is an Authorizer made of two functions.
type closures struct {
	authenticate func(context.Context, ytclient.Credentials) (auth.Identity, error)
	authorize    func(context.Context, string, string, []ytclient.Permission) (auth.Decision, error)
}

func (c closures) Authenticate(ctx context.Context, _ netip.Addr, cr ytclient.Credentials) (auth.Identity, error) {
	return c.authenticate(ctx, cr)
}

func (c closures) Authorize(ctx context.Context, login, operation string, perms []ytclient.Permission) (auth.Decision, error) {
	return c.authorize(ctx, login, operation, perms)
}

func (c closures) Recheck(ctx context.Context, login string, cr ytclient.Credentials, operation string, perms []ytclient.Permission) (auth.Decision, error) {
	identity, err := c.authenticate(ctx, cr)
	switch {
	case err != nil:
		return auth.Decision{}, err
	case identity.Login != login:
		return auth.Decision{}, auth.ErrUnauthenticated
	}
	decision, err := c.authorize(ctx, login, operation, perms)
	decision.Expires, decision.Held = earliest(identity.Expires, decision.Expires), identity.Held || decision.Held
	return decision, err
}

// people knows alice, who may have everything, and bob, who may have nothing.
func people() closures {
	return closures{
		authenticate: func(_ context.Context, cr ytclient.Credentials) (auth.Identity, error) {
			switch cr.Secret {
			case aliceToken:
				return auth.Identity{Login: "alice"}, nil
			case bobToken:
				return auth.Identity{Login: "bob"}, nil
			}
			return auth.Identity{}, auth.ErrUnauthenticated
		},
		authorize: func(_ context.Context, login, _ string, _ []ytclient.Permission) (auth.Decision, error) {
			if login != "alice" {
				return auth.Decision{}, auth.ErrDenied
			}
			return auth.Decision{}, nil
		},
	}
}

// world is a proxy that listens, and the services behind it.
type world struct {
	tb       testing.TB
	proxy    *Proxy
	table    *Table
	registry *prometheus.Registry
	addr     string
	log      *lines
	client   *http.Client // HTTP/1.1, follows no redirects
	services []discovery.Service
	labels   *discovery.Labels
}

func newWorld(tb testing.TB, configure ...func(*Config)) *world {
	tb.Helper()
	bases, err := discovery.NewBases(base)
	if err != nil {
		tb.Fatal(err)
	}
	w := &world{tb: tb, table: NewTable(), labels: discovery.NewLabels(nil), registry: prometheus.NewRegistry(), log: new(lines)}
	cfg := Config{
		Bases: bases, Table: w.table, Authorizer: people(), AuthCookieName: cookieName,
		Registerer: w.registry, AccessLog: slog.New(slog.NewJSONHandler(w.log, nil)),
	}
	for _, f := range configure {
		f(&cfg)
	}
	w.proxy, err = New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	listener := listen(tb)
	w.addr = listener.Addr().String()
	server := NewServer(w.proxy, slog.New(slog.NewTextHandler(testWriter{tb}, &slog.HandlerOptions{Level: slog.LevelWarn})))
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(GatherListener(listener)) }()
	transport := &http.Transport{DisableCompression: true}
	w.client = &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	tb.Cleanup(func() {
		transport.CloseIdleConnections()
		w.proxy.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			tb.Errorf("shut down: %v", err)
			server.Close()
		}
		<-served
		w.proxy.Close()
	})
	return w
}

func listen(tb testing.TB) net.Listener {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// deadAddr is an address that refuses connections. It is taken for as long as the test lasts: nobody else gets its port.
func deadAddr(tb testing.TB) string {
	tb.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		tb.Fatal(err)
	}
	syscall.CloseOnExec(fd)
	tb.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		tb.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		tb.Fatal(err)
	}
	return fmt.Sprint("127.0.0.1:", name.(*syscall.SockaddrInet4).Port)
}

// publish adds a service and puts all of them into the routing table. It returns the service as the table has it.
func (w *world) publish(s discovery.Service, addrs ...string) *discovery.Service {
	w.tb.Helper()
	if s.OperationID == "" {
		s.OperationID = fmt.Sprintf("1-2-3e8-%x", len(w.services)+1)
	}
	if s.Task == "" {
		s.Task = "task"
	}
	if s.Name == "" {
		s.Name = "ui"
	}
	if s.Protocol == "" {
		s.Protocol = discovery.HTTP
	}
	if s.User == "" {
		s.User = "alice"
	}
	for i, addr := range addrs {
		s.Endpoints = append(s.Endpoints, discovery.Endpoint{JobID: fmt.Sprintf("job-%d", i), Addr: addr})
	}
	w.services = append(w.services, s)
	snapshot, problems := discovery.NewSnapshot(w.table.Load(), w.labels, w.services)
	if len(problems) > 0 {
		w.tb.Fatal(problems)
	}
	w.table.Store(snapshot)
	return snapshot.Lookup(discovery.LongID(s.OperationID, s.Task, s.Name))
}

func host(s *discovery.Service) string { return discovery.Domain(s.ID, base) }

// serve starts a job's HTTP server behind the guard and returns its address.
func serve(tb testing.TB, h http.HandlerFunc) string {
	tb.Helper()
	return serveUnguarded(tb, guard(tb, h))
}

func serveUnguarded(tb testing.TB, h http.Handler) string {
	tb.Helper()
	server := httptest.NewServer(h)
	tb.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// guard fails the test if a credential reaches the job, in whatever part of the request.
func guard(tb testing.TB, h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		checkNoSecret(tb, "header", r.Header)
		h(w, r)
		if r.Body != nil {
			_, _ = io.Copy(io.Discard, r.Body)
		}
		checkNoSecret(tb, "trailer", r.Trailer)
	})
}

func checkNoSecret(tb testing.TB, part string, h http.Header) {
	for name, values := range h {
		for _, v := range values {
			if strings.Contains(v, "s3cret") {
				tb.Errorf("a credential reached the job in %s %s: %q", part, name, v)
			}
		}
	}
}

// request makes a request to the proxy for a host; header is "Name: value" lines. alice's token is added unless the
// lines carry credentials of their own or "-".
func (w *world) request(method, host, target string, body io.Reader, header ...string) *http.Request {
	w.tb.Helper()
	r, err := http.NewRequestWithContext(w.tb.Context(), method, "http://"+w.addr+target, body)
	if err != nil {
		w.tb.Fatal(err)
	}
	r.Host = host
	own := false
	for _, line := range header {
		name, value, ok := strings.Cut(line, ": ")
		switch strings.ToLower(name) {
		case "authorization", "cookie", "x-yt-taskproxy-authorization", "-":
			own = true
		}
		if ok {
			r.Header[http.CanonicalHeaderKey(name)] = append(r.Header[http.CanonicalHeaderKey(name)], value)
		}
	}
	if !own {
		r.Header.Set("X-Yt-Taskproxy-Authorization", aliceOAuth)
	}
	return r
}

// answer is a response with its body read.
type answer struct {
	*http.Response
	body string
}

func (w *world) do(r *http.Request) answer {
	w.tb.Helper()
	res, err := w.client.Do(r)
	if err != nil {
		w.tb.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		w.tb.Fatal(err)
	}
	return answer{res, string(b)}
}

func (w *world) get(host, target string, header ...string) answer {
	w.tb.Helper()
	return w.do(w.request(http.MethodGet, host, target, nil, header...))
}

// raw sends bytes on a connection of its own and reads one answer.
func (w *world) raw(text string) answer {
	w.tb.Helper()
	conn, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.tb.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(conn, text); err != nil {
		w.tb.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		w.tb.Fatalf("read the answer to %q: %v", text, err)
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return answer{res, string(b)}
}

func (a answer) check(tb testing.TB, status int, reason string) {
	tb.Helper()
	if a.StatusCode != status || a.Header.Get("X-Yt-Taskproxy-Error") != reason {
		tb.Errorf("got %d %q, want %d %q (body %q)", a.StatusCode, a.Header.Get("X-Yt-Taskproxy-Error"), status, reason, a.body)
	}
	if a.Header.Get("X-Request-Id") == "" {
		tb.Error("the answer has no x-request-id")
	}
}

// echo tells what the job saw.
type echo struct {
	Job     string
	Method  string
	Target  string
	Host    string
	Proto   string
	Header  http.Header
	Body    string
	Trailer http.Header
	Length  int64
	Chunked bool
}

func echoJob(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_ = json.NewEncoder(w).Encode(echo{
			Job: name, Method: r.Method, Target: r.RequestURI, Host: r.Host, Proto: r.Proto, Header: r.Header,
			Body: string(body), Trailer: r.Trailer, Length: r.ContentLength, Chunked: len(r.TransferEncoding) > 0,
		})
	}
}

func (a answer) echo(tb testing.TB) echo {
	tb.Helper()
	var e echo
	if err := json.Unmarshal([]byte(a.body), &e); err != nil {
		tb.Fatalf("status %d, body %q: %v", a.StatusCode, a.body, err)
	}
	return e
}

// rawJob is a job that speaks bytes: it reads one request per connection and hands it to f.
func rawJob(tb testing.TB, f func(conn net.Conn, r *http.Request, rest *bufio.Reader)) string {
	tb.Helper()
	l := listen(tb)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(time.Minute))
				reader := bufio.NewReader(conn)
				r, err := http.ReadRequest(reader)
				if err != nil {
					return
				}
				checkNoSecret(tb, "header", r.Header)
				f(conn, r, reader)
			})
		}
	})
	tb.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

// rawAnswer is a job that answers everything with the same bytes.
func rawAnswer(tb testing.TB, text string) string {
	return rawJob(tb, func(conn net.Conn, _ *http.Request, _ *bufio.Reader) { _, _ = io.WriteString(conn, text) })
}

// lines is an access log that can be waited for.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// text is all lines so far.
func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// wait returns the record of a request: the line is written when the handler ends, after the caller has the answer.
func (l *lines) wait(tb testing.TB, requestID string) map[string]any {
	tb.Helper()
	deadline := time.Now().Add(time.Minute)
	for ; time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for line := range strings.Lines(l.text()) {
			var record map[string]any
			if json.Unmarshal([]byte(line), &record) == nil && record["request_id"] == requestID {
				return record
			}
		}
	}
	tb.Fatalf("no line for request %s", requestID)
	return nil
}

// eventually polls for a condition that another goroutine brings about.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if ok() {
			return
		}
	}
	tb.Fatalf("never happened: %s", what)
}

type testWriter struct{ tb testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.tb.Errorf("the server logged: %s", p)
	return len(p), nil
}
