package auth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"taskproxy/ytclient"
)

const operation = "1-2-3e803e8-4"

// errAway is how ytclient says that the cluster is away.
var errAway = fmt.Errorf("%w: connection refused", ytclient.ErrUnavailable)

func TestAuthenticateAnswers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		creds ytclient.Credentials
		login string
		fail  error
		want  error
		calls int64 // for two requests
	}{
		{"yes", token("t"), "alice", nil, nil, 1},
		{"no", token("t"), "", fmt.Errorf("%w: code 900", ytclient.ErrUnauthenticated), ErrUnauthenticated, 1},
		{"banned", token("t"), "", fmt.Errorf("%w: code 903", ytclient.ErrDenied), ErrUnauthenticated, 1},
		{"empty login", token("t"), "", nil, ErrUnauthenticated, 1},
		{"login beside an error", token("t"), "alice", ytclient.ErrUnauthenticated, ErrUnauthenticated, 1},
		{"away", token("t"), "", errAway, ErrUnavailable, 2},
		{"overloaded", token("t"), "", ytclient.ErrOverloaded, ErrUnavailable, 2},
		{"rejected", token("t"), "", ytclient.ErrRejected, ErrUnavailable, 2},
		{"unknown error", token("t"), "alice", errors.New("odd"), ErrUnavailable, 2},
		{"no kind", ytclient.Credentials{Secret: "t"}, "alice", nil, ErrUnauthenticated, 0},
		{"no secret", token(""), "alice", nil, ErrUnauthenticated, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := &cluster{whoAmI: func(context.Context, ytclient.Credentials) (string, error) { return tc.login, tc.fail }}
			a := newAuthorizer(t, Config{Cluster: c})
			for range 2 {
				got, err := a.Authenticate(t.Context(), nowhere, tc.creds)
				if !errors.Is(err, tc.want) || (err == nil) != (got.Login != "") {
					t.Errorf("got %+v, %v, want error %v", got, err, tc.want)
				}
				if tc.want == nil && got.Login != tc.login {
					t.Errorf("login %q, want %q", got.Login, tc.login)
				}
				if tc.fail != nil && !errors.Is(err, tc.fail) {
					t.Errorf("error %v does not wrap the cluster's %v", err, tc.fail)
				}
			}
			if got := c.whoAmIs.Load(); got != tc.calls {
				t.Errorf("%d calls, want %d", got, tc.calls)
			}
		})
	}
}

func TestAuthorizeAnswers(t *testing.T) {
	t.Parallel()
	rw := []ytclient.Permission{ytclient.Read, ytclient.Manage}
	only := func(p ytclient.Permission) func(ytclient.Permission) (bool, error) {
		return func(q ytclient.Permission) (bool, error) { return p == q, nil }
	}
	fails := func(err error) func(ytclient.Permission) (bool, error) {
		return func(ytclient.Permission) (bool, error) { return true, err } // allowed beside an error is no yes
	}
	for _, tc := range []struct {
		name      string
		login, op string
		perms     []ytclient.Permission
		check     func(ytclient.Permission) (bool, error)
		want      error
		calls     int64 // for two requests
	}{
		{"read", "alice", operation, read, only(ytclient.Read), nil, 1},
		{"manage does not imply read", "alice", operation, read, only(ytclient.Manage), ErrDenied, 1},
		{"read is not enough", "alice", operation, rw, only(ytclient.Read), ErrDenied, 2},
		{"both", "alice", operation, rw, func(ytclient.Permission) (bool, error) { return true, nil }, nil, 2},
		{"no such operation", "alice", operation, read, fails(fmt.Errorf("%w: code 1915", ytclient.ErrNoSuchOperation)), ErrNoSuchOperation, 1},
		{"away", "alice", operation, read, fails(errAway), ErrUnavailable, 2},
		{"overloaded", "alice", operation, read, fails(ytclient.ErrOverloaded), ErrUnavailable, 2},
		{"the robot may not ask", "alice", operation, read, fails(ytclient.ErrDenied), ErrUnavailable, 2},
		{"the robot's token is bad", "alice", operation, read, fails(ytclient.ErrUnauthenticated), ErrUnavailable, 2},
		{"the login is unknown", "alice", operation, read, fails(ytclient.ErrRejected), ErrUnavailable, 2},
		{"nobody", "", operation, read, only(ytclient.Read), ErrDenied, 0},
		{"nothing", "alice", "", read, only(ytclient.Read), ErrDenied, 0},
		{"no permission asked", "alice", operation, nil, only(ytclient.Read), ErrDenied, 0},
		{"empty list", "alice", operation, []ytclient.Permission{}, only(ytclient.Read), ErrDenied, 0},
		{"empty permission", "alice", operation, []ytclient.Permission{""}, only(""), ErrDenied, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := &cluster{check: func(_ context.Context, _, _ string, p ytclient.Permission) (bool, error) { return tc.check(p) }}
			a := newAuthorizer(t, Config{Cluster: c})
			for range 2 {
				if _, err := a.Authorize(t.Context(), tc.login, tc.op, tc.perms); !errors.Is(err, tc.want) {
					t.Errorf("error %v, want %v", err, tc.want)
				}
			}
			if got := c.checks.Load(); got != tc.calls {
				t.Errorf("%d calls, want %d", got, tc.calls)
			}
		})
	}
}

