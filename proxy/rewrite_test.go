package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"taskproxy/discovery"
)

// Each line is an attempt to get a credential, or a forged identity, to the job. The guard fails the test if a secret
// arrives; want is what the job sees of the header instead.
func TestCredentialsStayHere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, echoJob("a")))
	const explicit = "X-Yt-Taskproxy-Authorization: " + aliceOAuth
	for _, c := range []struct {
		name   string
		sent   []string
		header string
		want   []string
	}{
		{"OAuth", []string{"Authorization: " + aliceOAuth}, "Authorization", nil},
		{"OAuth in odd case", []string{"Authorization: oAuTh " + aliceToken}, "Authorization", nil},
		{"OAuth beside the explicit header", []string{explicit, "Authorization: OAuth s3cret"}, "Authorization", nil},
		{"OAuth and a tab", []string{explicit, "Authorization: OAuth\ts3cret"}, "Authorization", nil},
		{"OAuth and no space", []string{explicit, "Authorization: OAuths3cret"}, "Authorization", nil},
		{"OAuth and no space beside the cookie", []string{"Cookie: YTCypressCookie=" + aliceToken, "Authorization: OAuths3cret"}, "Authorization", nil},
		{"OAuth and a colon", []string{explicit, "Authorization: OAuth:s3cret"}, "Authorization", nil},
		{"OAuth in quotes", []string{explicit, `Authorization: "OAuth s3cret"`}, "Authorization", nil},
		{"OAuth after a no-break space", []string{explicit, "Authorization: \u00a0OAuth s3cret"}, "Authorization", nil},
		{"OAuth after a raw no-break space", []string{explicit, "Authorization: \xa0OAuth s3cret"}, "Authorization", nil},
		{"OAuth after an equals sign", []string{explicit, "Authorization: =OAuth s3cret"}, "Authorization", nil},
		{"OAuth in a list", []string{explicit, "Authorization: Basic YTpi, OAuth s3cret"}, "Authorization", nil},
		{"OAuth in a list, in an open quote", []string{explicit, `Authorization: Digest realm="x, OAuth s3cret`}, "Authorization", nil},
		{"OAuth2", []string{explicit, "Authorization: OAuth2 s3cret"}, "Authorization", nil},
		{"Bearer and no space", []string{"Cookie: YTCypressCookie=" + aliceToken, "Authorization: Bearers3cret"}, "Authorization", nil},
		{"Negotiate and no space", []string{explicit, "Authorization: Negotiates3cret"}, "Authorization", nil},
		{"Digest stays", []string{explicit, `Authorization: Digest username="OAuth", realm="a, b", qop="auth, auth-int"`}, "Authorization", []string{`Digest username="OAuth", realm="a, b", qop="auth, auth-int"`}},
		{"a signature stays", []string{explicit, "Authorization: AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=c"}, "Authorization", []string{"AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=c"}},
		{"Bearer that identified", []string{"Authorization: Bearer " + aliceToken}, "Authorization", nil},
		{"Bearer beside the cookie", []string{"Authorization: Bearer " + aliceToken, "Cookie: YTCypressCookie=s3cret"}, "Authorization", nil},
		{"Bearer for the service", []string{explicit, "Authorization: Bearer jupyter"}, "Authorization", []string{"Bearer jupyter"}},
		{"Bearer for the service, same origin", []string{"Sec-Fetch-Site: same-origin", "Cookie: YTCypressCookie=" + aliceToken, "Authorization: Bearer jupyter"}, "Authorization", []string{"Bearer jupyter"}},
		{"Negotiate", []string{explicit, "Authorization: Negotiate s3cret"}, "Authorization", nil},
		{"NTLM", []string{explicit, "Authorization: ntlm s3cret"}, "Authorization", nil},
		{"Basic stays", []string{explicit, "Authorization: Basic YTpi"}, "Authorization", []string{"Basic YTpi"}},
		{"second Authorization", []string{explicit, "Authorization: Basic YTpi", "Authorization: OAuth s3cret"}, "Authorization", []string{"Basic YTpi"}},
		{"Proxy-Authorization", []string{explicit, "Proxy-Authorization: OAuth s3cret"}, "Proxy-Authorization", nil},
		{"explicit header with underscores", []string{explicit, "X_YT_Taskproxy_Authorization: OAuth s3cret"}, "X_yt_taskproxy_authorization", nil},
		{"cookie", []string{"Cookie: a=1; YTCypressCookie=" + aliceToken + "; b=2"}, "Cookie", []string{"a=1; b=2"}},
		{"cookie alone", []string{"Cookie: YTCypressCookie=" + aliceToken}, "Cookie", nil},
		{"cookie, documented spelling", []string{"Cookie: YTCypressCookie " + aliceToken}, "Cookie", nil},
		{"cookie in odd case", []string{explicit, "Cookie: ytcypresscookie=s3cret; b=2"}, "Cookie", []string{"b=2"}},
		{"cookie in the second header", []string{explicit, "Cookie: a=1", "Cookie: b=2; YTCypressCookie=s3cret"}, "Cookie", []string{"a=1", "b=2"}},
		{"cookie with spaces", []string{explicit, "Cookie: a=1;YTCypressCookie = s3cret ;b=2"}, "Cookie", []string{"a=1;b=2"}},
		{"cookie after an equals sign", []string{explicit, "Cookie: a=1; =YTCypressCookie=s3cret; b=2"}, "Cookie", []string{"a=1; b=2"}},
		{"cookie after a dollar", []string{explicit, "Cookie: $Version=1; $YTCypressCookie=s3cret"}, "Cookie", []string{"$Version=1"}},
		{"cookie after a no-break space", []string{explicit, "Cookie: a=1; \u00a0YTCypressCookie=s3cret"}, "Cookie", []string{"a=1"}},
		{"cookie after a raw no-break space", []string{explicit, "Cookie: \xa0YTCypressCookie=s3cret; a=1"}, "Cookie", []string{"a=1"}},
		{"cookie's name in quotes", []string{explicit, `Cookie: "YTCypressCookie"=s3cret; b="2"`}, "Cookie", []string{`b="2"`}},
		{"cookie after a comma", []string{explicit, "Cookie: a=1,YTCypressCookie=s3cret; b=2"}, "Cookie", []string{"a=1; b=2"}},
		{"cookie after a space", []string{explicit, "Cookie: a=1 YTCypressCookie=s3cret; b=2"}, "Cookie", []string{"a=1; b=2"}},
		{"cookie as PHP's array", []string{explicit, "Cookie: a=1; YTCypressCookie[x]=s3cret"}, "Cookie", []string{"a=1"}},
		{"cookie of the cluster's web interface", []string{"Cookie: alpha_YTCypressCookie=" + aliceToken + "; YTCypressCookie=" + aliceToken + "; a=1"}, "Cookie", []string{"a=1"}},
		{"cookie under a name of its own", []string{"Cookie: YTCypressCookie=" + aliceToken + "; access_token=" + aliceToken + "; a=1"}, "Cookie", []string{"a=1"}},
		{"token as a cookie under a name of its own", []string{"Authorization: " + aliceOAuth, "Cookie: access_token=" + aliceToken + "; a=1"}, "Cookie", []string{"a=1"}},
		{"a service's own access_token stays", []string{"Cookie: access_token=jupyter; YTCypressCookie=" + aliceToken}, "Cookie", []string{"access_token=jupyter"}},
		{"tokens of the web interface", []string{explicit, "Cookie: yt_oauth_access_token=s3cret; yt_oauth_refresh_token=s3cret; a=1"}, "Cookie", []string{"a=1"}},
		{"CSRF token", []string{explicit, "X-Csrf-Token: s3cret"}, "X-Csrf-Token", nil},
		{"CSRF token with underscores", []string{explicit, "X_Csrf_Token: s3cret"}, "X_csrf_token", nil},
		{"X-YT-*", []string{explicit, "X-YT-Header-Format: s3cret"}, "X-Yt-Header-Format", nil},
		{"X_YT-*", []string{explicit, "X_YT-Auth: s3cret"}, "X_yt-Auth", nil},
		{"X-Ya-*", []string{explicit, "X-Ya-Service-Ticket: s3cret"}, "X-Ya-Service-Ticket", nil},
		{"forged user", []string{explicit, "X-Yt-Taskproxy-User: root"}, "X-Yt-Taskproxy-User", []string{"alice"}},
		{"forged user with underscores", []string{explicit, "X_Yt_Taskproxy_User: root"}, "X_yt_taskproxy_user", nil},
		{"forged user with dots", []string{explicit, "X.Yt.Taskproxy.User: root"}, "X.yt.taskproxy.user", nil},
		{"Connection names our user header", []string{explicit, "Connection: X-Yt-Taskproxy-User, X-Forwarded-For, X-Request-Id"}, "X-Yt-Taskproxy-User", []string{"alice"}},
		{"Connection names credentials", []string{"Connection: Authorization, Cookie", "Authorization: " + aliceOAuth, "Cookie: a=1"}, "Authorization", nil},
		{"others pass", []string{explicit, "X-Ytfoo: 1"}, "X-Ytfoo", []string{"1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := w.get(host(s), "/", c.sent...)
			if got := a.echo(t).Header[c.header]; !slices.Equal(got, c.want) {
				t.Errorf("the job sees %s %q, want %q", c.header, got, c.want)
			}
		})
	}
}

