package proxy

import (
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"

	"taskproxy/auth"
	"taskproxy/discovery"
)

// UserHeader tells a job who is calling. It is information, not proof: whoever can dial the node can send it.
const UserHeader = "X-Yt-Taskproxy-User"

// rules say what crosses the proxy. They are fixed when the Proxy is made.
type rules struct {
	bases   discovery.Bases
	cookie  string // the cluster's login cookie; empty: none
	open    bool   // nobody is asked who they are
	trusted []netip.Prefix
	scheme  string // what jobs read as X-Forwarded-Proto; empty: the connection's
	// Users, and operation aliases without their "*", whose jobs may see credentials; nil: none. They are two sets: an alias
	// is its operation's author's to choose, and must not pass for a user.
	trustedUsers, trustedAliases map[string]bool

	onlyAffinity bool // of the cookies that no job gets, only ours is meant: see confided

	framed         bool   // an admin lets other origins frame every service
	frameAncestors string // a policy of one directive
}

func newRules(cfg Config) rules {
	ru := rules{bases: cfg.Bases, cookie: cfg.AuthCookieName, open: cfg.AuthDisabled, trusted: cfg.TrustedProxies, scheme: cfg.PublicScheme}
	ru.framed = len(cfg.FrameAncestors) > 0
	ru.frameAncestors = strings.Join(append([]string{"frame-ancestors 'self'"}, cfg.FrameAncestors...), " ")
	if len(cfg.ForwardCredentialsTo) > 0 {
		ru.trustedUsers, ru.trustedAliases = make(map[string]bool), make(map[string]bool)
	}
	for _, name := range cfg.ForwardCredentialsTo {
		if alias, ok := strings.CutPrefix(name, "*"); ok {
			ru.trustedAliases[alias] = true
		} else {
			ru.trustedUsers[name] = true
		}
	}
	return ru
}

// confides reports whether an admin trusts the operation behind s with its callers' credentials.
func (ru *rules) confides(s *discovery.Service) bool {
	alias, ok := strings.CutPrefix(s.Alias, "*")
	return ru.trustedUsers[s.User] || ok && ru.trustedAliases[alias]
}

// rewrite makes out what the job may see of x.in. httputil.ReverseProxy (and nobody else) has cloned it and has removed
// what belongs to the connection; that comes first, so that no caller can name a header of ours in Connection and have it
// removed, and what we set comes last.
func (ru *rules) rewrite(out *http.Request, x *exchange) {
	in := x.in
	trusted := ru.isTrusted(in.RemoteAddr)
	confides := ru.confides(x.service)
	x.confides = confides
	for name := range out.Header {
		if drops(name, confides, trusted) {
			delete(out.Header, name)
		}
	}
	if !confides {
		ru.stripCredentials(out.Header, x.source, x.credentials.Secret)
	} else {
		confided.stripCookies(out.Header, "")
	}
	out.Trailer = passingTrailers(in, confides)
	if len(out.Trailer) > 0 {
		out.ContentLength = -1 // HTTP/1.1 has trailers in chunked bodies only
	}
	ru.rewriteURL(out.URL, in.URL)

	h := out.Header
	ru.setForwarded(h, x, trusted)
	h["X-Request-Id"] = x.one(x.id)
	if x.login != "" {
		h[UserHeader] = x.one(x.login)
	}
}

// drops reports headers and trailers that never reach a job, by name, in every spelling that a CGI-like environment would
// read as that name.
func drops(name string, confides, trustedPeer bool) bool {
	switch name[0] | 0x20 {
	case 'x', 'f', 'h': // the names below begin with nothing else
	default:
		return false
	}
	switch {
	case hasFoldedPrefix(name, "x-yt-taskproxy-"), isFolded(name, "http2-settings"):
		return true
	case hasFoldedPrefix(name, "x-yt-"), hasFoldedPrefix(name, "x-ya-"), isFolded(name, "x-csrf-token"):
		return !confides
	case !confides && isFrontToken(name):
		return true
	case hasFoldedPrefix(name, "x-forwarded-"), isFolded(name, "x-real-ip"), isFolded(name, "forwarded"):
		return !trustedPeer || strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-") != ""
	case isFolded(name, "x-request-id"):
		return true
	}
	return false
}

