package proxy

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"taskproxy/auth"
	"taskproxy/discovery"
)

// A browser adds the login cookie to a request whoever's page asks for it. The pages of jobs are strangers to each other, but
// all services are hosts of one site, so SameSite cookies keep none of them out; the browser's word about who asks does
// (Fetch Metadata, https://www.w3.org/TR/fetch-metadata/; Origin, RFC 6454).

// checkSite refuses what the login cookie authorizes and a stranger's page asked for. A stranger may lead a browser here (a
// link), because nothing comes back to its page; it may not call, post, embed or open a WebSocket. No strangers are the
// service's own pages, those of services of the same operation, and the origins that its annotation names. Credentials other
// than the cookie are never a browser's own idea, so nothing is asked of them. Where nobody needs any, the same holds for all:
// a stranger's page must not reach by its visitor's browser what it cannot reach itself.
//
// It comes after the service is known, which says who is a stranger, and before anybody asks whether the caller may have it:
// a stranger's page then learns the same, as fast, whether its visitor has access or not, and makes nobody ask the cluster.
func (p *Proxy) checkSite(x *exchange, snapshot *discovery.Snapshot) error {
	h := x.in.Header
	if origins := h["Origin"]; len(origins) == 1 && !x.shared && slices.Contains(x.service.Origins, origins[0]) {
		x.cors = origins[0]
	}
	if !p.rules.ambient(x) {
		return nil
	}
	for _, name := range [...]string{"Origin", "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest"} {
		if len(h[name]) > 1 {
			return causeCrossSite // no browser does that; which of them counts must not depend on who reads
		}
	}
	if _, ok := h["Sec-Fetch-Site"]; !ok {
		// An old browser, one on plain http, or none at all.
		origin, ok := h["Origin"]
		if !ok || !x.shared && p.rules.isOwnOrigin(x.in, origin[0]) || p.isFriend(x, snapshot, origin[0]) {
			return nil
		}
		return causeCrossSite
	}
	switch h["Sec-Fetch-Site"][0] {
	case "none": // an address that was typed, a bookmark
		return nil
	case "same-origin":
		if !x.shared {
			return nil
		}
		// Through a host that services share, this is the word of any of them.
	case "same-site", "cross-site":
	default:
		return causeCrossSite
	}
	if p.rules.isNavigation(x.in, x.service) {
		return nil
	}
	if origin, ok := h["Origin"]; ok && p.isFriend(x, snapshot, origin[0]) {
		return nil
	}
	return causeCrossSite
}

// ambient reports that what lets the caller in comes with whatever the browser sends: the login cookie or, where nobody is asked
// who they are, the browser's place in the network.
func (ru *rules) ambient(x *exchange) bool {
	return ru.open || x.source == auth.SourceCookie || x.source == auth.SourceSameOriginCookie
}

// isNavigation reports a request by which a browser goes somewhere: in a window of its own, or in a frame where somebody may
// frame the service. (Who may is for the browser to see to, by the policy that the answer carries: a frame's request does not
// name the page around it.)
func (ru *rules) isNavigation(r *http.Request, s *discovery.Service) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead || r.Header.Get("Sec-Fetch-Mode") != "navigate" || isPrefetch(r.Header) {
		return false
	}
	switch r.Header.Get("Sec-Fetch-Dest") {
	case "document":
		return true
	case "iframe", "frame":
		return ru.framed || len(s.Origins) > 0
	}
	return false
}

// isPrefetch reports that a page had its browser ask in advance: the visitor has gone nowhere, and may never. Whatever the header
// says counts as that: nobody else sends it.
func isPrefetch(h http.Header) bool {
	for _, name := range [...]string{"Sec-Purpose", "Purpose", "X-Purpose", "X-Moz"} {
		if _, ok := h[name]; ok {
			return true
		}
	}
	return false
}

// isFriend reports an origin that the service's annotation names, or that of a service of the same operation: the same
// author answers for both. null is the origin of nobody in particular.
func (p *Proxy) isFriend(x *exchange, snapshot *discovery.Snapshot, origin string) bool {
	if x.cors != "" {
		return true
	}
	scheme, host, ok := strings.Cut(origin, "://")
	if !ok || !p.rules.samePort(x.in, scheme, host) {
		return false
	}
	kind, label := p.rules.bases.Classify(host)
	if kind != discovery.HostService {
		return false
	}
	sibling := snapshot.Lookup(label)
	return sibling != nil && sibling.OperationID == x.service.OperationID
}

// isOwnOrigin reports the origin of the very host that the request is for.
func (ru *rules) isOwnOrigin(r *http.Request, origin string) bool {
	scheme, host, ok := strings.Cut(origin, "://")
	return ok && ru.samePort(r, scheme, host) && sameName(host, r.Host)
}

