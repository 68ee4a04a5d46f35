package auth

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskproxy/ytclient"
)

// fickle is a crowd whose good tokens and permissions can be taken back.
type fickle struct {
	crowd
	revoked, denied atomic.Bool
	slower          atomic.Int64 // a time.Duration, on top of what the crowd takes
}

func (c *fickle) WhoAmI(ctx context.Context, cr ytclient.Credentials) (string, error) {
	time.Sleep(time.Duration(c.slower.Load()))
	login, err := c.crowd.WhoAmI(ctx, cr)
	if err == nil && c.revoked.Load() {
		return "", ytclient.ErrUnauthenticated
	}
	return login, err
}

func (c *fickle) CheckOperationPermission(ctx context.Context, login, operationID string, p ytclient.Permission) (bool, error) {
	time.Sleep(time.Duration(c.slower.Load()))
	allowed, err := c.crowd.CheckOperationPermission(ctx, login, operationID, p)
	return allowed && !c.denied.Load(), err
}

// TestRecheckGetsItsTurn asks again about a stream while new requests want all that there is: those of its caller, of his
// address, and of everybody. The answer takes as long as the cluster needs for it, and is the cluster's.
func TestRecheckGetsItsTurn(t *testing.T) {
	t.Parallel()
	const crowded = DefaultLookupsPerCaller + maxQueue + 16 // more than one party may have under way and waiting
	revoke := func(c *fickle) { c.revoked.Store(true) }
	for _, tc := range []struct {
		name   string
		change func(*fickle)
		want   error
		calls  time.Duration // how many calls the re-check may wait for
		takes  time.Duration
		asks   int // askers at a time
		ask    func(ctx context.Context, a *Authorizer, asker, i int)
	}{
		{"bad tokens of his address", revoke, ErrUnauthenticated, 1, 20 * time.Millisecond, crowded, func(ctx context.Context, a *Authorizer, asker, i int) {
			_, _ = a.Authenticate(ctx, here, token(fmt.Sprint("bad ", asker, i)))
		}},
		{"his own token", revoke, ErrUnauthenticated, 1, time.Second, 1, func(ctx context.Context, a *Authorizer, _, _ int) {
			_, _ = a.Authenticate(ctx, here, token("good"))
		}},
		{"his own token, and no places for it", revoke, ErrUnauthenticated, 1, time.Second, crowded, func(ctx context.Context, a *Authorizer, asker, i int) {
			if asker > 0 {
				_, _ = a.Authenticate(ctx, here, token(fmt.Sprint("bad ", asker, i)))
			} else {
				_, _ = a.Authenticate(ctx, here, token("good"))
			}
		}},
		{"other good tokens", func(*fickle) {}, nil, 2, time.Second, crowded, func(ctx context.Context, a *Authorizer, asker, _ int) {
			_, _ = a.Authenticate(ctx, here, token(fmt.Sprint("good ", asker)))
		}},
		{"his other operations", func(c *fickle) { c.denied.Store(true) }, ErrDenied, 2, time.Second, crowded, func(ctx context.Context, a *Authorizer, asker, _ int) {
			_, _ = a.Authorize(ctx, "user-good", fmt.Sprintf("%x-0-3e8-0", asker), read)
		}},
		{"everybody", revoke, ErrUnauthenticated, 1, 2 * time.Second, crowded, func(ctx context.Context, a *Authorizer, asker, i int) {
			from := netip.AddrFrom4([4]byte{10, 0, byte(asker >> 8), byte(asker)})
			_, _ = a.Authenticate(ctx, from, token(fmt.Sprint("bad ", asker, i)))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := &fickle{crowd: crowd{takes: 20 * time.Millisecond}}
				a := newAuthorizer(t, Config{Cluster: c})
				id, err := a.Authenticate(t.Context(), here, token("good"))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := a.Authorize(t.Context(), id.Login, operation, read); err != nil {
					t.Fatal(err)
				}
				tc.change(c)
				ctx, stop := context.WithCancel(t.Context())
				var group sync.WaitGroup
				ask := func() {
					for asker := range tc.asks {
						group.Go(func() {
							for i := 0; ctx.Err() == nil; i++ {
								tc.ask(ctx, a, asker, i)
								time.Sleep(100 * time.Millisecond)
							}
						})
					}
				}
				time.Sleep(55 * time.Second)
				ask() // the renewal sees to it that nobody knows any more who that was
				time.Sleep(6 * time.Second)
				c.slower.Store(int64(tc.takes - c.takes))
				for range 5 {
					time.Sleep(1234 * time.Millisecond)
					start := time.Now()
					_, err = a.Recheck(t.Context(), id.Login, token("good"), operation, read)
					if took := time.Since(start); !errors.Is(err, tc.want) || took > tc.calls*tc.takes {
						t.Errorf("%v after %s, want %v after %s at most", err, took, tc.want, tc.calls*tc.takes)
					}
				}
				stop()
				group.Wait()
			})
		})
	}
}

