package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http/httpguts"

	"taskproxy/discovery"
)

// Most requests of HTTP/1.1 have no body, and need less than http.Transport, which has two goroutines for each connection: one that sends a
// body while the other reads an answer that may come before its end. Here the goroutine of the request writes it and reads the
// answer, one after the other, which saves a fifth of the CPU time that a request takes in all. Messages are net/http's to write and read.

// jobConn is a connection to a job that carries requests without bodies, one after the other. Only one request has it at a time,
// and between two of them it is one of its pool's idle ones.
type jobConn struct {
	*countedConn
	header int64     // what may still be read of an answer's header, in bytes; math.MaxInt64: it is over
	since  time.Time // when it became idle; zero: it was not yet

	ctx     context.Context // of the request that it carries
	until   time.Time       // the deadline for reads; not while it is guarded
	release func() bool     // ends the guarding; nil: it is not guarded

	request []byte // what the first read of an answer sends before; nil: it was sent

	// A socket's, for swap.
	raw    syscall.RawConn // nil: it is none
	swaps  func(fd uintptr) bool
	answer []byte // where to read to
	n      int    // bytes of it
	err    error
}

// guardTime is for how long at most nobody notices that a request was given up. Most have their answer earlier, and need no guard.
const guardTime = 100 * time.Millisecond

var (
	// errHeaderTooLong is about an answer's header, with those of its 1xx answers.
	errHeaderTooLong = fmt.Errorf("response headers exceeded %d bytes", maxAnswerHeader)

	// errNotSilent: nothing was sent on a kept connection that has something to read, its end perhaps. What a job says between two answers
	// is an answer to nobody: servers say so that they have waited long enough.
	errNotSilent = errors.New("the job closed the connection, or spoke, between two requests")
)

// Read is for the reader of the answer, which asks for its header by the buffer.
func (c *jobConn) Read(b []byte) (int, error) {
	if c.header <= 0 {
		return 0, errHeaderTooLong
	}
	n, err := c.read(b)
	if n == 0 && c.release == nil && errors.Is(err, os.ErrDeadlineExceeded) {
		c.guard()
		n, err = c.read(b)
	}
	c.header -= int64(n)
	return n, err
}

// read sends the request before its first byte of the answer.
func (c *jobConn) read(b []byte) (int, error) {
	if c.request == nil {
		return c.countedConn.Read(b)
	}
	if c.raw != nil {
		c.answer, c.n, c.err = b, 0, nil
		err := c.raw.Read(c.swaps)
		c.answer = nil
		if err != nil {
			return 0, err
		}
		if c.request == nil || c.err != nil {
			c.hear(b[:c.n])
			return c.n, c.told()
		}
	}
	c.guard() // the job does not take it all at once
	rest := c.request
	c.request = nil
	if _, err := c.Write(rest); err != nil {
		return 0, err
	}
	return c.countedConn.Read(b)
}

// told is err in the words of package net, by which everybody else knows the network's errors.
func (c *jobConn) told() error {
	if system, ok := errors.AsType[*os.SyscallError](c.err); ok {
		return &net.OpError{Op: system.Syscall, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: c.err}
	}
	return c.err
}

// swap exchanges a request for the beginning of its answer. It is for syscall.RawConn's Read, which calls it at once, and then whenever there may be
// something to read: the read that finds a kept connection silent is also what the wait for the answer needs to begin with.
func (c *jobConn) swap(fd uintptr) bool {
	if c.request != nil {
		kept := !c.since.IsZero()
		if kept && hasMore(fd, c.answer) {
			c.err = errNotSilent
			return true
		}
		n, err := writeNow(fd, c.request)
		c.written.Add(int64(n))
		if c.request, c.err = c.request[n:], err; err != nil || len(c.request) > 0 {
			return true
		}
		c.request = nil
		if kept {
			return false
		}
		// Nobody has looked at a new one yet, and what was signalled before this wait began is not signalled again.
	}
	var again bool
	c.n, again, c.err = readNow(fd, c.answer)
	return !again
}

