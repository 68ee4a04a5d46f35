package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http/httpguts"

	"taskproxy/discovery"
)

// errUnaskedUpgrade: a job changed the protocol of a connection whose other end speaks plain HTTP.
var errUnaskedUpgrade = errors.New("101 Switching Protocols, which nobody asked for")

// newEngine builds the one httputil.ReverseProxy. What it carries is an exchange, found in the request's context; what
// it does is copy. The decisions are ours: rules (both directions), balancer (where to, and again or not), answer.
//
// FlushInterval stays zero: what has to be flushed at every write, the writer flushes (responseWriter.adopt). A gRPC answer without
// a body is not among that: its one frame must not become two.
func (p *Proxy) newEngine() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport:  p.balancer,
		BufferPool: newBufferPool(),
		Rewrite: func(pr *httputil.ProxyRequest) {
			p.rules.rewrite(pr.Out, exchangeOf(pr.In.Context()))
		},
		ModifyResponse: p.receive,
		ErrorHandler: func(_ http.ResponseWriter, r *http.Request, err error) {
			// Kept for the walk to return: there is one place that answers.
			exchangeOf(r.Context()).err = err
		},
		// ReverseProxy's own log is about connections that broke while a body was copied; the access log has these, by
		// reason.
		ErrorLog: log.New(io.Discard, "", 0),
	}
}

// forward sends the exchange on and returns when it is over. An error means that nothing was answered yet.
func (p *Proxy) forward(x *exchange) error {
	if err := prepareUpgrade(x); err != nil {
		return err
	}
	caller := x.in.Context()
	if x.websocket {
		x.carried = protocolWebSocket
		caller = context.WithoutCancel(caller) // the tunnel goes on when the handler has returned
	}
	ctx := &x.carrier
	ctx.begin(caller, x)
	p.watch(x)
	if x.in.ProtoMajor == 1 {
		// An answer of our own on this connection may have left one behind (writeBody).
		_ = http.NewResponseController(x.w.ResponseWriter).SetWriteDeadline(time.Time{})
	}
	if x.in.ProtoMajor == 1 && x.in.ContentLength != 0 {
		// A job may answer while the body is still coming; without this net/http would read the rest of it first.
		_ = http.NewResponseController(x.w.ResponseWriter).EnableFullDuplex()
	}
	open := p.metrics.of[x.carried].streams
	open.Inc()
	defer func() {
		if !x.tunnelled {
			p.leave(x, open)
		}
	}()

	aborted := true
	defer func() {
		if aborted {
			x.w.release()
			x.failure = abortedBy(ctx, x)
		}
	}()
	if x.websocket { // until then its caller's leaving ends it
		defer context.AfterFunc(x.in.Context(), func() { ctx.cancel(context.Cause(x.in.Context())) })()
	}
	p.engine.ServeHTTP(&x.w, x.in.WithContext(ctx.shown()))
	aborted = false
	x.w.release()

	err := x.err
	x.err = nil
	switch {
	case errors.Is(err, errSwitched):
		return p.tunnel(ctx, x, open)
	case err != nil:
		return hinted(x, endedBy(ctx, err))
	}
	p.finish(x)
	return nil
}

// leave ends what forward has begun for an exchange.
func (p *Proxy) leave(x *exchange, open prometheus.Gauge) {
	p.unwatch(x)
	x.carrier.cancel(nil)
	open.Dec()
}

// endedBy prefers the reason for which we ended the stream to what broke because of it.
func endedBy(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if why := context.Cause(ctx); why != nil && !errors.Is(why, context.Canceled) {
		return why
	}
	return err
}

// hinted adds to a connection that broke, and was noticed first by whoever read the caller's body for it, what the job spoke on it.
func hinted(x *exchange, err error) error {
	var known *Error
	if !errors.As(err, &known) || known.cause != causeBroken || known.Public != "" {
		return err
	}
	return &Error{cause: causeBroken, Public: mistaken(x, x.sent.spoke), Err: known.Err}
}

