package ytlocal

import (
	"net/http"
	"net/url"
	"strings"
)

// preflight answers a browser that asks whether a page may call the cluster, as the real HTTP proxy does: by the end of the
// page's host. It reports whether the request was one. Only the question is answered: the call itself is refused by guard
// all the same, since whoever calls may start processes.
func (c *Cluster) preflight(w http.ResponseWriter, r *http.Request) bool {
	if _, ours := c.hosts[strings.ToLower(r.Host)]; !ours || r.Method != http.MethodOptions || !strings.HasPrefix(r.URL.Path, "/api/") {
		return false
	}
	origin := r.Header.Get("Origin")
	page, err := url.Parse(origin)
	if err != nil || page.Hostname() == "" {
		return false
	}
	for _, suffix := range c.config.CORSHostSuffixes {
		if strings.HasSuffix(page.Hostname(), suffix) {
			header := w.Header()
			header.Set("Access-Control-Allow-Credentials", "true")
			header.Set("Access-Control-Allow-Origin", origin)
			header.Set("Access-Control-Allow-Methods", "POST, PUT, GET, OPTIONS")
			header.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, X-Csrf-Token, X-YT-Parameters")
			header.Set("Access-Control-Max-Age", "3600")
			c.open(w, r, "preflight", func() {})
			return true
		}
	}
	return false
}

// plantProxy makes the node of the cluster's one HTTP proxy, which shows a part of its configuration.
func (c *Cluster) plantProxy(address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	add := func(parent *node, key, typ string) *node {
		n := c.newNode(typ, nil)
		n.builtin = true
		c.attach(parent, key, n)
		return n
	}
	proxies := add(c.mustFind("//sys"), "http_proxies", "map_node")
	orchid := add(add(proxies, address, "map_node"), "orchid", "orchid")
	orchid.virtual = func([]string) any {
		generator := map[string]any{"secure": true, "http_only": true, "path": "/"}
		if c.config.CookieDomain != "" {
			generator["domain"] = c.config.CookieDomain
		}
		return map[string]any{"config": map[string]any{"auth": map[string]any{
			"cypress_cookie_manager": map[string]any{"cookie_generator": generator},
		}}}
	}
}
