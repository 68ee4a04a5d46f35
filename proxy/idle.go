package proxy

import (
	"sync"
	"time"
)

// idleConns are a pool's connections that carry no request. The one that was used last is taken first, so that those that are
// not needed get old.
type idleConns struct {
	mu    sync.Mutex
	conns []*jobConn // the oldest first
	timer *time.Timer
	ticks bool // the timer does
	shut  bool // nobody has asked for one since they were closed, and what comes back is closed too
}

// take takes one; nil: there is none. The job may have given it up.
func (i *idleConns) take() *jobConn {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.shut = false
	last := len(i.conns) - 1
	if last < 0 {
		return nil
	}
	c := i.conns[last]
	i.conns[last] = nil
	i.conns = i.conns[:last]
	return c
}

// add keeps a connection for httpIdleConnTimeout. It reports false when there are enough, or none is wanted any more.
func (i *idleConns) add(c *jobConn) bool {
	c.since = time.Now()
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.shut || len(i.conns) >= maxIdleConnsPerEndpoint {
		return false
	}
	i.conns = append(i.conns, c)
	if !i.ticks {
		i.ticks = true
		i.tickAfter(httpIdleConnTimeout)
	}
	return true
}

func (i *idleConns) tickAfter(d time.Duration) {
	if i.timer == nil {
		i.timer = time.AfterFunc(d, i.tick)
		return
	}
	i.timer.Reset(d)
}

// tick closes those whose time is over.
func (i *idleConns) tick() {
	i.mu.Lock()
	old := 0
	for old < len(i.conns) && time.Since(i.conns[old].since) >= httpIdleConnTimeout {
		old++
	}
	over := i.cut(old)
	if i.ticks = len(i.conns) > 0; i.ticks {
		i.tickAfter(httpIdleConnTimeout - time.Since(i.conns[0].since))
	}
	i.mu.Unlock()
	closeAll(over)
}

// close closes them all, and those that come back until somebody asks for one; a timer may tick once more.
func (i *idleConns) close() {
	i.mu.Lock()
	i.shut = true
	all := i.cut(len(i.conns))
	i.mu.Unlock()
	closeAll(all)
}

// cut takes the n oldest out. The caller holds mu.
func (i *idleConns) cut(n int) []*jobConn {
	if n == 0 {
		return nil
	}
	over := i.conns[:n:n]
	i.conns = append([]*jobConn(nil), i.conns[n:]...)
	return over
}

func closeAll(conns []*jobConn) {
	for _, c := range conns {
		_ = c.Close()
	}
}
