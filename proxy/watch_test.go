package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskproxy/auth"
	"taskproxy/discovery"
	"taskproxy/ytclient"
)

// The tests of this file are about when a stream ends, on a clock of their own; stream_test.go is about how, with clients.

// moments is an Authorizer that a test turns, and that counts.
type moments struct {
	ttl   time.Duration
	login atomic.Pointer[string]
	who   atomic.Pointer[error]
	may   atomic.Pointer[error]
	held  atomic.Bool
	asked atomic.Int64
	perms atomic.Pointer[[]ytclient.Permission]
}

func ptr(err error) *error { return &err }

func newMoments(ttl time.Duration) *moments {
	m := &moments{ttl: ttl}
	m.login.Store(new("alice"))
	m.who.Store(new(error))
	m.may.Store(new(error))
	return m
}

func (m *moments) Authenticate(context.Context, netip.Addr, ytclient.Credentials) (auth.Identity, error) {
	m.asked.Add(1)
	return auth.Identity{Login: *m.login.Load(), Held: m.held.Load(), Expires: time.Now().Add(2 * m.ttl)}, *m.who.Load()
}

func (m *moments) Authorize(_ context.Context, _, _ string, perms []ytclient.Permission) (auth.Decision, error) {
	m.perms.Store(&perms)
	return auth.Decision{Held: m.held.Load(), Expires: time.Now().Add(m.ttl)}, *m.may.Load()
}

func (m *moments) Recheck(ctx context.Context, login string, cr ytclient.Credentials, operation string, perms []ytclient.Permission) (auth.Decision, error) {
	return closures{
		func(ctx context.Context, cr ytclient.Credentials) (auth.Identity, error) {
			return m.Authenticate(ctx, netip.Addr{}, cr)
		}, m.Authorize,
	}.Recheck(ctx, login, cr, operation, perms)
}

// watched is one stream on which nothing moves.
type watched struct {
	*testing.T
	p       *Proxy
	m       *moments
	table   *Table
	x       *exchange
	ctx     context.Context
	service discovery.Service
	began   time.Time
}

func (w *watched) publish(services ...discovery.Service) {
	snapshot, _ := discovery.NewSnapshot(w.table.Load(), nil, services)
	w.table.Store(snapshot)
}

// reason is why the stream has ended; empty: it goes on.
func (w *watched) reason() string {
	synctest.Wait()
	if w.ctx.Err() == nil {
		return ""
	}
	c, _ := known(context.Cause(w.ctx))
	if c == nil {
		return context.Cause(w.ctx).Error()
	}
	return c.reason
}

// ends waits for the stream's end and checks reason and time.
func (w *watched) ends(reason string, after, before time.Duration) {
	w.Helper()
	<-w.ctx.Done()
	took := time.Since(w.began)
	if got := w.reason(); got != reason || took < after || took > before {
		w.Errorf("ended after %s because of %q (%v), want %q between %s and %s", took, got, context.Cause(w.ctx), reason, after, before)
	}
}

// inBubble runs f with a stream that was let in by m a moment ago.
func inBubble(t *testing.T, configure func(*Config, *moments), f func(w *watched)) {
	synctest.Test(t, func(t *testing.T) {
		bases, err := discovery.NewBases(base)
		if err != nil {
			t.Fatal(err)
		}
		w := &watched{T: t, m: newMoments(time.Minute), table: NewTable(), service: discovery.Service{OperationID: "1-2-3e8-1", Task: "task", Name: "ui", Protocol: discovery.HTTP}}
		w.publish(w.service)
		cfg := Config{Bases: bases, Table: w.table, Authorizer: w.m, IdleTimeout: -1}
		if configure != nil {
			configure(&cfg, w.m)
		}
		w.p, err = New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.Header.Set("Authorization", aliceOAuth)
		w.x = w.p.begin(nullWriter{http.Header{}}, r)
		if err := w.p.identify(w.x); err != nil {
			t.Fatal(err)
		}
		w.x.service = w.table.Load().Services()[0]
		if err := w.p.authorize(w.x); err != nil {
			t.Fatal(err)
		}
		w.ctx, w.began = &w.x.carrier, time.Now()
		w.x.carrier.begin(t.Context(), w.x)
		defer w.x.carrier.cancel(nil)
		w.p.watch(w.x)
		defer w.p.unwatch(w.x)
		f(w)
	})
}

