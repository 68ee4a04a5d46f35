package auth

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskproxy/ytclient"
)

// took runs f and compares how long that takes.
func (p *play) took(want time.Duration, f func()) {
	p.t.Helper()
	start := time.Now()
	f()
	if got := time.Since(start); got != want {
		p.t.Errorf("took %s, want %s", got, want)
	}
}

// TestOutageCostsPatience has the cluster hang for ten minutes, and a caller who comes now and then, each time later than
// anything is held. The first request has to find out; those after it wait for as long as patience lasts.
func TestOutageCostsPatience(t *testing.T) {
	t.Parallel()
	each(t, Config{}, func(p *play) {
		p.want(nil, false, 1)
		p.takes = time.Hour
		p.at(time.Minute)
		p.took(DefaultCallTimeout, func() { p.want(nil, false, 2) })
		calls := int64(2)
		for d := 75 * time.Second; d < 10*time.Minute; d += 15 * time.Second {
			p.at(d)
			calls++
			p.took(patience, func() { p.want(nil, false, calls) })
			p.took(0, func() { p.want(nil, false, calls) }) // patience counts from the start of the call
		}
		p.at(10*time.Minute - 100*time.Millisecond) // the yes gets too old while somebody waits
		p.took(DefaultCallTimeout, func() { p.want(ErrUnavailable, false, calls+1) })
		p.takes = 0
		p.took(0, func() { p.want(nil, false, calls+2) })
	})
}

// TestOutageEndsTheWaitOfOthers has calls of several callers under way when the first of them tells that the cluster is away.
func TestOutageEndsTheWaitOfOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		a := newAuthorizer(t, Config{Cluster: s})
		ask := func(login string) error {
			_, err := a.Authorize(t.Context(), login, operation, read)
			return err
		}
		for _, login := range []string{"alice", "bob"} {
			if err := ask(login); err != nil {
				t.Fatal(err)
			}
		}
		s.takes = time.Hour
		time.Sleep(time.Minute)
		start := time.Now()
		var group sync.WaitGroup
		for login, after := range map[string]time.Duration{"alice": 0, "bob": time.Second} {
			group.Go(func() {
				time.Sleep(after)
				if err := ask(login); err != nil {
					t.Errorf("%s: %v", login, err)
				}
				if got := time.Since(start); got != DefaultCallTimeout {
					t.Errorf("%s was let in at %s, want %s", login, got, DefaultCallTimeout)
				}
			})
		}
		group.Wait()
	})
}

// TestSlowIsNotAway has the cluster answer slowly, but answer. Rights that were taken away are gone with the first question
// after their time, however long its answer takes.
func TestSlowIsNotAway(t *testing.T) {
	t.Parallel()
	each(t, Config{}, func(p *play) {
		p.want(nil, false, 1)
		p.takes, p.err = DefaultCallTimeout-time.Millisecond, errNo
		p.at(time.Minute)
		p.took(p.takes, func() { p.want(p.q.no, false, 2) })
	})
}

// TestOverloadIsNotAway is the same with a cluster that limits our robot, which takes all of a call's time to tell.
func TestOverloadIsNotAway(t *testing.T) {
	t.Parallel()
	each(t, Config{}, func(p *play) {
		p.want(nil, false, 1)
		p.takes, p.err = DefaultCallTimeout-time.Millisecond, ytclient.ErrOverloaded
		for i := range int64(5) {
			p.at(time.Minute + time.Duration(i)*time.Minute)
			p.took(p.takes, func() { p.want(ErrUnavailable, false, 2+i) })
		}
	})
}

// TestAnswerEndsAnOutage: as soon as the cluster has answered anybody, nobody is let in on the strength of its absence.
func TestAnswerEndsAnOutage(t *testing.T) {
	t.Parallel()
	each(t, Config{}, func(p *play) {
		p.want(nil, false, 1)
		p.err = errAway
		p.at(time.Minute)
		p.want(nil, false, 2)
		p.err = nil
		if _, err := p.a.Authenticate(p.t.Context(), nowhere, token("another")); err != nil {
			p.t.Fatal(err)
		}
		if _, err := p.a.Authorize(p.t.Context(), "another", operation, read); err != nil {
			p.t.Fatal(err)
		}
		p.at(2 * time.Minute)
		p.takes, p.err = time.Second, errNo
		p.took(time.Second, func() { p.want(p.q.no, false, 4) })
	})
}