// TestIdentitiesDoNotMix presents one string in every way. Each is a credential of its own, with an owner of its own.
func TestIdentitiesDoNotMix(t *testing.T) {
	t.Parallel()
	c := &cluster{whoAmI: func(_ context.Context, cr ytclient.Credentials) (string, error) {
		return fmt.Sprintf("%s/%s/%s", cr.Kind, cr.CookieName, cr.Secret), nil
	}}
	a := newAuthorizer(t, Config{Cluster: c})
	all := []ytclient.Credentials{
		oauth("ab"), bearer("ab"), cookie("ab"), oauth("a"), oauth("abc"),
		{Kind: ytclient.Cookie, CookieName: "x", Secret: "yz"},
		{Kind: ytclient.Cookie, CookieName: "xy", Secret: "z"}, // the same bytes, cut elsewhere
		{Kind: ytclient.Cookie, CookieName: "x", Secret: "\x00z"},
		{Kind: ytclient.Cookie, CookieName: "x\x00", Secret: "z"},
	}
	for range 2 {
		for _, cr := range all {
			got, err := a.Authenticate(t.Context(), nowhere, cr)
			if want := fmt.Sprintf("%s/%s/%s", cr.Kind, cr.CookieName, cr.Secret); err != nil || got.Login != want {
				t.Errorf("got %q, %v, want %q", got.Login, err, want)
			}
		}
	}
	if got, want := c.whoAmIs.Load(), int64(len(all)); got != want {
		t.Errorf("%d calls, want %d", got, want)
	}
}

// TestDecisionsDoNotMix grants one thing and asks for its neighbours.
func TestDecisionsDoNotMix(t *testing.T) {
	t.Parallel()
	c := &cluster{check: func(_ context.Context, login, op string, p ytclient.Permission) (bool, error) {
		return login == "alice" && op == operation && p == ytclient.Read, nil
	}}
	a := newAuthorizer(t, Config{Cluster: c})
	for range 2 {
		for _, tc := range []struct {
			login, op string
			perm      ytclient.Permission
			want      error
		}{
			{"alice", operation, ytclient.Read, nil},
			{"bob", operation, ytclient.Read, ErrDenied},
			{"alice", "5-6-3e803e8-7", ytclient.Read, ErrDenied},
			{"alice", operation, ytclient.Manage, ErrDenied},
			{"alice" + operation[:1], operation[1:], ytclient.Read, ErrDenied},
		} {
			if _, err := a.Authorize(t.Context(), tc.login, tc.op, []ytclient.Permission{tc.perm}); !errors.Is(err, tc.want) {
				t.Errorf("%s, %s, %s: error %v, want %v", tc.login, tc.op, tc.perm, err, tc.want)
			}
		}
	}
}

