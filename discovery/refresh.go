package discovery

import (
	"context"
	"maps"
	"slices"
	"time"
)

const (
	refreshFirst  = time.Second            // between two refreshes of one operation, each time twice as long …
	refreshLast   = 30 * time.Second       // … up to this
	refreshQuiet  = time.Minute            // after which an operation begins anew
	maxFailures   = 4096                   // failed endpoints to take note of at a time
	roundInterval = 100 * time.Millisecond // between two rounds of refreshes
	maxRound      = 64                     // operations in a round
)

// Refresh asks for one operation's jobs and their ports without waiting for the next cycle: somebody noticed that what is
// known of them is not so any more. It never blocks. For an operation that is refreshed over and over the pauses grow from
// a second to thirty.
func (d *Discovery) Refresh(operationID string) {
	d.early.refresh(operationID, time.Now())
}

// EndpointFailed tells that an endpoint of a service refused a connection or reset one that was new: its job may have
// ended. It is a Refresh, and if the cluster does not vouch for the job at this time the endpoint goes at once: its port may
// be somebody else's by now. With a zero Endpoint, for a service that has none, it is a Refresh only. It never blocks.
func (d *Discovery) EndpointFailed(s *Service, e Endpoint) {
	if e != (Endpoint{}) {
		d.early.fail(failure{operationID: s.OperationID, endpoint: e})
	}
	d.Refresh(s.OperationID)
}

// failure is an endpoint that did not take a connection.
type failure struct {
	operationID string
	endpoint    Endpoint
}

func (e *early) fail(f failure) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.failures) < maxFailures {
		e.failures[f] = struct{}{}
		e.tell()
	}
}

func (e *early) takeFailures() []failure {
	if len(e.failures) == 0 {
		return nil
	}
	failures := slices.Collect(maps.Keys(e.failures))
	clear(e.failures)
	return failures
}

func (e *early) refresh(operationID string, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.refreshes.want(operationID, now) {
		e.tell()
	}
}

// takeRound is what a round between two cycles takes care of.
func (e *early) takeRound(now time.Time) (operations []string, failures []failure) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.round = now
	return e.refreshes.take(now), e.takeFailures()
}

// refreshes are the operations to refresh, each with its back-off.
type refreshes struct {
	limit   int
	known   map[string]*backoff
	wanted  map[string]*backoff // those of known that somebody asked for
	sweepAt int                 // len(known) at which the quiet ones are forgotten
	swept   time.Time
}

// backoff is when an operation may be refreshed again, and how long the pause after that is.
type backoff struct {
	at   time.Time
	step time.Duration
}

func newRefreshes(limit int) refreshes {
	return refreshes{limit: limit, known: make(map[string]*backoff), wanted: make(map[string]*backoff)}
}

// want reports whether this is news.
func (r *refreshes) want(id string, now time.Time) bool {
	if r.wanted[id] != nil {
		return false
	}
	b := r.known[id]
	if b == nil {
		r.sweep(now)
		if len(r.known) >= r.limit {
			return false // more operations than can have services
		}
		b = &backoff{at: now, step: refreshFirst}
		r.known[id] = b
	}
	r.wanted[id] = b
	return true
}

// sweep forgets operations that nobody has asked for in a while. It looks at all of them only when they have doubled,
// or once a second when there are too many.
func (r *refreshes) sweep(now time.Time) {
	if len(r.known) < r.sweepAt || now.Sub(r.swept) < time.Second {
		return
	}
	r.swept = now
	maps.DeleteFunc(r.known, func(id string, b *backoff) bool { return r.wanted[id] == nil && now.Sub(b.at) > refreshQuiet })
	r.sweepAt = min(max(64, 2*len(r.known)), r.limit)
}

// first is when the next refresh is due; zero: none is wanted.
func (r *refreshes) first() (at time.Time) {
	for _, b := range r.wanted {
		if at.IsZero() || b.at.Before(at) {
			at = b.at
		}
	}
	return at
}

// take returns operations that are due, maxRound at most, and begins their pauses.
func (r *refreshes) take(now time.Time) (due []string) {
	for id, b := range r.wanted {
		if len(due) == maxRound {
			break
		}
		if !now.Before(b.at) {
			due = append(due, id)
			r.spent(id, b, now)
		}
	}
	return due
}

// takeAll returns all that are wanted, due or not: a cycle is made anyway.
func (r *refreshes) takeAll(now time.Time) (all []string) {
	for id, b := range r.wanted {
		all = append(all, id)
		r.spent(id, b, now)
	}
	return all
}

func (r *refreshes) spent(id string, b *backoff, now time.Time) {
	if now.Sub(b.at) > refreshQuiet {
		b.step = refreshFirst
	}
	b.at = now.Add(b.step)
	b.step = min(2*b.step, refreshLast)
	delete(r.wanted, id)
}

// rest is the time between two cycles. It returns when the next one is to begin: at the regular moment, or sooner when
// somebody waits for it. Meanwhile it refreshes single operations.
func (d *Discovery) rest(ctx context.Context, regular time.Time) {
	for ctx.Err() == nil {
		cycle, round := d.early.plan()
		if cycle.IsZero() || cycle.After(regular) {
			cycle = regular
		}
		next := cycle
		if !round.IsZero() && round.Before(next) {
			next = round
		}
		if doubt := d.nextDoubt(time.Now()); !doubt.IsZero() && doubt.Before(next) {
			next = doubt
		}
		if d.early.sleep(ctx, time.Until(next)) {
			continue
		}
		if !time.Now().Before(cycle) {
			return
		}
		d.refreshRound(ctx)
	}
}

// sleep reports whether something woke it before its time: the plan is another one then.
func (e *early) sleep(ctx context.Context, d time.Duration) (woken bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return true
	case <-e.changed:
		return true
	case <-timer.C:
		return false
	}
}

// refreshRound does between two cycles what requests ask for, for those operations only.
func (d *Discovery) refreshRound(ctx context.Context) {
	now := time.Now()
	ids, failures := d.early.takeRound(now)
	dropped := d.noteFailures(failures)
	var ops, doubtful []*tracked
	for _, id := range ids {
		if t := d.tracked[id]; t != nil && t.jobsKnowable() {
			t.jobsDue = true
			ops = append(ops, t)
		}
	}
	for id := range d.doubtful {
		if t := d.tracked[id]; t != nil && len(doubtful) < maxRound {
			doubtful = append(doubtful, t)
		}
	}
	if len(ops) > 0 || dropped {
		d.metrics.refreshes.Add(float64(len(ops)))
		d.settle(ctx, ops, now)
		if ctx.Err() != nil {
			return
		}
		d.swap()
	}
	slow, stop := d.slowly(ctx, !d.interrupted)
	defer func() { d.interrupted = stop() }()
	told := d.askNodes(slow, doubtful, now)
	told = d.askSuspects(slow, ops, now) || told
	told = d.askAddresses(ctx, slow, ops) || told
	if told && ctx.Err() == nil {
		d.swap()
	}
}
