package proxy

import (
	"io"
	"sync"
	"sync/atomic"
)

const (
	// bulkSize is the buffer for a body that is at least as large, in bytes: what a large body costs is the calls into the system.
	bulkSize = 256 << 10
	// maxBulk is how many of these are in use at a time. Callers who read slowly hold theirs for long; then the others
	// make do with buffers of the usual size.
	maxBulk = 64
)

// bulkPool lends large buffers. Safe for concurrent use.
type bulkPool struct {
	lent atomic.Int32
	pool sync.Pool // of *[bulkSize]byte
}

// get is a buffer, or nil when too many are in use.
func (b *bulkPool) get() *[bulkSize]byte {
	if b.lent.Add(1) > maxBulk {
		b.lent.Add(-1)
		return nil
	}
	if buf, ok := b.pool.Get().(*[bulkSize]byte); ok {
		return buf
	}
	return new([bulkSize]byte)
}

func (b *bulkPool) put(buf *[bulkSize]byte) {
	b.pool.Put(buf)
	b.lent.Add(-1)
}

// bulk is a large body of a job's answer. ReverseProxy reads bodies with buffers that it gets before anybody knows what for; so
// this one, when it is read, writes itself to the caller with a large buffer, and for the reader there is only its end.
type bulk struct {
	io.ReadCloser
	to      io.Writer
	buffers *bulkPool
}

// Read sends all of the body on. Whatever keeps it from that is the error.
func (b *bulk) Read(p []byte) (int, error) {
	buf := b.buffers.get()
	if buf == nil {
		return b.ReadCloser.Read(p)
	}
	defer b.buffers.put(buf)
	for {
		n, err := b.ReadCloser.Read(buf[:])
		if n > 0 {
			switch written, failed := b.to.Write(buf[:n]); {
			case failed != nil:
				return 0, failed
			case written < n:
				return 0, io.ErrShortWrite
			}
		}
		if err != nil {
			return 0, err
		}
	}
}
