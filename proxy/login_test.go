package proxy

import (
	"html"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"taskproxy/discovery"
)

// wayBackOf is the address that the page of a 401 hands to the login page.
func wayBackOf(t *testing.T, a answer) string {
	t.Helper()
	a.check(t, 401, "no_credentials")
	m := regexp.MustCompile(`<a href="([^"]*)">`).FindStringSubmatch(a.body)
	if m == nil {
		t.Fatalf("no link in %s", a.body)
	}
	link, err := url.Parse(html.UnescapeString(m[1]))
	if err != nil || link.Host != "cluster.test" || link.Path != "/login" || len(link.Query()) != 2 || link.Query().Get("x") != "1" {
		t.Fatalf("the link leads to %q, %v", m[1], err)
	}
	return link.Query().Get("back")
}

// Whatever a request looks like, the way back in the link leads to the host that it was for, if that is under a base domain,
// and else nowhere.
func TestLoginLink(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) {
		c.LoginURL = "https://cluster.test/login?back={url}&x=1"
		c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	ask := func(method, target, host, header string) string {
		t.Helper()
		return wayBackOf(t, w.raw(method+" "+target+" HTTP/1.1\r\nHost: "+host+"\r\nAccept: text/html\r\nConnection: close\r\n"+header+"\r\n"))
	}
	const h = "abcd1234." + base
	for _, c := range []struct{ target, want string }{
		{"/", "/"},
		{"/a/b?c=d&e=%26&f", "/a/b?c=d&e=%26&f"},
		{"/a%2Fb%5cc", "/a%2Fb%5cc"},
		{"/?", "/?"},
		{"/?back=https://evil.test&x=2", "/?back=https://evil.test&x=2"},
		{"//evil.test/x", "//evil.test/x"},
		{`/\evil.test/x`, "/%5Cevil.test/x"},
		{`/"><script>alert(1)</script>`, "/%22%3E%3Cscript%3Ealert(1)%3C/script%3E"},
		{"/@evil.test", "/@evil.test"},
		{"/https://evil.test", "/https://evil.test"},
		{"/%0d%0aLocation:x", "/%0d%0aLocation:x"},
		{"/\xc3\xa9", "/%C3%A9"},
		{"http://" + h + "/absolute?form", "/absolute?form"},
		{"http://" + h + "?form", "/?form"},
		{"/" + strings.Repeat("x", 4000), "/"},
	} {
		if got := ask("GET", c.target, h, ""); got != "http://"+h+c.want {
			t.Errorf("target %q: the way back is %q, want http://%s%s", c.target, got, h, c.want)
		}
	}
	for _, c := range []struct{ host, want string }{
		{h, "http://" + h + "/x"},
		{strings.ToUpper(h), "http://" + h + "/x"},
		{h + ":8080", "http://" + h + ":8080/x"},
		{h + ":", "http://" + h + "/x"},
		{h + ".", "http://" + h + "/x"},
		{h + ".:8080", "http://" + h + ":8080/x"},
		{h + ":08080", "http://" + h + ":8080/x"},
		{h + ":0", ""},
		{h + ":65536", ""},
		{h + ":99999999999999999999", ""},
		{"evil.test", ""},
		{h + ".evil.test", ""},
		{"evil" + base, ""},
		{"a.b." + base, ""},
		{"127.0.0.1", ""},
		{"[::1]:80", ""},
	} {
		if got := ask("GET", "/x", c.host, ""); got != c.want {
			t.Errorf("host %q: the way back is %q, want %q", c.host, got, c.want)
		}
	}
	// A host that is no host at all is net/http's to refuse.
	for _, odd := range []string{"evil.test/" + h, "evil@" + h, h + "/x", h + `\evil.test`, h + "?", h + " evil.test"} {
		a := w.raw("GET /x HTTP/1.1\r\nHost: " + odd + "\r\nAccept: text/html\r\nConnection: close\r\n\r\n")
		if a.StatusCode == 401 && wayBackOf(t, a) != "" || a.StatusCode != 401 && a.StatusCode != 400 {
			t.Errorf("host %q: got %d %s", odd, a.StatusCode, a.body)
		}
	}
	if got := ask("POST", "/x?y", h, "Content-Length: 0\r\n"); got != "http://"+h+"/" {
		t.Errorf("after a POST: %q", got)
	}
	if got := ask("GET", "/x", h, "X-Forwarded-Proto: https\r\nX-Forwarded-Host: evil.test\r\nForwarded: host=evil.test;proto=ftp\r\n"); got != "https://"+h+"/x" {
		t.Errorf("by a trusted proxy: %q", got)
	}
	if got := ask("GET", "/x", h, "X-Forwarded-Proto: javascript\r\n"); got != "http://"+h+"/x" {
		t.Errorf("by a trusted proxy with an odd scheme: %q", got)
	}
}

