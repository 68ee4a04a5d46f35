package proxy

import (
	"bufio"
	"context"
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
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"taskproxy/auth"
	"taskproxy/discovery"
	"taskproxy/ytclient"
)

// townHall is a cluster that says who is who, as auth asks it.
type townHall struct {
	mu     sync.Mutex
	login  string
	who    error // of whoami
	denied bool
	may    error // of check_operation_permission
	calls  int
}

func (h *townHall) set(change func(*townHall)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h)
}

func (h *townHall) asked() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls
}

func (h *townHall) WhoAmI(context.Context, ytclient.Credentials) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	return h.login, h.who
}

func (h *townHall) CheckOperationPermission(context.Context, string, string, ytclient.Permission) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.denied, h.may
}

const shortTTL = 200 * time.Millisecond

// withHall is a world whose callers are judged by a real auth.Authorizer with a short memory, which holds no yes.
func withHall(t *testing.T, configure ...func(*Config)) (*world, *townHall) {
	h := &townHall{login: "alice"}
	a, err := auth.New(auth.Config{Cluster: h, GrantTTL: shortTTL, DenyTTL: time.Millisecond, StaleLimit: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return newWorld(t, append([]func(*Config){func(c *Config) { c.Authorizer = a }}, configure...)...), h
}

// client is a stream that is open, as its caller sees it.
type client struct {
	id    string                        // of the request
	alive func() error                  // sends something and waits for its echo
	end   func(testing.TB) (how string) // waits for the stream's end
}

// openers open a stream each, by protocol. What they return as the end is what the caller can tell.
var openers = map[string]func(testing.TB, *world) client{
	"websocket": openWebSocket,
	"grpc":      openGRPC,
	"sse":       openSSE,
}

func openWebSocket(tb testing.TB, w *world) client {
	s := w.publish(discovery.Service{Name: "ws"}, serveUnguarded(tb, wsEcho(tb, &websocket.AcceptOptions{CompressionMode: websocket.CompressionContextTakeover})))
	conn, res, err := w.dialWebSocket(host(s), &websocket.DialOptions{CompressionMode: websocket.CompressionContextTakeover})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.CloseNow() })
	return client{
		id: res.Header.Get("X-Request-Id"),
		alive: func() error {
			if err := conn.Write(tb.Context(), websocket.MessageText, []byte(strings.Repeat("hello ", 100))); err != nil {
				return err
			}
			_, _, err := conn.Read(tb.Context())
			return err
		},
		end: func(tb testing.TB) string {
			ctx, cancel := context.WithTimeout(tb.Context(), 10*time.Second)
			defer cancel()
			_, _, err := conn.Read(ctx)
			var closed websocket.CloseError
			if errors.As(err, &closed) {
				reason, _, _ := strings.Cut(closed.Reason, ":")
				return fmt.Sprintf("%d %s", closed.Code, reason)
			}
			return fmt.Sprintf("cut: %v", err)
		},
	}
}

func openGRPC(tb testing.TB, w *world) client {
	s := w.publish(discovery.Service{Name: "grpc", Protocol: discovery.GRPC}, serveGRPC(tb, "one"))
	stream, err := w.dialGRPC(host(s)).FullDuplexCall(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	alive := func() error {
		if err := stream.Send(&testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: []byte("hello")}}); err != nil {
			return err
		}
		_, err := stream.Recv()
		return err
	}
	if err := alive(); err != nil {
		tb.Fatal(err)
	}
	return client{
		alive: alive,
		end: func(testing.TB) string {
			_, err := stream.Recv()
			how := status.Code(err).String()
			if reason := stream.Trailer().Get("x-yt-taskproxy-error"); len(reason) == 1 {
				how += " " + reason[0]
			}
			return how
		},
	}
}

func openSSE(tb testing.TB, w *world) client {
	more := make(chan struct{})
	s := w.publish(discovery.Service{Name: "sse"}, serveUnguarded(tb, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		for {
			_, _ = io.WriteString(rw, "data: x\n\n")
			_ = http.NewResponseController(rw).Flush()
			select {
			case <-more:
			case <-r.Context().Done():
				return
			}
		}
	})))
	res, err := w.client.Do(w.request(http.MethodGet, host(s), "/", nil))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { res.Body.Close() })
	reader := bufio.NewReader(res.Body)
	read := func() error {
		_, err := reader.ReadString('\n')
		if err == nil {
			_, err = reader.ReadString('\n')
		}
		return err
	}
	if err := read(); err != nil {
		tb.Fatal(err)
	}
	return client{
		id: res.Header.Get("X-Request-Id"),
		alive: func() error {
			more <- struct{}{}
			return read()
		},
		end: func(testing.TB) string {
			if err := read(); err != nil {
				return "cut"
			}
			return "goes on"
		},
	}
}

