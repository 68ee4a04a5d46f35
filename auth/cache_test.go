package auth

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"taskproxy/ytclient"
)

// script is a cluster whose answer about identities and decisions a test changes as time goes by.
type script struct {
	cluster
	err   error         // nil: yes
	takes time.Duration // how long an answer takes
}

func newScript() *script {
	s := &script{}
	answer := func(ctx context.Context) error {
		if s.takes > 0 {
			select {
			case <-time.After(s.takes):
			case <-ctx.Done():
				return fmt.Errorf("%w: %w", ytclient.ErrUnavailable, ctx.Err())
			}
		}
		return s.err
	}
	s.whoAmI = func(ctx context.Context, _ ytclient.Credentials) (string, error) {
		if err := answer(ctx); err != nil {
			return "", err
		}
		return "alice", nil
	}
	s.check = func(ctx context.Context, _, _ string, _ ytclient.Permission) (bool, error) {
		err := answer(ctx)
		if errors.Is(err, errNo) {
			return false, nil
		}
		return err == nil, err
	}
	return s
}

// errNo is the cluster's no, to both questions.
var errNo = fmt.Errorf("%w: no", ytclient.ErrUnauthenticated)

// asker is one of the two questions: everything about time holds for both.
type asker struct {
	name  string
	ask   func(ctx context.Context, a *Authorizer) (cached bool, err error)
	calls func(s *script) int64
	no    error
}

var askers = []asker{
	{
		"identity",
		func(ctx context.Context, a *Authorizer) (bool, error) {
			who, err := a.Authenticate(ctx, nowhere, token("t"))
			if err == nil && who.Login != "alice" {
				err = fmt.Errorf("login %q", who.Login)
			}
			return who.Cached, err
		},
		func(s *script) int64 { return s.whoAmIs.Load() },
		ErrUnauthenticated,
	},
	{
		"decision",
		func(ctx context.Context, a *Authorizer) (bool, error) {
			d, err := a.Authorize(ctx, "alice", operation, read)
			return d.Cached, err
		},
		func(s *script) int64 { return s.checks.Load() },
		ErrDenied,
	},
}

// play is one test's view of a question.
type play struct {
	*script
	t     *testing.T
	a     *Authorizer
	q     asker
	start time.Time
}

// each runs f for both questions, each in a bubble with time of its own.
func each(t *testing.T, cfg Config, f func(p *play)) {
	t.Helper()
	for _, q := range askers {
		t.Run(q.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newScript()
				cfg := cfg
				cfg.Cluster = s
				f(&play{script: s, t: t, a: newAuthorizer(t, cfg), q: q, start: time.Now()})
			})
		})
	}
}

// at waits until that much time has passed since the start, and until all is quiet.
func (p *play) at(d time.Duration) {
	time.Sleep(time.Until(p.start.Add(d)))
	synctest.Wait()
}

// want asks and compares the error, whether the answer came from memory, and how many calls there were up to now.
func (p *play) want(err error, cached bool, calls int64) {
	p.t.Helper()
	gotCached, gotErr := p.q.ask(p.t.Context(), p.a)
	synctest.Wait()
	if gotCalls := p.q.calls(p.script); !errors.Is(gotErr, err) || gotCached != cached || gotCalls != calls {
		p.t.Errorf("at %s: got %v, cached %t, calls %d, want %v, %t, %d",
			time.Since(p.start), gotErr, gotCached, gotCalls, err, cached, calls)
	}
}

func TestYesLastsExactly(t *testing.T) {
	t.Parallel()
	each(t, Config{}, func(p *play) {
		p.want(nil, false, 1)
		p.at(54*time.Second - 1) // from here on a use may renew
		p.want(nil, true, 1)
		p.at(60 * time.Second)
		p.want(nil, false, 2)
	})
}

func TestNoLastsExactly(t *testing.T) {
	t.Parallel()
	each(t, Config{}, func(p *play) {
		p.err = errNo
		p.want(p.q.no, false, 1)
		p.at(5*time.Second - 1)
		p.err = nil
		p.want(p.q.no, true, 1)
		p.at(5 * time.Second)
		p.want(nil, false, 2)
	})
}

// TestAgeCountsFromTheQuestion has the cluster take its time: what was revoked meanwhile is not granted for longer.
func TestAgeCountsFromTheQuestion(t *testing.T) {
	t.Parallel()
	each(t, Config{}, func(p *play) {
		p.takes = 2 * time.Second
		p.want(nil, false, 1)
		p.at(54*time.Second - 1)
		p.want(nil, true, 1)
		p.at(60 * time.Second)
		p.err = errNo
		p.want(p.q.no, false, 2)
	})
}

