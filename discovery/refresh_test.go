package discovery

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// first is the first operation's service and endpoint.
func first(d *Discovery) (*Service, Endpoint) {
	s := d.Snapshot().Lookup(LongID("1-1", "server", "port_0"))
	return s, s.Endpoints[0]
}

// A failed connection refreshes its own operation and no other, at once, with two calls.
func TestRefreshFindsTheNewJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLittle()
		l.run("1-1", "a:20001")
		l.run("2-2", "b:20002")
		d, stop := l.start(t)
		defer stop()
		time.Sleep(time.Minute)
		l.run("1-1", "c:20003")
		d.EndpointFailed(first(d))
		synctest.Wait()
		if got := addrs(d, "1-1"); got != "node-1:20003 " {
			t.Errorf("endpoints %q, want the new job's", got)
		}
		calls := []int{l.count("list_operations"), l.count("list_jobs 1-1"), l.count("list_jobs 2-2"), l.count("job_ports")}
		if want := []int{1, 2, 1, 2}; !slices.Equal(calls, want) {
			t.Errorf("calls %v, want %v", calls, want)
		}
		if got := testutil.ToFloat64(d.metrics.refreshes); got != 1 {
			t.Errorf("%v refreshes counted", got)
		}
	})
}

// An operation whose endpoint fails over and over is refreshed at growing intervals, however many requests notice.
func TestRefreshBackoff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLittle()
		l.run("1-1", "a:20001")
		d, stop := l.start(t)
		defer stop()
		time.Sleep(time.Minute)
		began := time.Now()
		for time.Since(began) < 2*time.Minute {
			for range 10 {
				d.EndpointFailed(first(d))
			}
			time.Sleep(50 * time.Millisecond)
		}
		var got []string
		for _, at := range l.times("list_jobs 1-1")[1:] {
			got = append(got, at.Sub(began).Round(time.Second).String())
		}
		if want := "0s 1s 3s 7s 15s 31s 1m1s 1m31s"; strings.Join(got, " ") != want {
			t.Errorf("refreshed at %v, want %s", got, want)
		}
		time.Sleep(2 * time.Minute)
		before := l.count("list_jobs 1-1")
		d.EndpointFailed(first(d))
		time.Sleep(1100 * time.Millisecond)
		d.EndpointFailed(first(d))
		synctest.Wait()
		if got := l.count("list_jobs 1-1") - before; got != 2 {
			t.Errorf("refreshed %d times after a quiet time, want twice", got)
		}
	})
}

// A service without endpoints is refreshed too: its first job may answer by now.
func TestRefreshWithoutEndpoints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLittle()
		l.run("1-1")
		d, stop := l.start(t)
		defer stop()
		l.run("1-1", "a:20001")
		d.EndpointFailed(d.Snapshot().Services()[0], Endpoint{})
		time.Sleep(time.Second)
		if got := addrs(d, "1-1"); got != "node-1:20001 " {
			t.Errorf("endpoints %q", got)
		}
	})
}

// A request that reports a failure never waits, also not while a cycle hangs; the next cycle takes care of it.
func TestRefreshDuringACycle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLittle()
		l.run("1-1", "a:20001")
		d, stop := l.start(t, func(c *Config) { c.CallTimeout = time.Minute })
		defer stop()
		time.Sleep(time.Minute)
		l.set(func(l *little) { l.slow["list_operations"] = 30 * time.Second })
		go d.Await(t.Context(), "alice", "x")
		time.Sleep(time.Second)
		began := time.Now()
		l.run("1-1", "b:20002")
		s, e := first(d)
		for range 10_000 {
			d.EndpointFailed(s, e)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("took %s", took)
		}
		time.Sleep(30 * time.Second)
		if got, n := addrs(d, "1-1"), l.count("list_jobs 1-1"); got != "node-1:20002 " || n != 2 {
			t.Errorf("endpoints %q after %d lists of jobs", got, n)
		}
	})
}

// An operation that is not known any more is not asked for.
func TestRefreshOfAStranger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLittle()
		d, stop := l.start(t)
		defer stop()
		d.Refresh("no such operation")
		time.Sleep(time.Second)
		if n := l.count("list_jobs no such operation"); n != 0 {
			t.Errorf("asked %d times", n)
		}
	})
}

// Many operations that fail at once are refreshed a few at a time, and what is remembered of them is bounded.
func TestRefreshMany(t *testing.T) {
	t.Parallel()
	e := newEarly(time.Hour, 1000)
	now := time.Now()
	for i := range 5000 {
		e.refresh(fmt.Sprint(i), now)
		e.fail(failure{operationID: fmt.Sprint(i)})
	}
	if len(e.refreshes.known) != 1000 || len(e.failures) != maxFailures {
		t.Errorf("%d operations, %d failures are remembered", len(e.refreshes.known), len(e.failures))
	}
	operations, failures := e.takeRound(now)
	if len(operations) != maxRound || len(failures) != maxFailures {
		t.Errorf("a round has %d operations, %d failures", len(operations), len(failures))
	}
	if _, round := e.plan(); !round.Equal(now.Add(roundInterval)) {
		t.Errorf("the next round is at %s, want %s later", round, roundInterval)
	}
	if operations, _ := e.begin(now); len(operations) != 1000-maxRound {
		t.Errorf("a cycle takes care of %d operations", len(operations))
	}
	if _, round := e.plan(); !round.IsZero() {
		t.Errorf("another round at %s", round)
	}
	// Quiet ones make room.
	later := now.Add(refreshLast + refreshQuiet + time.Second)
	e.refresh("one more", later)
	if len(e.refreshes.known) != 1 {
		t.Errorf("%d operations are remembered", len(e.refreshes.known))
	}
}
