package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http/httpguts"
)

// errSwitched is not a failure: the job agreed to change the protocol, and the exchange goes on as a tunnel.
var errSwitched = errors.New("switched to a tunnel")

// upgraded is the job's end of a tunnel before the caller's end is there.
type upgraded struct {
	conn   net.Conn
	reader *bufio.Reader // may hold bytes that came with the 101
	header http.Header   // of the 101
}

// handshake is an attempt (balance.go) at a WebSocket handshake. On a connection of its own it writes the request, which
// is rewritten like every other, and reads the answer. A 101 ends in errSwitched with x.upgraded set; any other answer is an
// ordinary one.
func (b *balancer) handshake(ctx context.Context, x *exchange, req *http.Request, sent *sentBytes) (*http.Response, error) {
	conn, err := b.dialer.DialContext(ctx, "tcp", req.URL.Host)
	if err != nil {
		return nil, err
	}
	sent.gotConn(httptrace.GotConnInfo{Conn: conn})
	// A caller that leaves, or whoever ends the stream, ends the waiting.
	release := context.AfterFunc(ctx, func() { conn.Close() })
	res, err := x.shakeHands(ctx, req, conn)
	if c, ok := conn.(*countedConn); ok {
		sent.spoke = c.spoke.Load()
	}
	if err == nil {
		res.Body = &connBody{ReadCloser: res.Body, conn: conn, release: release}
		return res, nil
	}
	if errors.Is(err, errSwitched) && release() {
		return nil, err
	}
	release()
	conn.Close()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return nil, err
}

func (x *exchange) shakeHands(ctx context.Context, req *http.Request, conn net.Conn) (*http.Response, error) {
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	limited := &io.LimitedReader{R: conn, N: maxAnswerHeader}
	reader := bufio.NewReader(limited)
	if _, err := reader.Peek(1); err != nil {
		return nil, err // as it is: the connection broke before an answer began
	}
	res, err := readAnswer(ctx, reader, req)
	if err != nil {
		return nil, &Error{cause: causeBroken, Err: fmt.Errorf("read the answer to a handshake: %w", broken(err))}
	}
	limited.N = 1<<63 - 1
	x.watch.touch()
	if res.StatusCode != http.StatusSwitchingProtocols {
		removeHopByHop(res.Header)
		return res, nil
	}
	if !httpguts.HeaderValuesContainsToken(res.Header["Connection"], "upgrade") ||
		!httpguts.HeaderValuesContainsToken(res.Header["Upgrade"], "websocket") || len(res.Header["Sec-Websocket-Accept"]) != 1 {
		return nil, &Error{cause: causeBadAnswer, Err: errors.New("101 Switching Protocols that does not confirm a WebSocket")}
	}
	removeHopByHop(res.Header)
	// What follows is a tunnel; a length has no meaning there.
	delete(res.Header, "Content-Length")
	if counted, ok := conn.(*countedConn); ok {
		conn = counted.Conn // nothing is retried any more, and a plain TCP connection has halves to close
	}
	x.upgraded = &upgraded{conn: conn, reader: reader, header: res.Header}
	return nil, errSwitched
}

// removeHopByHop does for answers that we read ourselves what ReverseProxy does for the others.
func removeHopByHop(h http.Header) {
	for _, list := range h["Connection"] {
		for name := range bytes.SplitSeq([]byte(list), []byte{','}) {
			h.Del(trimSpace(string(name)))
		}
	}
	for _, name := range []string{"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Te", "Trailer", "Transfer-Encoding", "Upgrade"} {
		delete(h, name)
	}
}

// connBody closes the connection with the body, of which net/http's own Close would read the rest.
type connBody struct {
	io.ReadCloser
	conn    net.Conn
	release func() bool
}

func (b *connBody) Close() error {
	b.release()
	return b.conn.Close()
}

// tunnel is an upgraded connection: the caller's end, the job's end, and what goes between them.
type tunnel struct {
	x           *exchange
	client, job net.Conn
	buffers     *bufferPool
	frames      frames // of what goes to the caller
}

// tunnel takes over the caller's connection and hands it to a goroutine of its own. The handler returns, and with it goes what net/http
// holds for a connection: its buffers, the request's stack.
func (p *Proxy) tunnel(ctx context.Context, x *exchange, open prometheus.Gauge) error {
	job := x.upgraded
	if !p.list(x, true) {
		job.conn.Close()
		return causeClosing
	}
	client, buffered, err := x.w.Hijack()
	if err != nil {
		job.conn.Close()
		return &Error{cause: causeInternal, Err: fmt.Errorf("take over the caller's connection: %w", err)}
	}
	p.rules.cleanAnswer(job.header, x)
	p.rules.pin(job.header, x)
	early := drain(buffered.Reader)
	x.w.status = http.StatusSwitchingProtocols
	x.tunnelled, x.finished = true, true
	x.watch.mu.Lock()
	x.w.ResponseWriter = nil
	x.watch.mu.Unlock()
	x.in.Header = nil
	t := &tunnel{x: x, client: client, job: job.conn, buffers: p.engine.BufferPool.(*bufferPool)}
	go func() {
		defer p.end(x)
		defer p.leave(x, open)
		p.closeTunnel(ctx, x, t.carry(ctx, early))
	}()
	return nil
}

