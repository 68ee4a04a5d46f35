package discovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/tools/txtar"

	"taskproxy/ytclient"
)

// source is a cluster made of closures. Calls without one fail the test.
type source struct {
	listOperations func() (ytclient.Listing, error)
	getOperation   func(id string) (ytclient.OperationInfo, error)
	listJobs       func(operation string) (ytclient.JobListing, error)
	jobPorts       func(refs []ytclient.JobRef) ([]ytclient.PortsAnswer, error)
	nodeJobs       func(address string) ([]ytclient.NodeJob, error)
	listChildren   func(paths []string) ([]ytclient.ChildrenAnswer, error)
}

var _ Source = (*source)(nil)

func (s *source) ListOperations(context.Context) (ytclient.Listing, error) {
	listing, err := s.listOperations()
	for i := range listing.Operations {
		op := &listing.Operations[i]
		op.AnnotationsSum = ytclient.SumAnnotations(op.Annotations)
	}
	return listing, err
}

func (s *source) GetOperation(_ context.Context, id string) (ytclient.OperationInfo, error) {
	return s.getOperation(id)
}
func (s *source) ListTaskJobs(_ context.Context, id string, _ []string) (ytclient.JobListing, error) {
	return s.listJobs(id)
}
func (s *source) JobPorts(_ context.Context, refs []ytclient.JobRef) ([]ytclient.PortsAnswer, error) {
	return s.jobPorts(refs)
}
func (s *source) NodeJobs(_ context.Context, address string) ([]ytclient.NodeJob, error) {
	return s.nodeJobs(address)
}
func (s *source) ListChildren(_ context.Context, paths []string) ([]ytclient.ChildrenAnswer, error) {
	return s.listChildren(paths)
}

// world is a cluster at one moment, read from one part of a txtar file. Each part says everything:
//
//	after 70s                                   time passes before the cycle
//	operation ID [user=] [alias=] [state=] [progress=] [start=] [unlisted] [odd] [ANNOTATION]
//	                                            unlisted: only get_operation knows it; odd: its item cannot be read; the
//	                                            annotation is JSON and ends the line
//	task OPERATION NAME [jobs=1] [ports=1]
//	job OPERATION ID TASK ADDRESS [ports=1,2] [state=] [stale]
//	fault CALL [ID] ERROR                       CALL: list_operations, get_operation, list_jobs, partial_jobs, ports (of one
//	                                            job), job_ports (every call that asks for the job); ERROR: a cause, or panic
type world struct {
	after      time.Duration
	operations []ytclient.Operation
	infos      map[string]ytclient.OperationInfo
	odd        []ytclient.OddItem
	jobs       map[string][]ytclient.Job
	ports      map[string][]int
	faults     map[string]error
}

var errPanic = errors.New("panic")

func parseWorld(text string) (*world, error) {
	w := &world{infos: map[string]ytclient.OperationInfo{}, jobs: map[string][]ytclient.Job{}, ports: map[string][]int{}, faults: map[string]error{}}
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), "# ")
		if line == "" {
			continue
		}
		if err := w.parse(line); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
	}
	return w, nil
}

func (w *world) parse(line string) error {
	rest, annotation, _ := strings.Cut(line, " {")
	fields := strings.Fields(rest)
	options := map[string]string{}
	var words []string
	for _, f := range fields[1:] {
		if k, v, ok := strings.Cut(f, "="); ok {
			options[k] = v
		} else {
			words = append(words, f)
		}
	}
	number := func(key string, zero int) int {
		if options[key] == "" {
			return zero
		}
		n, err := strconv.Atoi(options[key])
		if err != nil {
			panic(err)
		}
		return n
	}
	switch fields[0] {
	case "after":
		var err error
		w.after, err = time.ParseDuration(words[0])
		return err
	case "operation":
		op := ytclient.Operation{ID: words[0], User: options["user"], State: options["state"], Alias: options["alias"], BriefProgress: options["progress"],
			StartTime: start.Add(time.Duration(number("start", 0)) * time.Second)}
		if op.State == "" {
			op.State = "running"
		}
		if annotation != "" {
			var v any
			if err := json.Unmarshal([]byte("{"+annotation), &v); err != nil {
				return err
			}
			op.Annotations = map[string]any{"task_proxy": v}
		}
		w.infos[op.ID] = ytclient.OperationInfo{ID: op.ID, State: op.State}
		switch {
		case slices.Contains(words, "odd"):
			w.odd = append(w.odd, ytclient.OddItem{OperationID: op.ID, Err: errors.New("odd")})
		case !slices.Contains(words, "unlisted"):
			w.operations = append(w.operations, op)
		}
	case "task":
		info := w.infos[words[0]]
		info.Tasks = append(info.Tasks, ytclient.Task{Name: words[1], JobCount: number("jobs", 1), PortCount: number("ports", 1)})
		w.infos[words[0]] = info
	case "job":
		j := ytclient.Job{ID: words[1], Task: words[2], Address: words[3], State: options["state"], Stale: slices.Contains(words, "stale")}
		if j.State == "" {
			j.State = "running"
		}
		w.jobs[words[0]] = append(w.jobs[words[0]], j)
		for p := range strings.SplitSeq(options["ports"], ",") {
			if n, err := strconv.Atoi(p); err == nil {
				w.ports[j.ID] = append(w.ports[j.ID], n)
			}
		}
	case "fault":
		err := errPanic
		for _, c := range causes {
			if c.reason == words[len(words)-1] {
				err = fmt.Errorf("request 7f3a: %w", c.err)
			}
		}
		w.faults[strings.Join(words[:len(words)-1], " ")] = err
	default:
		return errors.New("no such line")
	}
	return nil
}

