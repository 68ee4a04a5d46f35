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
type dialer struct{ net.Dialer }

func newDialer(timeout time.Duration) *dialer { return &dialer{net.Dialer{Timeout: timeout}} }

// DialContext is for http.Transport. Its error is a *dialError: nothing was sent to anybody.
func (d *dialer) DialContext(ctx context.Context, _, addr string) (net.Conn, error) {
	conn, err := d.Dialer.DialContext(ctx, "tcp", addr)
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

// countedConn counts what was written, by which the balancer knows whether a byte of a request has left.
type countedConn struct {
	net.Conn
	written atomic.Int64
	// began is what written was when the HTTP/1.1 request began that the connection carries; math.MaxInt64: there is none.
	began   atomic.Int64
	carries atomic.Pointer[attemptBody] // the body that is written to it; nil: none, or it is HTTP/2
}

// Close also ends the wait for more of a body that nobody will get.
func (c *countedConn) Close() error {
	err := c.Conn.Close()
	_ = c.carries.Load().Close()
	return err
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

// newTransport is what the two transports have in common. There is no timeout for the whole of a request or for its
// headers: streams may be silent for as long as Config.IdleTimeout allows.
func newTransport(d *dialer) *http.Transport {
	return &http.Transport{
		Proxy:                  nil, // HTTP_PROXY is not for jobs
		DialContext:            d.DialContext,
		DisableCompression:     true, // bodies pass as they are
		MaxIdleConnsPerHost:    maxIdleConnsPerEndpoint,
		MaxResponseHeaderBytes: maxAnswerHeader,
		// The job is waited for this long before a body is sent that asked for permission; curl does the same.
		ExpectContinueTimeout: time.Second,
		Protocols:             new(http.Protocols),
	}
}

// newHTTPTransport speaks HTTP/1.1.
func newHTTPTransport(d *dialer) *http.Transport {
	t := newTransport(d)
	t.Protocols.SetHTTP1(true)
	t.IdleConnTimeout = httpIdleConnTimeout
	return t
}

// newGRPCTransport speaks HTTP/2 without TLS from the first byte, as gRPC servers in jobs do.
func newGRPCTransport(d *dialer) *http.Transport {
	t := newTransport(d)
	t.Protocols.SetUnencryptedHTTP2(true)
	t.IdleConnTimeout = grpcIdleConnTimeout
	t.HTTP2 = &http.HTTP2Config{
		// A node that vanished without a word is noticed by its silence, not after TCP's patience.
		SendPingTimeout: 30 * time.Second,
		PingTimeout:     15 * time.Second,
	}
	return t
}
