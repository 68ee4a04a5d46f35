package auth

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"taskproxy/ytclient"
)

var (
	here  = netip.MustParseAddr("192.0.2.1")
	there = netip.MustParseAddr("192.0.2.2")
)

// crowd is a cluster that knows the tokens that begin with "good", needs a while for each, and keeps count of how many
// ask at a time.
type crowd struct {
	takes          time.Duration
	now, most, all atomic.Int64
}

func (c *crowd) work(ctx context.Context) error {
	c.all.Add(1)
	for now := c.now.Add(1); ; {
		most := c.most.Load()
		if now <= most || c.most.CompareAndSwap(most, now) {
			break
		}
	}
	defer c.now.Add(-1)
	select {
	case <-time.After(c.takes):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ytclient.ErrUnavailable, ctx.Err())
	}
}

func (c *crowd) WhoAmI(ctx context.Context, cr ytclient.Credentials) (string, error) {
	if err := c.work(ctx); err != nil {
		return "", err
	}
	if len(cr.Secret) < 4 || cr.Secret[:4] != "good" {
		return "", ytclient.ErrUnauthenticated
	}
	return "user-" + cr.Secret, nil
}

func (c *crowd) CheckOperationPermission(ctx context.Context, _, _ string, _ ytclient.Permission) (bool, error) {
	err := c.work(ctx)
	return err == nil, err
}

// fair runs f in a bubble with a crowd that answers in 20 ms.
func fair(t *testing.T, cfg Config, f func(t *testing.T, c *crowd, a *Authorizer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &crowd{takes: 20 * time.Millisecond}
		cfg.Cluster = c
		f(t, c, newAuthorizer(t, cfg))
	})
}

// try presents a token from an address.
func try(t *testing.T, a *Authorizer, from netip.Addr, secret string) error {
	t.Helper()
	_, err := a.Authenticate(t.Context(), from, token(secret))
	return err
}

// burst presents n tokens at once and returns how many met each of the errors. "#" is each one's number.
func burst(t *testing.T, a *Authorizer, from netip.Addr, n int, secret string) map[error]int {
	t.Helper()
	var mu sync.Mutex
	got := map[error]int{}
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			err := try(t, a, from, strings.ReplaceAll(secret, "#", strconv.Itoa(i)))
			mu.Lock()
			defer mu.Unlock()
			for _, known := range []error{nil, ErrUnauthenticated, ErrTooMany, ErrUnavailable} {
				if errors.Is(err, known) {
					got[known]++
					return
				}
			}
			t.Error(err)
		})
	}
	group.Wait()
	return got
}

// TestFailuresOfOneAddress goes through its share one by one. A no that is remembered costs nothing, an address of somebody
// else has its own, and each second brings one back.
func TestFailuresOfOneAddress(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	fair(t, Config{Registerer: registry}, func(t *testing.T, c *crowd, a *Authorizer) {
		start := time.Now()
		for i := range DefaultFailuresPerCaller {
			for range 2 {
				if err := try(t, a, here, fmt.Sprint("bad", i)); !errors.Is(err, ErrUnauthenticated) {
					t.Fatalf("try %d: %v", i, err)
				}
			}
		}
		if got, want := c.all.Load(), int64(DefaultFailuresPerCaller); got != want {
			t.Errorf("%d calls, want %d", got, want)
		}
		if err := try(t, a, there, "bad of another"); !errors.Is(err, ErrUnauthenticated) {
			t.Error(err)
		}
		time.Sleep(500*time.Millisecond - time.Since(start)%time.Second) // half a second is forgiven
		got := burst(t, a, here, 100, "many#")
		if got[ErrUnauthenticated] != maxPenalties || got[ErrTooMany] != 100-maxPenalties {
			t.Errorf("a burst beyond the share met %v, want %d asked about", got, maxPenalties)
		}
		if got := gather(t, registry)["yt_task_proxy_auth_limited_total{failures}"]; got != 100-maxPenalties {
			t.Errorf("%v are counted as limited, want %d", got, 100-maxPenalties)
		}
		time.Sleep(10 * time.Second)
		got = burst(t, a, here, 100, "later#")
		if n := got[ErrUnauthenticated]; n < 10 || n > 12+maxPenalties || got[ErrTooMany] != 100-n {
			t.Errorf("ten seconds later a burst met %v, want about ten asked about", got)
		}
	})
}

