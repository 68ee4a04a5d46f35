package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"taskproxy/discovery"
)

// What is written to a job is what net/http writes.
func TestWriteRequestIsThatOfNetHTTP(t *testing.T) {
	header := func(more ...string) http.Header {
		h := http.Header{"User-Agent": {"test/1"}, "Accept": {"*/*"}}
		for i := 0; i < len(more); i += 2 {
			h[more[i]] = append(h[more[i]], more[i+1])
		}
		return h
	}
	methods := []string{"GET", "HEAD", "OPTIONS", "DELETE", "POST", "PUT", "PATCH", "TRACE", "PURGE", "get"}
	targets := []string{"/", "/a%2Fb/?x=1&y=[]", "/?", "", "*", "/a b", "/ü", "/%zz", "/a\r\nX: y", "//double", "/;a=b", "/\x7f"}
	hosts := []string{"05270714.proxy.test", "proxy.test:8080", "127.0.0.1:80", "[::1]:80", "[fe80::1%25en0]:80", "", "bücher.test", "a b", "a\r\nX: y", "a/b", "user@host", `a"b`, "a#b", "a?b", "a<b", `a\b`}
	headers := []http.Header{
		header(), {}, {"User-Agent": {""}}, {"User-Agent": {"a", "b"}}, {"User-Agent": {}}, header("User-Agent", "second"),
		{"User-Agent": {"evil\r\nX: y"}}, {"User-Agent": {" spaces "}}, {"User-Agent": {"tab\t"}}, {"User-Agent": {"\x00"}}, {"User-Agent": {"ü"}},
		header("X-Many", "1", "X-Many", "2", "Cookie", "a=b; c=d"), header("X-Evil", "a\r\nX-Smuggled: b"), header("Bad Name", "x"), header("", "x"),
		header("Host", "other"), header("Content-Length", "5"), header("Transfer-Encoding", "chunked"), header("Trailer", "X"), header("Connection", "close"),
		header("X-Empty", ""), header("X-Spaces", "  a "), header("x-lower", "1"), header("Te", "trailers"),
	}
	same := 0
	for _, method := range methods {
		for _, target := range targets {
			for _, host := range hosts {
				for _, h := range headers {
					r := &http.Request{Method: method, Host: host, Header: h, URL: &url.URL{Scheme: "http", Host: "10.0.0.1:80"}}
					r.URL.Path, r.URL.RawQuery, _ = strings.Cut(target, "?")
					if target == "*" || strings.Contains(target, " ") {
						r.URL.Opaque = target // as it is
					}
					var ours, theirs bytes.Buffer
					oursErr, theirsErr := writeRequest(&ours, r), r.Write(&theirs)
					if fmt.Sprint(oursErr) != fmt.Sprint(theirsErr) || theirsErr == nil && ours.String() != theirs.String() {
						t.Fatalf("%s %q, host %q, %v:\n%q, %v, want\n%q, %v", method, target, host, h, ours.String(), oursErr, theirs.String(), theirsErr)
					}
					if theirsErr == nil {
						same++
					}
				}
			}
		}
	}
	if same < 1000 {
		t.Errorf("only %d were written at all", same)
	}
}

// What a job says beyond its answer is nobody's answer: it may have seen two requests in what somebody made it read.
func TestAnswersNobodyAskedForAreNobodysAnswers(t *testing.T) {
	t.Parallel()
	const answer, unasked = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine", "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen"
	for name, parts := range map[string][]string{
		"with the answer":    {answer + unasked},
		"in part":            {answer + unasked[:20]},
		"after the answer":   {answer, unasked},
		"after an empty one": {"HTTP/1.1 204 No Content\r\n\r\n" + unasked},
		// Who says that there is an end must not be asked again.
		"after the last answer":    {strings.Replace(answer, "\r\n", "\r\nConnection: close\r\n", 1)},
		"after an old one":         {strings.Replace(answer, "1.1", "1.0", 1)},
		"after one that we refuse": {"HTTP/1.1 099 Odd\r\nContent-Length: 6\r\n\r\n"},
		"after no answer at all":   {"HTTP/1.1 099 Odd\r\nContent-Length: 0\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			said := make(chan bool, 1)
			s := w.publish(discovery.Service{}, rawJob(t, func(conn net.Conn, _ *http.Request, rest *bufio.Reader) {
				for _, part := range parts {
					_, _ = io.WriteString(conn, part)
				}
				said <- true
				if _, err := http.ReadRequest(rest); err == nil {
					_, _ = io.WriteString(conn, unasked)
				}
			}))
			for range 10 {
				if a := w.get(host(s), "/"); a.body != "mine" && a.StatusCode != 204 && a.StatusCode != 502 {
					t.Fatalf("the answer is %d %q", a.StatusCode, a.body)
				}
				<-said
			}
			w.proxy.balancer.states.closeIdle() // the job waits for another request
		})
	}
}