// TestFloodOfFailures sends more random tokens than there is room for anything. Whoever was known before stays known.
func TestFloodOfFailures(t *testing.T) {
	t.Parallel()
	const capacity = 128
	c := &cluster{
		whoAmI: func(_ context.Context, cr ytclient.Credentials) (string, error) {
			if cr.Secret == "good" {
				return "alice", nil
			}
			return "", ytclient.ErrUnauthenticated
		},
		check: func(_ context.Context, login, _ string, _ ytclient.Permission) (bool, error) {
			return login == "alice", nil
		},
	}
	a := newAuthorizer(t, Config{Cluster: c, Capacity: capacity})
	if _, err := a.Authenticate(t.Context(), nowhere, token("good")); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Authorize(t.Context(), "alice", operation, read); err != nil {
		t.Fatal(err)
	}
	for i := range 20 * capacity {
		from := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) // too many from one place would not be asked about
		if _, err := a.Authenticate(t.Context(), from, token(fmt.Sprint("random", i))); !errors.Is(err, ErrUnauthenticated) {
			t.Fatal(err)
		}
		if _, err := a.Authorize(t.Context(), "bob", fmt.Sprintf("%x-0-3e8-0", i), read); !errors.Is(err, ErrDenied) {
			t.Fatal(err)
		}
	}
	if got, err := a.Authenticate(t.Context(), nowhere, token("good")); err != nil || !got.Cached {
		t.Errorf("identity: got %+v, %v, want it remembered", got, err)
	}
	if got, err := a.Authorize(t.Context(), "alice", operation, read); err != nil || !got.Cached {
		t.Errorf("decision: got %+v, %v, want it remembered", got, err)
	}
	for name, sizes := range map[string]func() (int, int){"identities": a.identities.sizes, "decisions": a.decisions.sizes} {
		if grants, refusals := sizes(); grants != 1 || refusals > capacity {
			t.Errorf("%s: %d good and %d bad, want 1 and at most %d", name, grants, refusals, capacity)
		}
	}
}

