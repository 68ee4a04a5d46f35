package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"go.ytsaurus.tech/yt/go/guid"
)

// told is an operation of Pretend. It never changes; Pretend puts another one in its place.
type told struct {
	op    Operation
	jobs  []Job
	built time.Time // of the progress
}

// Pretend makes the cluster speak of an operation that exists in words only, as if op and jobs were so: for tests that need
// an id, a state, an address or a port that no operation of ours would have at that moment. Nothing runs, and no order but
// Forget reaches it. Called again with the same id it is another truth about the same operation.
//
// The id must be canonical, and none of an operation that Start has made. An empty Type means vanilla, an empty State
// running, a zero StartTime now; without Progress the jobs are counted, and the time of the progress moves with any change
// of them, as it does for others. Everything else is told as it is given. The maps and lists are copied.
func (s *Scheduler) Pretend(op Operation, jobs []Job) error {
	if id, err := guid.ParseString(op.ID); err != nil || id.String() != op.ID {
		return fmt.Errorf("scheduler: ID %q is no canonical id such as 1a2b-3c4d-3fe03e8-5", op.ID)
	}
	op.detach()
	op.Type, op.State = cmp.Or(op.Type, "vanilla"), cmp.Or(op.State, running)
	jobs = slices.Clone(jobs)
	for i := range jobs {
		j := &jobs[i]
		j.OperationID, j.State, j.Ports = op.ID, cmp.Or(j.State, running), slices.Clone(j.Ports)
	}

	if _, ended := transitional[op.State]; ended && op.FinishTime.IsZero() {
		op.FinishTime = now()
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.operations[op.ID] != nil {
		return fmt.Errorf("scheduler: operation %s exists, it cannot be pretended", op.ID)
	}
	before := s.told[op.ID]
	switch {
	case !op.StartTime.IsZero():
	case before != nil:
		op.StartTime = before.op.StartTime
	default:
		op.StartTime = now()
	}
	for i := range jobs {
		if jobs[i].StartTime.IsZero() {
			jobs[i].StartTime = op.StartTime
		}
	}
	next := &told{op: op, jobs: jobs, built: now()}
	if op.Progress == nil {
		next.count(before)
	}
	s.forgetLocked(op.ID)
	s.told[op.ID] = next
	for _, j := range jobs {
		if j.State != running || j.Away {
			continue
		}
		if s.toldOn[j.Address] == nil {
			s.toldOn[j.Address] = map[string]Job{}
		}
		s.toldOn[j.Address][j.ID] = j
	}
	return nil
}

// Forget ends what Pretend began: nobody has heard of the operation. One that is not pretended is left alone.
func (s *Scheduler) Forget(operationID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(operationID)
}

// forgetLocked does so. Scheduler.mu is held.
func (s *Scheduler) forgetLocked(operationID string) {
	if t := s.told[operationID]; t != nil {
		for _, j := range t.jobs {
			delete(s.toldOn[j.Address], j.ID)
		}
	}
	delete(s.told, operationID)
}

// count makes the progress as progressLocked does.
func (t *told) count(before *told) {
	if before != nil {
		if before.op.State == t.op.State && reflect.DeepEqual(before.jobs, t.jobs) {
			t.built = before.built
		} else if !t.built.After(before.built) {
			t.built = before.built.Add(time.Microsecond)
		}
	}
	count := map[string]int64{}
	for _, j := range t.jobs {
		count[j.State]++
	}
	total := int64(0)
	tasks, _ := plain(t.op.Spec["tasks"]).(map[string]any)
	for _, v := range tasks {
		task, _ := plain(v).(map[string]any)
		n, _ := integer(task["job_count"])
		total += n
	}
	t.op.Progress = map[string]any{
		"total": total, "pending": max(0, total-count[running]), "lost": int64(0), "build_time": t.built.Format(timeFormat),
	}
	for _, state := range []string{running, completed, failed, aborted} {
		t.op.Progress[state] = count[state]
	}
}

// toldLocked finds a pretended operation by id or by the alias of one that runs. Scheduler.mu is held.
func (s *Scheduler) toldLocked(idOrAlias string) *told {
	if t := s.told[idOrAlias]; t != nil {
		return t
	}
	for _, id := range slices.Sorted(maps.Keys(s.told)) {
		if t := s.told[id]; idOrAlias != "" && t.op.Alias == idOrAlias && t.op.FinishTime.IsZero() {
			return t
		}
	}
	return nil
}

// job finds a job of a pretended operation.
func (t *told) job(id string) (Job, error) {
	for i := range t.jobs {
		if t.jobs[i].ID == id {
			return t.jobs[i].detached(), nil
		}
	}
	return Job{}, errNoJob(t.op.ID, id)
}

// all is every job.
func (t *told) all() []Job {
	jobs := slices.Clone(t.jobs)
	for i := range jobs {
		jobs[i] = jobs[i].detached()
	}
	return jobs
}

// detached is a copy that shares nothing.
func (j Job) detached() Job {
	j.Ports = slices.Clone(j.Ports)
	return j
}
