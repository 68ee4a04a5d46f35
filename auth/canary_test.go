package auth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskproxy/ytclient"
)

// gate is a cluster whose authentication can be turned off: then everybody is root.
type gate struct {
	cluster
	mu   sync.Mutex
	open bool
	err  error
	seen []string // the tokens nobody has
}

func (g *gate) set(open bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open, g.err = open, err
}

func newGate() *gate {
	g := &gate{}
	g.whoAmI = func(_ context.Context, cr ytclient.Credentials) (string, error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if cr.Secret != "alice's" && cr.Secret != "root's" {
			g.seen = append(g.seen, cr.Secret)
		}
		switch {
		case g.err != nil:
			return "", g.err
		case g.open || cr.Secret == "root's":
			return "root", nil
		case cr.Secret == "alice's":
			return "alice", nil
		}
		return "", ytclient.ErrUnauthenticated
	}
	return g
}

func TestCheckClusterAuth(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		open bool
		err  error
		want error
	}{
		{"refuses", false, nil, nil},
		{"takes anything", true, nil, ErrAuthOff},
		{"bans", false, ytclient.ErrDenied, nil},
		{"is away", false, errAway, ErrUnavailable},
		{"is busy", false, ytclient.ErrOverloaded, ErrUnavailable},
		{"answers nothing", false, ytclient.ErrOddAnswer, ErrUnavailable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			g := newGate()
			g.set(tc.open, tc.err)
			for range 2 {
				if err := CheckClusterAuth(t.Context(), g); !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
					t.Errorf("error %v, want %v", err, tc.want)
				}
			}
			slices.Sort(g.seen)
			if n := len(slices.Compact(g.seen)); n != 2*canaries || len(g.seen[0]) < 20 {
				t.Errorf("asked about %q, want another random token each time", g.seen)
			}
		})
	}
}

// TestClusterLosesItsAuthentication turns it off and on again. In between nobody is let in, neither who was known before nor
// by an identity from that time; afterwards all is as before.
func TestClusterLosesItsAuthentication(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		g := newGate()
		a := newAuthorizer(t, Config{Cluster: g, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- a.Run(ctx) }()
		who := func(secret string, login string, want error) {
			t.Helper()
			got, err := a.Authenticate(t.Context(), nowhere, token(secret))
			if got.Login != login || !errors.Is(err, want) {
				t.Errorf("at %s: got %q, %v, want %q, %v", time.Now().Format(time.TimeOnly), got.Login, err, login, want)
			}
			for _, other := range []error{ErrUnavailable, ErrUnauthenticated, ErrAuthOff} {
				if err != nil && other != want && errors.Is(err, other) { //nolint:errorlint // the sentinels themselves are compared
					t.Errorf("the error is %v as well as %v", other, want)
				}
			}
		}
		who("alice's", "alice", nil)
		who("nobody's", "", ErrUnauthenticated)

		g.set(true, nil)
		who("alice's", "alice", nil) // remembered
		time.Sleep(DefaultCanaryPeriod + DefaultCanaryPeriod/10 + time.Second)
		synctest.Wait()
		who("alice's", "", ErrAuthOff)
		who("nobody's", "", ErrAuthOff)
		if _, err := a.Authorize(t.Context(), "alice", operation, read); err != nil {
			t.Error(err) // decisions are asked with the robot's token, about a login: they are as good as ever
		}

		g.set(true, errAway)
		time.Sleep(time.Minute)
		who("alice's", "", ErrAuthOff) // no answer changes nothing
		g.set(false, nil)
		time.Sleep(2 * openPeriod)
		synctest.Wait()
		who("nobody's", "", ErrUnauthenticated)
		who("alice's", "alice", nil)

		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "\n"); n != 2 {
			t.Errorf("%d lines in the log, want one for each change:\n%s", n, log.String())
		}
		if strings.Contains(log.String(), "canary-") {
			t.Errorf("the log has the token:\n%s", log.String())
		}
	})
}

// TestIdentitiesOfAnOpenClusterAreForgotten has an answer arrive late, when authentication is known to be off.
func TestIdentitiesOfAnOpenClusterAreForgotten(t *testing.T) {
	t.Parallel()
	a := newAuthorizer(t, Config{Cluster: newGate()})
	key := a.digests.of(token("nobody's"))
	a.setOpen(true, ErrAuthOff)
	a.identities.grant(key, "root", a.identities.now())
	a.setOpen(false, nil)
	if _, err := a.Authenticate(t.Context(), nowhere, token("nobody's")); !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("error %v, want %v", err, ErrUnauthenticated)
	}
}

// TestRootIsProved: the cluster that takes everybody for root is not believed until a stranger's token was refused.
func TestRootIsProved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		a := newAuthorizer(t, Config{Cluster: g})
		for range 2 {
			got, err := a.Authenticate(t.Context(), nowhere, token("root's"))
			if err != nil || got.Login != "root" {
				t.Errorf("got %q, %v", got.Login, err)
			}
		}
		if got := g.whoAmIs.Load(); got != 1+canaries {
			t.Errorf("%d calls, want %d: one about the caller and the others to prove it", got, 1+canaries)
		}
		time.Sleep(time.Hour)
		g.set(true, nil)
		for _, secret := range []string{"nobody's", "root's", "alice's"} {
			if got, err := a.Authenticate(t.Context(), nowhere, token(secret)); !errors.Is(err, ErrAuthOff) {
				t.Errorf("%s: got %q, %v, want %v", secret, got.Login, err, ErrAuthOff)
			}
		}
		// Nothing of that is left.
		g.set(false, nil)
		if err := a.canary(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Authenticate(t.Context(), nowhere, token("nobody's")); !errors.Is(err, ErrUnauthenticated) {
			t.Errorf("error %v, want %v", err, ErrUnauthenticated)
		}
	})
}

// TestOneProxyOfManyIsOpen has two proxies behind one address take turns, one of which takes everybody for root. Who meets
// that one is not believed.
func TestOneProxyOfManyIsOpen(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	a := newAuthorizer(t, Config{Cluster: &cluster{whoAmI: func(context.Context, ytclient.Credentials) (string, error) {
		if calls.Add(1)%2 == 1 {
			return "root", nil
		}
		return "", ytclient.ErrUnauthenticated
	}}})
	if got, err := a.Authenticate(t.Context(), nowhere, token("nobody's")); !errors.Is(err, ErrAuthOff) {
		t.Errorf("got %q, %v, want %v", got.Login, err, ErrAuthOff)
	}
}

// TestRootUnproved: if the proof fails, nothing is known.
func TestRootUnproved(t *testing.T) {
	t.Parallel()
	a := newAuthorizer(t, Config{Cluster: &cluster{whoAmI: func(_ context.Context, cr ytclient.Credentials) (string, error) {
		if len(cr.Secret) == 1 {
			return "root", nil
		}
		return "", errAway
	}}})
	for i := range 3 {
		if _, err := a.Authenticate(t.Context(), nowhere, token(fmt.Sprint(i))); !errors.Is(err, ErrUnavailable) {
			t.Errorf("error %v, want %v", err, ErrUnavailable)
		}
	}
}

// TestCanaryHasADeadline: a cluster that hangs does not end the watch.
func TestCanaryHasADeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		s.takes = time.Hour
		a := newAuthorizer(t, Config{Cluster: s})
		start := time.Now()
		if err := a.canary(t.Context()); !errors.Is(err, ErrUnavailable) || time.Since(start) != DefaultCallTimeout {
			t.Errorf("%v after %s, want %v after %s", err, time.Since(start), ErrUnavailable, DefaultCallTimeout)
		}
	})
}