// A proxy in front that logs users in passes their tokens on; they are not for jobs, whoever the proxy is.
func TestTokensOfAProxyInFront(t *testing.T) {
	t.Parallel()
	names := []string{
		"X-Forwarded-Access-Token", "X-Forwarded-Id-Token", "X-Forwarded-Refresh-Token", "X-Forwarded-Authorization", "X-Auth-Request-Access-Token",
		"X-Auth-Request-User", "X-Amzn-Oidc-Accesstoken", "X-Amzn-Oidc-Data", "X-Goog-Iap-Jwt-Assertion", "X-Ms-Token-Aad-Access-Token",
	}
	var header []string
	for _, name := range names {
		header = append(header, name+": s3cret", strings.ReplaceAll(name, "-", "_")+": s3cret")
	}
	for _, trusted := range [][]netip.Prefix{nil, loopback} {
		w := newWorld(t, func(c *Config) { c.TrustedProxies, c.ForwardCredentialsTo = trusted, []string{"confidant"} })
		s := w.publish(discovery.Service{}, serve(t, echoJob("a"))) // it looks for "s3cret"
		if e := w.get(host(s), "/", append(header, "X-Auth-Requested: 1")...).echo(t); e.Header.Get("X-Auth-Requested") != "1" {
			t.Errorf("the job sees %v", e.Header)
		}
		confidant := w.publish(discovery.Service{User: "confidant"}, serveUnguarded(t, echoJob("a")))
		e := w.get(host(confidant), "/", header...).echo(t)
		if got := e.Header.Get("X-Auth-Request-Access-Token"); got != "s3cret" {
			t.Errorf("a trusted job sees %q", got)
		}
		if got := e.Header.Get("X-Forwarded-Access-Token"); (got != "") != (trusted != nil) {
			t.Errorf("a trusted job sees %q of a proxy, trusted: %t", got, trusted != nil)
		}
	}
}

