package proxy

import (
	"context"
	"sync"
	"time"

	"taskproxy/discovery"
)

// carrier is the context in which an exchange is forwarded, and where exchangeOf finds it. It is a part of the exchange.
//
// It is what context.WithCancelCause makes of the caller's context, but makes that when somebody waits for its end: most exchanges
// are over before anybody does, and to sign on with the caller's context and off again takes as long as some of their steps.
type carrier struct {
	caller context.Context
	x      *exchange

	mu    sync.Mutex
	ender context.Context // nil: nobody has waited for the end yet
	stop  context.CancelCauseFunc
	over  bool // it was cancelled without a reason before anybody did
}

// begin makes it the context of x, which ends with caller at the latest.
func (c *carrier) begin(caller context.Context, x *exchange) { c.caller, c.x = caller, x }

// cancel ends the exchange; nil: there is no reason. Only the first reason counts.
func (c *carrier) cancel(why error) {
	c.mu.Lock()
	idle := c.ender == nil && why == nil
	if c.over = c.over || idle; !idle {
		c.await()
	}
	c.mu.Unlock()
	if !idle {
		c.stop(why)
	}
}

// await makes the context whose end can be waited for. The caller holds mu.
func (c *carrier) await() context.Context {
	if c.ender == nil {
		c.ender, c.stop = context.WithCancelCause(c.caller)
		if c.over {
			c.stop(nil)
		}
	}
	return c.ender
}

// Done is for who waits.
func (c *carrier) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.await().Done()
}

// Err is nil as long as it has not ended.
func (c *carrier) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ender != nil:
		return c.ender.Err()
	case c.over:
		return context.Canceled
	}
	return c.caller.Err()
}

// Deadline is the caller's.
func (c *carrier) Deadline() (time.Time, bool) { return c.caller.Deadline() }

// Value is the exchange, or what the context around has; that is also where package context finds the reason.
func (c *carrier) Value(key any) any {
	if key == (exchangeKey{}) {
		return c.x
	}
	c.mu.Lock()
	around := c.caller
	if c.ender != nil || c.over {
		around = c.await()
	}
	c.mu.Unlock()
	return around.Value(key)
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// shown is the carrier as ReverseProxy sees it.
func (c *carrier) shown() context.Context {
	if c.x.in.ContentLength == 0 && c.x.service.Protocol == discovery.HTTP && !c.x.websocket {
		return unending{c}
	}
	return c
}

// unending is the carrier of a request without a body, which ReverseProxy need not see end. It asks twice: when a context cannot end, it has
// the ResponseWriter tell of the caller's leaving, if that is an http.CloseNotifier, and ours is none; and it waits for the end of what it
// has upgraded, which is nothing here. Whoever waits for the job waits for the ending carrier: a jobConn, when the answer takes long.
type unending struct{ *carrier }

// Done is never.
func (unending) Done() <-chan struct{} { return nil }

// Err is none.
func (unending) Err() error { return nil }

// ending is the carrier with the values of what ReverseProxy has made of it.
type ending struct {
	*carrier
	values context.Context
}

// Value is the trace, or the carrier's.
func (e *ending) Value(key any) any { return e.values.Value(key) }
