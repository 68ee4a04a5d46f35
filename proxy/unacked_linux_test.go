package proxy

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"taskproxy/discovery"
)

// What tells a node that vanished from a job that is slow is asked of the kernel.
func TestConnectionsAreProbed(t *testing.T) {
	t.Parallel()
	for protocol, limit := range map[discovery.Protocol]int{discovery.HTTP: 0, discovery.GRPC: 120_000} {
		p := newTransport(newPool(newDialer(time.Second), protocol))
		if p.HTTP2 != nil && p.HTTP2.SendPingTimeout != 0 {
			t.Errorf("%s: HTTP/2 is configured, with pings perhaps: a paused job answers none", protocol)
		}
		l := listen(t)
		defer l.Close() // one that nobody has is closed with the garbage
		conn, err := p.DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		tcp := conn.(*countedConn).Conn
		if protocol == discovery.GRPC {
			tcp = tcp.(*gathered).Conn
		}
		raw, err := tcp.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		err = raw.Control(func(fd uintptr) {
			for _, option := range []struct{ level, name, want int }{
				{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1}, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 15}, {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 15},
				{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3}, {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, limit},
			} {
				if got, err := unix.GetsockoptInt(int(fd), option.level, option.name); err != nil || got != option.want {
					t.Errorf("%s: option %d is %d, %v, want %d", protocol, option.name, got, err, option.want)
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
