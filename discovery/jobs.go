package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"taskproxy/ytclient"
)

// How many jobs are asked for in one call for ports. One exec node that hangs makes its whole call fail, so jobs whose call
// has failed before are asked for in small calls, apart from those that have not.
const (
	portsBatch        = 100
	suspectPortsBatch = 10
)

// unknownJobLimit is how often an exec node may not know a job that the cluster lists before that is told as a problem:
// in the ordinary life of jobs the node forgets one a little earlier.
const unknownJobLimit = 3

// job is a running job and, once its exec node has told them, its ports. Ports never change while a job lives.
type job struct {
	ytclient.Job
	host   string
	ports  []int
	seenAt time.Time // when the cluster last answered that it runs

	failures  int // answers in a row that were errors
	unknown   int // answers in a row that the node does not know the job
	portCause string
}

// jobsNeeded reports whether the operation's jobs must be listed in this cycle. Absent operations are not asked for: while
// the scheduler revives one, its list of jobs may be empty although they run.
func (t *tracked) jobsNeeded(now time.Time) bool {
	if !t.present || !t.resolved || len(t.declarations) == 0 {
		return false
	}
	return t.jobsDue || now.Sub(t.jobsListed) >= t.refreshAfter || t.unsettled()
}

// unsettled reports whether some service answers on fewer endpoints than its task has jobs.
func (t *tracked) unsettled() bool {
	want := make(map[string]int, len(t.tasks))
	for _, task := range t.tasks {
		want[task.Name] = task.JobCount
	}
	for _, d := range t.declarations {
		have := 0
		for _, j := range t.jobs {
			if j.Task == d.task && d.portIndex < len(j.ports) {
				have++
			}
		}
		if have < want[d.task] {
			return true
		}
	}
	return false
}

// listJobs brings the known jobs of one operation up to date. What the cluster does not answer removes nothing.
func (d *Discovery) listJobs(ctx context.Context, t *tracked, now time.Time) {
	t.jobsDue = true // until answered in full
	var listing ytclient.JobListing
	err := d.call(ctx, func(ctx context.Context) (err error) {
		listing, err = d.source.ListJobs(ctx, t.op.ID)
		return err
	})
	switch {
	case errors.Is(err, ytclient.ErrNoSuchOperation):
		t.gone = true
		return
	case err != nil:
		t.troubleOf("list_jobs", err)
		t.expire(now, d.staleLimit)
		return
	}
	t.mergeJobs(listing, now)
	if listing.Partial != nil {
		t.troubleOf("list_jobs", listing.Partial)
		t.expire(now, d.staleLimit)
		return
	}
	t.jobsDue, t.jobsListed, t.refreshAfter = false, now, jitter(d.refresh)
}

// mergeJobs takes over what a listing says about the jobs of tasks that publish something.
func (t *tracked) mergeJobs(listing ytclient.JobListing, now time.Time) {
	publishes := make(map[string]bool)
	for _, d := range t.declarations {
		publishes[d.task] = true
	}
	next := make(map[string]*job, len(listing.Jobs))
	ended := make(map[string]bool)
	for _, j := range listing.Jobs {
		switch {
		case j.Stale || !publishes[j.Task]:
			continue
		case j.State != "running":
			ended[j.ID] = true
			continue
		}
		known := t.jobs[j.ID]
		if known == nil || known.Address != j.Address || known.Task != j.Task {
			host, _, err := net.SplitHostPort(j.Address)
			if err != nil || host == "" {
				t.problem(Problem{Kind: BadAddress, Task: j.Task, Reason: "a job runs at " + quote(j.Address) + ", which is no host:port"})
				continue
			}
			known = &job{host: host}
		}
		known.Job, known.seenAt = j, now
		next[j.ID] = known
	}
	if listing.Partial != nil {
		for id, j := range t.jobs {
			if next[id] == nil && !ended[id] {
				next[id] = j
			}
		}
	}
	t.jobs = next
}

// expire drops jobs that the cluster has not vouched for in too long. Their ports may be somebody else's by now.
func (t *tracked) expire(now time.Time, limit time.Duration) {
	for id, j := range t.jobs {
		if now.Sub(j.seenAt) > limit {
			delete(t.jobs, id)
		}
	}
}

