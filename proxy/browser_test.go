package proxy

import (
	"crypto/tls"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"

	"taskproxy/discovery"
)

const (
	cookieLine = "Cookie: YTCypressCookie=" + aliceToken
	appOrigin  = "https://app.example.com"
)

// town is one service that pages of others want to call: sister is of its operation, stranger of another.
type town struct {
	*world
	victim, sister, stranger *discovery.Service
	calls                    atomic.Int32 // that reached the victim's job
}

func newTown(t *testing.T, configure ...func(*Config)) *town {
	c := &town{world: newWorld(t, configure...)}
	count := func(h http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { c.calls.Add(1); h(w, r) }
	}
	c.victim = c.publish(discovery.Service{OperationID: "1-2-3e8-a", Name: "ui"}, serve(t, count(echoJob("victim"))))
	c.sister = c.publish(discovery.Service{OperationID: "1-2-3e8-a", Name: "api"})
	c.stranger = c.publish(discovery.Service{OperationID: "1-2-3e8-b", Name: "ui"})
	return c
}

// What a page can make its visitor's browser send to a service, as browsers describe it, and whether it reaches the job.
func TestSiblings(t *testing.T) {
	t.Parallel()
	town := newTown(t)
	// Services that differ from the victim in what they allow.
	framed := town.publish(discovery.Service{OperationID: "1-2-3e8-c", Origins: []string{appOrigin}}, serve(t, echoJob("open")))
	origin := func(s *discovery.Service) string { return "Origin: http://" + host(s) }
	fetch := func(site, mode, dest string) []string {
		return []string{"Sec-Fetch-Site: " + site, "Sec-Fetch-Mode: " + mode, "Sec-Fetch-Dest: " + dest}
	}
	with := func(header []string, more ...string) []string { return append(slices.Clone(header), more...) }
	const pass, refuse = true, false

	for _, c := range []struct {
		name   string
		method string // empty: GET
		header []string
		want   bool
	}{
		// The word of browsers that say who asks.
		{"typed address", "", fetch("none", "navigate", "document"), pass},
		{"own page, script", "POST", with(fetch("same-origin", "cors", "empty"), origin(town.victim)), pass},
		{"own page, image", "", fetch("same-origin", "no-cors", "image"), pass},
		{"own page, frame", "", fetch("same-origin", "navigate", "iframe"), pass},
		{"link from a sibling", "", fetch("same-site", "navigate", "document"), pass},
		{"link from elsewhere", "", fetch("cross-site", "navigate", "document"), pass},
		{"HEAD navigation", "HEAD", fetch("cross-site", "navigate", "document"), pass},
		{"link from a sibling, fetched in advance", "", with(fetch("same-site", "navigate", "document"), "Sec-Purpose: prefetch"), refuse},
		{"link from elsewhere, rendered in advance", "", with(fetch("cross-site", "navigate", "document"), "Sec-Purpose: prefetch;prerender"), refuse},
		{"link from a sibling, fetched in advance by an older browser", "", with(fetch("same-site", "navigate", "document"), "Purpose: prefetch"), refuse},
		{"link from a sibling, previewed", "", with(fetch("same-site", "navigate", "document"), "X-Purpose: preview"), refuse},
		{"link from a sibling, fetched in advance by Firefox", "", with(fetch("same-site", "navigate", "document"), "X-Moz: prefetch"), refuse},
		{"typed address, rendered in advance", "", with(fetch("none", "navigate", "document"), "Sec-Purpose: prefetch;prerender"), pass},
		{"own page, fetched in advance", "", with(fetch("same-origin", "navigate", "document"), "Sec-Purpose: prefetch"), pass},
		{"sibling, fetch", "", with(fetch("same-site", "cors", "empty"), origin(town.stranger)), refuse},
		{"sibling, fetch without reading", "", fetch("same-site", "no-cors", "empty"), refuse},
		{"sibling, image", "", fetch("same-site", "no-cors", "image"), refuse},
		{"sibling, script", "", fetch("same-site", "no-cors", "script"), refuse},
		{"sibling, frame", "", fetch("same-site", "navigate", "iframe"), refuse},
		{"sibling, object", "", fetch("same-site", "navigate", "object"), refuse},
		{"sibling, embed", "", fetch("same-site", "navigate", "embed"), refuse},
		{"sibling, form", "POST", with(fetch("same-site", "navigate", "document"), origin(town.stranger)), refuse},
		{"sibling, form of a page that says no origin", "POST", with(fetch("same-site", "navigate", "document"), "Origin: null"), refuse},
		{"sibling, PUT", "PUT", with(fetch("same-site", "cors", "empty"), origin(town.stranger)), refuse},
		{"sibling, OPTIONS", "OPTIONS", with(fetch("same-site", "cors", "empty"), origin(town.stranger), "Access-Control-Request-Method: PUT"), refuse},
		{"elsewhere, fetch", "", with(fetch("cross-site", "cors", "empty"), "Origin: https://evil.test"), refuse},
		{"elsewhere, form", "POST", with(fetch("cross-site", "navigate", "document"), "Origin: https://evil.test"), refuse},
		{"claims the own origin, but the browser says otherwise", "POST", with(fetch("cross-site", "cors", "empty"), "Origin: https://evil.test"), refuse},
		{"same operation, fetch", "", with(fetch("same-site", "cors", "empty"), origin(town.sister)), pass},
		{"same operation, form", "POST", with(fetch("same-site", "navigate", "document"), origin(town.sister)), pass},
		{"the service by its long ID", "POST", with(fetch("same-site", "cors", "empty"), "Origin: http://"+town.victim.LongID+"."+base), pass},
		{"same operation, another port", "", with(fetch("same-site", "cors", "empty"), origin(town.sister)+":31234"), refuse},
		{"same operation, image: nobody says which sibling", "", fetch("same-site", "no-cors", "image"), refuse},
		{"no service of that name", "", with(fetch("same-site", "cors", "empty"), "Origin: http://00000000."+base), refuse},
		{"the proxy's own host", "", with(fetch("same-site", "cors", "empty"), "Origin: http://"+base), refuse},

		// What no browser sends is no reason to pass.
		{"unknown site", "", fetch("same-party", "navigate", "document"), refuse},
		{"empty site", "", fetch("", "navigate", "document"), refuse},
		{"list of sites", "", fetch("same-origin, cross-site", "cors", "empty"), refuse},
		{"capital letters", "", fetch("Same-Origin", "cors", "empty"), refuse},
		{"unknown mode", "", fetch("cross-site", "nested-navigate", "document"), refuse},
		{"no mode", "", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Dest: document"}, refuse},
		{"no destination", "", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"}, refuse},
		{"two sites", "", []string{"Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: same-origin"}, refuse},
		{"two sites, the other way round", "", []string{"Sec-Fetch-Site: none", "Sec-Fetch-Site: cross-site"}, refuse},
		{"two modes", "", with(fetch("cross-site", "navigate", "document"), "Sec-Fetch-Mode: cors"), refuse},
		{"two destinations", "", with(fetch("cross-site", "navigate", "document"), "Sec-Fetch-Dest: image"), refuse},
		{"two origins", "", []string{origin(town.victim), origin(town.stranger)}, refuse},
		{"twice the own origin", "", []string{origin(town.victim), origin(town.victim)}, refuse},

		// Browsers that say nothing of this: old ones, and all of them on plain http.
		{"neither header", "POST", nil, pass},
		{"own origin", "POST", []string{origin(town.victim)}, pass},
		{"own origin, capital letters", "POST", []string{"Origin: http://" + strings.ToUpper(host(town.victim))}, pass},
		{"own origin by https, TLS in front", "POST", []string{"Origin: https://" + host(town.victim)}, pass},
		{"own name, another port", "POST", []string{origin(town.victim) + ":8080"}, refuse},
		{"sibling's origin", "POST", []string{origin(town.stranger)}, refuse},
		{"sibling's origin, GET", "", []string{origin(town.stranger)}, refuse},
		{"sister's origin", "POST", []string{origin(town.sister)}, pass},
		{"null", "POST", []string{"Origin: null"}, refuse},
		{"empty origin", "POST", []string{"Origin: "}, refuse},
		{"own name without a scheme", "POST", []string{"Origin: " + host(town.victim)}, refuse},
		{"another scheme", "POST", []string{"Origin: chrome-extension://" + host(town.victim)}, refuse},
		{"own origin and a path", "POST", []string{origin(town.victim) + "/"}, refuse},
		{"own name before an at sign", "POST", []string{origin(town.victim) + "@evil.test"}, refuse},
		{"own name after an at sign", "POST", []string{"Origin: http://evil@" + host(town.victim)}, refuse},
		{"own name as the beginning", "POST", []string{origin(town.victim) + ".evil.test"}, refuse},
		{"list of origins", "POST", []string{origin(town.victim) + " https://evil.test"}, refuse},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := town.calls.Load()
			method := c.method
			if method == "" {
				method = http.MethodGet
			}
			a := town.do(town.request(method, host(town.victim), "/", nil, with(c.header, cookieLine)...))
			if c.want == pass {
				if a.StatusCode != 200 || town.calls.Load() != before+1 {
					t.Errorf("got %d %q, %d calls of the job", a.StatusCode, a.Header.Get("X-Yt-Taskproxy-Error"), town.calls.Load()-before)
				}
			} else {
				a.check(t, 403, "cross_site")
				if town.calls.Load() != before {
					t.Error("the job was called")
				}
			}
			// A token is nothing that a browser adds by itself.
			for _, token := range []string{"Authorization: " + aliceOAuth, "X-Yt-Taskproxy-Authorization: " + aliceOAuth} {
				if a := town.do(town.request(method, host(town.victim), "/", nil, with(c.header, token)...)); a.StatusCode != 200 {
					t.Errorf("with a token: got %d %q", a.StatusCode, a.Header.Get("X-Yt-Taskproxy-Error"))
				}
			}
		})
	}

	t.Run("a frame where framing is allowed", func(t *testing.T) {
		for header, want := range map[string]int{"Sec-Fetch-Dest: iframe": 200, "Sec-Fetch-Dest: frame": 200, "Sec-Fetch-Dest: object": 403, "Sec-Fetch-Dest: image": 403} {
			if a := town.get(host(framed), "/", cookieLine, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", header); a.StatusCode != want {
				t.Errorf("%s: got %d, want %d", header, a.StatusCode, want)
			}
		}
		a := town.do(town.request("POST", host(framed), "/", nil, cookieLine, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"))
		a.check(t, 403, "cross_site")
	})
}

// A plain http page does not speak for https, also where old browsers do not say so.
func TestHTTPPageIsAStrangerToHTTPS(t *testing.T) {
	t.Parallel()
	town := newTown(t, func(c *Config) { c.PublicScheme = "https" })
	for origin, want := range map[string]int{"https://": 200, "http://": 403} {
		for _, s := range []*discovery.Service{town.victim, town.sister} {
			if a := town.get(host(town.victim), "/", cookieLine, "Origin: "+origin+host(s)); a.StatusCode != want {
				t.Errorf("%s%s: got %d, want %d", origin, s.Name, a.StatusCode, want)
			}
		}
	}
	r := &http.Request{TLS: new(tls.ConnectionState)}
	if got := new(rules).schemeOf(r); got != "https" {
		t.Errorf("over TLS: %s", got)
	}
}

func TestOriginPorts(t *testing.T) {
	t.Parallel()
	bases, _ := discovery.NewBases(base)
	f := func(requestHost, origin string, want bool) {
		t.Helper()
		if got := (&rules{bases: bases}).isOwnOrigin(&http.Request{Host: requestHost}, origin); got != want {
			t.Errorf("%s for %s: got %t, want %t", origin, requestHost, got, want)
		}
	}
	f("a.test", "http://a.test", true)
	f("a.test:80", "http://a.test", true)
	f("a.test:443", "https://a.test", true)
	f("a.test:8080", "http://a.test:8080", true)
	f("a.test.", "http://a.test", true)
	f("[::1]:8080", "http://[::1]:8080", true)
	f("[::1]", "http://[::1]", true)

	f("a.test:80", "https://a.test", false)
	f("a.test:443", "http://a.test", false)
	f("a.test:8080", "http://a.test", false)
	f("a.test", "http://a.test:8080", false)
	f("[::1]:8080", "http://[::1]:8081", false)
	f("[::1]", "http://[::2]", false)
	f("a.test", "null", false)
	f("a.test", "", false)
}

// WebSocket handshakes are held to the same rules, by Origin alone or by what newer browsers say.
func TestSiblingsWebSocket(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	job := serveUnguarded(t, wsEcho(t, &websocket.AcceptOptions{InsecureSkipVerify: true}))
	s := w.publish(discovery.Service{OperationID: "1-2-3e8-a", Origins: []string{appOrigin}}, job)
	sister := w.publish(discovery.Service{OperationID: "1-2-3e8-a", Name: "api"})
	stranger := w.publish(discovery.Service{OperationID: "1-2-3e8-b"})
	for _, c := range []struct {
		name, origin, site string
		want               int
	}{
		{"no browser", "", "", 101},
		{"own page", "http://" + host(s), "", 101},
		{"own page, newer browser", "http://" + host(s), "same-origin", 101},
		{"same operation", "http://" + host(sister), "", 101},
		{"same operation, newer browser", "http://" + host(sister), "same-site", 101},
		{"named origin", appOrigin, "cross-site", 101},
		{"sibling", "http://" + host(stranger), "", 403},
		{"sibling, newer browser", "http://" + host(stranger), "same-site", 403},
		{"elsewhere", "https://evil.test", "", 403},
		{"null", "null", "", 403},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, credential := range []string{"Cookie", "Authorization"} {
				header := http.Header{"Cookie": {"YTCypressCookie=" + aliceToken}}
				want := c.want
				if credential == "Authorization" {
					header, want = http.Header{"Authorization": {aliceOAuth}}, 101
				}
				if c.origin != "" {
					header.Set("Origin", c.origin)
				}
				if c.site != "" {
					header.Set("Sec-Fetch-Site", c.site)
					header.Set("Sec-Fetch-Mode", "websocket")
					header.Set("Sec-Fetch-Dest", "websocket")
				}
				conn, res, err := w.dialWebSocket(host(s), &websocket.DialOptions{HTTPHeader: header})
				if res == nil {
					t.Fatal(err)
				}
				if res.StatusCode != want || want == 403 && res.Header.Get("X-Yt-Taskproxy-Error") != "cross_site" {
					t.Errorf("%s: got %d %q, want %d", credential, res.StatusCode, res.Header.Get("X-Yt-Taskproxy-Error"), want)
				}
				if err == nil {
					conn.CloseNow()
				}
			}
		})
	}
}

