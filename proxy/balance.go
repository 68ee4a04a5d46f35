package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"taskproxy/discovery"
)

// errAllDead: all that is left are endpoints that did not take a connection, and that nobody has vouched for since.
var errAllDead = &Error{cause: causeConnect, Err: errors.New("it did not take a connection a moment ago")}

// balancer is the http.RoundTripper behind httputil.ReverseProxy. It chooses the endpoint and decides which failures may
// try the next one; nothing else retries.
type balancer struct {
	dialer     *dialer
	http, grpc *http.Transport
	aside      *setAside
	metrics    *metrics
	failed     func(*discovery.Service, discovery.Endpoint) // Config.OnConnectFailure, never nil
}

func newBalancer(cfg Config, aside *setAside, m *metrics) *balancer {
	d := newDialer(cfg.ConnectTimeout)
	b := &balancer{dialer: d, http: newHTTPTransport(d), grpc: newGRPCTransport(d), aside: aside, metrics: m, failed: cfg.OnConnectFailure}
	aside.strict = b.failed != nil
	if b.failed == nil {
		b.failed = func(*discovery.Service, discovery.Endpoint) {}
	}
	return b
}

func (b *balancer) closeIdle() {
	b.http.CloseIdleConnections()
	b.grpc.CloseIdleConnections()
}

// RoundTrip sends a request to one endpoint of the exchange's service, or to several, one after the other: as long as no
// byte of it was sent it may go to each endpoint once, whatever its method. Once bytes were sent, a job may have acted on
// them, and only an idempotent request without a body goes out again, once, if the connection broke before an answer.
func (b *balancer) RoundTrip(req *http.Request) (*http.Response, error) {
	x := exchangeOf(req.Context())
	turn := newTurn(x.service, b.aside, b.failed)
	turn.tried = x.tried[:0]
	sent := &x.sent
	sent.x = x
	ctx := watchConns(req.Context(), sent)
	if req.Body != nil {
		x.body.ReadCloser, x.body.x, x.body.out = req.Body, x, req
		req.Body = &x.body
	}
	var last error = causeNoEndpoint
	if len(turn.endpoints) > 0 {
		last = errAllDead
	}
	for {
		endpoint, ok := turn.next()
		if !ok {
			if x.attempts == 0 {
				b.failed(x.service, discovery.Endpoint{})
			}
			return nil, last
		}
		if x.attempts > 0 {
			b.metrics.retries.Inc()
		}
		x.endpoint = endpoint
		x.attempts++
		res, err := b.attempt(ctx, x, req, endpoint, sent)
		if err == nil || errors.Is(err, errSwitched) {
			b.aside.succeeded(endpoint)
			return res, err
		}
		if ctx.Err() != nil {
			return nil, broken(err) // the caller left, or somebody ended the stream: no endpoint's failure
		}
		last = b.judge(endpoint, err)
		if isDead(err, sent) {
			b.failed(x.service, endpoint)
		}
		if !mayMoveOn(req, err, sent.times()) {
			return nil, last
		}
	}
}

// attempt sends the request to one endpoint.
func (b *balancer) attempt(ctx context.Context, x *exchange, req *http.Request, endpoint discovery.Endpoint, sent *sentBytes) (*http.Response, error) {
	// ReverseProxy made the request for us. Each further attempt has its own: a transport may still hold the one before.
	out := req
	if x.attempts > 1 {
		u := *req.URL
		out = req.WithContext(ctx)
		out.URL = &u
	} else if ctx != req.Context() {
		out = req.WithContext(ctx)
	}
	out.URL.Host = endpoint.Addr
	switch {
	case x.websocket:
		return b.handshake(ctx, x, out, sent)
	case x.service.Protocol == discovery.GRPC:
		return b.grpc.RoundTrip(out)
	}
	return b.http.RoundTrip(out)
}

// judge says what an attempt's failure means, and sets an endpoint aside that takes no connections.
func (b *balancer) judge(endpoint discovery.Endpoint, err error) error {
	var dial *dialError
	var known *Error
	switch {
	case errors.As(err, &dial):
		b.aside.failed(endpoint)
		return &Error{cause: dial.cause(), Err: err}
	case errors.As(err, &known):
		return err
	}
	return &Error{cause: causeBroken, Err: broken(err)}
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
func mayMoveOn(req *http.Request, err error, times int) bool {
	var dial *dialError
	isDial := errors.As(err, &dial)
	switch {
	case !isDial && !isBroken(err):
		return false
	case times == 0:
		body, ok := req.Body.(*requestBody)
		return !ok || !body.touched.Load()
	}
	return times == 1 && req.Body == nil && isIdempotent(req.Method)
}

func isIdempotent(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

// isBroken reports a connection that ended before an answer began. An answer that began ends in io.ErrUnexpectedEOF or in
// an error about its form.
func isBroken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, net.ErrClosed) || err.Error() == "http: server closed idle connection"
}

// sentBytes counts how often bytes of one request were written to a connection. http.Transport repeats some requests by
// itself when a kept connection turns out to be dead; it is watched through the connections that it takes.
type sentBytes struct {
	x    *exchange
	mu   sync.Mutex
	conn *countedConn
	mark int64
	n    int
	// fresh: the last connection was made for this request and had carried no other.
	fresh bool
}

