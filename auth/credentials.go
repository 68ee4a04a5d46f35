package auth

import (
	"fmt"
	"net/http"
	"strings"

	"taskproxy/ytclient"
)

// ExplicitHeader carries credentials that are meant for the proxy and nobody else. It leaves Authorization to services
// that have a use of their own for it.
const ExplicitHeader = "X-Yt-Taskproxy-Authorization"

// maxSecret is the size in bytes above which nothing is a credential. Tokens and cookies of real clusters stay far below.
const maxSecret = 16 << 10

// Source is the rule by which FromRequest chose a credential.
type Source int

// The rules, in the order in which they are tried.
const (
	SourceNone             Source = iota // no rule applied
	SourceExplicit                       // ExplicitHeader
	SourceSameOriginCookie               // the cookie of a browser's request from the service's own pages
	SourceAuthorization                  // Authorization with one of the cluster's schemes
	SourceCookie                         // the cookie of any other request
)

// String names the rule as logs do.
func (s Source) String() string {
	switch s {
	case SourceNone:
		return "none"
	case SourceExplicit:
		return "explicit"
	case SourceSameOriginCookie:
		return "same_origin_cookie"
	case SourceAuthorization:
		return "authorization"
	case SourceCookie:
		return "cookie"
	}
	return fmt.Sprintf("Source(%d)", int(s))
}

// Presented is the one credential of a request that counts. It prints redacted.
type Presented struct {
	Credentials ytclient.Credentials
	Source      Source
}

// FromRequest finds the credential of r. The first rule that applies decides, and if what it finds is no good, no other
// rule is tried: a caller must not be able to make a request count as somebody else's by spoiling a part of it.
//
//  1. X-Yt-Taskproxy-Authorization, which must be one "OAuth <token>" or "Bearer <token>".
//  2. The cookie, in a request that a page of the service itself made (Sec-Fetch-Site: same-origin, which scripts cannot
//     set): what such a page puts into Authorization is between it and its service.
//  3. Authorization with the scheme OAuth or Bearer. Any other scheme belongs to the service and is as good as absent.
//  4. The cookie. Documented commands also write it as "Cookie: NAME VALUE"; that counts if it is the whole of the only
//     Cookie header and the caller is no browser (see isBrowser), since a browser never means a login by it.
//
// Scheme names are case-insensitive. Queries are never read. cookieName is the login cookie's name; with an empty one,
// cookies do not count.
//
// The error wraps ErrNoCredentials, ErrAmbiguousCookie or ErrMalformedCredentials; each is worth a 401.
func FromRequest(r *http.Request, cookieName string) (Presented, error) {
	if values, ok := r.Header[ExplicitHeader]; ok {
		return fromExplicit(values)
	}
	// Authorization is looked at only after the cookie had its turn in a same-origin request, and a bad cookie matters
	// only where the cookie counts.
	cookie, found, cookieErr := findCookie(r.Header, cookieName)
	if found && isSameOrigin(r.Header) {
		return presentedCookie(cookie, cookieName, SourceSameOriginCookie, cookieErr)
	}
	if p, ok, err := fromAuthorization(r.Header["Authorization"]); ok {
		return p, err
	}
	if found {
		return presentedCookie(cookie, cookieName, SourceCookie, cookieErr)
	}
	return Presented{}, ErrNoCredentials
}

func fromExplicit(values []string) (Presented, error) {
	if len(values) != 1 {
		return Presented{}, malformed("header %s is there %d times, want once", ExplicitHeader, len(values))
	}
	kind, rest := splitScheme(values[0])
	if kind == "" {
		return Presented{}, malformed("header %s: unknown scheme, want OAuth <token> or Bearer <token>", ExplicitHeader)
	}
	return presentedToken(kind, rest, SourceExplicit, ExplicitHeader)
}

// fromAuthorization reports false if nothing there has a scheme of the cluster. Beside one that has, a second header is
// an error whatever it holds: which of them counts must not depend on who reads.
func fromAuthorization(values []string) (Presented, bool, error) {
	for _, value := range values {
		kind, rest := splitScheme(value)
		if kind == "" {
			continue
		}
		if len(values) > 1 {
			return Presented{}, true, malformed("header Authorization is there %d times, want once", len(values))
		}
		p, err := presentedToken(kind, rest, SourceAuthorization, "Authorization")
		return p, true, err
	}
	return Presented{}, false, nil
}

// splitScheme cuts the scheme off a header's value and returns an empty kind if it is not one of the cluster's. The
// scheme ends at the first byte that cannot be part of one, not at a space: "OAuth", a tab and a token is a malformed
// credential of the cluster's, not a well-formed one of somebody else's.
func splitScheme(value string) (kind ytclient.Kind, rest string) {
	value = trimSpace(value)
	end := strings.IndexFunc(value, func(c rune) bool { return !isTokenChar(c) })
	if end < 0 {
		end = len(value)
	}
	switch scheme := value[:end]; {
	case strings.EqualFold(scheme, "OAuth"):
		return ytclient.OAuth, value[end:]
	case strings.EqualFold(scheme, "Bearer"):
		return ytclient.Bearer, value[end:]
	}
	return "", ""
}

// presentedToken takes what follows the scheme: spaces, then one word.
func presentedToken(kind ytclient.Kind, rest string, source Source, header string) (Presented, error) {
	token := strings.TrimLeft(rest, " ")
	switch {
	case token == "":
		return Presented{}, malformed("header %s: the token is empty, want OAuth <token> or Bearer <token>", header)
	case len(token) == len(rest):
		return Presented{}, malformed("header %s: want a space between scheme and token", header)
	case len(token) > maxSecret:
		return Presented{}, malformed("header %s: the token has %d bytes, want at most %d", header, len(token), maxSecret)
	case !all(token, isVisible):
		return Presented{}, malformed("header %s: the token has bytes other than visible ASCII", header)
	}
	return Presented{Credentials: ytclient.Credentials{Kind: kind, Secret: token}, Source: source}, nil
}

func presentedCookie(value, name string, source Source, err error) (Presented, error) {
	switch {
	case err != nil:
		return Presented{}, err
	case value == "":
		return Presented{}, malformed("cookie %s is empty", name)
	case len(value) > maxSecret:
		return Presented{}, malformed("cookie %s has %d bytes, want at most %d", name, len(value), maxSecret)
	case !all(value, isCookieByte):
		return Presented{}, malformed("cookie %s has bytes that no cookie may have (RFC 6265, section 4.1.1)", name)
	}
	c := ytclient.Credentials{Kind: ytclient.Cookie, CookieName: name, Secret: value}
	return Presented{Credentials: c, Source: source}, nil
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrMalformedCredentials}, args...)...)
}
