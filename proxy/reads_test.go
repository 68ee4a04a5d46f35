package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"
)

// A caller's connection is a net.Conn like others, whatever it puts off.
func TestFrontConnIsANetConn(t *testing.T) {
	t.Parallel()
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, nil, nil, err
		}
		defer l.Close()
		if c1, err = net.Dial("tcp", l.Addr().String()); err != nil {
			return nil, nil, nil, err
		}
		if c2, err = GatherListener(l).Accept(); err != nil {
			return nil, nil, nil, err
		}
		c2.(*frontConn).seen = -1 // many read at once here, and nobody else does
		return &frontConn{tcpConn: c1.(*net.TCPConn), seen: -1}, c2, func() { c1.Close(); c2.Close() }, nil
	})
}

// inMemory is net.Pipe's, which knows deadlines, in the place of TCP's.
type inMemory struct {
	net.Conn
	reads, deadlines *atomic.Int64
	deadline         *atomic.Pointer[time.Time]
}

func (inMemory) SyscallConn() (syscall.RawConn, error) { return nil, errors.ErrUnsupported }
func (inMemory) CloseWrite() error                     { return errors.ErrUnsupported }

func (c inMemory) Read(b []byte) (int, error) {
	c.reads.Add(1)
	return c.Conn.Read(b)
}

func (c inMemory) SetReadDeadline(t time.Time) error {
	c.deadlines.Add(1)
	c.deadline.Store(&t)
	return c.Conn.SetReadDeadline(t)
}

func newInMemory() (inMemory, net.Conn) {
	c, peer := net.Pipe()
	return inMemory{c, new(atomic.Int64), new(atomic.Int64), new(atomic.Pointer[time.Time])}, peer
}

// serveInMemory serves one caller, peer.
func serveInMemory(h http.HandlerFunc) (server *http.Server, socket inMemory, peer net.Conn) {
	server = NewServer(h, nil)
	socket, peer = newInMemory()
	l := newPipeListener()
	go func() { _ = server.Serve(l) }()
	l.conns <- &frontConn{tcpConn: socket}
	return server, socket, peer
}

// What reads return, and when, is what they return without us, in thousands of orders of reads, bytes and deadlines. One byte alone may be
// read later.
func TestDeadlinesOfReads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const lap, late = 10 * time.Second, 2 * guardTime
		type act struct {
			at       time.Duration
			deadline time.Duration // from then; 0: none; negative: past
			bytes    int           // instead, what the peer sends
		}
		type result struct {
			n    int
			over bool // by the deadline
			at   time.Duration
		}
		plain, plainPeer := newInMemory()
		socket, peer := newInMemory()
		front := &frontConn{tcpConn: socket, seen: -1}
		defer func() { plain.Close(); front.Close(); plainPeer.Close(); peer.Close() }()
		random := rand.New(rand.NewPCG(1, 2))
		moment := func() time.Duration { // no two are the same with what is added to them
			return time.Duration(random.IntN(2)*random.IntN(600)+random.IntN(30)) * 10 * time.Millisecond
		}
		for round := range 5000 {
			size, from, acts := 1+3*random.IntN(2), moment(), make([]act, random.IntN(5))
			for i := range acts {
				acts[i] = act{at: moment() + time.Duration(i+1)*time.Millisecond}
				switch kind := random.IntN(4); {
				case i == 0: // one at most: they would wait for each other
					acts[i].bytes = kind
				case kind == 1:
					acts[i].deadline = -time.Second
				case kind == 2:
					acts[i].deadline = moment() + time.Duration(i+1)*time.Microsecond
				}
			}
			run := func(c, peer net.Conn) result {
				began := time.Now()
				for _, a := range acts {
					time.AfterFunc(a.at, func() {
						switch {
						case a.bytes > 0:
							_ = peer.SetWriteDeadline(began.Add(lap - time.Second))
							_, _ = peer.Write(make([]byte, a.bytes)) // what is not read is lost
						case a.deadline == 0:
							_ = c.SetReadDeadline(time.Time{})
						default:
							_ = c.SetReadDeadline(time.Now().Add(a.deadline))
						}
					})
				}
				time.AfterFunc(lap-2*time.Second, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
				time.Sleep(from) // until this is read, of what happens in the round
				n, err := c.Read(make([]byte, size))
				r := result{n, errors.Is(err, os.ErrDeadlineExceeded), time.Since(began)}
				if timeout, ok := err.(net.Error); err != nil && (!r.over || !ok || !timeout.Timeout()) { //nolint:errorlint // as net/http looks at it
					t.Errorf("round %d: read: %v, which is no net.Error of a timeout", round, err)
				}
				time.Sleep(lap - time.Since(began))
				if round%3 > 0 { // else it stays past
					_ = c.SetReadDeadline(time.Time{})
				}
				return r
			}
			want, got := run(plain, plainPeer), run(front, peer)
			behind := got.at - want.at
			if got != want && (size > 1 || want.over || behind < 0 || behind > late) {
				t.Fatalf("round %d: reading %d from %s, with %+v: %+v, want %+v", round, size, from, acts, got, want)
			}
		}
		t.Logf("%d deadlines of the socket, %d without us; %d reads", socket.deadlines.Load(), plain.deadlines.Load(), socket.reads.Load())
	})
}

