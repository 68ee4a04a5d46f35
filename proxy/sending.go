package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	"taskproxy/discovery"
)

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
		s.x.carrier.cancel(&Error{cause: causeBroken, Err: errors.New("the connection broke twice before an answer")})
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
	if s.conn != nil && s.conn.sentSince(s.mark) {
		s.n++
	}
	s.conn = nil
}

// unsent takes the last gotConn back: nothing was written, and the request goes on with another connection of the same pool.
func (s *sentBytes) unsent() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = nil
	if s.n == 0 {
		s.x.patience.unwrote()
	}
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
		b.x.carrier.cancel(causeBadBody)
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
		b.x.carrier.cancel(&Error{cause: causeBroken, Err: errors.New("the connection broke before an answer")})
		_ = http.NewResponseController(b.x.w.ResponseWriter).SetReadDeadline(time.Unix(1, 0))
	}
	return nil
}