// A host that services share vouches for none of them: its pages are strangers to all, and run nothing.
func TestSharedOrigin(t *testing.T) {
	t.Parallel()
	town := newTown(t)
	id := "X-Yt-Taskproxy-Id: " + town.victim.ID
	for _, h := range []string{base, "task-proxy." + base, "127.0.0.1"} {
		own := "Origin: http://" + h
		town.get(h, "/", cookieLine, id, "Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty").check(t, 403, "cross_site")
		town.do(town.request("POST", h, "/", nil, cookieLine, id, own)).check(t, 403, "cross_site")
		for _, header := range [][]string{
			{cookieLine, id},
			{cookieLine, id, "Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"},
			{id, "Authorization: " + aliceOAuth, own},
		} {
			a := town.get(h, "/", header...)
			if a.StatusCode != 200 || a.Header.Get("Content-Security-Policy") != sharedPolicy || a.Header.Get("Cache-Control") != "no-store" || !slices.Contains(a.Header["Vary"], HeaderID) {
				t.Errorf("%s %q: got %d, %v", h, header, a.StatusCode, a.Header)
			}
		}
	}
}

// An origin that the annotation names may call, also with the cookie, and read the answer; the job has no say in that.
func TestCrossSiteOrigins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	job := serve(t, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Access-Control-Allow-Origin", "https://jobs.own.test")
		rw.Header().Set("Access-Control-Allow-Credentials", "false")
		rw.Header().Set("Access-Control-Expose-Headers", "X-Sum")
	})
	open := w.publish(discovery.Service{Origins: []string{appOrigin, "http://localhost:3000"}}, job)
	closed := w.publish(discovery.Service{}, job)
	empty := w.publish(discovery.Service{Origins: []string{appOrigin}})
	fetch := []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty"}
	ask := func(s *discovery.Service, origin string, header ...string) answer {
		return w.do(w.request("POST", host(s), "/", nil, slices.Concat(fetch, []string{"Origin: " + origin}, header)...))
	}
	for _, origin := range open.Origins {
		for _, credential := range []string{cookieLine, "Authorization: " + aliceOAuth} {
			a := ask(open, origin, credential)
			h := a.Header
			if a.StatusCode != 200 || !slices.Equal(h["Access-Control-Allow-Origin"], []string{origin}) ||
				!slices.Equal(h["Access-Control-Allow-Credentials"], []string{"true"}) || !slices.Contains(h["Vary"], "Origin") || h.Get("Access-Control-Expose-Headers") != "X-Sum" {
				t.Errorf("%s, %s: got %d, %v", origin, credential, a.StatusCode, h)
			}
		}
	}
	// Also our own answers, so that the page learns why; but nothing before the caller is known.
	a := ask(empty, appOrigin, cookieLine)
	a.check(t, 503, "no_endpoints")
	if a.Header.Get("Access-Control-Allow-Origin") != appOrigin {
		t.Errorf("503: %v", a.Header)
	}
	a = ask(open, appOrigin, "-")
	a.check(t, 401, "no_credentials")
	if a.Header["Access-Control-Allow-Origin"] != nil {
		t.Errorf("401: %v", a.Header)
	}
	for _, origin := range []string{"https://app.example.com:8443", "http://app.example.com", "https://app.example.com.evil.test", "https://APP.example.com", "https://app.example.com/", "null", "*"} {
		a := ask(open, origin, cookieLine)
		a.check(t, 403, "cross_site")
		if a.Header["Access-Control-Allow-Origin"] != nil {
			t.Errorf("%s: %v", origin, a.Header)
		}
		// With a token the job's own words stand.
		if got := ask(open, origin, "Authorization: "+aliceOAuth).Header["Access-Control-Allow-Origin"]; !slices.Equal(got, []string{"https://jobs.own.test"}) {
			t.Errorf("%s with a token: %q", origin, got)
		}
	}
	ask(closed, appOrigin, cookieLine).check(t, 403, "cross_site")
	if got := w.get(host(open), "/", cookieLine).Header; !slices.Contains(got["Vary"], "Origin") {
		t.Errorf("an answer that depends on Origin: %v", got)
	}
}

