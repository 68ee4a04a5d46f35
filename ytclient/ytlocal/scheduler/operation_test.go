package scheduler

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yterrors"
)

func TestOperationCompletes(t *testing.T) {
	t.Parallel()
	s := newScheduler(t)
	id := mustStart(t, s, map[string]any{
		"title": "two tasks", "alias": "*done", "description": "of two kinds",
		"annotations": map[string]any{"a": int64(1)},
		"tasks": map[string]any{
			"one": shell("echo out; echo err >&2"),
			"two": shell("true", "job_count", int64(3)),
		},
	})
	op := waitState(t, s, id, completed)
	if op.Type != "vanilla" || op.User != "alice" || op.Title != "two tasks" || op.Alias != "*done" || op.Error != "" {
		t.Errorf("operation: got %+v", op)
	}
	if op.FinishTime.Before(op.StartTime) {
		t.Errorf("times: got %v to %v", op.StartTime, op.FinishTime)
	}
	if got, want := op.Annotations["description"], "of two kinds"; got != want {
		t.Errorf("annotation description: got %v, want %v", got, want)
	}
	for key, want := range map[string]int64{"total": 4, "completed": 4, "running": 0, "failed": 0, "aborted": 0, "pending": 0} {
		if got := op.Progress[key]; got != want {
			t.Errorf("progress %s: got %v, want %d", key, got, want)
		}
	}
	for _, j := range jobsIn(t, s, id, completed) {
		if j.Task == "one" {
			if got, want := strings.Join(waitStderr(t, s, j, 1), "|"), "err"; got != want {
				t.Errorf("stderr: got %q, want %q", got, want)
			}
			if j.StderrSize != 4 {
				t.Errorf("stderr size: got %d, want 4", j.StderrSize)
			}
		}
		box := filepath.Join(s.cfg.Dir, j.ID, sandboxDir)
		if _, err := os.Stat(box); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("sandbox of an ended job: got %v, want none", err)
		}
	}
	// The alias is free again, and no longer finds it.
	_, err := s.Operation("*done")
	wantCode(t, err, yterrors.CodeAPINoSuchOperation)
	wantCode(t, s.Abort(id, ""), yterrors.CodeNoSuchOperation)
}

func TestIDs(t *testing.T) {
	t.Parallel()
	s := newScheduler(t)
	id := mustStart(t, s, spec(shell("sleep 1000")))
	j := waitRunning(t, s, id, 1)[0]
	if want := regexp.MustCompile(`^[1-9a-f][0-9a-f]{0,7}-[0-9a-f]+-3fe03e8-[0-9a-f]+$`); !want.MatchString(id) {
		t.Errorf("operation id: got %s", id)
	}
	if want := regexp.MustCompile(`^[0-9a-f]+-[0-9a-f]+-3fe0384-[0-9a-f]+$`); !want.MatchString(j.ID) {
		t.Errorf("job id: got %s", j.ID)
	}
}

