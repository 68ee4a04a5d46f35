package discovery

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"taskproxy/ytclient"
	"taskproxy/ytclient/ytlocal"
	"taskproxy/ytclient/ytlocal/scheduler"
)

// What the scale tests and benchmarks mean by a large cluster. A test that only counts does with a smaller one.
const (
	scaleOperations = 1_000
	scaleJobs       = 10 // of each operation
)

// scale is a large cluster of pretended operations, and the real client of it.
type scale struct {
	cluster *ytlocal.Cluster
	client  *ytclient.Client
	jobs    [][]scheduler.Job // by operation
	nodes   []string
	port    int
}

func newScale(tb testing.TB, operations int) *scale {
	tb.Helper()
	s := &scale{jobs: make([][]scheduler.Job, operations), port: 20_000}
	for i := range 100 {
		s.nodes = append(s.nodes, fmt.Sprintf("node-%d:9012", i))
	}
	var err error
	if s.cluster, err = ytlocal.Start(ytlocal.Config{StateDir: tb.TempDir(), Nodes: s.nodes}); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.cluster.Close(); err != nil {
			tb.Error(err)
		}
	})
	s.client, err = ytclient.New(ytclient.Config{Proxy: s.cluster.URL(), Token: func() (string, error) { return s.cluster.RootToken(), nil }, CallTimeout: time.Minute})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.client.Close)
	for i := range s.jobs {
		for range scaleJobs {
			s.jobs[i] = append(s.jobs[i], s.job())
		}
		s.tell(tb, i)
	}
	return s
}

// job is a new one, with an id, a node and a port that no other has.
func (s *scale) job() scheduler.Job {
	s.port++
	return scheduler.Job{
		ID: fmt.Sprintf("%x-1-3fe0384-1", s.port), Task: "server", Address: s.nodes[s.port%len(s.nodes)], Ports: []int{s.port},
	}
}

func scaleID(i int) string { return fmt.Sprintf("%x-1-3fe03e8-1", i+1) }

// tell lets the cluster know the jobs of an operation.
func (s *scale) tell(tb testing.TB, i int) {
	tb.Helper()
	err := s.cluster.Scheduler().Pretend(scheduler.Operation{
		ID: scaleID(i), User: "alice", StartTime: start.Add(time.Duration(i) * time.Second),
		Annotations: map[string]any{"task_proxy": map[string]any{"enabled": true}},
		Spec: map[string]any{"tasks": map[string]any{
			"server": map[string]any{"job_count": int64(scaleJobs), "port_count": int64(1), "command": "serve"},
		}},
	}, s.jobs[i])
	if err != nil {
		tb.Fatal(err)
	}
}

// replace lets one job of an operation end and another one take its place: no count of jobs changes.
func (s *scale) replace(tb testing.TB, i int) {
	tb.Helper()
	s.jobs[i] = append(slices.Clone(s.jobs[i][1:]), s.job())
	s.tell(tb, i)
}

func (s *scale) discovery(tb testing.TB) *Discovery {
	tb.Helper()
	bases, err := NewBases("task-proxy.example.com")
	if err != nil {
		tb.Fatal(err)
	}
	d, err := New(Config{Source: s.client, Bases: bases, JobsRefreshPeriod: time.Hour, CallTimeout: time.Minute})
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// cycle makes one and returns the calls that it took, by command, as the cluster has counted them; get is a request of a
// batch. The rest of what it does is checked here: nothing may be missing and nothing may be wrong.
func (s *scale) cycle(tb testing.TB, d *Discovery) map[string]int {
	tb.Helper()
	before := s.cluster.Faults().Calls()
	if err := d.cycle(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	calls := s.cluster.Faults().Calls()
	for name, n := range before {
		if calls[name] -= n; calls[name] == 0 {
			delete(calls, name)
		}
	}
	if n, m := d.Snapshot().Len(), d.Snapshot().Endpoints(); n != len(s.jobs) || m != len(s.jobs)*scaleJobs || len(d.Problems()) > 0 {
		tb.Fatalf("%d services, %d endpoints, problems %.1000v", n, m, d.Problems())
	}
	return calls
}

// TestCallCounts: the calls of a cycle follow what has changed. The cluster counts, so that nothing is left out.
func TestCallCounts(t *testing.T) {
	t.Parallel()
	const operations = 200
	s := newScale(t, operations)
	d := s.discovery(t)
	want := func(what string, got, want map[string]int) {
		t.Helper()
		if !maps.Equal(got, want) {
			t.Errorf("%s: calls %v, want %v", what, got, want)
		}
	}
	want("the first cycle", s.cycle(t, d), map[string]int{
		"list_operations": 1, "get_operation": operations, "list_jobs": operations,
		"execute_batch": operations * scaleJobs / portsBatch, "get": operations * scaleJobs,
	})
	quiet := map[string]int{"list_operations": 1}
	want("nothing changed", s.cycle(t, d), quiet)
	want("nothing changed again", s.cycle(t, d), quiet)

	for i := 0; i < operations; i += 20 {
		s.replace(t, i)
	}
	want("10 operations changed", s.cycle(t, d), map[string]int{"list_operations": 1, "list_jobs": 10, "execute_batch": 1, "get": 10})
	last := s.jobs[0][scaleJobs-1]
	if e := d.Snapshot().Lookup(ShortID(scaleID(0), "server", "port_0")).Endpoints; !slices.ContainsFunc(e, func(e Endpoint) bool { return e.JobID == last.ID }) {
		t.Errorf("the new job %s is no endpoint: %v", last.ID, e)
	}
	want("nothing changed since", s.cycle(t, d), quiet)
}
