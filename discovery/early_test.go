package discovery

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"taskproxy/ytclient"
)

// little is a cluster of operations whose one task has one port; tests change it while it is asked.
type little struct {
	mu    sync.Mutex
	ops   map[string][]ytclient.Job // by operation
	ports map[string]int            // by job
	fail  map[string]error          // by call
	slow  map[string]time.Duration  // by call
	calls map[string][]time.Time
}

func newLittle() *little {
	return &little{ops: map[string][]ytclient.Job{}, ports: map[string]int{}, fail: map[string]error{}, slow: map[string]time.Duration{}, calls: map[string][]time.Time{}}
}

// run starts an operation or replaces its jobs, whose names are those of their ports: "a:20001".
func (l *little) run(operation string, jobs ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ops[operation] = nil
	for _, j := range jobs {
		id, port, _ := cutPort(j)
		l.ops[operation] = append(l.ops[operation], ytclient.Job{ID: id, Task: "server", State: "running", Address: "node-1:9012"})
		l.ports[id] = port
	}
}

func cutPort(s string) (id string, port int, err error) {
	_, err = fmt.Sscanf(s, "%1s:%d", &id, &port)
	return id, port, err
}

func (l *little) set(f func(*little)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l)
}

// count is how often a call was made.
func (l *little) count(call string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.calls[call])
}

// times are the moments at which a call was made.
func (l *little) times(call string) []time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.calls[call])
}

// at notes a call, lets it take its time and returns what it fails with. Everything else is answered as it is after that.
func (l *little) at(call string) error {
	l.mu.Lock()
	l.calls[call] = append(l.calls[call], time.Now())
	slow := l.slow[call]
	l.mu.Unlock()
	time.Sleep(slow)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fail[call]
}

func (l *little) source() *source {
	return &source{
		listOperations: func() (listing ytclient.Listing, err error) {
			err = l.at("list_operations")
			l.mu.Lock()
			defer l.mu.Unlock()
			for id := range l.ops {
				listing.Operations = append(listing.Operations, ytclient.Operation{ID: id, State: "running", User: "alice",
					Annotations: map[string]any{"task_proxy": map[string]any{"enabled": true}}})
			}
			return listing, err
		},
		getOperation: func(id string) (ytclient.OperationInfo, error) {
			err := l.at("get_operation " + id)
			return ytclient.OperationInfo{ID: id, State: "running", Tasks: []ytclient.Task{{Name: "server", JobCount: 1, PortCount: 1}}}, err
		},
		listJobs: func(id string) (ytclient.JobListing, error) {
			err := l.at("list_jobs " + id)
			l.mu.Lock()
			defer l.mu.Unlock()
			return ytclient.JobListing{Jobs: l.ops[id]}, err
		},
		jobPorts: func(refs []ytclient.JobRef) (answers []ytclient.PortsAnswer, err error) {
			err = l.at("job_ports")
			l.mu.Lock()
			defer l.mu.Unlock()
			for _, r := range refs {
				a := ytclient.PortsAnswer{Err: l.fail["ports "+r.ID]}
				if a.Err == nil {
					a.Ports = []int{l.ports[r.ID]}
				}
				answers = append(answers, a)
			}
			return answers, err
		},
	}
}

// start runs a Discovery over it and waits for its first cycle.
func (l *little) start(t *testing.T, configure ...func(*Config)) (d *Discovery, stop func()) {
	t.Helper()
	cfg := Config{Source: l.source(), Period: time.Hour, JobsRefreshPeriod: 10 * time.Hour}
	for _, f := range configure {
		f(&cfg)
	}
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	stop = running(t, d)
	time.Sleep(time.Millisecond)
	synctest.Wait()
	if !d.Ready() {
		t.Fatal("not ready")
	}
	return d, stop
}

func addrs(d *Discovery, operation string) string {
	s := d.Snapshot().Lookup(LongID(operation, "server", "port_0"))
	if s == nil {
		return "none"
	}
	all := ""
	for _, e := range s.Endpoints {
		all += e.Addr + " "
	}
	return all
}

// A new operation is there as soon as somebody asks for it, however long the period.
func TestAwaitFindsANewService(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLittle()
		d, stop := l.start(t)
		defer stop()
		time.Sleep(time.Minute)
		l.run("1-1", "a:20001")
		began := time.Now()
		if !d.Await(t.Context(), "alice", "028ce1a7") || time.Since(began) != 0 {
			t.Errorf("waited %s", time.Since(began))
		}
		if got := addrs(d, "1-1"); got != "node-1:20001 " {
			t.Errorf("endpoints %q", got)
		}
		if n := l.count("list_operations"); n != 2 {
			t.Errorf("%d cycles, want 2", n)
		}
	})
}

