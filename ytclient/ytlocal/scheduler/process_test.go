package scheduler

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// family is a command with children and grandchildren, which all ignore what they can and write their ids to stderr.
const family = `trap "" TERM HUP INT
echo $$ >&2
sh -c 'echo $$ >&2; sleep 1000 & echo $! >&2; wait' &
wait`

func TestGrandchildrenDieWithTheJob(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		command string
		end     func(t *testing.T, s *Scheduler, j Job)
	}{
		{"the operation is aborted", family, func(t *testing.T, s *Scheduler, j Job) {
			if err := s.Abort(j.OperationID, "enough"); err != nil {
				t.Error(err)
			}
		}},
		{"the operation is completed", family, func(t *testing.T, s *Scheduler, j Job) {
			if err := s.Complete(j.OperationID); err != nil {
				t.Error(err)
			}
		}},
		{"the scheduler is closed", family, func(t *testing.T, s *Scheduler, _ Job) {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}},
		{"the job is killed", family, func(t *testing.T, _ *Scheduler, j Job) {
			if err := syscall.Kill(j.PID, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		}},
		{"the job is paused, then aborted", family, func(t *testing.T, s *Scheduler, j Job) {
			if err := syscall.Kill(j.PID, syscall.SIGSTOP); err != nil {
				t.Error(err)
			}
			if err := s.Abort(j.OperationID, ""); err != nil {
				t.Error(err)
			}
		}},
		{"the whole group is paused, then aborted", family, func(t *testing.T, s *Scheduler, j Job) {
			if err := syscall.Kill(-j.PID, syscall.SIGSTOP); err != nil {
				t.Error(err)
			}
			if err := s.Abort(j.OperationID, ""); err != nil {
				t.Error(err)
			}
		}},
		{"the job leaves by itself", strings.TrimSuffix(family, "wait") + `while [ ! -e leave ]; do sleep 0.01; done`,
			func(t *testing.T, s *Scheduler, j Job) {
				path := fmt.Sprintf("%s/%s/%s/leave", s.cfg.Dir, j.ID, sandboxDir)
				if err := os.WriteFile(path, nil, 0o600); err != nil {
					t.Error(err)
				}
				waitState(t, s, j.OperationID, completed)
			}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newScheduler(t)
			id := mustStart(t, s, spec(shell(tt.command)))
			j := waitRunning(t, s, id, 1)[0]
			members := pids(t, waitStderr(t, s, j, 3))
			if members[0] != j.PID {
				t.Errorf("PID: got %d, want the job's own, %d", j.PID, members[0])
			}
			for _, pid := range members {
				if !alive(pid) {
					t.Fatalf("process %d is dead before its time", pid)
				}
			}
			tt.end(t, s, j)
			waitGone(t, members...)
		})
	}
}

// A job that signals its own group must not end the protection that the watcher is.
func TestWatcherSurvivesSignalsToTheGroup(t *testing.T) {
	t.Parallel()
	s := newScheduler(t)
	id := mustStart(t, s, spec(shell(`trap "" TERM HUP INT USR1 USR2
kill -TERM 0; kill -HUP 0; kill -INT 0; kill -USR1 0; kill -USR2 0
echo $$ >&2; sleep 1000`)))
	j := waitRunning(t, s, id, 1)[0]
	waitStderr(t, s, j, 1)
	members := groupOf(t, j.PID)
	if got, want := len(members), 3; got != want { // the job, its sleep, the watcher
		t.Errorf("processes in the group: got %d, want %d", got, want)
	}
}

// The job must not find a child that it did not start, nor a descriptor that it did not open.
func TestShimLeavesNoTrace(t *testing.T) {
	t.Parallel()
	s := newScheduler(t)
	id := mustStart(t, s, spec(shell(`
ps -o ppid= -A | grep -cx " *$$" | sed "s/^/children /" >&2
for fd in 3 4 5 6 7 8 9; do if { true >&$fd; } 2>/dev/null || { true <&$fd; } 2>/dev/null; then echo "fd $fd" >&2; fi; done
cat; echo "end of stdin" >&2; exit 0`)))
	waitState(t, s, id, completed)
	j := jobsIn(t, s, id, completed)[0]
	lines := waitStderr(t, s, j, 2)
	// Its children are ps, grep and sed, which it starts itself.
	if len(lines) != 2 || lines[1] != "end of stdin" {
		t.Errorf("stderr: got %q", lines)
	}
	var children int
	if _, err := fmt.Sscanf(lines[0], "children %d", &children); err != nil || children > 3 {
		t.Errorf("got %q, want no more than 3 children", lines[0])
	}
}

func groupOf(t *testing.T, pgid int) []int {
	t.Helper()
	out, err := exec.Command("ps", "-A", "-o", "pid=,pgid=,stat=").Output()
	if err != nil {
		t.Fatal(err)
	}
	var members []int
	for line := range strings.Lines(string(out)) {
		var pid, group int
		var stat string
		if _, err := fmt.Sscan(line, &pid, &group, &stat); err == nil && group == pgid && stat[0] != 'Z' {
			members = append(members, pid)
		}
	}
	return members
}