// TestCrashOfACall panics, or ends the goroutine, in the cluster's place. Nobody hangs, nothing is granted, and what the
// panic carries reaches no log.
func TestCrashOfACall(t *testing.T) {
	t.Parallel()
	for name, crash := range map[string]func(secret string){
		"panic":  func(secret string) { panic(secret) },
		"goexit": func(string) { runtime.Goexit() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			c := &cluster{whoAmI: func(_ context.Context, cr ytclient.Credentials) (string, error) {
				crash(cr.Secret)
				return "alice", nil
			}}
			a := newAuthorizer(t, Config{Cluster: c, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			for range 2 {
				if got, err := a.Authenticate(t.Context(), nowhere, token("s3cr3t")); !errors.Is(err, ErrUnavailable) || got.Login != "" {
					t.Errorf("got %+v, %v, want %v", got, err, ErrUnavailable)
				}
			}
			a.Close() // the log is ours from here on
			if got := c.whoAmIs.Load(); got != 2 {
				t.Errorf("%d calls, want 2: a crash is no answer", got)
			}
			if strings.Contains(log.String(), "s3cr3t") {
				t.Errorf("the secret is in the log: %s", log.String())
			}
			if name == "panic" && !strings.Contains(log.String(), "panicked") {
				t.Errorf("the log does not tell: %s", log.String())
			}
		})
	}
}

func TestNewNamesEveryWrongField(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Capacity: -1, GrantTTL: -time.Second, DenyTTL: -2 * time.Second, CallTimeout: -3 * time.Second})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"Cluster is nil", "Capacity is -1", "GrantTTL is -1s", "DenyTTL is -2s", "CallTimeout is -3s"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %q", want, err)
		}
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	a := newAuthorizer(t, Config{Cluster: &cluster{
		check: func(_ context.Context, login, _ string, _ ytclient.Permission) (bool, error) {
			return login == "alice", nil
		},
	}, Registerer: registry})
	for range 3 {
		_, _ = a.Authenticate(t.Context(), nowhere, token("t"))
		_, _ = a.Authorize(t.Context(), "alice", operation, read)
		_, _ = a.Authorize(t.Context(), "bob", operation, read)
	}
	got := gather(t, registry)
	for name, want := range map[string]float64{
		"yt_task_proxy_auth_cache_entries{identity}":                   1,
		"yt_task_proxy_auth_cache_entries{decision}":                   1,
		"yt_task_proxy_auth_cache_entries{failures}":                   1,
		"yt_task_proxy_auth_cache_hits_total{identity}":                2,
		"yt_task_proxy_auth_cache_hits_total{decision}":                2,
		"yt_task_proxy_auth_cache_hits_total{failures}":                2,
		"yt_task_proxy_auth_cache_misses_total{identity}":              1,
		"yt_task_proxy_auth_cache_misses_total{decision}":              2,
		"yt_task_proxy_auth_cache_inflight_backend_requests{identity}": 0,
		"yt_task_proxy_auth_cache_waiting_requests{decision}":          0,
		"yt_task_proxy_auth_stale_grants_total{}":                      0,
		"yt_task_proxy_auth_refreshes_total{renewed}":                  0,
		"yt_task_proxy_auth_limited_total{lookups}":                    0,
		"yt_task_proxy_auth_limited_total{failures}":                   0,
		"yt_task_proxy_auth_limited_total{busy}":                       0,
		"yt_task_proxy_auth_cache_evictions_total{identity}":           0,
		"yt_task_proxy_auth_cluster_unreachable{}":                     0,
		"yt_task_proxy_auth_cluster_auth_off{}":                        0,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v (there: %t), want %v", name, v, ok, want)
		}
	}

	if _, err := New(Config{Cluster: &cluster{}, Registerer: registry}); err == nil {
		t.Error("a second authorizer took the same names")
	}
	a.Close()
	if left := gather(t, registry); len(left) != 0 {
		t.Errorf("metrics left after Close: %v", left)
	}
}

// What is pushed out, and what the authorizer knows about its cluster, can be watched.
func TestMetricsOfBadTimes(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	g := newGate()
	g.check = func(_ context.Context, login, _ string, _ ytclient.Permission) (bool, error) { return false, nil }
	a := newAuthorizer(t, Config{Cluster: g, Capacity: 1, Registerer: registry})
	want := func(name string, value float64) {
		t.Helper()
		if got, ok := gather(t, registry)["yt_task_proxy_auth_"+name]; !ok || got != value {
			t.Errorf("%s is %v (there: %t), want %v", name, got, ok, value)
		}
	}
	_, _ = a.Authenticate(t.Context(), nowhere, token("alice's"))
	want("cache_evictions_total{identity}", 0)
	_, _ = a.Authenticate(t.Context(), nowhere, token("root's"))
	want("cache_evictions_total{identity}", 1)
	_, _ = a.Authorize(t.Context(), "alice", operation, read)
	_, _ = a.Authorize(t.Context(), "bob", operation, read)
	want("cache_evictions_total{failures}", 1)
	want("cache_evictions_total{decision}", 0)

	g.set(false, errAway)
	_, _ = a.Authenticate(t.Context(), nowhere, token("another's"))
	want("cluster_unreachable{}", 1)
	g.set(true, nil)
	_ = a.canary(t.Context())
	want("cluster_auth_off{}", 1)
	g.set(false, nil)
	_ = a.canary(t.Context())
	want("cluster_auth_off{}", 0)
	_, _ = a.Authenticate(t.Context(), nowhere, token("yet another's"))
	want("cluster_unreachable{}", 0)
}

// gather returns the values by name{label values}.
func gather(t *testing.T, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			values[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return values
}
