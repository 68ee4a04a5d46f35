package proxy

import (
	"bytes"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// gate is a connection whose writes wait until they are let through, and are kept.
type gate struct {
	net.Conn
	pass   chan error // one for each write: what comes of it
	mu     sync.Mutex
	pieces []string
	closed bool
}

func newGate() *gate { return &gate{pass: make(chan error)} }

func (g *gate) Write(b []byte) (int, error) {
	if err := <-g.pass; err != nil {
		return 0, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pieces = append(g.pieces, string(b))
	return len(b), nil
}

func (g *gate) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	return nil
}

func (g *gate) SetWriteDeadline(time.Time) error { return nil }
func (g *gate) SetReadDeadline(time.Time) error  { return nil }

func (g *gate) seen() (pieces []string, closed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pieces, g.closed
}

func wrote(t *testing.T, w io.Writer, text string) {
	t.Helper()
	if n, err := io.WriteString(w, text); n != len(text) || err != nil {
		t.Errorf("wrote %d of %d bytes: %v", n, len(text), err)
	}
}

// What comes while something is being sent leaves in one piece, in its order; what is large leaves by itself.
func TestGathered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn := newGate()
		g := gather(conn, 0)
		wrote(t, g, "first")
		synctest.Wait()
		for _, word := range []string{" and", " all", " the", " others"} {
			wrote(t, g, word)
		}
		large := strings.Repeat("x", ungathered)
		var left bool
		go func() { wrote(t, g, large); left = true }()
		conn.pass <- nil
		conn.pass <- nil
		synctest.Wait()
		if left {
			t.Error("what is large was copied")
		}
		wrote(t, g, " the end")
		conn.pass <- nil
		conn.pass <- nil
		synctest.Wait()
		pieces, _ := conn.seen()
		if len(pieces) != 4 || pieces[0] != "first" || pieces[1] != " and all the others" || pieces[2] != large || pieces[3] != " the end" {
			t.Errorf("%d pieces: %.60q", len(pieces), pieces)
		}
		if g.waiting != nil || g.busy {
			t.Error("a buffer is held for nothing")
		}
		go func() { _, _ = io.WriteString(g, large) }()
		synctest.Wait()
		_ = g.Close()
		conn.pass <- nil
		synctest.Wait()
		if pieces, closed := conn.seen(); len(pieces) != 5 || !closed {
			t.Errorf("%d pieces; closed: %t", len(pieces), closed)
		}
	})
}

// Who writes more than may wait waits, and goes on when it has left, or when the connection is closed.
func TestGatheredIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn := newGate()
		g := gather(conn, 0)
		wrote(t, g, "x") // is under way
		synctest.Wait()
		written := 1
		over := make(chan error, 1)
		go func() {
			for {
				n, err := g.Write(make([]byte, 1<<10))
				if written += n; err != nil {
					over <- err
					return
				}
			}
		}()
		synctest.Wait()
		before := written
		if before < mostGathered || before > mostGathered+2<<10 {
			t.Errorf("%d bytes were taken, want about %d", before, mostGathered)
		}
		conn.pass <- nil
		synctest.Wait()
		if written <= before {
			t.Error("nothing more is taken when something has left")
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		if err := <-over; !errors.Is(err, net.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if _, closed := conn.seen(); closed {
			t.Error("closed before what was written has left")
		}
		close(conn.pass)
		synctest.Wait()
		pieces, closed := conn.seen()
		if n := len(strings.Join(pieces, "")); n != written || !closed {
			t.Errorf("%d of %d bytes left; closed: %t", n, written, closed)
		}
	})
}

// A deadline is for who waits for its turn: a goodbye does not wait for somebody who reads nothing. One as far away as stall is none.
func TestGatheredDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn := newGate()
		g := gather(conn, stallLimit)
		wrote(t, g, "x") // is under way
		synctest.Wait()
		_ = g.SetWriteDeadline(time.Now().Add(-time.Second))
		for range mostGathered / 1024 {
			wrote(t, g, strings.Repeat("y", 1024)) // there is a place: nothing to wait for
		}
		for _, size := range []int{1, ungathered} {
			_ = g.SetWriteDeadline(time.Now().Add(5 * time.Second))
			began := time.Now()
			if n, err := g.Write(make([]byte, size)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != 5*time.Second {
				t.Errorf("after %s: %d, %v", time.Since(began), n, err)
			}
		}
		_ = g.SetWriteDeadline(time.Now().Add(stallLimit))
		over := make(chan error, 1)
		go func() { _, err := io.WriteString(g, "z"); over <- err }()
		time.Sleep(2 * stallLimit)
		select {
		case err := <-over:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
		_ = g.SetDeadline(time.Now()) // is for who waits already, too
		if err := <-over; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		_ = g.Close()
		close(conn.pass)
		synctest.Wait()
		if pieces, closed := conn.seen(); len(strings.Join(pieces, "")) != 1+mostGathered || !closed {
			t.Errorf("%d pieces; closed: %t", len(pieces), closed)
		}
	})
}

