package proxy

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"taskproxy/discovery"
)

// wayBack is what stands in a login URL for the address to come back to.
const wayBack = "{url}"

// maxWayBack is how long an address to come back to may be, in bytes. Of a longer one only the host counts: login pages
// keep it in cookies, and servers limit those.
const maxWayBack = 2048

// loginURL is where the page of a 401 links to, with the way back where the admin wants it.
func (p *Proxy) loginURL(r *http.Request) string {
	return strings.ReplaceAll(p.cfg.LoginURL, wayBack, url.QueryEscape(p.rules.addressOf(r)))
}

// addressOf is the address that a browser has in its bar, put together anew from parts that were checked: a login page that
// follows it leads nowhere but to a host under a base domain. Empty for other hosts.
func (ru *rules) addressOf(r *http.Request) string {
	kind, _ := ru.bases.Classify(r.Host)
	if kind == discovery.HostForeign {
		return ""
	}
	host, port, _ := strings.Cut(strings.ToLower(r.Host), ":")
	host = strings.TrimSuffix(host, ".")
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return ""
		}
		host += ":" + strconv.FormatUint(n, 10)
	}
	front := url.URL{Scheme: ru.schemeOf(r), Host: host, Path: "/"}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return front.String() // a browser comes back with a GET
	}
	var address url.URL
	ru.rewriteURL(&address, r.URL)
	address.Scheme, address.Host = front.Scheme, front.Host
	if address.Path == "" {
		address.Path = "/" // an absolute-form target may have none
	}
	if s := address.String(); len(s) <= maxWayBack {
		return s
	}
	return front.String()
}
