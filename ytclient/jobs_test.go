package ytclient

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"taskproxy/ytclient/ytlocal"
	"taskproxy/ytclient/ytlocal/scheduler"
)

// manyJobs is an operation of which one task has so many jobs, and its name so many bytes, beside two small ones. A long name is made
// shorter, and all bounds with it.
func manyJobs(t *testing.T, n, length int) (cluster *ytlocal.Cluster, client *Client, id, name string) {
	t.Helper()
	l := newLongListing(t, maxAnswer)
	if length > 1<<10 {
		const times = 16
		l.smaller(times)
		length /= times
	}
	id, name = "1-0-3e803e8-1", strings.Repeat("x", length)
	jobs := []scheduler.Job{{ID: "1-1-3e80384-1", Task: "server", Address: "n:1"}, {ID: "ffffffff-1-3e80384-1", Task: "other", Address: "n:1"}}
	for i := range n {
		jobs = append(jobs, scheduler.Job{ID: fmt.Sprintf("%x-2-3e80384-1", i+1), Task: name, Address: "n:2"})
	}
	if err := l.cluster.Scheduler().Pretend(scheduler.Operation{ID: id, User: "eve"}, jobs); err != nil {
		t.Fatal(err)
	}
	return l.cluster, l.client, id, name
}

// What a list of jobs costs follows the tasks that are asked for, and not the size of the others.
func TestListTaskJobs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		jobs, length int
		tasks        []string
		want, calls  int
	}{
		{5, 10, []string{"server"}, 1, 1},
		{5, 10, []string{"server", "other"}, 7, 1}, // those of others may be among them
		{5, 10, nil, 7, 1},
		{5, 10, []string{"nothing"}, 0, 1},
		{2_100, 10, []string{"server"}, 1, 1},
		{2_100, 10, []string{"server", "other"}, 2, 3},
		{2_100, 10, nil, 2_102, 3},
		{2_100, 10, []string{strings.Repeat("x", 10), "server"}, 2_101, 5},
		{800, 48 << 10, []string{"server"}, 1, 1},
		{800, 48 << 10, []string{"server", "other"}, 2, 3},
	} {
		t.Run(fmt.Sprintf("%d jobs, %d bytes, %d tasks", tt.jobs, tt.length, len(tt.tasks)), func(t *testing.T) {
			t.Parallel()
			cluster, client, id, _ := manyJobs(t, tt.jobs, tt.length)
			for range 2 {
				before := cluster.Faults().Calls()["list_jobs"]
				listing, err := client.ListTaskJobs(t.Context(), id, tt.tasks)
				if err != nil || listing.Partial != nil || len(listing.Jobs) != tt.want {
					t.Fatalf("%d jobs, %v, %v; want %d", len(listing.Jobs), listing.Partial, err, tt.want)
				}
				for _, task := range tt.tasks {
					if !slices.ContainsFunc(listing.Jobs, func(j Job) bool { return j.Task == task }) && task != "nothing" {
						t.Errorf("no job of %.10s", task)
					}
				}
				if calls := cluster.Faults().Calls()["list_jobs"] - before; calls > tt.calls {
					t.Errorf("%d calls, want %d", calls, tt.calls)
				}
			}
		})
	}
}

// An answer that is too long is that operation's own error, and not asked for again for a while.
func TestListJobsTooLong(t *testing.T) {
	t.Parallel()
	cluster, client, id, _ := manyJobs(t, 800, 48<<10)
	for range 3 {
		if _, err := client.ListJobs(t.Context(), id); !errors.Is(err, ErrUnavailable) || !errors.Is(err, errLongJobs) {
			t.Errorf("err = %v", err)
		}
	}
	if n := cluster.Faults().Calls()["list_jobs"]; n != 1 {
		t.Errorf("%d calls, want 1", n)
	}
	for key := range client.long.until {
		client.long.until[key] = time.Now()
	}
	if err := cluster.Scheduler().Pretend(scheduler.Operation{ID: id, User: "eve"}, nil); err != nil {
		t.Fatal(err)
	}
	if l, err := client.ListJobs(t.Context(), id); err != nil || len(l.Jobs) != 0 {
		t.Errorf("%+v, %v", l, err)
	}
}

