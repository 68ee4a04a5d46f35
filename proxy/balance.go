package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"syscall"

	"taskproxy/discovery"
)

// errAllDead: all that is left are endpoints that did not take a connection, and that nobody has vouched for since.
var errAllDead = &Error{cause: causeConnect, Err: errors.New("it did not take a connection a moment ago")}

// balancer is the http.RoundTripper behind httputil.ReverseProxy. It chooses the endpoint and decides which failures may
// try the next one; nothing else retries.
type balancer struct {
	dialer  *dialer
	states  *states
	metrics *metrics
	failed  func(*discovery.Service, discovery.Endpoint) // Config.OnConnectFailure, never nil
}

func newBalancer(cfg Config, states *states, m *metrics) *balancer {
	b := &balancer{dialer: states.dialer, states: states, metrics: m, failed: cfg.OnConnectFailure}
	if b.failed == nil {
		b.failed = func(*discovery.Service, discovery.Endpoint) {}
	}
	return b
}

// RoundTrip sends a request to one endpoint of the exchange's service, or to several, one after the other: as long as no
// byte of it was sent it may go to each endpoint once, whatever its method. Once bytes were sent, a job may have acted on
// them, and only an idempotent request without a body goes out again, once, if the connection broke before an answer.
//
// Before each attempt it asks which endpoints the service has now. The attempt before may have taken hours, and an address that has
// left the table since may be somebody else's.
func (b *balancer) RoundTrip(req *http.Request) (*http.Response, error) {
	x := exchangeOf(req.Context())
	turn := turn{failed: b.failed, tried: x.tried[:0]}
	sent := &x.sent
	sent.x = x
	if values := x.traced(req.Context()); values != req.Context() {
		req = req.WithContext(values)
	}
	x.ending = ending{&x.carrier, req.Context()}
	ctx := &x.ending
	if req.Body != nil {
		x.body.ReadCloser, x.body.x, x.body.out = req.Body, x, req
		req.Body = &x.body
	}
	var last error
	for {
		state := b.states.of(x.service)
		turn.aside, turn.service = state.aside, state.service.Load()
		endpoint, ok := turn.next(x)
		switch {
		case ok:
		case last != nil:
			return nil, last
		default:
			b.failed(x.service, discovery.Endpoint{})
			if turn.service != nil && len(turn.service.Endpoints) > 0 {
				return nil, errAllDead
			}
			return nil, causeNoEndpoint
		}
		if x.attempts > 0 {
			b.metrics.retries.Inc()
		}
		x.watch.at(endpoint)
		sent.insist = turn.again
		x.attempts++
		res, err := b.attempt(ctx, x, state, req, endpoint)
		if err == nil || errors.Is(err, errSwitched) {
			state.aside.succeeded(endpoint)
			return x.answered(res, err)
		}
		if ctx.Err() != nil && !x.abandoned.Load() {
			return nil, broken(err) // the caller left, or somebody ended the stream: no endpoint's failure
		}
		last = judge(x, state.aside, endpoint, err, sent.spoke)
		if isDead(err, sent) {
			b.failed(x.service, endpoint)
		} else if !sent.onFresh() {
			turn.stale = place(endpoint)
		}
		if !mayMoveOn(x, err, sent.times()) {
			return nil, last
		}
	}
}

// attempt sends the request to one endpoint.
func (b *balancer) attempt(ctx context.Context, x *exchange, state *state, req *http.Request, endpoint discovery.Endpoint) (*http.Response, error) {
	// ReverseProxy made the request for us. Each further attempt has its own: a transport may still hold the one before.
	out := req
	if x.attempts > 1 {
		u := *req.URL
		out = req.WithContext(ctx)
		out.URL = &u
	}
	out.URL.Host = endpoint.Addr
	var body *attemptBody
	if x.body.ReadCloser != nil {
		body = &attemptBody{requestBody: &x.body, ctx: ctx}
		out.Body = body
		defer body.settled.Store(true)
	}
	sent := &x.sent
	sent.reads(body)
	if x.websocket {
		return b.handshake(ctx, x, out, sent)
	}
	pool := state.pool(b.dialer, x.service, endpoint)
	var res *http.Response
	var err error
	if pool.carries(out) {
		res, err = pool.carry(ctx, out, sent, sent.insist)
	} else {
		if out.Context().Done() == nil { // unending: it was to be carried
			out = out.WithContext(ctx)
		}
		res, err = pool.RoundTrip(out)
	}
	sent.spoke = pool.spoke.Load()
	return res, err
}