// TestRechecksAreBounded: many streams of one login are asked about a few at a time, and those of others meanwhile. Streams
// with the same question ask it once.
func TestRechecksAreBounded(t *testing.T) {
	t.Parallel()
	fair(t, Config{}, func(t *testing.T, c *crowd, a *Authorizer) {
		c.takes = time.Second
		var group sync.WaitGroup
		for i := range 50 {
			group.Go(func() { _, _ = a.Recheck(t.Context(), "user-good", token(fmt.Sprint("good", i)), operation, read) })
		}
		synctest.Wait()
		if got := c.now.Load(); got != againEach {
			t.Errorf("%d at a time, want %d", got, againEach)
		}
		before, start := c.all.Load(), time.Now()
		var others sync.WaitGroup
		for range 1000 {
			others.Go(func() {
				d, err := a.Recheck(t.Context(), "user-good other", token("good other"), operation, read)
				if took := time.Since(start); err != nil || took > 2*c.takes || d.Cached || d.Held {
					t.Errorf("somebody else: %+v, %v after %s", d, err, took)
				}
			})
		}
		others.Wait()
		if got := c.all.Load() - before; got > 2+2*againEach {
			t.Errorf("%d calls, want two besides those of the first", got)
		}
		group.Wait()
	})
}

func TestRecheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		a := newAuthorizer(t, Config{Cluster: s})
		who, err := a.Authenticate(t.Context(), here, token("t"))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		recheck := func(login string) (Decision, error) {
			return a.Recheck(t.Context(), login, token("t"), operation, read)
		}
		d, err := recheck("alice")
		if err != nil || d.Cached || !d.Expires.Equal(who.Expires) {
			t.Errorf("got %+v, %v, want a decision that counts until %s, as the identity does", d, err, who.Expires)
		}
		if d, err := recheck("alice"); err != nil || !d.Cached {
			t.Errorf("got %+v, %v, want what is remembered", d, err)
		}
		if _, err := recheck("mallory"); !errors.Is(err, ErrUnauthenticated) || !strings.Contains(err.Error(), "alice") {
			t.Errorf("got %v, want %v and whose the credentials are", err, ErrUnauthenticated)
		}
		time.Sleep(5 * time.Minute)
		s.err = errAway
		if d, err := recheck("alice"); err != nil || !d.Held {
			t.Errorf("got %+v, %v, want what is held", d, err)
		}
		time.Sleep(5 * time.Minute)
		if _, err := recheck("alice"); !IsAway(err) {
			t.Errorf("got %v, want an error that says that the cluster is away", err)
		}
	})
}

// TestLateYes has a yes arrive after a no that was asked for later, which a request and a re-check can bring about.
func TestLateYes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &fickle{crowd: crowd{takes: 2 * time.Second}}
		a := newAuthorizer(t, Config{Cluster: c})
		key := a.digests.of(token("good"))
		asked := a.identities.now()
		time.Sleep(time.Second)
		c.revoked.Store(true)
		if _, err := a.Recheck(t.Context(), "user-good", token("good"), operation, read); !errors.Is(err, ErrUnauthenticated) {
			t.Fatal(err)
		}
		if ans := a.identities.settle(key, "user-good", nil, asked); !errors.Is(ans.err, ErrUnauthenticated) {
			t.Errorf("got %+v, want the no", ans)
		}
		if err := try(t, a, here, "good"); !errors.Is(err, ErrUnauthenticated) {
			t.Errorf("got %v, want the no", err)
		}
	})
}