// lend gives the connection to a request. Reads are interrupted once, after guardTime or half of it: a deadline costs something,
// and is put off now and then only.
func (c *jobConn) lend(now time.Time) {
	if c.until.Sub(now) < guardTime/2 {
		c.until = now.Add(guardTime)
		_ = c.SetReadDeadline(c.until)
	}
}

// guard makes the connection end with its request's context: when the caller leaves, or somebody ends the stream.
func (c *jobConn) guard() {
	if c.release == nil {
		c.until = time.Time{}
		_ = c.SetReadDeadline(time.Time{})
		c.release = context.AfterFunc(c.ctx, func() { c.Close() })
	}
}

// free takes the connection back. It reports false when it is being closed.
func (c *jobConn) free() bool {
	release := c.release
	c.ctx, c.release = nil, nil
	return release == nil || release()
}

// dialJob makes one.
func (p *pool) dialJob(ctx context.Context, addr string) (*jobConn, error) {
	conn, err := p.dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &jobConn{countedConn: conn.(*countedConn)}
	c.lend(time.Now())
	if socket, ok := c.Conn.(syscall.Conn); ok {
		c.raw, _ = socket.SyscallConn()
		c.swaps = c.swap
	}
	return c, nil
}

// carries reports requests for carry.
func (p *pool) carries(req *http.Request) bool {
	return p.protocol == discovery.HTTP && (req.Body == nil || req.Body == http.NoBody) && req.Trailer == nil && canSwap
}

// carry is RoundTrip for a request without a body. fresh: not on a connection that has carried another.
func (p *pool) carry(ctx context.Context, req *http.Request, sent *sentBytes, fresh bool) (*http.Response, error) {
	for {
		res, err := p.try(ctx, req, sent, fresh)
		if !errors.Is(err, errNotSilent) {
			return res, err
		}
		sent.unsent()
	}
}

// try is carry on one connection. errNotSilent: on another.
func (p *pool) try(ctx context.Context, req *http.Request, sent *sentBytes, fresh bool) (*http.Response, error) {
	var conn *jobConn
	if !fresh {
		conn = p.idle.take()
	}
	reused := conn != nil
	if reused {
		conn.lend(time.Now())
	} else {
		if t := p.made.Load(); t != nil && p.isAlone() {
			t.CloseIdleConnections()
		}
		var err error
		if conn, err = p.dialJob(ctx, req.URL.Host); err != nil {
			return nil, err
		}
	}
	sent.gotConn(httptrace.GotConnInfo{Conn: conn.countedConn, Reused: reused})
	conn.ctx = ctx
	answer := &jobBody{pool: p, conn: conn, reader: readers.Get().(*bufio.Reader)}
	answer.reader.Reset(conn)
	res, err := conn.ask(ctx, req, answer.reader)
	if err != nil {
		answer.end(false, err)
		if ctx.Err() != nil {
			err = ctx.Err() // we closed it
		}
		return nil, err
	}
	answer.keep = !res.Close && res.StatusCode >= 200 // else it is no answer that HTTP knows, or the end of HTTP
	if res.Body == http.NoBody {
		answer.end(answer.keep, io.EOF)
		return res, nil
	}
	answer.body, res.Body = res.Body, answer
	return res, nil
}

// ask writes a request and reads the header of its answer. An error before its first byte is the connection's, as it is.
func (c *jobConn) ask(ctx context.Context, req *http.Request, reader *bufio.Reader) (*http.Response, error) {
	text := requestTexts.Get().(*bytes.Buffer)
	defer func() {
		if text.Cap() <= bufferSize {
			text.Reset()
			requestTexts.Put(text)
		}
	}()
	if err := writeRequest(text, req); err != nil {
		return nil, err
	}
	c.request, c.header = text.Bytes(), maxAnswerHeader
	defer func() { c.header = math.MaxInt64 }()
	if _, err := reader.Peek(1); err != nil {
		return nil, err
	}
	return readAnswer(ctx, reader, req)
}