// Servers say that they have waited long enough, and close. The next request goes elsewhere, also one that must not be sent twice.
func TestKeptConnectionThatTheJobGaveUp(t *testing.T) {
	t.Parallel()
	for name, last := range map[string]string{"without a word": "", "with a 408": "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			gone := make(chan bool, 100)
			s := w.publish(discovery.Service{}, rawJob(t, func(conn net.Conn, _ *http.Request, _ *bufio.Reader) {
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
				_, _ = io.WriteString(conn, last)
				conn.Close()
				gone <- true
			}))
			for i := range 20 {
				if a := w.do(w.request(http.MethodPost, host(s), "/", http.NoBody)); a.StatusCode != 200 || a.body != "ok" {
					t.Fatalf("request %d: status %d, %q", i, a.StatusCode, a.body)
				}
				<-gone
			}
			if log := w.log.text(); strings.Contains(log, `"attempts"`) {
				t.Errorf("something was sent and lost: %s", log)
			}
		})
	}
}

// A reset is said in the words of package net, on a new connection and on one that was kept.
func TestResetInsteadOfAnAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, rawJob(t, func(conn net.Conn, r *http.Request, rest *bufio.Reader) {
		if r.URL.Path == "/kept" {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			_, _ = http.ReadRequest(rest)
		}
		_ = conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}))
	for _, id := range []string{"new", "kept"} {
		if id == "kept" {
			if a := w.get(host(s), "/kept"); a.body != "ok" {
				t.Fatalf("status %d, %q", a.StatusCode, a.body)
			}
		}
		w.do(w.request(http.MethodPost, host(s), "/", http.NoBody, "X-Request-Id: "+id)).check(t, 502, "upstream_broken")
		if why := fmt.Sprint(w.log.wait(t, id)["err"]); !strings.Contains(why, "read tcp 127.0.0.1:") || !strings.HasSuffix(why, "connection reset by peer") {
			t.Errorf("on the %s connection: the access log says %q", id, why)
		}
	}
}

// Requests of all kinds share connections with their like, whatever the answers are.
func TestConnectionsAreKept(t *testing.T) {
	t.Parallel()
	j := newCountingJob(t, "", func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/204":
			w.WriteHeader(204)
		case "/304":
			w.WriteHeader(304)
		case "/empty":
		case "/chunked":
			_, _ = io.WriteString(w, "begun")
			_ = http.NewResponseController(w).Flush()
			w.Header().Set(http.TrailerPrefix+"X-End", "1")
		case "/hint":
			w.WriteHeader(103)
		case "/large":
			_, _ = w.Write(make([]byte, 1<<20))
		case "/close":
			w.Header().Set("Connection", "close")
		}
	})
	w := newWorld(t)
	s := w.publish(discovery.Service{}, j.addr())
	for range 3 {
		for _, path := range []string{"/204", "/304", "/empty", "/chunked", "/hint", "/large"} {
			for _, method := range []string{"GET", "HEAD", "POST", "DELETE"} {
				w.do(w.request(method, host(s), path, http.NoBody))
			}
		}
	}
	if _, made := j.connections(); made != 1 {
		t.Errorf("%d connections were made for one request at a time", made)
	}
	w.get(host(s), "/close")
	w.get(host(s), "/204")
	if _, made := j.connections(); made != 2 {
		t.Errorf("%d connections were made after an answer that ends its connection, want 2", made)
	}
}

