package discovery

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskproxy/ytclient"
)

// town is a cluster whose parts a test moves around between cycles: operations whose authors write addresses, exec nodes,
// Cypress, and the name service.
type town struct {
	t          *testing.T
	d          *Discovery
	operations map[string]*ytclient.Operation
	tasks      map[string][]ytclient.Task
	jobs       map[string][]ytclient.Job // by operation
	ports      map[string][]int          // by job
	odd        map[string]error          // by job: its node's entry cannot be read
	nodeErr    map[string]error
	children   map[string][]string // by path
	ids        map[string]string   // of nodes in Cypress, by their path
	pathErr    map[string]error
	names      map[string][]string
	partial    error
	listErr    error // of list_jobs

	mu     sync.Mutex
	asked  []string // names looked up
	called []string
}

// newTown has nodes node-1 to node-3 and an operation of alice's, one, whose driver is job a on node-1, where job v of
// somebody else's runs, too.
func newTown(t *testing.T, change ...func(*Config)) *town {
	t.Helper()
	w := &town{
		t: t, operations: map[string]*ytclient.Operation{}, tasks: map[string][]ytclient.Task{}, jobs: map[string][]ytclient.Job{},
		ports: map[string][]int{}, odd: map[string]error{}, nodeErr: map[string]error{}, children: map[string][]string{},
		ids: map[string]string{}, pathErr: map[string]error{},
		names: map[string][]string{
			"node-1.local": {"10.0.0.1"}, "node-2.local": {"10.0.0.2"}, "node-3.local": {"10.0.0.3", "2001:db8::3"},
			"http-proxies.local": {"10.0.0.9"}, "localhost": {"127.0.0.1", "::1"},
		},
	}
	cfg := Config{Source: w.source(), Resolver: w}
	for _, f := range change {
		f(&cfg)
	}
	var err error
	if w.d, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	w.operation("one", map[string]any{}, "driver")
	w.job("one", "a", "driver", "node-1.local:9012", 20001)
	w.job("other", "v", "server", "node-1.local:9012", 20002, 27500)
	return w
}

func (w *town) operation(id string, annotations map[string]any, tasks ...string) *ytclient.Operation {
	op := &ytclient.Operation{ID: id, User: "alice", State: "running", Annotations: annotations, StartTime: start.Add(time.Duration(len(w.operations)) * time.Second)}
	w.operations[id] = op
	for _, task := range tasks {
		w.tasks[id] = append(w.tasks[id], ytclient.Task{Name: task, JobCount: 1})
	}
	return op
}

func (w *town) job(operation, id, task, address string, ports ...int) {
	w.jobs[operation] = append(w.jobs[operation], ytclient.Job{ID: id, Task: task, State: "running", Address: address})
	w.ports[id] = ports
	w.stir(operation)
}

// endJob ends a job of one's.
func (w *town) endJob(id string) {
	w.jobs["one"] = slices.DeleteFunc(w.jobs["one"], func(j ytclient.Job) bool { return j.ID == id })
	w.stir("one")
}

// stir is what the cluster does with brief_progress when a job changes.
func (w *town) stir(operation string) {
	if op := w.operations[operation]; op != nil {
		op.BriefProgress += "."
	}
}

// say writes an annotation as a running job does.
func (w *town) say(operation, key string, v any) {
	op := w.operations[operation]
	op.Annotations = maps.Clone(op.Annotations)
	op.Annotations[key] = v
}

// sayWebUI writes the URL of a driver's page.
func (w *town) sayWebUI(operation, url string) {
	w.say(operation, "description", map[string]any{"Web UI": url})
}

// plant makes entries of the discovery directory in //home/c; each has one id until it is planted again.
func (w *town) plant(entries map[string]string) {
	for entry, child := range entries {
		path := "//home/c/discovery/" + entry
		w.children[path] = []string{child}
		w.ids[path+"/"+child] = fmt.Sprintf("1-2-3-%x", len(w.ids)+1)
	}
}

func (w *town) call(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.called = append(w.called, name)
}

