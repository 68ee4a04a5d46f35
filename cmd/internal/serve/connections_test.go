package serve

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"taskproxy/discovery"
	"taskproxy/proxy"
)

// Connections beyond the limit wait until one ends, which may be said twice. They are still TCP.
func TestLimitConnections(t *testing.T) {
	t.Parallel()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	counts := new(connectionMetrics)
	l := limitConnections(inner.(*net.TCPListener), 2, counts, slog.New(slog.DiscardHandler))
	accepted := make(chan net.Conn)
	ended := make(chan error, 1)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				ended <- err
				return
			}
			accepted <- conn
		}
	}()
	for range 4 {
		conn, err := net.Dial("tcp", l.Addr().String())
		must(t, err)
		defer conn.Close()
	}
	first, second := <-accepted, <-accepted
	defer second.Close()
	if _, ok := first.(interface{ CloseWrite() error }); !ok {
		t.Error("a tunnel cannot close one half")
	}
	if _, ok := first.(syscall.Conn); !ok {
		t.Error("a tunnel cannot wait without a buffer")
	}
	limited := l.(*limitListener)
	until(t, "the third has to wait", func() bool { return len(limited.slots) == 2 && len(accepted) == 0 })
	until(t, "the waiting is counted", func() bool { return counts.waited.Load() == 1 })
	if n := counts.open.Load(); n != 2 {
		t.Errorf("%d counted as open, want 2", n)
	}
	must(t, first.Close())
	if err := first.Close(); err == nil {
		t.Error("closed twice without an error")
	}
	third := <-accepted
	defer third.Close()
	select {
	case <-accepted:
		t.Error("two places for one connection that ended")
	default:
	}
	// Accept waits for a place; the end of the listener ends that too.
	must(t, l.Close())
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
	_ = l.Close()
}

// Without a limit they are counted all the same.
func TestConnectionsAreCounted(t *testing.T) {
	t.Parallel()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	counts := new(connectionMetrics)
	l := limitConnections(inner.(*net.TCPListener), 0, counts, slog.New(slog.DiscardHandler))
	defer l.Close()
	var accepted []net.Conn
	for range 3 {
		conn, err := net.Dial("tcp", l.Addr().String())
		must(t, err)
		defer conn.Close()
		conn, err = l.Accept()
		must(t, err)
		accepted = append(accepted, conn)
	}
	for want := int64(3); want > 0; want-- {
		if open, waited := counts.open.Load(), counts.waited.Load(); open != want || waited != 0 {
			t.Errorf("%d open and %d waited, want %d and 0", open, waited, want)
		}
		_ = accepted[want-1].Close()
		_ = accepted[want-1].Close()
	}
	if n := counts.open.Load(); n != 0 {
		t.Errorf("%d open at the end", n)
	}
}

// The flag limits the public listener, and the log says once that it does.
func TestMaxConnections(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	p := startProcess(t, cluster, cluster.RootToken(), "--max-connections=1")
	first, err := net.Dial("tcp", p.Public)
	must(t, err)
	defer first.Close()
	const words = "as many connections as --max-connections allows"
	second := make(chan answer, 1)
	go func() { second <- get(t, "http://"+p.Public+"/", header("x-yt-taskproxy-id", "00000000")) }()
	until(t, "the log says that there are too many", func() bool { return strings.Contains(p.log.String(), words) })
	select {
	case a := <-second:
		t.Errorf("the second was answered: %d", a.status)
	default:
	}
	must(t, first.Close())
	if a := <-second; a.status != 401 {
		t.Errorf("the second got %d", a.status)
	}
	for range 10 { // places are given back
		if a := get(t, "http://"+p.Public+"/", header("x-yt-taskproxy-id", "00000000")); a.status != 401 {
			t.Errorf("a later one got %d", a.status)
		}
	}
	if n := strings.Count(p.log.String(), words); n != 1 {
		t.Errorf("the log says it %d times", n)
	}
}

// The end waits for connections that the server has closed, and which still have something to send; not for longer than the requests may take.
func TestDrainWaitsForConnections(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		timeout time.Duration
		waits   bool
	}{{time.Minute, true}, {time.Millisecond, false}} {
		inner, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		on := new(listeners)
		on.public = limitConnections(inner.(*net.TCPListener), 0, &on.connections, slog.New(slog.DiscardHandler))
		t.Cleanup(on.close)
		caller, err := net.Dial("tcp", inner.Addr().String())
		must(t, err)
		t.Cleanup(func() { caller.Close() })
		conn, err := on.public.Accept()
		must(t, err)
		t.Cleanup(func() { conn.Close() })
		bases, err := discovery.NewBases("tp.example.net")
		must(t, err)
		engine, err := proxy.New(proxy.Config{Bases: bases, Table: proxy.NewTable(), AuthDisabled: true})
		must(t, err)
		t.Cleanup(engine.Close)
		p := &parts{proxy: engine, publicServer: new(http.Server), draining: new(atomic.Bool)}
		var gone atomic.Bool
		p.publicServer.RegisterOnShutdown(func() {
			if c.waits {
				time.AfterFunc(50*time.Millisecond, func() { gone.Store(true); conn.Close() })
			}
		})
		p.drain(Config{ShutdownTimeout: c.timeout}, on, slog.New(slog.DiscardHandler))
		if gone.Load() != c.waits {
			t.Errorf("within %s: waited for the connection: %t", c.timeout, gone.Load())
		}
	}
}