// An operation that an admin trusts gets the credentials, and still no header in the proxy's name.
func TestForwardCredentialsTo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		config  string
		service discovery.Service
		want    bool
	}{
		{"user", "jovyan", discovery.Service{User: "jovyan"}, true},
		{"alias", "*notebook", discovery.Service{Alias: "*notebook"}, true},
		{"an alias that is a trusted user's name", "jovyan", discovery.Service{User: "mallory", Alias: "*jovyan"}, false},
		{"a user with a trusted alias's name", "*notebook", discovery.Service{User: "notebook"}, false},
		{"somebody else", "notebook", discovery.Service{User: "mallory", Alias: "*other"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, func(cfg *Config) { cfg.ForwardCredentialsTo = []string{c.config} })
			s := w.publish(c.service, serveUnguarded(t, echoJob("a")))
			a := w.get(host(s), "/", "Authorization: Bearer "+aliceToken, "Cookie: YTCypressCookie=s3cret", "X-Csrf-Token: s3cret", "X_Yt_Taskproxy_User: root")
			h := a.echo(t).Header
			if got := h.Get("Authorization") != "" && h.Get("Cookie") != "" && h.Get("X-Csrf-Token") != ""; got != c.want {
				t.Errorf("credentials at the job: %t, want %t (%v)", got, c.want, h)
			}
			if h.Get(UserHeader) != "alice" || h["X_yt_taskproxy_user"] != nil {
				t.Errorf("identity headers at the job: %v", h)
			}
		})
	}
}

