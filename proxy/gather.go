package proxy

import (
	"errors"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
)

const (
	// mostGathered is how much may wait to go out, in bytes; the last write may bring a little more.
	mostGathered = 32 << 10
	// ungathered is what is not worth a copy, in bytes: so much goes out by itself.
	ungathered = 8 << 10
)

// gatherBuffers has buffers for what waits, as *[]byte. A connection that has nothing to say has none.
var gatherBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// gathered is a connection of HTTP/2, on which many streams write a few bytes each: net/http flushes every frame by itself, and one unary
// call has five or six of them, to its caller and to its job. Here they wait until whoever is about to write as well has had its
// turn, and leave together. Nobody waits for a timer: what is alone leaves at once.
//
// Write takes the bytes and returns, unless much waits already. A failure is the next Write's. Safe for concurrent use.
type gathered struct {
	net.Conn
	stall time.Duration // for how long the other side may take no byte; zero: as long as it likes
	runs  func()        // run: a go statement would make this value each time

	mu      sync.Mutex
	change  sync.Cond // less is waiting, nobody is sending any more, or it is over
	waiting *[]byte   // nil: nothing is
	busy    bool      // somebody is sending, or about to
	closed  bool
	sent    int64     // bytes that have left
	err     error     // why nothing leaves any more
	until   time.Time // the connection's deadline for writes; zero: none
	patient time.Time // until when Write may wait for its turn; zero: as long as it takes
}

// gather makes conn a gathered connection. Whoever wants to write uses that from then on.
func gather(conn net.Conn, stall time.Duration) *gathered {
	g := &gathered{Conn: conn, stall: stall}
	g.change.L, g.runs = &g.mu, g.run
	return g
}

// Write takes all of b, or as much as has left when it fails.
func (g *gathered) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.busy && g.err == nil && !g.closed && (len(b) >= ungathered || g.waiting != nil && len(*g.waiting) >= mostGathered) {
		if !g.await() {
			return 0, os.ErrDeadlineExceeded
		}
	}
	switch {
	case g.err != nil:
		return 0, g.err
	case g.closed:
		return 0, net.ErrClosed
	case len(b) >= ungathered:
		g.busy = true
		n := g.send(b)
		g.rest()
		return n, g.err
	}
	if g.waiting == nil {
		g.waiting = gatherBuffers.Get().(*[]byte)
	}
	*g.waiting = append(*g.waiting, b...)
	if !g.busy {
		g.busy = true
		go g.runs()
	}
	return len(b), nil
}

// await waits for a change, and reports false when the time for that is over. The caller holds mu.
func (g *gathered) await() bool {
	if g.patient.IsZero() {
		g.change.Wait()
		return true
	}
	left := time.Until(g.patient)
	if left <= 0 {
		return false
	}
	defer time.AfterFunc(left, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.change.Broadcast()
	}).Stop()
	g.change.Wait()
	return true
}

// run sends what waits until nothing does.
func (g *gathered) run() {
	runtime.Gosched() // it is the others' turn
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.waiting != nil && g.err == nil {
		out := g.waiting
		g.waiting = nil
		g.change.Broadcast()
		g.send(*out)
		*out = (*out)[:0]
		gatherBuffers.Put(out)
	}
	g.busy = false
	g.change.Broadcast()
	if g.closed {
		_ = g.Conn.Close()
	}
}

// rest is for what has come, or happened, while send was busy for somebody else than run. The caller holds mu.
func (g *gathered) rest() {
	if g.waiting != nil || g.closed {
		go g.runs()
		return
	}
	g.busy = false
	g.change.Broadcast()
}

// send sends b and returns how much of it left. The caller holds mu, which is free meanwhile, and has set busy.
func (g *gathered) send(b []byte) (sent int) {
	for sent < len(b) && g.err == nil {
		g.putOff()
		g.mu.Unlock()
		n, err := g.Conn.Write(b[sent:])
		g.mu.Lock()
		sent += n
		g.sent += int64(n)
		if err != nil && (n == 0 || g.closed || !errors.Is(err, os.ErrDeadlineExceeded)) { // else it is slow, but not stalled
			g.fail(err)
		}
	}
	return sent
}

// putOff puts the deadline off. Not each time: that would cost a tenth of what a write does.
func (g *gathered) putOff() {
	if g.stall == 0 || g.closed {
		return
	}
	if now := time.Now(); g.until.Sub(now) < g.stall-g.stall/8 {
		g.until = now.Add(g.stall)
		_ = g.Conn.SetWriteDeadline(g.until)
	}
}

// fail ends the sending. What the other side said before it hung up can still be read.
func (g *gathered) fail(err error) {
	g.err = err
	g.change.Broadcast()
	if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		_ = g.Conn.Close()
	}
}

// lost reports that of all that was written nothing beyond the first n bytes has left, or ever will.
func (g *gathered) lost(n int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err != nil && g.sent <= n
}

// SetWriteDeadline limits how long Write waits for its turn: tls.Conn.Close says goodbye for so long, and http.Server holds its lock
// meanwhile. For the sending the limit is stall, and a deadline as far away as that (http.HTTP2Config.WriteByteTimeout) is none
// here: many pieces may have to leave before it is one's turn.
func (g *gathered) SetWriteDeadline(t time.Time) error {
	if g.stall > 0 && !t.IsZero() && time.Until(t) > g.stall/2 {
		t = time.Time{}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.patient = t
	g.change.Broadcast()
	return nil
}

// SetDeadline is SetReadDeadline and SetWriteDeadline.
func (g *gathered) SetDeadline(t time.Time) error {
	_ = g.SetWriteDeadline(t)
	return g.SetReadDeadline(t)
}

// Close ends the reading and further writes. What was written leaves, as a kernel would see to: net/http takes an answer for sent
// that only waits here, and closes the connection behind it. For that there is stall, and lastWordTime where that is zero.
func (g *gathered) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case !g.busy || g.err != nil:
		g.closed = true
		return g.Conn.Close()
	case g.closed:
		return net.ErrClosed
	}
	g.closed = true // run closes the connection
	g.change.Broadcast()
	_ = g.Conn.SetWriteDeadline(time.Now().Add(max(g.stall, lastWordTime)))
	return g.Conn.SetReadDeadline(time.Unix(1, 0))
}

// Read is the connection's.
func (g *gathered) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) && g.isClosed() {
		err = net.ErrClosed
	}
	return n, err
}

func (g *gathered) isClosed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}
