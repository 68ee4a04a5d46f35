package proxy

import "net/netip"

// SPYT's client submits to a standalone cluster by plain HTTP, through the REST server of its master, and has no way to send
// credentials. An admin can open that one service to hosts that are trusted with it (Config.SparkRESTPeers).

// fromSparkPeer reports whether a request without credentials is one of these: its TCP peer is such a host, and it names,
// by the host that it was sent to, the REST server of a Spark cluster. That is what discovery's Spark publisher said, and not
// a name that an annotation can give. Whoever fails here gets what everybody without credentials gets.
//
// Whoever is let in runs code, so a browser on such a host must not be talked into it: what a page asked for carries an
// Origin or is marked by Sec-Fetch-Site, and a host outside of the base domain may be an attacker's name for our address. A
// peer that speaks for others is not the client, whoever that is.
func (p *Proxy) fromSparkPeer(x *exchange, name *naming) bool {
	if len(p.cfg.SparkRESTPeers) == 0 || !contains(p.cfg.SparkRESTPeers, peerAddr(x.in.RemoteAddr)) || p.rules.isTrusted(x.in.RemoteAddr) {
		return false
	}
	h := x.in.Header
	for _, header := range [...]string{"Origin", "X-Forwarded-For", "Forwarded"} {
		if _, ok := h[header]; ok {
			return false
		}
	}
	for _, site := range h["Sec-Fetch-Site"] {
		if site != "none" {
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