// A preflight comes without credentials. It is answered for what an annotation names; otherwise it is a request like any
// other without credentials, and nobody learns what exists. No job is ever asked.
func TestPreflight(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var calls atomic.Int32
	job := serve(t, func(rw http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		rw.Header().Set("Access-Control-Allow-Origin", "*")
	})
	open := w.publish(discovery.Service{Origins: []string{appOrigin}}, job)
	closed := w.publish(discovery.Service{}, job)
	ask := func(host string, header ...string) answer {
		return w.do(w.request("OPTIONS", host, "/", nil, append(header, "-")...))
	}
	const origin, method = "Origin: " + appOrigin, "Access-Control-Request-Method: PUT"

	a := ask(host(open), origin, method, "Access-Control-Request-Headers: authorization,x-a, bad name,,x-b", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty")
	if a.StatusCode != 204 || a.body != "" || a.Header.Get("X-Request-Id") == "" {
		t.Fatalf("got %d %q, %v", a.StatusCode, a.body, a.Header)
	}
	for name, want := range map[string]string{
		"Access-Control-Allow-Origin": appOrigin, "Access-Control-Allow-Credentials": "true", "Access-Control-Allow-Methods": "PUT",
		"Access-Control-Allow-Headers": "authorization, x-a, x-b", "Access-Control-Max-Age": "600",
		"Vary": "Origin, Access-Control-Request-Method, Access-Control-Request-Headers",
	} {
		if got := a.Header[name]; !slices.Equal(got, []string{want}) {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}

	unknown := ask("00000000."+base, origin, method)
	unknown.check(t, 401, "no_credentials")
	for name, a := range map[string]answer{
		"closed":                 ask(host(closed), origin, method),
		"another origin":         ask(host(open), "Origin: https://evil.test", method),
		"null":                   ask(host(open), "Origin: null", method),
		"sibling":                ask(host(open), "Origin: http://"+host(closed), method),
		"two origins":            ask(host(open), origin, "Origin: https://evil.test", method),
		"no origin":              ask(host(open), method),
		"no method":              ask(host(open), origin),
		"no method's name":       ask(host(open), origin, "Access-Control-Request-Method: P\"T"),
		"header names another":   ask(host(open), origin, method, "X-Yt-Taskproxy-Id: "+closed.ID),
		"malformed routing":      ask(host(open), origin, method, "X-Yt-Taskproxy-Id: x"),
		"the proxy's own host":   ask(base, origin, method, "X-Yt-Taskproxy-Id: "+open.ID),
		"a host of nobody":       ask("10.0.0.1", origin, method, "X-Yt-Taskproxy-Id: "+open.ID),
		"not a preflight at all": w.get(host(open), "/", "-", origin, method),
	} {
		a.check(t, 401, "no_credentials")
		a.Header.Del("Date")
		a.Header.Del("X-Request-Id")
		unknown.Header.Del("Date")
		unknown.Header.Del("X-Request-Id")
		for key := range a.Header {
			if !slices.Equal(a.Header[key], unknown.Header[key]) {
				t.Errorf("%s: %s is %q, for an unknown service %q", name, key, a.Header[key], unknown.Header[key])
			}
		}
	}
	for _, credential := range []string{"Authorization: OAuth wrong", "Cookie: YTCypressCookie=wrong"} {
		w.do(w.request("OPTIONS", host(open), "/", nil, origin, method, credential)).check(t, 401, "invalid_credentials")
	}
	if n := calls.Load(); n != 0 {
		t.Errorf("%d preflights reached a job", n)
	}
	// With good credentials it is a request like any other.
	for _, credential := range []string{"Authorization: " + aliceOAuth, cookieLine} {
		if a := w.do(w.request("OPTIONS", host(open), "/", nil, origin, method, credential)); a.StatusCode != 200 || a.Header.Get("Access-Control-Allow-Origin") != appOrigin {
			t.Errorf("%s: got %d, %v", credential, a.StatusCode, a.Header)
		}
	}
	if n := calls.Load(); n != 2 {
		t.Errorf("%d calls of the job, want 2", n)
	}
}

// Where everybody may have everything, an annotation's origins are answered by us all the same, and nobody else's get through.
func TestPreflightWithoutAuthentication(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.Authorizer, c.AuthDisabled = nil, true })
	s := w.publish(discovery.Service{Origins: []string{appOrigin}}, serve(t, echoJob("a")))
	for origin, want := range map[string]int{appOrigin: 204, "https://else.test": 403} {
		if a := w.do(w.request("OPTIONS", host(s), "/", nil, "-", "Origin: "+origin, "Access-Control-Request-Method: PUT")); a.StatusCode != want {
			t.Errorf("%s: got %d, want %d", origin, a.StatusCode, want)
		}
	}
}

