package discovery

import (
	"testing"
	"testing/synctest"
	"time"

	"taskproxy/ytclient"
)

// cycles has the cluster asked n times, a period apart.
func cycles(t *testing.T, d *Discovery, n int, period time.Duration) {
	t.Helper()
	for range n {
		time.Sleep(period)
		_ = d.cycle(t.Context())
	}
}

// settled is a Discovery over a cluster with two operations of one job each; tests make its cycles themselves.
func settled(t *testing.T) (*little, *Discovery) {
	t.Helper()
	l := newLittle()
	l.run("1-1", "a:20001")
	l.run("2-2", "b:20002")
	d, err := New(Config{Source: l.source(), JobsRefreshPeriod: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cycle(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l, d
}

func wantAddrs(t *testing.T, when string, d *Discovery, first, second string) {
	t.Helper()
	if got1, got2 := addrs(d, "1-1"), addrs(d, "2-2"); got1 != first || got2 != second {
		t.Errorf("%s: endpoints %q and %q, want %q and %q", when, got1, got2, first, second)
	}
}

// failed reports a failed connection and lets Run's part of it happen.
func failed(t *testing.T, d *Discovery, s *Service, e Endpoint) {
	t.Helper()
	d.EndpointFailed(s, e)
	d.refreshRound(t.Context())
}

// A held endpoint goes at its first failed connection: what answers there later may be somebody else's. One that the cluster
// vouches for stays, since its job only does not listen.
func TestHeldEndpointIsDroppedAtTheFirstFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, d := settled(t)
		s1, e1 := first(d)
		failed(t, d, s1, e1)
		wantAddrs(t, "a failure of a job that the cluster vouches for", d, "node-1:20001 ", "node-1:20002 ")
		l.set(func(l *little) { l.fail["list_operations"] = ytclient.ErrUnavailable })
		cycles(t, d, 1, 10*time.Second)
		wantAddrs(t, "the cluster is silent", d, "node-1:20001 ", "node-1:20002 ")
		l.set(func(l *little) { l.fail["list_jobs 1-1"] = ytclient.ErrUnavailable })
		failed(t, d, s1, e1)
		wantAddrs(t, "a failure from before the cluster vouched for it", d, "node-1:20001 ", "node-1:20002 ")
		s1, e1 = first(d)
		failed(t, d, s1, e1)
		wantAddrs(t, "a failure of a held one", d, "", "node-1:20002 ")
		cycles(t, d, 3, 10*time.Second)
		wantAddrs(t, "the cluster is silent still", d, "", "node-1:20002 ")

		l.set(func(l *little) { clear(l.fail) })
		cycles(t, d, 1, 10*time.Second)
		wantAddrs(t, "the cluster vouches for it again", d, "node-1:20001 ", "node-1:20002 ")
	})
}

// The order does not matter: an endpoint that failed while its jobs could not be listed has failed as a held one.
func TestFailedEndpointIsDroppedWhenItBecomesHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, d := settled(t)
		time.Sleep(time.Second) // later than the cycle in which the cluster vouched for it
		l.set(func(l *little) { l.fail["list_jobs 1-1"] = ytclient.ErrUnavailable })
		s, e := first(d)
		failed(t, d, s, e)
		wantAddrs(t, "its jobs cannot be listed", d, "", "node-1:20002 ")
		l.set(func(l *little) { clear(l.fail) })
		cycles(t, d, 1, 10*time.Second)
		wantAddrs(t, "they can again", d, "node-1:20001 ", "node-1:20002 ")
	})
}

// Only the address that failed goes: the job may serve others.
func TestHeldJobKeepsItsOtherPorts(t *testing.T) {
	t.Parallel()
	j := &job{}
	j.vouch(time.Now())
	d := &Discovery{tracked: map[string]*tracked{"1-1": {jobs: map[string]*job{"a": j}}}, doubtful: map[string]bool{}}
	f := failure{operationID: "1-1", endpoint: Endpoint{JobID: "a", Addr: "node-1:1"}}
	if d.noteFailures([]failure{f, {operationID: "1-1"}, {operationID: "2-2"}}) {
		t.Error("dropped although the cluster vouches for the job")
	}
	d.tracked["1-1"].holdJobs(time.Now().Add(time.Second), time.Hour)
	if j.takes("node-1:1") || !j.takes("node-1:2") {
		t.Errorf("takes connections: %t at the address that failed, %t at another", j.takes("node-1:1"), j.takes("node-1:2"))
	}
}

