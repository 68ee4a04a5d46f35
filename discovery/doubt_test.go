package discovery

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"taskproxy/ytclient"
)

// doubtTown has an operation x with one job, jx, and its service.
func doubtTown(t *testing.T) (w *town, service func() *Service) {
	t.Helper()
	w = newTown(t)
	w.operation("x", map[string]any{"task_proxy": map[string]any{"enabled": true}})
	w.tasks["x"] = []ytclient.Task{{Name: "server", JobCount: 1, PortCount: 1}}
	w.job("x", "jx", "server", "node-1.local:9012", 20500)
	return w, func() *Service { return w.d.Snapshot().Lookup(LongID("x", "server", "port_0")) }
}

// What an endpoint is vouched for never goes back, also when its job was out of sight for a while: whoever remembers a failure
// compares it.
func TestVouchedNeverGoesBack(t *testing.T) {
	played(t, func(t *testing.T) {
		w, service := doubtTown(t)
		w.cycle()
		before := uint32(0)
		fail := func(when string) {
			t.Helper()
			s := service()
			if s == nil || len(s.Endpoints) != 1 {
				t.Fatalf("%s: no endpoint", when)
			}
			if v := s.Endpoints[0].Vouched; v < before {
				t.Errorf("%s: vouched for %d, and %d before", when, v, before)
			}
			before = s.Endpoints[0].Vouched
			w.d.EndpointFailed(s, s.Endpoints[0])
			time.Sleep(10 * time.Second)
			w.cycle()
			if v := service().Endpoints[0].Vouched; v <= before {
				t.Errorf("%s: vouched for %d after a failure at %d", when, v, before)
			}
		}
		fail("at first")
		fail("once more")
		w.say("x", "task_proxy", map[string]any{"enabled": false})
		w.cycle()
		w.say("x", "task_proxy", map[string]any{"enabled": true})
		w.cycle()
		fail("published anew")
	})
}

// A job in doubt that has lost its ports is nobody's endpoint, and asks for no further rounds.
func TestDoubtAboutAJobWithoutPorts(t *testing.T) {
	for _, node := range []string{"node-1.local:9012", "node-1.local:9013"} { // where the port is given once more
		t.Run(node, func(t *testing.T) {
			played(t, func(t *testing.T) {
				w, service := doubtTown(t)
				w.cycle()
				s := service()
				w.operation("y", map[string]any{"task_proxy": map[string]any{"enabled": true}})
				w.tasks["y"] = []ytclient.Task{{Name: "server", JobCount: 1, PortCount: 1}}
				w.job("y", "jy", "server", node, 20500)
				w.d.EndpointFailed(s, s.Endpoints[0])
				w.cycle()
				time.Sleep(2 * time.Second)
				for range 3 {
					w.d.refreshRound(t.Context())
				}
				if at := w.d.nextDoubt(time.Now()); !at.IsZero() && !at.After(time.Now()) {
					t.Error("another round is due at once, for ever")
				}
			})
		})
	}
}

// Where neither the list of jobs nor the node can be relied on, an endpoint that failed stays out for as long as a list may lag.
func TestDoubtWhileTheNodeFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, d := settled(t)
		l.set(func(l *little) { l.fail["job_ports"] = ytclient.ErrUnavailable })
		s, e := first(d)
		failed(t, d, s, e)
		if _, is := first(d); is.Vouched != e.Vouched {
			t.Error("vouched for at once by a list that may lag")
		}
		cycles(t, d, 3, 10*time.Second)
		if _, is := first(d); is.Vouched == e.Vouched {
			t.Error("never vouched for although it is listed all the time")
		}
	})
}

// The same as Run does it, which asks about the job each second and lists jobs each period.
func TestDoubtWhileTheNodeFailsUnderRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLittle()
		l.run("1-1", "a:20001")
		d, err := New(Config{Source: l.source()})
		if err != nil {
			t.Fatal(err)
		}
		stop := running(t, d)
		defer stop()
		time.Sleep(time.Second)
		l.set(func(l *little) { l.fail["job_ports"] = ytclient.ErrUnavailable })
		s, e := first(d)
		d.EndpointFailed(s, e)
		time.Sleep(45 * time.Second)
		synctest.Wait()
		if _, is := first(d); is.Vouched == e.Vouched {
			t.Error("not vouched for in 45 s in which it was listed all the time")
		}
	})
}

// A job that resets all its connections does not keep the nodes from being asked about others.
func TestDoubtBesideOneThatFailsAllTheTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLittle()
		l.run("1-1", "a:20001")
		l.run("2-2", "b:20002")
		d, stop := l.start(t)
		defer stop()
		l.set(func(l *little) { l.slow["job_ports"] = 30 * time.Millisecond })
		service := func(operation string) *Service { return d.Snapshot().Lookup(LongID(operation, "server", "port_0")) }
		for range 10 {
			s := service("2-2")
			d.EndpointFailed(s, s.Endpoints[0])
			for range 50 { // a second
				other := service("1-1")
				d.EndpointFailed(other, other.Endpoints[0])
				time.Sleep(20 * time.Millisecond)
			}
			if is := service("2-2"); is.Endpoints[0].Vouched == s.Endpoints[0].Vouched {
				t.Fatal("nobody asked about it for a second")
			}
			time.Sleep(time.Second)
		}
	})
}

// The operations of the table's rows are asked about after everybody else has been served.
func TestRowsOfOperationsThatNobodyTellsOf(t *testing.T) {
	played(t, func(t *testing.T) {
		w, service := doubtTown(t)
		w.d.source = &mute{source: w.source(), operation: "gone"}
		for i := range 200 {
			w.d.missing[fmt.Sprintf("gone-%d", i)] = time.Time{}
		}
		stop := running(t, w.d)
		defer stop()
		synctest.Wait() // no time passes
		if s := service(); !w.d.Ready() || s == nil || len(s.Endpoints) != 1 {
			t.Error("the first snapshot waits for operations that are not listed")
		}
	})
}
