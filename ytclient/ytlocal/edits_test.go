package ytlocal_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"taskproxy/ytclient"
	"taskproxy/ytclient/ytlocal"
	"taskproxy/ytclient/ytlocal/scheduler"
)

const (
	operation = "1-2-3fe03e8-4"
	node      = "127.0.0.1:9012"
)

var jobs = []string{"1-1-3fe0384-1", "1-1-3fe0384-2"}

// told is a cluster with one pretended operation, and the product's own client of it.
func told(t *testing.T) (*ytlocal.Cluster, *ytclient.Client) {
	t.Helper()
	c, err := ytlocal.Start(ytlocal.Config{StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	err = c.Scheduler().Pretend(scheduler.Operation{ID: operation, User: "bob"}, []scheduler.Job{
		{ID: jobs[0], Task: "web", Address: node, Ports: []int{20001, 20002}},
		{ID: jobs[1], Task: "web", Address: node, Ports: []int{20003, 20004}},
	})
	if err != nil {
		t.Fatal(err)
	}
	client, err := ytclient.New(ytclient.Config{Proxy: c.URL(), Token: func() (string, error) { return c.RootToken(), nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return c, client
}

// look is what a client learns in one round, as far as edits change it.
type look struct {
	listed, odd int
	state       string
	jobs        []ytclient.Job
	partial     bool
	ports       []int
}

func lookAt(t *testing.T, client *ytclient.Client) look {
	t.Helper()
	listing, err := client.ListOperations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	info, err := client.GetOperation(t.Context(), operation)
	if err != nil {
		t.Fatal(err)
	}
	jobListing, err := client.ListJobs(t.Context(), operation)
	if err != nil {
		t.Fatal(err)
	}
	answers, err := client.JobPorts(t.Context(), []ytclient.JobRef{{Address: node, ID: jobs[0]}})
	if err = errors.Join(err, answers[0].Err); err != nil {
		t.Fatal(err)
	}
	return look{len(listing.Operations), len(listing.Odd), info.State, jobListing.Jobs, jobListing.Partial != nil, answers[0].Ports}
}

func (l look) equal(m look) bool {
	return l.listed == m.listed && l.odd == m.odd && l.state == m.state && slices.Equal(l.jobs, m.jobs) && l.partial == m.partial && slices.Equal(l.ports, m.ports)
}

// TestEdits holds each edit to what it says that the client sees, and to end when it is removed.
func TestEdits(t *testing.T) {
	t.Parallel()
	c, client := told(t)
	usual := lookAt(t, client)
	if want := (look{listed: 1, state: "running", ports: []int{20001, 20002}, jobs: []ytclient.Job{
		{ID: jobs[0], Task: "web", State: "running", Address: node},
		{ID: jobs[1], Task: "web", State: "running", Address: node},
	}}); !usual.equal(want) {
		t.Fatalf("without an edit: got %+v, want %+v", usual, want)
	}
	for _, tt := range []struct {
		name    string
		command string
		edit    func(any) any
		want    func(*look)
	}{
		{"in another state", "get_operation", ytlocal.InState("reviving"), func(l *look) { l.state = "reviving" }},
		{"without the operation", "list_operations", ytlocal.WithoutOperations(operation), func(l *look) { l.listed = 0 }},
		{"without another operation", "list_operations", ytlocal.WithoutOperations("1-1-1-1"), func(*look) {}},
		{"without operations", "list_operations", ytlocal.WithoutOperations(), func(l *look) { l.listed = 0 }},
		{"odd operation", "list_operations", ytlocal.OddOperation(operation, []any{}), func(l *look) { l.listed, l.odd = 0, 1 }},
		{"without a job", "list_jobs", ytlocal.WithoutJobs(jobs[0]), func(l *look) { l.jobs = l.jobs[1:] }},
		{"without jobs", "list_jobs", ytlocal.WithoutJobs(), func(l *look) { l.jobs = nil }},
		{"archive down", "list_jobs", ytlocal.PartialJobs(1910, jobs[1]), func(l *look) { l.jobs, l.partial = l.jobs[:1], true }},
		{"stale", "list_jobs", ytlocal.StaleJobs(jobs[0]), func(l *look) { l.jobs[0].Stale = true }},
		{"moved", "list_jobs", ytlocal.MovedJobs(map[string]string{jobs[1]: "[fd00::1]:9012"}), func(l *look) { l.jobs[1].Address = "[fd00::1]:9012" }},
		{"fewer ports", "get", ytlocal.Ports(20001), func(l *look) { l.ports = l.ports[:1] }},
		{"no ports", "get", ytlocal.Ports(), func(l *look) { l.ports = nil }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := usual
			want.jobs = slices.Clone(usual.jobs)
			tt.want(&want)
			remove := c.Faults().Add(ytlocal.Fault{Command: tt.command, Edit: tt.edit})
			if got := lookAt(t, client); !got.equal(want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
			remove()
			if got := lookAt(t, client); !got.equal(usual) {
				t.Errorf("after removal: got %+v, want %+v", got, usual)
			}
		})
	}
}

func TestRestartScheduler(t *testing.T) {
	t.Parallel()
	c, client := told(t)
	usual := lookAt(t, client)
	over := c.Faults().RestartScheduler()
	if got, want := lookAt(t, client), (look{state: "reviving", ports: usual.ports}); !got.equal(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	over()
	if got := lookAt(t, client); !got.equal(usual) {
		t.Errorf("when it is over: got %+v, want %+v", got, usual)
	}
}

// TestCost: each call takes its time, and each request of a batch its share.
func TestCost(t *testing.T) {
	t.Parallel()
	c, client := told(t)
	const cost = 30 * time.Millisecond
	took := func(call func() error) time.Duration {
		begin := time.Now()
		if err := call(); err != nil {
			t.Fatal(err)
		}
		return time.Since(begin)
	}
	list := func() error { _, err := client.ListJobs(t.Context(), operation); return err }
	batch := func(n int) func() error {
		refs := slices.Repeat([]ytclient.JobRef{{Address: node, ID: jobs[0]}}, n)
		return func() error { _, err := client.JobPorts(t.Context(), refs); return err }
	}
	c.Faults().SetCost(cost)
	for _, tt := range []struct {
		name string
		call func() error
		want time.Duration // at least; the SDK's batches have a concurrency of 50
	}{
		{"a call", list, cost},
		{"a batch of 100", batch(100), 3 * cost},
		{"a batch of 200", batch(200), 5 * cost},
	} {
		if got := took(tt.call); got < tt.want || got > tt.want+5*time.Second {
			t.Errorf("%s took %v, want %v", tt.name, got, tt.want)
		}
	}
	before := c.Faults().Calls()["get"]
	if err := batch(100)(); err != nil {
		t.Fatal(err)
	}
	if got := c.Faults().Calls()["get"] - before; got != 100 {
		t.Errorf("a batch of 100 counts as %d calls", got)
	}
}
