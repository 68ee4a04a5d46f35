package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"taskproxy/auth"
	"taskproxy/discovery"
	"taskproxy/ytclient"
)

// Who may pass: without credentials 401 whatever the name, 404 for identified callers only, 403, and the job for alice.
func TestOrderOfDecisions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, echoJob("a")))
	for _, c := range []struct {
		name, host, header string
		status             int
		reason             string
	}{
		{"nobody", host(s), "-", 401, "no_credentials"},
		{"nobody, unknown name", "00000000." + base, "-", 401, "no_credentials"},
		{"nobody, foreign host", "elsewhere.test", "-", 401, "no_credentials"},
		{"alice, conflicting names", host(s), "X-Yt-Taskproxy-Id: 00000000", 400, "ambiguous_service"},
		{"stranger", host(s), "Authorization: OAuth s3cret-nobody", 401, "invalid_credentials"},
		{"stranger, unknown name", "00000000." + base, "Authorization: OAuth s3cret-nobody", 401, "invalid_credentials"},
		{"malformed", host(s), "Authorization: OAuth", 401, "malformed_credentials"},
		{"two cookies", host(s), "Cookie: YTCypressCookie=s3cret-alice; YTCypressCookie=s3cret-bob", 401, "ambiguous_cookie"},
		{"bob", host(s), "Authorization: OAuth " + bobToken, 403, "access_denied"},
		{"bob, unknown name", "00000000." + base, "Authorization: OAuth " + bobToken, 404, "no_such_service"},
		{"alice, unknown name", "00000000." + base, "Authorization: " + aliceOAuth, 404, "no_such_service"},
		{"alice, foreign host", "elsewhere.test", "Authorization: " + aliceOAuth, 404, "no_such_service"},
		{"alice by OAuth", host(s), "Authorization: " + aliceOAuth, 200, ""},
		{"alice by Bearer", host(s), "Authorization: bearer " + aliceToken, 200, ""},
		{"alice by header", host(s), "X-Yt-Taskproxy-Authorization: " + aliceOAuth, 200, ""},
		{"alice by cookie", host(s), "Cookie: YTCypressCookie=" + aliceToken, 200, ""},
		{"alice by the documented spelling", host(s), "Cookie: YTCypressCookie " + aliceToken, 200, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := w.get(c.host, "/", c.header)
			a.check(t, c.status, c.reason)
			if got := a.Header.Get("Www-Authenticate") != ""; got != (c.status == 401) {
				t.Errorf("WWW-Authenticate present: %t", got)
			}
			if c.host == host(s) && c.header == "-" {
				w.get(c.host, "/", "-", "X-Yt-Taskproxy-Id: malformed").check(t, 401, "no_credentials")
			}
			if strings.Contains(a.body, "s3cret") {
				t.Errorf("the answer repeats a credential: %q", a.body)
			}
		})
	}
}

// What the resolver found is what is authorized: the operation and permissions of the service, not of anything else.
func TestAuthorizesWhatItForwards(t *testing.T) {
	t.Parallel()
	type question struct{ login, operation, perms string }
	asked := make(chan question, 1)
	authorizer := people()
	authorizer.authorize = func(_ context.Context, login, operation string, perms []ytclient.Permission) (auth.Decision, error) {
		var words []string
		for _, p := range perms {
			words = append(words, string(p))
		}
		asked <- question{login, operation, strings.Join(words, ",")}
		return auth.Decision{Cached: true}, nil
	}
	w := newWorld(t, func(c *Config) { c.Authorizer = authorizer })
	s := w.publish(discovery.Service{OperationID: "1-2-3e8-77", Permissions: []ytclient.Permission{ytclient.Read, ytclient.Manage}}, serve(t, echoJob("mine")))
	w.publish(discovery.Service{OperationID: "1-2-3e8-78"}, serve(t, echoJob("other")))
	a := w.get(host(s), "/", "X-Forwarded-Host: x."+base)
	if got := a.echo(t).Job; got != "mine" {
		t.Errorf("answered by %q", got)
	}
	if got, want := <-asked, (question{"alice", "1-2-3e8-77", "read,manage"}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAuthorizerFailures(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		err    error
		status int
		reason string
	}{
		{"no such operation", auth.ErrNoSuchOperation, 404, "no_such_operation"},
		{"cluster away", auth.ErrUnavailable, 503, "cluster_unavailable"},
		{"something else", errors.New("odd"), 500, "internal"},
	} {
		t.Run(c.name, func(t *testing.T) {
			authorizer := people()
			authorizer.authorize = func(context.Context, string, string, []ytclient.Permission) (auth.Decision, error) {
				return auth.Decision{}, c.err
			}
			w := newWorld(t, func(cfg *Config) { cfg.Authorizer = authorizer })
			a := w.get(host(w.publish(discovery.Service{}, serve(t, echoJob("a")))), "/")
			a.check(t, c.status, c.reason)
			if got := a.Header.Get("Retry-After") != ""; got != (c.status == 503) {
				t.Errorf("Retry-After present: %t", got)
			}
			if strings.Contains(a.body, "odd") {
				t.Errorf("an internal error was shown: %q", a.body)
			}
		})
	}
}

func TestEmptyLoginIsNobody(t *testing.T) {
	t.Parallel()
	for _, login := range []string{"", "a\nX-Evil: 1"} {
		authorizer := people()
		authorizer.authenticate = func(context.Context, ytclient.Credentials) (auth.Identity, error) {
			return auth.Identity{Login: login}, nil
		}
		w := newWorld(t, func(c *Config) { c.Authorizer = authorizer })
		w.get(host(w.publish(discovery.Service{}, serve(t, echoJob("a")))), "/").check(t, 401, "invalid_credentials")
	}
}

func TestAuthDisabled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.Authorizer, c.AuthDisabled = nil, true })
	s := w.publish(discovery.Service{}, serve(t, echoJob("a")))
	a := w.get(host(s), "/", "Authorization: Bearer s3cret", "Cookie: YTCypressCookie=s3cret; a=b", "X-Yt-Taskproxy-User: mallory")
	h := a.echo(t).Header
	if got := h.Get("Cookie"); got != "a=b" {
		t.Errorf("cookie at the job: %q", got)
	}
	if got, ok := h[UserHeader]; ok {
		t.Errorf("login at the job: %q", got)
	}
}

