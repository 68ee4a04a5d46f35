package ytclient

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestListChildrenAnswers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		body  string
		names [][]string
		ids   [][]string
		errs  []error
		err   error
	}{
		{"both", `{results=[{output={value=[<id="1-2-3-4">"node:1"]}};{output={value=[]}}]}`, [][]string{{"node:1"}, nil}, [][]string{{"1-2-3-4"}, nil}, []error{nil, nil}, nil},
		{"several", `{results=[{output={value=[b;<id="1-2-3-4">a]}};{output={value=<incomplete=%true>[x]}}]}`, [][]string{{"b", "a"}, {"x"}}, [][]string{{"", "1-2-3-4"}, {""}}, []error{nil, nil}, nil},
		{"odd id", `{results=[{output={value=[<id=5>a]}};{output={value=[<id=#>a]}}]}`, [][]string{{"a"}, {"a"}}, [][]string{{""}, {""}}, []error{nil, nil}, nil},
		{"one is not there", `{results=[{error={code=500;message=x;attributes={};inner_errors=[]}};{output={value=[a]}}]}`, [][]string{nil, {"a"}}, [][]string{nil, {""}}, []error{ErrNotFound, nil}, nil},
		{"one is denied", `{results=[{output={value=[a]}};{error={code=901;message=x;attributes={};inner_errors=[]}}]}`, [][]string{{"a"}, nil}, [][]string{{""}, nil}, []error{nil, ErrDenied}, nil},
		{"no list", `{results=[{output={value={a=b}}};{output={value=#}}]}`, [][]string{nil, nil}, [][]string{nil, nil}, []error{ErrUnavailable, ErrUnavailable}, nil},
		{"no names", `{results=[{output={value=[a;7]}};{output={value=[[a]]}}]}`, [][]string{nil, nil}, [][]string{nil, nil}, []error{ErrUnavailable, ErrUnavailable}, nil},
		{"too few results", `{results=[{output={value=[a]}}]}`, nil, nil, nil, ErrUnavailable},
		{"empty map", `{}`, nil, nil, nil, ErrUnavailable},
		{"nothing", ``, nil, nil, nil, ErrUnavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				for _, want := range []string{"//home/x/discovery/webui", "//home/y", "max_size"} {
					if !strings.Contains(string(body), want) {
						t.Errorf("the batch lacks %s: %s", want, body)
					}
				}
				io.WriteString(w, tt.body)
			})
			got, err := c.ListChildren(t.Context(), []string{"//home/x/discovery/webui", "//home/y"})
			if !errors.Is(err, tt.err) || len(got) != len(tt.names) {
				t.Fatalf("= %v, %v; want %v, %v", got, err, tt.names, tt.err)
			}
			for i, a := range got {
				if !slices.Equal(a.Names, tt.names[i]) || !slices.Equal(a.IDs, tt.ids[i]) || !errors.Is(a.Err, tt.errs[i]) {
					t.Errorf("answer %d = %+v; want %v, %v, %v", i, a, tt.names[i], tt.ids[i], tt.errs[i])
				}
			}
		})
	}
	if got, err := newClient(t, answer(500, "")).ListChildren(t.Context(), nil); got != nil || err != nil {
		t.Errorf("no paths = %v, %v", got, err)
	}
}

// What a directory holds was read with the robot's rights, so no error quotes it.
func TestListChildrenQuotesNothing(t *testing.T) {
	t.Parallel()
	for _, value := range []string{`[s3cret;7]`, `{s3cret=s3cret}`, `s3cret`, `[[s3cret]]`} {
		got, err := newClient(t, answer(200, `{results=[{output={value=`+value+`}}]}`)).ListChildren(t.Context(), []string{"//home/x"})
		if err != nil || got[0].Err == nil || strings.Contains(got[0].Err.Error(), "s3cret") {
			t.Errorf("%s: %v, %v", value, got, err)
		}
	}
}

