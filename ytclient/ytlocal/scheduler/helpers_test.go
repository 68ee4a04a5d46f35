package scheduler

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.ytsaurus.tech/yt/go/yterrors"
)

// helperMode makes the test binary something else than tests: a job that listens, or a whole cluster to be killed.
const helperMode = "SCHEDULER_TEST_HELPER"

func TestMain(m *testing.M) {
	switch os.Getenv(helperMode) {
	case "listen":
		listenForEver()
	case "cluster":
		runCluster()
	default:
		goleak.VerifyTestMain(m)
	}
}

// listenForEver is a job that serves its first port and leaves when killed only.
func listenForEver() {
	l, err := net.Listen("tcp", "127.0.0.1:"+os.Getenv("YT_PORT_0"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for {
		if c, err := l.Accept(); err == nil {
			c.Close()
		}
	}
}

// listener is a task whose jobs listen on their first port.
func listener(jobs int) map[string]any {
	return map[string]any{
		"job_count":   int64(jobs),
		"port_count":  int64(1),
		"command":     `exec "$LISTENER"`,
		"environment": map[string]any{helperMode: "listen", "LISTENER": os.Args[0]},
	}
}

// shell is a task with a command.
func shell(command string, more ...any) map[string]any {
	t := map[string]any{"job_count": int64(1), "command": command}
	for i := 0; i < len(more); i += 2 {
		t[more[i].(string)] = more[i+1]
	}
	return t
}

// spec is a spec with one task, "t".
func spec(t map[string]any, more ...any) map[string]any {
	s := map[string]any{"tasks": map[string]any{"t": t}}
	for i := 0; i < len(more); i += 2 {
		s[more[i].(string)] = more[i+1]
	}
	return s
}

// newScheduler returns a scheduler that the end of the test closes.
func newScheduler(t testing.TB, change ...func(*Config)) *Scheduler {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Dir:    dir,
		Nodes:  []string{"localhost:9012", "localhost:9022"},
		Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func mustStart(t testing.TB, s *Scheduler, spec map[string]any) string {
	t.Helper()
	id, err := s.Start("alice", spec)
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	return id
}

// waitFor polls a condition that no channel tells. The limit is there for a broken build only.
func waitFor(t testing.TB, what string, condition func() bool) {
	t.Helper()
	if !poll(condition) {
		t.Fatalf("waited in vain: %s", what)
	}
}

func poll(condition func() bool) bool {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if condition() {
			return true
		}
	}
	return false
}

func operation1(t testing.TB, s *Scheduler, id string) Operation {
	t.Helper()
	op, err := s.Operation(id)
	if err != nil {
		t.Fatal(err)
	}
	return op
}

func waitState(t testing.TB, s *Scheduler, id, state string) Operation {
	t.Helper()
	waitFor(t, "operation is "+state, func() bool { return operation1(t, s, id).State == state })
	return operation1(t, s, id)
}

// jobsIn returns the jobs of an operation that are in a state.
func jobsIn(t testing.TB, s *Scheduler, id, state string) []Job {
	t.Helper()
	all, err := s.Jobs(id)
	if err != nil {
		t.Fatal(err)
	}
	var out []Job
	for _, j := range all {
		if j.State == state {
			out = append(out, j)
		}
	}
	return out
}

func waitRunning(t testing.TB, s *Scheduler, id string, n int) []Job {
	t.Helper()
	waitFor(t, fmt.Sprintf("%d jobs run", n), func() bool { return len(jobsIn(t, s, id, running)) == n })
	return jobsIn(t, s, id, running)
}

// waitStderr returns the stderr of a job once it has n lines.
func waitStderr(t testing.TB, s *Scheduler, j Job, n int) []string {
	t.Helper()
	var data []byte
	waitFor(t, fmt.Sprintf("%d lines of stderr", n), func() bool {
		var err error
		if data, err = s.Stderr(j.OperationID, j.ID); err != nil {
			t.Fatal(err)
		}
		return bytes.Count(data, []byte("\n")) >= n
	})
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

// pids reads process ids from lines.
func pids(t testing.TB, lines []string) []int {
	t.Helper()
	out := make([]int, len(lines))
	for i, line := range lines {
		pid, err := strconv.Atoi(line)
		if err != nil {
			t.Fatalf("no process id: %q", line)
		}
		out[i] = pid
	}
	return out
}

// alive reports whether a process exists and is no zombie: where the first process of a container reaps nobody, orphans
// stay zombies for ever.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && !strings.HasPrefix(strings.TrimSpace(string(out)), "Z")
}

func waitGone(t testing.TB, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		waitFor(t, fmt.Sprintf("process %d is gone", pid), func() bool { return !alive(pid) })
	}
}

func connects(port int) bool {
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false
	}
	c.Close()
	return true
}

func wantCode(t testing.TB, err error, code yterrors.ErrorCode) {
	t.Helper()
	if !yterrors.ContainsErrorCode(err, code) {
		t.Errorf("error: got %v, want code %d", err, code)
	}
}

// content is the content of a file on its way.
func content(s string) io.ReadCloser { return io.NopCloser(strings.NewReader(s)) }