// script answers from one world and notes the calls.
type script struct {
	*world
	mu    sync.Mutex
	calls []string
}

func (s *script) call(call string) error {
	s.mu.Lock()
	s.calls = append(s.calls, call)
	s.mu.Unlock()
	if errors.Is(s.faults[call], errPanic) {
		panic(call)
	}
	return s.faults[call]
}

func (s *script) source() *source {
	return &source{
		listOperations: func() (ytclient.Listing, error) {
			err := s.call("list_operations")
			return ytclient.Listing{Operations: s.operations, Odd: s.odd}, err
		},
		getOperation: func(id string) (ytclient.OperationInfo, error) {
			if err := s.call("get_operation " + id); err != nil {
				return ytclient.OperationInfo{}, err
			}
			info, ok := s.infos[id]
			if !ok {
				return info, ytclient.ErrNoSuchOperation
			}
			return info, nil
		},
		listJobs: func(id string) (ytclient.JobListing, error) {
			if err := s.call("list_jobs " + id); err != nil {
				return ytclient.JobListing{}, err
			}
			if _, ok := s.infos[id]; !ok {
				return ytclient.JobListing{}, ytclient.ErrNoSuchOperation
			}
			return ytclient.JobListing{Jobs: s.jobs[id], Partial: s.faults["partial_jobs "+id]}, nil
		},
		jobPorts: func(refs []ytclient.JobRef) ([]ytclient.PortsAnswer, error) {
			var ids []string
			answers := make([]ytclient.PortsAnswer, len(refs))
			var whole error
			for i, r := range refs {
				ids = append(ids, r.ID)
				answers[i] = ytclient.PortsAnswer{Ports: s.ports[r.ID], Err: s.faults["ports "+r.ID]}
				whole = errors.Join(whole, s.faults["job_ports "+r.ID])
			}
			slices.Sort(ids)
			return answers, errors.Join(s.call("job_ports "+strings.Join(ids, " ")), whole)
		},
	}
}

// TestCycles plays each file of testdata/cycles: a Discovery lives through its cycles, and each leaves what the file wants.
func TestCycles(t *testing.T) {
	files, err := filepath.Glob("testdata/cycles/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) { play(t, archive) })
			if *update && !t.Failed() {
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func play(t *testing.T, archive *txtar.Archive) {
	t.Helper()
	bases, err := NewBases("task-proxy.example.com")
	if err != nil {
		t.Fatal(err)
	}
	s := &script{}
	d, err := New(Config{Source: s.source(), Bases: bases})
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(archive.Files); i += 2 {
		cycle, want := archive.Files[i], &txtar.File{}
		if i+1 < len(archive.Files) {
			want = &archive.Files[i+1]
		}
		if !strings.HasPrefix(cycle.Name, "cycle ") || want.Name != strings.Replace(cycle.Name, "cycle", "want", 1) {
			t.Fatalf("part %q is followed by %q", cycle.Name, want.Name)
		}
		w, err := parseWorld(string(cycle.Data))
		if err != nil {
			t.Fatalf("%s: %v", cycle.Name, err)
		}
		time.Sleep(w.after)
		s.world, s.calls = w, nil
		err = d.cycle(t.Context())

		var got strings.Builder
		slices.Sort(s.calls)
		fmt.Fprintf(&got, "calls: %s\n", strings.Join(s.calls, ", "))
		if err != nil {
			fmt.Fprintf(&got, "failed: %s\n", cause(err))
		}
		got.WriteString(d.Snapshot().String())
		for _, p := range d.Problems() {
			fmt.Fprintf(&got, "! %s\n", p)
		}
		if *update {
			want.Data = []byte(got.String())
		} else if got.String() != string(want.Data) {
			t.Errorf("%s: got\n%swant\n%s", cycle.Name, got.String(), want.Data)
		}
	}
}