// watchConns tells s of the connections that are taken in ctx. ReverseProxy has made a trace for this one request, for which it wants
// to know of 1xx answers; a trace of our own around it would be put together by reflection, each time.
func watchConns(ctx context.Context, s *sentBytes) context.Context {
	if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.GotConn == nil {
		trace.GotConn = s.gotConn
		return ctx
	}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: s.gotConn})
}

// gotConn is the httptrace hook: a transport is about to write the request to a connection.
func (s *sentBytes) gotConn(info httptrace.GotConnInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	again := s.conn != nil // the transport itself tries again, within one attempt
	s.settle()
	s.fresh = !info.Reused
	if again && s.n > 0 && s.x.service.Protocol != discovery.GRPC && (info.Reused || s.x.attempts < len(s.x.service.Endpoints)) {
		// The one time that the request may be sent again is for another endpoint, or, where none is left, for a connection of its own:
		// of a job that was killed all kept ones are broken, and a new one may be taken before it is gone. Nothing is written to
		// a connection that is closed.
		info.Conn.Close()
	}
	if conn, ok := info.Conn.(*countedConn); ok {
		s.conn, s.mark = conn, conn.written.Load()
	} else {
		s.n++ // no way to tell
	}
	if s.n >= 2 {
		// The transport is about to send it a third time.
		s.x.cancel(&Error{cause: causeBroken, Err: errors.New("the connection broke twice before an answer")})
		if s.x.service.Protocol != discovery.GRPC {
			// HTTP/2 looks at the context before it writes. HTTP/1.1 hands the request to the connection's own goroutine
			// first; nobody else uses that connection.
			_ = info.Conn.Close()
		}
	}
}

// settle counts the use of the connection before.
func (s *sentBytes) settle() {
	if s.conn != nil && s.conn.written.Load() > s.mark {
		s.n++
	}
	s.conn = nil
}

func (s *sentBytes) onFresh() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fresh
}

func (s *sentBytes) times() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	return s.n
}

// requestBody is the caller's body on its way to a job. Transports close it when a dial fails; here that means nothing,
// so that the next endpoint gets it untouched. httputil.ReverseProxy ends the reading when the handler returns.
type requestBody struct {
	io.ReadCloser
	x       *exchange
	out     *http.Request
	touched atomic.Bool
}

// Read passes bytes, and at the end the trailers: net/http fills the incoming request's trailers just before EOF, and
// reads the outgoing one's just after, in the same goroutine.
func (b *requestBody) Read(p []byte) (int, error) {
	b.touched.Store(true)
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.x.bytesIn.Add(int64(n))
		b.x.watch.touch()
	}
	if err == io.EOF {
		b.x.bodyEnded.Store(true)
	} else if err != nil {
		// The caller's failure and no endpoint's. What err says may repeat what the caller wrote, a credential perhaps.
		b.x.cancel(causeBadBody)
	}
	if err == io.EOF && b.out.Trailer != nil {
		for name, values := range b.x.in.Trailer {
			if trailerPasses(name, b.x.confides) && validValues(values) {
				b.out.Trailer[name] = values
			}
		}
	}
	return n, err
}

// Close keeps the body open for the next attempt.
func (b *requestBody) Close() error { return nil }

// turn is one request's walk over the endpoints of its service.
type turn struct {
	service   *discovery.Service
	endpoints []discovery.Endpoint
	start     int
	aside     *setAside
	failed    func(*discovery.Service, discovery.Endpoint)
	tried     []int // few as a rule
}

// newTurn takes the next number of the service's round robin, one atomic add.
func newTurn(s *discovery.Service, aside *setAside, failed func(*discovery.Service, discovery.Endpoint)) turn {
	t := turn{service: s, endpoints: s.Endpoints, aside: aside, failed: failed}
	if n := uint64(len(t.endpoints)); n > 0 {
		t.start = int(s.Next() % n)
	}
	return t
}

// next is the endpoint to try: the first in turn that was not tried, passing over those that are set aside as long as
// there is another, and over those that nobody has vouched for since they failed in any case. It reports false when there is
// none.
func (t *turn) next() (discovery.Endpoint, bool) {
	n := len(t.endpoints)
	second := -1
	for i := range n {
		at := (t.start + i) % n
		if slices.Contains(t.tried, at) {
			continue
		}
		switch t.aside.standing(t.endpoints[at]) {
		case usable:
			t.tried = append(t.tried, at)
			return t.endpoints[at], true
		case aside:
			if second < 0 {
				second = at
			}
		case overdue:
			t.failed(t.service, t.endpoints[at])
		}
	}
	if second < 0 {
		return discovery.Endpoint{}, false
	}
	t.tried = append(t.tried, second)
	return t.endpoints[second], true
}

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
	return usable
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

// sweep forgets endpoints that nobody has asked for in a while: their jobs are gone.
func (a *setAside) sweep(now time.Time) {
	for e, p := range a.m {
		if now.Sub(p.until) > forgetAfter && now.Sub(p.told) > forgetAfter {
			delete(a.m, e)
		}
	}
}

// count is how many endpoints are set aside now.
func (a *setAside) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, n := time.Now(), 0
	for _, p := range a.m {
		if now.Before(p.until) || p.probing {
			n++
		}
	}
	return n
}