func TestErrorsAreNotRemembered(t *testing.T) {
	t.Parallel()
	each(t, Config{}, func(p *play) {
		p.err = errAway
		p.want(ErrUnavailable, false, 1)
		p.want(ErrUnavailable, false, 2)
		p.err = nil
		p.want(nil, false, 3)
	})
}

func TestEveryCallHasADeadline(t *testing.T) {
	t.Parallel()
	each(t, Config{}, func(p *play) {
		p.takes = time.Hour
		p.want(ErrUnavailable, false, 1)
		if got := time.Since(p.start); got != DefaultCallTimeout {
			p.t.Errorf("answered after %s, want %s", got, DefaultCallTimeout)
		}
	})
}

// TestYesCountsWhileTheClusterIsAway uses the entry only at its end, so that no attempt in between is held.
func TestYesCountsWhileTheClusterIsAway(t *testing.T) {
	t.Parallel()
	each(t, Config{}, func(p *play) {
		p.want(nil, false, 1)
		p.err = errAway
		p.at(5 * time.Minute)
		p.want(nil, false, 2)
		p.at(10*time.Minute - 1)
		p.want(nil, false, 3)
		p.at(10 * time.Minute)
		p.want(ErrUnavailable, false, 4)
		p.err = nil
		p.want(nil, false, 5)
	})
}

// TestHoldEndsAtTheLimit asks all the time; the last hold must not reach beyond the limit.
func TestHoldEndsAtTheLimit(t *testing.T) {
	t.Parallel()
	each(t, Config{}, func(p *play) {
		p.want(nil, false, 1)
		p.err = errAway
		for d := time.Minute; d < 10*time.Minute; d += 500 * time.Millisecond {
			p.at(d)
			if _, err := p.q.ask(p.t.Context(), p.a); err != nil {
				p.t.Fatalf("at %s: %v", d, err)
			}
		}
		p.at(10 * time.Minute)
		if _, err := p.q.ask(p.t.Context(), p.a); !errors.Is(err, ErrUnavailable) {
			p.t.Errorf("error %v, want %v", err, ErrUnavailable)
		}
	})
}

// TestOutageDoesNotSlowDown has the cluster hang. One request waits for the call's deadline; those after it do not,
// while attempts go on in the background, one at a time.
func TestOutageDoesNotSlowDown(t *testing.T) {
	t.Parallel()
	each(t, Config{}, func(p *play) {
		p.want(nil, false, 1)
		p.takes = time.Hour
		p.at(time.Minute)
		p.want(nil, false, 2)
		if got, want := time.Since(p.start), time.Minute+DefaultCallTimeout; got != want {
			p.t.Fatalf("answered at %s, want %s", got, want)
		}
		p.want(nil, true, 2) // no attempt within a pause of the last
		for d := 64 * time.Second; d < 70*time.Second; d += time.Second {
			p.at(d)
			if cached, err := p.q.ask(p.t.Context(), p.a); !cached || err != nil {
				p.t.Errorf("at %s: cached %t, error %v", d, cached, err)
			}
			if got := time.Since(p.start); got != d {
				p.t.Errorf("asked at %s, answered at %s", d, got)
			}
		}
		// The cluster is back, and the right is gone. The attempt that the next request starts finds out.
		p.takes, p.err = 0, errNo
		p.at(75 * time.Second)
		if _, err := p.q.ask(p.t.Context(), p.a); err != nil && !errors.Is(err, p.q.no) {
			p.t.Error(err)
		}
		p.at(75*time.Second + 1)
		if _, err := p.q.ask(p.t.Context(), p.a); !errors.Is(err, p.q.no) {
			p.t.Errorf("error %v, want %v", err, p.q.no)
		}
	})
}

// TestHoldDoesNotOutliveAnAttempt has nobody ask for a while after an outage. What was held then is not taken for
// granted now, when the cluster can be asked.
func TestHoldDoesNotOutliveAnAttempt(t *testing.T) {
	t.Parallel()
	each(t, Config{}, func(p *play) {
		p.want(nil, false, 1)
		p.err = errAway
		p.at(time.Minute)
		p.want(nil, false, 2)
		p.err = errNo
		p.at(time.Minute + holdFor)
		p.want(p.q.no, false, 3)
	})
}

