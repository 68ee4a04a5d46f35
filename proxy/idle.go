package proxy

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// idleTimer ends a stream on which no byte moved for a while. Touching it is one atomic store; the timer looks at the last
// touch when it rings and sleeps again for the rest. The zero idleTimer never rings.
type idleTimer struct {
	limit time.Duration
	since time.Time
	last  atomic.Int64 // time.Duration since since
	ring  func()

	mu    sync.Mutex // held while ringing, so that nothing rings after stop
	timer *time.Timer
	done  bool
}

// start begins to watch. ring is called at most once, from a goroutine of its own. A limit of 0 or less: never.
func (t *idleTimer) start(limit time.Duration, ring func()) {
	if limit <= 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limit, t.since, t.ring = limit, time.Now(), ring
	t.timer = time.AfterFunc(limit, t.check)
}

// touch says that a byte moved.
func (t *idleTimer) touch() {
	if t.limit > 0 {
		t.last.Store(int64(time.Since(t.since)))
	}
}

func (t *idleTimer) check() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done {
		return
	}
	quiet := time.Since(t.since) - time.Duration(t.last.Load())
	if quiet < t.limit {
		t.timer.Reset(t.limit - quiet)
		return
	}
	t.done = true
	t.ring()
}

// stop ends the watch; when it returns nothing rings any more.
func (t *idleTimer) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done = true
	if t.timer != nil {
		t.timer.Stop()
	}
}

// expire ends an exchange that was idle for too long, also one that hangs in writing to a caller who does not read. While
// no answer has begun there is time to write ours.
func (x *exchange) expire() {
	x.cancel(causeIdle)
	if x.w.hijacked.Load() {
		return // the tunnel closes its connections
	}
	deadline := time.Unix(1, 0)
	if !x.w.started.Load() {
		deadline = time.Now().Add(lastWordTime)
	}
	_ = http.NewResponseController(x.w.ResponseWriter).SetWriteDeadline(deadline)
}
