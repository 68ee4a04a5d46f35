package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"taskproxy/discovery"
)

// pinOf is our cookie in an answer; empty when there is none.
func pinOf(tb testing.TB, header http.Header) string {
	tb.Helper()
	pin := ""
	for _, line := range header["Set-Cookie"] {
		if c, err := http.ParseSetCookie(line); err != nil || strings.Contains(strings.ToLower(line), affinityCookie) {
			if err != nil || c.Name != affinityCookie || pin != "" {
				tb.Errorf("set-cookie %q: %v", header["Set-Cookie"], err)
				continue
			}
			pin = c.Value
		}
	}
	return pin
}

// visit calls a service as a browser that has the cookie, or none. It tells which job answered and which cookie came.
func (w *world) visit(h, pin string, header ...string) (job, newPin string) {
	w.tb.Helper()
	header = append(header, "Authorization: "+aliceOAuth)
	if pin != "" {
		header = append(header, "Cookie: a=1; "+affinityCookie+"="+pin+"; b=2")
	}
	a := w.get(h, "/", header...)
	e := a.echo(w.tb)
	if got := strings.Join(e.Header["Cookie"], "|"); strings.Contains(got, affinityCookie) || pin != "" && got != "a=1; b=2" {
		w.tb.Errorf("the job saw cookies %q", got)
	}
	return e.Job, pinOf(w.tb, a.Header)
}

// replace puts a service into the routing table in the place of the last one that was published.
func (w *world) replace(s discovery.Service) {
	w.tb.Helper()
	w.services = w.services[:len(w.services)-1]
	w.publish(s)
}

func TestAffinity(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	jobs := []string{serve(t, echoJob("a")), serve(t, echoJob("b")), serve(t, echoJob("c"))}
	s := w.publish(discovery.Service{Affinity: true}, jobs...)

	pins := make(map[string]string)
	for _, want := range []string{"a", "b", "c", "a"} {
		job, pin := w.visit(host(s), "")
		if job != want || pin == "" || pins[job] != "" && pins[job] != pin {
			t.Fatalf("the next browser got %s and %q, want %s; so far %v", job, pin, want, pins)
		}
		pins[job] = pin
		// Whoever stays takes nobody's turn.
		for pinned, pin := range pins {
			for range 2 {
				if job, again := w.visit(host(s), pin); job != pinned || again != "" {
					t.Errorf("a browser of %s got %s and %q", pinned, job, again)
				}
			}
		}
	}
	for _, h := range []string{discovery.Domain(s.LongID, base), host(s) + ":8080"} {
		if job, again := w.visit(h, pins["b"]); job != "b" || again != "" {
			t.Errorf("by %s: got %s and %q", h, job, again)
		}
	}

	// The job is gone: to the next one, with another cookie. The others stay.
	left := *s
	left.Endpoints = slices.Delete(slices.Clone(s.Endpoints), 0, 1)
	w.replace(left)
	if job, pin := w.visit(host(s), pins["a"]); job == "a" || pin != pins[job] {
		t.Errorf("got %s and %q, want another job's of %v", job, pin, pins)
	}
	if job, again := w.visit(host(s), pins["c"]); job != "c" || again != "" {
		t.Errorf("got %s and %q, want c", job, again)
	}

	// The annotation does not ask for it any more.
	left.Affinity = false
	w.replace(left)
	for range 3 {
		if _, pin := w.visit(host(s), pins["c"]); pin != "" {
			t.Errorf("got cookie %q", pin)
		}
	}
	if one, _ := w.visit(host(s), pins["c"]); one == func() string { job, _ := w.visit(host(s), pins["c"]); return job }() {
		t.Errorf("two requests in turn went to %s", one)
	}
}

// A job that takes no connection costs its browsers nothing but the way: they are moved, evenly, and told so.
func TestAffinityToAJobThatIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{Affinity: true}, deadAddr(t), serve(t, echoJob("b")), serve(t, echoJob("c")))
	pins := map[string]string{"b": s.Handle(s.Endpoints[1]), "c": s.Handle(s.Endpoints[2])}
	seen := make(map[string]int)
	for i := range 9 {
		job, pin := w.visit(host(s), s.Handle(s.Endpoints[0]))
		if pin != pins[job] {
			t.Errorf("visit %d: got %s and %q, want %v", i, job, pin, pins)
		}
		seen[job]++
	}
	if seen["b"] < 3 || seen["c"] < 3 {
		t.Errorf("they were moved to %v", seen)
	}
	if n := w.proxy.balancer.states.aside(); n != 1 {
		t.Errorf("%d endpoints are set aside", n)
	}
}

