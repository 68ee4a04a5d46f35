package auth

import (
	"net/http"
	"strings"
)

// findCookie looks for the cookie over all Cookie headers. The value is what was sent, without space around it and
// without one pair of double quotes; whether it can be a credential is not asked here.
//
// net/http's own parser is not used: it drops a cookie whose value it dislikes and takes the next one of that name, and
// then a cookie planted by a sibling site decides who the caller is. Here whatever any reader might take for the cookie
// is seen, and two that differ are an error.
func findCookie(h http.Header, name string) (value string, found bool, err error) {
	if name == "" {
		return "", false, nil
	}
	lines := h["Cookie"]
	for _, line := range lines {
		for rest := line; rest != ""; {
			var pair string
			pair, rest, _ = strings.Cut(rest, ";")
			key, v, _ := strings.Cut(pair, "=") // the name alone is an empty cookie to some readers
			if trimSpace(key) != name {
				continue
			}
			v = unquote(trimSpace(v))
			if found && v != value {
				return "", true, ErrAmbiguousCookie
			}
			value, found = v, true
		}
	}
	if !found && len(lines) == 1 && !isBrowser(h) {
		value, found = bareCookie(lines[0], name)
	}
	return value, found, nil
}

// bareCookie reads the documented spelling "NAME VALUE", which is no cookie by any standard. With a "=" or a ";" the
// line is something else.
func bareCookie(line, name string) (string, bool) {
	rest, ok := strings.CutPrefix(trimSpace(line), name)
	if !ok || strings.ContainsAny(rest, "=;") {
		return "", false
	}
	value := strings.TrimLeft(rest, " ")
	if value == "" || len(value) == len(rest) {
		return "", false
	}
	return value, true
}

// isBrowser reports what only a browser sends by itself: fetch metadata, client hints, an Origin, or the wish for https
// (over plain http, a navigation carries that alone). A script that sends them of its own will is merely held to a
// browser's rules.
func isBrowser(h http.Header) bool {
	for key := range h {
		if key == "Origin" || key == "Upgrade-Insecure-Requests" ||
			strings.HasPrefix(key, "Sec-Fetch-") || strings.HasPrefix(key, "Sec-Ch-") {
			return true
		}
	}
	return false
}

// isSameOrigin reports whether a browser vouches that a page of the very same host makes the request.
func isSameOrigin(h http.Header) bool {
	site := h["Sec-Fetch-Site"]
	return len(site) == 1 && site[0] == "same-origin"
}

func unquote(s string) string {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		return s[1 : len(s)-1]
	}
	return s
}

// trimSpace removes ASCII white space, the widest set that some reader of cookies ignores.
func trimSpace(s string) string { return strings.Trim(s, " \t\r\n\v\f") }

func all(s string, ok func(byte) bool) bool {
	for i := range len(s) {
		if !ok(s[i]) {
			return false
		}
	}
	return true
}

func isVisible(c byte) bool { return c > ' ' && c < 0x7f }

// isCookieByte tells RFC 6265's cookie-octet. Only these reach the cluster as they are: Go's client quotes or drops the
// others, and the cluster would be asked about another secret than the one that was presented.
func isCookieByte(c byte) bool { return isVisible(c) && c != '"' && c != ',' && c != ';' && c != '\\' }

// isTokenChar tells RFC 9110's tchar, of which scheme names are made.
func isTokenChar(c rune) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return strings.ContainsRune("!#$%&'*+-.^_`|~", c)
}
