package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"taskproxy/discovery"
)

func wsEcho(tb testing.TB, opts *websocket.AcceptOptions) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		checkNoSecret(tb, "header", r.Header)
		w.Header().Set("Set-Cookie", "YTCypressCookie=evil")
		w.Header().Add("Set-Cookie", "a=1; Domain=proxy.test")
		w.Header().Set("X-Yt-Taskproxy-Error", "forged")
		w.Header().Set("X-Saw-User", r.Header.Get(UserHeader))
		c, err := websocket.Accept(w, r, opts)
		if err != nil {
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(-1)
		for {
			kind, b, err := c.Read(r.Context())
			if err != nil {
				return
			}
			if err := c.Write(r.Context(), kind, b); err != nil {
				return
			}
		}
	}
}

func (w *world) dialWebSocket(host string, opts *websocket.DialOptions) (*websocket.Conn, *http.Response, error) {
	if opts == nil {
		opts = &websocket.DialOptions{}
	}
	if opts.HTTPHeader == nil {
		opts.HTTPHeader = http.Header{"Cookie": {"b=2; YTCypressCookie=" + aliceToken}}
	}
	opts.Host, opts.HTTPClient = host, w.client
	return websocket.Dial(w.tb.Context(), "ws://"+w.addr+"/chat?x=1", opts)
}

func TestWebSocket(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, deadAddr(t), serveUnguarded(t, wsEcho(t, &websocket.AcceptOptions{Subprotocols: []string{"v2"}, CompressionMode: websocket.CompressionContextTakeover})))
	for range 2 { // the dead endpoint costs no handshake
		c, res, err := w.dialWebSocket(host(s), &websocket.DialOptions{Subprotocols: []string{"v1", "v2"}, CompressionMode: websocket.CompressionContextTakeover})
		if err != nil {
			t.Fatal(err)
		}
		if c.Subprotocol() != "v2" || res.Header.Get("X-Saw-User") != "alice" {
			t.Errorf("subprotocol %q, header %v", c.Subprotocol(), res.Header)
		}
		if got := res.Header["Set-Cookie"]; len(got) != 1 || got[0] != "a=1" || res.Header.Get("X-Yt-Taskproxy-Error") != "" || len(res.Header["X-Request-Id"]) != 1 {
			t.Errorf("header of the 101: %v", res.Header)
		}
		c.SetReadLimit(1 << 21)
		for _, message := range []string{"hello", strings.Repeat("x", 1<<20)} {
			if err := c.Write(t.Context(), websocket.MessageText, []byte(message)); err != nil {
				t.Fatal(err)
			}
			if _, b, err := c.Read(t.Context()); err != nil || string(b) != message {
				t.Fatalf("got %d bytes, %v", len(b), err)
			}
		}
		if err := c.Close(websocket.StatusNormalClosure, "bye"); err != nil {
			t.Errorf("close: %v", err)
		}
		record := w.log.wait(t, res.Header.Get("X-Request-Id"))
		if record["status"] != float64(101) || record["protocol"] != "websocket" || record["bytes_in"].(float64) == 0 || record["bytes_out"].(float64) == 0 {
			t.Errorf("logged %v", record)
		}
	}
}

func TestWebSocketIsDecidedLikeEverythingElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serveUnguarded(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("reached the job") })))
	for _, c := range []struct {
		name, host string
		header     http.Header
		status     int
	}{
		{"nobody", host(s), http.Header{"X": {"y"}}, 401},
		{"bob", host(s), http.Header{"Authorization": {"OAuth " + bobToken}}, 403},
		{"unknown", "00000000." + base, http.Header{"Authorization": {aliceOAuth}}, 404},
		{"conflict", host(s), http.Header{"Authorization": {aliceOAuth}, "X-Yt-Taskproxy-Id": {"00000000"}}, 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, res, err := w.dialWebSocket(c.host, &websocket.DialOptions{HTTPHeader: c.header})
			if err == nil || res == nil || res.StatusCode != c.status {
				t.Errorf("got %v, %v, want %d", res, err, c.status)
			}
		})
	}
}

// handshake is a WebSocket handshake as bytes.
func handshakeBytes(host string) string {
	return "GET /chat HTTP/1.1\r\nHost: " + host + "\r\nAuthorization: " + aliceOAuth + "\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n" +
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
}

const accepted = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"