func TestStreamIsRecheckedWhenTheYesExpires(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*moments)
		reason string
	}{
		{"denied", func(m *moments) { m.may.Store(ptr(auth.ErrDenied)) }, "access_revoked"},
		{"no more credentials", func(m *moments) { m.who.Store(ptr(auth.ErrUnauthenticated)) }, "access_revoked"},
		{"somebody else's credentials", func(m *moments) { m.login.Store(new("mallory")) }, "access_revoked"},
		{"nobody's credentials", func(m *moments) { m.login.Store(new("")) }, "access_revoked"},
		{"no authentication", func(m *moments) { m.who.Store(ptr(auth.ErrAuthOff)) }, "cluster_auth_off"},
		{"no operation", func(m *moments) { m.may.Store(ptr(auth.ErrNoSuchOperation)) }, "operation_ended"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, nil, func(w *watched) {
				time.Sleep(10*time.Minute + time.Second)
				if got := w.reason(); got != "" {
					t.Fatalf("ended because of %s", got)
				}
				if n := w.m.asked.Load(); n != 11 { // once when it came, then every minute
					t.Errorf("asked %d times", n)
				}
				c.change(w.m)
				w.ends(c.reason, 11*time.Minute, 11*time.Minute)
			})
		})
	}
}

// What the service requires now is what counts: an author who asks for more rights shuts out those who have fewer.
func TestRecheckAsksForWhatIsRequiredNow(t *testing.T) {
	t.Parallel()
	inBubble(t, nil, func(w *watched) {
		w.service.Permissions = []ytclient.Permission{ytclient.Read, ytclient.Manage}
		w.publish(w.service)
		time.Sleep(time.Minute)
		synctest.Wait()
		if perms := *w.m.perms.Load(); len(perms) != 2 {
			t.Errorf("asked for %v", perms)
		}
	})
}

func TestStreamSurvivesClusterErrors(t *testing.T) {
	t.Parallel()
	away := fmt.Errorf("%w: %w", auth.ErrUnavailable, ytclient.ErrUnavailable)
	const undecided = time.Minute + undecidedLimit
	for _, c := range []struct {
		name  string
		err   error
		limit time.Duration
		last  time.Duration // by when the stream is over
	}{
		{"away", away, 0, auth.DefaultStaleLimit},
		{"a limit of its own", away, 2 * time.Minute, 2 * time.Minute},
		{"not at all", away, -1, time.Minute},
		// A cluster that is there and decides nothing, or was not asked, gets a little time.
		{"too many", auth.ErrTooMany, 0, undecided},
		{"not asked", auth.ErrUnavailable, 0, undecided},
		{"overloaded", fmt.Errorf("%w: %w", auth.ErrUnavailable, ytclient.ErrOverloaded), 0, undecided},
		{"odd", fmt.Errorf("%w: %w", auth.ErrUnavailable, ytclient.ErrOddAnswer), 0, undecided},
		{"anything else", errors.New("odd"), 0, undecided},
		{"too many, and a limit of its own", auth.ErrTooMany, 80 * time.Second, 80 * time.Second},
		{"too many, not at all", auth.ErrTooMany, -1, time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(cfg *Config, _ *moments) { cfg.StaleLimit = c.limit }, func(w *watched) {
				time.Sleep(30 * time.Second) // within the first yes
				w.m.who.Store(&c.err)
				w.ends("cluster_unavailable", c.last, c.last+2*recheckPause)
			})
		})
	}
	t.Run("and goes on after them", func(t *testing.T) {
		inBubble(t, nil, func(w *watched) {
			w.m.who.Store(&away)
			time.Sleep(9 * time.Minute)
			w.m.who.Store(new(error))
			time.Sleep(time.Hour)
			if got := w.reason(); got != "" {
				t.Errorf("ended because of %s", got)
			}
			w.m.who.Store(ptr(auth.ErrUnauthenticated))
			w.ends("access_revoked", 69*time.Minute, 70*time.Minute+2*recheckPause)
		})
	})
	t.Run("also if they come and go", func(t *testing.T) {
		inBubble(t, nil, func(w *watched) {
			for range 100 {
				w.m.may.Store(ptr(auth.ErrTooMany))
				time.Sleep(time.Minute + undecidedLimit/2)
				w.m.may.Store(new(error))
				time.Sleep(2 * recheckPause)
			}
			if got := w.reason(); got != "" {
				t.Errorf("ended because of %s", got)
			}
		})
	})
	t.Run("a no ends it at once", func(t *testing.T) {
		inBubble(t, nil, func(w *watched) {
			w.m.may.Store(&away)
			time.Sleep(5 * time.Minute)
			w.m.may.Store(ptr(auth.ErrDenied))
			w.ends("access_revoked", 5*time.Minute, 5*time.Minute+2*recheckPause)
		})
	})
}

