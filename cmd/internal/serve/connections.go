package serve

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"
)

// fullPeriod is how often at most the log says that the limit of connections is reached.
const fullPeriod = time.Minute

// limitListener counts connections, and has so many open at a time at most. Further ones wait in the system's queue until one ends.
// Unlike netutil.LimitListener's, its connections are still TCP: a tunnel closes their halves.
type limitListener struct {
	*net.TCPListener
	slots  chan struct{} // one element for each connection, and one for the Accept that waits; nil: no limit
	counts *connectionMetrics
	closed chan struct{}
	close  func() error
	logger *slog.Logger
	told   time.Time // when the log said last that there are too many; only Accept touches it
}

// limitConnections wraps a listener; with most 0 there is no limit. One goroutine at a time may call Accept.
func limitConnections(l *net.TCPListener, most int, counts *connectionMetrics, logger *slog.Logger) net.Listener {
	limited := &limitListener{TCPListener: l, counts: counts, closed: make(chan struct{}), logger: logger}
	if most > 0 {
		limited.slots = make(chan struct{}, most)
	}
	limited.close = sync.OnceValue(func() error { close(limited.closed); return l.Close() })
	return limited
}

// Accept waits for a connection, and before that for its place.
func (l *limitListener) Accept() (net.Conn, error) {
	if err := l.take(); err != nil {
		return nil, err
	}
	conn, err := l.AcceptTCP()
	if err != nil {
		l.giveBack()
		return nil, err
	}
	l.counts.open.Add(1)
	return &limitedConn{TCPConn: conn, release: sync.OnceFunc(func() { l.counts.open.Add(-1); l.giveBack() })}, nil
}

func (l *limitListener) take() error {
	if l.slots == nil {
		return nil
	}
	select {
	case l.slots <- struct{}{}:
		return nil
	default:
	}
	l.counts.waited.Add(1)
	if now := time.Now(); now.Sub(l.told) > fullPeriod {
		l.told = now
		l.logger.Warn("as many connections as --max-connections allows, further ones wait", "connections", cap(l.slots))
	}
	select {
	case l.slots <- struct{}{}:
		return nil
	case <-l.closed:
		return net.ErrClosed
	}
}

func (l *limitListener) giveBack() {
	if l.slots != nil {
		<-l.slots
	}
}

// Close ends the waiting too.
func (l *limitListener) Close() error { return l.close() }

// wait returns when no connection is open any more, or ctx ends.
func (m *connectionMetrics) wait(ctx context.Context) {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for m.open.Load() > 0 {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// limitedConn gives its place back when it is closed.
type limitedConn struct {
	*net.TCPConn
	release func()
}

// Close may be called more than once.
func (c *limitedConn) Close() error {
	defer c.release()
	return c.TCPConn.Close()
}
