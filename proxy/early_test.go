package proxy

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"taskproxy/discovery"
)

// awaited notes who asked for what, and does what a test wants to happen meanwhile.
type awaited struct {
	mu    sync.Mutex
	asked []string // "login name"
	then  func() bool
}

func (a *awaited) await(_ context.Context, login, name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, login+" "+name)
	return a.then != nil && a.then()
}

func (a *awaited) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(a.asked, ", ")
}

// A service that was started a moment ago is found by the first request for it, by whatever way it is named.
func TestUnknownServiceIsAwaited(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"host", "header"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			a := new(awaited)
			w := newWorld(t, func(c *Config) { c.AwaitService = a.await })
			addr := serve(t, echoJob("new"))
			a.then = func() bool { w.publish(discovery.Service{OperationID: "1-2-3e8-77"}, addr); return true }
			id := discovery.ShortID("1-2-3e8-77", "task", "ui")
			get := func() answer {
				if way == "host" {
					return w.get(strings.ToUpper(id)+"."+base, "/")
				}
				return w.get(base, "/", "x-yt-taskproxy-id: "+id)
			}
			for range 2 {
				if res := get(); res.StatusCode != 200 || res.echo(t).Job != "new" {
					t.Errorf("got %d %s", res.StatusCode, res.body)
				}
			}
			if got := a.String(); got != "alice "+id {
				t.Errorf("asked for %q, want once for %q", got, "alice "+id)
			}
		})
	}
}

// A request asks once, whatever comes of it.
func TestUnknownServiceIsAwaitedOnce(t *testing.T) {
	t.Parallel()
	for _, waited := range []bool{true, false} {
		a := &awaited{then: func() bool { return waited }}
		w := newWorld(t, func(c *Config) { c.AwaitService = a.await })
		w.get("0badcafe."+base, "/").check(t, 404, "no_such_service")
		if got := a.String(); got != "alice 0badcafe" {
			t.Errorf("asked for %q", got)
		}
	}
}

// Whoever is not identified starts nothing: no token, a bad one, a cluster that cannot say, authentication switched off.
func TestStrangersAwaitNothing(t *testing.T) {
	t.Parallel()
	a := new(awaited)
	w := newWorld(t, func(c *Config) { c.AwaitService = a.await })
	w.get("0badcafe."+base, "/", "-").check(t, 401, "no_credentials")
	w.get("0badcafe."+base, "/", "Authorization: OAuth s3cret-nobody").check(t, 401, "invalid_credentials")
	w.get("0badcafe."+base, "/", "Cookie: "+cookieName+"=a; "+cookieName+"=b").check(t, 401, "ambiguous_cookie")
	open := newWorld(t, func(c *Config) { c.AwaitService, c.Authorizer, c.AuthDisabled = a.await, nil, true })
	open.get("0badcafe."+base, "/").check(t, 404, "no_such_service")
	if got := a.String(); got != "" {
		t.Errorf("asked for %q", got)
	}
}

// Names that no service ever has are not waited for, nor are requests that are wrong whatever services there are.
func TestMalformedNamesAwaitNothing(t *testing.T) {
	t.Parallel()
	a := new(awaited)
	w := newWorld(t, func(c *Config) { c.AwaitService = a.await })
	s := w.publish(discovery.Service{}, serve(t, echoJob("a")))
	for _, host := range []string{"www." + base, "favicon." + base, "0badcaf." + base, "a.0badcafe." + base, "else.where", base, "a-b." + base} {
		if res := w.get(host, "/"); res.StatusCode != 404 && host != base {
			t.Errorf("%s: %d", host, res.StatusCode)
		}
	}
	w.get(host(s), "/", "x-yt-taskproxy-id: 0badcafe").check(t, 400, "ambiguous_service")
	w.get(host(s), "/", "x-yt-taskproxy-id: nonsense")
	if got := a.String(); got != "" {
		t.Errorf("asked for %q", got)
	}
	w.get("alias-task-service."+base, "/").check(t, 404, "no_such_service")
	if got := a.String(); got != "alice alias-task-service" {
		t.Errorf("asked for %q", got)
	}
}

// failures notes what OnConnectFailure is told.
type failures struct {
	mu   sync.Mutex
	told []string
}

func (f *failures) add(s *discovery.Service, e discovery.Endpoint) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told = append(f.told, s.Name+" "+e.JobID)
}

func (f *failures) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.told, ", ")
}

// Endpoints that refuse connections or reset new ones are told, as is a service without any; jobs that answer, badly as it
// may be, are not, and neither is what strangers and callers without rights ask for.
func TestConnectFailuresAreTold(t *testing.T) {
	t.Parallel()
	resets := rawJob(t, func(conn net.Conn, _ *http.Request, _ *bufio.Reader) {
		_ = conn.(*net.TCPConn).SetLinger(0)
	})
	closes := rawJob(t, func(net.Conn, *http.Request, *bufio.Reader) {})
	tests := []struct {
		name  string
		addrs []string
		want  string
	}{
		{"dead", []string{deadAddr(t)}, "dead job-0"},
		{"one-dead", []string{deadAddr(t), serve(t, echoJob("a"))}, "one-dead job-0"},
		{"resets", []string{resets}, "resets job-0"},
		{"none", nil, "none "},
		{"good", []string{serve(t, echoJob("a"))}, ""},
		{"closes", []string{closes}, ""},
		{"garbage", []string{rawAnswer(t, "SSH-2.0-x\r\n")}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := new(failures)
			w := newWorld(t, func(c *Config) { c.OnConnectFailure = f.add })
			s := w.publish(discovery.Service{Name: tt.name}, tt.addrs...)
			w.get(host(s), "/", "-")
			w.get(host(s), "/", "Authorization: OAuth "+bobToken)
			if got := f.String(); got != "" {
				t.Errorf("callers without rights: told %q", got)
			}
			w.do(w.request(http.MethodPost, host(s), "/", nil))
			if got := f.String(); got != tt.want {
				t.Errorf("told %q, want %q", got, tt.want)
			}
		})
	}
}

// A kept connection that a job ends is no failure to connect: servers end these when they like.
func TestResetOfAKeptConnectionIsNotTold(t *testing.T) {
	t.Parallel()
	f := new(failures)
	addr := rawJob(t, func(conn net.Conn, _ *http.Request, rest *bufio.Reader) {
		_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
		if _, err := http.ReadRequest(rest); err == nil {
			_ = conn.(*net.TCPConn).SetLinger(0) // a second request on it is reset
		}
	})
	w := newWorld(t, func(c *Config) { c.OnConnectFailure = f.add })
	s := w.publish(discovery.Service{}, addr)
	for range 2 {
		w.do(w.request(http.MethodPost, host(s), "/", strings.NewReader("x")))
	}
	if got := f.String(); got != "" {
		t.Errorf("told %q", got)
	}
}
