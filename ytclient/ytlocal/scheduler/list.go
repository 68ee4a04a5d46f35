package scheduler

import (
	"cmp"
	"slices"
	"time"
)

// timeFormat is how times look on the wire.
const timeFormat = "2006-01-02T15:04:05.000000Z"

// Operations returns all operations, ended ones included, newest first by start time, then by id.
func (s *Scheduler) Operations() []Operation {
	s.mu.Lock()
	out := make([]Operation, 0, len(s.operations))
	for _, op := range s.operations {
		out = append(out, op.lookLocked())
	}
	for _, t := range s.told {
		out = append(out, t.op)
	}
	s.mu.Unlock()
	slices.SortFunc(out, func(a, b Operation) int {
		return cmp.Or(b.StartTime.Compare(a.StartTime), cmp.Compare(b.ID, a.ID))
	})
	for i := range out {
		out[i].detach()
	}
	return out
}

// Operation returns one operation by its id, or by the alias, with its leading "*", of one that has not ended. The error
// for an unknown one has code 1915.
func (s *Scheduler) Operation(idOrAlias string) (Operation, error) {
	s.mu.Lock()
	var o Operation
	op, t := s.findLocked(idOrAlias), s.toldLocked(idOrAlias)
	switch {
	case op != nil:
		o = op.lookLocked()
	case t != nil:
		o = t.op
	}
	s.mu.Unlock()
	if op == nil && t == nil {
		return Operation{}, errNoOperation(idOrAlias)
	}
	o.detach()
	return o, nil
}

// Jobs returns the jobs of an operation in the order of their start, ended ones included. The error for an unknown
// operation has code 1915.
func (s *Scheduler) Jobs(operationID string) ([]Job, error) {
	s.mu.Lock()
	op := s.findLocked(operationID)
	if op == nil {
		t := s.toldLocked(operationID)
		s.mu.Unlock()
		if t == nil {
			return nil, errNoOperation(operationID)
		}
		return t.all(), nil
	}
	looks := make([]look, len(op.jobs))
	for i, j := range op.jobs {
		looks[i] = j.lookLocked()
	}
	s.mu.Unlock()
	return finishLooks(looks), nil
}

// Job returns one job. The error has code 1915 for an unknown operation and 1916 for an unknown job.
func (s *Scheduler) Job(operationID, jobID string) (Job, error) {
	s.mu.Lock()
	t := s.toldLocked(operationID)
	s.mu.Unlock()
	if t != nil {
		return t.job(jobID)
	}
	l, err := s.look(operationID, jobID)
	if err != nil {
		return Job{}, err
	}
	return l.finish(), nil
}

// Stderr returns what a job, running or ended, has written to its stderr: at most max_stderr_size bytes, the middle left
// out. Errors as for Job.
func (s *Scheduler) Stderr(operationID, jobID string) ([]byte, error) {
	l, err := s.look(operationID, jobID)
	if err != nil {
		return nil, err
	}
	return readStderr(l.j, l.j.task.stderrLimit)
}

// NodeJobs returns the jobs that run on a node, by id; none for an unknown node.
func (s *Scheduler) NodeJobs(address string) []Job {
	s.mu.Lock()
	looks := make([]look, 0, len(s.nodeJobs[address]))
	for _, j := range s.nodeJobs[address] {
		looks = append(looks, j.lookLocked())
	}
	var pretended []Job
	for _, j := range s.toldOn[address] {
		pretended = append(pretended, j.detached())
	}
	s.mu.Unlock()
	jobs := append(finishLooks(looks), pretended...)
	slices.SortFunc(jobs, func(a, b Job) int { return cmp.Compare(a.ID, b.ID) })
	return jobs
}

// NodeJob returns one job that runs on a node; ok is false when there is none.
func (s *Scheduler) NodeJob(address, jobID string) (j Job, ok bool) {
	s.mu.Lock()
	found := s.nodeJobs[address][jobID]
	if found == nil {
		defer s.mu.Unlock()
		j := s.toldOn[address][jobID]
		return j.detached(), j.ID != ""
	}
	l := found.lookLocked()
	s.mu.Unlock()
	return l.finish(), true
}

// findLocked finds an operation by id, or by the alias of one that has not ended. Scheduler.mu is held.
func (s *Scheduler) findLocked(idOrAlias string) *operation {
	if op := s.operations[idOrAlias]; op != nil {
		return op
	}
	return s.aliases[idOrAlias]
}

// lookLocked is the state of an operation; its maps are still ours, until detach. Scheduler.mu is held.
func (op *operation) lookLocked() Operation {
	return Operation{
		ID:          op.id,
		Type:        "vanilla",
		State:       op.state,
		User:        op.user,
		Alias:       op.alias,
		Title:       op.title,
		StartTime:   op.startTime,
		FinishTime:  op.finishTime,
		Suspended:   op.resumed != nil,
		Spec:        op.spec,
		Annotations: op.annotations,
		ACL:         slices.Concat(op.ownACE, op.acl),
		Error:       op.reason,
		Progress:    op.progressLocked(),
	}
}

// detach makes the maps of a look the caller's. It takes no lock: they are never changed.
func (o *Operation) detach() {
	o.Spec = cloneMap(o.Spec)
	o.Annotations = cloneMap(o.Annotations)
	o.ACL = cloneList(o.ACL)
	o.Progress = cloneMap(o.Progress)
}

// progressLocked counts jobs. Scheduler.mu is held.
func (op *operation) progressLocked() map[string]any {
	pending := 0
	if !op.finished() {
		pending = max(0, op.total-op.doneSlots-op.count[running])
	}
	return map[string]any{
		"total":      int64(op.total),
		"running":    int64(op.count[running]),
		"completed":  int64(op.count[completed]),
		"failed":     int64(op.count[failed]),
		"aborted":    int64(op.count[aborted]),
		"lost":       int64(0),
		"pending":    int64(pending),
		"build_time": op.buildTime.Format(timeFormat),
	}
}

// look is the state of a job, without what needs a look at the disk.
type look struct {
	j          *job
	state      string
	startTime  time.Time
	finishTime time.Time
	err        string
	pid        int
}

func (s *Scheduler) look(operationID, jobID string) (look, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	op := s.findLocked(operationID)
	if op == nil {
		return look{}, errNoOperation(operationID)
	}
	j := op.jobByID[jobID]
	if j == nil {
		return look{}, errNoJob(operationID, jobID)
	}
	return j.lookLocked(), nil
}

// lookLocked is the state of a job. Scheduler.mu is held.
func (j *job) lookLocked() look {
	return look{j: j, state: j.state, startTime: j.startTime, finishTime: j.finishTime, err: j.err, pid: j.pid}
}

func (l look) finish() Job {
	return Job{
		ID:          l.j.id,
		OperationID: l.j.op.id,
		Task:        l.j.task.name,
		State:       l.state,
		Address:     l.j.address,
		Ports:       slices.Clone(l.j.ports),
		Cookie:      l.j.cookie,
		StartTime:   l.startTime,
		FinishTime:  l.finishTime,
		Error:       l.err,
		PID:         l.pid,
		StderrSize:  stderrSize(l.j),
	}
}

func finishLooks(looks []look) []Job {
	jobs := make([]Job, len(looks))
	for i, l := range looks {
		jobs[i] = l.finish()
	}
	return jobs
}
