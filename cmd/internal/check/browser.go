package check

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"golang.org/x/net/publicsuffix"

	"taskproxy/ytclient"
)

// ownCookie is the cookie that the cluster's own login hands out.
const ownCookie = "YTCypressCookie"

// cors asks whether pages of services may call the cluster: their authors' script would do it with the cookie, and so with
// all the rights, of whoever opens them.
func (c *checker) cors(ctx context.Context) {
	scheme := c.cfg.PublicScheme
	if scheme == "" {
		scheme = "https"
	}
	for _, base := range c.cfg.Bases.All() {
		origin := scheme + "://x." + base
		switch yes, err := c.client.LetsIn(ctx, origin); {
		case err != nil:
			c.line(unknown, "whether the cluster's CORS lets "+origin+" in: "+cut(err.Error()), "")
		case yes:
			c.line(warning, "the cluster's CORS lets "+origin+" in: the page of any job can act on the cluster as whoever opens it",
				"take "+base+" and what it ends with out of api/cors (host_suffix_allow_list, host_allow_list, disable_cors_check) of its HTTP proxies")
		default:
			c.ok("the cluster's CORS does not let %s in", origin)
		}
	}
}

// cookie looks where browsers send the login cookie.
func (c *checker) cookie(ctx context.Context) {
	if c.cfg.AuthCookieName != ownCookie {
		c.line(unknown, "how wide the cookie "+c.cfg.AuthCookieName+" is: the cluster does not hand it out", "look at the Domain with which its login sets it")
		return
	}
	host := c.clusterHost()
	domain, err := c.client.LoginCookieDomain(ctx)
	for _, base := range c.cfg.Bases.All() {
		if err != nil {
			why := cut(err.Error())
			if errors.Is(err, ytclient.ErrNotFound) {
				why = "its HTTP proxies do not show it"
			}
			c.line(unknown, "how wide the cluster's login cookie is: "+why, "it should be "+shouldBe(host, base))
			continue
		}
		verdict, what, how := judgeCookie(domain, host, base)
		c.line(verdict, what, how)
	}
}

// clusterHost is the host that browsers know the cluster by; empty if the configuration does not tell.
func (c *checker) clusterHost() string {
	if u, err := url.Parse(c.cfg.LoginURL); err == nil && u.Hostname() != "" {
		return publicName(u.Hostname())
	}
	proxy := c.cfg.YTProxy
	if !strings.Contains(proxy, "//") {
		proxy = "http://" + proxy
	}
	u, err := url.Parse(proxy)
	if err != nil {
		return ""
	}
	return publicName(u.Hostname())
}

// publicName is the host, or empty if it is none that a browser outside could know: an address, or a name inside Kubernetes.
func publicName(host string) string {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if _, err := netip.ParseAddr(host); err == nil {
		return ""
	}
	for _, inner := range []string{".svc", ".local", ".internal", ".localhost"} {
		if strings.HasSuffix(host, inner) {
			return ""
		}
	}
	if !strings.Contains(host, ".") {
		return ""
	}
	return host
}

// judgeCookie says what the Domain of the login cookie means for the services under base. host is as of clusterHost.
func judgeCookie(domain, host, base string) (verdict, what, how string) {
	const where = "auth/cypress_cookie_manager/cookie_generator/domain of the cluster's HTTP proxies"
	narrowest := commonParent(host, base)
	switch {
	case domain == "":
		return warning, "the cluster's login cookie has no Domain: browsers do not send it to " + base + ", so only tokens work there",
			where + " should be " + shouldBe(host, base)
	case !under(base, domain):
		return warning, fmt.Sprintf("the cluster's login cookie is for %s: browsers do not send it to %s, so only tokens work there", domain, base),
			where + " should be " + shouldBe(host, base)
	case isPublicSuffix(domain):
		return warning, fmt.Sprintf("the cluster's login cookie is for %s, under which anybody can have a name: browsers do not take it", domain), where
	case narrowest == "" && domain != base:
		return unknown, fmt.Sprintf("the cluster's login cookie is for %s: every web server under it gets it, not only %s", domain, base),
			"it should be " + shouldBe(host, base)
	case domain == base || domain == narrowest:
		return fine, fmt.Sprintf("the cluster's login cookie is for %s, as narrow as it can be: every web server under it gets it", domain), ""
	default:
		return warning, fmt.Sprintf("the cluster's login cookie is for %s: every web server under it gets it, and whoever runs one can be whoever visits", domain),
			where + " could be " + narrowest
	}
}

// shouldBe says in words which Domain lets a cookie reach both the cluster's host and the services.
func shouldBe(host, base string) string {
	switch parent := commonParent(host, base); {
	case parent != "":
		return parent
	case host != "":
		return fmt.Sprintf("a parent of both, but %s and %s have none that is anybody's own: choose another --base-domain", host, base)
	}
	return "the closest parent that " + base + " and the cluster's public host have in common (--login-url tells that host)"
}

// commonParent is the closest domain that both hosts are under or are; empty if there is none, or one where everybody can
// have names (a public suffix).
func commonParent(a, b string) string {
	for a != "" && !under(b, a) {
		_, a, _ = strings.Cut(a, ".")
	}
	if a == "" || isPublicSuffix(a) {
		return ""
	}
	return a
}

// under reports whether host is domain or below it.
func under(host, domain string) bool { return host == domain || strings.HasSuffix(host, "."+domain) }

// isPublicSuffix reports whether browsers refuse cookies for a domain as too wide.
func isPublicSuffix(domain string) bool {
	suffix, _ := publicsuffix.PublicSuffix(domain)
	return suffix == domain
}
