package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskproxy/discovery"
)

func TestTwoEndpointsAnswerInTurn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, echoJob("a")), serve(t, echoJob("b")))
	for i := range 10 {
		if got, want := w.get(host(s), "/").echo(t).Job, string("ab"[i%2]); got != want {
			t.Errorf("request %d: got %s, want %s", i, got, want)
		}
	}
}

// One dead endpoint of three costs no request, whatever its method, and its body arrives whole.
func TestDeadEndpointFailsNoRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, echoJob("a")), deadAddr(t), serve(t, echoJob("b")))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for _, method := range []string{"GET", "POST", "PUT", "DELETE", "PATCH"} {
				a := w.do(w.request(method, host(s), "/", strings.NewReader("body of "+method)))
				if a.StatusCode != 200 || a.echo(t).Body != "body of "+method {
					t.Errorf("%s: got %d %s", method, a.StatusCode, a.body)
				}
			}
		})
	}
	wg.Wait()
	if n := w.proxy.balancer.states.aside(); n != 1 {
		t.Errorf("%d endpoints are set aside, want 1", n)
	}
}

func TestAllEndpointsDead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, deadAddr(t), deadAddr(t))
	attempts := func() any {
		t.Helper()
		a := w.get(host(s), "/")
		a.check(t, 502, "connect_failed")
		return w.log.wait(t, a.Header.Get("X-Request-Id"))["attempts"]
	}
	for range 3 { // also once both are set aside
		if got := attempts(); got != float64(2) {
			t.Errorf("attempts: %v, want each endpoint once", got)
		}
	}
	w.get(host(w.publish(discovery.Service{})), "/").check(t, 503, "no_endpoints")
}

// An address that failed may be somebody else's: nobody connects to it before somebody has vouched for it, however long that
// takes and whether there is another or not.
func TestNobodyVouches(t *testing.T) {
	t.Parallel()
	f := new(failures)
	w := newWorld(t, func(c *Config) { c.OnConnectFailure = f.add })
	addr := deadAddr(t)
	s := w.publish(discovery.Service{}, addr)
	get := func(dialled bool) {
		t.Helper()
		a := w.get(host(s), "/")
		a.check(t, 502, "connect_failed")
		if endpoint := w.log.wait(t, a.Header.Get("X-Request-Id"))["endpoint"]; (endpoint != nil) != dialled {
			t.Errorf("tried endpoint %v, want %t", endpoint, dialled)
		}
	}
	get(true)
	get(false)
	change := func(f func(s *discovery.Service)) {
		t.Helper()
		services := slices.Clone(w.services)
		services[0].Endpoints = slices.Clone(services[0].Endpoints)
		f(&services[0])
		snapshot, problems := discovery.NewSnapshot(w.table.Load(), w.labels, services)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		w.services = services
		w.table.Store(snapshot)
	}
	change(func(s *discovery.Service) { s.Endpoints[0].Vouched++ })
	get(true)
	get(false)
	change(func(s *discovery.Service) {
		s.Endpoints = append(s.Endpoints, discovery.Endpoint{JobID: "other", Addr: serve(t, echoJob("other"))})
	})
	for range 4 {
		if a := w.get(host(s), "/"); a.StatusCode != 200 {
			t.Errorf("got %d with another endpoint there", a.StatusCode)
		}
	}
}

// A connection that breaks before an answer began: bodyless idempotent requests go out once more, and nothing else ever
// does, since the job may have acted on it.
func TestBrokenBeforeAnAnswer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		method, body string
		status, sent int
	}{
		{"GET", "", 200, 2},
		{"DELETE", "", 200, 2},
		{"POST", "", 502, 1},
		{"PUT", "body", 502, 1},
		{"POST", "body", 502, 1},
	} {
		t.Run(c.method+" "+c.body, func(t *testing.T) {
			var seen atomic.Int32
			breaks := rawJob(t, func(conn net.Conn, r *http.Request, _ *bufio.Reader) {
				_, _ = io.Copy(io.Discard, r.Body)
				seen.Add(1)
			})
			good := serve(t, func(http.ResponseWriter, *http.Request) { seen.Add(1) })
			w := newWorld(t)
			s := w.publish(discovery.Service{}, breaks, good)
			a := w.do(w.request(c.method, host(s), "/", strings.NewReader(c.body)))
			if a.StatusCode != c.status || int(seen.Load()) != c.sent {
				t.Errorf("got %d, sent %d times, want %d, %d", a.StatusCode, seen.Load(), c.status, c.sent)
			}
		})
	}
}

// A request that breaks one job after the other stops at the second.
func TestPoisonIsSentTwiceAtMost(t *testing.T) {
	t.Parallel()
	var seen atomic.Int32
	poisoned := func() string {
		return rawJob(t, func(net.Conn, *http.Request, *bufio.Reader) { seen.Add(1) })
	}
	w := newWorld(t)
	s := w.publish(discovery.Service{}, poisoned(), poisoned(), poisoned(), poisoned())
	a := w.get(host(s), "/")
	a.check(t, 502, "upstream_broken")
	if n := seen.Load(); n != 2 {
		t.Errorf("sent %d times, want 2", n)
	}
	if got := w.log.wait(t, a.Header.Get("X-Request-Id"))["attempts"]; got != 2.0 {
		t.Errorf("attempts: %v, want 2", got)
	}
}

