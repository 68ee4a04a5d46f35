package ytclient

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func opItem(id, start string) string {
	return fmt.Sprintf(`{id="%s";start_time="%s";state=running;authenticated_user=alice;brief_spec={};runtime_parameters={annotations={a=1}};brief_progress={jobs={running=1}}}`, id, start)
}

func listing(incomplete bool, items ...string) string {
	return fmt.Sprintf(`{operations=[%s];incomplete=%%%v}`, strings.Join(items, ";"), incomplete)
}

const t0 = "2024-01-02T03:04:05.678901Z"

func TestListOperationsAnswers(t *testing.T) {
	t.Parallel()
	good := opItem("1-2-3e803e8-4", t0)
	tests := []struct {
		name string
		body string
		ids  []string
		odd  []string
		err  error
	}{
		{"one", listing(false, good), []string{"1-2-3e803e8-4"}, nil, nil},
		{"none", listing(false), nil, nil, nil},
		{"empty map", `{}`, nil, nil, ErrUnavailable},
		{"entity for operations", `{operations=#;incomplete=%false}`, nil, nil, ErrUnavailable},
		{"incomplete missing", `{operations=[]}`, nil, nil, ErrUnavailable},
		{"nothing", ``, nil, nil, ErrUnavailable},
		{"cut", `{operations=[{id="1-2`, nil, nil, ErrUnavailable},
		{"html", `<html></html>`, nil, nil, ErrUnavailable},
		{"json", `{"operations":[],"incomplete":false}`, nil, nil, ErrUnavailable},
		{"duplicate", listing(false, good, good), []string{"1-2-3e803e8-4"}, nil, nil},
		{"id re-printed", listing(false, opItem("0A-02-3E803E8-4", t0)), []string{"a-2-3e803e8-4"}, nil, nil},
		{"annotations a list", listing(false, good, `{id="5-2-3e803e8-4";start_time="`+t0+`";state=running;authenticated_user=eve;runtime_parameters={annotations=[a;b]}}`),
			[]string{"1-2-3e803e8-4"}, []string{"5-2-3e803e8-4"}, nil},
		{"annotations a string", listing(false, `{id="5-2-3e803e8-4";start_time="`+t0+`";state=running;authenticated_user=eve;runtime_parameters={annotations="x"}}`, good),
			[]string{"1-2-3e803e8-4"}, []string{"5-2-3e803e8-4"}, nil},
		{"brief_spec a list", listing(false, `{id="5-2-3e803e8-4";start_time="`+t0+`";state=running;authenticated_user=eve;brief_spec=[a]}`, good),
			[]string{"1-2-3e803e8-4"}, []string{"5-2-3e803e8-4"}, nil},
		{"bad time", listing(false, good, opItem("5-2-3e803e8-4", "yesterday")), []string{"1-2-3e803e8-4"}, []string{"5-2-3e803e8-4"}, nil},
		{"item no map", listing(false, good, `7`, `#`), []string{"1-2-3e803e8-4"}, []string{"", ""}, nil},
		{"id no id", listing(false, opItem("nonsense", t0), good), []string{"1-2-3e803e8-4"}, []string{""}, nil},
		{"annotations with attributes", listing(false, `{id="5-2-3e803e8-4";start_time="`+t0+`";state=running;authenticated_user=eve;runtime_parameters={annotations=<x=1>{a=1}}}`),
			[]string{"5-2-3e803e8-4"}, nil, nil},
		{"annotations entity", listing(false, `{id="5-2-3e803e8-4";start_time="`+t0+`";state=running;authenticated_user=eve;runtime_parameters={annotations=#}}`),
			[]string{"5-2-3e803e8-4"}, nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := newClient(t, answer(200, tt.body)).ListOperations(t.Context())
			if !errors.Is(err, tt.err) {
				t.Fatalf("err = %v, want %v", err, tt.err)
			}
			var ids, odd []string
			for _, o := range got.Operations {
				ids = append(ids, o.ID)
			}
			for _, o := range got.Odd {
				odd = append(odd, o.OperationID)
			}
			if !slices.Equal(ids, tt.ids) || !slices.Equal(odd, tt.odd) {
				t.Errorf("operations %q, odd %q; want %q, %q", ids, odd, tt.ids, tt.odd)
			}
		})
	}
}