// abortedBy is why an answer that had begun was cut off: we ended it, the caller left, or else the job broke.
func abortedBy(ctx context.Context, x *exchange) *cause {
	// Ours first: the deadline that frees a writer also looks as if the caller had left.
	if c, _ := known(context.Cause(ctx)); c != nil {
		return c
	}
	if x.in.Context().Err() != nil {
		return causeGone
	}
	return causeBroken
}

// prepareUpgrade recognises a WebSocket handshake and takes every other wish to change protocols out of the request, which
// is then served as HTTP/1.1. Java's and curl's clients ask for h2c by default and go on without it.
func prepareUpgrade(x *exchange) error {
	h := x.in.Header
	if _, ok := h["Upgrade"]; !ok {
		return nil
	}
	asked := x.in.ProtoMajor == 1 && x.in.ProtoMinor >= 1 && x.service.Protocol != discovery.GRPC &&
		httpguts.HeaderValuesContainsToken(h["Connection"], "upgrade") &&
		httpguts.HeaderValuesContainsToken(h["Upgrade"], "websocket")
	if !asked {
		delete(h, "Upgrade")
		return nil
	}
	if x.in.Method != http.MethodGet || x.in.ContentLength != 0 {
		// The body would become the first bytes of the tunnel, or the other way round.
		return causeBadUpgrade
	}
	x.websocket = true
	h["Upgrade"] = []string{"websocket"} // of several wishes the one that we serve
	return nil
}

// receive cleans a job's answer before ReverseProxy copies it.
func (p *Proxy) receive(res *http.Response) error {
	x := exchangeOf(res.Request.Context())
	x.watch.touch()
	x.answer = res
	if res.StatusCode == http.StatusSwitchingProtocols {
		return &Error{cause: causeBadAnswer, Err: errUnaskedUpgrade}
	}
	if res.StatusCode < 200 || res.StatusCode > 999 {
		// net/http reads such a status and panics when it is to write it.
		return &Error{cause: causeBadAnswer, Err: fmt.Errorf("status %03d", res.StatusCode)}
	}
	if err := mismatch(x, res); err != nil {
		return err
	}
	p.rules.cleanAnswer(res.Header, x)
	p.rules.cleanTrailerNames(res.Trailer, x) // finish has the values
	x.watchMessages(res)
	x.w.left = res.ContentLength
	p.rules.protect(res.StatusCode, res.Header, x)
	p.rules.pin(res.Header, x)
	if res.ContentLength >= bulkSize {
		res.Body = &bulk{ReadCloser: res.Body, to: &x.w, buffers: &p.bulk}
	}
	x.w.adopt(res)
	return nil
}

// finish cleans the trailers. ReverseProxy has put them into the header map, from which net/http sends them only when
// the handler returns; the headers themselves left with the status.
func (p *Proxy) finish(x *exchange) {
	h := x.w.Header()
	if x.messages.ended != nil {
		endGRPC(x)
		return
	}
	if x.grpc {
		if status := grpcStatusOf(h); status != "" || !isGRPCWeb(x.in.Header) { // gRPC-Web has it in the body as a rule
			x.grpcStatus = grpcStatusLabel(status)
		}
	}
	if len(x.answer.Trailer) > 0 {
		p.rules.cleanAnswer(h, x)
	}
}

func grpcStatusOf(h http.Header) string {
	const name = "Grpc-Status"
	if values := h[name]; len(values) > 0 {
		return values[0]
	}
	if values := h[http.TrailerPrefix+name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// bufferSize is one buffer for copying: what ReverseProxy and io.Copy use too.
const bufferSize = 32 << 10

// bufferPool lends buffers. It keeps pointers to arrays: a slice in a sync.Pool costs an allocation each time.
type bufferPool struct{ pool sync.Pool }

func newBufferPool() *bufferPool {
	return &bufferPool{sync.Pool{New: func() any { return new([bufferSize]byte) }}}
}

// Get and Put are httputil.BufferPool's.
func (b *bufferPool) Get() []byte { return b.pool.Get().(*[bufferSize]byte)[:] }

func (b *bufferPool) Put(buf []byte) { b.pool.Put((*[bufferSize]byte)(buf)) }
