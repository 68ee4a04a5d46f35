package serve

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"taskproxy/discovery"
	"taskproxy/ytclient"
)

// What is promised about time, seen from outside: the product as it is started, a cluster, processes that are jobs, and
// requests over sockets.

// within tries what is promised to take no longer than limit. A machine that others use is slow now and then, so the promise is
// broken only if it is three times. try does all that has to be done before, and returns how long the rest took.
func within(t *testing.T, limit time.Duration, what string, try func() time.Duration) {
	t.Helper()
	var all []time.Duration
	for range 3 {
		took := try()
		if took <= limit {
			return
		}
		all = append(all, took)
	}
	t.Errorf("%s took %s, want %s at most", what, all, limit)
}

// A new operation is reached one period later, also when nobody asks for it.
func TestNewOperationWithinAPeriod(t *testing.T) {
	t.Parallel()
	const period = 2 * time.Second
	c := startTestCluster(t)
	r := c.startReplica(t, "--discovery-period="+period.String())
	endpoints := 0.
	within(t, period+time.Second, "the way of new jobs to the endpoints", func() time.Duration {
		// The worst moment is just after a cycle. Until the jobs are among the endpoints nobody asks for the name: that would start
		// a cycle sooner.
		cycles := r.metric(t, "discovery_success_total")
		until(t, "another cycle is over", func() bool { return r.metric(t, "discovery_success_total") > cycles })
		id := c.start(t, c.alice, "server", 2, everyPort)
		c.jobs(t, id, 2)
		answers := time.Now()
		endpoints += 2
		until(t, "both jobs are endpoints", func() bool { return r.metric(t, "endpoints") == endpoints })
		took := time.Since(answers)
		if got := r.get(t, c.alice, discovery.ShortID(id, "server", "port_0")); got.status != http.StatusOK {
			t.Errorf("got %s", got)
		}
		return took
	})
}

// A new operation is reached at once when somebody asks for it, however long the period is.
func TestNewOperationThatSomebodyAsksFor(t *testing.T) {
	t.Parallel()
	c := startTestCluster(t)
	r := c.startReplica(t, "--discovery-period=1m")
	within(t, 3*time.Second, "an answer of the job", func() time.Duration {
		id := c.start(t, c.alice, "server", 1, everyPort)
		began := time.Now()
		label := discovery.ShortID(id, "server", "port_0")
		got := r.get(t, c.alice, label)
		if got.status == http.StatusNotFound {
			t.Errorf("the first answer is %s", got)
		}
		until(t, "the job answers", func() bool {
			got = r.get(t, c.alice, label)
			return got.status == http.StatusOK
		})
		return time.Since(began)
	})
}

// The port of a job that was killed may be somebody else's the next moment. After the first connection that it did not take
// nobody connects to it any more, also when the cluster has not noticed yet.
func TestKilledJobGetsNoRequest(t *testing.T) {
	t.Parallel()
	const while = 2500 * time.Millisecond
	tests := []struct {
		name    string
		jobs    int
		noticed bool // by the cluster: list_jobs tells that the job is gone
	}{
		{"one of three", 3, true},
		{"one of three, list_jobs still says that it runs", 3, false},
		{"the only one", 1, true},
		{"the only one, list_jobs still says that it runs", 1, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := startTestCluster(t)
			stuck := c.slowJobs(1200 * time.Millisecond) // longer than an endpoint is set aside at first
			id := c.start(t, c.alice, "server", tt.jobs, everyPort)
			jobs := c.jobs(t, id, tt.jobs)
			r := c.startReplica(t, "--discovery-period=1m")
			label := discovery.ShortID(id, "server", "port_0")
			until(t, "all jobs are endpoints", func() bool { return r.metric(t, "endpoints") == float64(tt.jobs) })
			for range jobs {
				if got := r.get(t, c.alice, label); got.status != http.StatusOK {
					t.Fatalf("got %s before anything happened", got)
				}
			}

			stuck.Store(!tt.noticed)
			dead := jobs[0]
			kill(t, dead)
			until(t, "a connection failed", func() bool {
				got := r.get(t, c.alice, label)
				if tt.jobs > 1 && got.status != http.StatusOK {
					t.Errorf("got %s, want another job's answer", got)
				}
				return r.metric(t, "upstream_retries_total") > 0 || got.status != http.StatusOK
			})
			other := listenAsImpostor(t, addressOf(dead))
			for end := time.Now().Add(while); time.Now().Before(end); time.Sleep(25 * time.Millisecond) {
				got := r.get(t, c.alice, label)
				if n := other.connections.Load(); n > 0 {
					t.Fatalf("somebody else has the port by now and got %d connections; the caller got %s", n, got)
				}
				if tt.jobs > 1 && got.status != http.StatusOK {
					t.Errorf("got %s, want another job's answer", got)
				}
			}
		})
	}
}

// Jobs that are killed one after the other, sooner than one operation is looked at again and again, get no requests either.
func TestJobsKilledInARow(t *testing.T) {
	t.Parallel()
	c := startTestCluster(t)
	id := c.start(t, c.alice, "server", 5, everyPort)
	jobs := c.jobs(t, id, 5)
	r := c.startReplica(t, "--discovery-period=1m")
	label := discovery.ShortID(id, "server", "port_0")
	until(t, "all jobs are endpoints", func() bool { return r.metric(t, "endpoints") == 5 })
	for i, dead := range jobs[:4] {
		kill(t, dead)
		before := r.metric(t, "upstream_retries_total")
		until(t, "a connection failed", func() bool {
			r.get(t, c.alice, label)
			return r.metric(t, "upstream_retries_total") > before
		})
		other := listenAsImpostor(t, addressOf(dead))
		for end := time.Now().Add(1200 * time.Millisecond); time.Now().Before(end); time.Sleep(25 * time.Millisecond) {
			got := r.get(t, c.alice, label)
			if n := other.connections.Load(); n > 0 {
				t.Fatalf("job %d: somebody else has the port by now and got %d connections; the caller got %s", i, n, got)
			}
		}
	}
}

