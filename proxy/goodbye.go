package proxy

import (
	"net"
	"time"
)

// wake interrupts both directions of a tunnel, also those that wait or hang. What is left is a little time to tell the
// caller; the job is told by the end of its connection.
func (t *tunnel) wake() {
	past := time.Unix(1, 0)
	_ = t.client.SetWriteDeadline(time.Now().Add(lastWordTime))
	_ = t.client.SetReadDeadline(past)
	_ = t.job.SetDeadline(past)
}

// goodbye tells the caller by a close frame why the tunnel ends, and reports whether it did. The goroutine that copies to the
// caller calls it, so nobody else writes. A frame that has begun must end first; if it does not end soon, there is no
// place for another.
func (t *tunnel) goodbye(why error) bool {
	c, _ := known(why)
	if c == nil || !t.finishFrame() || t.frames.closed {
		return false
	}
	if _, err := t.client.Write(closeFrame(c)); err != nil {
		return false
	}
	half, ok := t.client.(interface{ CloseWrite() error })
	return ok && half.CloseWrite() == nil
}

// finishFrame passes what is left of the frame that has begun, and not one byte of the next.
func (t *tunnel) finishFrame() bool {
	_ = t.job.SetReadDeadline(time.Now().Add(lastWordTime))
	buf := t.buffers.Get()
	defer t.buffers.Put(buf)
	for !t.frames.between() {
		n, err := t.job.Read(buf)
		n = t.frames.next(buf[:n])
		if _, failed := t.client.Write(buf[:n]); failed != nil || err != nil && !t.frames.between() {
			return false
		}
		t.x.bytesOut.Add(int64(n))
	}
	return true
}

// linger reads what the caller still sends, for a little while: a connection that is closed with unread bytes is reset, and
// the reset would overtake the close frame.
func (t *tunnel) linger() {
	_ = t.client.SetReadDeadline(time.Now().Add(lastWordTime))
	discard(t.client)
}

// discard reads with a buffer of its own: many tunnels end at a time.
func discard(conn net.Conn) {
	var buf [512]byte
	for {
		if _, err := conn.Read(buf[:]); err != nil {
			return
		}
	}
}
