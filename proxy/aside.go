package proxy

import (
	"sync"
	"sync/atomic"
	"time"

	"taskproxy/discovery"
)

const (
	firstAside = time.Second
	longAside  = 30 * time.Second
	// probeTime is how long the others keep away while one request tries an endpoint again: longer than it takes to
	// connect or to fail, as a rule.
	probeTime = 3 * time.Second
	// forgetAfter is longer than discovery holds an endpoint that it cannot ask about.
	forgetAfter = time.Hour
)

// setAside remembers the endpoints that did not accept connections. It is kept outside of snapshots, which come and go:
// an endpoint is a job and its address, so that a new job on the same port starts with a clean record. Safe for concurrent
// use.
type setAside struct {
	// strict: there is somebody who is told of failures, and vouches for endpoints.
	strict bool

	size atomic.Int32 // len(m); most of the time 0, and then nobody needs the lock
	mu   sync.Mutex
	m    map[discovery.Endpoint]*penalty // Vouched is zero in the keys
}

// place is what an endpoint's failures are remembered under.
func place(e discovery.Endpoint) discovery.Endpoint {
	e.Vouched = 0
	return e
}

// standing is what a request may do with an endpoint.
type standing int

const (
	usable  standing = iota
	probe            // it failed a while ago and its time is over: this request tries it, alone
	aside            // it failed a while ago: if there is no other
	dead             // nobody has vouched for it since it failed; its port may be somebody else's
	overdue          // dead, and for so long that whoever vouches should be told once more
)

type penalty struct {
	vouched uint32 // of the endpoint when it failed
	until   time.Time
	told    time.Time     // when whoever vouches was told last
	step    time.Duration // for how long the last failure set it aside
	probing bool          // somebody tries it again
}

func newSetAside() *setAside { return &setAside{m: make(map[discovery.Endpoint]*penalty)} }

// standing tells what may be done with an endpoint. When its time is over, the first request that asks tries it, and the
// others go on passing over it until that one has an answer.
func (a *setAside) standing(e discovery.Endpoint) standing {
	if a.size.Load() == 0 {
		return usable
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p, ok := a.m[place(e)]
	if !ok {
		return usable
	}
	now := time.Now()
	unvouched := a.strict && p.vouched == e.Vouched
	switch {
	case now.Before(p.until) && unvouched:
		return dead
	case now.Before(p.until):
		return aside
	case unvouched && now.Sub(p.told) < longAside:
		return dead
	case unvouched:
		p.told = now
		return overdue
	}
	p.until, p.probing = now.Add(probeTime), true
	return probe
}

// failed sets an endpoint aside, each time for twice as long. Requests that were under way when it happened are the same
// failure, not more of them.
func (a *setAside) failed(e discovery.Endpoint) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	p, ok := a.m[place(e)]
	switch {
	case ok && e.Vouched < p.vouched:
		return // it began long ago
	case !ok:
		a.sweep(now)
		p = &penalty{step: firstAside}
		a.m[place(e)] = p
		a.size.Store(int32(len(a.m)))
	case now.Before(p.until) && !p.probing && p.vouched == e.Vouched:
		return
	default:
		p.step = min(2*p.step, longAside)
	}
	p.until, p.probing, p.vouched = now.Add(p.step), false, e.Vouched
}

// succeeded forgets an endpoint's failures.
func (a *setAside) succeeded(e discovery.Endpoint) {
	if a.size.Load() == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if p, ok := a.m[place(e)]; ok && a.strict && e.Vouched <= p.vouched {
		return // it began before the failure
	}
	delete(a.m, place(e))
	a.size.Store(int32(len(a.m)))
}

// forgotten reports that nothing is remembered any more.
func (a *setAside) forgotten() bool {
	if a.size.Load() == 0 {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sweep(time.Now())
	a.size.Store(int32(len(a.m)))
	return len(a.m) == 0
}

// sweep forgets endpoints that nobody has asked for in a while: their jobs are gone.
func (a *setAside) sweep(now time.Time) {
	for e, p := range a.m {
		if now.Sub(p.until) > forgetAfter && now.Sub(p.told) > forgetAfter {
			delete(a.m, e)
		}
	}
}

// count is how many endpoints get no requests as long as there is another.
func (a *setAside) count(endpoints []discovery.Endpoint) (n int) {
	for _, e := range endpoints {
		if a.look(e) != stateUsable {
			n++
		}
	}
	return n
}