func TestListOperationsFields(t *testing.T) {
	t.Parallel()
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.Header.Get("Authorization") != "OAuth "+robotToken {
			t.Errorf("%s with %q", r.Method, r.Header.Get("Authorization"))
		}
		io.WriteString(w, `{incomplete=%false;operations=[{id="1-2-3e803e8-4";start_time="`+t0+`";state=running;authenticated_user=alice;
			brief_spec={alias="*nb";title=x};runtime_parameters={annotations={task_proxy={enabled=%true}};acl=[]};brief_progress={jobs={running=2;aborted=1}}}]}`)
	})
	got, err := c.ListOperations(t.Context())
	if err != nil || len(got.Operations) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	o := got.Operations[0]
	if o.User != "alice" || o.State != "running" || o.Alias != "*nb" || !o.StartTime.Equal(time.Date(2024, 1, 2, 3, 4, 5, 678901000, time.UTC)) {
		t.Errorf("operation = %+v", o)
	}
	if tp, _ := o.Annotations["task_proxy"].(map[string]any); tp["enabled"] != true {
		t.Errorf("annotations = %v", o.Annotations)
	}
	if o.BriefProgress != `{jobs={running=2;aborted=1}}` {
		t.Errorf("brief_progress = %q", o.BriefProgress)
	}
}

// The cluster's cursor leaves out its own instant; operations that share the instant at a page's edge must not be lost.
func TestListOperationsPages(t *testing.T) {
	t.Parallel()
	a := opItem("a-0-3e803e8-0", "2024-01-02T03:04:05.000003Z")
	b := opItem("b-0-3e803e8-0", "2024-01-02T03:04:05.000002Z")
	c2 := opItem("c-0-3e803e8-0", "2024-01-02T03:04:05.000002Z")
	d := opItem("d-0-3e803e8-0", "2024-01-02T03:04:05.000001Z")
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		p := params(t, r)
		switch cursor := p["cursor_time"]; cursor {
		case nil:
			io.WriteString(w, listing(true, a, b))
		case "2024-01-02T03:04:05.000003Z": // one microsecond after b and c
			io.WriteString(w, listing(false, b, c2, d))
		default:
			t.Errorf("cursor_time = %v", cursor)
		}
	})
	got, err := c.ListOperations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, o := range got.Operations {
		ids = append(ids, o.ID[:1])
	}
	if strings.Join(ids, "") != "abcd" {
		t.Errorf("operations = %v, want a b c d", ids)
	}
}

func TestListOperationsFailsAsAWhole(t *testing.T) {
	t.Parallel()
	first := listing(true, opItem("a-0-3e803e8-0", t0))
	tests := []struct {
		name   string
		second http.HandlerFunc
	}{
		{"second page fails", answer(503, "")},
		{"cursor does not move", answer(200, first)},
		{"empty page, yet more", answer(200, listing(true))},
		{"no start time to go on from", answer(200, listing(true, `{id="b-0-3e803e8-0"}`))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				if params(t, r)["cursor_time"] == nil {
					io.WriteString(w, first)
					return
				}
				tt.second(w, r)
			})
			defer func() {
				if n := calls.Load(); n != 2 {
					t.Errorf("%d calls, want 2: nothing is gained by going on", n)
				}
			}()
			got, err := c.ListOperations(t.Context())
			if !errors.Is(err, ErrUnavailable) || len(got.Operations) != 0 {
				t.Errorf("= %v, %v; want nothing and ErrUnavailable", got, err)
			}
		})
	}
}

func TestListJobsAnswers(t *testing.T) {
	t.Parallel()
	good := `{id="a-b-3fe0384-d";state=running;address="node.local:9012";task_name=t;type=vanilla}`
	tests := []struct {
		name    string
		body    string
		jobs    []Job
		partial bool
		err     error
	}{
		{"one", `{jobs=[` + good + `];errors=[]}`, []Job{{ID: "a-b-3fe0384-d", Task: "t", State: "running", Address: "node.local:9012"}}, false, nil},
		{"stale", `{jobs=[{id="a-b-3fe0384-d";state=running;address="n:1";task_name=t;is_stale=%true}]}`, []Job{{ID: "a-b-3fe0384-d", Task: "t", State: "running", Address: "n:1", Stale: true}}, false, nil},
		{"archive down", `{jobs=[` + good + `];errors=[{code=1910;message=x}]}`, []Job{{ID: "a-b-3fe0384-d", Task: "t", State: "running", Address: "node.local:9012"}}, true, nil},
		{"odd errors field", `{jobs=[];errors=yes}`, nil, true, nil},
		{"odd job", `{jobs=[7;` + good + `]}`, []Job{{ID: "a-b-3fe0384-d", Task: "t", State: "running", Address: "node.local:9012"}}, true, nil},
		{"no jobs field", `{}`, nil, false, ErrUnavailable},
		{"entity", `{jobs=#}`, nil, false, ErrUnavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := newClient(t, answer(200, tt.body)).ListJobs(t.Context(), "1-2-3e803e8-4")
			if !errors.Is(err, tt.err) || !slices.Equal(got.Jobs, tt.jobs) || (got.Partial != nil) != tt.partial {
				t.Errorf("= %+v, %v; want %+v, partial %v, %v", got, err, tt.jobs, tt.partial, tt.err)
			}
		})
	}
}

