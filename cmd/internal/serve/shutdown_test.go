package serve

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"

	"taskproxy/examples/grpc-service/helloworld"
)

// leave begins the shutdown and returns when it has begun. The connection was open before: the process takes new ones, too.
func (p *process) leave(t *testing.T) {
	t.Helper()
	go p.stop()
	until(t, "it is not ready any more", func() bool { return get(t, "http://"+p.Admin+"/readyz").status == http.StatusServiceUnavailable })
}

// dial opens one connection for the client to use.
func (w *secureWorld) dial(t *testing.T, protocol string) *http.ClientConn {
	t.Helper()
	transport, ok := w.client(t, false, protocol).Transport.(*http.Transport)
	if !ok {
		t.Fatal("no http.Transport")
	}
	conn, err := transport.NewClientConn(t.Context(), "https", w.host+":443")
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func (w *secureWorld) ask(t *testing.T, conn *http.ClientConn, path string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+w.host+path, nil)
	must(t, err)
	r.Header.Set("Authorization", "OAuth "+w.alice.Token)
	res, err := conn.RoundTrip(r)
	must(t, err)
	t.Cleanup(func() { res.Body.Close() })
	return res
}

// During the delay a busy connection of HTTP/2 is told by GOAWAY that it is to have no further streams, and those that it has go
// on to their end, also beyond the delay.
func TestShutdownOverHTTP2(t *testing.T) {
	t.Parallel()
	w := startSecure(t, "--shutdown-delay=3s", "--shutdown-timeout=20s")
	conn := w.dial(t, "h2")
	stream := w.ask(t, conn, "/stream")
	if stream.ProtoMajor != 2 {
		t.Fatal(stream.Proto)
	}
	if res := w.ask(t, conn, "/"); res.StatusCode != http.StatusOK || conn.Available() == 0 {
		t.Fatalf("before: %d, %d streams may be opened", res.StatusCode, conn.Available())
	}
	w.leave(t)
	if res := w.ask(t, conn, "/"); res.StatusCode != http.StatusOK {
		t.Errorf("during the delay: %d", res.StatusCode)
	}
	until(t, "GOAWAY came", func() bool { return conn.Available() == 0 })
	if !accepts(w.Public) {
		t.Error("GOAWAY came only when the delay was over")
	}
	until(t, "new connections are refused", func() bool { return !accepts(w.Public) })
	close(w.finish)
	if body, err := io.ReadAll(stream.Body); err != nil || string(body) != "begin end" {
		t.Errorf("the stream under way: %q, %v", body, err)
	}
	w.stop()
}

// During the delay a connection of HTTP/1.1 that nobody uses stays open, so that no request on its way is lost, and the next
// answer is its last. New connections are still served.
func TestShutdownOverHTTP1(t *testing.T) {
	t.Parallel()
	w := startSecure(t, "--shutdown-delay=3s")
	var connections atomic.Int32
	client := w.client(t, false, "http/1.1")
	request := func() *http.Response {
		t.Helper()
		trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
			if !i.Reused {
				connections.Add(1)
			}
		}}
		r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodPost, "https://"+w.host+"/", nil)
		must(t, err)
		r.Header.Set("Authorization", "OAuth "+w.alice.Token)
		res, err := client.Do(r)
		must(t, err)
		_, err = io.Copy(io.Discard, res.Body)
		must(t, err)
		res.Body.Close()
		return res
	}
	if res := request(); res.StatusCode != http.StatusOK || res.Close {
		t.Fatalf("before: %d, close %t", res.StatusCode, res.Close)
	}
	w.leave(t)
	if res := request(); res.StatusCode != http.StatusOK || !res.Close || connections.Load() != 1 {
		t.Errorf("on the kept connection: %d, close %t, %d connections", res.StatusCode, res.Close, connections.Load())
	}
	if res := request(); res.StatusCode != http.StatusOK || !res.Close || connections.Load() != 2 {
		t.Errorf("on a new connection: %d, close %t, %d connections", res.StatusCode, res.Close, connections.Load())
	}
	for token, want := range map[string]int{w.alice.Token: http.StatusMisdirectedRequest, "nobody's": http.StatusUnauthorized} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://elsewhere.example.org/", nil)
		must(t, err)
		r.Header.Set("Authorization", "OAuth "+token)
		res, err := client.Do(r)
		must(t, err)
		res.Body.Close()
		if res.StatusCode != want || !res.Close {
			t.Errorf("an answer of the proxy's own: %d, close %t", res.StatusCode, res.Close)
		}
	}
	conn, _, err := websocket.Dial(t.Context(), "wss://"+w.host+"/", &websocket.DialOptions{
		HTTPClient: client, HTTPHeader: http.Header{"Authorization": {"OAuth " + w.alice.Token}},
	})
	must(t, err)
	defer conn.CloseNow()
	if _, _, err := conn.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Errorf("a WebSocket that was opened during the delay ended with %v", err)
	}
	conn.CloseNow()
	w.stop()
}

