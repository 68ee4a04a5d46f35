package serve

import (
	"log/slog"
	"net"
	"sync"
	"time"
)

// fullPeriod is how often at most the log says that the limit of connections is reached.
const fullPeriod = time.Minute

// limitListener has so many connections open at a time at most. Further ones wait in the system's queue until one ends.
// Unlike netutil.LimitListener's, its connections are still TCP: a tunnel closes their halves.
type limitListener struct {
	*net.TCPListener
	slots  chan struct{} // one element for each connection, and one for the Accept that waits
	closed chan struct{}
	close  func() error
	logger *slog.Logger
	told   time.Time // when the log said last that there are too many; only Accept touches it
}

// limitConnections wraps a listener; most is positive. One goroutine at a time may call Accept.
func limitConnections(l *net.TCPListener, most int, logger *slog.Logger) net.Listener {
	limited := &limitListener{TCPListener: l, slots: make(chan struct{}, most), closed: make(chan struct{}), logger: logger}
	limited.close = sync.OnceValue(func() error { close(limited.closed); return l.Close() })
	return limited
}

// Accept waits for a connection, and before that for its place.
func (l *limitListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	default:
		if now := time.Now(); now.Sub(l.told) > fullPeriod {
			l.told = now
			l.logger.Warn("as many connections as --max-connections allows, further ones wait", "connections", cap(l.slots))
		}
		select {
		case l.slots <- struct{}{}:
		case <-l.closed:
			return nil, net.ErrClosed
		}
	}
	conn, err := l.AcceptTCP()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitedConn{TCPConn: conn, release: sync.OnceFunc(func() { <-l.slots })}, nil
}

// Close ends the waiting too.
func (l *limitListener) Close() error { return l.close() }

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