// A job that was aborted and runs elsewhere now is found by the request that fails, not by the next cycle.
func TestMovedJobIsFoundSoon(t *testing.T) {
	t.Parallel()
	c := startTestCluster(t)
	r := c.startReplica(t, "--discovery-period=1m")
	within(t, 2*time.Second, "the way to the next job", func() time.Duration {
		id := c.start(t, c.alice, "server", 1, everyPort)
		old := c.jobs(t, id, 1)[0]
		label := discovery.ShortID(id, "server", "port_0")
		until(t, "the job answers", func() bool { return r.get(t, c.alice, label).job.JobID == old.ID })

		kill(t, old)
		if got := r.get(t, c.alice, label); got.status == http.StatusNotFound {
			t.Errorf("got %s, but the service is still there", got)
		}
		next := c.jobs(t, id, 1, old.ID)[0]
		answers := time.Now()
		if next.Ports[0] == old.Ports[0] {
			t.Fatal("the next job has the same port")
		}
		until(t, "the next job answers", func() bool { return r.get(t, c.alice, label).job.JobID == next.ID })
		return time.Since(answers)
	})
}

// An author whose operation is the older one renames its service so that it hashes to the ID of somebody else's. Nobody who
// asks for that ID ever gets to the attacker's job: not from the process that saw it happen, not from one that starts
// afterwards, and not while the owner has no job.
func TestRenamedToAVictimsID(t *testing.T) {
	t.Parallel()
	c := startTestCluster(t)
	attacker := c.start(t, c.mallory, "miner", 1, everyPort)
	victim := c.start(t, c.alice, "trainer", 1, nil)
	nameOfVictim, nameOfAttacker := collision(victim, "trainer", attacker, "miner")
	id := discovery.ShortID(victim, "trainer", nameOfVictim)
	if discovery.ShortID(attacker, "miner", nameOfAttacker) != id {
		t.Fatal("the names do not collide")
	}
	annotate := func(operation string, annotation map[string]any) {
		t.Helper()
		err := c.Scheduler().UpdateParameters(operation, map[string]any{"annotations": map[string]any{"task_proxy": annotation}})
		if err != nil {
			t.Fatal(err)
		}
	}
	annotate(victim, publishAs("trainer", nameOfVictim))
	job := c.jobs(t, victim, 1)[0]
	c.jobs(t, attacker, 1)

	const period = "--discovery-period=200ms"
	first := c.startReplica(t, period)
	until(t, "both have endpoints", func() bool { return first.metric(t, "endpoints") == 2 })
	// What a process that starts later knows of the owner is in the services table.
	until(t, "the services table has the owner", func() bool {
		return slices.ContainsFunc(c.services(t), func(r ytclient.ServiceRow) bool { return r.Domain == id+"."+base && r.OperationID == victim })
	})

	annotate(attacker, publishAs("miner", nameOfAttacker))
	loser := discovery.LongID(attacker, "miner", nameOfAttacker)
	check := func(who string, r *replica) {
		t.Helper()
		until(t, who+" has seen the new name", func() bool { return r.get(t, c.alice, loser).job.OperationID == attacker })
		for range 5 {
			if got := r.get(t, c.alice, id); got.job.OperationID != victim {
				t.Errorf("%s: got %s, want the owner's job", who, got)
			}
		}
	}
	check("the process that saw it", first)
	second := c.startReplica(t, period)
	check("a second replica", second)
	first.stop()
	check("the second replica alone", second)
	second.stop()
	third := c.startReplica(t, period)
	check("a process after a restart", third)
	third.stop()

	// The owner has no job for a while.
	if err := c.Scheduler().Suspend(victim); err != nil {
		t.Fatal(err)
	}
	kill(t, job)
	fourth := c.startReplica(t, period)
	until(t, "the new name is seen", func() bool { return fourth.get(t, c.alice, loser).job.OperationID == attacker })
	until(t, "the owner has no job", func() bool {
		got := fourth.get(t, c.alice, id) // 502 until the cluster has noticed
		if got.status == http.StatusOK || got.status == http.StatusNotFound {
			t.Fatalf("got %s, want no answer while the owner has no job", got)
		}
		return got.status == http.StatusServiceUnavailable
	})
}

// collision finds a name for a service of each operation so that both have one ID. That takes 2^16 tries or so when both names
// are free, as for an author with two operations, and 2^32 when one is given, which is minutes.
func collision(operation1, task1, operation2, task2 string) (name1, name2 string) {
	seen := make(map[[4]byte]int)
	tail := func(operation, task, name string) [4]byte {
		sum := sha256.Sum256([]byte(operation + task + name))
		return [4]byte(sum[28:])
	}
	for i := 0; ; i++ {
		seen[tail(operation1, task1, fmt.Sprint("ui_", i))] = i
		if j, found := seen[tail(operation2, task2, fmt.Sprint("web_", i))]; found {
			return fmt.Sprint("ui_", j), fmt.Sprint("web_", i)
		}
	}
}
