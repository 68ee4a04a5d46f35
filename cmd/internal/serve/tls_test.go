package serve

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"taskproxy/discovery"
	"taskproxy/examples/grpc-service/greeter"
	"taskproxy/examples/grpc-service/helloworld"
	"taskproxy/examples/job"
	"taskproxy/ytclient/ytlocal"
	"taskproxy/ytclient/ytlocal/scheduler"
)

// secureWorld is a process that serves TLS before one job, which tells what it got or echoes a WebSocket.
type secureWorld struct {
	*process
	cluster   *ytlocal.Cluster
	authority *authority
	secret    *secret
	alice     ytlocal.User
	host      string        // the service's
	finish    chan struct{} // closed: the job ends its answers to /stream
}

func startSecure(t *testing.T, args ...string) *secureWorld {
	t.Helper()
	w := &secureWorld{authority: newAuthority(t), finish: make(chan struct{})}
	w.secret = mountSecret(t, "", "")
	cert, key := w.authority.issue(t, 100, time.Now().AddDate(1, 0, 0))
	w.secret.swap(cert, key)
	cluster := startCluster(t)
	w.cluster = cluster
	var err error
	w.alice, err = cluster.AddUser("alice")
	must(t, err)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stream" {
			_, _ = io.WriteString(rw, "begin ")
			_ = http.NewResponseController(rw).Flush()
			select {
			case <-w.finish:
			case <-r.Context().Done():
			}
			_, _ = io.WriteString(rw, "end")
			return
		}
		if r.Header.Get("Upgrade") == "" {
			_, _ = fmt.Fprintf(rw, "%s %s", r.Header.Get("X-Forwarded-Proto"), r.Host)
			return
		}
		conn, err := websocket.Accept(rw, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer conn.CloseNow()
		conn.SetReadLimit(1 << 20)
		for {
			kind, message, err := conn.Read(context.Background())
			if err != nil || conn.Write(context.Background(), kind, message) != nil {
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	publish(t, cluster, server)
	w.host = discovery.Domain(discovery.ShortID("1-2-3e803e8-4", "server", "port_0"), "tp.example.net")
	args = append([]string{"--tls-cert-file=" + w.secret.cert(), "--tls-key-file=" + w.secret.key()}, args...)
	w.process = startEdited(t, cluster, cluster.RootToken(), func(c *Config) { c.certificatePeriod = 20 * time.Millisecond }, args...)
	client := w.client(t, false, "http/1.1")
	until(t, "the service is there", func() bool {
		code, _ := w.get(t, client, w.host)
		return code == http.StatusOK
	})
	return w
}

// client speaks HTTP/2 or 1.1 to the process, whatever the name in the URL; fresh: each request on a connection of its own.
func (w *secureWorld) client(t *testing.T, fresh bool, protocol string) *http.Client {
	t.Helper()
	transport := &http.Transport{
		TLSClientConfig: w.authority.trusts(protocol), ForceAttemptHTTP2: protocol == "h2", DisableKeepAlives: fresh,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, w.Public)
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func (w *secureWorld) get(t *testing.T, client *http.Client, host string) (code int, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+host+"/", nil)
	must(t, err)
	r.Header.Set("Authorization", "OAuth "+w.alice.Token)
	res, err := client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, res.Proto + " " + res.Header.Get("X-Yt-Taskproxy-Error") + " " + string(body)
}

func TestTLS(t *testing.T) {
	t.Parallel()
	w := startSecure(t)
	for protocol, proto := range map[string]string{"h2": "HTTP/2.0", "http/1.1": "HTTP/1.1"} {
		client := w.client(t, false, protocol)
		if code, text := w.get(t, client, w.host); code != http.StatusOK || text != proto+"  https "+w.host {
			t.Errorf("%s: %d %q", protocol, code, text)
		}
		// The certificate covers this name as well, so a browser may send its requests on this connection.
		if code, text := w.get(t, client, "elsewhere.example.org"); code != http.StatusMisdirectedRequest || !strings.HasPrefix(text, proto+" misdirected") {
			t.Errorf("%s, a foreign host: %d %q", protocol, code, text)
		}
	}
	old := w.authority.trusts("h2")
	old.MinVersion, old.MaxVersion, old.ServerName = tls.VersionTLS10, tls.VersionTLS11, w.host
	if conn, err := tls.Dial("tcp", w.Public, old); err == nil {
		conn.Close()
		t.Error("TLS 1.1 is spoken")
	}
	if a := get(t, "http://"+w.Public+"/"); a.status != http.StatusBadRequest {
		t.Errorf("a request without TLS: %d", a.status)
	}
	if text := get(t, "http://"+w.Admin+"/metrics").body; !strings.Contains(text, "\nyt_task_proxy_tls_certificate_last_reload_successful 1\n") ||
		!strings.Contains(text, "\nyt_task_proxy_tls_certificate_expiry_timestamp_seconds 1.") {
		t.Error("the certificate's metrics are not there")
	}
}

// HTTP/2 over TLS has the limits of HTTP/2 without.
func TestTLSHasTheSameLimits(t *testing.T) {
	t.Parallel()
	w := startSecure(t)
	cluster := startCluster(t)
	plain := startProcess(t, cluster, cluster.RootToken())
	config := w.authority.trusts("h2")
	config.ServerName = w.host
	secure, err := tls.Dial("tcp", w.Public, config)
	must(t, err)
	defer secure.Close()
	if got := secure.ConnectionState().NegotiatedProtocol; got != "h2" {
		t.Fatalf("ALPN chose %q", got)
	}
	open, err := net.Dial("tcp", plain.Public)
	must(t, err)
	defer open.Close()
	got, want := settingsOf(t, secure), settingsOf(t, open)
	if got != want || !strings.Contains(got, "MAX_CONCURRENT_STREAMS = 250") {
		t.Errorf("settings over TLS:\n%s\nwithout:\n%s", got, want)
	}
}

func settingsOf(t *testing.T, conn net.Conn) string {
	t.Helper()
	must(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err := io.WriteString(conn, http2.ClientPreface)
	must(t, err)
	framer := http2.NewFramer(conn, bufio.NewReader(conn))
	must(t, framer.WriteSettings())
	frame, err := framer.ReadFrame()
	must(t, err)
	settings, ok := frame.(*http2.SettingsFrame)
	if !ok {
		t.Fatalf("the first frame is %v", frame)
	}
	var all []string
	must(t, settings.ForeachSetting(func(s http2.Setting) error { all = append(all, s.String()); return nil }))
	return strings.Join(all, "\n")
}

// A WebSocket over TLS carries what is sent in either direction, and hears of the end.
func TestTLSWebSocket(t *testing.T) {
	t.Parallel()
	w := startSecure(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, res, err := websocket.Dial(ctx, "wss://"+w.host+"/", &websocket.DialOptions{
		HTTPClient: w.client(t, false, "http/1.1"), HTTPHeader: http.Header{"Authorization": {"OAuth " + w.alice.Token}},
	})
	must(t, err)
	defer conn.CloseNow()
	if res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("status %d", res.StatusCode)
	}
	conn.SetReadLimit(1 << 20)
	for _, message := range []string{"hello", strings.Repeat("x", 300_000), ""} {
		must(t, conn.Write(ctx, websocket.MessageText, []byte(message)))
		_, back, err := conn.Read(ctx)
		must(t, err)
		if string(back) != message {
			t.Errorf("%d bytes came back, want %d", len(back), len(message))
		}
	}
	go w.stop()
	_, _, err = conn.Read(ctx)
	var closed websocket.CloseError
	if !errors.As(err, &closed) || closed.Code != websocket.StatusGoingAway {
		t.Errorf("the end: %v, want a close frame with %d", err, websocket.StatusGoingAway)
	}
	conn.CloseNow()
	w.stop()
}

// greeter publishes a gRPC server. The client is of one connection; the context is for calls with a token.
func (w *secureWorld) greeter(t *testing.T) (helloworld.GreeterClient, func(token string) context.Context) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	served := make(chan error, 1)
	go func() { served <- greeter.Serve(ctx, job.Info{JobID: "1-2-3840384-7"}, listener) }()
	t.Cleanup(func() { cancel(); must(t, <-served) })
	const id = "1-2-3e803e8-8"
	must(t, w.cluster.Scheduler().Pretend(scheduler.Operation{
		ID: id, User: "alice",
		Annotations: map[string]any{"task_proxy": map[string]any{"enabled": true, "tasks_info": map[string]any{
			"server": map[string]any{"greeter": map[string]any{"protocol": "grpc", "port_index": int64(0)}},
		}}},
		ACL:  []any{map[string]any{"action": "allow", "subjects": []any{"alice"}, "permissions": []any{"read"}}},
		Spec: map[string]any{"tasks": map[string]any{"server": map[string]any{"job_count": int64(1), "port_count": int64(1)}}},
	}, []scheduler.Job{{ID: "1-2-3840384-7", Task: "server", Address: "127.0.0.1:9012", Ports: []int{listener.Addr().(*net.TCPAddr).Port}}}))
	host := discovery.Domain(discovery.ShortID(id, "server", "greeter"), "tp.example.net")
	conn, err := grpc.NewClient("passthrough:///"+w.Public, grpc.WithAuthority(host), grpc.WithTransportCredentials(credentials.NewTLS(w.authority.trusts("h2"))))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	client := helloworld.NewGreeterClient(conn)
	as := func(token string) context.Context {
		return metadata.AppendToOutgoingContext(ctx, "authorization", "OAuth "+token)
	}
	until(t, "the greeter answers", func() bool {
		_, err := client.SayHello(as(w.alice.Token), &helloworld.HelloRequest{Name: "you"})
		return status.Code(err) != codes.Unavailable && status.Code(err) != codes.NotFound
	})
	return client, as
}

// A gRPC call over TLS has its status in the trailers, whoever says it.
func TestTLSGRPC(t *testing.T) {
	t.Parallel()
	w := startSecure(t)
	client, as := w.greeter(t)
	reply, err := client.SayHello(as(w.alice.Token), &helloworld.HelloRequest{Name: "you"})
	if err != nil || !strings.HasPrefix(reply.GetMessage(), "Hello, you! This is job 1-2-3840384-7") {
		t.Errorf("%v, %v", reply, err)
	}
	if _, err := client.SayHello(as("nobody's"), &helloworld.HelloRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a token that nobody has: %v", err)
	}
}

// Certificates that change under load cost nobody a request, on kept connections nor on new ones.
func TestCertificateRotationUnderLoad(t *testing.T) {
	t.Parallel()
	w := startSecure(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var answered atomic.Int64
	for _, fresh := range []bool{false, true} {
		for _, protocol := range []string{"h2", "http/1.1"} {
			client := w.client(t, fresh, protocol)
			for range 2 {
				wg.Go(func() {
					for ctx.Err() == nil {
						if code, text := w.get(t, client, w.host); code != http.StatusOK {
							t.Errorf("%s, fresh %t: %d %s", protocol, fresh, code, text)
							return
						}
						answered.Add(1)
					}
				})
			}
		}
	}
	config := w.authority.trusts("h2")
	config.ServerName = w.host
	for serial := int64(101); serial <= 106; serial++ {
		cert, key := w.authority.issue(t, serial, time.Now().AddDate(1, 0, 0))
		if serial%3 == 0 {
			w.secret.swap(cert, "garbage") // and nobody notices
		}
		before := answered.Load()
		w.secret.swap(cert, key)
		until(t, fmt.Sprintf("callers see certificate %d", serial), func() bool {
			conn, err := tls.Dial("tcp", w.Public, config)
			must(t, err)
			defer conn.Close()
			return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64() == serial && answered.Load() > before+40
		})
	}
	cancel()
	wg.Wait()
	t.Logf("%d requests, 6 certificates", answered.Load())
}