// writeRequest is req.Write for a request without a body. That of net/http formats the first lines, which takes as long as all the
// rest; what is out of the ordinary is left to it.
func writeRequest(text *bytes.Buffer, req *http.Request) error {
	switch req.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodDelete:
	default:
		return req.Write(text) // some have a length, although it is 0
	}
	target, agents := req.URL.RequestURI(), req.Header["User-Agent"] // one, empty if there is to be none: so ReverseProxy makes it
	trace := httptrace.ContextClientTrace(req.Context())
	if len(agents) != 1 || !httpguts.ValidHeaderFieldValue(agents[0]) || agents[0] != trimSpace(agents[0]) || !isPlain(target) ||
		!isPlain(req.Host) || strings.ContainsAny(req.Host, "[]%/@") || !httpguts.ValidHostHeader(req.Host) || trace != nil && trace.WroteRequest != nil {
		return req.Write(text)
	}
	text.WriteString(req.Method)
	text.WriteByte(' ')
	text.WriteString(target)
	text.WriteString(" HTTP/1.1\r\nHost: ")
	text.WriteString(req.Host)
	if agents[0] != "" {
		text.WriteString("\r\nUser-Agent: ")
		text.WriteString(agents[0])
	}
	text.WriteString("\r\n")
	_ = req.Header.WriteSubset(text, writtenElsewhere) // a bytes.Buffer takes everything
	text.WriteString("\r\n")
	return nil
}

// writtenElsewhere are headers that are not written with the others; net/http has the same.
var writtenElsewhere = map[string]bool{"Host": true, "User-Agent": true, "Content-Length": true, "Transfer-Encoding": true, "Trailer": true}

// isPlain reports text of visible ASCII.
func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return s != ""
}

// readAnswer reads up to the first answer that is not 1xx; these go to ReverseProxy's hook like those of http.Transport.
// Their number is bounded by the size of all the headers.
func readAnswer(ctx context.Context, reader *bufio.Reader, req *http.Request) (*http.Response, error) {
	trace := httptrace.ContextClientTrace(ctx)
	for {
		res, err := http.ReadResponse(reader, req)
		if err != nil {
			return nil, err
		}
		if res.StatusCode < 100 || res.StatusCode >= 200 || res.StatusCode == http.StatusSwitchingProtocols {
			return res, nil
		}
		if trace != nil && trace.Got1xxResponse != nil {
			if err := trace.Got1xxResponse(res.StatusCode, textproto.MIMEHeader(res.Header)); err != nil {
				return nil, err
			}
		}
	}
}

// What is borrowed for as long as a request lasts: idle connections hold no buffers.
var (
	readers      = sync.Pool{New: func() any { return bufio.NewReader(nil) }}
	requestTexts = sync.Pool{New: func() any { return new(bytes.Buffer) }}
)

// jobBody is the body of an answer on a jobConn. Who has read it to its end has given the connection back.
type jobBody struct {
	body   io.ReadCloser
	pool   *pool
	conn   *jobConn
	reader *bufio.Reader
	keep   bool  // the job does
	over   error // what further reads return; nil: it is not
}

// Read is http.Response's.
func (b *jobBody) Read(p []byte) (int, error) {
	if b.over != nil {
		return 0, b.over
	}
	n, err := b.body.Read(p)
	if err != nil {
		b.end(b.keep && err == io.EOF, err)
	}
	return n, err
}

// Close gives the connection up if the body was not read to its end. That of net/http would read the rest.
func (b *jobBody) Close() error {
	b.end(false, http.ErrBodyReadAfterClose)
	return nil
}

func (b *jobBody) end(keep bool, why error) {
	if b.over != nil {
		return
	}
	b.over = why
	// What came after the answer was not asked for.
	if !b.conn.free() || !keep || b.conn.raw == nil || b.reader.Buffered() > 0 || !b.pool.idle.add(b.conn) {
		_ = b.conn.Close()
	}
	b.reader.Reset(nil)
	readers.Put(b.reader)
}
