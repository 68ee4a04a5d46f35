package proxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"taskproxy/auth"
	"taskproxy/discovery"
)

const (
	// recheckPause is when a stream asks again after an answer that decided nothing.
	recheckPause = 5 * time.Second
	// undecidedLimit is for how long after its yes has expired a stream goes on, if the cluster is there and does not decide,
	// or is not asked because others are. That can be of the caller's own doing, so that it must not last.
	undecidedLimit = time.Minute
	// leastRecheck is the least time between two questions of one stream.
	leastRecheck = 100 * time.Millisecond
)

// watch is what ends a stream that would go on by itself: no byte moved for too long, its caller may not have it any more,
// or its service or its job is gone. One timer serves all three. It looks what is due when it rings and sleeps again until
// something can be; a request that is over before has borrowed a timer and no more.
//
// A look takes no lock that others hold: the routing table is one atomic load, and auth is asked as for a request.
type watch struct {
	p    *Proxy
	x    *exchange    // nil: not begun
	last atomic.Int64 // the last byte's moment, or the beginning: time.Duration since the exchange's start

	// The timer's goroutine's own, once it runs.
	recheckAt time.Time // zero: never, the request passed without a login
	yesUntil  time.Time // when that yes, or the one that was held, expired or will
	yesAt     time.Time // the cluster's last yes; zero: the request passed by one that was held
	goneAt    time.Time // when the service, or the job that answers, was first missed; zero: it is there

	mu     sync.Mutex // held while a stream is ended, so that nothing is ended after stop
	alarm  *alarm
	done   bool
	listed bool // among Proxy.streams
}

// touch says that a byte moved.
func (w *watch) touch() {
	if w.x != nil {
		w.last.Store(int64(time.Since(w.x.start)))
	}
}

// quiet is for how long no byte has moved.
func (w *watch) quiet(now time.Time) time.Duration {
	return now.Sub(w.x.start) - time.Duration(w.last.Load())
}

// at says which endpoint the exchange is with.
func (w *watch) at(e discovery.Endpoint) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.x.endpoint = e
}

// missed is why the exchange must end in a while, unless that comes back: its service has left the table, or the job that it
// is with has ended. An endpoint that is held, or was, is not missed: nobody has said that its job does not run.
func (w *watch) missed(service *discovery.Service) *cause {
	if service == nil {
		return causeEnded
	}
	w.mu.Lock()
	at := place(w.x.endpoint)
	w.mu.Unlock()
	if at.Addr == "" || has(service.Endpoints, at) || has(service.Held, at) {
		return nil
	}
	return causeJobEnded
}

// watch begins to watch an exchange, whose carrier has begun. Each watch is ended by unwatch.
func (p *Proxy) watch(x *exchange) {
	w := &x.watch
	w.p, w.x = p, x
	w.touch()
	now := x.start.Add(time.Duration(w.last.Load()))
	if x.login != "" {
		w.yes(now, x.expires, x.held)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alarm = p.alarms.set(p.nextLook(x, now), w)
}

// ring is when a look is due.
func (w *watch) ring() { w.p.look(&w.x.carrier, w.x) }

// unwatch ends the watch; when it returns nothing ends the exchange any more.
func (p *Proxy) unwatch(x *exchange) {
	x.patience.stop()
	w := &x.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = true
	p.alarms.drop(w.alarm)
}

// wasListed reports that the exchange is among the streams, once it is not watched any more.
func (w *watch) wasListed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.listed
}

// look is what happens when the timer rings.
func (p *Proxy) look(ctx context.Context, x *exchange) {
	if !p.list(x, false) {
		x.end(causeClosing)
		return
	}
	why := p.due(ctx, x)
	if why != nil {
		x.end(why)
		return
	}
	w := &x.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.done {
		w.alarm.timer.Reset(p.nextLook(x, time.Now()))
	}
}

// nextLook is the time until something can be due.
func (p *Proxy) nextLook(x *exchange, now time.Time) time.Duration {
	w := &x.watch
	next := p.cfg.DrainTimeout / 3
	if limit := p.idleLimit(x); limit > 0 {
		next = min(next, limit-w.quiet(now))
	}
	if !w.recheckAt.IsZero() {
		next = min(next, w.recheckAt.Sub(now))
	}
	if !w.goneAt.IsZero() {
		next = min(next, w.goneAt.Add(p.grace()).Sub(now))
	}
	return max(next, 0)
}