// Nobody but us makes sense of the cookie: whatever else a browser brings under its name is as if it were not there.
func TestForgedAffinity(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{Affinity: true}, serve(t, echoJob("a")), serve(t, echoJob("b")))
	sibling := w.publish(discovery.Service{Affinity: true}, s.Endpoints[0].Addr, s.Endpoints[1].Addr)
	good := s.Handle(s.Endpoints[1])
	for _, e := range s.Endpoints {
		if h := s.Handle(e); strings.Contains(h, e.JobID) || strings.Contains(h, e.Addr) {
			t.Errorf("handle %q tells too much", h)
		}
	}

	for _, value := range []string{
		"0", "1", "-1", s.Endpoints[1].JobID, s.Endpoints[1].Addr, s.ID, s.LongID, sibling.Handle(sibling.Endpoints[1]),
		good[:len(good)-1], good + "x", strings.ToUpper(good), strings.ToLower(good), "%" + good, good + ", " + good, strings.Repeat("x", 8000), "../../" + good,
	} {
		jobs := make(map[string]bool)
		for range 2 {
			job, pin := w.visit(host(s), value)
			jobs[job] = true
			if pin == "" {
				t.Errorf("%.40q counts", value)
			}
		}
		if len(jobs) != 2 {
			t.Errorf("%.40q leads to %v", value, jobs)
		}
	}
	// Others of the name, of a parent domain or a path, come along with ours.
	for _, cookies := range []string{
		affinityCookie + "=x; " + affinityCookie + "=" + good, affinityCookie + "=" + good + "; " + affinityCookie + "=x",
		affinityCookie + "=" + sibling.Handle(sibling.Endpoints[0]) + "; " + affinityCookie + `="` + good + `"`,
	} {
		for range 2 {
			a := w.get(host(s), "/", "Cookie: "+cookies, "Authorization: "+aliceOAuth)
			if e := a.echo(t); e.Job != "b" || pinOf(t, a.Header) != "" || e.Header["Cookie"] != nil {
				t.Errorf("%q: got %s, %v; the job saw %v", cookies, e.Job, a.Header, e.Header)
			}
		}
	}
	// It is no credential.
	w.get(host(s), "/", "Cookie: "+affinityCookie+"="+good).check(t, 401, "no_credentials")
	a := w.get(host(s), "/", "Cookie: "+affinityCookie+"="+good, "Authorization: OAuth "+bobToken)
	a.check(t, 403, "access_denied")
	if len(a.Header["Set-Cookie"]) > 0 {
		t.Errorf("a stranger was told %v", a.Header)
	}
}

// The cookie is between us and the browser, whatever the spelling and whomever an admin trusts with logins.
func TestAffinityCookieReachesNoJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.ForwardCredentialsTo = []string{"carol"} })
	job := serveUnguarded(t, echoJob("a"))
	for _, s := range []*discovery.Service{
		w.publish(discovery.Service{}, job), w.publish(discovery.Service{Affinity: true}, job), w.publish(discovery.Service{User: "carol", Affinity: true}, job),
	} {
		for _, in := range []string{
			"yt_taskproxy_affinity=x", "YT_TaskProxy_Affinity=x", "__Host-yt_taskproxy_affinity=x", `"yt_taskproxy_affinity"=x`,
			"yt_taskproxy_affinity x", "yt_taskproxy_affinity[]=x", "=yt_taskproxy_affinity=x", `yt_taskproxy_affinity="x;y"`, "c, yt_taskproxy_affinity=x",
		} {
			e := w.get(host(s), "/", "Cookie: a=1; "+in, "Cookie: b=2", "Authorization: "+aliceOAuth).echo(t)
			got := strings.Join(e.Header["Cookie"], "|")
			if strings.Contains(strings.ToLower(got), "affinity") || strings.Contains(got, "x") || !strings.HasPrefix(got, "a=1") || !strings.HasSuffix(got, "b=2") {
				t.Errorf("%q, job of %s: it saw %q", in, s.User, got)
			}
		}
	}
	s := w.publish(discovery.Service{User: "carol"}, job)
	all := "YTCypressCookie=" + aliceToken + "; yt_oauth_access_token=x; a=1"
	if got := w.get(host(s), "/", "Cookie: "+all).echo(t).Header.Get("Cookie"); got != all {
		t.Errorf("a job that is trusted with logins saw %q", got)
	}
}