// Who takes a connection over may wait for it beside Read, as tunnels do: none of the deadlines of before may end that.
func TestDeadlinesOfTheSocket(t *testing.T) {
	t.Parallel()
	socket, peer := newInMemory()
	defer peer.Close()
	front := &frontConn{tcpConn: socket}
	defer front.Close()
	now := time.Now()
	for _, step := range []struct {
		set      func(time.Time) error
		to, want time.Time
	}{
		{front.SetReadDeadline, now.Add(time.Minute), now.Add(time.Minute)},
		{front.SetReadDeadline, time.Time{}, now.Add(time.Minute)}, // later
		{front.SetDeadline, time.Time{}, time.Time{}},
		{front.SetReadDeadline, now.Add(time.Minute), now.Add(time.Minute)},
		{front.SetReadDeadline, now.Add(time.Hour), now.Add(time.Hour)},
		{front.SetReadDeadline, time.Unix(1, 0), time.Unix(1, 0)},
		{front.SetReadDeadline, time.Time{}, time.Time{}},
	} {
		if err := step.set(step.to); err != nil {
			t.Fatal(err)
		}
		if got := *socket.deadline.Load(); !got.Equal(step.want) {
			t.Fatalf("the socket's deadline is %s after %s was set, want %s", got, step.to, step.want)
		}
	}
}

// Who has taken a connection over, or closed it, does not wait for one byte.
func TestOneByteAtOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before func(*frontConn) error
		n      int
	}{
		"taken over": {func(c *frontConn) error { return c.SetDeadline(time.Time{}) }, 1},
		"closed":     {(*frontConn).Close, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				socket, peer := newInMemory()
				front := &frontConn{tcpConn: socket}
				defer front.Close()
				defer peer.Close()
				if err := c.before(front); err != nil {
					t.Fatal(err)
				}
				go func() { _, _ = peer.Write([]byte{1}) }()
				began := time.Now()
				if n, err := front.Read(make([]byte, 1)); n != c.n || (err == nil) != (c.n > 0) {
					t.Errorf("%d, %v", n, err)
				}
				if took := time.Since(began); took > 0 {
					t.Errorf("it was read after %s, want at once", took)
				}
			})
		})
	}
}

// Who closes a connection that still sends ends its reading by a deadline of the socket. No other that was put off may make up for it.
func TestReadsEndBeforeTheConnection(t *testing.T) {
	t.Parallel()
	socket, peer := newInMemory()
	defer peer.Close()
	front := &frontConn{tcpConn: socket}
	for _, deadline := range []time.Time{time.Now().Add(time.Hour), {}} {
		if err := front.SetReadDeadline(deadline); err != nil {
			t.Fatal(err)
		}
	}
	defer socket.Close()
	front.reads.end()
	if err := socket.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := front.Read(make([]byte, 10)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v, want %v", err, os.ErrDeadlineExceeded)
	}
}

