package scheduler

import (
	"errors"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yterrors"
)

func TestBadSpecs(t *testing.T) {
	t.Parallel()
	with := func(key, value string) map[string]any {
		return decode(t, `{tasks={t={job_count=1;command=c}};`+key+`=`+value+`}`)
	}
	task := func(key, value string) map[string]any {
		return decode(t, `{tasks={t={job_count=1;command=c;`+key+`=`+value+`}}}`)
	}
	tests := []struct {
		name string
		spec map[string]any
		want string // in the message, beside the name of the field
	}{
		{"nil", nil, "tasks"},
		{"tasks: none", decode(t, `{tasks={}}`), "at least one"},
		{"tasks: a list", decode(t, `{tasks=[a]}`), "map"},
		{"tasks/x: a string", decode(t, `{tasks={x=y}}`), "map"},
		{"tasks: a name too long", decode(t, `{tasks={`+strings.Repeat("n", 256)+`={}}}`), "255"},
		{"tasks/x/job_count: missing", decode(t, `{tasks={x={command=c}}}`), "missing"},
		{"job_count: zero", task("job_count", "0"), "from 1"},
		{"job_count: below zero", task("job_count", "-1"), "-1"},
		{"job_count: too many", task("job_count", "1001"), "1000 processes"},
		{"job_count: far too many", task("job_count", "18446744073709551615u"), "18446744073709551615u"},
		{"job_count: a fraction", task("job_count", "1.5"), "1.5"},
		{"job_count: not a number", task("job_count", "%nan"), "integer"},
		{"job_count: a string", task("job_count", `"2"`), `"2"`},
		{"command: missing", decode(t, `{tasks={x={job_count=1}}}`), "missing"},
		{"command: a number", task("command", "1"), "string"},
		{"command: a zero byte", task("command", `"a\x00b"`), "zero byte"},
		{"command: too long", task("command", strings.Repeat("c", 1<<17)), "131071"},
		{"port_count: too many", task("port_count", "51"), "from 0 to 50"},
		{"port_count: below zero", task("port_count", "-1"), "from 0 to 50"},
		{"file_paths: a string", task("file_paths", `"//x"`), "list"},
		{"file_paths/0: a number", task("file_paths", `[1]`), "path"},
		{"file_paths/0: relative", task("file_paths", `[x]`), "//"},
		{"file_paths/0/@file_name: a path", task("file_paths", `[<file_name="../x">"//x"]`), "plain"},
		{"file_paths/0/@file_name: a path inside of the string", task("file_paths", `["<file_name=\"a/b\">//x"]`), "plain"},
		{"file_paths/0: bad attributes", task("file_paths", `["<file_name=//x"]`), "attributes"},
		{"environment: a list", task("environment", `[a]`), "map"},
		{"environment/a: a number", task("environment", `{a=1}`), "string"},
		{"environment: a bad name", task("environment", `{"a=b"=c}`), "variable"},
		{"environment/a: a zero byte", task("environment", `{a="\x00"}`), "zero byte"},
		{"max_stderr_size: below zero", task("max_stderr_size", "-1"), "from 0"},
		{"restart_completed_jobs: a number", task("restart_completed_jobs", "1"), "%true"},
		{"title: a map", with("title", "{}"), "string"},
		{"alias: without a star", with("alias", "a"), "*"},
		{"alias: only a star", with("alias", `"*"`), "*"},
		{"annotations: a list", with("annotations", "[a]"), "map"},
		{"max_failed_job_count: a string", with("max_failed_job_count", "a"), "integer"},
		{"fail_on_job_restart: a number", with("fail_on_job_restart", "1"), "%true"},
		{"acl: a map", with("acl", "{}"), "list"},
		{"acl/0: a string", with("acl", "[a]"), "list"},
		{"acl/0/action: unknown", with("acl", "[{action=maybe;subjects=[a];permissions=[read]}]"), "deny"},
		{"acl/0/subjects: a string", with("acl", "[{action=allow;subjects=a;permissions=[read]}]"), "list"},
		{"acl/0/permissions: of nodes", with("acl", "[{action=allow;subjects=[a];permissions=[write]}]"), "manage"},
		{"aco_name: given", with("aco_name", "a"), "acl"},
		{"owners: a string", with("owners", "a"), "list"},
		{"add_authenticated_user_to_acl: a string", with("add_authenticated_user_to_acl", "no"), "%true"},
		{"secure_vault: a bad name", with("secure_vault", `{"a=b"="the secret"}`), "variable"},
		{"secure_vault: a zero byte", with("secure_vault", `{a="the secret\x00"}`), "zero byte"},
		{"ytlocal/pretend: a number", with("ytlocal", "{pretend=1}"), "%true"},
	}
	s := newScheduler(t, func(c *Config) {
		c.Fetch = func(string) (File, error) { return File{}, errors.New("not asked") }
	})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := s.Start("alice", tt.spec)
			var yt *yterrors.Error
			if !errors.As(err, &yt) {
				t.Fatalf("got %v, want an error of the cluster", err)
			}
			field, _, _ := strings.Cut(tt.name, ":")
			if tt.spec != nil && !strings.Contains(strings.ToLower(yt.Message), field) || !strings.Contains(yt.Message, tt.want) {
				t.Errorf("message: got %q, want %q and %q in it", yt.Message, field, tt.want)
			}
			if len(yt.Message) > 2000 || strings.Contains(yt.Message, "the secret") {
				t.Errorf("message shows too much: %q", cut(yt.Message))
			}
		})
	}
	if ops := s.Operations(); len(ops) > 0 {
		t.Errorf("operations: got %d, want none", len(ops))
	}
}

