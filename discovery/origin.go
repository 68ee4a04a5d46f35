package discovery

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"taskproxy/ytclient"
)

// maxOrigins is how many origins a service can be opened to.
const maxOrigins = 16

// CheckOrigin says what is wrong with a web origin that an author or an admin wrote; nil when browsers would send exactly
// these bytes as Origin: scheme://host, lower-case, with a port if it is not the scheme's own. There is no wildcard, and
// "null" is nobody's origin. What passes is safe to write into a header.
func CheckOrigin(origin string) error {
	if len(origin) > len("https://")+253+len(":65535") {
		return errors.New("is longer than any origin")
	}
	scheme, authority, _ := strings.Cut(origin, "://")
	ownPort := ""
	switch scheme {
	case "http":
		ownPort = "80"
	case "https":
		ownPort = "443"
	default:
		return errors.New("has no scheme http or https")
	}
	host, port, hasPort := strings.Cut(authority, ":")
	if hasPort {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
			return errors.New("has a port that is not a number from 1 to 65535")
		}
		if port == ownPort {
			return fmt.Errorf("has the port that %s has anyway, which browsers leave out", scheme)
		}
	}
	if strings.ContainsAny(authority, "/?#@\\") {
		return errors.New("has more than a scheme, a host and a port")
	}
	if addr, err := netip.ParseAddr(host); err == nil && addr.Is4() {
		return nil
	}
	if lowerASCII(host) != host {
		return errors.New("has capital letters")
	}
	for label := range strings.SplitSeq(host, ".") {
		if !validLabel(label) {
			return errors.New("has a host that is neither a DNS name nor an IPv4 address")
		}
	}
	return nil
}

// origins reads cross_site={origins=["https://app.example.com"; …]}; inherited stand when nothing is said. What is wrong
// opens nothing: a bad origin is left out, and what cannot be read is an empty list. Neither touches what is published.
func (r *reading) origins(fields map[string]any, task, service, where string, inherited []string) []string {
	bad := func(reason string) { r.problem(BadAnnotation, task, service, where+reason) }
	switch v := at(fields, "cross_site").(type) {
	case nil:
		return inherited
	case map[string]any:
		fields = v
	default:
		bad(" is " + describe(v) + "; it must be a map such as {origins=[\"https://app.example.com\"]}")
		return nil
	}
	list, ok := at(fields, "origins").([]any)
	if !ok {
		bad("/origins is " + describe(at(fields, "origins")) + "; it must be a list such as [\"https://app.example.com\"]")
		return nil
	}
	if len(list) > maxOrigins {
		bad(fmt.Sprintf("/origins has %d; the first %d count", len(list), maxOrigins))
		list = list[:maxOrigins]
	}
	var origins []string
	for _, v := range list {
		origin, ok := ytclient.Plain(v).(string)
		if !ok {
			bad("/origins has " + describe(ytclient.Plain(v)) + "; it must be a string such as \"https://app.example.com\"")
			continue
		}
		if err := CheckOrigin(origin); err != nil {
			bad("/origins has " + quote(origin) + ", which " + err.Error() + "; it must be as browsers send it, such as https://app.example.com")
			continue
		}
		if !slices.Contains(origins, origin) {
			origins = append(origins, origin)
		}
	}
	return origins
}