// No job sets the cookie, in a 1xx, in headers or in trailers: it could keep its siblings' browsers to itself, or hide who is who.
func TestJobSetsNoAffinityCookie(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	forged := []string{
		"yt_taskproxy_affinity=x; Path=/", "YT_TASKPROXY_AFFINITY=x", " yt_taskproxy_affinity =x", "__Host-yt_taskproxy_affinity=x; Secure; Path=/", "yt_taskproxy_affinity=; Max-Age=0",
		"=yt_taskproxy_affinity=x", "yt_taskproxy_affinity", "$yt_taskproxy_affinity=x", `"yt_taskproxy_affinity"=x`, "yt_taskproxy_affinity[0]=x",
	}
	job := serve(t, func(rw http.ResponseWriter, _ *http.Request) {
		h := rw.Header()
		h["Set-Cookie"] = append(slices.Clone(forged), "session=1")
		h["Trailer"] = []string{"Set-Cookie"}
		rw.WriteHeader(http.StatusEarlyHints)
		_, _ = io.WriteString(rw, "hello")
		h["Set-Cookie"] = forged
	})
	for _, affinity := range []bool{false, true} {
		s := w.publish(discovery.Service{Affinity: affinity}, job)
		a := w.get(host(s), "/")
		want := []string{"session=1"}
		if affinity {
			want = append(want, affinityCookie+"="+s.Handle(s.Endpoints[0])+"; Path=/; HttpOnly; SameSite=Lax")
		}
		if got := a.Header["Set-Cookie"]; !slices.Equal(got, want) || len(a.Trailer["Set-Cookie"]) > 0 {
			t.Errorf("got %q, want %q; trailers %v", got, want, a.Trailer)
		}
	}
}

// Where services share an origin there are no cookies, and nobody is pinned.
func TestNoAffinityThroughASharedHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{Affinity: true}, serve(t, echoJob("a")), serve(t, echoJob("b")))
	for _, h := range []string{base, w.addr, "task-proxy.yt.svc.cluster.local"} {
		jobs := make(map[string]bool)
		for range 2 {
			job, pin := w.visit(h, s.Handle(s.Endpoints[1]), "X-Yt-Taskproxy-Id: "+s.ID)
			jobs[job] = true
			if pin != "" {
				t.Errorf("%s: got a cookie", h)
			}
		}
		if len(jobs) != 2 {
			t.Errorf("%s: got %v only", h, jobs)
		}
	}
}

func TestAttributesOfAffinity(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		scheme  string
		framers []string
		origins []string
		want    string
	}{
		{"", nil, nil, "; Path=/; HttpOnly; SameSite=Lax"},
		{"https", nil, nil, "; Path=/; HttpOnly; Secure; SameSite=Lax"},
		{"https", nil, []string{"https://app.example.com"}, "; Path=/; HttpOnly; Secure; SameSite=None"},
		{"https", []string{"https://cluster.example.com"}, nil, "; Path=/; HttpOnly; Secure; SameSite=None"},
		{"http", []string{"https://cluster.example.com"}, []string{"https://app.example.com"}, "; Path=/; HttpOnly; SameSite=Lax"},
	} {
		w := newWorld(t, func(cfg *Config) { cfg.PublicScheme, cfg.FrameAncestors = c.scheme, c.framers })
		s := w.publish(discovery.Service{Affinity: true, Origins: c.origins}, serve(t, echoJob("a")))
		want := affinityCookie + "=" + s.Handle(s.Endpoints[0]) + c.want
		if got := w.get(host(s), "/").Header["Set-Cookie"]; len(got) != 1 || got[0] != want {
			t.Errorf("%+v: got %q, want %q", c, got, want)
		}
	}
}

