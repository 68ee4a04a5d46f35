package discovery

import (
	"context"
	"hash/maphash"
	"maps"
	"sync"
	"time"
)

// Limits on what callers can make us ask the cluster, whoever they are and however many.
const (
	awaitLimit    = 2 * time.Second // that a request waits for an early cycle
	earlyInterval = time.Second     // between the starts of a cycle and of an early one after it
	maxWaiting    = 256             // requests that wait at a time
	maxNames      = 1024            // asked for in one early cycle, also by those who stopped waiting
	maxAsked      = 4096            // names remembered as absent

	awaitBurst  = 6 // early cycles of one caller in a minute
	awaitRefill = time.Minute / awaitBurst
	maxCallers  = 4096 // callers who have used some of their share
)

// Await waits, for two seconds at most, for a cycle that begins after the call: a service that somebody asks for and that
// the snapshot does not have may have been started since the last one. It reports whether it waited; then the snapshot may
// be another one. login is who asks: an empty one, who is nobody that the cluster knows, starts nothing. name is what is
// asked for, in any form that is the same for the same service.
//
// All who wait share one cycle, and early cycles begin once a second at most. A caller gets six a minute, 256 requests may
// wait, and a name that a cycle has just looked for starts none for a period. While cycles fail, none is early.
func (d *Discovery) Await(ctx context.Context, login, name string) bool {
	f := d.early.join(login, name, time.Now())
	if f == nil {
		d.metrics.awaited.WithLabelValues(earlyDeclined).Inc()
		return false
	}
	d.metrics.awaited.WithLabelValues(earlyWaited).Inc()
	defer d.early.leave()
	timeout := time.NewTimer(awaitLimit)
	defer timeout.Stop()
	select {
	case <-f.done:
	case <-timeout.C:
	case <-ctx.Done():
	}
	return true
}

// early is where requests leave what they want of Run. Both look at its memory only: no call is made under its lock, and
// nothing in it grows with the number of requests. Safe for concurrent use.
type early struct {
	period  time.Duration
	seed    maphash.Seed
	changed chan struct{} // of one: Run should look again when it is next needed

	mu           sync.Mutex
	open         bool // the last cycle was answered: another one is worth asking for
	began, ended time.Time
	waiting      int
	next         *flight              // who waits for the next cycle; nil: nobody
	running      *flight              // who waits for the one under way
	asked        map[uint64]time.Time // names that a cycle was made for, and until when that counts
	callers      map[uint64]time.Time // when each caller's share is whole again

	refreshes refreshes
	failures  map[failure]struct{}
	round     time.Time // when refreshes were last taken
}

// flight is everybody who waits for one cycle.
type flight struct {
	done  chan struct{}
	names map[uint64]struct{}
}

// newEarly makes an early that keeps a back-off for so many operations at most.
func newEarly(period time.Duration, operations int) *early {
	return &early{
		period: period, seed: maphash.MakeSeed(), changed: make(chan struct{}, 1),
		asked: make(map[uint64]time.Time), callers: make(map[uint64]time.Time),
		refreshes: newRefreshes(operations), failures: make(map[failure]struct{}),
	}
}

// join lets a caller wait for a cycle; nil: not now. Names and logins are kept as hashes: however long they are, they take
// the same room.
func (e *early) join(login, name string, now time.Time) *flight {
	if login == "" || name == "" {
		return nil
	}
	caller, label := maphash.String(e.seed, login), maphash.String(e.seed, name)
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.open || e.waiting >= maxWaiting || now.Before(e.asked[label]) {
		return nil
	}
	f := e.next
	if e.running != nil {
		if _, same := e.running.names[label]; same {
			f = e.running
		}
	}
	if f != nil && len(f.names) >= maxNames || !e.spend(caller, now) {
		return nil
	}
	if f == nil {
		f = &flight{done: make(chan struct{}), names: make(map[uint64]struct{})}
		e.next = f
		e.tell()
	}
	f.names[label] = struct{}{}
	e.waiting++
	return f
}

func (e *early) leave() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting--
}

// spend takes one cycle from a caller's share: a bucket of awaitBurst that gets one back each awaitRefill. With too many
// callers to remember, the new ones get none.
func (e *early) spend(caller uint64, now time.Time) bool {
	whole, known := e.callers[caller]
	if !known && len(e.callers) >= maxCallers {
		forgetPast(e.callers, now)
		if len(e.callers) >= maxCallers {
			return false
		}
	}
	if whole.Before(now) {
		whole = now
	}
	whole = whole.Add(awaitRefill)
	if whole.Sub(now) > awaitBurst*awaitRefill {
		return false
	}
	e.callers[caller] = whole
	return true
}

// tell makes Run look again. The lock need not be held.
func (e *early) tell() {
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

// begin is the start of a cycle: those who wait for the next one wait for this one. It returns what the cycle takes care
// of, so that no round between cycles has to.
func (e *early) begin(now time.Time) (operations []string, failures []failure) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.began = now
	e.running, e.next = e.next, nil
	return e.refreshes.takeAll(now), e.takeFailures()
}

// end is the end of a cycle: who waited for it has waited long enough, and what it did not bring up is not asked for again
// so soon. When it failed, nobody waits for the next one either: the pause before it is longer than they would.
func (e *early) end(now time.Time, answered bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended, e.open = now, answered
	if f := e.running; f != nil {
		close(f.done)
		if answered {
			e.remember(f.names, now.Add(e.period), now)
		}
	}
	e.running = nil
	if f := e.next; f != nil && !answered {
		close(f.done)
		e.next = nil
	}
}

func (e *early) remember(names map[uint64]struct{}, until, now time.Time) {
	if len(e.asked)+len(names) > maxAsked {
		forgetPast(e.asked, now)
	}
	for name := range names {
		if len(e.asked) >= maxAsked {
			// Whoever has so many names to ask for can start one more early cycle a second, and that is all.
			for other := range e.asked {
				delete(e.asked, other)
				break
			}
		}
		e.asked[name] = until
	}
}

// forgetPast forgets whatever counted until a moment that is over.
func forgetPast(m map[uint64]time.Time, now time.Time) {
	maps.DeleteFunc(m, func(_ uint64, until time.Time) bool { return !now.Before(until) })
}

// awaited reports whether somebody waits for the next cycle, or for what is known of an endpoint that has failed.
func (e *early) awaited() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.next != nil || len(e.failures) > 0
}

// plan is when there is something to do before the regular time: a whole cycle, or a round of refreshes. Zero: never.
func (e *early) plan() (cycle, round time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.next != nil {
		// A cycle that takes long is given as long a rest.
		rest := min(e.ended.Sub(e.began), e.period)
		cycle = later(e.began.Add(earlyInterval), e.ended.Add(rest))
	}
	first := e.refreshes.first()
	switch {
	case len(e.failures) > 0:
		round = e.round.Add(roundInterval)
	case !first.IsZero():
		round = later(first, e.round.Add(roundInterval))
	}
	return cycle, round
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
