package auth

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// warnPeriod is the least time between two log lines about one outage.
const warnPeriod = 10 * time.Second

var (
	errClosed   = errors.New("the authorizer is closed")
	errPanicked = errors.New("asking the cluster panicked")
)

// flight is one call under way. Its answer may be read once done is closed.
type flight[V any] struct {
	began  time.Duration
	done   chan struct{}
	answer answer[V]
}

// trip is what one flight is for. A re-check does not share the flight of requests: whoever makes those decides when it
// leaves, and whether.
type trip[K comparable] struct {
	key   K
	again bool
}

// book is a cache with the calls that fill it. call asks the cluster; an error of it that wraps ErrUnauthenticated,
// ErrDenied or ErrNoSuchOperation is the cluster's no, any other means that it did not decide.
type book[K comparable, V any] struct {
	*cache[K, V]
	login   func(K, V) string // whom a yes is about
	fair    *fairness
	crew    *crew
	outage  *outage
	timeout time.Duration // of one call
	log     *slog.Logger
	name    string // label of metrics and logs
	metrics cacheMetrics
	warned  atomic.Int64
}

// ask waits for the answer of the cluster: that of a call under way for this key, or of a new one, at the cost of p or,
// if there was a yes before, of whom that is about. When ctx ends, it stops waiting; the call goes on for the others, and
// for the cache.
func (b *book[K, V]) ask(ctx context.Context, p party, key K, call func(context.Context) (V, error)) answer[V] {
	if ctx.Err() != nil {
		return b.left(ctx)
	}
	f, a := b.join(p, key, call)
	if f == nil {
		return a
	}
	b.metrics.waiting.Inc()
	defer b.metrics.waiting.Dec()
	if _, ok := b.stale(key); ok {
		return b.waitOrHold(ctx, key, f)
	}
	return b.wait(ctx, f)
}

func (b *book[K, V]) wait(ctx context.Context, f *flight[V]) answer[V] {
	select {
	case <-f.done:
		return f.answer
	case <-ctx.Done():
		return b.left(ctx)
	}
}

// waitOrHold is wait for somebody who has an earlier yes: it is given once patience is over and the cluster is known to be
// away. The call goes on.
func (b *book[K, V]) waitOrHold(ctx context.Context, key K, f *flight[V]) answer[V] {
	rest := time.NewTimer(f.began + patience - b.now())
	defer rest.Stop()
	select {
	case <-f.done:
		return f.answer
	case <-ctx.Done():
		return b.left(ctx)
	case <-rest.C:
	}
	select {
	case <-f.done:
		return f.answer
	case <-ctx.Done():
		return b.left(ctx)
	case <-b.outage.start():
	}
	// Once more, since the call may have brought a no in the meantime: then there is nothing to hold.
	if a, ok := b.stale(key); ok {
		return a
	}
	return b.wait(ctx, f)
}

// left is the answer for somebody who does not wait any longer. That is no fault of the cluster's, so nothing but the
// context's error is wrapped, unless time ran out.
func (b *book[K, V]) left(ctx context.Context) answer[V] {
	err := fmt.Errorf("wait for the cluster's answer: %w", ctx.Err())
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return answer[V]{outcome: undecided, err: err}
}

// join returns the flight for key, or an answer that makes one needless. Only who starts one pays for it.
func (b *book[K, V]) join(p party, key K, call func(context.Context) (V, error)) (*flight[V], answer[V]) {
	sh := b.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	to := trip[K]{key, p.again}
	if f := sh.flights[to]; f != nil {
		return f, answer[V]{}
	}
	// A flight may have landed between the caller's look and our lock. It remembers its answer before it leaves the
	// map, so this second look cannot miss it.
	a, _ := sh.look(key, b.now())
	if a.outcome != missing {
		return nil, a
	}
	known := p.again
	if g, ok := sh.grants.Peek(key); ok && !known {
		known, p = true, party{login: b.login(key, g.value)}
	}
	var ticket uint64
	if !sh.refusals.Contains(key) {
		ticket = maphash.Comparable(b.seed, key)
	}
	v, err := b.fair.enter(p, ticket, known)
	if err != nil {
		return nil, b.notAsked(key, err)
	}
	f := b.launch(sh, to, func(f *flight[V]) {
		b.fly(sh, to, f, func() (V, time.Duration, error) {
			if err := b.fair.board(b.crew.ctx, v); err != nil {
				var none V
				return none, 0, err
			}
			asked := b.now() // the wait for a place is none of the answer's age
			value, err := b.guarded(call)
			return value, asked, err
		}, func(o outcome) { b.fair.leave(v, o == refused) })
	})
	if f == nil {
		b.fair.leave(v, false)
		return nil, answer[V]{outcome: undecided, err: fmt.Errorf("%w: %w", ErrUnavailable, errClosed)}
	}
	return f, answer[V]{}
}