func TestListJobsPages(t *testing.T) {
	t.Parallel()
	const total = 2*pageSize + 5
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		p := params(t, r)
		offset, limit := int(p["offset"].(int64)), int(p["limit"].(int64))
		if p["sort_field"] != "id" {
			t.Errorf("sort_field = %v: pages without an order overlap", p["sort_field"])
		}
		io.WriteString(w, "{jobs=[")
		for i := offset; i < min(offset+limit, total); i++ {
			fmt.Fprintf(w, `{id="%x-b-3fe0384-d";state=running;address="n:1";task_name=t};`, i+1)
		}
		io.WriteString(w, "]}")
	})
	got, err := c.ListJobs(t.Context(), "1-2-3e803e8-4")
	if err != nil || len(got.Jobs) != total {
		t.Errorf("%d jobs, %v; want %d", len(got.Jobs), err, total)
	}
}

func TestJobPortsAnswers(t *testing.T) {
	t.Parallel()
	refs := []JobRef{{"[2001:db8::1]:9012", "a-b-3fe0384-1"}, {"n:1", "a-b-3fe0384-2"}}
	tests := []struct {
		name  string
		body  string
		ports [][]int
		errs  []error
		err   error
	}{
		{"both", `{results=[{output={value=[20001;20002]}};{output={value=[20003u]}}]}`, [][]int{{20001, 20002}, {20003}}, []error{nil, nil}, nil},
		{"one gone", `{results=[{error={code=500;message=x;attributes={};inner_errors=[]}};{output={value=[]}}]}`, [][]int{nil, {}}, []error{ErrNotFound, nil}, nil},
		{"node offline", `{results=[{error={code=100;message=x;attributes={};inner_errors=[]}};{output={value=#}}]}`, [][]int{nil, {}}, []error{ErrUnavailable, nil}, nil},
		{"no ports", `{results=[{output={value="x"}};{output={value=[0]}}]}`, [][]int{nil, nil}, []error{ErrUnavailable, ErrUnavailable}, nil},
		{"port too high", `{results=[{output={value=[1;70000]}};{output={value=[a]}}]}`, [][]int{nil, nil}, []error{ErrUnavailable, ErrUnavailable}, nil},
		{"too few results", `{results=[{output={value=[20001]}}]}`, nil, nil, ErrUnavailable},
		{"empty map", `{}`, nil, nil, ErrUnavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if want := `//sys/exec_nodes/\\[2001:db8::1]:9012/orchid/exec_node/job_controller/active_jobs/a-b-3fe0384-1/job_ports`; !strings.Contains(string(body), want) {
					t.Errorf("the path is not escaped: %s", body)
				}
				io.WriteString(w, tt.body)
			})
			got, err := c.JobPorts(t.Context(), refs)
			if !errors.Is(err, tt.err) || len(got) != len(tt.ports) {
				t.Fatalf("= %v, %v; want %v, %v", got, err, tt.ports, tt.err)
			}
			for i := range got {
				if !slices.Equal(got[i].Ports, tt.ports[i]) || !errors.Is(got[i].Err, tt.errs[i]) {
					t.Errorf("answer %d = %v, %v; want %v, %v", i, got[i].Ports, got[i].Err, tt.ports[i], tt.errs[i])
				}
			}
		})
	}
}

func TestGetOperation(t *testing.T) {
	t.Parallel()
	c := newClient(t, answer(200, `{id="1-2-3e803e8-4";state=running;spec={tasks={b={job_count=2;port_count=1u};a={job_count=1.0;command=x}}}}`))
	got, err := c.GetOperation(t.Context(), "1-2-3e803e8-4")
	if err != nil || got.State != "running" || got.Final() || !slices.Equal(got.Tasks, []Task{{"a", 1, 0}, {"b", 2, 1}}) {
		t.Errorf("= %+v, %v", got, err)
	}
	for body, want := range map[string]error{
		`{}`:                     ErrUnavailable,
		`{state=running;spec=5}`: ErrUnavailable,
		`{state=running;spec={tasks={a={port_count="x"}}}}`: ErrUnavailable,
		`{state=completed}`: nil,
	} {
		if _, err := newClient(t, answer(200, body)).GetOperation(t.Context(), "1-2-3e803e8-4"); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", body, err, want)
		}
	}
}