// A connection whose answer was not read to its end carries nothing more.
func TestAnswerThatIsNotReadEndsItsConnection(t *testing.T) {
	t.Parallel()
	j := newCountingJob(t, "", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	})
	w := newWorld(t)
	s := w.publish(discovery.Service{}, j.addr())
	for name, header := range map[string]string{
		"GET": "", "declined handshake": "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n",
	} {
		conn := dial(t, w)
		send(t, conn, "GET / HTTP/1.1\r\n"+asAlice(s)+header+"\r\n")
		if _, err := io.ReadFull(conn, make([]byte, 1<<17)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		conn.Close()
		eventually(t, name+": the job's connection has ended", func() bool { open, _ := j.connections(); return open == 0 })
	}
}

// A caller that leaves frees the connection to a job that says nothing.
func TestCallerThatLeavesEndsTheWaiting(t *testing.T) {
	t.Parallel()
	arrived := make(chan bool, 1)
	j := newCountingJob(t, "", func(_ http.ResponseWriter, r *http.Request) { arrived <- true; <-r.Context().Done() })
	w := newWorld(t)
	s := w.publish(discovery.Service{}, j.addr())
	ctx, leave := context.WithCancel(t.Context())
	go func() { <-arrived; leave() }()
	res, err := w.client.Do(w.request(http.MethodGet, host(s), "/", nil, "X-Request-Id: left").WithContext(ctx))
	if err == nil {
		res.Body.Close()
		t.Fatal("there is an answer")
	}
	eventually(t, "the job's connection has ended", func() bool { open, made := j.connections(); return open == 0 && made == 1 })
	if record := w.log.wait(t, "left"); record["err"] != context.Canceled.Error() {
		t.Errorf("the access log says %v, which sounds like the job's failure", record["err"])
	}
}

// A connection that is in use when the idle ones are closed ends with its answer, and not a while later.
func TestConnectionInUseIsNotKeptAfterTheEnd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*world){
		"the proxy is closed": func(w *world) { w.proxy.Close() }, "the endpoint vanishes": func(w *world) { w.republish() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			arrived, goOn := make(chan bool, 2), make(chan bool, 2)
			j := newCountingJob(t, "", func(http.ResponseWriter, *http.Request) { arrived <- true; <-goOn })
			w := newWorld(t)
			s := w.publish(discovery.Service{}, j.addr())
			p := w.proxy.balancer.states.of(s).pool(nil, s, s.Endpoints[0])
			done := make(chan answer)
			go func() { done <- w.get(host(s), "/") }()
			<-arrived
			end(w)
			goOn <- true
			<-done
			if open := p.open.Load(); open != 0 {
				t.Fatalf("%d connections are kept", open)
			}
			w.republish(s.Endpoints...) // somebody goes on all the same
			goOn <- true
			w.get(host(s), "/")
			p = w.proxy.balancer.states.of(s).pool(nil, s, s.Endpoints[0])
			if open := p.open.Load(); open != 1 {
				t.Errorf("then %d connections are kept, want the one", open)
			}
		})
	}
}

// A body that was cut, or closed, does not pass for whole when it is read again.
func TestBodyThatIsOverStaysSo(t *testing.T) {
	t.Parallel()
	const whole = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine"
	for name, c := range map[string]struct {
		answer string
		closes bool
		want   error
	}{
		"read to its end": {whole, false, io.EOF},
		"cut":             {strings.Replace(whole, "4", "40", 1), false, io.ErrUnexpectedEOF},
		"closed":          {whole, true, http.ErrBodyReadAfterClose},
	} {
		p := newPool(newDialer(time.Second), discovery.HTTP)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+rawAnswer(t, c.answer), nil)
		if err != nil {
			t.Fatal(err)
		}
		sent := &sentBytes{x: &exchange{service: &discovery.Service{Protocol: discovery.HTTP}}}
		res, err := p.carry(t.Context(), req, sent, true)
		if err != nil {
			t.Fatal(err)
		}
		if !c.closes {
			_, _ = io.ReadAll(res.Body)
		}
		for range 2 {
			if c.closes {
				res.Body.Close()
			}
			if n, err := res.Body.Read(make([]byte, 10)); n != 0 || !errors.Is(err, c.want) {
				t.Errorf("%s: then there are %d bytes and %v, want %v", name, n, err, c.want)
			}
		}
		res.Body.Close()
		p.CloseIdleConnections()
	}
}

