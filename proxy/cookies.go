package proxy

import (
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// The cluster's web interface keeps the login under names of its own in the same browser: the login cookie once more for each
// cluster, as <cluster>_YTCypressCookie, and the tokens of an OAuth login. Browsers send them to services too.

// loginCookies hold tokens of the cluster's users wherever they are there, whatever cookie the proxy was told to read. The
// first is no login, but as little a job's business.
var loginCookies = [...]string{affinityCookie, "yt_oauth_access_token", "yt_oauth_refresh_token", "yc_session"}

// confided is what is kept from a job that an admin trusts with logins.
var confided = rules{onlyAffinity: true}

// isLoginCookie reports a cookie's name that stands for a login to a cluster: that of the login cookie, any name that ends in
// it as a word of its own ("alpha_YTCypressCookie", "__Host-YTCypressCookie"), or one of loginCookies. Case is ignored: some
// readers of cookies ignore it too.
func (ru *rules) isLoginCookie(name string) bool {
	_, ok := ru.cutLogin(name)
	return ok
}

// cutLogin finds such a name in what is before a cookie's "=". tail is what follows it: nothing, or bytes that some reader
// takes for the end of a name. "NAME[]" is an array of that name to PHP.
func (ru *rules) cutLogin(name string) (tail string, ok bool) {
	logins := loginCookies[:]
	if ru.onlyAffinity {
		logins = logins[:1]
	}
	for i := range len(name) {
		if i > 0 && isAlnum(name[i-1]) {
			continue
		}
		for n := -1; n < len(logins); n++ {
			login := ru.cookie
			if n >= 0 {
				login = logins[n]
			}
			tail, ok := cutPrefixFold(name[i:], login)
			if ok && login != "" && (tail == "" || endsName(tail[0])) {
				return tail, true
			}
		}
	}
	return "", false
}

// endsName reports a byte that names do not have, or "$" (RFC 2965), or a quote.
func endsName(c byte) bool { return c == '$' || c == '\'' || !httpguts.IsTokenRune(rune(c)) }

// stripCookie takes the logins to the cluster out of one Cookie header, in every spelling that some reader could take for them:
// any case, the name in quotes or after bytes that no name has, a quoted value with ";" inside, "NAME VALUE" without "=",
// after a "," as in older standards or after white space as Python reads it. secret is what the caller was identified by, or
// empty: it goes whatever the name. Other cookies keep their bytes. It reports false when nothing is left.
func (ru *rules) stripCookie(v, secret string) (string, bool) {
	var kept strings.Builder
	stripped, any := false, false
	for start := 0; start <= len(v); {
		next := nextSeparator(v, start, ";,")
		part := v[start:next]
		head, tail, found := ru.cutCookie(part, secret)
		if found {
			next = cookieEnd(v, next-len(tail))
			part = strings.TrimRight(head, spaces)
			if !stripped {
				kept.Grow(len(v))
				kept.WriteString(v[:max(start-1, 0)])
				stripped = true
			}
		}
		blank := trimSpace(part) == ""
		any = any || !blank
		if stripped && (!found || !blank) {
			if kept.Len() > 0 {
				kept.WriteByte(v[start-1])
			} else {
				part = strings.TrimLeft(part, " \t")
			}
			kept.WriteString(part)
		}
		start = next + 1
	}
	if !stripped {
		return v, true
	}
	return kept.String(), any
}

// spaces is the widest set of white space that some reader of cookies ignores, or takes for the end of one.
const spaces = " \t\r\n\v\f"

// cutCookie looks for a login in what is between two separators: for its name at the beginning and after white space, and for
// the secret as any word's value. head is what comes before it, tail what follows the name; after the secret nothing does.
func (ru *rules) cutCookie(part, secret string) (head, tail string, found bool) {
	head, tail, found = ru.cutNamed(part)
	if at := valueAt(part, secret); at >= 0 && (!found || at < len(head)) {
		return part[:at], "", true
	}
	return head, tail, found
}

// cutNamed is cutCookie by name. Before the name may be bytes that end names.
func (ru *rules) cutNamed(part string) (head, tail string, found bool) {
	for at := 0; ; {
		name := at
		for name < len(part) && endsName(part[name]) {
			name++
		}
		word := part[name:nextSeparator(part, name, spaces)]
		named, _, _ := strings.Cut(word, "=")
		if rest, ok := ru.cutLogin(named); ok {
			tail = part[name+len(named)-len(rest):]
			if name > 0 && tail != "" && tail[0] == part[name-1] && (tail[0] == '"' || tail[0] == '\'') {
				tail = tail[1:] // it ends the name, and begins no value
			}
			return part[:at], tail, true
		}
		at = name + len(word)
		if at == len(part) {
			return "", "", false
		}
	}
}

// valueAt is where in part the word begins whose value is the secret, quoted or percent-encoded perhaps; or -1.
func valueAt(part, secret string) int {
	if secret == "" || len(part) < len(secret) {
		return -1
	}
	for at := 0; at < len(part); at++ {
		word := part[at:nextSeparator(part, at, spaces)]
		_, value, ok := strings.Cut(word, "=")
		if isSecret(word, secret) || ok && isSecret(value, secret) {
			return at
		}
		at += len(word)
	}
	return -1
}

// isSecret reports that v is the secret, in quotes perhaps, percent-encoded perhaps.
func isSecret(v, secret string) bool {
	if v == secret {
		return true
	}
	v = strings.Trim(v, `"'`)
	if v == secret {
		return true
	}
	if len(v) <= len(secret) || len(v) > 3*len(secret) {
		return false
	}
	for i := range len(secret) {
		if v == "" {
			return false
		}
		c := v[0]
		if c == '%' && len(v) >= 3 && isHex(v[1]) && isHex(v[2]) {
			n, _ := strconv.ParseUint(v[1:3], 16, 8)
			c, v = byte(n), v[2:]
		}
		if c != secret[i] {
			return false
		}
		v = v[1:]
	}
	return v == ""
}

func isHex(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f' }

// cookieEnd is the index of the ";" that ends the value which begins after v[from:]'s "=" and spaces, or len(v). A ","
// does not end it, and neither does a ";" inside a quoted value: a part of the secret would stay behind.
func cookieEnd(v string, from int) int {
	for from < len(v) && strings.IndexByte("="+spaces, v[from]) >= 0 {
		from++
	}
	if from < len(v) && v[from] == '"' {
		for i := from + 1; i < len(v); i++ {
			switch v[i] {
			case '\\':
				i++ // to some readers it makes the next quote a part of the value
			case '"':
				return nextSeparator(v, i, ";")
			}
		}
	}
	return nextSeparator(v, from, ";")
}

func nextSeparator(v string, from int, separators string) int {
	if i := strings.IndexAny(v[from:], separators); i >= 0 {
		return from + i
	}
	return len(v)
}