// TestOnlyAnAbsentClusterIsAReason goes through the failures that are answers of a cluster which is there. If these
// extended a yes, whoever keeps our robot busy would keep rights that were taken from them.
func TestOnlyAnAbsentClusterIsAReason(t *testing.T) {
	t.Parallel()
	for _, fail := range []error{
		ytclient.ErrOverloaded, ytclient.ErrOddAnswer, ytclient.ErrRejected, ytclient.ErrConflict, errors.New("odd"),
		fmt.Errorf("%w: %w", ytclient.ErrUnavailable, ytclient.ErrOverloaded),
	} {
		t.Run(fail.Error(), func(t *testing.T) {
			t.Parallel()
			each(t, Config{}, func(p *play) {
				p.want(nil, false, 1)
				p.err = fail
				p.at(time.Minute)
				p.want(ErrUnavailable, false, 2)
				// Also after an outage: it ends the hold.
				p.err = errAway
				p.want(nil, false, 3)
				p.err = fail
				p.at(time.Minute + attemptPause)
				p.want(nil, true, 4)
				p.want(ErrUnavailable, false, 5)
			})
		})
	}
}

func TestPanicIsNoReason(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		crash := false
		a := newAuthorizer(t, Config{Cluster: &cluster{check: func(context.Context, string, string, ytclient.Permission) (bool, error) {
			if crash {
				panic("no")
			}
			return true, nil
		}}})
		if _, err := a.Authorize(t.Context(), "alice", operation, read); err != nil {
			t.Fatal(err)
		}
		crash = true
		time.Sleep(time.Minute)
		if _, err := a.Authorize(t.Context(), "alice", operation, read); !errors.Is(err, ErrUnavailable) {
			t.Errorf("error %v, want %v", err, ErrUnavailable)
		}
	})
}

func TestNegativeStaleLimit(t *testing.T) {
	t.Parallel()
	each(t, Config{StaleLimit: -1}, func(p *play) {
		p.want(nil, false, 1)
		p.err = errAway
		p.at(time.Minute)
		p.want(ErrUnavailable, false, 2)
	})
}

// TestNoEndsAHeldYes: once the cluster says no, its absence brings nothing back.
func TestNoEndsAHeldYes(t *testing.T) {
	t.Parallel()
	each(t, Config{}, func(p *play) {
		p.want(nil, false, 1)
		p.at(time.Minute)
		p.err = errNo
		p.want(p.q.no, false, 2)
		p.err = errAway
		p.at(2 * time.Minute)
		p.want(ErrUnavailable, false, 3)
	})
}

func TestVanishedOperationEndsAYes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		a := newAuthorizer(t, Config{Cluster: s})
		if _, err := a.Authorize(t.Context(), "alice", operation, read); err != nil {
			t.Fatal(err)
		}
		s.err = ytclient.ErrNoSuchOperation
		time.Sleep(time.Minute)
		for _, fail := range []error{ytclient.ErrNoSuchOperation, errAway} {
			s.err = fail
			if _, err := a.Authorize(t.Context(), "alice", operation, read); !errors.Is(err, ErrNoSuchOperation) {
				t.Errorf("error %v, want %v", err, ErrNoSuchOperation)
			}
		}
	})
}

// TestRefreshAhead uses an entry in its last moments: nobody waits, and it lives on from there.
func TestRefreshAhead(t *testing.T) {
	t.Parallel()
	each(t, Config{}, func(p *play) {
		p.want(nil, false, 1)
		p.takes = time.Second
		p.at(57 * time.Second) // the last twentieth: past every jitter
		p.want(nil, true, 2)
		p.want(nil, true, 2) // one attempt at a time
		p.at(60 * time.Second)
		p.want(nil, true, 2)
		p.at(57*time.Second + 54*time.Second - 1)
		p.want(nil, true, 2)
		p.at(57*time.Second + 60*time.Second)
		p.takes = 0
		p.want(nil, false, 3)
	})
}

// TestRefreshFindsANo revokes a token, or a right, while the yes is still good for seconds. It counts no more.
func TestRefreshFindsANo(t *testing.T) {
	t.Parallel()
	each(t, Config{}, func(p *play) {
		p.want(nil, false, 1)
		p.err = errNo
		p.at(57 * time.Second)
		p.want(nil, true, 2)
		p.want(p.q.no, true, 2)
	})
}