func TestIdleConnectionsGetOld(t *testing.T) {
	t.Parallel()
	var busy atomic.Int32
	meet := make(chan bool)
	j := newCountingJob(t, "", func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/meet" {
			busy.Add(1)
			<-meet
		}
	})
	w := newWorld(t)
	s := w.publish(discovery.Service{}, j.addr())
	done := make(chan answer)
	for range 3 {
		go func() { done <- w.get(host(s), "/meet") }()
	}
	eventually(t, "three are with the job", func() bool { return busy.Load() == 3 })
	close(meet)
	for range 3 {
		<-done
	}
	idle := &w.proxy.balancer.states.of(s).pool(nil, s, s.Endpoints[0]).idle
	eventually(t, "three connections are idle", func() bool { idle.mu.Lock(); defer idle.mu.Unlock(); return len(idle.conns) == 3 })
	idle.mu.Lock()
	idle.conns[0].since = time.Now().Add(-httpIdleConnTimeout)
	newest := idle.conns[2]
	idle.mu.Unlock()
	idle.tick()
	eventually(t, "the old one is closed", func() bool { open, _ := j.connections(); return open == 2 })
	if c := idle.take(); c != newest {
		t.Error("the connection that was used last is not taken first")
	} else if !idle.add(c) {
		t.Error("it is not taken back")
	}
	idle.mu.Lock()
	if !idle.ticks {
		t.Error("nobody will look at the others")
	}
	for i := range idle.conns {
		idle.conns[i].since = time.Now().Add(-httpIdleConnTimeout)
	}
	idle.mu.Unlock()
	idle.tick()
	eventually(t, "all are closed", func() bool { open, _ := j.connections(); return open == 0 })
	idle.mu.Lock()
	defer idle.mu.Unlock()
	if idle.ticks {
		t.Error("a timer ticks for nothing")
	}
}

// A job that takes one connection at a time, for as long as that is kept, has no one wait for our keeping another.
func TestJobThatTakesOneConnectionAtATime(t *testing.T) {
	t.Parallel()
	l := listen(t)
	served := make(chan bool)
	go func() {
		defer close(served)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			for reader := bufio.NewReader(conn); ; {
				r, err := http.ReadRequest(reader)
				if err != nil {
					break
				}
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			}
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-served })
	w := newWorld(t)
	w.client.Timeout = httpIdleConnTimeout - time.Second
	s := w.publish(discovery.Service{}, l.Addr().String())
	for range 2 {
		for _, body := range []string{"", "body", "", "", "body", "body"} {
			if a := w.do(w.request(http.MethodPost, host(s), "/", strings.NewReader(body))); a.body != "ok" {
				t.Fatalf("status %d, %q", a.StatusCode, a.body)
			}
		}
	}
}

// Requests with bodies are http.Transport's; its connections too end with their endpoint.
func TestConnectionsOfUploadsEndWithTheirEndpoint(t *testing.T) {
	t.Parallel()
	echo := func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }
	a, b := newCountingJob(t, "", echo), newCountingJob(t, "", echo)
	w := newWorld(t)
	s := w.publish(discovery.Service{}, a.addr(), b.addr())
	for range 4 {
		if got := w.do(w.request(http.MethodPost, host(s), "/", strings.NewReader("body"))); got.body != "body" {
			t.Fatalf("status %d, %q", got.StatusCode, got.body)
		}
	}
	for name, j := range map[string]*countingJob{"a": a, "b": b} {
		if open, made := j.connections(); open != 1 || made != 1 {
			t.Errorf("%s has %d connections of %d for one request at a time", name, open, made)
		}
	}
	w.republish(discovery.Endpoint{JobID: "job-1", Addr: b.addr()})
	eventually(t, "the connection to the endpoint that went is closed", func() bool { open, _ := a.connections(); return open == 0 })
	if open, _ := b.connections(); open != 1 {
		t.Errorf("the other has %d connections", open)
	}
}

