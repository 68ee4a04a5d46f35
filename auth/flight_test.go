package auth

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskproxy/ytclient"
)

func TestOneCallForAll(t *testing.T) {
	t.Parallel()
	each(t, Config{}, func(p *play) {
		p.takes = time.Second
		var group sync.WaitGroup
		for range 1000 {
			group.Go(func() {
				if cached, err := p.q.ask(p.t.Context(), p.a); cached || err != nil {
					p.t.Errorf("cached %t, error %v", cached, err)
				}
			})
		}
		group.Wait()
		if got := p.q.calls(p.script); got != 1 {
			p.t.Errorf("%d calls, want 1", got)
		}
		p.want(nil, true, 1)
	})
}

// TestLateForAFlight comes to ask when the flight that it would have joined has just landed: the answer is there.
func TestLateForAFlight(t *testing.T) {
	t.Parallel()
	c := &cluster{}
	a := newAuthorizer(t, Config{Cluster: c})
	q := question{"alice", operation, ytclient.Read}
	for range 2 {
		if got := a.decisions.ask(t.Context(), party{login: "alice"}, q, a.check(q)); got.outcome != granted {
			t.Errorf("outcome %d, error %v", got.outcome, got.err)
		}
	}
	if got := c.checks.Load(); got != 1 {
		t.Errorf("%d calls, want 1", got)
	}
}

// TestCancelledLeader has the request that caused the call go away. The others get its answer, and so does the cache.
func TestCancelledLeader(t *testing.T) {
	t.Parallel()
	each(t, Config{}, func(p *play) {
		p.takes = 2 * time.Second
		ctx, cancel := context.WithCancel(p.t.Context())
		var group sync.WaitGroup
		group.Go(func() {
			if _, err := p.q.ask(ctx, p.a); !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnavailable) {
				p.t.Errorf("leader: error %v, want %v alone", err, context.Canceled)
			}
			if got := time.Since(p.start); got != time.Second {
				p.t.Errorf("the leader left at %s, want 1s", got)
			}
		})
		synctest.Wait()
		for range 10 {
			group.Go(func() {
				if _, err := p.q.ask(p.t.Context(), p.a); err != nil {
					p.t.Errorf("follower: %v", err)
				}
			})
		}
		time.Sleep(time.Second)
		cancel()
		group.Wait()
		p.want(nil, true, 1)
	})
}

func TestWaiterLeavesInTime(t *testing.T) {
	t.Parallel()
	each(t, Config{}, func(p *play) {
		p.takes = 2 * time.Second
		ctx, cancel := context.WithTimeout(p.t.Context(), time.Second)
		defer cancel()
		_, err := p.q.ask(ctx, p.a)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrUnavailable) {
			p.t.Errorf("error %v, want %v", err, context.DeadlineExceeded)
		}
	})
}

// TestDeadRequestAsksNothing: whoever hangs up at once must not make the cluster work.
func TestDeadRequestAsksNothing(t *testing.T) {
	t.Parallel()
	each(t, Config{}, func(p *play) {
		ctx, cancel := context.WithCancel(p.t.Context())
		cancel()
		if _, err := p.q.ask(ctx, p.a); !errors.Is(err, context.Canceled) {
			p.t.Errorf("error %v, want %v", err, context.Canceled)
		}
		synctest.Wait()
		if got := p.q.calls(p.script); got != 0 {
			p.t.Errorf("%d calls, want none", got)
		}
	})
}

// TestCallHasNothingOfTheRequest: the context of a request may carry credentials for the SDK, and one request's must not
// ask another's question.
func TestCallHasNothingOfTheRequest(t *testing.T) {
	t.Parallel()
	type key struct{}
	c := &cluster{check: func(ctx context.Context, _, _ string, _ ytclient.Permission) (bool, error) {
		return ctx.Value(key{}) == nil, nil
	}}
	a := newAuthorizer(t, Config{Cluster: c})
	if _, err := a.Authorize(context.WithValue(t.Context(), key{}, "alice's"), "bob", operation, read); err != nil {
		t.Error(err)
	}
}

// TestCloseWaits has a call that needs a second to notice that it is over.
func TestCloseWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAuthorizer(t, Config{Cluster: &cluster{whoAmI: func(ctx context.Context, _ ytclient.Credentials) (string, error) {
			<-ctx.Done()
			time.Sleep(time.Second)
			return "", errAway
		}}})
		go func() { _, _ = a.Authenticate(t.Context(), nowhere, token("t")) }()
		synctest.Wait()
		start := time.Now()
		a.Close()
		if got := time.Since(start); got != time.Second {
			t.Errorf("closed after %s, want 1s", got)
		}
	})
}

func TestSlowCallsDoNotHoldOthersUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{whoAmI: func(ctx context.Context, cr ytclient.Credentials) (string, error) {
			if cr.Secret == "slow" {
				<-ctx.Done()
				return "", errAway
			}
			return "alice", nil
		}}
		a := newAuthorizer(t, Config{Cluster: c, Capacity: 1}) // one shard
		var group sync.WaitGroup
		group.Go(func() { _, _ = a.Authenticate(t.Context(), nowhere, token("slow")) })
		synctest.Wait()
		start := time.Now()
		for range 2 {
			if _, err := a.Authenticate(t.Context(), nowhere, token("fast")); err != nil {
				t.Error(err)
			}
		}
		if waited := time.Since(start); waited != 0 {
			t.Errorf("waited %s for somebody else's call", waited)
		}
		group.Wait()
	})
}

// TestClose ends calls under way, in the foreground and behind, and waits for them. What is remembered still counts.
func TestClose(t *testing.T) {
	t.Parallel()
	each(t, Config{}, func(p *play) {
		p.want(nil, false, 1)
		p.takes = time.Hour
		p.at(58 * time.Second)
		p.want(nil, true, 2) // a refresh is under way
		var group sync.WaitGroup
		group.Go(func() {
			if _, err := p.a.Authenticate(p.t.Context(), nowhere, token("other")); !errors.Is(err, ErrUnavailable) {
				p.t.Errorf("error %v, want %v", err, ErrUnavailable)
			}
		})
		synctest.Wait()
		p.a.Close()
		group.Wait()
		if got := time.Since(p.start); got != 58*time.Second {
			p.t.Errorf("closed at %s, want 58s", got)
		}
		if _, err := p.q.ask(p.t.Context(), p.a); err != nil {
			p.t.Error(err)
		}
		if _, err := p.a.Authorize(p.t.Context(), "bob", operation, read); !errors.Is(err, ErrUnavailable) {
			p.t.Errorf("error %v, want %v", err, ErrUnavailable)
		}
		p.a.Close()
	})
}

// TestManyAtOnce lets the race detector look at everything together.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	a := newAuthorizer(t, Config{Cluster: &cluster{}, Capacity: 8, GrantTTL: 20 * time.Microsecond, DenyTTL: time.Microsecond})
	var group sync.WaitGroup
	for g := range 8 {
		group.Go(func() {
			for i := range 500 {
				if _, err := a.Authenticate(t.Context(), nowhere, token(string(rune('a'+(g+i)%16)))); err != nil {
					t.Error(err)
				}
				if _, err := a.Authorize(t.Context(), "alice", operation, read); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}
