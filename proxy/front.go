package proxy

import (
	"bufio"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// preface is how a connection of HTTP/2 begins (RFC 9113, section 3.4).
	preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

	// stallLimit is for how long a caller who speaks HTTP/2 may take no byte of what we send.
	stallLimit = 2 * time.Minute

	// frameBuffer is for frames from callers, in bytes: net/http reads each in two pieces. What is larger goes past it.
	frameBuffer = 2 << 10
)

// GatherListener is l with connections on which what the streams of HTTP/2 write leaves together: those that speak it from the first
// byte, and those of TLS where GatherTLS is the server's tls.Config.GetConfigForClient. With HTTP/1.1 and no TLS it may be seen 200 ms
// later that a caller has left.
func GatherListener(l net.Listener) net.Listener { return gatherListener{l} }

type gatherListener struct{ net.Listener }

// Accept is the listener's. A connection that is not one of TCP stays as it is.
func (l gatherListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if tcp, ok := conn.(tcpConn); ok && err == nil {
		return &frontConn{tcpConn: tcp}, nil
	}
	return conn, err
}

// GatherTLS sees which connections of a GatherListener will speak HTTP/2 within TLS: a server that does prefers it. It
// changes nothing in the handshake.
func GatherTLS(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	if c, ok := hello.Conn.(*frontConn); ok && slices.Contains(hello.SupportedProtos, "h2") {
		c.gathered.Store(gather(c.tcpConn, stallLimit))
	}
	return nil, nil
}

// tcpConn is what tunnels want of a connection: to wait without a buffer, and to close one half.
type tcpConn interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// frontConn is a caller's connection.
type frontConn struct {
	tcpConn
	gathered atomic.Pointer[gathered] // nil: it is not HTTP/2's
	limited  atomic.Bool              // there is a deadline for writes
	reads    reads

	// The reader's own.
	seen int           // bytes of the preface; negative: no more are looked at
	in   *bufio.Reader // nil: net/http has one, or TLS
}

// Read looks out for the preface, which net/http reads in pieces of its own.
func (c *frontConn) Read(b []byte) (int, error) {
	if len(b) == 1 && c.in == nil { // net/http looks whether a caller of HTTP/1.1 leaves; who wants bytes asks for more there
		c.reads.wait()
	}
	for {
		if c.reads.late.Load() {
			return 0, os.ErrDeadlineExceeded
		}
		n, err := c.read(b)
		if n > 0 || err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || !c.reads.extend(c.tcpConn) {
			return n, err
		}
	}
}

func (c *frontConn) read(b []byte) (int, error) {
	if c.in != nil {
		return c.in.Read(b)
	}
	if g := c.gathered.Load(); g != nil {
		return g.Read(b)
	}
	n, err := c.tcpConn.Read(b)
	if c.seen >= 0 {
		c.look(b[:n])
	}
	return n, err
}

func (c *frontConn) look(b []byte) {
	b = b[:min(len(b), len(preface)-c.seen)]
	if string(b) != preface[c.seen:c.seen+len(b)] {
		c.seen = -1
		return
	}
	if c.seen += len(b); c.seen == len(preface) {
		c.seen = -1
		g := gather(c.tcpConn, stallLimit)
		c.in = bufio.NewReaderSize(g, frameBuffer)
		c.gathered.Store(g)
	}
}

// conn is what is written to and closed.
func (c *frontConn) conn() net.Conn {
	if g := c.gathered.Load(); g != nil {
		return g
	}
	return c.tcpConn
}

// Write may gather b with what follows.
func (c *frontConn) Write(b []byte) (int, error) { return c.conn().Write(b) }

// SetWriteDeadline is for HTTP/2 only the limit of waiting for one's turn: see stallLimit. Each request of HTTP/1.1 makes sure that
// there is none, which is so as a rule.
func (c *frontConn) SetWriteDeadline(t time.Time) error {
	if limited := !t.IsZero(); c.limited.Swap(limited) || limited {
		return c.conn().SetWriteDeadline(t)
	}
	return nil
}

// SetReadDeadline is for the readers of Read.
func (c *frontConn) SetReadDeadline(t time.Time) error { return c.reads.until(c.tcpConn, t) }

// SetDeadline is SetReadDeadline and SetWriteDeadline. Who sets both has taken the connection over, and may wait for it beside Read.
func (c *frontConn) SetDeadline(t time.Time) error {
	c.limited.Store(!t.IsZero())
	return errors.Join(c.reads.follow(c.tcpConn, t), c.conn().SetWriteDeadline(t))
}

// Close lets what was written leave.
func (c *frontConn) Close() error {
	c.reads.end()
	return c.conn().Close()
}