// samePort reports that an origin's port is the one that the request came to, and that it is not a plain http page which
// wants to speak for https. On another port of the same name may be another server. A Host without a port means the
// scheme's own, and so does an origin.
func (ru *rules) samePort(r *http.Request, scheme, host string) bool {
	own := ""
	switch scheme {
	case "http":
		own = "80"
		if ru.schemeOf(r) == "https" {
			return false
		}
	case "https":
		own = "443"
	default:
		return false
	}
	port := func(s string) string {
		if i := strings.LastIndexByte(s, ':'); i >= 0 && i > strings.LastIndexByte(s, ']') && i+1 < len(s) {
			return s[i+1:]
		}
		return own
	}
	return port(host) == port(r.Host)
}

// preflight answers a browser that asks, without credentials as always, whether another origin's page may call a service with
// more than a plain request. Only what the annotation names is ever answered; everybody else gets the same 401, whether there
// is such a service or not. A job is never asked: it could say yes to anybody, and the caller is not known yet. It reports
// whether it has answered.
func (p *Proxy) preflight(x *exchange, name *naming) bool {
	h := x.in.Header
	origin, method := h["Origin"], h["Access-Control-Request-Method"]
	if x.in.Method != http.MethodOptions || len(origin) != 1 || len(method) != 1 || name.shared() {
		return false
	}
	service, err := name.resolve(p.cfg.Table.Load())
	if err != nil || !slices.Contains(service.Origins, origin[0]) || !httpguts.ValidHeaderFieldName(method[0]) {
		return false
	}
	x.service, x.cors = service, origin[0]
	answer := x.w.Header()
	x.allowOrigin(answer)
	answer["Access-Control-Allow-Methods"] = method
	if names := headerNames(h["Access-Control-Request-Headers"]); names != "" {
		answer["Access-Control-Allow-Headers"] = []string{names}
	}
	answer["Access-Control-Max-Age"] = []string{preflightAge}
	answer["Vary"] = []string{"Origin, Access-Control-Request-Method, Access-Control-Request-Headers"}
	x.limitAnswer()
	x.w.WriteHeader(http.StatusNoContent)
	return true
}

// preflightAge is how long a browser may remember a preflight, in seconds. What follows is judged by itself all the same.
const preflightAge = "600"

// headerNames is a list of header names without what is none.
func headerNames(lists []string) string {
	var names []string
	for _, list := range lists {
		for name := range strings.SplitSeq(list, ",") {
			if name = trimSpace(name); httpguts.ValidHeaderFieldName(name) {
				names = append(names, name)
			}
		}
	}
	return strings.Join(names, ", ")
}

// allowOrigin lets the page of an origin that the annotation names read the answer, whatever the job says about that.
func (x *exchange) allowOrigin(h http.Header) {
	if x.cors != "" {
		h["Access-Control-Allow-Origin"] = []string{x.cors}
		h["Access-Control-Allow-Credentials"] = []string{"true"}
	}
}

// limitAnswer bounds the time that an answer of ours may take. Callers of whom nobody knows anything may pipeline requests and
// never read; HTTP/2 has limits of its own.
func (x *exchange) limitAnswer() {
	if x.in.ProtoMajor == 1 {
		_ = http.NewResponseController(x.w.ResponseWriter).SetWriteDeadline(time.Now().Add(ownAnswerTime))
	}
}

// sharedPolicy is for answers through a host that services share: a page there has an origin of its own, and runs nothing.
const sharedPolicy = "sandbox; frame-ancestors 'none'"

// browserVary is by what checkSite tells requests for the same address apart.
const browserVary = "Sec-Fetch-Site, Sec-Fetch-Mode, Sec-Fetch-Dest"

// protect adds to a job's answer what keeps strangers' pages away from it.
//
// The job's own Access-Control headers stay, except towards an origin that the annotation names. They open nothing that
// the cookie authorizes: "*" does not go with credentials, and whom a job answers by name was refused before it was asked.
func (ru *rules) protect(status int, h http.Header, x *exchange) {
	x.allowOrigin(h)
	if x.shared {
		h["Cache-Control"] = []string{"no-store"}
		h["Vary"] = append(h["Vary"], HeaderID)
		h["Content-Security-Policy"] = append(h["Content-Security-Policy"], sharedPolicy)
		return
	}
	if status == http.StatusNotModified {
		return // its headers would replace those of the stored answer, which has all this, and the job's own among them
	}
	if ru.ambient(x) {
		// All services share a browser's cache as they share the site. Without this, a page could take what its visitor has
		// read elsewhere, or what it made the browser go to, out of the cache, and nobody would be asked.
		x.add(h, "Vary", browserVary)
	}
	if len(x.service.Origins) > 0 {
		h["Vary"] = append(h["Vary"], "Origin")
	}
	if !x.grpc {
		// Beside a policy of the job's own: what counts is what both allow. Browsers that read this ignore X-Frame-Options,
		// so also where that says DENY the service's own pages may frame it, and whom its author or the admin has named.
		x.add(h, "Content-Security-Policy", ru.framePolicy(x.service))
	}
}

// framePolicy says who may frame a service.
func (ru *rules) framePolicy(s *discovery.Service) string {
	if len(s.Origins) == 0 {
		return ru.frameAncestors
	}
	return ru.frameAncestors + " " + strings.Join(s.Origins, " ")
}