func TestForwardedHeaders(t *testing.T) {
	t.Parallel()
	sent := []string{"X-Forwarded-For: 6.6.6.6", "X-Forwarded-Proto: https", "X-Forwarded-Host: evil.test", "X-Forwarded-Prefix: /p",
		"Forwarded: for=6.6.6.6", "X-Real-Ip: 6.6.6.6", "X_Forwarded_For: 6.6.6.6"}
	for _, c := range []struct {
		name                     string
		trusted, scheme          string
		wantFor, proto, hostname string
		prefix                   string
	}{
		{"from strangers", "", "", "127.0.0.1", "http", "", ""},
		{"from strangers, with a public scheme", "10.0.0.0/8", "https", "127.0.0.1", "https", "", ""},
		{"from a trusted proxy", "127.0.0.0/8", "http", "6.6.6.6, 127.0.0.1", "https", "evil.test", "/p"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, func(cfg *Config) {
				cfg.PublicScheme = c.scheme
				if c.trusted != "" {
					cfg.TrustedProxies = []netip.Prefix{netip.MustParsePrefix(c.trusted)}
				}
			})
			s := w.publish(discovery.Service{}, serve(t, echoJob("a")))
			h := w.get(host(s), "/", sent...).echo(t).Header
			if c.hostname == "" {
				c.hostname = host(s)
			}
			got := []string{h.Get("X-Forwarded-For"), h.Get("X-Forwarded-Proto"), h.Get("X-Forwarded-Host"), h.Get("X-Forwarded-Prefix")}
			if want := []string{c.wantFor, c.proto, c.hostname, c.prefix}; !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
			if h["Forwarded"] != nil || h["X_forwarded_for"] != nil {
				t.Errorf("still there: %v", h)
			}
		})
	}
}

// Path and query arrive byte for byte; only bytes that no URI may contain are encoded.
func TestTargetBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, echoJob("a")))
	for _, c := range []struct{ sent, want string }{
		{"/", "/"},
		{"/?", "/?"},
		{"//evil.test/x", "//evil.test/x"},
		{"/a/../b/./c//d", "/a/../b/./c//d"},
		{"/a%2Fb%2e%2E%5c", "/a%2Fb%2e%2E%5c"},
		{"/a%2Fb{c}", "/a%2Fb%7Bc%7D"},
		{"/a%2Fb|c\\d\"<>^`", "/a%2Fb%7Cc%5Cd%22%3C%3E%5E%60"},
		{"/\xc3\xa9%2F", "/%C3%A9%2F"},
		{"/[x]/!$&'()*+,;=:@~", "/[x]/!$&'()*+,;=:@~"},
		{"/p?a=1;b=2&c=%zz&%&=", "/p?a=1;b=2&c=%zz&%&="},
		{"/p?q[]=1&r={x}|\"y\"\xff", "/p?q[]=1&r=%7Bx%7D%7C%22y%22%FF"},
		{"/p?a=/b?c", "/p?a=/b?c"},
		{"/*", "/*"},
	} {
		a := w.raw("GET " + c.sent + " HTTP/1.1\r\nHost: " + host(s) + "\r\nAuthorization: " + aliceOAuth + "\r\nConnection: close\r\n\r\n")
		if a.StatusCode != 200 {
			t.Errorf("%q: got %d %s", c.sent, a.StatusCode, a.body)
			continue
		}
		if got := a.echo(t).Target; got != c.want {
			t.Errorf("%q: the job saw %q, want %q", c.sent, got, c.want)
		}
	}
}