// Every answer of a job says who may frame it, beside what the job itself says.
func TestFrameAncestors(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.FrameAncestors = []string{"https://cluster.test", "https://portal.test"} })
	job := serve(t, func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/own" {
			rw.Header().Set("Content-Security-Policy", "default-src 'self'; frame-ancestors *")
			rw.Header().Set("X-Frame-Options", "DENY")
		}
		if r.URL.Path == "/same" {
			rw.WriteHeader(http.StatusNotModified)
		}
	})
	plain := w.publish(discovery.Service{}, job)
	open := w.publish(discovery.Service{Origins: []string{appOrigin}}, job)
	const ours = "frame-ancestors 'self' https://cluster.test https://portal.test"
	for _, c := range []struct {
		service *discovery.Service
		path    string
		want    []string
	}{
		{plain, "/", []string{ours}},
		{open, "/", []string{ours + " " + appOrigin}},
		{plain, "/own", []string{"default-src 'self'; frame-ancestors *", ours}},
		{plain, "/same", nil}, // it would take the place of what the stored answer says
	} {
		a := w.get(host(c.service), c.path)
		if got := a.Header["Content-Security-Policy"]; !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.path, got, c.want)
		}
		if (a.Header.Get("X-Frame-Options") != "") != (c.path == "/own") {
			t.Errorf("%s: X-Frame-Options %q", c.path, a.Header["X-Frame-Options"])
		}
	}
	// The browser's frame passes now; the policy says into whose page.
	if a := w.get(host(plain), "/", cookieLine, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"); a.StatusCode != 200 {
		t.Errorf("a frame: got %d", a.StatusCode)
	}
	for _, bad := range []string{"*", "cluster.test", "https://cluster.test/", "https://*.cluster.test", "'none'", "https://a.test; script-src *"} {
		bases, _ := discovery.NewBases(base)
		if _, err := New(Config{Bases: bases, Table: NewTable(), AuthDisabled: true, FrameAncestors: []string{bad}}); err == nil || !strings.Contains(err.Error(), "FrameAncestors") {
			t.Errorf("%q: error %v", bad, err)
		}
	}
}