// isFrontToken reports headers in which a proxy in front that logs users in, such as oauth2-proxy or a cloud's load balancer,
// passes their tokens on. It is meant for us at most, also when the peer is trusted.
func isFrontToken(name string) bool {
	for _, token := range [...]string{"x-forwarded-access-token", "x-forwarded-id-token", "x-forwarded-refresh-token", "x-forwarded-authorization",
		"x-goog-iap-jwt-assertion"} {
		if isFolded(name, token) {
			return true
		}
	}
	return hasFoldedPrefix(name, "x-auth-request-") || hasFoldedPrefix(name, "x-amzn-oidc-") || hasFoldedPrefix(name, "x-ms-token-")
}

// stripCredentials removes what a job could use to act as the caller, and nothing else. A Bearer token is the service's own
// business if the caller was identified by something else that came first.
func (ru *rules) stripCredentials(h http.Header, source auth.Source, secret string) {
	keepBearer := source == auth.SourceExplicit || source == auth.SourceSameOriginCookie
	if values, ok := h["Authorization"]; ok {
		replace(h, "Authorization", edit(values, func(v string) (string, bool) {
			return v, !isClusterScheme(v, keepBearer)
		}))
	}
	ru.stripCookies(h, secret)
}

func (ru *rules) stripCookies(h http.Header, secret string) {
	if values, ok := h["Cookie"]; ok {
		replace(h, "Cookie", edit(values, func(v string) (string, bool) { return ru.stripCookie(v, secret) }))
	}
}

func replace(h http.Header, name string, values []string) {
	if len(values) == 0 {
		delete(h, name)
		return
	}
	h[name] = values
}

// isClusterScheme reports an Authorization value that means something to the cluster or to the network around it, in every
// spelling that a reader of headers could take for that: "OAuth" and a tab, no space at all, in quotes, or behind another
// scheme's value in a list. A scheme that merely begins so ("OAuth2") goes with them.
func isClusterScheme(v string, keepBearer bool) bool {
	for part := range strings.SplitSeq(v, ",") {
		part = strings.TrimLeftFunc(part, func(r rune) bool { return r >= utf8.RuneSelf || !isAlnum(byte(r)) })
		for _, scheme := range [...]string{"OAuth", "Bearer", "Negotiate", "NTLM"} {
			if _, ok := cutPrefixFold(part, scheme); ok && (scheme != "Bearer" || !keepBearer) {
				return true
			}
		}
	}
	return false
}

// passingTrailers announces the request trailers that may pass; their values come with the body's end (requestBody). A
// chunked HTTP/1.1 body can bring some that nobody announced: an empty map makes room for them.
func passingTrailers(in *http.Request, confides bool) http.Header {
	if in.Trailer == nil && (in.ContentLength >= 0 || in.ProtoMajor != 1) {
		return nil
	}
	passing := make(http.Header, len(in.Trailer))
	for name := range in.Trailer {
		if trailerPasses(name, confides) {
			passing[name] = nil
		}
	}
	return passing
}

// trailerPasses refuses everything that is dropped as a header, cookies, and what RFC 9110, section 6.5.1 forbids in
// trailers: framing, routing and credentials.
func trailerPasses(name string, confides bool) bool {
	return httpguts.ValidHeaderFieldName(name) && httpguts.ValidTrailerHeader(name) && name != "Cookie" && !drops(name, confides, false)
}

// validValues reports values that HTTP/2 could carry. HTTP/1.1 callers can put others into trailers, which net/http does not
// look at, and one would end the stream to a gRPC job as if the job had broken it.
func validValues(values []string) bool {
	return !slices.ContainsFunc(values, func(v string) bool { return !httpguts.ValidHeaderFieldValue(v) })
}