// judge says what an attempt's failure means, and sets an endpoint aside that takes no connections.
func judge(x *exchange, aside *setAside, endpoint discovery.Endpoint, err error, spoke uint32) error {
	var dial *dialError
	var known *Error
	switch {
	case errors.As(err, &dial):
		aside.failed(endpoint)
		return &Error{cause: dial.cause(), Err: err}
	case errors.As(err, &known) && known.cause != causeBroken:
		return err
	case known != nil:
		err = known.Err
	default:
		err = broken(err)
	}
	return &Error{cause: causeBroken, Public: mistaken(x, spoke), Err: err}
}

// isDead reports that an endpoint refused a connection, or reset one that was made for this request: nothing that speaks
// to us is there. A kept connection that is reset tells less, since servers end these when they like.
func isDead(err error, sent *sentBytes) bool {
	var dial *dialError
	if errors.As(err, &dial) {
		return true
	}
	return (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)) && sent.onFresh()
}

// mayMoveOn is all there is to know about retries. times is how often bytes of the request were sent.
func mayMoveOn(x *exchange, err error, times int) bool {
	var dial *dialError
	isDial := errors.As(err, &dial)
	switch {
	case !isDial && !isBroken(err):
		return false
	case times == 0:
		return x.body.ReadCloser == nil || !x.body.touched.Load()
	}
	return times == 1 && x.body.ReadCloser == nil && isIdempotent(x.in.Method)
}

func isIdempotent(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

// isBroken reports a connection that ended before an answer, or was reset within its header. A header that ends too early ends in
// io.ErrUnexpectedEOF or in an error about its form.
func isBroken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, net.ErrClosed) || err.Error() == "http: server closed idle connection"
}

// turn is one request's walk over the endpoints of its service.
type turn struct {
	service *discovery.Service // as it is now; nil: it has gone
	aside   *setAside
	failed  func(*discovery.Service, discovery.Endpoint)
	tried   []discovery.Endpoint // places; few as a rule
	// stale is the place of one that was tried on a kept connection, and that was broken: servers end these when they like. When no
	// other is left it is tried again, on a new one. Zero: there is none.
	stale discovery.Endpoint
	again bool // it is
}

// next is the endpoint to try, among those that were not tried: the one that the caller stays with; else the one whose turn it is of
// all that take requests; if there is none, of those that are set aside; never one that nobody has vouched for since it failed. It
// reports false when there is none.
//
// Each takes the next number of the service's round robin, one atomic add, and that counts those endpoints only: so they share the
// requests evenly, and what fails is no burden of its neighbour's alone. Only a request that tries one again whose time is over
// takes no number, and a caller that stays with its endpoint.
func (t *turn) next(x *exchange) (discovery.Endpoint, bool) {
	if t.service == nil {
		return discovery.Endpoint{}, false
	}
	if len(t.tried) == 0 {
		if at := x.pinned(t.service); at >= 0 {
			switch e := t.service.Endpoints[at]; t.aside.standing(e) {
			case usable, probe:
				return t.take(e)
			case overdue:
				t.failed(t.service, e)
			}
		}
		if n := len(t.service.Endpoints); n > 0 && t.aside.size.Load() == 0 {
			return t.take(t.service.Endpoints[t.service.Next()%uint64(n)])
		}
	}
	open, second := make([]discovery.Endpoint, 0, 8), make([]discovery.Endpoint, 0, 8)
	for _, e := range t.service.Endpoints {
		if slices.Contains(t.tried, place(e)) {
			continue
		}
		switch t.aside.standing(e) {
		case usable:
			open = append(open, e)
		case probe:
			return t.take(e)
		case aside:
			second = append(second, e)
		case overdue:
			t.failed(t.service, e)
		}
	}
	if len(open) == 0 {
		open = second
	}
	if len(open) > 0 {
		return t.take(open[t.service.Next()%uint64(len(open))])
	}
	if t.stale.Addr == "" || t.again {
		return discovery.Endpoint{}, false
	}
	t.again = true
	t.tried = slices.DeleteFunc(t.tried, func(e discovery.Endpoint) bool { return e == t.stale })
	return t.next(x)
}

func (t *turn) take(e discovery.Endpoint) (discovery.Endpoint, bool) {
	t.tried = append(t.tried, place(e))
	return e, true
}
