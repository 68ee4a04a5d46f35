package proxy

import (
	"net"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"taskproxy/discovery"
)

// cleanAnswer takes out of a job's headers, 1xx answers and trailers what a job must not say: what would act on the
// cluster's login, on sibling services, on the caller's other connections, or in the proxy's name. h is changed in place.
// Trailers may be there under http.TrailerPrefix.
func (ru *rules) cleanAnswer(h http.Header, x *exchange) {
	for key, values := range h {
		name, isTrailer := strings.CutPrefix(key, http.TrailerPrefix)
		if isTrailer {
			name = textproto.CanonicalMIMEHeaderKey(name)
		}
		switch kept := ru.cleanValues(name, values, x); {
		case len(kept) == 0:
			delete(h, key)
		case &kept[0] != &values[0]: // as a rule nothing changes
			h[key] = kept
		}
	}
}

// cleanTrailerNames takes the names of trailers that must not pass out of an announcement, which has no values yet.
func (ru *rules) cleanTrailerNames(announced http.Header, x *exchange) {
	for name := range announced {
		if len(ru.cleanValues(name, []string{"x"}, x)) == 0 {
			delete(announced, name)
		}
	}
}

// cleanValues is what remains of one header. It returns values itself when nothing has to change, and never a part of them.
func (ru *rules) cleanValues(name string, values []string, x *exchange) []string {
	switch name {
	case "X-Request-Id", "Alt-Svc", "Clear-Site-Data":
		return nil
	case "Service-Worker-Allowed", "Report-To", "Reporting-Endpoints", "Nel":
		if x.shared {
			return nil // they would act on every service's answers there; NEL on all hosts below a base domain
		}
	case "Set-Cookie":
		if x.shared {
			return nil // services share this origin and must not share cookies
		}
		return edit(values, ru.cleanSetCookie)
	case "Www-Authenticate", "Proxy-Authenticate":
		return edit(values, cleanChallenge)
	case "Strict-Transport-Security":
		if x.shared {
			return nil
		}
		return edit(values, cleanHSTS)
	case "Location":
		return edit(values, func(v string) (string, bool) { return ru.relativeLocation(v, x.in.Host), true })
	}
	if hasFoldedPrefix(name, "x-yt-taskproxy-") || isOrder(name) && (name != "X-Accel-Buffering" || !slices.Equal(values, []string{"no"})) {
		return nil
	}
	return values
}

