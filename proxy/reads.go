package proxy

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// reads sees to the deadlines of reads from a caller's connection. For each request of HTTP/1.1 net/http sets six, nearly always to put off
// one that is far away, and begins to read for the next request while this one is being served, which is how it sees that a caller leaves. As a
// rule the answer is there before any of it matters.
//
// So the socket hears of a deadline that is later than its own when that one has passed. And the reader waits for guardTime before it reads, at
// most for twice that, which costs no system call.
type reads struct {
	late atomic.Bool // the deadline has passed, and the socket has not heard of it

	mu       sync.Mutex
	deadline time.Time // as it was set
	socket   time.Time // as the socket has it: not later, unless late is true
	exact    bool      // the two are the same from now on, and nobody waits before reading

	waits bool          // somebody does
	wake  chan struct{} // has room for one; nil: nobody has waited
	turns uint          // how often somebody has
	timer *time.Timer   // ends the waiting; nil: nobody has waited
	ticks bool          // the timer does
	seen  uint          // turns, when it last rang
}

// until is net.Conn's SetReadDeadline.
func (r *reads) until(conn net.Conn, t time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deadline = t
	r.late.Store(r.waits && !r.exact && !t.IsZero() && !t.After(time.Now()))
	if r.waits && (r.exact || !t.IsZero()) {
		r.stir()
	}
	if !r.exact && (r.late.Load() || t.IsZero() || !r.socket.IsZero() && t.After(r.socket)) {
		return nil
	}
	r.socket = t
	return conn.SetReadDeadline(t)
}

// extend is for when the socket's deadline has passed. It reports that there was more time than the socket knew.
func (r *reads) extend(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.deadline.IsZero() && !r.deadline.After(time.Now()) {
		return false
	}
	r.socket = r.deadline
	return conn.SetReadDeadline(r.deadline) == nil
}

// follow is until for who waits for the socket itself: from now on it has deadlines as they are set.
func (r *reads) follow(conn net.Conn, t time.Time) error {
	r.mu.Lock()
	r.exact = true
	r.mu.Unlock()
	return r.until(conn, t)
}

// end is for a connection that is closed, or will be when what was written has left (gathered.Close): there is no more time.
func (r *reads) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.exact, r.deadline = true, time.Unix(1, 0)
	if r.waits {
		r.stir()
	}
}

// wait returns after a while, or when a deadline is set.
func (r *reads) wait() {
	r.mu.Lock()
	if r.exact || !r.deadline.IsZero() {
		r.mu.Unlock()
		return
	}
	r.waits = true
	r.turns++
	if r.timer == nil {
		r.wake = make(chan struct{}, 1)
		r.timer = time.AfterFunc(guardTime, r.tick)
	} else if !r.ticks {
		r.timer.Reset(guardTime)
	}
	r.ticks = true
	r.mu.Unlock()
	<-r.wake
}

// stir ends the waiting. The caller holds mu.
func (r *reads) stir() {
	r.waits = false
	r.wake <- struct{}{}
}

// tick is the timer's. It rings as long as requests follow each other: to stop it after each of them would cost what is saved.
func (r *reads) tick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.turns != r.seen {
		r.seen = r.turns
		r.timer.Reset(guardTime)
		return
	}
	r.ticks = false
	if r.waits {
		r.stir()
	}
}
