package proxy

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.ytsaurus.tech/yt/go/guid"
	"go.ytsaurus.tech/yt/go/yt"
	"go.ytsaurus.tech/yt/go/yt/ythttp"
	"go.ytsaurus.tech/yt/go/yterrors"
	"golang.org/x/net/http2"

	"taskproxy/auth"
	"taskproxy/discovery"
	"taskproxy/ytclient"
	"taskproxy/ytclient/ytlocal"
)

// overheard is a world of which every word is kept: all logs at their most talkative, and all that callers are told. Its
// cluster is a local one behind the real client.
type overheard struct {
	*world
	said, told *lines
	cluster    *ytlocal.Cluster
	alice      ytlocal.User
	operation  string // that alice may read
	admin      string // address of the admin listener
}

func newOverheard(t *testing.T) *overheard {
	t.Helper()
	o := &overheard{said: new(lines), told: new(lines)}
	logger := slog.New(slog.NewTextHandler(o.said, &slog.HandlerOptions{Level: slog.LevelDebug, AddSource: true}))
	was := log.Writer()
	log.SetOutput(o.said) // net/http says some things there
	t.Cleanup(func() { log.SetOutput(was) })
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	o.cluster, err = ytlocal.Start(ytlocal.Config{StateDir: t.TempDir()})
	must(err)
	t.Cleanup(func() {
		o.cluster.Faults().Clear()
		if err := o.cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	o.alice, err = o.cluster.AddUser("alice")
	must(err)
	o.operation = o.start(t, "alice")
	client, err := ytclient.New(ytclient.Config{Proxy: o.cluster.URL(), Token: func() (string, error) { return o.cluster.RootToken(), nil }})
	must(err)
	t.Cleanup(client.Close)
	registry := prometheus.NewRegistry()
	authorizer, err := auth.New(auth.Config{Cluster: client, Logger: logger, Registerer: registry, CallTimeout: 100 * time.Millisecond,
		FailuresPerCaller: -1, GrantTTL: 50 * time.Millisecond, DenyTTL: 50 * time.Millisecond})
	must(err)
	t.Cleanup(authorizer.Close)
	bases, err := discovery.NewBases(base)
	must(err)
	o.world = &world{tb: t, table: NewTable(), labels: discovery.NewLabels(nil), registry: registry, log: o.said,
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	o.proxy, err = New(Config{Bases: bases, Table: o.table, Authorizer: authorizer, AuthCookieName: cookieName, Registerer: registry, Logger: logger, AccessLog: logger,
		LoginURL: "https://cluster.test/login?back={url}", IdleTimeout: 50 * time.Millisecond, ForwardCredentialsTo: []string{"confidant"}})
	must(err)
	for _, handler := range []http.Handler{NewAdmin(AdminConfig{Gatherer: registry, Logger: logger}), o.proxy} {
		server, listener, served := NewServer(handler, logger), listen(t), make(chan struct{})
		o.admin, o.addr = o.addr, listener.Addr().String()
		go func() { defer close(served); _ = server.Serve(listener) }()
		t.Cleanup(func() { server.Close(); <-served; o.proxy.Close() })
	}
	return o
}

// start starts an operation that one user may read.
func (o *overheard) start(t *testing.T, user string) string {
	t.Helper()
	admin, err := ythttp.NewClient(&yt.Config{Proxy: o.cluster.Addr(), Token: o.cluster.RootToken(), CompressionCodec: yt.ClientCodecNone, DisableProxyDiscovery: true})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Stop()
	id, err := admin.StartOperation(t.Context(), yt.OperationVanilla, map[string]any{
		"ytlocal": map[string]any{"pretend": true},
		"tasks":   map[string]any{"t": map[string]any{"job_count": 1, "command": "true"}},
		"acl":     []any{map[string]any{"action": "allow", "subjects": []string{user}, "permissions": []string{"read"}}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return guid.GUID(id).String()
}

// offer publishes a service of an operation and returns its host.
func (o *overheard) offer(operation string, addrs ...string) string {
	return host(o.publish(discovery.Service{OperationID: operation, Name: fmt.Sprint("s", len(o.services)), Permissions: []ytclient.Permission{ytclient.Read}}, addrs...))
}

// tell sends a request on a connection of its own and keeps what comes back.
func (o *overheard) tell(host string, header ...string) {
	o.tellRaw("GET /path?token=in-the-query&x=y HTTP/1.1\nHost: " + host + "\n" + strings.Join(header, "\n") + "\nConnection: close\n\n")
}

func (o *overheard) tellRaw(text string) {
	conn := dial(o.tb, o.world)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	_, _ = io.WriteString(conn, strings.ReplaceAll(text, "\n", "\r\n"))
	_, _ = io.Copy(o.told, conn)
}

// Nothing that a run says holds a credential: no log line, no error, no metric, no page, no answer of the admin listener.
// Requests are good, bad and broken; the cluster is well and has its bad days; everything that was said is searched.
func TestSecretsStaySecret(t *testing.T) { // alone: it listens to the process's own log
	o := newOverheard(t)
	mine := []string{
		"Authorization: OAuth " + o.alice.Token, "Authorization: Bearer " + o.alice.Token, "X-Yt-Taskproxy-Authorization: OAuth " + o.alice.Token,
		"Cookie: a=1; YTCypressCookie=" + o.alice.Cookie, "Cookie: YTCypressCookie " + o.alice.Cookie,
	}
	good := o.offer(o.operation, serve(t, func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, r.Header) }))
	odd := o.start(t, "alice")
	hosts := []string{
		good, "elsewhere.test", base, "00000000." + base, o.offer(o.start(t, "root"), trap(t)), o.offer(odd, trap(t)),
		o.offer(o.operation), o.offer(o.operation, deadAddr(t)), o.offer(o.operation, rawAnswer(t, "HTTP/1.1 nonsense\r\n\r\n")),
		o.offer(o.operation, rawAnswer(t, "HTTP/1.1 101 Switching Protocols\r\n\r\n")),
		o.offer(o.operation, rawAnswer(t, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nok")),
		o.offer(o.operation, rawJob(t, func(_ net.Conn, _ *http.Request, r *bufio.Reader) { _, _ = r.ReadByte() })), // silent
	}
	o.cluster.Faults().Add(ytlocal.Fault{Command: "check_operation_permission", Error: &yterrors.Error{Code: 1, Message: "odd"},
		Match: func(c ytlocal.Call) bool { return fmt.Sprint(c.Params["operation_id"]) == odd }})
	for _, manner := range []string{
		"X-A: b", "Accept: text/html", "Accept: application/json", "Content-Type: application/grpc", "Origin: https://evil.test\nSec-Fetch-Site: cross-site",
		"Accept: text/html\nSec-Fetch-Mode: navigate\nSec-Fetch-Dest: document\nSec-Fetch-Site: cross-site",
		"Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
	} {
		for _, h := range hosts {
			for _, credential := range mine {
				o.tell(h, credential, manner)
			}
		}
		for _, credential := range badCredentials {
			o.tell(good, credential, manner)
		}
	}
	// Jobs that put what they were sent into an answer that nobody can read: what is theirs to know, and a trusted one's more.
	foreign := []string{"Authorization: Basic " + basic + "\nX-Yt-Taskproxy-Authorization: OAuth " + o.alice.Token, "Cookie: session=" + session + "; YTCypressCookie=" + o.alice.Cookie}
	for _, format := range malformedAnswers {
		for _, user := range []string{"alice", "confidant"} {
			s := o.publish(discovery.Service{OperationID: o.operation, Name: fmt.Sprint("s", len(o.services)), User: user, Permissions: []ytclient.Permission{ytclient.Read}},
				rawJob(t, func(conn net.Conn, r *http.Request, _ *bufio.Reader) {
					sent := strings.Join(append(r.Header["Authorization"], r.Header["Cookie"]...), ";")
					if user == "confidant" && !strings.Contains(sent, o.alice.Token) && !strings.Contains(sent, o.alice.Cookie) && !strings.Contains(sent, basic) {
						t.Errorf("a trusted job got %q", sent)
					}
					_, _ = fmt.Fprintf(conn, format, strings.TrimPrefix(sent, "Basic "))
				}))
			for _, credential := range append(foreign, mine[0], mine[3]) {
				o.tell(host(s), credential)
				o.tell(host(s), credential, "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
			}
		}
	}
	over2 := o.publish(discovery.Service{OperationID: o.operation, Name: "h2", Protocol: discovery.GRPC, Permissions: []ytclient.Permission{ytclient.Read}},
		framesJob(t, func(f *http2.Framer, stream uint32) {
			_ = f.WriteGoAway(0, http2.ErrCodeEnhanceYourCalm, []byte(o.alice.Token+basic))
			_ = f.WriteRSTStream(stream, http2.ErrCodeInternal)
		}))
	o.tell(host(over2), mine[0], "Content-Type: application/grpc")
	page := "<html>bad gateway</html>"
	for i, fault := range []ytlocal.Fault{
		{Hang: true}, {Cut: ytlocal.CutBefore}, {Cut: ytlocal.CutBody}, {Status: 502, Body: &page}, {Status: 200, Body: &page},
		{Status: 302, Header: http.Header{"Location": {"http://127.0.0.1:1/"}}}, {Error: &yterrors.Error{Code: 904, Message: "too many"}}, {Error: &yterrors.Error{Code: 1, Message: "odd"}},
	} {
		remove := o.cluster.Faults().Add(fault)
		// Whom the cluster has not been asked about yet has to wait for it.
		for _, credential := range append(mine, fmt.Sprintf("Authorization: OAuth s3cret-%d", i), fmt.Sprintf("Cookie: YTCypressCookie=s3cret-%d", i)) {
			o.tell(good, credential)
		}
		remove()
	}
	for _, text := range brokenRequests {
		o.tellRaw(strings.NewReplacer("{good}", good, "{token}", o.alice.Token).Replace(text))
	}
	conn := dialHTTP2(t, o.world)
	for i, f := range []field{
		{"authorization", "OAuth " + o.alice.Token}, {"authorization", "OAuth s3cret"}, {"Cookie", "YTCypressCookie=s3cret"}, {"connection", "s3cret"}, {"authorization", "OAuth s3cret\x00"},
	} {
		stream := uint32(2*i + 1)
		conn.headers(stream, true, slices.Concat(field{":method", "GET", ":scheme", "http", ":authority", good, ":path", "/?in-the-query"}, f)...)
		fmt.Fprint(o.told, conn.answer(t, stream))
	}
	conn.Close()
	o.addr = o.admin
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/metrics/prometheus", "/nothing"} {
		o.tellRaw("GET " + path + " HTTP/1.1\nHost: localhost\nAuthorization: OAuth " + o.alice.Token + "\nConnection: close\n\n")
	}

	eventually(t, "the last exchange is logged", func() bool { return strings.Count(o.said.text(), "msg=request ") > 300 })
	// The run is worth something: each end of a request that it is about was met.
	for _, reason := range []string{"no_credentials", "malformed_credentials", "ambiguous_cookie", "invalid_credentials", "cluster_unavailable", "access_denied", "no_such_service",
		"no_endpoints", "connect_failed", "bad_answer", "upstream_broken", "idle_timeout", "bad_request_target", "bad_request_body", "cross_site"} {
		if !strings.Contains(o.said.text(), "reason="+reason) {
			t.Errorf("nothing in the run ended in %s", reason)
		}
	}
	if !strings.Contains(o.told.text(), "X-Yt-Taskproxy-User:[alice]") || !strings.Contains(o.told.text(), "yt_task_proxy_requests_total") {
		t.Error("no job was called, or no metrics were shown")
	}
	for _, kind := range []string{"malformed HTTP response", "malformed HTTP status code", "malformed MIME header", "Content-Length", "transfer encoding", "read the answer to a handshake", "status 099"} {
		if !strings.Contains(o.said.text(), kind) {
			t.Errorf("nothing in the run ended in %q", kind)
		}
	}
	search(t, "a log", o.said.text(), basic, session)
	secrets := []string{"s3cret", o.alice.Token, o.alice.Cookie, o.cluster.RootToken()}
	search(t, "a log", o.said.text(), append(secrets, "in-the-query")...) // where some put a token
	search(t, "an answer", o.told.text(), secrets...)
}

// What callers send to a service and not to the cluster.
const (
	basic   = "YWxpY2U6b3Blbg=="
	session = "open-sesame"
)

// malformedAnswers are answers that repeat what a job was sent.
var malformedAnswers = []string{
	"%s\r\n\r\n", "HTTP/1.1 %s\r\n\r\n", "HTTP/%s 200 OK\r\n\r\n", "HTTP/1.1 099 %s\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\n%s\r\n\r\n",
	"HTTP/1.1 200 OK\r\nbad %s: x\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: %s\r\n\r\n",
	"HTTP/1.1 101 %s\r\n\r\n", "HTTP/1.1 103 Early\r\nbad %s\r\n\r\n",
}

// badCredentials are refused, and not repeated.
var badCredentials = []string{
	"Authorization: OAuth s3cret-nobody", "Authorization: OAuth\ts3cret", "Authorization: OAuth s3cret s3cret", "Authorization: OAuth s3cret\nAuthorization: Bearer s3cret",
	"X-Yt-Taskproxy-Authorization: s3cret", "X-Yt-Taskproxy-Authorization: Basic s3cret",
	"X-Yt-Taskproxy-Authorization: OAuth s3cret\nX-Yt-Taskproxy-Authorization: OAuth s3cret2", "Authorization: OAuth s3cret-\xc3\xa9",
	"Cookie: YTCypressCookie=s3cret; YTCypressCookie=s3cret2", `Cookie: YTCypressCookie="s3cret\"`, "Cookie: YTCypressCookie=s3cret,s3cret",
	"Authorization: OAuth " + strings.Repeat("s3cret", 4000), "Authorization: Basic czNjcmV0\nX-Csrf-Token: s3cret", "Proxy-Authorization: OAuth s3cret",
	"Cookie: YTCypressCookie=s3cret-refused",
}

// brokenRequests are refused by somebody on the way.
var brokenRequests = []string{
	"GET / HTTP/1.1\nHost: {good}\nAuthorization : OAuth s3cret\n\n",
	"GET / HTTP/1.1\nHost: {good}\nAuthorization OAuth s3cret\n\n",
	"GET / HTTP/1.1\nHost: {good}\nAuthorization: OAuth s3cret\x00\n\n",
	"GET / HTTP/1.1\nHost: {good}\nCookie: YTCypressCookie=s3cret\rx\n\n",
	"GET http://s3cret:s3cret@{good}/ HTTP/1.1\nHost: x\nConnection: close\n\n",
	"GET / HTTP/1.1\nHost: s3cret@{good}\n\n",
	"Authorization: OAuth s3cret\n\n",
	"GET / HTTP/9.9\nAuthorization: OAuth s3cret\n\n",
	"POST / HTTP/1.1\nHost: {good}\nAuthorization: OAuth {token}\nConnection: close\nTransfer-Encoding: chunked\n\n" +
		"5\nhello\n0\nAuthorization: OAuth s3cret\nCookie: YTCypressCookie=s3cret\nX-Yt-Taskproxy-Authorization: s3cret\n\n",
	"POST / HTTP/1.1\nHost: {good}\nAuthorization: OAuth {token}\nConnection: close\nTransfer-Encoding: chunked\n\n5\nhello\n0\nAuthorization OAuth s3cret\n\n",
	"POST / HTTP/1.1\nHost: {good}\nAuthorization: OAuth {token}\nConnection: close\nTransfer-Encoding: chunked\n\ns3cret\n",
	"OPTIONS / HTTP/1.1\nHost: {good}\nOrigin: https://evil.test\nConnection: close\nAccess-Control-Request-Method: POST\nAccess-Control-Request-Headers: authorization, s3cret\n\n",
}

func search(t *testing.T, what, text string, secrets ...string) {
	t.Helper()
	for _, secret := range secrets {
		if at := strings.Index(text, secret); at >= 0 {
			t.Errorf("%s holds a secret: ...%s...", what, text[max(0, at-300):min(len(text), at+100)])
		}
	}
}
