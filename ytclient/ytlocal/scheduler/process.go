//go:build unix

package scheduler

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// shim is what a job's process runs first. It leaves a watcher in the job's process group that reads from a pipe whose
// other end only this process holds: when that closes, for whatever reason, the watcher kills the group, itself included.
// Then the shim becomes the job.
//
// The watcher is an orphan from the start, so that the job does not find a child that it never started. It ignores the
// signals by which a job may talk to its own group. While it lives the group's id cannot be given to anybody else. It is
// the only one that keeps descriptor 4, so the end of that pipe says that the watcher, and with it the group, was killed.
// (dash takes a group after "-s KILL --" only.)
const shim = `( trap "" HUP INT QUIT TERM TSTP TTIN TTOU USR1 USR2 ALRM PIPE
( read -r _ <&3; kill -s KILL -- "-$$" ) </dev/null >/dev/null 2>&1 & )
exec /bin/sh -c "$1" 3<&- 4>&-`

// clearLimit is how long killed processes may take to be gone. The kernel needs microseconds, unless it is in trouble.
const clearLimit = 10 * time.Second

// process is the process of a job and its group.
type process struct {
	cmd   *exec.Cmd
	life  *os.File       // closing it lets the watcher kill the group
	death *os.File       // at its end once the watcher is dead
	wait  sync.WaitGroup // for the goroutine that waits for the process

	exited chan struct{} // closed when the process has ended and was reaped
	err    error         // how it ended; nil: with status 0. Read after exited
}

// startProcess runs a shell command as the leader of a process group of its own.
func startProcess(command, dir string, env []string, stdout, stderr *os.File) (*process, error) {
	watched, life, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer watched.Close()
	death, alive, err := os.Pipe()
	if err != nil {
		life.Close()
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer alive.Close()

	cmd := exec.Command("/bin/sh", "-c", shim, "sh", command)
	cmd.Dir, cmd.Env = dir, env
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.ExtraFiles = []*os.File{watched, alive} // descriptors 3 and 4
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		life.Close()
		death.Close()
		return nil, fmt.Errorf("start the process: %w", err)
	}
	p := &process{cmd: cmd, life: life, death: death, exited: make(chan struct{})}
	p.wait.Go(func() {
		p.err = explain(cmd.Wait())
		close(p.exited)
	})
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// kill ends the whole group, paused processes included. It must not be called after clear.
func (p *process) kill() {
	// An error means that the group is gone already.
	_ = syscall.Kill(-p.pid(), syscall.SIGKILL)
}

// clear kills what an ended process has left in its group and waits until that has happened. It is called once, after
// exited.
func (p *process) clear() error {
	defer p.wait.Wait()
	defer p.death.Close()
	// The watcher would do it, but it may be paused like the rest, or the job has killed it. In the last case nothing
	// keeps the group's id from being reused but that process ids come round slowly; it was freed a moment ago.
	p.kill()
	p.life.Close()
	if err := p.death.SetReadDeadline(time.Now().Add(clearLimit)); err != nil {
		return fmt.Errorf("wait for the process group: %w", err)
	}
	if _, err := p.death.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("wait for the process group: %w", err)
	}
	return nil
}

// explain says in words how a process ended.
func explain(err error) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return fmt.Errorf("killed by signal %d (%s)", int(status.Signal()), status.Signal())
	}
	return fmt.Errorf("exited with status %d", exit.ExitCode())
}