// Where nobody is asked who they are, a browser's place in the network is what lets it in: the same rules hold for all.
func TestStrangersWithoutAuth(t *testing.T) {
	t.Parallel()
	town := newTown(t, func(c *Config) { c.AuthDisabled, c.Authorizer = true, nil })
	fetch := func(site, mode, dest string) []string {
		return []string{nobody, "Sec-Fetch-Site: " + site, "Sec-Fetch-Mode: " + mode, "Sec-Fetch-Dest: " + dest}
	}
	for _, header := range [][]string{
		fetch("cross-site", "no-cors", "empty"), fetch("same-site", "no-cors", "script"), append(fetch("cross-site", "cors", "empty"), "Origin: https://evil.test"),
		{nobody, "Origin: https://evil.test"}, {nobody, "Origin: null"}, {"Authorization: " + aliceOAuth, "Origin: https://evil.test"},
	} {
		town.do(town.request("POST", host(town.victim), "/api/kernels", strings.NewReader("{}"), header...)).check(t, 403, "cross_site")
	}
	if n := town.calls.Load(); n != 0 {
		t.Errorf("%d of them reached the job", n)
	}
	for _, header := range [][]string{
		{nobody}, fetch("same-origin", "cors", "empty"), {nobody, "Origin: http://" + host(town.victim)}, {nobody, "Origin: http://" + host(town.sister)},
	} {
		a := town.do(town.request("POST", host(town.victim), "/", strings.NewReader("{}"), header...))
		if a.StatusCode != 200 || !slices.Contains(a.Header["Vary"], browserVary) {
			t.Errorf("%q: got %d, %v", header, a.StatusCode, a.Header)
		}
	}
	if a := town.get(host(town.victim), "/", fetch("cross-site", "navigate", "document")...); a.StatusCode != 200 {
		t.Errorf("a link: got %d", a.StatusCode)
	}
}