// askPorts asks for the ports of every running job that has none yet.
func (d *Discovery) askPorts(ctx context.Context) {
	var fresh, suspect []*job
	for _, t := range d.tracked {
		if !t.present {
			continue
		}
		for _, j := range t.jobs {
			switch {
			case len(j.ports) > 0:
			case j.failures > 0:
				suspect = append(suspect, j)
			default:
				fresh = append(fresh, j)
			}
		}
	}
	batches := slices.AppendSeq(slices.Collect(slices.Chunk(fresh, portsBatch)), slices.Chunk(suspect, suspectPortsBatch))
	forEach(ctx, d.concurrency, batches, func(batch []*job) { d.askBatch(ctx, batch) })
}

func (d *Discovery) askBatch(ctx context.Context, batch []*job) {
	refs := make([]ytclient.JobRef, len(batch))
	for i, j := range batch {
		refs[i] = ytclient.JobRef{Address: j.Address, ID: j.ID}
	}
	var answers []ytclient.PortsAnswer
	err := d.call(ctx, func(ctx context.Context) (err error) {
		answers, err = d.source.JobPorts(ctx, refs)
		if err == nil && len(answers) != len(refs) {
			err = fmt.Errorf("%w: %d answers for the ports of %d jobs", ytclient.ErrUnavailable, len(answers), len(refs))
		}
		return err
	})
	if err != nil && ctx.Err() == nil {
		d.log.Debug("ports of jobs not told", "jobs", len(batch), "err", err)
	}
	for i, j := range batch {
		if err != nil {
			j.take(ytclient.PortsAnswer{Err: err})
			continue
		}
		j.take(answers[i])
	}
}

// take notes what an exec node answered. Only ports that it gave are remembered; all else is asked again.
func (j *job) take(a ytclient.PortsAnswer) {
	j.portCause = ""
	switch {
	case errors.Is(a.Err, ytclient.ErrNotFound):
		// As a rule the job has just ended, and the next listing no longer has it.
		if j.failures, j.unknown = 0, j.unknown+1; j.unknown >= unknownJobLimit {
			j.portCause = cause(a.Err)
		}
	case a.Err != nil:
		j.failures++
		j.portCause = cause(a.Err)
	default:
		j.failures, j.unknown, j.ports = 0, 0, a.Ports
	}
}

// services is what the operation publishes now, with the endpoints of its running jobs.
func (t *tracked) services() []Service {
	jobs := make(map[string][]*job)
	for _, j := range t.jobs {
		jobs[j.Task] = append(jobs[j.Task], j)
	}
	for _, js := range jobs {
		slices.SortFunc(js, func(a, b *job) int { return strings.Compare(a.ID, b.ID) })
	}
	services := make([]Service, 0, len(t.declarations))
	for _, d := range t.declarations {
		s := Service{
			OperationID: t.op.ID, Task: d.task, Name: d.name, Protocol: d.protocol, Permissions: d.permissions,
			User: t.op.User, StartTime: t.op.StartTime, Alias: t.op.Alias,
		}
		for _, j := range jobs[d.task] {
			if d.portIndex < len(j.ports) {
				s.Endpoints = append(s.Endpoints, Endpoint{JobID: j.ID, Addr: net.JoinHostPort(j.host, strconv.Itoa(j.ports[d.portIndex]))})
			}
		}
		services = append(services, s)
	}
	return services
}

// portProblems tells why jobs of the operation have no endpoint although they run: once per task and cause.
func (t *tracked) portProblems() []Problem {
	var problems []Problem
	for _, j := range t.jobs {
		if j.portCause != "" && len(j.ports) == 0 {
			problems = append(problems, Problem{Kind: ClusterCall, OperationID: t.op.ID, Task: j.Task,
				Reason: "the exec node does not tell the ports of a job: " + j.portCause})
		}
	}
	slices.SortFunc(problems, func(a, b Problem) int { return cmp.Or(cmp.Compare(a.Task, b.Task), cmp.Compare(a.Reason, b.Reason)) })
	return slices.Compact(problems)
}