// victim is what a cluster that is going to be killed tells about its jobs.
type victim struct {
	PIDs []int
	Port int
}

// runCluster is the other end of TestJobsDieWhenTheClusterIsKilled.
func runCluster() {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s, err := New(Config{Dir: os.Getenv("CLUSTER_DIR"), Nodes: []string{"localhost:9012"}})
	if err != nil {
		fail(err)
	}
	tasks := map[string]any{"family": shell(family), "listener": listener(1), "paused": shell(family)}
	id, err := s.Start("alice", map[string]any{"tasks": tasks})
	if err != nil {
		fail(err)
	}
	var v victim
	var told []string
	if !poll(func() bool {
		v, told = victim{}, nil
		jobs, _ := s.Jobs(id)
		for _, j := range jobs {
			v.PIDs = append(v.PIDs, j.PID)
			if j.Task == "listener" && len(j.Ports) == 1 {
				v.Port = j.Ports[0]
				continue
			}
			stderr, _ := s.Stderr(id, j.ID)
			told = append(told, strings.Fields(string(stderr))...)
			if j.Task == "paused" && len(strings.Fields(string(stderr))) == 3 {
				_ = syscall.Kill(-j.PID, syscall.SIGSTOP) // again in the next round if it did not work
			}
		}
		return len(told) == 6 && v.Port != 0 && connects(v.Port)
	}) {
		fail(fmt.Errorf("the jobs do not run: %v %v", v, told))
	}
	for _, text := range told {
		var pid int
		if _, err := fmt.Sscan(text, &pid); err != nil {
			fail(err)
		}
		v.PIDs = append(v.PIDs, pid)
	}
	if err := json.NewEncoder(os.Stdout).Encode(v); err != nil {
		fail(err)
	}
	// Killed here; the end of stdin is for the case that the test itself is gone.
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
	s.Close()
}

func TestJobsDieWhenTheClusterIsKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	cluster := exec.Command(os.Args[0])
	cluster.Env = append(os.Environ(), helperMode+"=cluster", "CLUSTER_DIR="+dir)
	cluster.Stderr = t.Output()
	stdin, err := cluster.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cluster.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cluster.Start(); err != nil {
		t.Fatal(err)
	}
	var v victim
	err = json.NewDecoder(stdout).Decode(&v)
	if err != nil {
		t.Errorf("the cluster did not come up: %v", err)
	}
	if err := cluster.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cluster.Wait() // says that it was killed
	if len(v.PIDs) != 9 {
		t.Fatalf("processes: got %v, want 9", v.PIDs)
	}
	began := time.Now()
	waitGone(t, v.PIDs...)
	waitFor(t, "the port refuses", func() bool { return !connects(v.Port) })
	t.Logf("all gone after %v", time.Since(began))
}

// After Close nothing is left of it in this process: no child, not even a dead one, and no descriptor.
func TestNothingIsLeft(t *testing.T) {
	// What the runtime opens once and keeps, for its poller, does not count.
	var warm portPool
	if _, err := warm.take(1); err != nil {
		t.Fatal(err)
	}
	warm.close()
	before := descriptors(t)
	s := newScheduler(t)
	ids := []string{
		mustStart(t, s, spec(listener(3))),
		mustStart(t, s, spec(shell("exit 1"), "max_failed_job_count", int64(4))),
		mustStart(t, s, spec(shell("true", "job_count", int64(5), "port_count", int64(40)))),
		mustStart(t, s, spec(shell(family))),
	}
	waitState(t, s, ids[1], failed)
	waitState(t, s, ids[2], completed)
	waitRunning(t, s, ids[0], 3)
	jobs := waitRunning(t, s, ids[3], 1)
	waitStderr(t, s, jobs[0], 3)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	for _, id := range ids {
		if op := operation1(t, s, id); op.FinishTime.IsZero() {
			t.Errorf("operation %s: got state %s after Close", id, op.State)
		}
		if left := jobsIn(t, s, id, running); len(left) > 0 {
			t.Errorf("operation %s: %d jobs run after Close", id, len(left))
		}
	}
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=,stat=,args=").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		var pid, parent int
		if _, err := fmt.Sscan(line, &pid, &parent); err == nil && parent == os.Getpid() && !strings.Contains(line, "ps -A") {
			t.Errorf("child left: %s", line)
		}
	}
	if after := descriptors(t); after != before {
		t.Errorf("descriptors: got %d, want %d as before", after, before)
	}
	if _, err := s.Start("alice", spec(shell("true"))); err == nil {
		t.Error("Start after Close: got no error")
	}
	if entries, _ := os.ReadDir(s.cfg.Dir); len(entries) == 0 {
		t.Error("outputs of ended jobs are gone")
	}
}

// descriptors counts the open files of this process, where the system tells.
func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}