// A yes that auth holds while the cluster is away is not a new one: a stream does not outlive the limit twice.
func TestHeldYesMakesNoneYounger(t *testing.T) {
	t.Parallel()
	inBubble(t, nil, func(w *watched) {
		w.m.held.Store(true)
		time.Sleep(9*time.Minute + 50*time.Second)
		if got := w.reason(); got != "" {
			t.Fatalf("ended because of %s", got)
		}
		w.m.who.Store(ptr(auth.ErrUnavailable))
		w.ends("cluster_unavailable", 10*time.Minute, 10*time.Minute+2*recheckPause)
	})
	inBubble(t, func(_ *Config, m *moments) { m.held.Store(true) }, func(w *watched) { // let in by a held one
		w.m.who.Store(ptr(auth.ErrUnavailable))
		w.ends("cluster_unavailable", time.Minute, time.Minute)
	})
}

// office is a cluster that knows aliceToken, until it is taken back, and refuses all others after a moment.
type office struct{ revoked atomic.Bool }

func (o *office) WhoAmI(_ context.Context, cr ytclient.Credentials) (string, error) {
	time.Sleep(5 * time.Millisecond)
	if cr.Secret != aliceToken || o.revoked.Load() {
		return "", ytclient.ErrUnauthenticated
	}
	return "alice", nil
}

func (o *office) CheckOperationPermission(context.Context, string, string, ytclient.Permission) (bool, error) {
	time.Sleep(5 * time.Millisecond)
	return true, nil
}

// TestStreamDoesNotOutliveItsTokenByItsCallersDoing has a real Authorizer behind a stream whose token is taken back. Its owner
// knows, and sees to it that the cluster has no time for his address: he sends bad tokens without end, and the one that was
// good, so that the yes is forgotten before the stream is looked at.
func TestStreamDoesNotOutliveItsTokenByItsCallersDoing(t *testing.T) {
	t.Parallel()
	for range 10 { // when answers are renewed is random
		var o office
		var a *auth.Authorizer
		inBubble(t, func(cfg *Config, _ *moments) {
			var err error
			if a, err = auth.New(auth.Config{Cluster: &o}); err != nil {
				t.Fatal(err)
			}
			cfg.Authorizer = a
		}, func(w *watched) {
			defer a.Close()
			o.revoked.Store(true)
			ctx, stop := context.WithCancel(w.Context())
			var flood sync.WaitGroup
			defer flood.Wait()
			defer stop()
			present := func(secret string) error {
				_, err := a.Authenticate(ctx, netip.Addr{}, ytclient.Credentials{Kind: ytclient.OAuth, Secret: secret})
				return err
			}
			for g := range 10 {
				flood.Go(func() {
					for i := 0; ctx.Err() == nil; i++ {
						_ = present(fmt.Sprint("bad ", g, i))
						time.Sleep(200 * time.Millisecond)
					}
				})
			}
			flood.Go(func() {
				time.Sleep(54 * time.Second)
				for ctx.Err() == nil && present(aliceToken) == nil {
					time.Sleep(10 * time.Millisecond)
				}
			})
			w.ends("access_revoked", 50*time.Second, time.Minute+time.Second)
		})
	}
}