// rewriteURL keeps path and query byte for byte. net/url would re-encode a path with bytes that it does not like, and decode
// %2F on the way; httputil.ReverseProxy rewrites queries that it cannot parse. Only bytes that no URI may contain are
// percent-encoded, which also keeps a space in an HTTP/2 :path out of an HTTP/1.1 request line. The URL's host is the
// balancer's to set.
func (ru *rules) rewriteURL(out, in *url.URL) {
	out.Scheme, out.User, out.Opaque, out.Fragment, out.RawFragment = "http", nil, "", "", ""
	out.Path, out.RawPath = in.Path, in.RawPath
	if in.RawPath != "" {
		out.RawPath = escapeForbidden(in.RawPath)
	}
	out.RawQuery, out.ForceQuery = escapeForbidden(in.RawQuery), in.ForceQuery
}

// escapeForbidden percent-encodes what RFC 3986 has no place for. Square brackets stay: browsers send them raw in queries,
// every server reads them, and net/url lets them pass.
func escapeForbidden(s string) string {
	clean := 0
	for clean < len(s) && !isForbidden(s[clean]) {
		clean++
	}
	if clean == len(s) {
		return s
	}
	const hex = "0123456789ABCDEF"
	b := make([]byte, 0, len(s)+16)
	for i := range len(s) {
		if c := s[i]; isForbidden(c) {
			b = append(b, '%', hex[c>>4], hex[c&15])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

func isForbidden(c byte) bool {
	return c <= ' ' || c >= 0x7f || strings.IndexByte("\"<>\\^`{|}", c) >= 0
}

// setForwarded tells the job how it was reached. What the peer says about that counts only if an admin trusts the peer.
func (ru *rules) setForwarded(h http.Header, x *exchange, trusted bool) {
	in := x.in
	proto, host, forwardedFor := ru.schemeOf(in), in.Host, peerText(in.RemoteAddr)
	if trusted {
		if prior := strings.Join(in.Header["X-Forwarded-For"], ", "); prior != "" {
			forwardedFor = prior + ", " + forwardedFor
		}
		if f := in.Header.Get("X-Forwarded-Host"); f != "" {
			host = f
		}
	}
	x.setOrDelete(h, "X-Forwarded-For", forwardedFor)
	x.setOrDelete(h, "X-Forwarded-Host", host)
	x.setOrDelete(h, "X-Forwarded-Proto", proto)
}

// schemeOf is the scheme by which the caller reached us, as far as it is known.
func (ru *rules) schemeOf(r *http.Request) string {
	if ru.isTrusted(r.RemoteAddr) {
		if p := r.Header.Get("X-Forwarded-Proto"); p == "http" || p == "https" {
			return p
		}
	}
	switch {
	case ru.scheme != "":
		return ru.scheme
	case r.TLS != nil:
		return "https"
	}
	return "http"
}

func (x *exchange) setOrDelete(h http.Header, name, value string) {
	if value == "" {
		delete(h, name)
		return
	}
	h[name] = x.one(value)
}

// isTrusted reports whether the peer of a connection may say whom it speaks for.
func (ru *rules) isTrusted(remote string) bool {
	return len(ru.trusted) > 0 && ru.isTrustedAddr(peerAddr(remote))
}

func (ru *rules) isTrustedAddr(addr netip.Addr) bool {
	for _, prefix := range ru.trusted {
		if prefix.Contains(addr) {
			return true
		}
	}
	return false
}

// peerAddr is the IP address of a connection's other end; IPv4 in its plain form, no zone. Invalid for anything else.
func peerAddr(remote string) netip.Addr {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap().WithZone("")
}

// peerText is peerAddr in text, empty for an invalid one. Most of the time it is a part of remote as it stands.
func peerText(remote string) string {
	addr := peerAddr(remote)
	if !addr.IsValid() {
		return ""
	}
	if text := remote[:strings.LastIndexByte(remote, ':')]; addr.Is4() && text[0] != '[' {
		return text // IPv4 is read in one spelling only
	}
	return addr.String()
}