func TestIsAway(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{fmt.Errorf("%w: %w", ErrUnavailable, ytclient.ErrUnavailable), true},
		{fmt.Errorf("%w: %w", ErrUnavailable, context.DeadlineExceeded), true},
		{fmt.Errorf("%w: %w", ErrUnavailable, ytclient.ErrOverloaded), false},
		{fmt.Errorf("%w: %w", ErrUnavailable, ytclient.ErrOddAnswer), false},
		{fmt.Errorf("%w: %w: %w", ErrUnavailable, errNotAsked, context.DeadlineExceeded), false},
		{ErrUnavailable, false},
		{ErrTooMany, false},
		{ErrDenied, false},
		{nil, false},
	} {
		if got := IsAway(tc.err); got != tc.want {
			t.Errorf("%v: %t, want %t", tc.err, got, tc.want)
		}
	}
}

// TestRecheckWaitsForNoRequest has requests wait for places: one with the stream's own token, which nobody knows any more,
// and many of those who were in before. A re-check shares neither their fate nor their places.
func TestRecheckWaitsForNoRequest(t *testing.T) {
	t.Parallel()
	fair(t, Config{}, func(t *testing.T, c *crowd, a *Authorizer) {
		const logins, each = 3, DefaultLookupsPerCaller
		come := func(group *sync.WaitGroup) {
			for i := range logins * each {
				group.Go(func() {
					_, _ = a.Authorize(t.Context(), fmt.Sprint("user", i%logins), fmt.Sprintf("%x-0-3e8-0", i), read)
				})
			}
		}
		var group sync.WaitGroup
		come(&group)
		group.Wait()
		time.Sleep(time.Hour)
		c.takes = time.Second
		come(&group)
		for i := range 2 * DefaultLookupsPerCaller {
			group.Go(func() { _ = try(t, a, here, fmt.Sprint("bad ", i)) })
		}
		synctest.Wait()
		group.Go(func() { _ = try(t, a, here, "good") })
		synctest.Wait()
		start := time.Now()
		if _, err := a.Recheck(t.Context(), "user-good", token("good"), operation, read); err != nil || time.Since(start) != 2*c.takes {
			t.Errorf("%v after %s, want two calls' time", err, time.Since(start))
		}
		group.Wait()
	})
}

// TestRecheckHeldIdentity: one answer that is held makes the whole a held one.
func TestRecheckHeldIdentity(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		away := false
		a := newAuthorizer(t, Config{Cluster: &cluster{whoAmI: func(context.Context, ytclient.Credentials) (string, error) {
			if away {
				return "", errAway
			}
			return "alice", nil
		}}})
		if _, err := a.Authenticate(t.Context(), here, token("t")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		away = true
		d, err := a.Recheck(t.Context(), "alice", token("t"), operation, read)
		if err != nil || !d.Held || time.Until(d.Expires) > holdFor {
			t.Errorf("got %+v, %v, want a held decision that is asked for again soon", d, err)
		}
	})
}

// A login with many streams, all of which are due at once, does not put their re-checks off by that.
func TestManyRechecksOfOneLogin(t *testing.T) {
	t.Parallel()
	fair(t, Config{}, func(t *testing.T, c *crowd, a *Authorizer) {
		c.takes = 5 * time.Millisecond
		var group sync.WaitGroup
		for i := range 1000 {
			group.Go(func() {
				if _, err := a.Recheck(t.Context(), "user-good", token(fmt.Sprint("bad", i)), operation, read); !errors.Is(err, ErrUnauthenticated) {
					t.Errorf("token %d: %v, want the cluster's no", i, err)
				}
			})
		}
		group.Wait()
	})
}