// TestRevocationIsSeenWithinTheTTL takes rights away at every second of an answer's life, from callers who use it all the
// time, now and then, and hardly ever. Nobody has them for longer than a yes lasts, whatever was renewed in between.
func TestRevocationIsSeenWithinTheTTL(t *testing.T) {
	t.Parallel()
	each(t, Config{}, func(p *play) {
		p.takes = 100 * time.Millisecond
		for _, pace := range []time.Duration{200 * time.Millisecond, 7 * time.Second, 50 * time.Second} {
			for after := range 120 {
				synctest.Wait()
				p.err = nil
				for {
					if _, err := p.q.ask(p.t.Context(), p.a); err == nil {
						break
					}
					time.Sleep(time.Second)
				}
				start := time.Now()
				var revoked time.Time
				for {
					if at := start.Add(time.Duration(after) * time.Second); revoked.IsZero() && !time.Now().Before(at) {
						synctest.Wait()
						p.err, revoked = errNo, time.Now()
					}
					_, err := p.q.ask(p.t.Context(), p.a)
					if err != nil {
						break
					}
					if lasts := time.Since(revoked); !revoked.IsZero() && lasts > DefaultGrantTTL {
						p.t.Fatalf("used every %s, it was still granted %s after it had been taken away", pace, lasts)
					}
					time.Sleep(pace)
				}
			}
		}
	})
}

// TestLeastRecentlyUsedGoes fills a cache of one shard: what was used last stays.
func TestLeastRecentlyUsedGoes(t *testing.T) {
	t.Parallel()
	const capacity = 8
	c := &cluster{whoAmI: func(_ context.Context, cr ytclient.Credentials) (string, error) { return cr.Secret, nil }}
	a := newAuthorizer(t, Config{Cluster: c, Capacity: capacity})
	ask := func(secret string) bool {
		t.Helper()
		who, err := a.Authenticate(t.Context(), nowhere, token(secret))
		if err != nil || who.Login != secret {
			t.Fatalf("got %q, %v, want %q", who.Login, err, secret)
		}
		return who.Cached
	}
	ask("used")
	ask("unused")
	for i := range 3 * capacity {
		ask(fmt.Sprint(i))
		if !ask("used") {
			t.Fatalf("what is in use was dropped after %d others", i)
		}
	}
	if ask("unused") {
		t.Error("what was not used is still there")
	}
	if grants, _ := a.identities.sizes(); grants != capacity {
		t.Errorf("%d are remembered, want %d", grants, capacity)
	}
}

// TestRefreshFails leaves the yes as it was, tries again after a pause, and never makes it live longer.
func TestRefreshFails(t *testing.T) {
	t.Parallel()
	each(t, Config{}, func(p *play) {
		p.want(nil, false, 1)
		p.err = ytclient.ErrOverloaded
		p.at(57 * time.Second)
		p.want(nil, true, 2)
		p.want(nil, true, 2)
		p.at(58 * time.Second)
		p.want(nil, true, 3)
		p.at(60 * time.Second)
		p.want(ErrUnavailable, false, 4)
	})
}

// TestRefreshesSpread makes entries together and looks at when they want to come back.
func TestRefreshesSpread(t *testing.T) {
	t.Parallel()
	c, err := newCache[int, string](1000, lifetimes{grant: time.Minute, deny: time.Second, stale: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	moments := map[time.Duration]int{}
	for i := range 100 {
		c.grant(i, "", 0)
		_, g := c.shard(i).look(i, 0)
		if g.renewAt < 54*time.Second || g.renewAt > 57*time.Second {
			t.Errorf("renews at %s, want between 54s and 57s", g.renewAt)
		}
		moments[g.renewAt.Round(100*time.Millisecond)]++
	}
	if len(moments) < 10 {
		t.Errorf("100 entries come back at %d moments", len(moments))
	}
}

// TestRefreshesAreBounded has many entries come back at once from a slow cluster.
func TestRefreshesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		a := newAuthorizer(t, Config{Cluster: s})
		const users = 5 * maxRefreshes
		all := func() {
			for i := range users {
				if _, err := a.Authorize(t.Context(), fmt.Sprint(i), operation, read); err != nil {
					t.Fatal(err)
				}
			}
		}
		all()
		s.takes = time.Second
		time.Sleep(58 * time.Second)
		all()
		synctest.Wait()
		if got, want := s.checks.Load(), int64(users+maxRefreshes); got != want {
			t.Errorf("%d calls, want %d", got, want)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := refreshesOf(a, ""); got != 0 {
			t.Errorf("%d places still taken", got)
		}
	})
}
