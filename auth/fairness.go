package auth

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

// How many calls may be under way. Together with the calls in the background (crew.go) they stay below the connections
// that one client of the cluster has, so that no kind of call waits for another's.
const (
	// strangerLane is for questions that the cluster never said yes to. It alone is what a flood of credentials can fill.
	strangerLane = 10
	// knownLane is for questions that it did say yes to before: who has come in once is not held up by who tries to.
	knownLane = 8
	// againLane is for re-checks of streams (recheck.go); againEach are about one login.
	againLane = 6
	againEach = 3
	// maxQueue is how many look-ups of one party may wait for its others to end.
	maxQueue = 128
	// maxVisits is how many look-ups of strangers may be under way or waiting in all, of one kind.
	maxVisits = 8192
	// failureInterval is after what time a failure is forgiven.
	failureInterval = time.Second
	// maxPenalties is how many look-ups of one party that has used up its failures are made all the same, each after a
	// wait of failureInterval. As many more are kept for credentials that were turned away before, and that the cluster has not
	// refused: who shares an address with a flood of made-up or outdated credentials gets in with the second try or so.
	// A flood in which every new one comes twice does lock others of its address out: nothing tells them apart.
	maxPenalties = 4
	// maxTurned is how many credentials that were turned away are remembered, some 100 bytes each.
	maxTurned = 16384
	// maxParties is how many parties are remembered, some 200 bytes each. Whoever is forgotten starts afresh.
	maxParties = 8192
)

// errNotAsked is a question that did not reach the cluster: nothing follows from it about the cluster.
var errNotAsked = errors.New("the cluster was not asked")

// party is who pays for a look-up: an address as long as nobody knows who that is, and then the login; apart from its
// others, the login for what is asked again about its streams.
type party struct {
	addr  netip.Addr
	login string
	again bool
}

// addressParty is the party of a caller's address. Who has one IPv6 address has as a rule all of a /64, so those count
// as one. Callers without an address are one as well.
func addressParty(caller netip.Addr) party {
	caller = caller.Unmap().WithZone("")
	if caller.Is6() {
		if prefix, err := caller.Prefix(64); err == nil {
			caller = prefix.Addr()
		}
	}
	return party{addr: caller}
}

// fairness keeps look-ups out of each other's way: what one party asks waits behind what it asked before, not behind
// others, and what fails too often is tried slowly. What the cluster said yes to before has places of its own. It is safe
// for concurrent use; its lock is never held while anything is waited for, and what is answered from memory does not take
// it.
type fairness struct {
	lookups  int // of one party at a time; negative: not limited
	failures int // of one party in a row; zero or negative: not counted
	strange  chan struct{}
	known    chan struct{}
	again    chan struct{}
	// wait is how long a look-up waits for its turn. It is longer than a call: who waits behind calls that hang should
	// learn that the cluster is away, not that there is no place.
	wait    time.Duration
	now     func() time.Duration
	metrics limitMetrics

	mu      sync.Mutex
	parties *lru.Cache[party, *tab]
	turned  *lru.Cache[uint64, struct{}] // tickets that were turned away
	visits  int
}

// tab is what a party has under way, and what it owes. The lock of its fairness guards all but running.
type tab struct {
	running   chan struct{} // nil: not limited
	visits    int           // running or waiting to
	penalties int           // those of them that it cannot pay for
	whole     time.Duration // when all its failures are forgiven
}

// newFairness makes room for look-ups of one kind. now tells the time, from any moment on.
func newFairness(lookups, failures int, wait time.Duration, now func() time.Duration, m limitMetrics) (*fairness, error) {
	parties, err := lru.New[party, *tab](maxParties)
	if err != nil {
		return nil, err
	}
	turned, err := lru.New[uint64, struct{}](maxTurned)
	if err != nil {
		return nil, err
	}
	return &fairness{
		lookups: lookups, failures: failures, wait: wait, now: now, metrics: m, parties: parties, turned: turned,
		strange: make(chan struct{}, strangerLane), known: make(chan struct{}, knownLane), again: make(chan struct{}, againLane),
	}, nil
}

// visit is one look-up, from enter to leave.
type visit struct {
	tab     *tab
	known   bool // the cluster said yes before
	again   bool // it is a re-check
	charged bool // the party has paid for a failure
	penalty bool // it cannot, and waits instead
	held    [2]chan struct{}
}