// Who calls all the time, on connections that are kept and on new ones, until he hears that the process is not ready, loses nothing: not
// the requests that are sent during the delay, nor those that are under way when it is over.
func TestShutdownUnderLoad(t *testing.T) {
	t.Parallel()
	w := startSecure(t, "--shutdown-delay=5s", "--shutdown-timeout=20s")
	var answered, under atomic.Int64
	var callers, streams sync.WaitGroup
	leave := make(chan struct{})
	post := func(client *http.Client, path, want string) (fine bool) {
		// Nothing but HTTP/2's own word that it was not processed lets a client repeat a POST.
		r, err := http.NewRequest(http.MethodPost, "https://"+w.host+path, nil)
		if err != nil {
			t.Error(err)
			return false
		}
		r.Header.Set("Authorization", "OAuth "+w.alice.Token)
		res, err := client.Do(r)
		if err != nil {
			t.Errorf("lost: %v", err)
			return false
		}
		defer res.Body.Close()
		if path == "/stream" {
			under.Add(1)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK || string(body) != want {
			t.Errorf("%s: %d %q, %v", res.Proto, res.StatusCode, body, err)
			return false
		}
		answered.Add(1)
		return true
	}
	for _, protocol := range []string{"h2", "http/1.1"} {
		for _, fresh := range []bool{false, true} {
			client := w.client(t, fresh, protocol)
			callers.Go(func() {
				for {
					select {
					case <-leave:
						streams.Go(func() { post(client, "/stream", "begin end") }) // the last one outlasts the delay
						return
					default:
						if !post(client, "/", "https "+w.host) {
							return
						}
					}
				}
			})
		}
	}
	until(t, "callers are answered", func() bool { return answered.Load() > 40 })
	w.leave(t)
	before := answered.Load()
	until(t, "callers are answered although it is not ready", func() bool { return answered.Load() > before+8 })
	close(leave)
	callers.Wait()
	until(t, "the last ones are under way", func() bool { return under.Load() == 4 })
	until(t, "new connections are refused", func() bool { return !accepts(w.Public) })
	close(w.finish)
	streams.Wait()
	w.stop()
}

// A gRPC stream that ends within --shutdown-timeout ends as its job wants, and calls that come during the delay are answered, on the same
// connection or, after GOAWAY, on another one.
func TestShutdownLeavesStreamsTheirTime(t *testing.T) {
	t.Parallel()
	w := startSecure(t, "--shutdown-delay=2s", "--shutdown-timeout=20s")
	client, as := w.greeter(t)
	const messages = 35 // of 100 ms: more than the delay
	stream, err := client.SayHelloStream(as(w.alice.Token), &helloworld.HelloStreamRequest{Name: "you", Count: messages, PauseMs: 100})
	must(t, err)
	_, err = stream.Recv()
	must(t, err)
	w.leave(t)
	for range 5 {
		if _, err := client.SayHello(as(w.alice.Token), &helloworld.HelloRequest{Name: "you"}); err != nil {
			t.Errorf("a call during the delay: %v", err)
		}
	}
	got := 1
	for ; err == nil; got++ {
		_, err = stream.Recv()
	}
	if !errors.Is(err, io.EOF) || got-1 != messages {
		t.Errorf("%d messages, then %v; want %d and the job's status", got-1, err, messages)
	}
	if accepts(w.Public) {
		t.Error("the stream ended before the delay: this shows nothing")
	}
	w.stop()
}