// renew asks in the background, if there is a place and nobody asks already.
func (b *book[K, V]) renew(key K, value V, call func(context.Context) (V, error)) {
	login := b.login(key, value)
	if !b.crew.reserve(login) {
		b.metrics.skipped.Inc()
		return
	}
	landed := func(o outcome) {
		b.crew.release(login)
		switch o {
		case granted:
			b.metrics.renewed.Inc()
		case refused:
			b.metrics.withdrawn.Inc()
		default:
			b.metrics.failed.Inc()
		}
	}
	sh := b.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if to := (trip[K]{key: key}); sh.flights[to] == nil {
		f := b.launch(sh, to, func(f *flight[V]) {
			b.fly(sh, to, f, func() (V, time.Duration, error) {
				asked := b.now()
				value, err := b.guarded(call)
				return value, asked, err
			}, landed)
		})
		if f != nil {
			return
		}
	}
	b.crew.release(login)
}

// launch starts a flight, or returns nil if the crew is closed. The shard's lock is held by the caller.
func (b *book[K, V]) launch(sh *shard[K, V], to trip[K], fly func(*flight[V])) *flight[V] {
	f := &flight[V]{began: b.now(), done: make(chan struct{})}
	if !b.crew.run(func() { fly(f) }) {
		return nil
	}
	sh.flights[to] = f
	return f
}

// fly makes the call, remembers what came of it, and lets go of everybody who waits, in that order and also if the call
// panics or ends its goroutine.
func (b *book[K, V]) fly(sh *shard[K, V], to trip[K], f *flight[V], call func() (value V, asked time.Duration, err error), landed func(outcome)) {
	var value V
	var asked time.Duration
	err := errPanicked
	defer func() {
		f.answer = b.settle(to.key, value, err, asked)
		sh.mu.Lock()
		delete(sh.flights, to)
		sh.mu.Unlock()
		landed(f.answer.outcome)
		close(f.done)
	}()
	value, asked, err = call()
}

// guarded makes the call with its deadline. A panic becomes an error: it must not take the process with it, nor leave
// the waiters behind. Its value is not logged, since nobody knows what is in it.
func (b *book[K, V]) guarded(call func(context.Context) (V, error)) (value V, err error) {
	ctx, cancel := context.WithTimeout(b.crew.ctx, b.timeout)
	defer cancel()
	b.metrics.inflight.Inc()
	defer b.metrics.inflight.Dec()
	defer func() {
		if p := recover(); p != nil {
			b.log.Error("asking the cluster panicked", "cache", b.name, "type", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
			err = errPanicked
		}
	}()
	return call(ctx)
}

// settle remembers what the cluster answered and returns it. If the cluster could not be reached, an earlier yes may
// take the answer's place.
func (b *book[K, V]) settle(key K, value V, err error, asked time.Duration) answer[V] {
	if errors.Is(err, errNotAsked) {
		return b.notAsked(key, err)
	}
	unreachable := isUnreachable(err)
	b.outage.note(unreachable)
	switch {
	case err == nil:
		return b.grant(key, value, asked)
	case errors.Is(err, ErrUnauthenticated), errors.Is(err, ErrDenied), errors.Is(err, ErrNoSuchOperation):
		b.refuse(key, err, asked)
		return answer[V]{outcome: refused, err: err}
	}
	if a, ok := b.fail(key, unreachable); ok {
		b.warn(err)
		return a
	}
	if !errors.Is(err, ErrAuthOff) {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return answer[V]{outcome: undecided, err: err}
}

// notAsked is the answer when the question found no place. That says nothing about the cluster, so what is known of it
// from other calls decides whether an earlier yes counts.
func (b *book[K, V]) notAsked(key K, err error) answer[V] {
	if b.outage.isAway() {
		if a, ok := b.stale(key); ok {
			return a
		}
	}
	return answer[V]{outcome: undecided, err: err}
}

// warn says once in a while that the cluster is away; each request tells about itself in the access log.
func (b *book[K, V]) warn(err error) {
	now, last := int64(b.now()), b.warned.Load()
	if last != 0 && now-last < int64(warnPeriod) || !b.warned.CompareAndSwap(last, now) {
		return
	}
	b.log.Warn("cluster cannot be asked, earlier answers count", "cache", b.name, "err", err)
}