// Trailers pass in both directions, without what must not pass.
func TestRequestTrailers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, echoJob("a")))
	for _, announce := range []string{"", "Trailer: X-Sum, X-Yt-Token, Cookie, X_Csrf_Token\r\n"} {
		a := w.raw("POST / HTTP/1.1\r\nHost: " + host(s) + "\r\nAuthorization: " + aliceOAuth + "\r\nTransfer-Encoding: chunked\r\n" + announce +
			"Connection: close\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 42\r\nX-Yt-Token: s3cret\r\nCookie: YTCypressCookie=s3cret\r\nX_Csrf_Token: s3cret\r\n" +
			"Authorization: OAuth s3cret\r\nContent-Length: 3\r\nX-Yt-Taskproxy-User: root\r\n\r\n")
		e := a.echo(t)
		if e.Body != "hello" || e.Trailer.Get("X-Sum") != "42" {
			t.Errorf("%q: the job saw %+v", announce, e)
		}
		if len(e.Trailer) != 1 {
			t.Errorf("%q: more trailers at the job: %v", announce, e.Trailer)
		}
	}
}

func TestHTTP2RequestTrailers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, echoJob("a")))
	h2 := &http.Transport{Protocols: new(http.Protocols)}
	h2.Protocols.SetUnencryptedHTTP2(true)
	defer h2.CloseIdleConnections()
	r := w.request("POST", host(s), "/", strings.NewReader("hello"))
	r.Trailer = http.Header{"X-Sum": {"42"}, "X-Yt-Token": {"s3cret"}}
	res, err := h2.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	if e := (answer{res, string(b)}).echo(t); e.Body != "hello" || e.Trailer.Get("X-Sum") != "42" || len(e.Trailer) != 1 {
		t.Errorf("the job saw %+v", e)
	}
}

// Every Upgrade but websocket is taken out and the request served as HTTP/1.1.
func TestOtherUpgradesAreServedAsHTTP1(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, echoJob("a")))
	for _, c := range []string{
		"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n",
		"Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
		"Connection: Upgrade\r\nUpgrade: \x80odd\r\n",
		"Connection: Upgrade\r\nUpgrade: tls/1.0\r\n",
		"Upgrade: websocket\r\n", // not asked for in Connection
	} {
		a := w.raw("GET / HTTP/1.1\r\nHost: " + host(s) + "\r\nAuthorization: " + aliceOAuth + "\r\n" + c + "\r\n")
		h := a.echo(t).Header
		if h["Upgrade"] != nil || h["Http2-Settings"] != nil || h["Connection"] != nil {
			t.Errorf("%q: at the job: %v", c, h)
		}
	}
}