// TestFloodFromASharedAddress has somebody send bad tokens without end from the address of an office. Who was in stays in,
// at once and also after a minute; who is new gets in slowly, but gets in.
func TestFloodFromASharedAddress(t *testing.T) {
	t.Parallel()
	fair(t, Config{}, func(t *testing.T, c *crowd, a *Authorizer) {
		if err := try(t, a, here, "good old"); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var flood sync.WaitGroup
		for g := range 5 {
			flood.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					err := try(t, a, here, fmt.Sprintf("bad %d %d", g, i))
					if err == nil || errors.Is(err, ErrUnavailable) {
						t.Error(err)
					}
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		for range 2 {
			time.Sleep(59*time.Second + 999*time.Millisecond) // from a hit with a refresh to a foreground look-up
			start := time.Now()
			if err := try(t, a, here, "good old"); err != nil || time.Since(start) > 2*c.takes {
				t.Errorf("who is known: %v after %s", err, time.Since(start))
			}
		}
		before := c.all.Load()
		time.Sleep(time.Minute)
		if asked := c.all.Load() - before; asked > 60*(1+maxPenalties) {
			t.Errorf("the flood made the cluster work %d times in a minute, want %d at most", asked, 60*(1+maxPenalties))
		}
		start := time.Now()
		for try(t, a, here, "good new") != nil {
			time.Sleep(time.Second + 3*time.Millisecond)
			if time.Since(start) > 10*time.Minute {
				t.Error("who is new is locked out")
				break
			}
		}
		stop()
		flood.Wait()
	})
}

// TestHardFloodFromASharedAddress has bad tokens come from the address of an office, two thousand a second that are made up, or those
// of machines that were forgotten. Who is new there gets in all the same, and the cluster does not notice much.
func TestHardFloodFromASharedAddress(t *testing.T) {
	t.Parallel()
	const machines = 200
	for name, tc := range map[string]struct {
		secret func(machine, i int) string
		pause  time.Duration // of one machine between two tries
		before time.Duration // for how long the flood has gone on when somebody new comes
	}{
		"made up":  {func(machine, i int) string { return fmt.Sprint("bad ", machine, " ", i) }, 100 * time.Millisecond, 5 * time.Second},
		"outdated": {func(machine, _ int) string { return fmt.Sprint("bad ", machine) }, 400 * time.Millisecond, 30 * time.Second}, // all have been refused
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fair(t, Config{}, func(t *testing.T, c *crowd, a *Authorizer) {
				ctx, stop := context.WithCancel(t.Context())
				var flood sync.WaitGroup
				for machine := range machines {
					flood.Go(func() {
						for i := 0; ctx.Err() == nil; i++ {
							_ = try(t, a, here, tc.secret(machine, i))
							time.Sleep(tc.pause/2 + rand.N(tc.pause))
						}
					})
				}
				time.Sleep(tc.before)
				before, begin := c.all.Load(), time.Now()
				for i := range 3 {
					start := time.Now()
					for try(t, a, here, fmt.Sprint("good ", i)) != nil && time.Since(start) < time.Minute {
						time.Sleep(time.Second)
					}
					if took := time.Since(start); took > 5*time.Second {
						t.Errorf("who is new waited for %s", took)
					}
					time.Sleep(2 * time.Second)
				}
				if n, most := c.all.Load()-before, int64(time.Since(begin)/failureInterval+1)*(1+2*maxPenalties); n > most {
					t.Errorf("%d calls, want %d at most", n, most)
				}
				stop()
				flood.Wait()
			})
		})
	}
}

