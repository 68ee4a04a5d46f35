package proxy

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"taskproxy/auth"
	"taskproxy/discovery"
	"taskproxy/ytclient"
)

func TestCallerAddr(t *testing.T) {
	t.Parallel()
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for _, tc := range []struct {
		name      string
		remote    string
		forwarded []string
		trusted   []netip.Prefix
		want      string // "": none
	}{
		{"peer", "192.0.2.1:1000", nil, trusted, "192.0.2.1"},
		{"peer in IPv6", "[2001:db8::1]:1000", nil, trusted, "2001:db8::1"},
		{"peer in mapped form", "[::ffff:192.0.2.1]:1000", nil, trusted, "192.0.2.1"},
		{"peer with a zone", "[fe80::1%eth0]:1000", nil, trusted, "fe80::1"},
		{"no peer", "@", []string{"198.51.100.1"}, trusted, ""},
		{"a stranger speaks for nobody", "192.0.2.1:1000", []string{"198.51.100.1"}, trusted, "192.0.2.1"},
		{"nobody is trusted", "10.0.0.1:1000", []string{"198.51.100.1"}, nil, "10.0.0.1"},
		{"the ingress speaks for its caller", "10.0.0.1:1000", []string{"198.51.100.1"}, trusted, "198.51.100.1"},
		{"the ingress says nothing", "10.0.0.1:1000", nil, trusted, "10.0.0.1"},
		{"the ingress says nothing in one line", "10.0.0.1:1000", []string{""}, trusted, "10.0.0.1"},
		{"what stands left is the caller's own", "10.0.0.1:1000", []string{"203.0.113.9, 198.51.100.1"}, trusted, "198.51.100.1"},
		{"also in a line of its own", "10.0.0.1:1000", []string{"203.0.113.9", "198.51.100.1"}, trusted, "198.51.100.1"},
		{"also if it looks trusted", "10.0.0.1:1000", []string{"10.0.0.7, 198.51.100.1"}, trusted, "198.51.100.1"},
		{"two of ours in a row", "10.0.0.1:1000", []string{"203.0.113.9, 198.51.100.1,10.0.0.2"}, trusted, "198.51.100.1"},
		{"two of ours in two lines", "10.0.0.1:1000", []string{"198.51.100.1", "10.0.0.2"}, trusted, "198.51.100.1"},
		{"a caller among ours", "10.0.0.1:1000", []string{"10.0.0.3, 10.0.0.2"}, trusted, "10.0.0.3"},
		{"no address ends it", "10.0.0.1:1000", []string{"198.51.100.1, unknown"}, trusted, "10.0.0.1"},
		{"an empty entry ends it", "10.0.0.1:1000", []string{"198.51.100.1, , 10.0.0.2"}, trusted, "10.0.0.2"},
		{"with a port", "10.0.0.1:1000", []string{"198.51.100.1:4711"}, trusted, "198.51.100.1"},
		{"IPv6", "[fd00::1]:1000", []string{"2001:db8::7"}, trusted, "2001:db8::7"},
		{"IPv6 in brackets", "[fd00::1]:1000", []string{"[2001:db8::7]"}, trusted, "2001:db8::7"},
		{"IPv6 with a port", "[fd00::1]:1000", []string{"[2001:db8::7]:4711"}, trusted, "2001:db8::7"},
		{"IPv6 in mapped form", "10.0.0.1:1000", []string{"::ffff:10.0.0.2, ::ffff:198.51.100.1"}, trusted, "198.51.100.1"},
		{"IPv4 in brackets", "10.0.0.1:1000", []string{"[198.51.100.1]"}, trusted, "10.0.0.1"},
		{"a half bracket", "10.0.0.1:1000", []string{"[2001:db8::7"}, trusted, "10.0.0.1"},
		{"quoted", "10.0.0.1:1000", []string{`"198.51.100.1"`}, trusted, "10.0.0.1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ru := newRules(Config{TrustedProxies: tc.trusted})
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
			r.RemoteAddr = tc.remote
			r.Header["X-Forwarded-For"] = tc.forwarded
			got := ru.callerAddr(r)
			if got.IsValid() != (tc.want != "") || got.IsValid() && got.String() != tc.want {
				t.Errorf("got %s, want %q", got, tc.want)
			}
		})
	}
}

