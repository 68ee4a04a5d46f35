package proxy

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"

	"taskproxy/discovery"
)

// patience is how long a job is waited for, once it has the whole request, until it begins its answer: a service's annotation
// can limit that (route_timeout_seconds). While a body is still on its way the limit is not counted, so that neither slow
// uploads nor streams that go both ways are cut off; nor is it while a connection is being made, which has a limit of its own.
// A 1xx is no answer. If the request goes to another endpoint, because the first broke the connection, the time goes on.
//
// Who is late is not set aside: an endpoint that takes its time is there.
type patience struct {
	x     *exchange
	limit time.Duration

	mu    sync.Mutex
	timer *time.Timer // nil: the job does not have the whole request yet
	over  bool        // it has answered in time, or there is no one left to answer
	late  bool        // the time is over, and the exchange is being ended
}

// traced is a context in which we learn what we want to know of transports, with a patience if the service's is limited.
//
// ReverseProxy has made a trace for this one request, for which it wants to know of 1xx answers. A trace of our own around it would be
// put together by reflection, each time.
func (x *exchange) traced(ctx context.Context) context.Context {
	trace := httptrace.ContextClientTrace(ctx)
	ours := trace == nil || trace.GotConn != nil
	if ours {
		trace = new(httptrace.ClientTrace)
	}
	trace.GotConn = x.sent.gotConn
	if x.service.Protocol == discovery.GRPC {
		trace.GotFirstResponseByte = x.sent.answers
	}
	if limit := x.service.RouteTimeout; limit > 0 {
		x.patience = &patience{x: x, limit: limit}
		trace.WroteRequest = x.patience.wrote
	}
	if ours {
		ctx = httptrace.WithClientTrace(ctx, trace)
	}
	return ctx
}

// wrote is the httptrace hook: the request was written, its body included, or cannot be any more. Transports call it from
// goroutines of their own, maybe after the answer.
func (p *patience) wrote(httptrace.WroteRequestInfo) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer == nil && !p.over {
		p.timer = time.AfterFunc(p.limit, p.rings)
	}
}

// unwrote takes wrote back: the job has none of the request yet.
func (p *patience) unwrote() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil && p.timer.Stop() {
		p.timer = nil
	}
}

func (p *patience) rings() {
	p.mu.Lock()
	p.late = !p.over
	p.mu.Unlock()
	if p.late { // nobody else writes it
		p.x.end(p.why())
	}
}

func (p *patience) why() error {
	return fail(causeRouteTimeout, "the job did not begin its answer within %s (route_timeout_seconds in its annotation)", p.limit)
}

// stop ends the waiting. It reports false when it was too late.
func (p *patience) stop() (inTime bool) {
	if p == nil {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	if p.timer != nil {
		p.timer.Stop()
	}
	return !p.late
}

// answered takes a job's answer, or its agreement to a tunnel, unless it came too late: then it is given up with its connection.
func (x *exchange) answered(res *http.Response, err error) (*http.Response, error) {
	if x.patience.stop() {
		return res, err
	}
	if res != nil {
		_ = res.Body.Close()
	}
	if x.upgraded != nil {
		_ = x.upgraded.conn.Close()
		x.upgraded = nil
	}
	return nil, x.patience.why()
}