// enter lets a look-up in, to wait for its turn. ticket stands for what is looked up; zero: the cluster has refused it. The error wraps errNotAsked, and ErrTooMany, or ErrUnavailable if it is
// others who ask too much.
func (f *fairness) enter(p party, ticket uint64, known bool) (*visit, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	limit, queue := f.lookups, maxQueue
	if p.again {
		// All streams of a login may be due at once. Who has many must not see to it by that that some are not asked about.
		limit, queue = min(limit, againEach), maxVisits
	}
	t, ok := f.parties.Get(p)
	if !ok {
		t = &tab{}
		if limit > 0 {
			t.running = make(chan struct{}, limit)
		}
		f.parties.Add(p, t)
	}
	switch {
	case !known && f.visits >= maxVisits:
		f.metrics.busy.Inc()
		return nil, fmt.Errorf("%w: %w: too many look-ups wait", ErrUnavailable, errNotAsked)
	case limit > 0 && t.visits >= limit+queue:
		f.metrics.lookups.Inc()
		return nil, fmt.Errorf("%w: %w: %d look-ups are under way or wait", ErrTooMany, errNotAsked, t.visits)
	}
	v := &visit{tab: t, known: known, again: p.again, penalty: !known && !f.canPay(t)}
	if v.penalty {
		// Those who only wait must not take the room of others who have done nothing.
		places := maxPenalties
		if ticket != 0 && f.turned.Contains(ticket) {
			places += maxPenalties
		}
		if t.penalties >= places || f.visits >= maxVisits/2 {
			f.turned.Add(ticket, struct{}{})
			return nil, f.tooManyFailures()
		}
		t.penalties++
	}
	if !known {
		f.visits++
	}
	t.visits++
	return v, nil
}

// board waits for the visit's turn, for f.wait at most. Errors are those of enter. Either way the visit has to leave.
func (f *fairness) board(ctx context.Context, v *visit) error {
	if v.penalty && !sleep(ctx, failureInterval) {
		return fmt.Errorf("%w: %w: %w", ErrUnavailable, errNotAsked, ctx.Err())
	}
	timeout := time.NewTimer(f.wait)
	defer timeout.Stop()
	if running := v.tab.running; running != nil {
		if !take(ctx, timeout, running) {
			f.metrics.lookups.Inc()
			return fmt.Errorf("%w: %w: earlier look-ups take too long", ErrTooMany, errNotAsked)
		}
		v.held[0] = running
	}
	lane := f.strange
	switch {
	case v.again:
		lane = f.again
	case v.known:
		lane = f.known
	}
	if !f.pay(v) {
		return f.tooManyFailures()
	}
	if !take(ctx, timeout, lane) {
		f.metrics.busy.Inc()
		return fmt.Errorf("%w: %w: too many look-ups are under way", ErrUnavailable, errNotAsked)
	}
	v.held[1] = lane
	return nil
}

// take waits for one of a number of places.
func take(ctx context.Context, timeout *time.Timer, places chan struct{}) bool {
	select {
	case places <- struct{}{}:
		return true
	default:
	}
	select {
	case places <- struct{}{}:
		return true
	case <-timeout.C:
	case <-ctx.Done():
	}
	return false
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// leave ends a visit. What the cluster did not refuse costs nothing.
func (f *fairness) leave(v *visit, failed bool) {
	for _, places := range v.held {
		if places != nil {
			<-places
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !v.known {
		f.visits--
	}
	v.tab.visits--
	if v.charged && !failed {
		v.tab.whole -= failureInterval
	}
	if v.penalty {
		v.tab.penalties--
	}
}

// pay takes the price of a failure in advance, so that many at once do not cost less than one by one.
func (f *fairness) pay(v *visit) bool {
	if v.known || v.penalty || f.failures <= 0 {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.canPay(v.tab) {
		return false
	}
	v.charged = true
	v.tab.whole = max(v.tab.whole, f.now()) + failureInterval
	return true
}

// canPay reports whether one more failure is within the limit. The lock is held by the caller.
func (f *fairness) canPay(t *tab) bool {
	return f.failures <= 0 || max(t.whole-f.now(), 0)+failureInterval <= time.Duration(f.failures)*failureInterval
}

func (f *fairness) tooManyFailures() error {
	f.metrics.failures.Inc()
	return fmt.Errorf("%w: %w: the cluster refused %d credentials in a short time", ErrTooMany, errNotAsked, f.failures)
}