// wantEnd is what each protocol's caller sees when a stream ends for a reason.
func wantEnd(protocol, reason string) string {
	switch protocol {
	case "websocket":
		if reason == "access_revoked" {
			return "1008 access_revoked"
		}
		return "1001 " + reason
	case "grpc":
		return map[string]string{"access_revoked": "PermissionDenied", "idle_timeout": "DeadlineExceeded"}[reason] +
			map[string]string{"operation_ended": "Unavailable", "job_ended": "Unavailable", "shutting_down": "Unavailable", "cluster_unavailable": "Unavailable"}[reason] + " " + reason
	}
	return "cut"
}

// check waits for a stream's end and looks at it from both sides.
func (c client) check(tb testing.TB, w *world, protocol, reason string) {
	tb.Helper()
	if got, want := c.end(tb), wantEnd(protocol, reason); got != want {
		tb.Errorf("the caller saw %q, want %q", got, want)
	}
	eventually(tb, "the log says "+reason, func() bool { return strings.Contains(w.log.text(), `"reason":"`+reason+`"`) })
	if c.id != "" {
		if record := w.log.wait(tb, c.id); record["reason"] != reason {
			tb.Errorf("logged %v", record)
		}
	}
	if strings.Contains(w.log.text(), "s3cret") {
		tb.Errorf("a credential is in the log: %s", w.log.text())
	}
}

// Who loses a right loses the streams that go on by it, within the time for which a yes counts, and is told so.
func TestRevokedStreams(t *testing.T) {
	t.Parallel()
	for protocol, open := range openers {
		for name, change := range map[string]func(*townHall){
			"denied":                       func(h *townHall) { h.denied = true },
			"token withdrawn":              func(h *townHall) { h.who = ytclient.ErrUnauthenticated },
			"user banned":                  func(h *townHall) { h.who = ytclient.ErrDenied },
			"token is somebody else's now": func(h *townHall) { h.login = "mallory" },
		} {
			if protocol != "websocket" && name != "denied" {
				continue // which no is the watch's business, and how it is said is the protocol's
			}
			t.Run(protocol+", "+name, func(t *testing.T) {
				t.Parallel()
				w, hall := withHall(t)
				c := open(t, w)
				for before := hall.asked(); hall.asked() < before+2; { // it outlives a yes
					if err := c.alive(); err != nil {
						t.Fatal(err)
					}
					time.Sleep(shortTTL / 10)
				}
				hall.set(change)
				start := time.Now()
				c.check(t, w, protocol, "access_revoked")
				if took := time.Since(start); took > shortTTL+2*time.Second { // of which two seconds are for a busy machine
					t.Errorf("ended after %s", took)
				}
			})
		}
	}
}

// A cluster that does not answer, or is too busy for us, costs nobody a stream. (How long that lasts: watch_test.go.)
func TestStreamsOutliveClusterErrors(t *testing.T) {
	t.Parallel()
	for protocol, open := range openers {
		for _, err := range []error{ytclient.ErrUnavailable, ytclient.ErrOverloaded, ytclient.ErrOddAnswer} {
			if protocol != "websocket" && !errors.Is(err, ytclient.ErrOverloaded) {
				continue
			}
			t.Run(fmt.Sprintf("%s, %v", protocol, err), func(t *testing.T) {
				t.Parallel()
				w, hall := withHall(t, func(c *Config) { c.StaleLimit = 3 * time.Second })
				c := open(t, w)
				hall.set(func(h *townHall) { h.who, h.may = err, err })
				for before := hall.asked(); hall.asked() < before+1; {
					if err := c.alive(); err != nil {
						t.Fatal(err)
					}
					time.Sleep(shortTTL / 10)
				}
				for range 5 {
					if err := c.alive(); err != nil {
						t.Fatal(err)
					}
				}
				hall.set(func(h *townHall) { h.who, h.may, h.denied = nil, nil, true })
				c.check(t, w, protocol, "access_revoked")
			})
		}
	}
}

func TestStreamsEndWithTheirOperation(t *testing.T) {
	t.Parallel()
	for protocol, open := range openers {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			const timeout = 600 * time.Millisecond
			w := newWorld(t, func(c *Config) { c.DrainTimeout = timeout })
			c := open(t, w)
			w.table.Store(nil)
			start := time.Now()
			c.check(t, w, protocol, "operation_ended")
			if took := time.Since(start); took < timeout/2 || took > timeout+2*time.Second {
				t.Errorf("ended after %s", took)
			}
		})
	}
}