// While requests follow each other a connection is read once for each, and its deadlines are left alone.
func TestReadsOfAKeptConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, socket, peer := serveInMemory(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(10 * time.Millisecond)
			_, _ = io.WriteString(w, "done")
		})
		defer server.Close()
		defer peer.Close()
		answers := bufio.NewReader(peer)
		const requests = 1000
		for range requests {
			if _, err := io.WriteString(peer, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			res, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatal(err)
			}
			if text, err := io.ReadAll(res.Body); string(text) != "done" || err != nil {
				t.Fatalf("%q, %v", text, err)
			}
		}
		synctest.Wait() // for it to read on after the last
		if reads := socket.reads.Load(); reads > requests+10+1 {
			t.Errorf("%d reads for %d requests", reads, requests)
		}
		if n := socket.deadlines.Load(); n > 10 {
			t.Errorf("%d deadlines for %d requests within %s", n, requests, 10*time.Second)
		}
	})
}

// A caller who leaves, and a server that is closed, end what is being served.
func TestLeavingIsSeen(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		after time.Duration // of the request
		leave func(peer net.Conn, server *http.Server) error
		limit time.Duration
	}{
		{"at once", 0, func(peer net.Conn, _ *http.Server) error { return peer.Close() }, 2 * guardTime},
		{"later", time.Minute, func(peer net.Conn, _ *http.Server) error { return peer.Close() }, 0},
		{"closed at once", 0, func(_ net.Conn, server *http.Server) error { return server.Close() }, 0},
		{"closed later", time.Minute, func(_ net.Conn, server *http.Server) error { return server.Close() }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began, ended := make(chan struct{}), make(chan struct{})
				server, _, peer := serveInMemory(func(_ http.ResponseWriter, r *http.Request) {
					began <- struct{}{}
					if r.URL.Path == "/wait" {
						<-r.Context().Done()
						ended <- struct{}{}
					}
				})
				defer server.Close()
				defer peer.Close()
				go func() { _, _ = io.Copy(io.Discard, peer) }()
				for _, path := range []string{"/", "/", "/wait"} { // on a kept connection, too
					if _, err := io.WriteString(peer, "GET "+path+" HTTP/1.1\r\nHost: a.example\r\n\r\n"); err != nil {
						t.Fatal(err)
					}
					<-began
				}
				time.Sleep(c.after)
				left := time.Now()
				if err := c.leave(peer, server); err != nil {
					t.Fatal(err)
				}
				<-ended
				if took := time.Since(left); took > c.limit {
					t.Errorf("it was seen after %s, want %s at most", took, c.limit)
				}
			})
		})
	}
}

// Frames of HTTP/2 may be as small as what net/http reads of HTTP/1.1 to see who leaves.
func TestFramesAreNotPutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, _, peer := serveInMemory(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(asItComes{w}, r.Body); err != nil {
				t.Error(err)
			}
		})
		defer server.Close()
		transport := &http.Transport{Protocols: http2Only, DialContext: func(context.Context, string, string) (net.Conn, error) { return peer, nil }}
		defer transport.CloseIdleConnections()
		body, sent := io.Pipe()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://a.example/", body)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		go func() { _, _ = sent.Write([]byte{0}) }()
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		for i := range byte(20) {
			var echo [1]byte
			if _, err := io.ReadFull(res.Body, echo[:]); err != nil || echo[0] != i {
				t.Fatalf("byte %d: %d, %v", i, echo[0], err)
			}
			if _, err := sent.Write([]byte{i + 1}); err != nil {
				t.Fatal(err)
			}
		}
		sent.Close()
		if _, err := io.ReadAll(res.Body); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("frames of one byte were read after %s, want at once", took)
		}
	})
}

// asItComes flushes after each write.
type asItComes struct{ http.ResponseWriter }

func (w asItComes) Write(b []byte) (int, error) {
	n, err := w.ResponseWriter.Write(b)
	return n, errors.Join(err, http.NewResponseController(w.ResponseWriter).Flush())
}