// TestLookupsOfOneAddress opens a shop: everybody of an office comes at once. All wait for their turn and get in, a few
// at a time, and others need not wait for them. Success costs nothing.
func TestLookupsOfOneAddress(t *testing.T) {
	t.Parallel()
	fair(t, Config{}, func(t *testing.T, c *crowd, a *Authorizer) {
		if err := try(t, a, here, "good old"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		var office sync.WaitGroup
		office.Go(func() {
			if got := burst(t, a, here, DefaultLookupsPerCaller+maxQueue, "good #"); len(got) != 1 || got[nil] == 0 {
				t.Errorf("the office met %v", got)
			}
		})
		synctest.Wait()
		if got := c.now.Load(); got != DefaultLookupsPerCaller {
			t.Errorf("%d at a time, want %d", got, DefaultLookupsPerCaller)
		}
		if err := try(t, a, here, "good one more"); !errors.Is(err, ErrTooMany) {
			t.Errorf("one more than may wait: %v", err)
		}
		start := time.Now()
		if err := try(t, a, there, "good"); err != nil || time.Since(start) != c.takes {
			t.Errorf("somebody else: %v after %s", err, time.Since(start))
		}
		start = time.Now()
		if err := try(t, a, here, "good old"); err != nil || time.Since(start) != c.takes {
			t.Errorf("who was in before: %v after %s", err, time.Since(start))
		}
		office.Wait()
		if err := try(t, a, here, "good one more"); err != nil {
			t.Error(err)
		}
	})
}

// TestFloodFromEverywhere has strangers of a thousand addresses at once. They never take the places of those who are known,
// nor of decisions, and not more of the cluster than is theirs.
func TestFloodFromEverywhere(t *testing.T) {
	t.Parallel()
	fair(t, Config{}, func(t *testing.T, c *crowd, a *Authorizer) {
		if err := try(t, a, here, "good old"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		c.takes = 2 * time.Second
		ctx, stop := context.WithCancel(t.Context())
		var flood sync.WaitGroup
		for g := range 1000 {
			flood.Go(func() {
				from := netip.AddrFrom4([4]byte{10, 0, byte(g >> 8), byte(g)})
				for i := 0; ctx.Err() == nil; i++ {
					_ = try(t, a, from, fmt.Sprintf("bad %d %d", g, i))
				}
			})
		}
		time.Sleep(10 * time.Second)
		if got := c.most.Load(); got != strangerLane {
			t.Errorf("%d calls at a time, want %d", got, strangerLane)
		}
		start := time.Now()
		if err := try(t, a, here, "good old"); err != nil || time.Since(start) != c.takes {
			t.Errorf("who is known: %v after %s", err, time.Since(start))
		}
		start = time.Now()
		if _, err := a.Authorize(t.Context(), "alice", operation, read); err != nil || time.Since(start) != c.takes {
			t.Errorf("a decision: %v after %s", err, time.Since(start))
		}
		stop()
		flood.Wait()
		if a.identities.fair.visits != 0 {
			t.Errorf("%d visits are left", a.identities.fair.visits)
		}
	})
}

// TestWaitingForAPlaceIsNoOutage: who waits in vain was not told by the cluster's absence, and nobody is let in by it.
func TestWaitingForAPlaceIsNoOutage(t *testing.T) {
	t.Parallel()
	fair(t, Config{LookupsPerCaller: -1, FailuresPerCaller: -1}, func(t *testing.T, c *crowd, a *Authorizer) {
		c.takes = DefaultCallTimeout - time.Millisecond
		got := burst(t, a, here, 3*strangerLane, "good #")
		if got[nil] != 2*strangerLane || got[ErrUnavailable] != strangerLane {
			t.Errorf("met %v, want %d let in and the rest unavailable", got, 2*strangerLane)
		}
		select {
		case <-a.identities.outage.start():
			t.Error("the cluster counts as away")
		default:
		}
	})
}

// TestWaitingForAPlaceEndsNoOutage: nor does it say that the cluster is back.
func TestWaitingForAPlaceEndsNoOutage(t *testing.T) {
	t.Parallel()
	fair(t, Config{LookupsPerCaller: -1, FailuresPerCaller: -1}, func(t *testing.T, c *crowd, a *Authorizer) {
		c.takes = time.Hour
		var group sync.WaitGroup
		group.Go(func() { burst(t, a, here, 3*strangerLane, "good #") })
		time.Sleep(DefaultCallTimeout + patience + time.Millisecond) // the first third has failed, the last third was not asked about
		synctest.Wait()
		select {
		case <-a.identities.outage.start():
		default:
			t.Error("the cluster does not count as away")
		}
		group.Wait()
	})
}

// TestLookupsOfOneLogin: decisions are paid for by who is asked about, wherever that comes from.
func TestLookupsOfOneLogin(t *testing.T) {
	t.Parallel()
	fair(t, Config{}, func(t *testing.T, c *crowd, a *Authorizer) {
		var group sync.WaitGroup
		ask := func(login string, i int, want error) {
			if _, err := a.Authorize(t.Context(), login, fmt.Sprintf("%x-0-3e8-0", i), read); !errors.Is(err, want) {
				t.Errorf("%s, operation %d: %v, want %v", login, i, err, want)
			}
		}
		for i := range DefaultLookupsPerCaller + maxQueue {
			group.Go(func() { ask("alice", i, nil) })
		}
		synctest.Wait()
		if got := c.now.Load(); got != DefaultLookupsPerCaller {
			t.Errorf("%d at a time, want %d", got, DefaultLookupsPerCaller)
		}
		ask("alice", -1, ErrTooMany)
		ask("bob", -1, nil)
		group.Wait()
		ask("alice", -1, nil)
	})
}

// TestManyAnswersOfOneLogin has somebody come back to more operations at once than fit, all granted before. Who comes back to
// one does not wait for them, and what finds no place while the cluster is away is held like the rest.
func TestManyAnswersOfOneLogin(t *testing.T) {
	t.Parallel()
	fair(t, Config{}, func(t *testing.T, c *crowd, a *Authorizer) {
		const many = DefaultLookupsPerCaller + maxQueue + 50
		ask := func(login string, i int) error {
			_, err := a.Authorize(t.Context(), login, fmt.Sprintf("%x-0-3e8-0", i), read)
			return err
		}
		all := func() (turnedAway int64) {
			var group sync.WaitGroup
			var n atomic.Int64
			for i := range many {
				group.Go(func() {
					if err := ask("mallory", i); errors.Is(err, ErrTooMany) {
						n.Add(1)
					} else if err != nil {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
			start := time.Now()
			if err := ask("alice", 1); err != nil || time.Since(start) > c.takes {
				t.Errorf("alice: %v after %s", err, time.Since(start))
			}
			group.Wait()
			return n.Load()
		}
		for i := range many {
			if err := ask("mallory", i); err != nil {
				t.Fatal(err)
			}
		}
		if err := ask("alice", 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if got := all(); got != 50 {
			t.Errorf("%d of them were turned away, want 50", got)
		}
		time.Sleep(2 * time.Minute)
		c.takes = time.Hour
		if err := ask("alice", 1); err != nil { // finds out that the cluster is away
			t.Fatal(err)
		}
		if got := all(); got != 0 {
			t.Errorf("%d were turned away while the cluster was away, want none", got)
		}
	})
}

// TestOneLookupForManyRequests: those who wait for the same answer are one look-up, however many.
func TestOneLookupForManyRequests(t *testing.T) {
	t.Parallel()
	fair(t, Config{LookupsPerCaller: 1, FailuresPerCaller: 1}, func(t *testing.T, c *crowd, a *Authorizer) {
		for _, tc := range []struct {
			secret string
			want   error
		}{{"good", nil}, {"bad", ErrUnauthenticated}} {
			if got := burst(t, a, here, 1000, tc.secret); got[tc.want] != 1000 {
				t.Errorf("%s: met %v", tc.secret, got)
			}
		}
		if got := c.all.Load(); got != 2 {
			t.Errorf("%d calls, want 2", got)
		}
	})
}

func TestLimitsOff(t *testing.T) {
	t.Parallel()
	fair(t, Config{LookupsPerCaller: -1, FailuresPerCaller: -1}, func(t *testing.T, c *crowd, a *Authorizer) {
		if got := burst(t, a, here, 1000, "bad #"); got[ErrUnauthenticated] != 1000 {
			t.Errorf("met %v", got)
		}
		if got := c.most.Load(); got != strangerLane {
			t.Errorf("%d at a time, want %d", got, strangerLane)
		}
	})
}

// TestErrorsCostNothing: only a no of the cluster is a failure of the caller's.
func TestErrorsCostNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		s.err = errAway
		a := newAuthorizer(t, Config{Cluster: s})
		start := time.Now()
		for i := range 10 * DefaultFailuresPerCaller {
			if err := try(t, a, here, fmt.Sprint(i)); !errors.Is(err, ErrUnavailable) {
				t.Fatal(err)
			}
		}
		if waited := time.Since(start); waited != 0 {
			t.Errorf("waited %s", waited)
		}
	})
}

func TestAddressParty(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		a, b string
		same bool
	}{
		{"192.0.2.1", "192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"192.0.2.1", "::ffff:192.0.2.1", true},
		{"::ffff:192.0.2.1", "::ffff:192.0.2.2", false},
		{"2001:db8:1:2::1", "2001:db8:1:2:ffff::9", true},
		{"2001:db8:1:2::1", "2001:db8:1:3::1", false},
		{"fe80::1%eth0", "fe80::1%eth1", true},
	} {
		if got := addressParty(netip.MustParseAddr(tc.a)) == addressParty(netip.MustParseAddr(tc.b)); got != tc.same {
			t.Errorf("%s and %s are one party: %t, want %t", tc.a, tc.b, got, tc.same)
		}
	}
	if addressParty(netip.Addr{}) == addressParty(netip.MustParseAddr("::")) {
		t.Error("no address is taken for one")
	}
}

// TestPartiesAreBounded: whoever has many addresses does not make us remember them all.
func TestPartiesAreBounded(t *testing.T) {
	t.Parallel()
	f, err := newFairness(1, 1, time.Second, func() time.Duration { return 0 }, discardLimits())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 * maxParties {
		v, err := f.enter(addressParty(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})), 0, false)
		if err != nil {
			t.Fatal(err)
		}
		f.leave(v, true)
	}
	if got := f.parties.Len(); got != maxParties {
		t.Errorf("%d are remembered, want %d", got, maxParties)
	}
}

// TestVisitsAreBounded: nor do they make us start a goroutine for each.
func TestVisitsAreBounded(t *testing.T) {
	t.Parallel()
	f, err := newFairness(1, 1, time.Second, func() time.Duration { return 0 }, discardLimits())
	if err != nil {
		t.Fatal(err)
	}
	enter := func(i int) (*visit, error) {
		return f.enter(addressParty(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})), 0, false)
	}
	var last *visit
	for i := range maxVisits {
		if last, err = enter(i); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := enter(maxVisits); !errors.Is(err, ErrUnavailable) {
		t.Errorf("error %v, want %v: it is not this caller who asks too much", err, ErrUnavailable)
	}
	if _, err := f.enter(addressParty(here), 0, true); err != nil {
		t.Errorf("who is known: %v", err)
	}
	f.leave(last, false)
	if _, err := enter(maxVisits); err != nil {
		t.Error(err)
	}
}

func discardLimits() limitMetrics {
	return limitMetrics{lookups: discardCounter(), failures: discardCounter(), busy: discardCounter()}
}

func discardCounter() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: "x_total", Help: "Total number of nothing."})
}

