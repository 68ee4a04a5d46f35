package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"taskproxy/ytclient"
)

const (
	// maxRefreshes bounds the calls in the background of all caches together. A use that finds no place asks at the next.
	maxRefreshes = 16
	// warnPeriod is the least time between two log lines about one outage.
	warnPeriod = 10 * time.Second
)

var (
	errClosed   = errors.New("the authorizer is closed")
	errPanicked = errors.New("asking the cluster panicked")
)

// flight is one call under way. Its answer may be read once done is closed.
type flight[V any] struct {
	done   chan struct{}
	answer answer[V]
}

// crew owns the goroutines that ask the cluster. They run on its context rather than on a request's: the request that
// was first may be cancelled while others wait for the same answer.
type crew struct {
	ctx    context.Context
	cancel context.CancelFunc
	slots  chan struct{} // places for calls in the background

	mu     sync.Mutex // closed and the group's counter must change together
	closed bool
	group  sync.WaitGroup
}

func newCrew() *crew {
	ctx, cancel := context.WithCancel(context.Background())
	return &crew{ctx: ctx, cancel: cancel, slots: make(chan struct{}, maxRefreshes)}
}

// run starts f, unless the crew is closed.
func (c *crew) run(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.group.Go(f)
	return true
}

// close cancels what is under way and waits for its end.
func (c *crew) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.group.Wait()
}

// book is a cache with the calls that fill it. call asks the cluster; an error of it that wraps ErrUnauthenticated,
// ErrDenied or ErrNoSuchOperation is the cluster's no, any other means that it did not decide.
type book[K comparable, V any] struct {
	*cache[K, V]
	crew    *crew
	timeout time.Duration // of one call
	log     *slog.Logger
	name    string // label of metrics and logs
	metrics cacheMetrics
	warned  atomic.Int64
}

// ask waits for the answer of the cluster: that of a call under way for this key, or of a new one. When ctx ends, it
// stops waiting; the call goes on for the others, and for the cache.
func (b *book[K, V]) ask(ctx context.Context, key K, call func(context.Context) (V, error)) answer[V] {
	if ctx.Err() != nil {
		return b.left(ctx)
	}
	f, a := b.join(key, call)
	if f == nil {
		return a
	}
	b.metrics.waiting.Inc()
	defer b.metrics.waiting.Dec()
	select {
	case <-f.done:
		return f.answer
	case <-ctx.Done():
		return b.left(ctx)
	}
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

// join returns the flight for key, or an answer that makes one needless.
func (b *book[K, V]) join(key K, call func(context.Context) (V, error)) (*flight[V], answer[V]) {
	sh := b.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if f := sh.flights[key]; f != nil {
		return f, answer[V]{}
	}
	// A flight may have landed between the caller's look and our lock. It remembers its answer before it leaves the
	// map, so this second look cannot miss it.
	if a, _ := sh.look(key, b.now()); a.outcome != missing {
		return nil, a
	}
	f := b.launch(sh, key, call, func(outcome) {})
	if f == nil {
		return nil, answer[V]{outcome: undecided, err: fmt.Errorf("%w: %w", ErrUnavailable, errClosed)}
	}
	return f, answer[V]{}
}

// renew asks in the background, if there is a place and nobody asks already.
func (b *book[K, V]) renew(key K, call func(context.Context) (V, error)) {
	select {
	case b.crew.slots <- struct{}{}:
	default:
		b.metrics.skipped.Inc()
		return
	}
	landed := func(o outcome) {
		<-b.crew.slots
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
	if sh.flights[key] != nil || b.launch(sh, key, call, landed) == nil {
		<-b.crew.slots
	}
}

// launch starts a flight, or returns nil if the crew is closed. The shard's lock is held by the caller.
func (b *book[K, V]) launch(sh *shard[K, V], key K, call func(context.Context) (V, error), landed func(outcome)) *flight[V] {
	f := &flight[V]{done: make(chan struct{})}
	if !b.crew.run(func() { b.fly(sh, key, f, call, landed) }) {
		return nil
	}
	sh.flights[key] = f
	return f
}

// fly makes the call, remembers what came of it, and lets go of everybody who waits, in that order and also if the call
// panics or ends its goroutine.
func (b *book[K, V]) fly(sh *shard[K, V], key K, f *flight[V], call func(context.Context) (V, error), landed func(outcome)) {
	asked := b.now()
	var value V
	err := errPanicked
	defer func() {
		f.answer = b.settle(key, value, err, asked)
		sh.mu.Lock()
		delete(sh.flights, key)
		sh.mu.Unlock()
		landed(f.answer.outcome)
		close(f.done)
	}()
	value, err = b.guarded(call)
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
	switch {
	case err == nil:
		b.grant(key, value, asked)
		return answer[V]{outcome: granted, value: value}
	case errors.Is(err, ErrUnauthenticated), errors.Is(err, ErrDenied), errors.Is(err, ErrNoSuchOperation):
		b.refuse(key, err, asked)
		return answer[V]{outcome: refused, err: err}
	}
	if value, ok := b.fail(key, isUnreachable(err)); ok {
		b.warn(err)
		return answer[V]{outcome: held, value: value}
	}
	return answer[V]{outcome: undecided, err: fmt.Errorf("%w: %w", ErrUnavailable, err)}
}

// isUnreachable reports whether err says that the cluster could not be asked, which is when an earlier yes counts. A
// cluster that limits our robot is there and must be asked again; otherwise whoever makes it busy makes revocations wait.
// One that gives an answer which is none (an empty one, say) is there as well, and has not said yes.
func isUnreachable(err error) bool {
	return (errors.Is(err, ytclient.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)) &&
		!errors.Is(err, ytclient.ErrOverloaded) && !errors.Is(err, ytclient.ErrOddAnswer)
}

// warn says once in a while that the cluster is away; each request tells about itself in the access log.
func (b *book[K, V]) warn(err error) {
	now, last := int64(b.now()), b.warned.Load()
	if last != 0 && now-last < int64(warnPeriod) || !b.warned.CompareAndSwap(last, now) {
		return
	}
	b.log.Warn("cluster cannot be asked, earlier answers count", "cache", b.name, "err", err)
}