// So many jobs that an operation alone would keep a cycle waiting are that operation's own error, too.
func TestListJobsTooMany(t *testing.T) {
	t.Parallel()
	const pages = 3
	cluster, client, id, name := manyJobs(t, pages*pageSize+1, 1)
	client.bounds.jobsPages = pages
	for _, tasks := range [][]string{nil, {name}, {name, "server"}} {
		before := cluster.Faults().Calls()["list_jobs"]
		if _, err := client.ListTaskJobs(t.Context(), id, tasks); !errors.Is(err, ErrUnavailable) || !errors.Is(err, errManyJobs) {
			t.Errorf("%q: %v", tasks, err)
		}
		if calls := cluster.Faults().Calls()["list_jobs"] - before; calls > pages+2 {
			t.Errorf("%q: %d calls", tasks, calls)
		}
	}
}

// A cluster that does not know the filter tells of all tasks.
func TestListTaskJobsUnfiltered(t *testing.T) {
	t.Parallel()
	c := newClient(t, answer(200, `{jobs=[{id="a-b-3fe0384-1";state=running;address="n:1";task_name=a};{id="a-b-3fe0384-2";state=running;address="n:1";task_name=b}]}`))
	l, err := c.ListTaskJobs(t.Context(), "1-2-3e803e8-4", []string{"b"})
	if err != nil || len(l.Jobs) != 1 || l.Jobs[0].ID != "a-b-3fe0384-2" {
		t.Errorf("%+v, %v", l, err)
	}
}

// So is an operation whose spec is too long.
func TestGetOperationTooLong(t *testing.T) {
	t.Parallel()
	l := newLongListing(t, maxAnswer)
	m := l.smaller(16)
	id := l.operation("alice", 100)
	for i, length := range []int{m.operation, 10} {
		op := scheduler.Operation{ID: id, User: "eve", Spec: map[string]any{"description": strings.Repeat("x", length)}}
		if err := l.cluster.Scheduler().Pretend(op, nil); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			info, err := l.client.GetOperation(t.Context(), id)
			if i == 0 && (!errors.Is(err, ErrUnavailable) || !errors.Is(err, errLongOperation)) || i == 1 && (err != nil || info.State != "running") {
				t.Errorf("%d bytes: %+v, %v", length, info, err)
			}
		}
		if n := l.cluster.Faults().Calls()["get_operation"]; n != 1+3*i {
			t.Errorf("%d calls", n)
		}
		clear(l.client.long.until)
	}
}

// Asked for task by task, what is missing of one is missing of all; and there are no more such calls than pages would be.
func TestListTaskJobsOfManyTasks(t *testing.T) {
	t.Parallel()
	l := newLongListing(t, maxAnswer)
	const id, n, each = "1-0-3e803e8-1", maxTaskCalls + 1, 65
	var jobs []scheduler.Job
	var tasks []string
	for i := range n {
		tasks = append(tasks, fmt.Sprint("task", i))
		for range each {
			jobs = append(jobs, scheduler.Job{ID: fmt.Sprintf("%x-1-3e80384-1", len(jobs)+1), Task: tasks[i], Address: "n:1"})
		}
	}
	if err := l.cluster.Scheduler().Pretend(scheduler.Operation{ID: id, User: "eve"}, jobs); err != nil {
		t.Fatal(err)
	}
	failing := func(c ytlocal.Call) bool { return c.Params["task_name"] == tasks[3] }
	l.cluster.Faults().Add(ytlocal.Fault{Command: "list_jobs", Match: failing, Edit: func(v any) any {
		v.(map[string]any)["errors"] = []any{"down"}
		return v
	}})
	for _, tt := range []struct {
		tasks   []string
		calls   int
		partial bool
	}{{tasks, 2, false}, {tasks[:maxTaskCalls], 1 + maxTaskCalls, true}} {
		before := l.cluster.Faults().Calls()["list_jobs"]
		listing, err := l.client.ListTaskJobs(t.Context(), id, tt.tasks)
		if want := len(tt.tasks) * each; err != nil || len(listing.Jobs) != want || (listing.Partial != nil) != tt.partial {
			t.Errorf("%d tasks: %d jobs, want %d; partial %v, %v", len(tt.tasks), len(listing.Jobs), want, listing.Partial, err)
		}
		if calls := l.cluster.Faults().Calls()["list_jobs"] - before; calls != tt.calls {
			t.Errorf("%d tasks: %d calls, want %d", len(tt.tasks), calls, tt.calls)
		}
	}
	l.cluster.Faults().Add(ytlocal.Fault{Command: "list_jobs", Match: failing, Status: 500})
	if listing, err := l.client.ListTaskJobs(t.Context(), id, tasks[:5]); !errors.Is(err, ErrUnavailable) {
		t.Errorf("one task failed: %d jobs, %v", len(listing.Jobs), err)
	}
}