// TestRefreshesOfOneLogin has somebody with many tokens and operations come back together with somebody who has one: there
// are places left.
func TestRefreshesOfOneLogin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		a := newAuthorizer(t, Config{Cluster: s})
		all := func() {
			for i := range 5 * maxRefreshes {
				if err := try(t, a, here, fmt.Sprint(i)); err != nil { // all of them are alice's
					t.Fatal(err)
				}
				if _, err := a.Authorize(t.Context(), "alice", fmt.Sprintf("%x-0-3e8-0", i), read); err != nil {
					t.Fatal(err)
				}
			}
		}
		all()
		if _, err := a.Authorize(t.Context(), "bob", operation, read); err != nil {
			t.Fatal(err)
		}
		time.Sleep(58 * time.Second)
		s.takes = time.Second
		all()
		synctest.Wait()
		if got := refreshesOf(a, "alice"); got != maxRefreshesEach {
			t.Errorf("%d renewals of alice's, want %d", got, maxRefreshesEach)
		}
		if _, err := a.Authorize(t.Context(), "bob", operation, read); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := refreshesOf(a, "bob"); got != 1 {
			t.Errorf("%d renewals of bob's, want 1", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := refreshesOf(a, ""); got != 0 || len(a.crew.byLogin) != 0 {
			t.Errorf("%d places are still taken, by %v", got, a.crew.byLogin)
		}
	})
}

// refreshesOf counts the calls in the background about a login; an empty one: about all.
func refreshesOf(a *Authorizer, login string) int {
	a.crew.mu.Lock()
	defer a.crew.mu.Unlock()
	if login == "" {
		return a.crew.refreshes
	}
	return a.crew.byLogin[login]
}
