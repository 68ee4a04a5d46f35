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
	ctx := x.traced(req.Context())
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
		x.endpoint, sent.insist = endpoint, turn.again
		x.watch.at(endpoint)
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
	} else if ctx != req.Context() {
		out = req.WithContext(ctx)
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
	res, err := pool.RoundTrip(out)
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
	body *attemptBody // what is read to be written to conn; nil: nothing
	mark int64
	n    int
	// fresh: the last connection was made for this request and had carried no other.
	fresh bool
	// insist: what was sent already goes out on a new connection only. RoundTrip's goroutine alone has it.
	insist bool
	// spoke is what the job spoke first on the connection of the last attempt. RoundTrip's goroutine alone has it.
	spoke uint32
}

// gotConn is the httptrace hook: a transport is about to write the request to a connection.
func (s *sentBytes) gotConn(info httptrace.GotConnInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	again := s.conn != nil // the transport itself tries again, within one attempt
	s.settle()
	s.fresh = !info.Reused
	if s.n > 0 && s.x.service.Protocol != discovery.GRPC &&
		(info.Reused && (again || s.insist) || again && !s.insist && s.x.attempts < len(s.x.service.Endpoints)) {
		// The one time that the request may be sent again is for another endpoint, or, where none is left, for a connection of its own:
		// of a job that was killed all kept ones are broken, and a new one may be taken before it is gone. Nothing is written to
		// a connection that is closed.
		info.Conn.Close()
		s.fresh = false
	}
	if conn, ok := info.Conn.(*countedConn); ok {
		s.conn, s.mark = conn, conn.written.Load()
		if s.x.service.Protocol != discovery.GRPC { // there one connection carries many requests, and the transport closes their bodies
			conn.began.Store(s.mark)
			conn.carries.Store(s.body)
		}
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

// reads notes the body of the next attempt.
func (s *sentBytes) reads(body *attemptBody) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.body = body
}

// answers is the httptrace hook of gRPC: the first bytes of the answer are here.
func (s *sentBytes) answers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.body != nil {
		s.body.began.Store(true)
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
	closed  atomic.Bool // no more of it is wanted
}

// Read passes bytes, and at the end the trailers: net/http fills the incoming request's trailers just before EOF, and
// reads the outgoing one's just after, in the same goroutine.
func (b *requestBody) Read(p []byte) (int, error) {
	b.touched.Store(true)
	b.x.reading.Lock()
	n, err := b.ReadCloser.Read(p)
	b.x.reading.Unlock()
	if b.x.abandoned.Load() {
		return n, net.ErrClosed // that is why, not the caller
	}
	if n > 0 {
		b.x.bytesIn.Add(int64(n))
		b.x.watch.touch()
	}
	if err == io.EOF {
		b.x.bodyEnded.Store(true)
	} else if err != nil && !b.closed.Load() {
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

// breakOff ends the reading for a gRPC job whose answer has begun. HTTP/2's transport closes the body when the job's connection is
// gone or its answer complete, and lets nobody know before the read has ended, while the caller may be waiting for just that.
func (b *requestBody) breakOff() {
	x := b.x
	if x.bodyEnded.Load() || x.service.Protocol != discovery.GRPC || x.in.ProtoMajor < 2 {
		return
	}
	x.watch.mu.Lock()
	defer x.watch.mu.Unlock()
	if !x.watch.done { // otherwise the handler is about to return, or has
		b.closed.Store(true)
		_ = http.NewResponseController(x.w.ResponseWriter).SetReadDeadline(time.Unix(1, 0))
	}
}

// attemptBody is the body for one attempt. Transports wait for its reader before they tell that the connection broke, and the reader for a
// caller who has nothing to say until there is an answer: who closes it, or the connection, ends that.
type attemptBody struct {
	*requestBody
	ctx             context.Context
	reading, broken atomic.Bool
	began           atomic.Bool // a gRPC job's answer has, which may be all of it: nothing is lost any more
	settled         atomic.Bool // the attempt is over; it was answered perhaps, and the body may go on
}

func (b *attemptBody) Read(p []byte) (int, error) {
	b.reading.Store(true)
	defer b.reading.Store(false)
	if b.broken.Load() {
		return 0, net.ErrClosed
	}
	return b.requestBody.Read(p)
}

// Close keeps the body open for the next attempt, unless it is being read for this one: then there is no next.
func (b *attemptBody) Close() error {
	switch {
	case b == nil:
		return nil
	case b.settled.Load(), b.began.Load() && b.x.in.ProtoMajor >= 2:
		b.breakOff()
		return nil
	}
	b.broken.Store(true)
	w := &b.x.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	if b.reading.Load() && !w.done && b.ctx.Err() == nil {
		b.x.abandoned.Store(true)
		// To net/http a caller whose connection cannot be read has left; the reason must be there first.
		b.x.cancel(&Error{cause: causeBroken, Err: errors.New("the connection broke before an answer")})
		_ = http.NewResponseController(b.x.w.ResponseWriter).SetReadDeadline(time.Unix(1, 0))
	}
	return nil
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