// After a minute the exec node decides about a held job, as long as the cluster itself answers: who is not confirmed gets no
// new connections, who is unknown to the node has ended, and who is confirmed goes on.
func TestHeldJobMustBeConfirmed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, d := settled(t)
		hold := func() {
			l.set(func(l *little) {
				l.fail["list_jobs 1-1"], l.fail["list_jobs 2-2"] = ytclient.ErrUnavailable, ytclient.ErrUnavailable
			})
			d.tracked["1-1"].jobsDue, d.tracked["2-2"].jobsDue = true, true
		}
		hold()
		cycles(t, d, 6, 10*time.Second)
		if n := l.count("job_ports"); n != 1 {
			t.Errorf("%d calls to the nodes within a minute, want those of the start", n)
		}
		l.set(func(l *little) { l.fail["ports b"] = ytclient.ErrUnavailable })
		cycles(t, d, 2, 10*time.Second)
		wantAddrs(t, "one of two is confirmed", d, "node-1:20001 ", "")
		asked := l.count("job_ports")
		l.set(func(l *little) { clear(l.fail) })
		hold()
		cycles(t, d, 1, 10*time.Second)
		wantAddrs(t, "both are confirmed", d, "node-1:20001 ", "node-1:20002 ")
		cycles(t, d, 4, 10*time.Second)
		if n := l.count("job_ports"); n != asked+1 {
			t.Errorf("%d calls to the nodes, want one for the job that was not confirmed", n-asked)
		}

		l.set(func(l *little) { l.fail["ports b"] = ytclient.ErrNotFound })
		cycles(t, d, 4, 10*time.Second)
		wantAddrs(t, "one is unknown to its node", d, "node-1:20001 ", "")
		l.set(func(l *little) { l.ports["a"] = 20009 })
		cycles(t, d, 7, 10*time.Second)
		wantAddrs(t, "the port is not the job's", d, "", "")
		l.set(func(l *little) { clear(l.fail) })
		l.run("1-1", "a:20001")
		cycles(t, d, 1, 10*time.Second)
		wantAddrs(t, "jobs can be listed again", d, "node-1:20001 ", "node-1:20002 ")
	})
}

// A cluster that answers nothing at all confirms nothing: endpoints are held up to StaleLimit, which then counts.
func TestHeldWhileTheClusterIsSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, d := settled(t)
		l.set(func(l *little) { l.fail["list_operations"] = ytclient.ErrUnavailable })
		cycles(t, d, 10, time.Minute)
		wantAddrs(t, "ten minutes", d, "node-1:20001 ", "node-1:20002 ")
		if n := l.count("job_ports"); n != 1 {
			t.Errorf("%d calls to the nodes", n)
		}
		cycles(t, d, 1, time.Second)
		wantAddrs(t, "more than ten minutes", d, "", "")
	})
}

// A cluster that answers again with nothing changed vouches for everything: no job is asked for.
func TestOutageCostsNoCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, d := settled(t)
		l.set(func(l *little) { l.fail["list_operations"] = ytclient.ErrUnavailable })
		cycles(t, d, 30, 10*time.Second)
		l.set(func(l *little) { clear(l.fail) })
		cycles(t, d, 10, 10*time.Second)
		wantAddrs(t, "after an outage", d, "node-1:20001 ", "node-1:20002 ")
		if jobs, ports := l.count("list_jobs 1-1"), l.count("job_ports"); jobs != 1 || ports != 1 {
			t.Errorf("%d lists of jobs, %d calls to the nodes; want those of the start", jobs, ports)
		}
	})
}

// heldAddrs are the endpoints of an operation that take no new requests and whose jobs nobody has said to have ended.
func heldAddrs(d *Discovery, operation string) (all string) {
	if s := d.Snapshot().Lookup(LongID(operation, "server", "port_0")); s != nil {
		for _, e := range s.Held {
			all += e.JobID + "=" + e.Addr + " "
		}
	}
	return all
}

