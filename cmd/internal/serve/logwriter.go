package serve

import (
	"io"
	"log/slog"
	"sync"
	"time"
)

// Limits of a LogWriter.
const (
	logDelay = 50 * time.Millisecond // how long a line waits for others
	logMany  = 128 << 10             // bytes that wait for no others: the buffer stays in the processor's cache, and of a size that is used again
	logMost  = 4 << 20               // bytes that wait when nobody reads the log
	logKept  = 256 << 10             // bytes of a buffer that is used again
	logClose = time.Second           // how long the end waits for somebody to read
)

// LogWriter gathers what is logged and writes it together: the line of the access log costs a request no system call, and
// nobody waits for whoever reads the log, at the process's end neither. Each Write is whole lines. When the reader is so slow that 4 MiB
// wait, lines are left out, and how many is told when it reads again.
type LogWriter struct {
	w     io.Writer
	wake  chan struct{} // has a value when something begins to wait
	many  chan struct{} // has a value when logMany bytes wait
	hurry func()
	close func()
	haste chan struct{} // closed by Hurry
	end   chan struct{} // closed by Close
	ended chan struct{} // closed when nothing is written behind Close's back any more

	mu      sync.Mutex
	waiting []byte
	spare   []byte // what waiting was before; the writing goroutine's while it writes
	lost    int    // lines left out
	direct  bool   // after Close, when everything was written
}

// NewLogWriter returns a writer that writes to w, from one goroutine. Close ends it.
func NewLogWriter(w io.Writer) *LogWriter {
	l := &LogWriter{w: w, wake: make(chan struct{}, 1), many: make(chan struct{}, 1), haste: make(chan struct{}), end: make(chan struct{}), ended: make(chan struct{})}
	l.hurry = sync.OnceFunc(func() { close(l.haste) })
	l.close = sync.OnceFunc(func() { close(l.end) })
	go l.run()
	return l
}

// Write never fails: there is nobody to tell.
func (l *LogWriter) Write(lines []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.direct:
		return l.w.Write(lines)
	case len(l.waiting)+len(lines) > logMost:
		l.lost++
	default:
		before := len(l.waiting)
		l.waiting = append(l.waiting, lines...)
		if before == 0 {
			tell(l.wake)
		}
		if before < logMany && len(l.waiting) >= logMany {
			tell(l.many)
		}
	}
	return len(lines), nil
}

// tell leaves a value in a channel, unless it has one.
func tell(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Hurry makes lines wait for no others from now on: the process may be ended at any moment.
func (l *LogWriter) Hurry() { l.hurry() }

// Close writes what waits and returns; after a second, if nobody reads, all the same. What is written later is written at once.
func (l *LogWriter) Close() {
	l.close()
	select {
	case <-l.ended:
	case <-time.After(logClose):
	}
}

func (l *LogWriter) run() {
	defer close(l.ended)
	for {
		select {
		case <-l.wake:
		case <-l.end:
			for l.pass(true) {
			}
			return
		}
		select {
		case <-time.After(logDelay):
		case <-l.many:
		case <-l.haste:
		case <-l.end:
		}
		l.pass(false)
	}
}

// pass writes what waits, without the lock: whoever logs does not wait for it. It returns false when nothing waited; then, if it
// was the last pass, Write does without run.
func (l *LogWriter) pass(last bool) bool {
	l.mu.Lock()
	lines, lost := l.waiting, l.lost
	if len(lines) == 0 && lost == 0 {
		l.direct = last
		l.mu.Unlock()
		return false
	}
	l.waiting, l.spare, l.lost = l.spare[:0], nil, 0
	l.mu.Unlock()

	if len(lines) > 0 {
		_, _ = l.w.Write(lines) // there is nobody to tell
	}
	if lost > 0 {
		slog.New(slog.NewJSONHandler(l.w, nil)).Warn("the log was read too slowly: lines are missing", "lines", lost)
	}
	if cap(lines) <= logKept {
		l.mu.Lock()
		l.spare = lines
		l.mu.Unlock()
	}
	return true
}
