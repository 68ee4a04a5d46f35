package scheduler

import (
	"fmt"
	"strconv"
	"time"
)

// Pauses before a place in a task gets its next job, so that a command that fails at once does not spin.
const (
	firstPause   = 20 * time.Millisecond
	longestPause = 500 * time.Millisecond
	goodLife     = 10 * time.Second // a job that lived as long makes the next pause short again
)

// job is one job. Fields up to dir are set before anybody else sees it and never change; the rest is guarded by
// Scheduler.mu.
type job struct {
	op      *operation
	task    *task
	id      string
	cookie  int
	address string
	ports   []int
	dir     string // of its sandbox and outputs; empty when it has none

	state      string
	startTime  time.Time
	finishTime time.Time
	err        string
	pid        int
}

func newJob(op *operation, t *task, cookie int, address string) *job {
	return &job{op: op, task: t, id: newJobID(), cookie: cookie, address: address}
}

// nodeLocked picks the next node. Scheduler.mu is held.
func (s *Scheduler) nodeLocked() string {
	s.nextNode++
	return s.cfg.Nodes[s.nextNode%len(s.cfg.Nodes)]
}

// addLocked makes a job visible, as running. Scheduler.mu is held.
func (s *Scheduler) addLocked(j *job) {
	j.state = running
	j.startTime = now()
	op := j.op
	op.jobs = append(op.jobs, j)
	op.jobByID[j.id] = j
	op.count[running]++
	op.touch()
	onNode := s.nodeJobs[j.address]
	if onNode == nil {
		onNode = map[string]*job{}
		s.nodeJobs[j.address] = onNode
	}
	onNode[j.id] = j
}

// endLocked puts a job into a final state. Scheduler.mu is held.
func (s *Scheduler) endLocked(j *job, state, reason string) {
	op := j.op
	op.count[j.state]--
	op.count[state]++
	op.touch()
	j.state, j.err, j.finishTime = state, reason, now()
	delete(s.nodeJobs[j.address], j.id)
}

// runSlot is the goroutine of one place in a task: it runs one job after the other until one has done the work.
func (s *Scheduler) runSlot(op *operation, t *task, cookie int) {
	var pause time.Duration
	for s.mayStart(op, pause) {
		began := time.Now()
		if s.runJob(op, t, cookie) == completed && !t.restartCompleted {
			s.mu.Lock()
			op.doneSlots++
			op.touch()
			s.mu.Unlock()
			return
		}
		if time.Since(began) >= goodLife {
			pause = 0
		}
		pause = min(max(2*pause, firstPause), longestPause)
	}
}

// mayStart waits out the pause and a suspension. It is false when the operation is ending.
func (s *Scheduler) mayStart(op *operation, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-op.ending:
		return false
	case <-timer.C:
	}
	for {
		s.mu.Lock()
		resumed, ending := op.resumed, op.verdict != ""
		s.mu.Unlock()
		if ending {
			return false
		}
		if resumed == nil {
			return true
		}
		select {
		case <-op.ending:
			return false
		case <-resumed:
		}
	}
}

// runJob runs one job from its ports to the last process of its group, and returns the state in which it ended.
func (s *Scheduler) runJob(op *operation, t *task, cookie int) string {
	s.mu.Lock()
	j := newJob(op, t, cookie, s.nodeLocked())
	s.mu.Unlock()

	var p *process
	ports, err := s.ports.take(t.portCount)
	if err == nil {
		// Given back at the very end: while a process of the group lives, it may listen there.
		defer s.ports.give(ports)
		j.ports = ports
		defer s.clear(j)
		p, err = s.launch(j)
	}

	if err != nil {
		return s.notStarted(j, err)
	}

	s.mu.Lock()
	j.pid = p.pid()
	s.addLocked(j)
	s.mu.Unlock()

	state, reason := s.attend(p, op)
	stderr := ""
	if state == failed {
		stderr = tailOfStderr(j)
	}

	s.mu.Lock()
	s.endLocked(j, state, reason)
	if state == failed {
		op.jobFailed(j, stderr)
	}
	s.mu.Unlock()
	s.logEnd(j, state, reason)
	return state
}

// notStarted records a job that never had a process as a failed one, unless it failed because the operation is ending.
func (s *Scheduler) notStarted(j *job, err error) string {
	reason := "cannot start: " + err.Error()
	s.mu.Lock()
	if j.op.verdict != "" {
		s.mu.Unlock()
		return aborted
	}
	s.addLocked(j)
	s.endLocked(j, failed, reason)
	j.op.jobFailed(j, "")
	s.mu.Unlock()
	s.logEnd(j, failed, reason)
	return failed
}

func (s *Scheduler) logEnd(j *job, state, reason string) {
	s.log.Debug("job ended", "operation_id", j.op.id, "job_id", j.id, "task", cut(j.task.name), "state", state,
		"reason", cut(reason))
}

// launch makes the sandbox of a job and starts its process.
func (s *Scheduler) launch(j *job) (*process, error) {
	box, err := s.prepare(j)
	if err != nil {
		return nil, err
	}
	defer box.close()
	return startProcess(j.task.command, box.dir, s.environ(j, box), box.stdout, box.stderr)
}

// attend waits until a job has ended, one way or another, and nothing of its process group is left.
func (s *Scheduler) attend(p *process, op *operation) (state, reason string) {
	select {
	case <-p.exited:
	case <-op.ending:
		p.kill()
		<-p.exited
		state, reason = aborted, "the operation is ending"
	}
	if err := p.clear(); err != nil {
		s.log.Warn("a job left processes behind", "operation_id", op.id, "pid", p.pid(), "err", err)
	}
	switch {
	case state != "":
		return state, reason
	case p.err != nil:
		return failed, p.err.Error()
	default:
		return completed, ""
	}
}

// environ is the environment of a job. What comes later wins, and the YT_* variables come last, so that a job is told
// the same ports as everybody else.
func (s *Scheduler) environ(j *job, box *sandbox) []string {
	env := append(baseEnviron(s.cfg.Environ, box), j.task.environ...)
	env = append(env, j.op.vault...)
	env = append(env,
		"YT_OPERATION_ID="+j.op.id,
		"YT_JOB_ID="+j.id,
		"YT_JOB_COOKIE="+strconv.Itoa(j.cookie),
		"YT_JOB_INDEX="+strconv.Itoa(j.task.firstIndex+j.cookie),
		"YT_TASK_NAME="+j.task.name,
		"YT_TASK_JOB_INDEX="+strconv.Itoa(j.cookie),
		"YT_NODE_ADDRESS="+j.address,
	)
	for i, port := range j.ports {
		env = append(env, fmt.Sprintf("YT_PORT_%d=%d", i, port))
	}
	return env
}