// isOrder reports headers by which a server commands a proxy in front, which trusts us: to send a file of its own instead or ask
// another server, to keep the answer, to take us for broken. The one that stays says that a stream is not to be held back.
func isOrder(name string) bool {
	if name == "" || name[0]|0x20 != 'x' {
		return false
	}
	for _, prefix := range [...]string{"x-accel-", "x-envoy-", "x-lighttpd-", "x-reproxy-", "x-sendfile"} {
		if hasFoldedPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// edit applies f to each value and drops those for which it reports false. values is not changed, and returned when nothing
// has to be.
func edit(values []string, f func(string) (string, bool)) []string {
	var kept []string
	changed := false
	for i, v := range values {
		edited, ok := f(v)
		if !changed && (!ok || edited != v) {
			kept, changed = slices.Clone(values[:i]), true
		}
		if changed && ok {
			kept = append(kept, edited)
		}
	}
	if !changed {
		return values
	}
	return kept
}

// cleanSetCookie drops a job's cookie that could pass for a login to the cluster, and makes every other one host-only: a Domain would
// plant it on siblings, and on the cluster itself where they share a parent.
//
// A cookie without a name is dropped whatever its value: browsers send "=NAME=x" and "NAME=x" back in the same bytes
// (RFC 6265bis, section 5.7, is about that).
func (ru *rules) cleanSetCookie(v string) (string, bool) {
	parts := strings.Split(v, ";")
	name, _, ok := strings.Cut(parts[0], "=")
	name = trimSpace(name)
	if !ok || name == "" || ru.isLoginCookie(name) {
		return "", false
	}
	kept := parts[:1]
	for _, attribute := range parts[1:] {
		key, _, _ := strings.Cut(attribute, "=")
		if !strings.EqualFold(trimSpace(key), "Domain") {
			kept = append(kept, attribute)
		}
	}
	return strings.Join(kept, ";"), true
}

// cleanChallenge drops the challenges of a WWW-Authenticate value that make browsers send the account of the machine's
// user. A value may hold several challenges, and commas also divide their parameters (RFC 9110, section 11.6.1): a part
// begins a new challenge if its first word is not followed by "=". The first part always does.
func cleanChallenge(v string) (string, bool) {
	parts := splitQuoted(v, ',')
	kept := parts[:0]
	dropping := false
	for i, part := range parts {
		word := trimSpace(part)
		end := strings.IndexAny(word, " \t=")
		rest := ""
		if end >= 0 {
			word, rest = word[:end], trimSpace(word[end:])
		}
		if i == 0 || !strings.HasPrefix(rest, "=") {
			dropping = strings.EqualFold(word, "Negotiate") || strings.EqualFold(word, "NTLM")
		}
		if !dropping {
			kept = append(kept, part)
		}
	}
	if len(kept) == 0 {
		return "", false
	}
	return strings.TrimLeft(strings.Join(kept, ","), " \t"), true
}

// splitQuoted splits at sep outside of double quotes.
func splitQuoted(s string, sep byte) []string {
	var parts []string
	start, quote := 0, false
	for i := 0; i < len(s); i++ {
		switch {
		case quote && s[i] == '\\':
			i++
		case s[i] == '"':
			quote = !quote
		case s[i] == sep && !quote:
			parts = append(parts, s[start:i])
			start = i + 1
		}
	}
	return append(parts, s[start:])
}

// cleanHSTS keeps a job from speaking for hosts below its own.
func cleanHSTS(v string) (string, bool) {
	directives := strings.Split(v, ";")
	kept := slices.DeleteFunc(directives, func(d string) bool {
		name, _, _ := strings.Cut(d, "=")
		return strings.EqualFold(trimSpace(name), "includeSubDomains")
	})
	joined := trimSpace(strings.Join(kept, ";"))
	return joined, joined != ""
}

// relativeLocation turns an absolute redirect to the host that the caller used into a path: a job does not know the scheme
// and port that it is reached by (Spark redirects to http whatever the outside speaks). Everything else stays as it is,
// also a rest that a browser would take for another host: "//x", "/\x", or either with a tab or line break in between, which
// browsers remove before they look.
func (ru *rules) relativeLocation(v, host string) string {
	rest, ok := cutPrefixFold(v, "http://")
	if !ok {
		if rest, ok = cutPrefixFold(v, "https://"); !ok {
			return v
		}
	}
	end := strings.IndexAny(rest, "/?#\\")
	if end < 0 {
		end = len(rest)
	}
	authority, path := rest[:end], rest[end:]
	if !ru.sameHost(authority, host) || strings.ContainsAny(path, "\t\r\n") {
		return v
	}
	switch {
	case path == "" || path[0] == '?' || path[0] == '#':
		return "/" + path
	case path[0] != '/' || len(path) > 1 && (path[1] == '/' || path[1] == '\\'):
		return v
	}
	return path
}

// sameHost reports whether a redirect to authority leads back to host. Under a base domain the port does not matter: the
// proxy is all there is on such a host. Elsewhere, on an IP address say, another port is another server.
func (ru *rules) sameHost(authority, host string) bool {
	if host == "" || authority == "" {
		return false
	}
	if strings.EqualFold(authority, host) {
		return true
	}
	kind, _ := ru.bases.Classify(host)
	return kind != discovery.HostForeign && sameName(authority, host)
}

// sameName compares two host names without their ports and trailing dots.
func sameName(a, b string) bool {
	name := func(s string) string {
		if h, _, err := net.SplitHostPort(s); err == nil {
			s = h
		}
		return strings.TrimSuffix(s, ".")
	}
	return strings.EqualFold(name(a), name(b))
}

func cutPrefixFold(s, prefix string) (rest string, ok bool) {
	if len(s) < len(prefix) || !strings.EqualFold(s[:len(prefix)], prefix) {
		return s, false
	}
	return s[len(prefix):], true
}