// A stranger's word about the scheme does not count, the admin's does.
func TestLoginLinkScheme(t *testing.T) {
	t.Parallel()
	for scheme, want := range map[string]string{"": "http", "https": "https", "http": "http"} {
		w := newWorld(t, func(c *Config) { c.LoginURL, c.PublicScheme = "https://cluster.test/login?back={url}&x=1", scheme })
		if got := wayBackOf(t, w.get("abcd1234."+base, "/x", "-", "Accept: text/html", "X-Forwarded-Proto: https")); got != want+"://abcd1234."+base+"/x" {
			t.Errorf("%q: %s", scheme, got)
		}
	}
}

// The proxy's own page calls services by the scheme that it was reached by: a token that is sent to http://… by its advice would pass in the clear.
func TestHomeScheme(t *testing.T) {
	t.Parallel()
	for scheme, want := range map[string]string{"": "http", "https": "https"} {
		w := newWorld(t, func(c *Config) { c.PublicScheme = scheme })
		if got := w.get(base, "/", "-").body; !strings.Contains(got, " "+want+"://<ID>."+base+"/") {
			t.Errorf("%q: %s", scheme, got)
		}
	}
}

// Only a page that wants it gets the way back, and nothing of the link's host is the caller's to write.
func TestLoginURLIsChecked(t *testing.T) {
	t.Parallel()
	bases, _ := discovery.NewBases(base)
	for _, bad := range []string{"{url}", "https://{url}/", "https://{url}@cluster.test/", "{url}://cluster.test/", "javascript:alert(1)", "//cluster.test/", "https://"} {
		if _, err := New(Config{Bases: bases, Table: NewTable(), AuthDisabled: true, LoginURL: bad}); err == nil || !strings.Contains(err.Error(), "LoginURL") {
			t.Errorf("%q: error %v", bad, err)
		}
	}
	w := newWorld(t, func(c *Config) { c.LoginURL = "https://cluster.test/login" })
	if a := w.get("abcd1234."+base, "/x", "-", "Accept: text/html"); !strings.Contains(a.body, `href="https://cluster.test/login"`) {
		t.Errorf("page: %s", a.body)
	}
}

// The way back is always an address of the request's own host.
func FuzzWayBack(f *testing.F) {
	bases, _ := discovery.NewBases(base)
	ru := &rules{bases: bases}
	const h = "abcd1234." + base
	f.Add(h, "/x?y")
	f.Add(h+":1", "//evil.test")
	f.Add("evil.test", "/\\evil.test")
	f.Add(h, "http://"+h+"/@evil.test")
	f.Fuzz(func(t *testing.T, host, target string) {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			return
		}
		r := newRequest(host, target, u)
		if refuse(r) != nil {
			return
		}
		back := ru.addressOf(r)
		if back == "" {
			return
		}
		got, err := url.Parse(back)
		if err != nil {
			t.Fatalf("%q %q: the way back %q is no URL: %v", host, target, back, err)
		}
		if kind, _ := bases.Classify(got.Host); kind == discovery.HostForeign || got.Scheme != "http" || got.User != nil || !sameName(got.Host, host) ||
			!strings.HasPrefix(got.EscapedPath(), "/") || strings.ContainsAny(back, "\\\"<> \t\r\n#") || len(back) > maxWayBack {
			t.Fatalf("%q %q: the way back is %q", host, target, back)
		}
	})
}

func newRequest(host, target string, u *url.URL) *http.Request {
	return &http.Request{Method: http.MethodGet, ProtoMajor: 1, Host: host, RequestURI: target, URL: u}
}
