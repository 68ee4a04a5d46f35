//go:build unix

package proxy

import (
	"errors"

	"golang.org/x/sys/unix"
)

// newPeek returns a function for syscall.RawConn.Read: it reports whether a socket has bytes, its end or an error to read.
// Asking the kernel first is needed: readiness that was signalled before the wait began would not be signalled again.
func newPeek() func(fd uintptr) bool {
	ask := []unix.PollFd{{Events: unix.POLLIN}}
	return func(fd uintptr) bool {
		ask[0].Fd = int32(fd)
		for {
			n, err := unix.Poll(ask, 0)
			if !errors.Is(err, unix.EINTR) {
				return n > 0 || err != nil
			}
		}
	}
}