// A slow job is waited for, wherever it pauses, and a caller that leaves meanwhile is noticed all the same.
func TestSlowAnswers(t *testing.T) {
	t.Parallel()
	const pause = guardTime + guardTime/2 // the guard's time is what this is about
	answers := [][]string{
		{"", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nslow"},
		{"H", "TTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nslow"},
		{"HTTP/1.1 200 OK\r\nContent-Le", "ngth: 4\r\n\r\nslow"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", "slow"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nsl", "ow"},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nsl\r", "\n2\r\now\r\n0\r\n\r\n"},
		{"HTTP/1.1 103 Early Hints\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nslow"},
	}
	for i, parts := range answers {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			left := make(chan bool, 1)
			s := w.publish(discovery.Service{}, rawJob(t, func(conn net.Conn, r *http.Request, rest *bufio.Reader) {
				for n := 0; ; n++ {
					_, _ = io.WriteString(conn, parts[0])
					if r.URL.Path == "/never" {
						_, err := rest.ReadByte()
						left <- err != nil
						return
					}
					time.Sleep(pause)
					_, _ = io.WriteString(conn, parts[1])
					var err error
					if r, err = http.ReadRequest(rest); err != nil {
						return
					}
				}
			}))
			for range 2 { // the second time on the same connection
				if a := w.get(host(s), "/"); a.body != "slow" {
					t.Errorf("%d %q", a.StatusCode, a.body)
				}
			}
			conn := dial(t, w)
			send(t, conn, "GET /never HTTP/1.1\r\n"+asAlice(s)+"\r\n")
			conn.Close()
			if !<-left {
				t.Error("the job heard more")
			}
		})
	}
}