func TestIdleStreamsAreTold(t *testing.T) {
	t.Parallel()
	for protocol, open := range openers {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(c *Config) { c.IdleTimeout = 200 * time.Millisecond })
			open(t, w).check(t, w, protocol, "idle_timeout")
		})
	}
}

// At a shutdown tunnels are told at once, and other streams when their time is over too.
func TestStreamsAtShutdown(t *testing.T) {
	t.Parallel()
	for protocol, open := range openers {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(c *Config) { c.DrainTimeout = 30 * time.Millisecond }) // looks every 10 ms
			c := open(t, w)
			eventually(t, "the stream is listed", func() bool {
				w.proxy.streams.mu.Lock()
				defer w.proxy.streams.mu.Unlock()
				return len(w.proxy.streams.open) == 1
			})
			if protocol != "websocket" {
				w.proxy.Drain(t.Context())
				if err := c.alive(); err != nil {
					t.Errorf("ended at the beginning of the shutdown: %v", err)
				}
				go w.proxy.Close() // waits for the stream
			} else {
				go w.proxy.Drain(t.Context())
			}
			c.check(t, w, protocol, "shutting_down")
		})
	}
}

// Drain returns when the tunnels have ended, and none is opened after it.
func TestDrainWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serveUnguarded(t, wsEcho(t, nil)))
	var told sync.WaitGroup
	var going atomic.Int64
	for range 50 {
		conn, _, err := w.dialWebSocket(host(s), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.CloseNow()
		told.Go(func() {
			if _, _, err := conn.Read(t.Context()); websocket.CloseStatus(err) == websocket.StatusGoingAway {
				going.Add(1)
			}
		})
	}
	w.proxy.Drain(t.Context())
	if n := len(w.proxy.streams.open); n != 0 {
		t.Errorf("%d tunnels are open after Drain", n)
	}
	told.Wait()
	if n := going.Load(); n != 50 {
		t.Errorf("%d of 50 were told", n)
	}
	w.raw(handshakeBytes(host(s))).check(t, 503, "shutting_down")
	if a := w.get(host(w.publish(discovery.Service{}, serve(t, echoJob("x")))), "/"); a.StatusCode != 200 {
		t.Errorf("a request during the shutdown: status %d", a.StatusCode)
	}
}

// tunnelTo opens a tunnel to a job that speaks bytes.
func (w *world) tunnelTo(tb testing.TB, job func(conn net.Conn, rest *bufio.Reader)) (net.Conn, *bufio.Reader) {
	tb.Helper()
	s := w.publish(discovery.Service{}, rawJob(tb, func(conn net.Conn, _ *http.Request, rest *bufio.Reader) {
		_, _ = io.WriteString(conn, accepted)
		job(conn, rest)
	}))
	conn := dial(tb, w)
	send(tb, conn, handshakeBytes(host(s)))
	reader := bufio.NewReader(conn)
	if res, err := http.ReadResponse(reader, nil); err != nil || res.StatusCode != 101 {
		tb.Fatalf("got %v, %v", res, err)
	}
	return conn, reader
}

func readN(tb testing.TB, r io.Reader, n int) {
	tb.Helper()
	if _, err := io.ReadFull(r, make([]byte, n)); err != nil {
		tb.Fatal(err)
	}
}