// FuzzCallerAddr compares with the plain way: all entries in a list, looked at from its end.
func FuzzCallerAddr(f *testing.F) {
	f.Add("10.0.0.1:1", "203.0.113.9, 198.51.100.1", "10.0.0.2")
	f.Add("[fd00::1]:1", ",[2001:db8::7]:1", " , ")
	f.Add("192.0.2.1:1", "", "")
	ru := newRules(Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}})
	f.Fuzz(func(t *testing.T, remote, first, second string) {
		r := &http.Request{RemoteAddr: remote, Header: http.Header{"X-Forwarded-For": {first, second}}}
		want := peerAddr(remote)
		for _, entry := range slices.Backward(strings.Split(first+","+second, ",")) {
			if !ru.isTrustedAddr(want) {
				break
			}
			next := forwardedAddr(strings.Trim(entry, " \t"))
			if !next.IsValid() {
				break
			}
			want = next
		}
		if got := ru.callerAddr(r); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

func TestCallerAddrAllocatesNothing(t *testing.T) {
	ru := newRules(Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	r.RemoteAddr = "10.0.0.1:1000"
	r.Header.Set("X-Forwarded-For", "203.0.113.9, 198.51.100.1, 10.0.0.2")
	if n := testing.AllocsPerRun(100, func() { ru.callerAddr(r) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// charged is an Authorizer that notes who is asked to pay.
type charged struct {
	Authorizer
	callers chan netip.Addr
}

func (c charged) Authenticate(ctx context.Context, caller netip.Addr, cr ytclient.Credentials) (auth.Identity, error) {
	c.callers <- caller
	return c.Authorizer.Authenticate(ctx, caller, cr)
}

// TestCallerIsCharged goes through the proxy: it is the peer, whom an admin trusts here, who says for whom a request is.
func TestCallerIsCharged(t *testing.T) {
	t.Parallel()
	for _, trust := range []bool{false, true} {
		t.Run(fmt.Sprintf("trusted %t", trust), func(t *testing.T) {
			t.Parallel()
			callers := make(chan netip.Addr, 1)
			w := newWorld(t, func(cfg *Config) {
				cfg.Authorizer = charged{cfg.Authorizer, callers}
				if trust {
					cfg.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
				}
			})
			s := w.publish(discovery.Service{}, serve(t, func(http.ResponseWriter, *http.Request) {}))
			if got := w.do(w.request(http.MethodGet, host(s), "/", nil, "X-Forwarded-For: 198.51.100.1")); got.StatusCode != http.StatusOK {
				t.Fatal(got.Status, got.body)
			}
			want := "127.0.0.1"
			if trust {
				want = "198.51.100.1"
			}
			if got := <-callers; got.String() != want {
				t.Errorf("%s is charged, want %s", got, want)
			}
		})
	}
}

// TestAnswersOfTheGate: what auth says that is neither yes nor no.
func TestAnswersOfTheGate(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err    error
		status int
		grpc   string
		reason string
	}{
		{auth.ErrTooMany, http.StatusTooManyRequests, "8", "too_many_attempts"},
		{auth.ErrAuthOff, http.StatusServiceUnavailable, "14", "cluster_auth_off"},
		{auth.ErrUnavailable, http.StatusServiceUnavailable, "14", "cluster_unavailable"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			t.Parallel()
			for step, refuse := range map[string]func(*closures){
				"authenticate": func(c *closures) {
					c.authenticate = func(context.Context, ytclient.Credentials) (auth.Identity, error) {
						return auth.Identity{}, fmt.Errorf("%w: s3cret", tc.err)
					}
				},
				"authorize": func(c *closures) {
					c.authorize = func(context.Context, string, string, []ytclient.Permission) (auth.Decision, error) {
						return auth.Decision{}, fmt.Errorf("%w: s3cret", tc.err)
					}
				},
			} {
				who := people()
				refuse(&who)
				w := newWorld(t, func(cfg *Config) { cfg.Authorizer = who })
				s := w.publish(discovery.Service{}, serve(t, func(http.ResponseWriter, *http.Request) { t.Error("the job was asked") }))
				got := w.do(w.request(http.MethodGet, host(s), "/", nil))
				if got.StatusCode != tc.status || got.Header.Get("X-Yt-Taskproxy-Error") != tc.reason || got.Header.Get("Retry-After") == "" {
					t.Errorf("%s: %s %v", step, got.Status, got.Header)
				}
				checkNoSecret(t, "answer", http.Header{"body": {got.body}})
				got = w.do(w.request(http.MethodPost, host(s), "/x.Y/Z", nil, "Content-Type: application/grpc"))
				if got.StatusCode != http.StatusOK || got.Header.Get("Grpc-Status") != tc.grpc {
					t.Errorf("%s: %s, grpc-status %s, want %s", step, got.Status, got.Header.Get("Grpc-Status"), tc.grpc)
				}
			}
		})
	}
}

// directory is a cluster that knows one token, alice's.
type directory struct{}

func (directory) WhoAmI(_ context.Context, cr ytclient.Credentials) (string, error) {
	if cr.Secret != aliceToken {
		return "", ytclient.ErrUnauthenticated
	}
	return "alice", nil
}

func (directory) CheckOperationPermission(context.Context, string, string, ytclient.Permission) (bool, error) {
	return true, nil
}

// TestFloodOfBadCredentials comes over the wire, through an ingress, from one caller. Others of the same ingress, and even of the
// same address if they were in before, do not notice.
func TestFloodOfBadCredentials(t *testing.T) {
	t.Parallel()
	const failures, flood = 5, 40
	authorizer, err := auth.New(auth.Config{Cluster: directory{}, FailuresPerCaller: failures})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(authorizer.Close)
	w := newWorld(t, func(cfg *Config) {
		cfg.Authorizer = authorizer
		cfg.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	s := w.publish(discovery.Service{}, serve(t, func(http.ResponseWriter, *http.Request) {}))
	from := func(addr, token string) int {
		return w.do(w.request(http.MethodGet, host(s), "/", nil, "X-Forwarded-For: "+addr, "Authorization: OAuth "+token)).StatusCode
	}
	const office, home = "198.51.100.1", "198.51.100.2"
	if got := from(office, aliceToken); got != http.StatusOK {
		t.Fatal(got)
	}
	var group sync.WaitGroup
	var met [600]atomic.Int64
	for i := range flood {
		group.Go(func() { met[from(office, fmt.Sprint("s3cret-bad-", i))].Add(1) })
	}
	group.Wait()
	// Some are let through slowly, and time goes by; most are turned away.
	refused, limited := met[http.StatusUnauthorized].Load(), met[http.StatusTooManyRequests].Load()
	if refused < failures || limited < flood/2 || refused+limited != flood {
		t.Errorf("%d are 401 and %d are 429, want at least %d and %d", refused, limited, failures, flood/2)
	}
	if got := from(office, aliceToken); got != http.StatusOK {
		t.Errorf("who was in before is answered %d", got)
	}
	if got := from(home, "s3cret-another"); got != http.StatusUnauthorized {
		t.Errorf("a bad token from elsewhere is answered %d", got)
	}
}