// TestNoWhilePatienceLasts has the cluster come back with a no just before patience is over, and just after.
func TestNoWhilePatienceLasts(t *testing.T) {
	t.Parallel()
	for _, takes := range []time.Duration{patience - 1, patience + time.Second} {
		t.Run(takes.String(), func(t *testing.T) {
			t.Parallel()
			each(t, Config{}, func(p *play) {
				p.want(nil, false, 1)
				p.err = errAway
				p.at(time.Minute)
				p.want(nil, false, 2)
				p.takes, p.err = takes, errNo
				p.at(2 * time.Minute)
				if takes > patience {
					p.took(patience, func() { p.want(nil, false, 3) })
					time.Sleep(takes - patience)
					synctest.Wait()
					p.want(p.q.no, true, 3)
				} else {
					p.took(takes, func() { p.want(p.q.no, false, 3) })
				}
			})
		})
	}
}

// TestOutageWithoutPlaces has more users come back, when the cluster begins to hang, than may ask at a time. Who finds no
// place learns with those who do that the cluster is away.
func TestOutageWithoutPlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		a := newAuthorizer(t, Config{Cluster: s})
		const users = 5 * knownLane
		all := func() {
			var group sync.WaitGroup
			for i := range users {
				group.Go(func() {
					if _, err := a.Authorize(t.Context(), fmt.Sprint(i), operation, read); err != nil {
						t.Error(err)
					}
				})
			}
			group.Wait()
		}
		all()
		time.Sleep(time.Minute)
		s.takes = time.Hour
		for range 3 {
			all()
			time.Sleep(15 * time.Second)
		}
	})
}

// TestExpires is what streams rely on: when to ask again.
func TestExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		a := newAuthorizer(t, Config{Cluster: s})
		start := time.Now()
		want := func(at, login, decision time.Duration) {
			t.Helper()
			time.Sleep(time.Until(start.Add(at)))
			who, err := a.Authenticate(t.Context(), netip.Addr{}, token("t"))
			if err != nil || who.Expires.Sub(start) != login {
				t.Errorf("at %s: identity expires at %s (%v), want %s", at, who.Expires.Sub(start), err, login)
			}
			d, err := a.Authorize(t.Context(), "alice", operation, []ytclient.Permission{ytclient.Read, ytclient.Manage})
			if err != nil || d.Expires.Sub(start) != decision {
				t.Errorf("at %s: decision expires at %s (%v), want %s", at, d.Expires.Sub(start), err, decision)
			}
		}
		if _, err := a.Authorize(t.Context(), "alice", operation, read); err != nil {
			t.Fatal(err)
		}
		want(10*time.Second, 70*time.Second, 60*time.Second) // manage lasts longer, but read decides
		want(20*time.Second, 70*time.Second, 60*time.Second)
		s.err = errAway
		want(80*time.Second, 80*time.Second+holdFor, 80*time.Second+holdFor)
		want(82*time.Second, 80*time.Second+holdFor, 80*time.Second+holdFor)
		want(10*time.Minute-time.Second, 10*time.Minute-time.Second+holdFor, 10*time.Minute)

		s.err = errNo
		time.Sleep(time.Hour)
		who, err := a.Authenticate(t.Context(), netip.Addr{}, token("t"))
		if err == nil || !who.Expires.IsZero() {
			t.Errorf("an error expires at %s", who.Expires)
		}
		if d, err := a.Authorize(t.Context(), "alice", operation, read); err == nil || !d.Expires.IsZero() {
			t.Errorf("an error expires at %s", d.Expires)
		}
	})
}
