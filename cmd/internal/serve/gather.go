package serve

import (
	"io"
	"log/slog"
	"sync"
)

// AccessLog is the log of requests: its lines are written by a goroutine of its own, so that no request waits for whoever reads
// the log, and those that come together are one write. No line is dropped: when too much waits to be written, requests wait too. Close
// it when no more requests are served. Whoever it is written to must be safe for concurrent use, as files are.
type AccessLog struct {
	*slog.Logger
	lines *gatherer
}

// NewAccessLog begins a log in the form that Config asks for.
func NewAccessLog(w io.Writer, cfg Config) *AccessLog {
	lines := newGatherer(w)
	return &AccessLog{Logger: slog.New(newHandler(lines, isTerminal(w), cfg)), lines: lines}
}

// Close returns when all lines are written. What is logged later is written at once.
func (a *AccessLog) Close() { a.lines.close() }

// maxGathered is how many bytes of lines wait before whoever brings more waits too.
const maxGathered = 1 << 20

// gatherer is an io.Writer that hands on what it is given from a goroutine of its own. Safe for concurrent use.
type gatherer struct {
	w     io.Writer
	ended chan struct{}

	mu       sync.Mutex // not held while w is written, before the end
	changed  sync.Cond  // gathered or closed has
	gathered []byte
	closed   bool
}

func newGatherer(w io.Writer) *gatherer {
	g := &gatherer{w: w, ended: make(chan struct{})}
	g.changed.L = &g.mu
	go g.run()
	return g
}

// Write keeps a copy of a line. It never fails: there is nobody to tell.
func (g *gatherer) Write(line []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.gathered) >= maxGathered && !g.closed {
		g.changed.Wait()
	}
	if g.closed {
		return g.w.Write(line)
	}
	if len(g.gathered) == 0 {
		g.changed.Broadcast()
	}
	g.gathered = append(g.gathered, line...)
	return len(line), nil
}

// run writes what has gathered, until the end.
func (g *gatherer) run() {
	defer close(g.ended)
	g.mu.Lock()
	defer g.mu.Unlock()
	var written []byte
	for {
		for len(g.gathered) == 0 && !g.closed {
			g.changed.Wait()
		}
		if len(g.gathered) == 0 {
			return
		}
		written, g.gathered = g.gathered, written[:0]
		g.changed.Broadcast()
		g.mu.Unlock()
		_, _ = g.w.Write(written)
		g.mu.Lock()
	}
}

func (g *gatherer) close() {
	g.mu.Lock()
	g.closed = true
	g.changed.Broadcast()
	g.mu.Unlock()
	<-g.ended
}