// Attributes mean nothing, wherever they are, and unknown fields are accepted.
func TestSpecShapes(t *testing.T) {
	t.Parallel()
	p, err := parseSpec("alice", decode(t, `{
		pool=x; time_limit=5; unheard_of={};
		title=<a=b>name; alias=<a=b>"*al";
		annotations=<a=b>{k=<c=d>v};
		description={link="http://x"};
		acl=<a=b>[<a=b>{action=<a=b>allow;subjects=[<a=b>bob];permissions=[read;manage]}];
		max_failed_job_count=3u; fail_on_job_restart="true";
		tasks=<a=b>{
			b=<a=b>{job_count=<a=b>2.0;command=<a=b>c;port_count=1u;memory_limit=1;environment={x=y;a=<q=w>b}};
			a={job_count=3;command=c};
		}}`))
	if err != nil {
		t.Fatal(err)
	}
	if p.title != "name" || p.alias != "*al" || p.maxFailed != 3 || !p.failOnRestart || p.total != 5 || p.pretend {
		t.Errorf("plan: got %+v", p)
	}
	a, b := p.tasks[0], p.tasks[1]
	if a.name != "a" || b.name != "b" || b.jobCount != 2 || b.portCount != 1 || b.command != "c" || b.firstIndex != 3 {
		t.Errorf("tasks: got %+v %+v", a, b)
	}
	if got, want := b.environ, []string{"a=b", "x=y"}; !reflect.DeepEqual(got, want) {
		t.Errorf("environment: got %v, want %v", got, want)
	}
	if got, want := p.annotations["description"], (map[string]any{"link": "http://x"}); !reflect.DeepEqual(got, want) {
		t.Errorf("description: got %v, want %v", got, want)
	}
	if len(p.acl) != 1 || len(p.ownACE) != 1 {
		t.Errorf("ACL: got %v and %v", p.ownACE, p.acl)
	}
}

func TestACLOfASpec(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, spec string
		want       []any
	}{
		{"default", `{}`, []any{allow("alice")}},
		{"without the own entry", `{add_authenticated_user_to_acl=%false}`, nil},
		{"owners", `{owners=[bob;carol]}`, []any{allow("alice"), allow("bob", "carol")}},
		{"owners do not count beside an acl", `{owners=[bob];acl=[]}`, []any{allow("alice")}},
		{"acl", `{acl=[{action=allow;subjects=[bob];permissions=[read;manage]}]}`, []any{allow("alice"), allow("bob")}},
	}
	s := newScheduler(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			full := decode(t, tt.spec)
			full["tasks"] = map[string]any{"t": shell("")}
			full["ytlocal"] = map[string]any{"pretend": true}
			got := operation1(t, s, mustStart(t, s, full)).ACL
			if len(got) == 0 && len(tt.want) == 0 {
				return
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestBadConfigs(t *testing.T) {
	t.Parallel()
	private, open := t.TempDir(), t.TempDir()
	if err := errors.Join(os.Chmod(private, 0o700), os.Chmod(open, 0o755)); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		cfg  Config
		want string
	}{
		{"no directory", Config{Nodes: []string{"a:1"}}, "Dir"},
		{"open directory", Config{Dir: open, Nodes: []string{"a:1"}}, "0700"},
		{"no nodes", Config{Dir: private}, "Nodes"},
		{"node without port", Config{Dir: private, Nodes: []string{"a:1", "localhost"}}, `"localhost"`},
	}
	for _, tt := range tests {
		if _, err := New(tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q in it", tt.name, err, tt.want)
		}
	}
}

func decode(t testing.TB, text string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := yson.Unmarshal([]byte(text), &m); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return m
}

func killJob(t testing.TB, j Job) {
	t.Helper()
	if err := syscall.Kill(j.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