// A kept connection on which the job dies must not let http.Transport's own repetition go around the limit.
func TestPoisonOnKeptConnections(t *testing.T) {
	t.Parallel()
	const connections = 16
	var poison, waiting atomic.Int32
	all := make(chan struct{}) // closed when each request has a connection of its own
	job := func() string {
		l := listen(t)
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				wg.Go(func() {
					defer conn.Close()
					reader := bufio.NewReader(conn)
					for {
						r, err := http.ReadRequest(reader)
						if err != nil {
							return
						}
						if r.URL.Path == "/poison" {
							poison.Add(1)
							return
						}
						if waiting.Add(1) == connections {
							close(all)
						}
						<-all
						_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
					}
				})
			}
		})
		t.Cleanup(func() { l.Close(); wg.Wait() })
		return l.Addr().String()
	}
	w := newWorld(t)
	s := w.publish(discovery.Service{}, job(), job())
	var wg sync.WaitGroup
	for range connections {
		wg.Go(func() { w.get(host(s), "/") })
	}
	wg.Wait()
	a := w.get(host(s), "/poison")
	if n := poison.Load(); a.StatusCode != 502 || n > 2 {
		t.Errorf("got %d, sent %d times, want 502 and twice at most", a.StatusCode, n)
	}
	w.proxy.Close()
}

// A transport hands a request to the connection's own goroutine, which must find it closed. Over HTTP/2 others use it too.
func TestNothingIsWrittenAThirdTime(t *testing.T) {
	t.Parallel()
	l := listen(t)
	defer l.Close()
	for _, protocol := range []discovery.Protocol{discovery.HTTP, discovery.GRPC} {
		x := &exchange{service: &discovery.Service{Protocol: protocol}}
		x.carrier.begin(t.Context(), x)
		s := &sentBytes{x: x}
		for i := range 3 {
			conn, err := newDialer(time.Second).DialContext(t.Context(), "tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			s.gotConn(httptrace.GotConnInfo{Conn: conn})
			_, err = conn.Write([]byte("x"))
			why := context.Cause(&x.carrier)
			if third := i == 2; (err != nil) != (third && protocol == discovery.HTTP) || (why != nil) != third {
				t.Errorf("%s, time %d: write: %v, cancelled: %v", protocol, i+1, err, why)
			}
		}
	}
}

// A caller that leaves is not the job's failure.
func TestClientGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	arrived, left := make(chan struct{}), make(chan struct{})
	s := w.publish(discovery.Service{}, serve(t, func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
		close(left)
	}))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	if _, err := w.client.Do(w.request("GET", host(s), "/", nil, "X-Request-Id: gone").WithContext(ctx)); err == nil {
		t.Fatal("got an answer")
	}
	<-left
	record := w.log.wait(t, "gone")
	if record["status"] != float64(499) || record["reason"] != "client_gone" || record["attempts"] != nil {
		t.Errorf("logged %v", record)
	}
	if n := w.proxy.balancer.states.aside(); n != 0 {
		t.Errorf("%d endpoints set aside", n)
	}
}

// A job that breaks off in the middle of its answer: the caller learns that it is not whole.
func TestBrokenInTheMiddle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, rawAnswer(t, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"))
	res, err := w.client.Do(w.request("GET", host(s), "/", nil, "X-Request-Id: half"))
	if err == nil {
		_, err = io.ReadAll(res.Body)
		res.Body.Close()
	}
	if err == nil {
		t.Error("the answer passed for whole")
	}
	if record := w.log.wait(t, "half"); record["reason"] != "upstream_broken" {
		t.Errorf("logged %v", record)
	}
}

func TestIdleTimeout(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.IdleTimeout = 300 * time.Millisecond })
	silent := w.publish(discovery.Service{}, serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	w.get(host(silent), "/").check(t, 504, "idle_timeout")

	// A stream that moves lives for longer than the timeout, and ends when it stops.
	slow := w.publish(discovery.Service{}, serve(t, func(rw http.ResponseWriter, r *http.Request) {
		for range 10 {
			fmt.Fprint(rw, "x")
			_ = http.NewResponseController(rw).Flush()
			time.Sleep(40 * time.Millisecond)
		}
		<-r.Context().Done()
	}))
	res, err := w.client.Do(w.request("GET", host(slow), "/", nil, "X-Request-Id: slow"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	res.Body.Close()
	if len(b) != 10 || err == nil {
		t.Errorf("got %q, %v, want ten bytes and a cut", b, err)
	}
	if record := w.log.wait(t, "slow"); record["reason"] != "idle_timeout" || record["bytes_out"] != float64(10) {
		t.Errorf("logged %v", record)
	}
}

// A caller who stops reading holds a stream no longer than the idle timeout either.
func TestIdleTimeoutOfACallerWhoDoesNotRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.IdleTimeout = 100 * time.Millisecond })
	gone := make(chan struct{})
	s := w.publish(discovery.Service{}, serve(t, func(rw http.ResponseWriter, _ *http.Request) {
		defer close(gone)
		for {
			if _, err := rw.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	}))
	conn, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nX-Request-Id: deaf\r\nAuthorization: %s\r\n\r\n", host(s), aliceOAuth)
	<-gone
	if record := w.log.wait(t, "deaf"); record["reason"] != "idle_timeout" {
		t.Errorf("logged %v", record)
	}
}

