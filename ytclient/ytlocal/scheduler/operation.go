package scheduler

import (
	"fmt"
	"sync"
	"time"
)

// States of operations and jobs.
const (
	starting  = "starting"
	running   = "running"
	completed = "completed"
	failed    = "failed"
	aborted   = "aborted"
)

// transitional names the state on the way to a final one.
var transitional = map[string]string{completed: "completing", failed: "failing", aborted: "aborting"}

// operation is one operation. Fields up to done never change; the rest is guarded by Scheduler.mu, and the maps and
// lists in it are replaced, never changed, so that a snapshot may hold on to them.
type operation struct {
	*plan
	id        string
	user      string
	startTime time.Time
	ending    chan struct{} // closed when its jobs have to stop
	done      chan struct{} // closed when nothing of it runs any more

	state       string
	verdict     string // the final state it is heading for; empty until something decided
	reason      string // why it failed or was aborted
	finishTime  time.Time
	resumed     chan struct{} // while suspended: closed by Resume
	annotations map[string]any
	acl         []any

	jobs        []*job // in the order of their start
	jobByID     map[string]*job
	doneSlots   int            // places of tasks that need no further job
	count       map[string]int // jobs by state
	buildTime   time.Time      // of the progress
	failedCount int
}

func newOperation(user string, p *plan) *operation {
	now := now()
	return &operation{
		plan:        p,
		id:          newOperationID(),
		user:        user,
		startTime:   now,
		buildTime:   now,
		ending:      make(chan struct{}),
		done:        make(chan struct{}),
		state:       starting,
		annotations: p.annotations,
		acl:         p.acl,
		jobByID:     map[string]*job{},
		count:       map[string]int{},
	}
}

// now in the precision of the wire, so that what is compared here and what is compared by a client is the same.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// end decides how the operation ends and tells its jobs. The first decision stands. Scheduler.mu is held.
func (op *operation) end(verdict, reason string) {
	if op.verdict != "" || op.finished() {
		return
	}
	op.verdict, op.reason = verdict, reason
	op.state = transitional[verdict]
	close(op.ending)
}

// finished reports whether the operation is in a final state. Scheduler.mu is held.
func (op *operation) finished() bool { return !op.finishTime.IsZero() }

// touch moves the time of the progress, strictly. Scheduler.mu is held.
func (op *operation) touch() {
	next := now()
	if !next.After(op.buildTime) {
		next = op.buildTime.Add(time.Microsecond)
	}
	op.buildTime = next
}

// run is the goroutine of an operation: it starts one goroutine for every place in every task and waits for all.
func (s *Scheduler) run(op *operation) {
	s.mu.Lock()
	if op.verdict == "" {
		op.state = running
	}
	s.mu.Unlock()
	s.log.Info("operation started", "operation_id", op.id, "user", cut(op.user))

	if op.pretend {
		s.runPretended(op)
	} else {
		var slots sync.WaitGroup
		for _, t := range op.tasks {
			for cookie := range t.jobCount {
				slots.Go(func() { s.runSlot(op, t, cookie) })
			}
		}
		slots.Wait()
	}
	s.finish(op)
}

// finish puts an operation without jobs into its final state.
func (s *Scheduler) finish(op *operation) {
	s.mu.Lock()
	if op.verdict == "" {
		op.verdict = completed
	}
	op.state = op.verdict
	op.finishTime = now()
	if s.aliases[op.alias] == op {
		delete(s.aliases, op.alias)
	}
	op.touch()
	state := op.state
	s.mu.Unlock()
	close(op.done)
	s.log.Info("operation ended", "operation_id", op.id, "state", state)
}

// runPretended makes jobs that are nothing but entries, which run until the operation ends.
func (s *Scheduler) runPretended(op *operation) {
	s.mu.Lock()
	if err := s.pretendLocked(op); err != nil {
		op.end(failed, err.Error())
	}
	s.mu.Unlock()

	<-op.ending

	s.mu.Lock()
	for _, j := range op.jobs {
		s.endLocked(j, aborted, "the operation is ending")
		s.pretended.give(j.address, j.ports)
	}
	s.mu.Unlock()
}

// pretendLocked makes the jobs of runPretended. Scheduler.mu is held.
func (s *Scheduler) pretendLocked(op *operation) error {
	for _, t := range op.tasks {
		for cookie := range t.jobCount {
			j := newJob(op, t, cookie, s.nodeLocked())
			ports, err := s.pretended.take(j.address, t.portCount)
			if err != nil {
				return err
			}
			j.ports = ports
			s.addLocked(j)
		}
	}
	return nil
}

// jobFailed counts a failed job and ends the operation when there were too many. Scheduler.mu is held.
func (op *operation) jobFailed(j *job, stderr string) {
	op.failedCount++
	last := fmt.Sprintf("job %s of task %s: %s", j.id, quote(j.task.name), j.err)
	if stderr != "" {
		last += "; its stderr ends with:\n" + stderr
	}
	switch {
	case op.failOnRestart:
		op.end(failed, "a job would have to be restarted, which fail_on_job_restart forbids: "+last)
	case op.failedCount >= op.maxFailed:
		op.end(failed, fmt.Sprintf("%d jobs failed, and max_failed_job_count is %d; the last one: %s",
			op.failedCount, op.maxFailed, last))
	}
}