// A request may be larger than what a socket takes at once, and the moment to send it may be late.
func TestRequestsThatAreNotSentAtOnce(t *testing.T) {
	t.Parallel()
	accepted, sizes := make(chan net.Conn), make(chan int, 1)
	l := listen(t)
	go func() {
		defer close(accepted)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	p := newPool(newDialer(time.Minute), discovery.HTTP)
	connect := func() (c *jobConn, job net.Conn) {
		c, err := p.dialJob(ctx, l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c.ctx, job = ctx, <-accepted
		t.Cleanup(func() { c.Close(); job.Close() })
		return c, job
	}
	request := func(size int) *http.Request {
		header := http.Header{"User-Agent": {"test"}, "X-Long": {strings.Repeat("x", size)}}
		return &http.Request{Method: http.MethodGet, Host: "a.example", Header: header, URL: &url.URL{Scheme: "http", Host: l.Addr().String(), Path: "/"}}
	}
	const long = 16 << 20 // no socket takes that

	c, job := connect()
	go func() {
		for reader := bufio.NewReader(job); ; {
			r, err := http.ReadRequest(reader)
			if err != nil {
				return
			}
			_, _ = io.WriteString(job, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine")
			sizes <- len(r.Header.Get("X-Long"))
		}
	}()
	for reader, i := bufio.NewReader(c), 0; i < 6; i++ {
		size := []int{1, long, 2, long + 1}[i%4]
		if i > 3 { // the process stood still for a while, say
			c.until = time.Unix(1, 0)
			_ = c.SetReadDeadline(c.until)
		}
		c.since = time.Now()
		res, err := c.ask(ctx, request(size), reader)
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		body, err := io.ReadAll(res.Body)
		if string(body) != "mine" || err != nil {
			t.Fatalf("request %d: %q, %v", i, body, err)
		}
		if got := <-sizes; got != size {
			t.Errorf("request %d: the job read %d bytes, want %d", i, got, size)
		}
		c.free()
		c.ctx = ctx //nolint:fatcontext // the same
	}

	c, job = connect() // a new connection need not be silent: some servers speak first
	_, _ = io.WriteString(job, "\x00\x00\x12\x04\r\n")
	if _, err := c.ask(ctx, request(1), bufio.NewReader(c)); err == nil || errors.Is(err, errNotSilent) || c.spoke.Load() != spokeHTTP2 {
		t.Errorf("after other than HTTP/1: %v", err)
	}

	c, job = connect() // what it said before we began to wait for it is not signalled again
	c.until = time.Now().Add(5 * time.Second)
	_ = c.SetReadDeadline(c.until)
	var looks int
	_ = c.raw.Read(func(uintptr) bool {
		if looks++; looks == 1 {
			_, _ = io.WriteString(job, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
		}
		return looks > 1
	})
	if res, err := c.ask(ctx, request(1), bufio.NewReader(c)); err != nil || res.StatusCode != 503 {
		t.Errorf("to an answer before the request: %v", err)
	}
	if c.release != nil {
		t.Error("an answer that had come was waited for")
	}

	c, job = connect() // a job that wants nothing of it
	_ = job.(*net.TCPConn).SetLinger(0)
	job.Close()
	_ = c.raw.Read(func(fd uintptr) bool { return newPeek()(fd) })
	if _, err := c.ask(ctx, request(1), bufio.NewReader(c)); err == nil || !strings.HasPrefix(err.Error(), "write tcp 127.0.0.1:") || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after a reset: %v", err)
	}

	c, _ = connect() // a job that reads nothing, and a caller who has enough of it
	time.AfterFunc(time.Millisecond, leave)
	if _, err := c.ask(ctx, request(long), bufio.NewReader(c)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after its caller left: %v, want %v", err, net.ErrClosed)
	}
	l.Close()
	<-accepted
}

// A request takes the next connection when the one that it has is dead, as if that had not been; one that is no socket carries no second request.
func TestDeadConnectionsAreLeftOut(t *testing.T) {
	t.Parallel()
	j := newCountingJob(t, "", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	carry := func(p *pool, sent int) {
		t.Helper()
		// It has been sent before, to another of three endpoints.
		x := &exchange{attempts: 2, service: &discovery.Service{Protocol: discovery.HTTP, Endpoints: make([]discovery.Endpoint, 3)}}
		x.carrier.begin(t.Context(), x)
		req := &http.Request{Method: http.MethodGet, Host: "a.example", Header: http.Header{}, URL: &url.URL{Scheme: "http", Host: j.addr(), Path: "/"}}
		res, err := p.carry(&x.carrier, req, &sentBytes{x: x, n: sent}, false)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(res.Body); string(body) != "ok" || err != nil {
			t.Fatalf("%q, %v", body, err)
		}
	}
	p := newPool(newDialer(time.Minute), discovery.HTTP)
	defer p.CloseIdleConnections()
	carry(p, 0)
	dead := listen(t)
	for range 3 {
		c, err := p.dialJob(t.Context(), dead.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		other, err := dead.Accept()
		if err != nil {
			t.Fatal(err)
		}
		other.Close()
		_, _ = c.countedConn.Read(make([]byte, 1)) // so that its end has arrived
		p.idle.add(c)
	}
	carry(p, 1)
	if _, made := j.connections(); made != 1 {
		t.Errorf("%d connections were made, want the one that is kept", made)
	}
	if open := p.open.Load(); open != 1 {
		t.Errorf("%d connections are open, want 1", open)
	}

	// What was not sent is not late.
	c, err := p.dialJob(t.Context(), dead.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if other, err := dead.Accept(); err == nil {
		other.Close()
	}
	_, _ = c.countedConn.Read(make([]byte, 1))
	p.CloseIdleConnections()
	_ = p.idle.take() // it is open again
	p.idle.add(c)
	x := &exchange{service: &discovery.Service{Protocol: discovery.HTTP, RouteTimeout: time.Hour}}
	x.sent.x = x
	x.carrier.begin(t.Context(), x)
	ctx := x.traced(&x.carrier)
	req := (&http.Request{Method: http.MethodGet, Host: "a.example", Header: http.Header{}, URL: &url.URL{Scheme: "http", Host: j.addr(), Path: "/"}}).WithContext(ctx)
	connects := p.dialer.dial
	p.dialer.dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		x.patience.mu.Lock()
		defer x.patience.mu.Unlock()
		if x.patience.timer != nil {
			t.Error("the job's time runs while a connection is made")
		}
		return connects(ctx, network, addr)
	}
	res, err := p.carry(ctx, req, &x.sent, false)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	x.patience.mu.Lock()
	if x.patience.timer == nil {
		t.Error("the job's time did not run")
	}
	x.patience.mu.Unlock()
	x.patience.stop()

	dials := 0
	p = newPool(&dialer{func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials++
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return struct{ net.Conn }{conn}, err
	}}, discovery.HTTP)
	carry(p, 0)
	carry(p, 0)
	if dials != 2 {
		t.Errorf("%d connections were made, want 2", dials)
	}
}