func TestFailedJobIsReplaced(t *testing.T) {
	t.Parallel()
	s := newScheduler(t)
	id := mustStart(t, s, spec(listener(2)))
	before := waitRunning(t, s, id, 2)
	moved := operation1(t, s, id).Progress["build_time"].(string)
	if before[0].Address == before[1].Address {
		t.Errorf("both jobs are on %s", before[0].Address)
	}
	for _, j := range before {
		waitFor(t, "the job listens", func() bool { return connects(j.Ports[0]) })
	}
	if err := syscall.Kill(before[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "one job failed", func() bool { return len(jobsIn(t, s, id, failed)) == 1 })
	after := waitRunning(t, s, id, 2)
	old, err := s.Job(id, before[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	if old.State != failed || !strings.Contains(old.Error, "signal 9") || old.FinishTime.IsZero() {
		t.Errorf("killed job: got %+v", old)
	}
	for _, j := range after {
		if j.ID == before[0].ID {
			t.Error("the new job has the id of the old one")
		}
		if j.ID == before[1].ID {
			continue
		}
		if j.Cookie != before[0].Cookie {
			t.Errorf("cookie: got %d, want %d", j.Cookie, before[0].Cookie)
		}
		if slices.Equal(j.Ports, before[0].Ports) || slices.Equal(j.Ports, before[1].Ports) {
			t.Errorf("ports: got %v again", j.Ports)
		}
	}
	op := operation1(t, s, id)
	if got := op.Progress["build_time"].(string); got <= moved {
		t.Errorf("build_time: got %s, not after %s", got, moved)
	}
	if op.State != running || op.Progress["failed"] != int64(1) || op.Progress["running"] != int64(2) {
		t.Errorf("operation: got %s %v", op.State, op.Progress)
	}
	var onNodes []Job
	for _, node := range s.cfg.Nodes {
		onNodes = append(onNodes, s.NodeJobs(node)...)
	}
	if len(onNodes) != 2 {
		t.Errorf("jobs on nodes: got %d, want 2", len(onNodes))
	}
}

func TestCrashLoopFailsTheOperation(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		spec     map[string]any
		fetch    func(string) (File, error)
		wantJobs int
		want     []string
	}{
		{"exit status", spec(shell("echo the reason >&2; exit 7"), "max_failed_job_count", int64(3)), nil, 3,
			[]string{"max_failed_job_count is 3", "status 7", "the reason"}},
		{"killed by itself", spec(shell("kill -SEGV $$"), "max_failed_job_count", uint64(2)), nil, 2,
			[]string{"signal 11"}},
		{"restart forbidden", spec(shell("exit 1"), "fail_on_job_restart", true), nil, 1,
			[]string{"fail_on_job_restart", "status 1"}},
		{"no such file", spec(shell("true", "file_paths", []any{"//x"}), "max_failed_job_count", float64(2)),
			func(string) (File, error) { return File{}, errors.New("nothing there") }, 2,
			[]string{"cannot start", `"//x"`, "nothing there"}},
		{"file name that leaves the sandbox", spec(shell("true", "file_paths", []any{"//x"}), "max_failed_job_count", int64(1)),
			func(string) (File, error) { return File{Name: "../x", Content: content("")}, nil }, 1,
			[]string{`"../x"`, "plain file name"}},
		{"two files of one name", spec(shell("true", "file_paths", []any{"//x", "//y"}), "max_failed_job_count", int64(1)),
			func(string) (File, error) { return File{Name: "x", Content: content("")}, nil }, 1,
			[]string{"another file"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newScheduler(t, func(c *Config) { c.Fetch = tt.fetch })
			id := mustStart(t, s, tt.spec)
			op := waitState(t, s, id, failed)
			for _, want := range tt.want {
				if !strings.Contains(op.Error, want) {
					t.Errorf("error: got %q, want %q in it", op.Error, want)
				}
			}
			if got := len(jobsIn(t, s, id, failed)); got != tt.wantJobs {
				t.Errorf("failed jobs: got %d, want %d", got, tt.wantJobs)
			}
		})
	}
}

// One task that fails ends the jobs of the others.
func TestFailureEndsAllTasks(t *testing.T) {
	t.Parallel()
	s := newScheduler(t)
	id := mustStart(t, s, map[string]any{
		"max_failed_job_count": int64(1),
		"tasks":                map[string]any{"good": shell("sleep 1000"), "bad": shell("exit 1")},
	})
	waitState(t, s, id, failed)
	for _, j := range jobsIn(t, s, id, aborted) {
		if j.Task != "good" {
			t.Errorf("aborted: got a job of %s", j.Task)
		}
	}
	if left := jobsIn(t, s, id, running); len(left) > 0 {
		t.Errorf("%d jobs run", len(left))
	}
}

func TestCompletedJobsAreRestartedOnRequest(t *testing.T) {
	t.Parallel()
	s := newScheduler(t)
	id := mustStart(t, s, spec(shell("true", "restart_completed_jobs", true)))
	waitFor(t, "three jobs completed", func() bool { return len(jobsIn(t, s, id, completed)) >= 3 })
	if op := operation1(t, s, id); op.State != running {
		t.Errorf("state: got %s, want running", op.State)
	}
	if err := s.Complete(id); err != nil {
		t.Fatal(err)
	}
	if op := operation1(t, s, id); op.State != completed || op.Error != "" {
		t.Errorf("operation: got %s %q", op.State, op.Error)
	}
}

func TestSandboxAndEnvironment(t *testing.T) {
	files := map[string]File{
		"//plain":  {Name: "plain", Content: content("hello")},
		"//script": {Name: "script", Executable: true, Content: content("#!/bin/sh\necho ran $1\n")},
		"//other":  {Name: "other", Content: content("#!/bin/sh\necho renamed\n")},
		"//inside": {Name: "inside", Executable: true, Content: content("x")},
	}
	t.Setenv("SECRET_OF_THE_PARENT", "x")
	s := newScheduler(t, func(c *Config) {
		c.Fetch = func(path string) (File, error) {
			f, ok := files[path]
			if !ok {
				return File{}, errors.New("no such file")
			}
			return f, nil
		}
	})
	command := `{ cat plain; echo; ./script well; ./renamed; [ -x plain ] || echo not executable; [ -x "in side" ] || echo nor this
stat -c %a . 2>/dev/null || stat -f %Lp .
[ "$HOME" = "$PWD" ] && [ -d "$TMPDIR" ] && echo at home
echo "$YT_OPERATION_ID $YT_JOB_ID $YT_JOB_COOKIE $YT_JOB_INDEX $YT_TASK_NAME $YT_TASK_JOB_INDEX $YT_NODE_ADDRESS"
echo "$YT_PORT_0 $YT_PORT_1 $YT_PORT_2."
echo "$MINE $YT_SECURE_VAULT_key $SECRET_OF_THE_PARENT."
} >&2; sleep 1000`
	renamed := &yson.ValueWithAttrs{Value: "//other", Attrs: map[string]any{"file_name": "renamed", "executable": true}}
	id := mustStart(t, s, map[string]any{
		"secure_vault": map[string]any{"key": "hidden"},
		"tasks": map[string]any{
			"a": shell("sleep 1000"),
			"b": shell(command, "port_count", int64(2), "environment", map[string]any{"MINE": "my own", "YT_PORT_0": "1"},
				"file_paths", []any{"//plain", "//script", renamed, `<file_name="in side";executable=%false>//inside`}),
		},
	})
	var j Job
	for _, running := range waitRunning(t, s, id, 2) {
		if running.Task == "b" {
			j = running
		}
	}
	got := waitStderr(t, s, j, 10)
	want := []string{
		"hello", "ran well", "renamed", "not executable", "nor this", "700", "at home",
		strings.Join([]string{id, j.ID, "0", "1", "b", "0", j.Address}, " "),
		strings.Join(portTexts(j.Ports), " ") + " .",
		"my own hidden .",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the job saw:\n got %q\nwant %q", got, want)
	}
	if _, shown := operation1(t, s, id).Spec["secure_vault"]; shown {
		t.Error("the spec shows the secure vault")
	}
}

func TestStderrIsBounded(t *testing.T) {
	t.Parallel()
	s := newScheduler(t)
	id := mustStart(t, s, spec(shell(`printf %s begin >&2; head -c 5000 /dev/zero | tr '\0' x >&2; printf %s end >&2`,
		"max_stderr_size", int64(1000))))
	waitState(t, s, id, completed)
	j := jobsIn(t, s, id, completed)[0]
	data, err := s.Stderr(id, j.ID)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) != 1000 || j.StderrSize != 1000 {
		t.Errorf("size: got %d, said %d, want 1000", len(data), j.StderrSize)
	}
	if text := string(data); !strings.HasPrefix(text, "begin") || !strings.HasSuffix(text, "end") || !strings.Contains(text, "skipped") {
		t.Errorf("stderr: got %q", text)
	}
}

func TestPretendedJobs(t *testing.T) {
	t.Parallel()
	s := newScheduler(t)
	const n = 10_000
	id := mustStart(t, s, spec(map[string]any{"job_count": int64(n), "port_count": int64(2)},
		"ytlocal", map[string]any{"pretend": true}))
	waitFor(t, "all run", func() bool { return operation1(t, s, id).Progress["running"] == int64(n) })
	type place struct {
		address string
		port    int
	}
	seen := map[place]bool{}
	for _, j := range jobsIn(t, s, id, running) {
		if len(j.Ports) != 2 || j.PID != 0 {
			t.Fatalf("job: got %+v", j)
		}
		for _, port := range j.Ports {
			if seen[place{j.Address, port}] {
				t.Fatalf("port %d of %s is given out twice", port, j.Address)
			}
			seen[place{j.Address, port}] = true
		}
	}
	if err := s.Abort(id, ""); err != nil {
		t.Fatal(err)
	}
	if got := operation1(t, s, id).Progress["aborted"]; got != int64(n) {
		t.Errorf("aborted: got %v, want %d", got, n)
	}
	for address, node := range s.pretended {
		if len(node.held) > 0 {
			t.Errorf("node %s holds %d ports", address, len(node.held))
		}
	}
}

func portTexts(ports []int) []string {
	var out []string
	for _, port := range ports {
		out = append(out, show(int64(port)))
	}
	return out
}
