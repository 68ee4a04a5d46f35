package discovery

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"taskproxy/ytclient"
)

// Who does not answer in time is left alone for as long, then for twice as long, up to a minute; any answer ends that.
func TestSilences(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSilences(10 * time.Second)
		late := fmt.Errorf("%w: %w", ytclient.ErrUnavailable, context.DeadlineExceeded)
		for _, pause := range []time.Duration{10, 20, 40, 60, 60} {
			s.note("node", late)
			time.Sleep(pause*time.Second - 1)
			if !s.has("node", time.Now()) {
				t.Errorf("asked again before %d s", pause)
			}
			if time.Sleep(time.Nanosecond); s.has("node", time.Now()) {
				t.Errorf("left alone after %d s", pause)
			}
			if s.has("another", time.Now()) {
				t.Error("another is left alone with it")
			}
		}
		s.note("node", late)
		s.note("node", errors.New("no such node"))
		if s.has("node", time.Now()) {
			t.Error("left alone after an answer")
		}
		s.note("node", late)
		time.Sleep(10 * time.Second)
		if s.has("node", time.Now()) {
			t.Error("the pause began where the last one ended, although there was an answer in between")
		}
		time.Sleep(time.Hour)
		s.sweep(time.Now())
		if len(s.of) != 0 {
			t.Errorf("%d are remembered for ever", len(s.of))
		}
	})
}

// What an exec node that hangs holds up is its own jobs' endpoints. Everybody else's are swapped in before it is waited for, and
// a cycle that begins soon after does not wait for it again.
func TestNobodyWaitsForANodeThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLittle()
		l.run("1-1", "a:20001")
		s := l.source()
		ports := s.jobPorts
		s.jobPorts = func(refs []ytclient.JobRef) ([]ytclient.PortsAnswer, error) {
			for _, r := range refs {
				if r.ID == "a" {
					time.Sleep(10 * time.Second)
					return nil, context.DeadlineExceeded
				}
			}
			return ports(refs)
		}
		d, err := New(Config{Source: s})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.cycle(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.run("2-2", "b:20002")
		began, ended := time.Now(), make(chan struct{})
		go func() { defer close(ended); _ = d.cycle(t.Context()) }()
		synctest.Wait()
		select {
		case <-ended:
			t.Fatal("nobody asked the node that hangs")
		default:
		}
		wantAddrs(t, "while a node hangs", d, "", "node-1:20002 ")
		<-ended
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("the cycle took %s", took)
		}
		began = time.Now()
		if err := d.cycle(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the next one took %s", took)
		}
	})
}

// An operation whose list of jobs hangs is listed again after a pause; what was known of it is held meanwhile.
func TestListOfJobsThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLittle()
		l.run("1-1", "a:20001")
		s := l.source()
		jobs := s.listJobs
		hangs, asked := false, 0
		s.listJobs = func(id string) (ytclient.JobListing, error) {
			if asked++; hangs {
				time.Sleep(10 * time.Second)
				return ytclient.JobListing{}, context.DeadlineExceeded
			}
			return jobs(id)
		}
		d, err := New(Config{Source: s, StaleLimit: 5 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		cycles(t, d, 1, 0)
		hangs, asked = true, 0
		cycles(t, d, 18, 10*time.Second) // 3 minutes and more, in which it is due after one
		if asked < 2 || asked > 6 {
			t.Errorf("asked %d times in three minutes", asked)
		}
		wantAddrs(t, "within the stale limit", d, "node-1:20001 ", "none")
		cycles(t, d, 30, 10*time.Second)
		wantAddrs(t, "after it", d, "", "none")
		hangs = false
		cycles(t, d, 7, 10*time.Second)
		wantAddrs(t, "when it answers again", d, "node-1:20001 ", "none")
	})
}

// Jobs that have finished leave their operation with fewer than its tasks say, for good: that alone is a reason to list them
// again less and less often. Whatever changes is one at once.
func TestShortForGood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked, progress := 0, "1"
		s := &source{
			listOperations: func() (ytclient.Listing, error) {
				return ytclient.Listing{Operations: []ytclient.Operation{{
					ID: "1-1", State: "running", Annotations: map[string]any{"task_proxy": map[string]any{"enabled": true}}, BriefProgress: progress,
				}}}, nil
			},
			getOperation: func(id string) (ytclient.OperationInfo, error) {
				return ytclient.OperationInfo{ID: id, State: "running", Tasks: []ytclient.Task{{Name: "t", JobCount: 10, PortCount: 1}}}, nil
			},
			listJobs: func(string) (ytclient.JobListing, error) {
				asked++
				return ytclient.JobListing{Jobs: []ytclient.Job{{ID: "a", Task: "t", State: "running", Address: "node:1"}}}, nil
			},
			jobPorts: func([]ytclient.JobRef) ([]ytclient.PortsAnswer, error) {
				return []ytclient.PortsAnswer{{Ports: []int{20001}}}, nil
			},
		}
		d, err := New(Config{Source: s, JobsRefreshPeriod: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		cycles(t, d, 3, 10*time.Second)
		if asked != 3 {
			t.Errorf("%d lists in the first three cycles, want one in each: jobs may be on their way", asked)
		}
		asked = 0
		cycles(t, d, 60, 10*time.Second)
		if asked > 6 {
			t.Errorf("%d lists in ten minutes in which nothing changed", asked)
		}
		asked, progress = 0, "2"
		cycles(t, d, 2, 10*time.Second)
		if asked != 2 {
			t.Errorf("%d lists in the two cycles after a change, want 2", asked)
		}
	})
}

// A node that hangs while its jobs are held is asked about them less and less often.
func TestNodeThatHangsWithHeldJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, d := settled(t)
		l.set(func(l *little) {
			l.fail["list_jobs 1-1"] = ytclient.ErrUnavailable
			l.fail["job_ports"], l.slow["job_ports"] = context.DeadlineExceeded, 10*time.Second
		})
		s, e := first(d)
		failed(t, d, s, e) // so that its jobs are listed
		before := l.count("job_ports")
		cycles(t, d, 24, 10*time.Second)
		if n := l.count("job_ports") - before; n < 2 || n > 6 {
			t.Errorf("asked %d times in four minutes", n)
		}
	})
}

// A node that hangs when it is asked whose a written port is is asked less and less often.
func TestNodeThatHangsUnderATrial(t *testing.T) {
	played(t, func(t *testing.T) {
		w := newTown(t)
		w.nodeErr["node-1.local:9012"] = context.DeadlineExceeded
		w.sayWebUI("one", "http://node-1.local:27001")
		for range 24 {
			time.Sleep(10 * time.Second)
			if err := w.d.cycle(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		n := 0
		for _, call := range w.called {
			if call == "node_jobs node-1.local:9012" {
				n++
			}
		}
		if n < 2 || n > 6 {
			t.Errorf("asked %d times in four minutes", n)
		}
	})
}
