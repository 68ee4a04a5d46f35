package proxy

import (
	"context"
	"errors"
	"math"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"taskproxy/discovery"
)

const (
	// Idle connections to HTTP services are given up before common servers give them up, and reused ones therefore rarely
	// meet a reset. Spark's Jetty closes after 8 seconds (SPARK-45248).
	httpIdleConnTimeout = 5 * time.Second
	grpcIdleConnTimeout = 90 * time.Second

	maxIdleConnsPerEndpoint = 512

	// maxAnswerHeader bounds what a job can make us hold before its body.
	maxAnswerHeader = 1 << 20
)

// dialer opens connections to endpoints: exactly the address that the snapshot has, by TCP, never through a proxy of the
// environment.
type dialer struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

func newDialer(timeout time.Duration) *dialer {
	return &dialer{(&net.Dialer{Timeout: timeout, KeepAliveConfig: probes}).DialContext}
}

// probes are how a node that vanished without a word is noticed: its kernel does not answer, as that of a paused job does. We ask for no
// more, such as HTTP/2's pings: a job that says nothing is slow.
var probes = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 3}

// unackedLimit is for how long what was sent may stay without the kernel's word that it arrived, where that can be set. Probes are not
// sent meanwhile, or do not count. It is for HTTP/2, where one connection carries all calls: those of HTTP/1.1 are made anew, and a
// job that reads an upload slowly may take its time, while a gRPC server takes all that flow control allows.
const unackedLimit = 2 * time.Minute

// DialContext is for http.Transport. Its error is a *dialError: nothing was sent to anybody.
func (d *dialer) DialContext(ctx context.Context, _, addr string) (net.Conn, error) {
	conn, err := d.dial(ctx, "tcp", addr)
	if err != nil {
		return nil, &dialError{err}
	}
	counted := &countedConn{Conn: conn}
	counted.began.Store(math.MaxInt64)
	return counted, nil
}

// dialError says that a connection did not come about, which makes another endpoint safe to try. http.Transport passes
// it on as it is.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// cause tells a silent endpoint from one that refuses.
func (e *dialError) cause() *cause {
	var timeout net.Error
	if errors.Is(e.err, os.ErrDeadlineExceeded) || errors.As(e.err, &timeout) && timeout.Timeout() {
		return causeConnectTimeout
	}
	return causeConnect
}

// countedConn counts what was written, by which the balancer knows whether a byte of a request has left, and remembers in what
// the job spoke first.
type countedConn struct {
	net.Conn
	pool    *pool // nil: it is nobody's but one exchange's
	written atomic.Int64
	// began is what written was when the HTTP/1.1 request began that the connection carries; math.MaxInt64: there is none.
	began   atomic.Int64
	carries atomic.Pointer[attemptBody] // the body that is written to it; nil: none, or it is HTTP/2
	spoke   atomic.Uint32
	closed  atomic.Bool
}

// What a job spoke first.
const (
	spokeNothing uint32 = iota
	spokeHTTP2          // the first frame, SETTINGS, begins with its length in 24 bits, of which it needs 14 (RFC 9113, section 4.2)
	spokeOther          // HTTP/1 as a rule; it has no such byte
)

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.hear(b[:n])
	return n, err
}

// hear notes what the job spoke first.
func (c *countedConn) hear(b []byte) {
	if len(b) == 0 || c.spoke.Load() != spokeNothing {
		return
	}
	spoke := spokeOther
	if b[0] == 0 {
		spoke = spokeHTTP2
	}
	c.spoke.Store(spoke)
	if c.pool != nil {
		c.pool.spoke.Store(spoke)
	}
}

// Close also ends the wait for more of a body that nobody will get.
func (c *countedConn) Close() error {
	if c.pool != nil && !c.closed.Swap(true) {
		c.pool.open.Add(-1)
	}
	err := c.Conn.Close()
	_ = c.carries.Load().Close()
	return err
}

// sentSince reports that bytes have left, or may leave, beyond the first mark.
func (c *countedConn) sentSince(mark int64) bool {
	g, ok := c.Conn.(*gathered)
	return c.written.Load() > mark && (!ok || !g.lost(mark))
}

// Write takes the rest of a request that the job does not want. Who answers an upload without reading it, as simple servers do, and
// closes the connection has left an answer to be read, and http.Transport would give it up as soon as a write fails. If
// there is none, the next read fails, and says the same.
func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if c.written.Add(int64(n)) > c.began.Load() && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)) {
		return len(b), nil
	}
	return n, err
}

// newTransport makes the transport of a pool, of which there is one for each endpoint that is called: connections of one are never
// another's. There is no timeout for the whole of a request or for its headers: streams may be silent for as long as
// Config.IdleTimeout allows.
func newTransport(p *pool) *http.Transport {
	t := &http.Transport{
		Proxy:                  nil,  // HTTP_PROXY is not for jobs
		DisableCompression:     true, // bodies pass as they are
		MaxIdleConnsPerHost:    maxIdleConnsPerEndpoint,
		MaxResponseHeaderBytes: maxAnswerHeader,
		// The job is waited for this long before a body is sent that asked for permission; curl does the same.
		ExpectContinueTimeout: time.Second,
		IdleConnTimeout:       httpIdleConnTimeout,
		Protocols:             http1Only,
	}
	if p.protocol == discovery.GRPC {
		t.Protocols, t.IdleConnTimeout = http2Only, grpcIdleConnTimeout
		// No table of headers that were sent: ids, deadlines and traces differ from call to call, and drive what does not out of it.
		t.HTTP2 = &http.HTTP2Config{MaxEncoderHeaderTableSize: 1} // zero is the default
	}
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if p.isAlone() {
			if c := p.idle.take(); c != nil {
				_ = c.Close()
			}
		}
		return p.dial(ctx, network, addr)
	}
	return t
}

// isAlone reports that there is one connection. Simple servers take one at a time, for as long as it is kept. Requests with a body and those without do
// not share theirs, and whoever alternates would wait each time until we give the other up: it is closed, if it is idle, before a second is made.
func (p *pool) isAlone() bool { return p.open.Load() == 1 }

// dial makes a connection of the pool's.
func (p *pool) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	p.open.Add(1)
	conn, err := p.dialer.DialContext(ctx, network, addr)
	if err != nil {
		p.open.Add(-1)
		return nil, err
	}
	counted := conn.(*countedConn)
	counted.pool = p
	if p.protocol == discovery.GRPC {
		limitUnacked(counted.Conn)
		counted.Conn = gather(counted.Conn, 0)
	}
	return counted, nil
}

// What transports speak: HTTP/1.1, or HTTP/2 without TLS from the first byte, as gRPC servers in jobs do. Shared by all of them.
var http1Only, http2Only = func() (one, two *http.Protocols) {
	one, two = new(http.Protocols), new(http.Protocols)
	one.SetHTTP1(true)
	two.SetUnencryptedHTTP2(true)
	return one, two
}()
