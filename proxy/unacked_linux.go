package proxy

import (
	"net"

	"golang.org/x/sys/unix"
)

// limitUnacked ends a connection when what was sent is not acknowledged within unackedLimit (TCP_USER_TIMEOUT, RFC 5482).
// A connection that cannot be told so lasts for as long as the kernel likes, a quarter of an hour.
func limitUnacked(conn net.Conn) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unackedLimit.Milliseconds()))
		})
	}
}
