package discovery

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// place is where somebody wrote the address of a service: in an annotation, or as the name of a node in Cypress. The zero
// place is nowhere: then the cluster gives the port.
type place struct {
	at hostPort // as an annotation has it

	// directory is a discovery directory of SPYT's in Cypress, and entry the node in it whose only child is named by the
	// address.
	directory, entry string

	// task is whose jobs the address can be of; empty: any of the operation's.
	task string
}

func (p place) isZero() bool { return p == place{} }

// hostPort is an address as somebody wrote it, in a form in which equal ones are equal. It says nothing yet about who is there.
type hostPort struct {
	host string // lower-case, without a trailing dot; IP addresses in their shortest form, without brackets and zone
	port uint16 // never 0 unless host is empty
}

func (a hostPort) String() string { return net.JoinHostPort(a.host, strconv.Itoa(int(a.port))) }

// maxAddress is the longest address that is looked at, in bytes.
const maxAddress = 1024

// parseHostPort reads host:port; IPv6 hosts are bracketed.
func parseHostPort(s string) (hostPort, bool) {
	if len(s) > maxAddress {
		return hostPort{}, false
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil || strings.HasPrefix(s, "[") != strings.Contains(host, ":") {
		return hostPort{}, false
	}
	return newHostPort(host, port)
}

// parseWebUI reads the URL of a Spark page. It is an http URL of a host and, if it is not 80, a port; a path means nothing,
// because the whole host is published. problem is the end of a sentence about the URL; empty when it could be read.
func parseWebUI(s string) (a hostPort, problem string) {
	const want = "it must be a URL such as http://host:27001"
	if len(s) > maxAddress {
		return hostPort{}, want
	}
	u, err := url.Parse(s)
	if err != nil || u.Opaque != "" || u.User != nil {
		return hostPort{}, want
	}
	switch u.Scheme {
	case "http":
	case "https":
		return hostPort{}, "jobs are spoken to over http: switch Spark's SSL off, the proxy has its own"
	default:
		return hostPort{}, want
	}
	port := u.Port()
	if port == "" && !strings.HasSuffix(u.Host, ":") {
		port = "80"
	}
	if strings.HasPrefix(u.Host, "[") != strings.Contains(u.Hostname(), ":") {
		return hostPort{}, want
	}
	a, ok := newHostPort(u.Hostname(), port)
	if !ok {
		return hostPort{}, want
	}
	return a, ""
}

func newHostPort(host, port string) (hostPort, bool) {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return hostPort{}, false
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return hostPort{normal(ip).String(), uint16(n)}, true
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if !isHostName(host) {
		return hostPort{}, false
	}
	return hostPort{host, uint16(n)}, true
}

// normal is an IP address in the one form in which addresses are compared: IPv4 in IPv6 is IPv4, and a zone, which only
// means something to the machine that wrote it, is none.
func normal(ip netip.Addr) netip.Addr { return ip.Unmap().WithZone("") }

// isHostName refuses what resolvers take for something else than a name: 127.1 and 0x7f000001 are addresses to some.
func isHostName(s string) bool {
	if len(s) > 253 {
		return false
	}
	labels := strings.Split(s, ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 || strings.ContainsFunc(label, func(c rune) bool {
			return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_'
		}) {
			return false
		}
	}
	last := labels[len(labels)-1]
	return !strings.HasPrefix(last, "0x") && strings.Trim(last, "0123456789") != ""
}

// PortRange is the ports from First to Last, both included.
type PortRange struct{ First, Last uint16 }

func (r PortRange) String() string {
	if r.First == r.Last {
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// PortRanges is a set of ports.
type PortRanges []PortRange

// ParsePortRanges reads ranges as "27000-27999" or "27001,27080-27099". The empty string is no port at all: the result is
// empty, but not nil.
func ParsePortRanges(s string) (PortRanges, error) {
	ranges := PortRanges{}
	if strings.TrimSpace(s) == "" {
		return ranges, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err != nil || err2 != nil || from < 1 || to < from {
			return nil, fmt.Errorf("%q is no range of ports such as 27000-27999", part)
		}
		ranges = append(ranges, PortRange{uint16(from), uint16(to)})
	}
	return ranges, nil
}

// String is what ParsePortRanges reads.
func (rs PortRanges) String() string {
	parts := make([]string, len(rs))
	for i, r := range rs {
		parts[i] = r.String()
	}
	return strings.Join(parts, ",")
}

func (rs PortRanges) has(port uint16) bool {
	return slices.ContainsFunc(rs, func(r PortRange) bool { return r.First <= port && port <= r.Last })
}
