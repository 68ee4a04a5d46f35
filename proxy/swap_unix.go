//go:build unix

package proxy

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// canSwap: sockets can be read and written without waiting.
const canSwap = true

// readNow reads from a socket without waiting. again: there is nothing yet.
func readNow(fd uintptr, b []byte) (n int, again bool, err error) {
	for {
		n, err := unix.Read(int(fd), b)
		switch {
		case err == nil && n > 0:
			return n, false, nil
		case err == nil:
			return 0, false, io.EOF
		case errors.Is(err, unix.EAGAIN):
			return 0, true, nil
		case !errors.Is(err, unix.EINTR):
			return 0, false, os.NewSyscallError("read", err)
		}
	}
}

// hasMore reports bytes to read, the end or an error. It may read some of them to b.
func hasMore(fd uintptr, b []byte) bool {
	_, again, _ := readNow(fd, b)
	return !again
}

// writeNow writes to a socket what it takes without waiting, which may be nothing.
func writeNow(fd uintptr, b []byte) (int, error) {
	n, err := unix.Write(int(fd), b)
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return 0, nil
	}
	return 0, os.NewSyscallError("write", err)
}