func (w *town) source() *source {
	return &source{
		listOperations: func() (ytclient.Listing, error) {
			w.call("list_operations")
			var l ytclient.Listing
			for _, id := range slices.Sorted(maps.Keys(w.operations)) {
				l.Operations = append(l.Operations, *w.operations[id])
			}
			return l, nil
		},
		getOperation: func(id string) (ytclient.OperationInfo, error) {
			w.call("get_operation " + id)
			if w.operations[id] == nil {
				return ytclient.OperationInfo{}, ytclient.ErrNoSuchOperation
			}
			return ytclient.OperationInfo{ID: id, State: "running", Tasks: w.tasks[id]}, nil
		},
		listJobs: func(id string) (ytclient.JobListing, error) {
			w.call("list_jobs " + id)
			return ytclient.JobListing{Jobs: w.jobs[id], Partial: w.partial}, w.listErr
		},
		jobPorts: func(refs []ytclient.JobRef) ([]ytclient.PortsAnswer, error) {
			answers := make([]ytclient.PortsAnswer, len(refs))
			for i, r := range refs {
				w.call("job_ports " + r.ID)
				answers[i].Ports = w.ports[r.ID]
				runs := func(j ytclient.Job) bool { return j.ID == r.ID && j.Address == r.Address }
				if !slices.ContainsFunc(slices.Concat(slices.Collect(maps.Values(w.jobs))...), runs) {
					answers[i].Err = ytclient.ErrNotFound
				}
			}
			return answers, nil
		},
		nodeJobs: func(address string) (jobs []ytclient.NodeJob, err error) {
			w.call("node_jobs " + address)
			for operation, js := range w.jobs {
				for _, j := range js {
					if j.Address == address {
						jobs = append(jobs, ytclient.NodeJob{ID: j.ID, OperationID: operation, Ports: w.ports[j.ID], Err: w.odd[j.ID]})
					}
				}
			}
			return jobs, w.nodeErr[address]
		},
		listChildren: func(paths []string) ([]ytclient.ChildrenAnswer, error) {
			answers := make([]ytclient.ChildrenAnswer, len(paths))
			for i, path := range paths {
				w.call("list " + path)
				names, ok := w.children[path]
				switch {
				case w.pathErr[path] != nil:
					answers[i].Err = w.pathErr[path]
				case !ok:
					answers[i].Err = ytclient.ErrNotFound
				}
				for _, name := range names {
					answers[i].Names = append(answers[i].Names, name)
					answers[i].IDs = append(answers[i].IDs, w.ids[path+"/"+name])
				}
			}
			return answers, nil
		},
	}
}

// LookupNetIP is the town's name service.
func (w *town) LookupNetIP(ctx context.Context, _, host string) ([]netip.Addr, error) {
	w.mu.Lock()
	w.asked = append(w.asked, host)
	texts, ok := w.names[host]
	w.mu.Unlock()
	switch {
	case !ok:
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	case len(texts) == 0: // a server that does not answer
		<-ctx.Done()
		return nil, ctx.Err()
	}
	var ips []netip.Addr
	for _, text := range texts {
		ips = append(ips, netip.MustParseAddr(text))
	}
	return ips, nil
}

// cycle makes one and returns what was called besides the listing.
func (w *town) cycle() []string {
	w.t.Helper()
	w.called, w.asked = nil, nil
	if err := w.d.cycle(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	slices.Sort(w.called)
	return slices.DeleteFunc(slices.Clone(w.called), func(c string) bool { return c == "list_operations" })
}

// endpoints of one service, in words; "none" when there is no such service.
func (w *town) endpoints(operation, task, name string) string {
	s := w.d.Snapshot().Lookup(LongID(operation, task, name))
	if s == nil {
		return "none"
	}
	var addrs []string
	for _, e := range s.Endpoints {
		addrs = append(addrs, e.JobID+"="+e.Addr)
	}
	return strings.Join(addrs, " ")
}

// want cycles and checks the endpoints of one's driver/ui, and that the problems are those that have the words, in order.
func (w *town) want(what, endpoints string, problems ...string) {
	w.t.Helper()
	w.cycle()
	w.check(what, endpoints, problems...)
}

func (w *town) check(what, endpoints string, problems ...string) {
	w.t.Helper()
	if got := w.endpoints("one", "driver", "ui"); got != endpoints {
		w.t.Errorf("%s: endpoints %q, want %q; problems %v", what, got, endpoints, w.d.Problems())
	}
	w.problems(what, problems...)
}

func (w *town) problems(what string, want ...string) {
	w.t.Helper()
	got := w.d.Problems()
	if len(got) != len(want) {
		w.t.Errorf("%s: problems %v, want %d", what, got, len(want))
		return
	}
	for i, p := range got {
		if !strings.Contains(p.String(), want[i]) {
			w.t.Errorf("%s: problem %q, want one with %q", what, p, want[i])
		}
	}
}

// played runs a test with fake time.
func played(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}
