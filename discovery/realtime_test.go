package discovery

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"taskproxy/ytclient"
	"taskproxy/ytclient/ytlocal"
	"taskproxy/ytclient/ytlocal/scheduler"
)

// bubbleless is a cluster and a Discovery in real time, for what a bubble of testing/synctest cannot wait for.
func bubbleless(t *testing.T, cfg Config) (*ytlocal.Cluster, *Discovery) {
	t.Helper()
	cluster, err := ytlocal.Start(ytlocal.Config{StateDir: t.TempDir(), Nodes: suiteNodes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	client, err := ytclient.New(ytclient.Config{Proxy: cluster.URL(), Token: func() (string, error) { return cluster.RootToken(), nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	cfg.Source = client
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return cluster, d
}

// pretendServer lets the cluster tell of an operation that publishes one port of one job.
func pretendServer(t *testing.T, cluster *ytlocal.Cluster, id, job, node string, port int, began time.Time) {
	t.Helper()
	err := cluster.Scheduler().Pretend(scheduler.Operation{
		ID: id, User: "alice", StartTime: began, Annotations: map[string]any{"task_proxy": map[string]any{"enabled": true}},
		Spec: map[string]any{"tasks": map[string]any{"server": map[string]any{"job_count": int64(1), "port_count": int64(1)}}},
	}, []scheduler.Job{{ID: job, Task: "server", Address: node, Ports: []int{port}}})
	if err != nil {
		t.Fatal(err)
	}
}

// TestHangingCalls: a call that is never answered costs its deadline and what it was about, and nothing else.
func TestHangingCalls(t *testing.T) {
	t.Parallel()
	cluster, d := bubbleless(t, Config{CallTimeout: 1500 * time.Millisecond})
	for i := range 3 {
		pretendServer(t, cluster, fmt.Sprintf("%d-0-3e8-1", i+1), fmt.Sprintf("%d-0-384-1", i+1), suiteNodes[i], 20_001+i, start)
	}
	cycle := func(want string) {
		t.Helper()
		err := d.cycle(t.Context())
		var got strings.Builder
		if err != nil {
			fmt.Fprintf(&got, "failed: %s\n", cause(err))
		}
		for _, s := range d.Snapshot().Services() {
			fmt.Fprintln(&got, s.OperationID, s.Endpoints)
		}
		for _, p := range d.Problems() {
			fmt.Fprintln(&got, "!", p)
		}
		if strings.TrimSpace(got.String()) != strings.TrimSpace(want) {
			t.Errorf("got\n%swant\n%s", got.String(), want)
		}
	}
	hang := func(command, about string) (remove func()) {
		return cluster.Faults().Add(ytlocal.Fault{Command: command, Hang: true, Match: func(c ytlocal.Call) bool {
			return strings.Contains(fmt.Sprint(c.Params), about)
		}})
	}

	// Who hangs is left alone for a while.
	answers := func(who string) {
		t.Helper()
		for d.silent.has(who, time.Now()) {
			if time.Sleep(10 * time.Millisecond); t.Context().Err() != nil {
				t.Fatalf("%s is left alone for ever", who)
			}
		}
	}

	removeJobs, removePorts := hang("list_jobs", "1-0-3e8-1"), hang("execute_batch", "2-0-384-1")
	// The ports of 3 are asked for in one call with those of 2, the first time.
	cycle(`
1-0-3e8-1 []
2-0-3e8-1 []
3-0-3e8-1 []
! cluster_call 1-0-3e8-1: list_jobs failed, what was known is kept: unavailable
! cluster_call 2-0-3e8-1 task "server": the exec node does not tell the ports of a job: unavailable
! cluster_call 3-0-3e8-1 task "server": the exec node does not tell the ports of a job: unavailable`)
	// From the second time on they are asked for apart: the node that hangs costs nobody else anything.
	cycle(`
1-0-3e8-1 []
2-0-3e8-1 []
3-0-3e8-1 [{3-0-384-1 node-3:20003 0}]
! cluster_call 1-0-3e8-1: list_jobs failed, what was known is kept: unavailable
! cluster_call 2-0-3e8-1 task "server": the exec node does not tell the ports of a job: unavailable`)
	// … and then it is left alone for a while.
	before := cluster.Faults().Calls()["execute_batch"]
	cycle(`
1-0-3e8-1 []
2-0-3e8-1 []
3-0-3e8-1 [{3-0-384-1 node-3:20003 0}]
! cluster_call 1-0-3e8-1: list_jobs failed, what was known is kept: unavailable
! cluster_call 2-0-3e8-1 task "server": the exec node does not tell the ports of a job: unavailable`)
	if n := cluster.Faults().Calls()["execute_batch"] - before; n != 0 {
		t.Errorf("a node that hangs was asked %d times in the next cycle", n)
	}
	removePorts()
	answers(suiteNodes[1])
	cycle(`
1-0-3e8-1 []
2-0-3e8-1 [{2-0-384-1 node-2:20002 0}]
3-0-3e8-1 [{3-0-384-1 node-3:20003 0}]
! cluster_call 1-0-3e8-1: list_jobs failed, what was known is kept: unavailable`)
	removeJobs()
	answers("1-0-3e8-1")
	cycle(`
1-0-3e8-1 [{1-0-384-1 node-1:20001 0}]
2-0-3e8-1 [{2-0-384-1 node-2:20002 0}]
3-0-3e8-1 [{3-0-384-1 node-3:20003 0}]`)

	remove := hang("list_operations", "")
	cycle(`
failed: unavailable
1-0-3e8-1 [{1-0-384-1 node-1:20001 0}]
2-0-3e8-1 [{2-0-384-1 node-2:20002 0}]
3-0-3e8-1 [{3-0-384-1 node-3:20003 0}]`)
	remove()
}

// TestSameStartTimes: operations that a script launches in one go start in one microsecond. Where a page of the listing ends
// among them, the next one begins with them again.
func TestSameStartTimes(t *testing.T) {
	t.Parallel()
	cluster, d := bubbleless(t, Config{})
	const operations = 1_500
	for i := range operations {
		// Newest first, the 1,000th to the 1,010th are of one instant.
		began := start.Add(-time.Duration(i) * time.Second)
		if i >= 990 && i < 1_010 {
			began = start.Add(-990 * time.Second)
		}
		pretendServer(t, cluster, fmt.Sprintf("%x-0-3e8-1", i+1), fmt.Sprintf("%x-0-384-1", i+1), suiteNodes[0], 20_000+i, began)
	}
	listing, err := d.source.ListOperations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n, calls := len(listing.Operations), cluster.Faults().Calls()["list_operations"]; n != operations || calls != 2 {
		t.Errorf("%d of %d operations, in %d pages, want 2", n, operations, calls)
	}
}

// TestHangingGetOperation: nobody answers about an operation that is new, nor about one that is not listed any more. The one is
// not there yet, the other is kept, and nobody else waits for either longer than a call may take.
func TestHangingGetOperation(t *testing.T) {
	t.Parallel()
	cluster, d := bubbleless(t, Config{CallTimeout: 1500 * time.Millisecond})
	for i := range 2 {
		pretendServer(t, cluster, fmt.Sprintf("%d-0-3e8-1", i+1), fmt.Sprintf("%d-0-384-1", i+1), suiteNodes[i], 20_001+i, start)
	}
	endpoints := func(want ...string) {
		t.Helper()
		begin := time.Now()
		if err := d.cycle(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > 6*time.Second {
			t.Errorf("the cycle took %s", took)
		}
		var got []string
		for _, s := range d.Snapshot().Services() {
			got = append(got, fmt.Sprint(s.OperationID, s.Endpoints))
		}
		if !slices.Equal(got, want) {
			t.Errorf("there is %q, want %q; problems %v", got, want, d.Problems())
		}
	}
	one, two := "1-0-3e8-1[{1-0-384-1 node-1:20001 0}]", "2-0-3e8-1[{2-0-384-1 node-2:20002 0}]"
	endpoints(one, two)

	cluster.Faults().Add(ytlocal.Fault{Command: "get_operation", Hang: true, Match: func(c ytlocal.Call) bool {
		return c.Params["operation_id"] != "3-0-3e8-1"
	}})
	cluster.Faults().Add(ytlocal.Fault{Command: "list_operations", Edit: ytlocal.WithoutOperations("1-0-3e8-1")})
	pretendServer(t, cluster, "3-0-3e8-1", "3-0-384-1", suiteNodes[2], 20_003, start)
	pretendServer(t, cluster, "4-0-3e8-1", "4-0-384-1", suiteNodes[2], 20_004, start)
	three := "3-0-3e8-1[{3-0-384-1 node-3:20003 0}]"
	endpoints(one, two, three)
	for _, id := range []string{"1-0-3e8-1", "4-0-3e8-1"} {
		if !slices.ContainsFunc(d.Problems(), func(p Problem) bool { return p.OperationID == id && p.Kind == ClusterCall }) {
			t.Errorf("no problem of %s: %v", id, d.Problems())
		}
	}
	endpoints(one, two, three)

	cluster.Faults().Clear()
	for _, id := range []string{"1-0-3e8-1", "4-0-3e8-1"} {
		for d.silent.has(id, time.Now()) {
			if time.Sleep(10 * time.Millisecond); t.Context().Err() != nil {
				t.Fatalf("%s is left alone for ever", id)
			}
		}
	}
	endpoints(one, two, three, "4-0-3e8-1[{4-0-384-1 node-3:20004 0}]")
}

// TestSlowCalls: an answer that comes late, but in time, is an answer.
func TestSlowCalls(t *testing.T) {
	t.Parallel()
	cluster, d := bubbleless(t, Config{CallTimeout: 20 * time.Second})
	pretendServer(t, cluster, "1-0-3e8-1", "1-0-384-1", suiteNodes[0], 20_001, start)
	cluster.Faults().Add(ytlocal.Fault{Delay: 300 * time.Millisecond})
	begin := time.Now()
	if err := d.cycle(t.Context()); err != nil || d.Snapshot().Endpoints() != 1 || len(d.Problems()) != 0 {
		t.Errorf("%v; there is\n%s%v", err, d.Snapshot(), d.Problems())
	}
	if took := time.Since(begin); took < 4*300*time.Millisecond {
		t.Errorf("the cycle took %s: its calls were not slow", took)
	}
}