// Bytes that the caller sends together with the handshake, and bytes that the job sends together with its 101, arrive;
// and each side can close its half and still hear the other.
func TestTunnelLosesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, rawJob(t, func(conn net.Conn, r *http.Request, rest *bufio.Reader) {
		if r.Header.Get("Upgrade") != "websocket" || r.Header.Get("Connection") != "Upgrade" || r.RequestURI != "/chat" {
			t.Errorf("handshake at the job: %s %v", r.RequestURI, r.Header)
		}
		_, _ = io.WriteString(conn, accepted+"early from the job;")
		all, err := io.ReadAll(rest) // until the caller closes its half
		if string(all) != "early from the caller;late" || err != nil {
			t.Errorf("the job got %q, %v", all, err)
		}
		_, _ = io.WriteString(conn, "last words")
	}))
	conn, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	_, _ = io.WriteString(conn, handshakeBytes(host(s))+"early from the caller;")
	reader := bufio.NewReader(conn)
	res, err := http.ReadResponse(reader, nil)
	if err != nil || res.StatusCode != 101 {
		t.Fatalf("got %v, %v", res, err)
	}
	_, _ = io.WriteString(conn, "late")
	_ = conn.(*net.TCPConn).CloseWrite()
	if all, err := io.ReadAll(reader); string(all) != "early from the job;last words" || err != nil {
		t.Errorf("the caller got %q, %v", all, err)
	}
}

// A job that declines answers like any other: the body passes, cleaned headers too.
func TestDeclinedHandshake(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, rawAnswer(t, "HTTP/1.1 103 Early Hints\r\nAlt-Svc: x\r\nLink: <y>\r\n\r\n"+
		"HTTP/1.1 426 Upgrade Required\r\nAlt-Svc: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nnope\r\n0\r\n\r\n"))
	conn, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, handshakeBytes(host(s)))
	reader := bufio.NewReader(conn)
	for _, status := range []int{103, 426} {
		res, err := http.ReadResponse(reader, nil)
		if err != nil || res.StatusCode != status || res.Header["Alt-Svc"] != nil {
			t.Fatalf("got %v, %v, want %d", res, err, status)
		}
		if status == 426 {
			if b, err := io.ReadAll(res.Body); string(b) != "nope" || err != nil {
				t.Errorf("body %q, %v", b, err)
			}
		} else if res.Header.Get("Link") != "<y>" {
			t.Errorf("header of the 103: %v", res.Header)
		}
	}
}

func TestBadHandshakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, text := range map[string]string{
		"other protocol": strings.Replace(accepted, "websocket", "h2c", 1),
		"no protocol":    strings.Replace(accepted, "Upgrade: websocket\r\n", "", 1),
		"no accept":      strings.Replace(accepted, "Sec-WebSocket-Accept", "X", 1),
		"no connection":  strings.Replace(accepted, "Connection: upgrade\r\n", "", 1),
		"no HTTP":        "hello\r\n\r\n",
	} {
		s := w.publish(discovery.Service{}, rawAnswer(t, text))
		if a := w.raw(handshakeBytes(host(s))); a.StatusCode != 502 {
			t.Errorf("%s: got %d, want 502", name, a.StatusCode)
		}
	}
	s := w.publish(discovery.Service{}, rawJob(t, func(net.Conn, *http.Request, *bufio.Reader) { t.Error("reached the job") }))
	w.raw(strings.Replace(handshakeBytes(host(s)), "\r\n\r\n", "\r\nContent-Length: 5\r\n\r\nhello", 1)).check(t, 400, "bad_upgrade")
	w.raw(strings.Replace(handshakeBytes(host(s)), "GET", "POST", 1)).check(t, 400, "bad_upgrade")
	dead := w.publish(discovery.Service{}, deadAddr(t))
	w.raw(handshakeBytes(host(dead))).check(t, 502, "connect_failed")
}

func TestTunnelEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		idle   time.Duration
		end    func(*world)
		reason string
	}{
		{"when it is idle", 50 * time.Millisecond, func(*world) {}, "idle_timeout"},
		{"when the proxy closes", 0, func(w *world) { w.proxy.Close() }, "shutting_down"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, func(cfg *Config) { cfg.IdleTimeout = c.idle })
			s := w.publish(discovery.Service{}, serveUnguarded(t, wsEcho(t, nil)))
			conn, res, err := w.dialWebSocket(host(s), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.CloseNow()
			c.end(w)
			if _, _, err := conn.Read(t.Context()); err == nil {
				t.Error("read something")
			}
			if record := w.log.wait(t, res.Header.Get("X-Request-Id")); record["reason"] != c.reason {
				t.Errorf("logged %v, want %s", record, c.reason)
			}
			if c.reason == "shutting_down" {
				w.raw(handshakeBytes(host(s))).check(t, 503, "shutting_down")
			}
		})
	}
}

// A job that dies ends the caller's side, and a caller that vanishes the job's.
func TestTunnelFollowsItsEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ended := make(chan struct{})
	s := w.publish(discovery.Service{}, rawJob(t, func(conn net.Conn, _ *http.Request, rest *bufio.Reader) {
		defer close(ended)
		_, _ = io.WriteString(conn, accepted)
		_, _ = io.Copy(io.Discard, rest)
	}))
	conn, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, handshakeBytes(host(s)))
	if res, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || res.StatusCode != 101 {
		t.Fatalf("got %v, %v", res, err)
	}
	conn.Close()
	<-ended
	eventually(t, "the tunnel is forgotten", func() bool {
		w.proxy.streams.mu.Lock()
		defer w.proxy.streams.mu.Unlock()
		return len(w.proxy.streams.open) == 0
	})
}

// slowLog is a log that takes its time.
type slowLog struct{ lines }

func (l *slowLog) Write(p []byte) (int, error) {
	time.Sleep(20 * time.Millisecond)
	return l.lines.Write(p)
}

// The process ends when its streams have, and a line that is not written then is written by nobody.
func TestEndedStreamsAreLogged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		begun string // what the job says, and the caller waits for
		end   func(*Proxy)
	}{
		{"tunnel", accepted, func(p *Proxy) { p.Drain(t.Context()) }},
		{"event stream", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", (*Proxy).Close},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var log slowLog
			w := newWorld(t, func(cfg *Config) {
				cfg.AccessLog, cfg.DrainTimeout = slog.New(slog.NewJSONHandler(&log, nil)), 30*time.Millisecond // a third of it after the beginning it is listed
			})
			s := w.publish(discovery.Service{}, rawJob(t, func(conn net.Conn, _ *http.Request, rest *bufio.Reader) {
				_, _ = io.WriteString(conn, c.begun)
				_, _ = io.Copy(io.Discard, rest)
			}))
			conn, err := net.Dial("tcp", w.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, handshakeBytes(host(s)))
			if _, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the stream is listed", func() bool {
				w.proxy.streams.mu.Lock()
				defer w.proxy.streams.mu.Unlock()
				return len(w.proxy.streams.open) == 1
			})
			c.end(w.proxy)
			if got := log.text(); !strings.Contains(got, `"reason":"shutting_down"`) {
				t.Errorf("logged %q", got)
			}
		})
	}
}

// A job that never ends its headers does not fill our memory.
func TestEndlessHandshakeAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, rawJob(t, func(conn net.Conn, _ *http.Request, _ *bufio.Reader) {
		_, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n")
		line := "X: " + strings.Repeat("x", 4096) + "\r\n"
		for n := 0; err == nil; n += len(line) {
			if n > 64<<20 {
				t.Error("all of 64 MiB were read")
				return
			}
			_, err = io.WriteString(conn, line)
		}
	}))
	w.raw(handshakeBytes(host(s))).check(t, 502, "upstream_broken")
}

// A caller who leaves before the job has agreed to a tunnel ends the handshake.
func TestWhoLeavesAHandshakeEndsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	asked, ended := make(chan struct{}), make(chan error, 1)
	s := w.publish(discovery.Service{}, rawJob(t, func(_ net.Conn, _ *http.Request, rest *bufio.Reader) {
		close(asked)
		_, err := rest.ReadByte()
		ended <- err
	}))
	conn, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nAuthorization: %s\r\nX-Request-Id: left\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", host(s), "OAuth "+aliceToken)
	<-asked
	conn.Close()
	if err := <-ended; !errors.Is(err, io.EOF) {
		t.Errorf("the job's connection: %v, want its end", err)
	}
	if record := w.log.wait(t, "left"); record["status"] != float64(499) || record["reason"] != "client_gone" {
		t.Errorf("logged %v", record)
	}
}
