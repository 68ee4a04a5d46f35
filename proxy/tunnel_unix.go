//go:build unix

package proxy

import (
	"errors"

	"golang.org/x/sys/unix"
)

// newPeek returns a function for syscall.RawConn.Read: it reports whether a socket has bytes, its end or an error to read.
// Asking the kernel first is needed: readiness that was signalled before the wait began would not be signalled again.
func newPeek() func(fd uintptr) bool {
	one := make([]byte, 1)
	return func(fd uintptr) bool {
		for {
			_, _, err := unix.Recvfrom(int(fd), one, unix.MSG_PEEK|unix.MSG_DONTWAIT)
			if !errors.Is(err, unix.EINTR) {
				return !errors.Is(err, unix.EAGAIN)
			}
		}
	}
}