// An annotation opens its service, and no host that others share with it.
func TestSharedOriginIsNobodysToOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{Origins: []string{appOrigin}}, serve(t, echoJob("open")))
	for _, h := range []string{base, "127.0.0.1"} {
		for _, credential := range []string{"Authorization: " + aliceOAuth, cookieLine} {
			a := w.get(h, "/", credential, "X-Yt-Taskproxy-Id: "+s.ID, "Origin: "+appOrigin)
			if got := a.Header["Access-Control-Allow-Origin"]; got != nil || credential == cookieLine && a.StatusCode != 403 {
				t.Errorf("%s, %s: got %d, Access-Control-Allow-Origin %q", h, credential, a.StatusCode, got)
			}
		}
	}
	if got := w.get(host(s), "/", "Origin: "+appOrigin).Header.Get("Access-Control-Allow-Origin"); got != appOrigin {
		t.Errorf("at its own host: %q", got)
	}
}

// Services share a browser's cache: what one's page has read is not for the others' to take out of it.
func TestCookieAnswersVary(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, func(rw http.ResponseWriter, _ *http.Request) { rw.Header().Set("Vary", "Accept") }))
	if got := w.get(host(s), "/", cookieLine).Header["Vary"]; !slices.Equal(got, []string{"Accept", "Sec-Fetch-Site, Sec-Fetch-Mode, Sec-Fetch-Dest"}) {
		t.Errorf("with the cookie: %q", got)
	}
	if got := w.get(host(s), "/").Header["Vary"]; !slices.Equal(got, []string{"Accept"}) {
		t.Errorf("with a token: %q", got)
	}
}

// A stranger's page does not make the cluster be asked, and learns nothing from whether its visitor has access.
func TestStrangersAreRefusedBeforeTheClusterIsAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, echoJob("a")))
	for _, token := range []string{aliceToken, bobToken} {
		w.get(host(s), "/", "Cookie: YTCypressCookie="+token, "Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image").check(t, 403, "cross_site")
	}
	w.get(host(s), "/", "Cookie: YTCypressCookie="+bobToken, "Sec-Fetch-Site: none").check(t, 403, "access_denied")
}