// Answers of ours pin nobody: no job has answered.
func TestNoAffinityWithoutAJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, s := range []*discovery.Service{
		w.publish(discovery.Service{Affinity: true}, deadAddr(t)), w.publish(discovery.Service{Affinity: true}, rawAnswer(t, "HTTP/1.1 099 Odd\r\n\r\n")), w.publish(discovery.Service{Affinity: true}),
	} {
		a := w.get(host(s), "/")
		if a.StatusCode < 500 || len(a.Header["Set-Cookie"]) > 0 {
			t.Errorf("got %d, %v", a.StatusCode, a.Header)
		}
	}
}

func TestAffinityOfWebSocketsAndStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var addrs []string
	for i := range 3 {
		addrs = append(addrs, serveUnguarded(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			checkNoSecret(t, "header", r.Header)
			if got := r.Header.Get("Cookie"); got != "" && got != "b=2" {
				t.Errorf("the job saw cookies %q", got)
			}
			rw.Header().Set("X-Job", fmt.Sprint(i))
			if r.Header.Get("Upgrade") != "" {
				rw.Header().Set("Set-Cookie", affinityCookie+"=forged")
				c, err := websocket.Accept(rw, r, nil)
				if err == nil {
					c.CloseNow()
				}
				return
			}
			rw.Header().Set("Content-Type", "text/event-stream")
			for range 3 {
				_, _ = io.WriteString(rw, "data: x\n\n")
				_ = http.NewResponseController(rw).Flush()
			}
		})))
	}
	s := w.publish(discovery.Service{Affinity: true}, addrs...)
	dial := func(cookie string) (job, pin string) {
		t.Helper()
		c, res, err := w.dialWebSocket(host(s), &websocket.DialOptions{HTTPHeader: http.Header{"Cookie": {"b=2; YTCypressCookie=" + aliceToken + cookie}}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.CloseNow()
		return res.Header.Get("X-Job"), pinOf(t, res.Header)
	}
	for i := range 3 {
		job, pin := dial("")
		if job != fmt.Sprint(i) || pin != s.Handle(s.Endpoints[i]) {
			t.Errorf("got job %s and %q", job, pin)
		}
		for range 3 {
			if again, more := dial("; " + affinityCookie + "=" + pin); again != job || more != "" {
				t.Errorf("got job %s and %q, want %s", again, more, job)
			}
			a := w.get(host(s), "/", "Cookie: "+affinityCookie+"="+pin, "Authorization: "+aliceOAuth)
			if a.Header.Get("X-Job") != job || strings.Count(a.body, "data") != 3 || pinOf(t, a.Header) != "" {
				t.Errorf("a stream: got %v %q, want job %s", a.Header, a.body, job)
			}
		}
	}
	// A handshake that a job refuses is an answer like others.
	refused := w.publish(discovery.Service{Affinity: true}, rawJob(t, func(conn net.Conn, _ *http.Request, _ *bufio.Reader) {
		_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
	}))
	_, res, err := w.dialWebSocket(host(refused), nil)
	if err == nil || res == nil || res.StatusCode != 400 || pinOf(t, res.Header) != refused.Handle(refused.Endpoints[0]) {
		t.Errorf("got %v, %v", res, err)
	}
}

// Nobody pays for what his service does not ask for.
func TestAffinityCostsOthersNothing(t *testing.T) {
	w := newWorld(t)
	s := w.publish(discovery.Service{}, "127.0.0.1:1")
	r, _ := http.NewRequestWithContext(context.Background(), http.MethodGet, "/", nil)
	r.Header.Set("Cookie", "a=1; b=2; c=3")
	x := w.proxy.begin(nullWriter{http.Header{}}, r)
	x.service = s
	h := http.Header{}
	if n := testing.AllocsPerRun(100, func() {
		if x.pinned(s) != -1 {
			t.Fatal("pinned")
		}
		w.proxy.rules.pin(h, x)
	}); n != 0 || len(h) > 0 {
		t.Errorf("%v allocations, %v", n, h)
	}
}