// Input of which smuggling is made arrives as one request with one framing, or not at all.
func TestOneRequestOneFraming(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct{ name, text, body string }{
		{"length and chunked", "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "hello"},
		{"equal lengths twice", "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", "hello"},
		{"chunk extension", "Transfer-Encoding: chunked\r\n\r\n5;x=\"y\"\r\nhello\r\n0\r\n\r\n", "hello"},
		{"folded header", "X-Fold: a\r\n b\r\nContent-Length: 5\r\n\r\nhello", "hello"},
		{"bare LF", "X-A: b\nContent-Length: 5\n\nhello", "hello"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := w.publish(discovery.Service{}, rawJob(t, func(conn net.Conn, r *http.Request, rest *bufio.Reader) {
				body, err := io.ReadAll(r.Body)
				if err != nil || string(body) != c.body {
					t.Errorf("body %q, %v", body, err)
				}
				if n := rest.Buffered(); n > 0 {
					t.Errorf("%d bytes after the request", n)
				}
				if (r.ContentLength >= 0) == (len(r.TransferEncoding) > 0) {
					t.Errorf("two framings or none: length %d, %v", r.ContentLength, r.TransferEncoding)
				}
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
			}))
			a := w.raw("POST / HTTP/1.1\r\nHost: " + host(s) + "\r\nAuthorization: " + aliceOAuth + "\r\n" + c.text)
			if a.StatusCode != 200 || a.body != "ok" {
				t.Errorf("got %d %q", a.StatusCode, a.body)
			}
		})
	}
	for _, c := range []struct {
		name, text string
		status     int
	}{
		{"TE: gzip, chunked", "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
		{"bare CR", "X-A: b\rc\r\n\r\n", 400},
		{"unknown Expect", "Expect: wonders\r\nContent-Length: 1\r\n\r\nx", 417},
		{"big header", "X-A: " + strings.Repeat("a", 80<<10) + "\r\n\r\n", 431},
	} {
		t.Run("by net/http: "+c.name, func(t *testing.T) {
			a := w.raw("POST / HTTP/1.1\r\nHost: x\r\n" + c.text)
			if a.StatusCode != c.status {
				t.Errorf("got %d, want %d", a.StatusCode, c.status)
			}
		})
	}
}

func TestStripCookie(t *testing.T) {
	t.Parallel()
	ru := &rules{cookie: cookieName}
	f := func(in, want string) {
		t.Helper()
		got, ok := ru.stripCookie(in, "")
		if !ok {
			got = "<none>"
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	f("a=1", "a=1")
	f("a=1; b = 2 ;c", "a=1; b = 2 ;c")
	f("", "")

	f("YTCypressCookie=x", "<none>")
	f(" ; YTCypressCookie=x ; ", "<none>")
	f("YTCypressCookie=x; a=1", "a=1")
	f("a=1; YTCypressCookie=x", "a=1")
	f("a=1; YTCypressCookie=x; b=2;", "a=1; b=2;")
	f("YTCypressCookie=x; a=1; YTCypressCookie=y; b=2; YTCypressCookie=z", "a=1; b=2")

	f("ytcypresscookie=x; a=1", "a=1")
	f("YTCypressCookie x", "<none>")
	f("YTCypressCookie\tx; a=1", "a=1")
	f("a=1; YTCypressCookie = x", "a=1")
	f("YTCypressCookie", "<none>")

	f(`YTCypressCookie="x;y"; a=1`, "a=1")
	f(`YTCypressCookie="x; a=1`, "a=1")
	f("YTCypressCookie=x,y; a=1", "a=1")
	f("a=1, YTCypressCookie=x; b=2", "a=1; b=2")
	f(`a="1; YTCypressCookie=x; b=2"`, `a="1; b=2"`)

	f("=YTCypressCookie=x; a=1", "a=1")
	f("==YTCypressCookie=x", "<none>")
	f("$YTCypressCookie=x; $Path=/; a=1", "$Path=/; a=1")
	f("a=1;\u00a0YTCypressCookie=x", "a=1")
	f("a=1;\xa0YTCypressCookie=x", "a=1")
	f("a=1;\x00\x01YTCypressCookie=x", "a=1")
	f("YTCypressCookie\u00a0=x; a=1", "a=1")
	f("YTCypressCookie:x; a=1", "a=1")
	f("YTCypressCookie[0]=x; YTCypressCookie[]=y; a=1", "a=1")
	f(`"YTCypressCookie"=x; b="2"`, `b="2"`)
	f(`'YTCypressCookie'=x; b='2'`, `b='2'`)
	f(`"YTCypressCookie"="x;y"; b="2"`, `b="2"`)
	f("a=1 YTCypressCookie=x; b=2", "a=1; b=2")
	f("a=1 \t YTCypressCookie=x", "a=1")
	f("a=1 $YTCypressCookie=x; b=2", "a=1; b=2")
	f(`YTCypressCookie="x\";y"; a=1`, "a=1")
	f(`YTCypressCookie="x\`, "<none>")

	f("XYTCypressCookie=1; YTCypressCookie2=2; YTCypressCookie-x=3", "XYTCypressCookie=1; YTCypressCookie2=2; YTCypressCookie-x=3")
	f("a=YTCypressCookie=x", "a=YTCypressCookie=x")
	f("_YTCypressCookie=1; -YTCypressCookie=2; .YTCypressCookie=3; __Host-YTCypressCookie=4; a=5", "a=5")
	f("a=b/YTCypressCookie=x; c=d\"YTCypressCookie", "a=b/YTCypressCookie=x; c=d\"YTCypressCookie")

	// What the cluster's web interface adds: <cluster>_<name>, and its own tokens.
	f("alpha_YTCypressCookie=x; a=1; beta-ytcypresscookie=y; my.cluster.YTCypressCookie=z", "a=1")
	f(`a=1; "alpha_YTCypressCookie"="x;y"; b=2`, "a=1; b=2")
	f("a=1 alpha_YTCypressCookie=x; b=2", "a=1; b=2")
	f("$alpha_YTCypressCookie=x; alpha$YTCypressCookie=y; alpha_YTCypressCookie[0]=z; a=1", "a=1")
	f("yt_oauth_access_token=x; a=1; YT_OAUTH_REFRESH_TOKEN=y; alpha_yc_session=z; b=2", "a=1; b=2")
	f("alphaYTCypressCookie=1; access_token=2; my_session=3; yt_oauth_access_tokens=4", "alphaYTCypressCookie=1; access_token=2; my_session=3; yt_oauth_access_tokens=4")

	// What the caller was identified by, under any name.
	f = func(in, want string) {
		t.Helper()
		if got, _ := ru.stripCookie(in, "abc%/=="); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	f("a=1; access_token=abc%/==; b = 2 ;c", "a=1; b = 2 ;c")
	f(`access_token="abc%/=="; a=1`, "a=1")
	f("access_token = abc%/== ; a=1", "access_token =; a=1")
	f("access_token=abc%25%2f%3D%3d; a=1", "a=1")
	f("access_token=%61bc%25/==; a=1", "a=1")
	f(`access_token="Bearer abc%/=="; a=1`, `access_token="Bearer; a=1`)
	f("x y=abc%/== YTCypressCookie=1; a=1", "x; a=1")
	f("x YTCypressCookie=1 y=abc%/==; a=1", "x; a=1")
	f("abc%/==", "")
	f("access_token=abc%/=; b=abc%/===; c=abcd%/==; d=abc%25%2f%3D%3; e=%; f=%zz", "access_token=abc%/=; b=abc%/===; c=abcd%/==; d=abc%25%2f%3D%3; e=%; f=%zz")
	// Nobody makes it look at the same bytes again and again.
	for _, piece := range []string{" ", "$", " $", "; ", "x ", "_", "_a", "%61", `YTCypressCookie="`, `\`} {
		long := strings.Repeat(piece, 1<<20/len(piece))
		if got, _ := ru.stripCookie(long, "xx xx"); strings.Contains(got, cookieName) {
			t.Errorf("%q many times: something is left", piece)
		}
	}
}

func TestHarmlessCookiesCostNothing(t *testing.T) {
	ru := &rules{cookie: cookieName}
	harmless := "a=1; access_token=" + strings.Repeat("y", 40) + "; b=100%25; my-session=\"x%20y%20zzzz\"; c"
	if n := testing.AllocsPerRun(10, func() { _, _ = ru.stripCookie(harmless, "abc%/==") }); n != 0 {
		t.Errorf("%v allocations for cookies that stay", n)
	}
}

// Whatever the spelling, the value of the cluster's cookie never remains and the others keep their bytes.
func FuzzStripCookie(f *testing.F) {
	f.Add("a=1", "v", "b=2", uint8(0))
	f.Add(` x = "y" `, `"v"`, "", uint8(1))
	f.Add("a=1,2", "v,w", "c", uint8(2))
	f.Add("", "v", "=", uint8(7))
	ru := &rules{cookie: cookieName}
	f.Fuzz(func(t *testing.T, before, value, after string, spelling uint8) {
		lower := strings.ToLower(before + ";" + after)
		if strings.ContainsAny(before+after, ";") || strings.Contains(lower, strings.ToLower(cookieName)) || strings.ContainsAny(value, ";\"") {
			t.Skip()
		}
		name := cookieName
		if spelling&1 != 0 {
			name = strings.ToUpper(name)
		}
		equals := []string{"=", " = ", "\t=", " "}[spelling>>1&3]
		in := before + "; " + name + equals + "s3cret" + value + ";" + after
		got, ok := ru.stripCookie(in, "")
		if ok && strings.Contains(got, "s3cret") {
			t.Fatalf("%q leaves %q", in, got)
		}
		want := before + ";" + after
		if before == "" {
			want = strings.TrimLeft(after, " \t")
		}
		if ok && got != want {
			t.Fatalf("%q: got %q, want %q", in, got, want)
		}
		if !ok && trimSpace(strings.Trim(before, ", \t\r\n\v\f"))+trimSpace(strings.Trim(after, ", \t\r\n\v\f")) != "" {
			t.Fatalf("%q: other cookies are gone", in)
		}
	})
}

// Arbitrary bytes: nothing panics, and what remains holds no cookie of that name by net/http's reading.
func FuzzStripCookieAnything(f *testing.F) {
	f.Add("YTCypressCookie=1; a=2")
	f.Add(`YTCypressCookie="a;YTCypressCookie=b"`)
	f.Add(",YTCypressCookie=1,;YTCypressCookie 2")
	f.Add("yt_taskproxy_affinity=1; a=2")
	ru := &rules{cookie: cookieName}
	f.Fuzz(func(t *testing.T, in string) {
		got, ok := ru.stripCookie(in, "")
		if !ok {
			return
		}
		r := &http.Request{Header: http.Header{"Cookie": {got}}}
		for _, c := range r.Cookies() {
			if strings.EqualFold(c.Name, cookieName) || strings.EqualFold(c.Name, affinityCookie) {
				t.Fatalf("%q leaves %q", in, got)
			}
		}
		if again, _ := ru.stripCookie(got, ""); again != got {
			t.Fatalf("%q: %q, then %q", in, got, again)
		}
	})
}

// net/http's server must not put a Host header of the caller's choice into the job's request by way of an odd host.
func TestHostIsPreserved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, echoJob("a")))
	for _, h := range []string{host(s), strings.ToUpper(host(s)), host(s) + ":8080", host(s) + "."} {
		if got := w.get(h, "/").echo(t).Host; got != h {
			t.Errorf("the job saw host %q, want %q", got, h)
		}
	}
}

func ExampleNewTable() {
	table := NewTable()
	snapshot, _ := discovery.NewSnapshot(nil, nil, []discovery.Service{{OperationID: "1-2-3e8-4", Task: "master", Name: "ui", Protocol: discovery.HTTP}})
	table.Store(snapshot)
	fmt.Println(table.Load().Len())
	// Output: 1
}

// What is cut off a connection's address is the text that its IP address has.
func TestPeerText(t *testing.T) {
	t.Parallel()
	for remote, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1", "[::ffff:192.0.2.1]:80": "192.0.2.1", "[2001:db8::1]:80": "2001:db8::1", "[2001:DB8:0::1]:80": "2001:db8::1", "[fe80::1%eth0]:80": "fe80::1",
		"": "", "@": "", ":80": "", "192.0.2.1": "", "192.0.2.01:80": "", "[192.0.2.1]:80": "", "::1:80": "", "name:80": "",
	} {
		if got := peerText(remote); got != want {
			t.Errorf("%s: got %q, want %q", remote, got, want)
		}
	}
}
