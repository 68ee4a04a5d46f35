package ytlocal

import (
	"net/http"
	"testing"

	"go.ytsaurus.tech/yt/go/ypath"
)

// A page that CORS names is told that it may call; that is all it gets.
func TestPreflight(t *testing.T) {
	t.Parallel()
	c := startCluster(t, func(cfg *Config) { cfg.CORSHostSuffixes = []string{".example.net"} })
	preflight := func(origin string, edit ...func(*http.Request)) (int, string) {
		t.Helper()
		got := request(t, c, http.MethodOptions, "/api/v4/start_operation", "", func(r *http.Request) {
			r.Header.Set("Origin", origin)
			r.Header.Del("Authorization")
			for _, e := range edit {
				e(r)
			}
		})
		return got.status, got.header.Get("Access-Control-Allow-Origin")
	}
	for origin, want := range map[string]string{
		"https://x.tp.example.net": "https://x.tp.example.net", "https://x.tp.example.net:8443": "https://x.tp.example.net:8443",
		"https://example.net": "", "https://x.example.net.evil": "", "https://evil.example": "", "null": "", "": "", "://": "",
	} {
		status, allowed := preflight(origin)
		if wantStatus := map[bool]int{true: 200, false: 403}[want != ""]; allowed != want || status != wantStatus {
			t.Errorf("Origin %q: status %d, allowed %q; want %d, %q", origin, status, allowed, wantStatus, want)
		}
	}
	const good = "https://x.tp.example.net"
	if status, allowed := preflight(good, func(r *http.Request) { r.Host = "evil.example" }); status != 403 || allowed != "" {
		t.Errorf("by another host: %d, %q", status, allowed)
	}
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		if got := request(t, c, method, "/api/v4/get?path=//sys", "", func(r *http.Request) { r.Header.Set("Origin", good) }); got.status != 403 {
			t.Errorf("%s of the page itself: %d %s", method, got.status, got.body)
		}
	}
}

func TestCookieDomainIsShown(t *testing.T) {
	t.Parallel()
	c := startCluster(t, func(cfg *Config) { cfg.CookieDomain = ".example.net" })
	var domain string
	must(t, rootClient(t, c).GetNode(t.Context(),
		ypath.Path("//sys/http_proxies/"+c.Addr()+"/orchid/config/auth/cypress_cookie_manager/cookie_generator/domain"), &domain, nil))
	if domain != ".example.net" {
		t.Errorf("domain %q", domain)
	}
}