func TestStreamEndsAfterItsService(t *testing.T) {
	t.Parallel()
	other := discovery.Service{OperationID: "1-2-3e8-1", Task: "task", Name: "other", Protocol: discovery.HTTP}
	for _, phase := range []time.Duration{0, time.Second, 9999 * time.Millisecond, 10 * time.Second, 25 * time.Second, time.Hour} {
		inBubble(t, nil, func(w *watched) {
			time.Sleep(phase)
			w.publish(other) // the service is gone, though its operation is not
			w.ends("operation_ended", phase+20*time.Second, phase+30*time.Second)
		})
		// Gone and back, many times, and a whole outage of discovery, which changes nothing: it goes on.
		inBubble(t, nil, func(w *watched) {
			time.Sleep(phase)
			for range 20 {
				w.table.Store(nil)
				time.Sleep(19 * time.Second)
				w.publish(w.service, other)
				time.Sleep(11 * time.Second)
			}
			if got := w.reason(); got != "" {
				t.Errorf("ended because of %s", got)
			}
		})
	}
	inBubble(t, func(cfg *Config, _ *moments) { cfg.DrainTimeout = time.Second }, func(w *watched) {
		time.Sleep(time.Minute)
		w.table.Store(nil)
		w.ends("operation_ended", time.Minute+time.Second*2/3, time.Minute+time.Second)
	})
}

// Somebody who came without a login, because authentication is off or because of a trusted peer, is not asked for one later.
func TestNoLoginIsNotRechecked(t *testing.T) {
	t.Parallel()
	inBubble(t, func(cfg *Config, _ *moments) { cfg.Authorizer, cfg.AuthDisabled = nil, true }, func(w *watched) {
		time.Sleep(time.Hour)
		if got := w.reason(); got != "" {
			t.Errorf("ended because of %s", got)
		}
		w.table.Store(nil)
		w.ends("operation_ended", time.Hour, time.Hour+30*time.Second)
	})
}

// The idle timeout shares the timer, and bytes move it.
func TestIdleTimeoutBesidesTheRest(t *testing.T) {
	t.Parallel()
	inBubble(t, func(cfg *Config, _ *moments) { cfg.IdleTimeout = 15 * time.Second }, func(w *watched) {
		for range 20 {
			time.Sleep(14 * time.Second)
			w.x.watch.touch()
		}
		w.ends("idle_timeout", 20*14*time.Second+15*time.Second, 20*14*time.Second+15*time.Second)
	})
}

// Who had to wait for the cluster, or for the service, has not been silent meanwhile.
func TestIdlenessBeginsWhenTheRequestIsForwarded(t *testing.T) {
	t.Parallel()
	inBubble(t, func(c *Config, _ *moments) { c.IdleTimeout = time.Hour }, func(w *watched) {
		x := w.p.begin(nullWriter{http.Header{}}, w.x.in)
		time.Sleep(50 * time.Minute)
		x.service = w.x.service
		x.carrier.begin(w.Context(), x)
		defer x.carrier.cancel(nil)
		w.ctx, w.began = &x.carrier, time.Now()
		w.p.watch(x)
		defer w.p.unwatch(x)
		w.ends("idle_timeout", time.Hour, time.Hour)
	})
}

// What is over is not ended: its connection may carry the caller's next request.
func TestNothingIsEndedAfterUnwatch(t *testing.T) {
	t.Parallel()
	inBubble(t, nil, func(w *watched) {
		w.p.unwatch(w.x)
		w.x.end(causeClosing)
		time.Sleep(time.Hour)
		if got := w.reason(); got != "" {
			t.Errorf("ended because of %s", got)
		}
	})
}

// A stream that ends while it is being asked about is not ended a second time, and nobody waits for the answer.
func TestStreamEndsDuringRecheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bases, _ := discovery.NewBases(base)
		table := NewTable()
		snapshot, _ := discovery.NewSnapshot(nil, nil, []discovery.Service{{OperationID: "1-2-3e8-1", Task: "task", Name: "ui"}})
		table.Store(snapshot)
		var asking sync.WaitGroup
		asking.Add(1)
		authorizer := closures{authenticate: func(ctx context.Context, _ ytclient.Credentials) (auth.Identity, error) {
			asking.Done()
			<-ctx.Done()
			return auth.Identity{}, ctx.Err()
		}}
		p, err := New(Config{Bases: bases, Table: table, Authorizer: authorizer})
		if err != nil {
			t.Fatal(err)
		}
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		x := p.begin(nullWriter{http.Header{}}, r)
		ctx := &x.carrier
		x.login, x.service = "alice", snapshot.Services()[0]
		ctx.begin(t.Context(), x)
		p.watch(x)
		asking.Wait()
		ctx.cancel(nil)
		p.unwatch(x)
		p.end(x)
		synctest.Wait()
		if c, _ := known(context.Cause(ctx)); c != nil || len(p.streams.open) != 0 {
			t.Errorf("ended because of %v; %d streams left", c, len(p.streams.open))
		}
	})
}