// idleLimit is for how long no byte may move: what the service's annotation says, or else Config.IdleTimeout. Not positive: for
// ever.
func (p *Proxy) idleLimit(x *exchange) time.Duration {
	if limit := x.service.IdleTimeout; limit != 0 {
		return limit
	}
	return p.cfg.IdleTimeout
}

// due is why the stream must end now; nil: it goes on.
func (p *Proxy) due(ctx context.Context, x *exchange) error {
	w, now := &x.watch, time.Now()
	if limit := p.idleLimit(x); limit > 0 && w.quiet(now) >= limit {
		return causeIdle
	}
	service := p.cfg.Table.Load().Lookup(x.service.LongID)
	switch missed := w.missed(service); {
	case missed == nil:
		w.goneAt = time.Time{}
	case w.goneAt.IsZero():
		w.goneAt = now
	case now.Sub(w.goneAt) >= p.grace():
		return missed
	}
	if w.recheckAt.IsZero() || now.Before(w.recheckAt) {
		return nil
	}
	if service == nil {
		service = x.service
	}
	return p.recheck(ctx, x, service)
}

// grace is how long a stream outlives the look that missed its service or its job. That look came within a third of DrainTimeout, so
// that in all the stream has DrainTimeout at most.
func (p *Proxy) grace() time.Duration { return p.cfg.DrainTimeout - p.cfg.DrainTimeout/3 }

// recheck asks again what was asked when the request came. What the service requires is what it requires now. An error is
// why the stream must end: the cluster's no, or no answer for too long. That is StaleLimit while the cluster is away, as for
// requests, and undecidedLimit otherwise.
func (p *Proxy) recheck(ctx context.Context, x *exchange, s *discovery.Service) error {
	w := &x.watch
	decision, err := p.cfg.Authorizer.Recheck(ctx, x.login, x.credentials, s.OperationID, s.Permissions)
	now := time.Now()
	switch {
	case err == nil:
		w.yes(now, decision.Expires, decision.Held)
	case ctx.Err() != nil: // the stream is over
	case errors.Is(err, auth.ErrNoSuchOperation):
		return &Error{cause: causeEnded, Err: err}
	case errors.Is(err, auth.ErrUnauthenticated), errors.Is(err, auth.ErrDenied):
		return &Error{cause: causeRevoked, Err: err}
	case errors.Is(err, auth.ErrAuthOff): // whoever asked is nobody in particular
		return &Error{cause: causeAuthOff, Err: err}
	case !auth.IsAway(err) && now.Sub(w.yesUntil) >= undecidedLimit:
		return &Error{cause: causeNoCluster, Err: fmt.Errorf("no answer for %s: %w", undecidedLimit, err)}
	case now.Sub(w.yesAt) >= p.cfg.StaleLimit:
		return &Error{cause: causeNoCluster, Err: fmt.Errorf("no yes for %s: %w", p.cfg.StaleLimit, err)}
	default:
		pause := min(recheckPause, p.cfg.StaleLimit/4)
		// Not all streams at once, when the cluster has been away.
		w.recheckAt = now.Add(max(pause+rand.N(pause/4+1), leastRecheck))
	}
	return nil
}

// yes notes a yes and when it is to be asked for again; a zero moment: after auth.DefaultGrantTTL. A yes that is held, because
// the cluster is away, makes the one before no younger.
func (w *watch) yes(now, expires time.Time, held bool) {
	if expires.IsZero() {
		expires = now.Add(auth.DefaultGrantTTL)
	}
	w.recheckAt = expires
	if soonest := now.Add(leastRecheck); expires.Before(soonest) {
		w.recheckAt = soonest
	}
	w.yesUntil = w.recheckAt
	if !held {
		w.yesAt = now
	}
}

// earliest of two moments, of which a zero one does not count.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// end ends an exchange for a reason of ours, unless it is over: also one that hangs in writing to a caller who does not read.
// As long as there is something to say, an answer or a status in trailers, there is a little time to say it.
func (x *exchange) end(why error) {
	w := &x.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done {
		return
	}
	w.done = true
	x.carrier.cancel(why)
	if x.w.hijacked.Load() {
		return // the tunnel sees to its connections
	}
	past := time.Unix(1, 0)
	control := http.NewResponseController(x.w.ResponseWriter)
	switch {
	case !x.w.started.Load():
		_ = control.SetWriteDeadline(time.Now().Add(lastWordTime))
	case x.messages.open():
		// Somebody may be waiting for more of the caller's messages, and the transport for that somebody.
		_ = control.SetReadDeadline(past)
		_ = control.SetWriteDeadline(time.Now().Add(lastWordTime))
	default:
		_ = control.SetWriteDeadline(past)
	}
}