func TestNodeJobsAnswers(t *testing.T) {
	t.Parallel()
	const a, b = "a-b-3fe0384-1", "a-b-3fe0384-2"
	entry := func(id, ports string) string {
		return `"` + id + `"={operation_id="1-2-3e803e8-4";job_state=running;job_ports=` + ports + `;statistics={x=[1;2]}}`
	}
	good := NodeJob{ID: a, OperationID: "1-2-3e803e8-4", Ports: []int{20001, 20002}}
	tests := []struct {
		name string
		body string
		want []NodeJob // Err is compared by whether there is one
		err  error
	}{
		{"two", `{value={` + entry(b, `[]`) + `;` + entry(a, `[20001;20002u]`) + `}}`, []NodeJob{good, {ID: b, OperationID: "1-2-3e803e8-4", Ports: []int{}}}, nil},
		{"none", `{value={}}`, nil, nil},
		{"with attributes", `{value=<x=1>{` + entry(a, `<y=1>[20001;20002]`) + `}}`, []NodeJob{good}, nil},
		{"ids re-printed", `{value={"0A-0B-3FE0384-1"={operation_id="01-02-3E803E8-4";job_ports=[20001;20002]}}}`, []NodeJob{good}, nil},
		{"without ports", `{value={"` + a + `"={operation_id="1-2-3e803e8-4"}}}`, []NodeJob{{ID: a, OperationID: "1-2-3e803e8-4"}}, nil},
		{"ports not prepared", `{value={` + entry(a, `#`) + `}}`, []NodeJob{{ID: a, OperationID: "1-2-3e803e8-4", Ports: []int{}}}, nil},
		{"odd ports", `{value={` + entry(a, `[20001;x]`) + `;` + entry(b, `"20001"`) + `}}`,
			[]NodeJob{{ID: a, OperationID: "1-2-3e803e8-4", Err: errMissing}, {ID: b, OperationID: "1-2-3e803e8-4", Err: errMissing}}, nil},
		{"odd operation", `{value={"` + a + `"={operation_id=7;job_ports=[20001;20002]};"` + b + `"={job_ports=[1]}}}`,
			[]NodeJob{{ID: a, Ports: []int{20001, 20002}, Err: errMissing}, {ID: b, Ports: []int{1}, Err: errMissing}}, nil},
		{"odd entry harms no other", `{value={x=7;` + entry(a, `[20001;20002]`) + `;"` + b + `"=[]}}`, []NodeJob{{Err: errMissing}, good, {ID: b, Err: errMissing}}, nil},
		{"no map", `{value=[]}`, nil, ErrUnavailable},
		{"entity", `{value=#}`, nil, ErrUnavailable},
		{"no value", `{}`, nil, ErrUnavailable},
		{"cut", `{value={"a`, nil, ErrUnavailable},
		{"html", `<html></html>`, nil, ErrUnavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
				if got, want := params(t, r)["path"], `//sys/exec_nodes/\[2001:db8::1]:9012/orchid/exec_node/job_controller/active_jobs`; got != want {
					t.Errorf("path = %s, want %s", got, want)
				}
				io.WriteString(w, tt.body)
			})
			got, err := c.NodeJobs(t.Context(), "[2001:db8::1]:9012")
			if !errors.Is(err, tt.err) || len(got) != len(tt.want) {
				t.Fatalf("= %+v, %v; want %+v, %v", got, err, tt.want, tt.err)
			}
			for i, j := range got {
				if w := tt.want[i]; j.ID != w.ID || j.OperationID != w.OperationID || !slices.Equal(j.Ports, w.Ports) || (j.Err != nil) != (w.Err != nil) {
					t.Errorf("job %d = %+v, want %+v", i, j, w)
				}
			}
		})
	}
	for _, code := range []struct {
		status, code int
		err          error
	}{{400, 500, ErrNotFound}, {400, 901, ErrDenied}, {503, 100, ErrUnavailable}, {503, 108, ErrOverloaded}} {
		if got, err := newClient(t, ytError(code.status, code.code)).NodeJobs(t.Context(), "n:1"); !errors.Is(err, code.err) || got != nil {
			t.Errorf("code %d = %v, %v; want %v", code.code, got, err, code.err)
		}
	}
}