// The period goes on from an early cycle, so that asking does not add cycles without end.
func TestAwaitMovesTheNextCycle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLittle()
		d, stop := l.start(t, func(c *Config) { c.Period = 10 * time.Second })
		defer stop()
		time.Sleep(8 * time.Second)
		d.Await(t.Context(), "alice", "x")
		time.Sleep(8 * time.Second)
		if n := l.count("list_operations"); n != 2 {
			t.Errorf("%d cycles in 16s, want the first and the early one", n)
		}
		time.Sleep(4 * time.Second)
		if n := l.count("list_operations"); n != 3 {
			t.Errorf("%d cycles in 20s, want 3", n)
		}
	})
}

// Callers that nobody identified start nothing, and neither does asking for nothing.
func TestAwaitByNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLittle()
		d, stop := l.start(t)
		defer stop()
		time.Sleep(time.Minute)
		if d.Await(t.Context(), "", "028ce1a7") || d.Await(t.Context(), "alice", "") {
			t.Error("waited")
		}
		if n := testutil.ToFloat64(d.metrics.awaited.WithLabelValues(earlyDeclined)); n != 2 {
			t.Errorf("%v counted as declined", n)
		}
		synctest.Wait()
		if n := l.count("list_operations"); n != 1 {
			t.Errorf("%d cycles", n)
		}
	})
}

// Three hundred callers who ask for names that nobody has, over and over, start one cycle a second and no more, and none of
// them waits longer than two seconds. 256 of them wait at a time.
func TestAwaitFlood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLittle()
		d, stop := l.start(t)
		defer stop()
		const callers, length = 300, 30 * time.Second
		var waiting, most atomic.Int64
		var wg sync.WaitGroup
		began := time.Now()
		for c := range callers {
			wg.Go(func() {
				for n := 0; time.Since(began) < length; n++ {
					now := waiting.Add(1)
					start := time.Now()
					if d.Await(t.Context(), fmt.Sprint("caller ", c), fmt.Sprint(c, " ", n)) {
						for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
						}
					}
					waiting.Add(-1)
					if took := time.Since(start); took > awaitLimit {
						t.Errorf("waited %s", took)
					}
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		d.early.mu.Lock()
		if d.early.waiting != maxWaiting {
			t.Errorf("%d wait, want %d", d.early.waiting, maxWaiting)
		}
		d.early.mu.Unlock()
		wg.Wait()
		cycles := l.times("list_operations")
		for i := 1; i < len(cycles); i++ {
			if gap := cycles[i].Sub(cycles[i-1]); gap < earlyInterval {
				t.Errorf("two cycles within %s", gap)
			}
		}
		if n := len(cycles); n < 5 || n > 31 {
			t.Errorf("%d cycles in %s", n, length)
		}
		if d.early.waiting != 0 {
			t.Errorf("%d still wait", d.early.waiting)
		}
	})
}

// One caller gets six in a minute, and further ones as time goes by. Others are not concerned.
func TestAwaitPerCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLittle()
		d, stop := l.start(t)
		defer stop()
		n := 0
		ask := func(login string, times int) (waited int) {
			for range times {
				n++
				if d.Await(t.Context(), login, fmt.Sprint("name ", n)) {
					waited++
				}
			}
			return waited
		}
		if got := ask("mallory", 20); got != awaitBurst {
			t.Errorf("waited %d times of 20, want %d", got, awaitBurst)
		}
		if got := ask("alice", 1); got != 1 {
			t.Error("another caller did not get any")
		}
		time.Sleep(awaitRefill)
		if got := ask("mallory", 20); got != 1 {
			t.Errorf("waited %d times after %s, want once", got, awaitRefill)
		}
		time.Sleep(time.Hour / 2)
		if got := ask("mallory", 20); got != awaitBurst {
			t.Errorf("waited %d times half an hour later, want %d", got, awaitBurst)
		}
	})
}

// A name that a cycle has just looked for starts none for a period, whoever asks, and costs nobody's share.
func TestAwaitAbsent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLittle()
		d, stop := l.start(t, func(c *Config) { c.Period = time.Minute })
		defer stop()
		time.Sleep(5 * time.Second)
		d.Await(t.Context(), "alice", "028ce1a7")
		for i := range 40 {
			if d.Await(t.Context(), fmt.Sprint("caller ", i), "028ce1a7") || d.Await(t.Context(), "alice", "028ce1a7") {
				t.Fatal("waited for a name that is known to be absent")
			}
			time.Sleep(time.Second)
		}
		if n := l.count("list_operations"); n != 2 {
			t.Errorf("%d cycles, want 2", n)
		}
		time.Sleep(20 * time.Second)
		if !d.Await(t.Context(), "alice", "028ce1a7") {
			t.Error("not asked for again after a period")
		}
	})
}