// What goes on with a job is cut when the cluster has answered that the job is gone, and not because its endpoint takes no new
// requests for another reason. The snapshot tells one from the other.
func TestSnapshotTellsHeldJobsFromEndedOnes(t *testing.T) {
	t.Parallel()
	const held = "a=node-1:20001 "
	want := func(t *testing.T, when string, d *Discovery, endpoints, held string) {
		t.Helper()
		if got, gotHeld := addrs(d, "1-1"), heldAddrs(d, "1-1"); got != endpoints || gotHeld != held {
			t.Errorf("%s: endpoints %q, held %q, want %q and %q", when, got, gotHeld, endpoints, held)
		}
	}
	unlist := func(l *little) { l.fail["list_jobs 1-1"] = ytclient.ErrUnavailable }
	bubble := func(name string, f func(t *testing.T, l *little, d *Discovery)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, d := settled(t)
				f(t, l, d)
			})
		})
	}
	bubble("it refuses while its jobs cannot be listed", func(t *testing.T, l *little, d *Discovery) {
		time.Sleep(time.Second)
		l.set(unlist)
		s, e := first(d)
		failed(t, d, s, e)
		want(t, "nobody knows", d, "", held)
		l.set(func(l *little) { l.fail["ports a"] = ytclient.ErrNotFound })
		cycles(t, d, 7, 10*time.Second)
		want(t, "its node does not know it", d, "", "")
	})
	bubble("its node does not confirm it", func(t *testing.T, l *little, d *Discovery) {
		l.set(unlist)
		l.set(func(l *little) { l.fail["ports a"] = ytclient.ErrUnavailable })
		d.tracked["1-1"].jobsDue = true
		cycles(t, d, 10, 10*time.Second)
		want(t, "nobody knows", d, "", held)
		l.set(func(l *little) { clear(l.fail) })
		cycles(t, d, 2, 10*time.Second)
		want(t, "it is listed", d, "node-1:20001 ", "")
	})
	for _, alive := range []bool{true, false} {
		bubble("too long an outage", func(t *testing.T, l *little, d *Discovery) {
			l.set(func(l *little) { l.fail["list_operations"] = ytclient.ErrUnavailable })
			cycles(t, d, 12, time.Minute)
			want(t, "nobody knows", d, "", held)
			l.set(func(l *little) { clear(l.fail) })
			d.tracked["1-1"].jobsDue = true
			if alive {
				cycles(t, d, 1, 10*time.Second)
				want(t, "it is listed", d, "node-1:20001 ", "")
				return
			}
			l.run("1-1", "c:20003") // its successor
			cycles(t, d, 2, 10*time.Second)
			want(t, "another one is listed", d, "node-1:20003 ", "")
		})
	}
	bubble("no job is listed", func(t *testing.T, l *little, d *Discovery) {
		l.run("1-1")
		d.tracked["1-1"].jobsDue = true
		cycles(t, d, 1, 10*time.Second)
		want(t, "once", d, "node-1:20001 ", "")
		cycles(t, d, 1, 10*time.Second)
		want(t, "and again", d, "", "")
	})
	bubble("no job is listed after too long an outage", func(t *testing.T, l *little, d *Discovery) {
		l.set(unlist)
		d.tracked["1-1"].jobsDue = true
		cycles(t, d, 12, time.Minute)
		want(t, "nobody knows", d, "", held)
		l.set(func(l *little) { clear(l.fail) })
		l.run("1-1")
		cycles(t, d, 1, 10*time.Second)
		want(t, "once", d, "", held)
		cycles(t, d, 1, 10*time.Second)
		want(t, "and again", d, "", "")
	})
	bubble("it is moved", func(t *testing.T, l *little, d *Discovery) {
		l.set(func(l *little) { l.ops["1-1"][0].Address = "node-2:9012" })
		d.tracked["1-1"].jobsDue = true
		cycles(t, d, 1, 10*time.Second)
		want(t, "at its new node", d, "node-2:20001 ", "")
	})
}