// A close frame goes between two frames or nowhere, whatever the job sends.
func TestCloseFrameGoesBetweenFrames(t *testing.T) {
	t.Parallel()
	goodbye := string(closeFrame(causeClosing))
	text := wsFrame(0x81, 5, false, 0)
	for _, c := range []struct {
		name  string
		first []byte // the job sends this before the tunnel ends
		later []byte // and this when the end is under way
		want  string // what the caller gets after first
	}{
		{"nothing was said", nil, nil, goodbye},
		{"after a message", text, nil, goodbye},
		{"between fragments", wsFrame(0x01, 300, false, 0), nil, goodbye},
		{"after a control frame between fragments", append(wsFrame(0x01, 3, false, 0), wsFrame(0x89, 0, false, 0)...), nil, goodbye},
		{"after a long one", wsFrame(0x82, 70000, false, 0), nil, goodbye},
		{"after a masked one, which a server may not send", wsFrame(0x81, 200, true, 0), nil, goodbye},
		{"after a reserved opcode", wsFrame(0xff, 20, false, 0), nil, goodbye},
		{"in a frame that is finished, and others after it", text[:4], append(append([]byte{}, text[4:]...), text...), string(text[4:]) + goodbye},
		{"in a header that is finished", text[:1], text[1:], string(text[1:]) + goodbye},
		{"in a frame that is not finished", text[:4], nil, ""},
		{"in a frame that is not finished, though a little more comes", text[:4], text[4:6], string(text[4:6])},
		{"in an endless frame", []byte{0x82, 127, 255, 255, 255, 255, 255, 255, 255, 255, 'x'}, nil, ""},
		{"after the job's own close", wsFrame(0x88, 2, false, 0), nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			ending := make(chan struct{})
			caller, reader := w.tunnelTo(t, func(conn net.Conn, rest *bufio.Reader) {
				_, _ = conn.Write(c.first)
				<-ending
				_, _ = conn.Write(c.later)
				_, _ = io.Copy(io.Discard, rest)
			})
			readN(t, reader, len(c.first))
			// The caller has the bytes a moment before the proxy has counted them.
			eventually(t, "the bytes are counted", func() bool {
				w.proxy.streams.mu.Lock()
				defer w.proxy.streams.mu.Unlock()
				for x := range w.proxy.streams.open {
					return x.bytesOut.Load() == int64(len(c.first))
				}
				return false
			})
			drained := make(chan struct{})
			go func() { defer close(drained); w.proxy.Drain(context.WithoutCancel(t.Context())) }()
			if c.later != nil {
				eventually(t, "the tunnel is ending", func() bool {
					w.proxy.streams.mu.Lock()
					defer w.proxy.streams.mu.Unlock()
					for x := range w.proxy.streams.open {
						x.watch.mu.Lock()
						defer x.watch.mu.Unlock()
						return x.watch.done
					}
					return false
				})
			}
			close(ending)
			rest, err := io.ReadAll(reader)
			if string(rest) != c.want || err != nil && c.want != "" {
				t.Errorf("the caller got % x, %v, want % x", rest, err, c.want)
			}
			caller.Close() // nobody lingers for it
			<-drained
		})
	}
}

// A caller who reads nothing, or who goes on sending, does not hold a tunnel that must end.
func TestTunnelEndsWhateverTheCallerDoes(t *testing.T) {
	t.Parallel()
	flood := func(conn net.Conn, _ *bufio.Reader) {
		frame := wsFrame(0x82, 60000, false, 0)
		for {
			if _, err := conn.Write(frame); err != nil {
				return
			}
		}
	}
	for name, c := range map[string]struct {
		job    func(net.Conn, *bufio.Reader)
		caller func(net.Conn)
	}{
		"reads nothing": {flood, func(net.Conn) {}},
		"says nothing": {func(conn net.Conn, rest *bufio.Reader) {
			_, _ = conn.Write(wsFrame(0x81, 5, false, 0))
			_, _ = io.Copy(io.Discard, rest)
		}, func(net.Conn) {}},
		"goes on sending": {func(_ net.Conn, rest *bufio.Reader) { _, _ = io.Copy(io.Discard, rest) }, func(conn net.Conn) {
			for zeros := make([]byte, 60000); ; {
				if _, err := conn.Write(zeros); err != nil {
					return
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			conn, _ := w.tunnelTo(t, c.job)
			var caller sync.WaitGroup
			caller.Go(func() { c.caller(conn) })
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
			defer cancel()
			eventually(t, "bytes have moved, and no more can", func() bool {
				w.proxy.streams.mu.Lock()
				defer w.proxy.streams.mu.Unlock()
				for x := range w.proxy.streams.open {
					return x.bytesIn.Load() > 1<<20 || x.bytesOut.Load() > 0 && x.watch.quiet(time.Now()) > 200*time.Millisecond
				}
				return false
			})
			w.proxy.Drain(ctx)
			if ctx.Err() != nil {
				t.Error("the tunnel goes on")
			}
			caller.Wait()
		})
	}
}

// Under TLS there is no waiting without a buffer, but the end is the same.
func TestTunnelUnderTLSIsTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serveUnguarded(t, wsEcho(t, nil)))
	server := httptest.NewTLSServer(w.proxy)
	defer server.Close()
	conn, _, err := websocket.Dial(t.Context(), strings.Replace(server.URL, "https", "wss", 1), &websocket.DialOptions{
		Host: host(s), HTTPClient: server.Client(), HTTPHeader: http.Header{"Authorization": {aliceOAuth}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	go w.proxy.Drain(context.WithoutCancel(t.Context()))
	if _, _, err := conn.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Errorf("got %v", err)
	}
}