// Who asks for a name that the cycle under way is made for waits for that cycle, and for no other.
func TestAwaitJoinsTheCycleUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLittle()
		d, stop := l.start(t)
		defer stop()
		time.Sleep(time.Minute)
		l.set(func(l *little) { l.slow["list_operations"] = time.Second })
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 90 * time.Millisecond)
				d.Await(t.Context(), fmt.Sprint(i), "same")
			})
		}
		wg.Wait()
		time.Sleep(time.Minute)
		if n := l.count("list_operations"); n != 2 {
			t.Errorf("%d cycles, want 2", n)
		}
	})
}

// Nobody waits longer than two seconds for a cluster that takes long, and a caller who leaves stops waiting. Cycles that take
// long do not follow each other without a rest.
func TestAwaitSlowCluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLittle()
		d, stop := l.start(t)
		defer stop()
		l.set(func(l *little) { l.slow["list_operations"] = 5 * time.Second })
		time.Sleep(time.Minute)
		began := time.Now()
		if !d.Await(t.Context(), "alice", "x") || time.Since(began) != awaitLimit {
			t.Errorf("waited %s, want %s", time.Since(began), awaitLimit)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if !d.Await(ctx, "alice", "y") || time.Since(began) != awaitLimit+time.Second {
			t.Errorf("the caller left after %s and waited till %s", time.Second, time.Since(began)-awaitLimit)
		}
		time.Sleep(time.Minute)
		cycles := l.times("list_operations")
		if len(cycles) != 3 || cycles[2].Sub(cycles[1]) != 10*time.Second {
			t.Errorf("cycles at %v, want one of 5s, as long a rest, and another", cycles)
		}
	})
}

// While cycles fail the back-off alone says when the next one is: asking neither starts one nor waits for it.
func TestAwaitWhileCyclesFail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLittle()
		d, stop := l.start(t, func(c *Config) { c.Period = 10 * time.Second })
		defer stop()
		l.set(func(l *little) {
			l.fail["list_operations"] = ytclient.ErrUnavailable
			l.slow["list_operations"] = time.Second / 2
		})
		time.Sleep(5 * time.Second)
		var wg sync.WaitGroup
		wg.Go(func() { d.Await(t.Context(), "alice", "x") })
		wg.Go(func() {
			time.Sleep(time.Second / 4) // into that cycle
			began := time.Now()
			if d.Await(t.Context(), "alice", "y"); time.Since(began) != time.Second/4 {
				t.Errorf("waited %s for a cycle that will not be", time.Since(began))
			}
		})
		wg.Wait()
		for i := range 60 {
			if d.Await(t.Context(), fmt.Sprint(i), "x") {
				t.Error("waited while cycles fail")
			}
			time.Sleep(time.Second)
		}
		if n := l.count("list_operations"); n < 3 || n > 5 {
			t.Errorf("%d cycles in a minute of failures", n)
		}
	})
}

// Before the first answered cycle and after the end of Run there is nothing to wait for.
func TestAwaitOutsideOfRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLittle()
		d, stop := l.start(t)
		l.set(func(l *little) { l.slow["list_operations"] = time.Hour })
		waited := make(chan time.Duration)
		go func() {
			began := time.Now()
			d.Await(t.Context(), "alice", "x")
			waited <- time.Since(began)
		}()
		time.Sleep(time.Second / 2)
		go stop()
		l.set(func(l *little) { l.slow["list_operations"] = 0 })
		if got := <-waited; got > awaitLimit {
			t.Errorf("waited %s", got)
		}
		time.Sleep(2 * time.Hour)
		if d.Await(t.Context(), "alice", "y") {
			t.Error("waited after the end of Run")
		}
		fresh, err := New(Config{Source: l.source()})
		if err != nil {
			t.Fatal(err)
		}
		if fresh.Await(t.Context(), "alice", "x") {
			t.Error("waited before Run")
		}
	})
}

// However many callers ask for however many names, what is remembered of them is bounded.
func TestAwaitMemory(t *testing.T) {
	t.Parallel()
	e := newEarly(time.Hour, 10)
	now := time.Now()
	e.end(now, true)
	for i := range 9_000 { // the memory of callers is full when somebody's share is whole again, that of names when all others' are
		if f := e.join(fmt.Sprint("caller ", i), fmt.Sprint("name ", i), now); f != nil {
			e.leave()
		}
		if i%1000 == 999 {
			now = now.Add(2 * time.Second)
			e.begin(now)
			e.end(now, true)
		}
	}
	if len(e.callers) > maxCallers || len(e.asked) > maxAsked || len(e.asked) == 0 {
		t.Errorf("%d callers, %d names are remembered", len(e.callers), len(e.asked))
	}
	for i := range 2 * maxNames {
		if e.join(fmt.Sprint("other ", i), fmt.Sprint("other name ", i), now.Add(time.Hour)) != nil {
			e.leave()
		}
	}
	if n := len(e.next.names); n != maxNames {
		t.Errorf("a cycle is awaited for %d names, want %d", n, maxNames)
	}
}