// With somebody to vouch, an endpoint that failed is out until then, and set aside for its time after that. Who vouches is told
// once more when it takes long.
func TestSetAsideUntilVouched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newSetAside()
		a.strict = true
		e := discovery.Endpoint{JobID: "1", Addr: "h:1"}
		want := func(when string, e discovery.Endpoint, want standing) {
			t.Helper()
			if got := a.standing(e); got != want {
				t.Errorf("%s: %d, want %d", when, got, want)
			}
		}
		a.failed(e)
		want("failed", e, dead)
		a.succeeded(e) // a request that began before
		want("after an older request's success", e, dead)
		for range 100 {
			time.Sleep(time.Minute)
			want("nobody vouches", e, overdue)
			want("just told again", e, dead)
		}
		a.failed(discovery.Endpoint{JobID: "2", Addr: "h:2"})
		want("others fail", e, dead)

		next := e
		next.Vouched++
		time.Sleep(time.Minute)
		want("vouched for", next, probe)
		a.failed(next)
		a.failed(e)
		want("failed again", next, dead)
		last := next
		last.Vouched++
		want("vouched for again", last, aside)
		time.Sleep(2 * time.Second)
		want("its time is over", last, probe)

		slow := discovery.Endpoint{JobID: "3", Addr: "h:3"}
		a.failed(slow)
		time.Sleep(2 * time.Second)
		want("nobody has vouched yet", slow, overdue)
		slow.Vouched++
		want("vouched for late", slow, probe)
		a.succeeded(slow)
		a.succeeded(last)
		if want("succeeded", last, usable); len(a.m) != 1 {
			t.Errorf("%d remembered, want the other alone", len(a.m))
		}
	})
}

func TestSetAside(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newSetAside()
		takes := func(e discovery.Endpoint) bool { return a.standing(e) <= probe }
		e, other := discovery.Endpoint{JobID: "1", Addr: "h:1"}, discovery.Endpoint{JobID: "2", Addr: "h:1"}
		both := []discovery.Endpoint{e, other}
		for _, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
			want *= time.Second
			a.failed(e)
			a.failed(e) // a request of the same moment: no second strike
			if takes(e) || !takes(other) || a.count(both) != 1 {
				t.Fatalf("right after a failure: takes %t, other %t, %d aside", takes(e), takes(other), a.count(both))
			}
			time.Sleep(want - time.Millisecond)
			if takes(e) {
				t.Fatalf("back before %s", want)
			}
			time.Sleep(time.Millisecond)
			if !takes(e) {
				t.Fatalf("not back after %s", want)
			}
			if takes(e) {
				t.Fatal("two requests probe at once")
			}
		}
		a.succeeded(e)
		if !takes(e) || a.count(both) != 0 || a.size.Load() != 0 {
			t.Error("a success is not forgotten failures")
		}
		a.failed(e)
		time.Sleep(2 * time.Hour)
		a.failed(other)
		if len(a.m) != 1 {
			t.Errorf("%d remembered, want the old one swept", len(a.m))
		}
	})
}

// A job that breaks the connection while a caller with a body says nothing: the caller hears of it at once, and not only when there is more
// to send.
func TestBrokenWhileTheCallerIsSilent(t *testing.T) {
	t.Parallel()
	hangUp := func(least int) string {
		l := listen(t)
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.ReadFull(conn, make([]byte, least))
				conn.Close()
			}
		}()
		return l.Addr().String()
	}
	w := newWorld(t)
	t.Run("gRPC", func(t *testing.T) {
		s := w.publish(discovery.Service{Name: "rpc", Protocol: discovery.GRPC}, hangUp(200))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		stream, err := w.dialGRPC(host(s)).FullDuplexCall(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("got %v", err)
		}
	})
	t.Run("HTTP", func(t *testing.T) {
		s := w.publish(discovery.Service{Name: "web"}, hangUp(100))
		body, silent := io.Pipe()
		defer silent.Close()
		time.AfterFunc(10*time.Second, func() { silent.Close() })
		w.do(w.request(http.MethodPost, host(s), "/", body)).check(t, http.StatusBadGateway, "upstream_broken")
	})
}
