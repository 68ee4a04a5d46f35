package proxy

import (
	"net/http"
	"net/netip"
	"strings"
)

// callerAddr is the address that a request's look-ups are charged to: the peer's or, if an admin trusts the peer, the
// right-most one in X-Forwarded-For that is not trusted itself. What stands further left is the caller's own invention. It
// is no proof of anything, and decides nothing but whose turn it is.
//
// What is no address there ends the search: the last one that somebody trusted vouched for counts. Invalid if the peer has
// none.
func (ru *rules) callerAddr(r *http.Request) netip.Addr {
	addr := peerAddr(r.RemoteAddr)
	lines := r.Header["X-Forwarded-For"]
	for i := len(lines) - 1; i >= 0; i-- {
		for rest, more := lines[i], true; more; {
			if !ru.isTrustedAddr(addr) {
				return addr
			}
			var entry string
			if comma := strings.LastIndexByte(rest, ','); comma >= 0 {
				rest, entry = rest[:comma], rest[comma+1:]
			} else {
				entry, more = rest, false
			}
			next := forwardedAddr(strings.Trim(entry, " \t"))
			if !next.IsValid() {
				return addr
			}
			addr = next
		}
	}
	return addr
}

// forwardedAddr reads an entry of X-Forwarded-For: an IP address; some proxies add the port, and then IPv6 has brackets.
func forwardedAddr(s string) netip.Addr {
	if inner, ok := strings.CutPrefix(s, "["); ok && strings.HasSuffix(inner, "]") {
		s = inner[:len(inner)-1]
		if !strings.Contains(s, ":") {
			return netip.Addr{}
		}
	}
	addr, err := netip.ParseAddr(s)
	if err != nil {
		return peerAddr(s)
	}
	return addr.Unmap().WithZone("")
}