// A failure is the next write's. After a reset the connection can still be read; any other failure closes it.
func TestGatheredFails(t *testing.T) {
	t.Parallel()
	for _, failure := range []error{syscall.ECONNRESET, syscall.EPIPE, syscall.ETIMEDOUT} {
		synctest.Test(t, func(t *testing.T) {
			conn := newGate()
			g := gather(conn, 0)
			counted := &countedConn{Conn: g}
			counted.began.Store(math.MaxInt64)
			wrote(t, counted, "four")
			conn.pass <- nil
			synctest.Wait()
			wrote(t, counted, "more")
			if !counted.sentSince(4) || counted.sentSince(8) {
				t.Error("four bytes more may leave")
			}
			conn.pass <- &net.OpError{Op: "write", Err: failure}
			synctest.Wait()
			if _, err := g.Write([]byte("again")); !errors.Is(err, failure) {
				t.Errorf("the next write: %v", err)
			}
			if counted.sentSince(4) || !counted.sentSince(3) {
				t.Error("four bytes have left, and no more will")
			}
			if _, closed := conn.seen(); closed != errors.Is(failure, syscall.ETIMEDOUT) {
				t.Errorf("%v: closed: %t", failure, closed)
			}
			_ = g.Close()
			if _, closed := conn.seen(); !closed {
				t.Error("not closed")
			}
		})
	}
}

// Who takes nothing for too long is given up, also when the connection is closed; who takes little is not.
func TestGatheredStalls(t *testing.T) {
	t.Parallel()
	const stall = 2 * time.Minute
	begin := func(t *testing.T, stall time.Duration) (*gathered, net.Conn) {
		far, near := net.Pipe()
		g := gather(near, stall)
		t.Cleanup(func() { _ = g.Close(); _ = far.Close() })
		wrote(t, g, "hello")
		return g, far
	}
	synctest.Test(t, func(t *testing.T) {
		g, far := begin(t, stall)
		began := time.Now()
		if _, err := g.Read(make([]byte, 1)); err == nil {
			t.Error("it was not closed")
		}
		if took := time.Since(began); took < stall-stall/8 || took > stall {
			t.Errorf("given up after %s", took)
		}
		_ = far
	})
	synctest.Test(t, func(t *testing.T) {
		g, far := begin(t, stall)
		one := make([]byte, 1)
		for range len("hello") {
			time.Sleep(stall * 3 / 4)
			if _, err := far.Read(one); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * stall) // an idle connection has no limit
		wrote(t, g, "!")
		if _, err := far.Read(one); err != nil || one[0] != '!' {
			t.Errorf("%q: %v", one, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		g, far := begin(t, stall)
		synctest.Wait()
		wrote(t, g, "more")
		began := time.Now()
		time.Sleep(stall / 4)
		_ = g.Close()
		if n, err := g.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) || time.Since(began) != stall/4 {
			t.Errorf("a read after Close: %d, %v", n, err)
		}
		time.Sleep(stall - time.Millisecond)
		if _, err := io.ReadFull(far, make([]byte, len("hello"))); err != nil {
			t.Errorf("what was written is lost: %v", err)
		}
		time.Sleep(2 * time.Millisecond)
		if got, err := io.ReadAll(far); len(got) > 0 || err != nil {
			t.Errorf("it goes on: %q, %v", got, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		g, far := begin(t, 0)
		synctest.Wait()
		_ = g.Close()
		time.Sleep(lastWordTime + time.Millisecond)
		if got, err := io.ReadAll(far); len(got) > 0 || err != nil {
			t.Errorf("it goes on: %q, %v", got, err)
		}
	})
}

// Many who write at a time lose nothing, and mix nothing up.
func TestGatheredByMany(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	g := gather(near, time.Minute)
	var writers sync.WaitGroup
	var total int
	for i := range 8 {
		size := pieceSize(i)
		total += 50 * size
		writers.Go(func() {
			for range 50 {
				if _, err := g.Write(bytes.Repeat([]byte{byte(i)}, size)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	go func() { writers.Wait(); _ = g.Close() }()
	got, err := io.ReadAll(far)
	if err != nil || len(got) != total {
		t.Fatalf("%d of %d bytes: %v", len(got), total, err)
	}
	for i := 0; i < len(got); {
		size := pieceSize(int(got[i]))
		if want := bytes.Repeat(got[i:i+1], size); !bytes.HasPrefix(got[i:], want) {
			t.Fatalf("at %d: a piece of %d bytes is mixed up", i, size)
		}
		i += size
	}
}

// pieceSize is what each writes at a time: from one byte to more than is gathered.
func pieceSize(writer int) int { return 1 + writer*writer*200 }
