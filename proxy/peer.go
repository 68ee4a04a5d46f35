package proxy

import (
	"net/netip"
	"slices"
	"strings"
)

// SPYT's client submits to a standalone cluster by plain HTTP, through the REST server of its master, and has no way to send
// credentials. An admin can open that one service to hosts that are trusted with it (Config.SparkRESTPeers).

// fromSparkPeer reports whether a request without credentials is one of these: its TCP peer is such a host, and it names,
// by the host that it was sent to, the REST server of a Spark cluster. That is what discovery's Spark publisher said, and not
// a name that an annotation can give. Whoever fails here gets what everybody without credentials gets.
//
// Whoever is let in runs code, so a browser on such a host must not be talked into it: whatever looks like one is refused, and a
// host outside of the base domain may be an attacker's name for our address. A peer that speaks for others is not the client,
// whoever that is.
func (p *Proxy) fromSparkPeer(x *exchange, name *naming) bool {
	if len(p.cfg.SparkRESTPeers) == 0 || !contains(p.cfg.SparkRESTPeers, peerAddr(x.in.RemoteAddr)) || p.rules.isTrusted(x.in.RemoteAddr) {
		return false
	}
	for name, values := range x.in.Header {
		if speaksForOthers(name) || isBrowserHeader(name, values) {
			return false
		}
	}
	if name.shared() {
		return false
	}
	service, err := name.resolve(p.cfg.Table.Load())
	if err != nil || !service.SparkREST {
		return false
	}
	x.service, x.peer = service, true
	return true
}

// speaksForOthers reports headers that proxies add, in any spelling.
func speaksForOthers(name string) bool {
	for _, prefix := range [...]string{"x-forwarded", "x-envoy-", "x-original-", "x-amzn-", "x-azure-", "cf-", "cdn-"} {
		if hasFoldedPrefix(name, prefix) {
			return true
		}
	}
	for _, header := range [...]string{"forwarded", "via", "x-real-ip", "client-ip", "true-client-ip", "x-client-ip", "x-cluster-client-ip", "fastly-client-ip"} {
		if isFolded(name, header) {
			return true
		}
	}
	return false
}

// isBrowserHeader reports what browsers send and SPYT's client does not. Over plain http a page's GET may have neither an Origin
// nor fetch metadata; it has a language and the oldest of all lies.
func isBrowserHeader(name string, values []string) bool {
	switch name {
	case "Origin", "Referer", "Cookie", "Accept-Language", "Upgrade-Insecure-Requests":
		return true
	case "User-Agent":
		return slices.ContainsFunc(values, func(v string) bool { return strings.HasPrefix(v, "Mozilla/") })
	}
	return strings.HasPrefix(name, "Sec-")
}

func contains(prefixes []netip.Prefix, addr netip.Addr) bool {
	for _, prefix := range prefixes {
		if prefix.Contains(addr) {
			return true
		}
	}
	return false
}

// authSource is the word for the access log: by what the caller passed, or was identified at least.
func (x *exchange) authSource() string {
	switch {
	case x.peer:
		return "peer"
	case x.login != "":
		return x.source.String()
	}
	return ""
}