// The proxy's own page needs nobody to be identified; everything else there does.
func TestOwnHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Set-Cookie", "session=1")
		rw.Header().Set("Cache-Control", "public, max-age=1000")
		rw.Header().Set("Vary", "Accept")
		echoJob("a")(rw, r)
	}))
	for _, own := range []string{base, "task-proxy." + base, strings.ToUpper(base) + ".:1234"} {
		a := w.get(own, "/any/path", "-")
		if a.StatusCode != 200 || !strings.Contains(a.body, "x-yt-taskproxy-id") {
			t.Errorf("%s: got %d %q", own, a.StatusCode, a.body)
		}
		w.get(own, "/", "-", "X-Yt-Taskproxy-Id: "+s.ID).check(t, 401, "no_credentials")
		a = w.get(own, "/", "X-Yt-Taskproxy-Id: "+s.ID)
		if a.echo(t).Job != "a" {
			t.Errorf("%s: not the service: %q", own, a.body)
		}
		if _, ok := a.Header["Set-Cookie"]; ok {
			t.Error("a job set a cookie on the proxy's own host")
		}
		if got := a.Header["Cache-Control"]; len(got) != 1 || got[0] != "no-store" {
			t.Errorf("Cache-Control %q", got)
		}
		if got := strings.Join(a.Header["Vary"], ", "); got != "Accept, X-Yt-Taskproxy-Id" {
			t.Errorf("Vary %q", got)
		}
	}
	w.do(w.request("POST", base, "/", nil, "-")).check(t, 404, "no_such_service")
}

// One port speaks HTTP/1.1 and h2c.
func TestBothProtocolsOnOnePort(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, echoJob("a")))
	h2 := &http.Transport{Protocols: new(http.Protocols)}
	h2.Protocols.SetUnencryptedHTTP2(true)
	defer h2.CloseIdleConnections()
	for proto, client := range map[string]*http.Client{"HTTP/1.1": w.client, "HTTP/2.0": {Transport: h2}} {
		res, err := client.Do(w.request("POST", host(s), "/x?y=1", strings.NewReader("hello")))
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		e := answer{res, string(b)}.echo(t)
		if res.Proto != proto || e.Proto != "HTTP/1.1" || e.Body != "hello" || e.Target != "/x?y=1" || e.Host != host(s) {
			t.Errorf("%s: answer %s, the job saw %+v", proto, res.Proto, e)
		}
	}
}

func TestRequestID(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("X-Request-Id", "of-the-job")
		echoJob("a")(rw, r)
	}))
	long := strings.Repeat("x", 65)
	for _, c := range []struct {
		name string
		sent []string
		keep bool
	}{
		{"kept", []string{"X-Request-Id: aZ09._-"}, true},
		{"none", nil, false},
		{"odd", []string{"X-Request-Id: a b"}, false},
		{"long", []string{"X-Request-Id: " + long}, false},
		{"two", []string{"X-Request-Id: a", "X-Request-Id: b"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := w.get(host(s), "/", c.sent...)
			got := a.Header["X-Request-Id"]
			if len(got) != 1 || !validRequestID(got[0]) || got[0] == "of-the-job" || c.keep != (got[0] == "aZ09._-") {
				t.Errorf("to the caller: %q", got)
			}
			if seen := a.echo(t).Header["X-Request-Id"]; len(seen) != 1 || seen[0] != got[0] {
				t.Errorf("to the job: %q, to the caller: %q", seen, got)
			}
			w.log.wait(t, got[0])
		})
	}
}

func TestNewNamesWrongFields(t *testing.T) {
	t.Parallel()
	_, err := New(Config{AuthCookieName: "a b", ConnectTimeout: -1, PublicScheme: "ftp", LoginURL: "javascript:alert(1)", ForwardCredentialsTo: []string{"*"}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, field := range []string{"Table", "AuthDisabled", "AuthCookieName", "ConnectTimeout", "PublicScheme", "LoginURL", "ForwardCredentialsTo"} {
		if !strings.Contains(err.Error(), "field "+field) {
			t.Errorf("%s is not named: %v", field, err)
		}
	}
}

func TestTableIsNeverNil(t *testing.T) {
	t.Parallel()
	table := NewTable()
	table.Store(nil)
	if table.Load() == nil || table.Load().Lookup("00000000") != nil {
		t.Error("want an empty snapshot")
	}
}