// carry passes the job's 101 on, and copies both ways until both sides are done, one fails, or ctx ends. early is what the caller
// sent with the handshake.
func (t *tunnel) carry(ctx context.Context, early []byte) error {
	defer t.job.Close()
	defer t.client.Close()
	woken := make(chan struct{})
	defer context.AfterFunc(ctx, func() { t.wake(); close(woken) })()

	job := t.x.upgraded
	_, err := t.client.Write(switching(job.header, t.x.id))
	if err == nil && len(early) > 0 {
		_, err = t.job.Write(early)
		t.x.bytesIn.Add(int64(len(early)))
	}
	if err == nil {
		early = drain(job.reader)
		job.reader, job.header = nil, nil // a tunnel may last for days
		_, err = t.client.Write(early)
		t.toClient(early)
	}
	if err == nil {
		t.x.watch.touch()
		t.pump(ctx, woken)
	}
	return err
}

// closeTunnel notes why a tunnel ended, if for another reason than that its ends were done.
func (p *Proxy) closeTunnel(ctx context.Context, x *exchange, err error) {
	if ctx.Err() != nil {
		x.err = context.Cause(ctx)
		x.failure, _ = known(x.err)
		return
	}
	x.err = err
}

// drain takes what a reader has buffered, without reading on.
func drain(r *bufio.Reader) []byte {
	b, _ := r.Peek(r.Buffered()) // what is there can be had
	return bytes.Clone(b)
}

// switching is the 101 for the caller.
func switching(h http.Header, id string) []byte {
	h["Connection"], h["Upgrade"], h["X-Request-Id"] = []string{"Upgrade"}, []string{"websocket"}, []string{id}
	var b bytes.Buffer
	b.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	_ = h.Write(&b) // a bytes.Buffer takes everything; line breaks in values become spaces
	b.WriteString("\r\n")
	return b.Bytes()
}

// pump copies both ways until both directions have ended. When ctx ends it says goodbye to the caller; woken is closed when
// wake is done.
func (t *tunnel) pump(ctx context.Context, woken <-chan struct{}) {
	var wg sync.WaitGroup
	wg.Go(func() { t.copyHalf(ctx, t.job, t.client, t.toJob) })
	if t.copyHalf(ctx, t.client, t.job, t.toClient) {
		<-woken
		said := t.goodbye(context.Cause(ctx))
		wg.Wait()
		if said {
			t.linger()
		}
	}
	wg.Wait()
}

func (t *tunnel) toJob(b []byte) {
	t.x.bytesIn.Add(int64(len(b)))
	t.x.watch.touch()
}

func (t *tunnel) toClient(b []byte) {
	t.x.bytesOut.Add(int64(len(b)))
	t.x.watch.touch()
	t.frames.pass(b)
}

// copyHalf copies one direction. At its end it closes the other side's half, so that what still comes back may come; when
// it fails it closes everything; when ctx ends it touches nothing and reports true. It holds a buffer only while bytes are
// there: most tunnels are silent most of the time.
func (t *tunnel) copyHalf(ctx context.Context, dst, src net.Conn, passed func([]byte)) (interrupted bool) {
	wait := newWaiter(src)
	for ctx.Err() == nil {
		var failed error
		err := wait.readable()
		if ctx.Err() != nil {
			return true
		}
		if err == nil {
			err, failed = t.copyOnce(dst, src, passed)
		}
		switch {
		case err == nil && failed == nil:
			continue
		case err != nil && ctx.Err() != nil && !errors.Is(err, io.EOF):
			return true
		case failed == nil && errors.Is(err, io.EOF):
			if half, ok := dst.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
				return false
			}
		}
		dst.Close()
		src.Close()
		return false
	}
	return true
}

// copyOnce moves what one read gives. It returns what is wrong with src, and what with dst.
func (t *tunnel) copyOnce(dst io.Writer, src io.Reader, passed func([]byte)) (err, failed error) {
	buf := t.buffers.Get()
	defer t.buffers.Put(buf)
	n, err := src.Read(buf)
	if n > 0 {
		if _, failed = dst.Write(buf[:n]); failed == nil {
			passed(buf[:n])
		}
	}
	return err, failed
}

// waiter waits until a connection has something to read, without holding a buffer for it.
type waiter struct {
	raw  syscall.RawConn // nil: cannot wait that way, for example under TLS; then the read itself waits
	peek func(fd uintptr) bool
}

func newWaiter(c net.Conn) *waiter {
	w := new(waiter)
	if sc, ok := c.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			w.raw, w.peek = raw, newPeek()
		}
	}
	return w
}

// readable returns when a read would not block, or would fail.
func (w *waiter) readable() error {
	if w.raw == nil || w.peek == nil {
		return nil
	}
	return w.raw.Read(w.peek)
}
