package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"taskproxy/ytclient"
)

// portsBatch is how many jobs are asked for in one call for ports. One exec node that hangs makes its whole call fail: so a
// call is about few nodes, and about one node only for jobs whose call has failed before. A node that stays silent then
// costs one call in a cycle, and nobody else anything.
const portsBatch = 100

// unknownJobLimit is how often an exec node may not know a job that the cluster lists before that is told as a problem:
// in the ordinary life of jobs the node forgets one a little earlier.
const unknownJobLimit = 3

// job is a running job and, once its exec node has told them, its ports. Ports never change while a job lives.
type job struct {
	ytclient.Job
	host   string
	ports  []int
	seenAt time.Time // when the cluster last answered that it runs

	holding   holding // since calls fail that would vouch for it
	doubted   bool    // it did not take a connection, and the cluster has not vouched for it since
	doubtedAt time.Time
	askAt     time.Time // while it is doubted: not to be asked about again before that
	vouched   uint32    // Endpoint.Vouched

	needsPorts bool // some service is on a port that the node gives to the job
	claimed    bool // some service is at an address that was written by the job, as far as one can tell

	portsAsked time.Time // the cycle in which they were last asked for
	portsNew   bool      // they were told since the last swap
	contest    contest

	failures  int // answers in a row that were errors
	unknown   int // answers in a row that the node does not know the job
	portCause string
}

// jobsNeeded reports whether the operation's jobs must be listed in this cycle.
func (t *tracked) jobsNeeded(now time.Time) bool {
	switch {
	case !t.jobsKnowable():
		return false
	case t.jobsDue || now.Sub(t.jobsListed) >= t.refreshAfter || t.addressesOpen():
		return true
	}
	return !now.Before(t.relistAt) && t.short()
}

// jobsKnowable reports whether a list of the operation's jobs would tell anything. While the scheduler revives an operation,
// which it may do unlisted, its list of jobs may be empty although they run.
func (t *tracked) jobsKnowable() bool {
	return t.present && t.resolved && len(t.declarations) > 0 && !reviving(t.state)
}

// reviving reports a state in which a live operation can be after its scheduler or controller has restarted.
func reviving(state string) bool {
	switch state {
	case "orphaned", "waiting_for_agent", "reviving", "reviving_jobs", "revive_initializing":
		return true
	}
	return false
}

// short reports whether some service answers on fewer endpoints than its task has jobs. Jobs that are still to come are
// worth another look; those that have finished leave their operation short for good.
func (t *tracked) short() bool {
	want := make(map[string]int, len(t.tasks))
	for _, task := range t.tasks {
		want[task.Name] = task.JobCount
	}
	for _, d := range t.declarations {
		if !d.written.isZero() {
			continue
		}
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

// relisted notes that the jobs were listed in full. If they were for no other reason than that some are missing, the pause
// until that alone is a reason again is twice as long as the last one.
func (t *tracked) relisted(now time.Time, period, refresh time.Duration, changed bool) {
	if changed {
		t.relistPause = 0
	} else {
		t.relistPause = max(period, 2*t.relistPause)
	}
	t.jobsListed, t.refreshAfter = now, jitter(refresh)
	t.relistAt = now.Add(t.relistPause - period/2) // cycles come a little sooner or later
}

// listJobs brings the known jobs of one operation up to date. What the cluster does not answer removes nothing.
func (d *Discovery) listJobs(ctx context.Context, t *tracked, now time.Time) {
	changed := t.jobsDue
	t.jobsDue = true // until answered in full
	var listing ytclient.JobListing
	err := d.call(ctx, func(ctx context.Context) (err error) {
		listing, err = d.source.ListTaskJobs(ctx, t.op.ID, t.publishing())
		return err
	})
	if err != nil && ctx.Err() != nil {
		return // there was no time
	}
	t.unlisted = nil
	d.silent.note(t.op.ID, err)
	switch {
	case errors.Is(err, ytclient.ErrNoSuchOperation):
		t.gone = true
		return
	case err != nil:
		t.unlisted, t.failedAt = err, now
		t.holdJobs(now, d.staleLimit)
		return
	case t.suddenlyEmpty(listing):
		t.holdJobs(now, d.staleLimit)
		return
	}
	t.mergeJobs(listing, now, d.vouches.Load())
	if listing.Partial != nil {
		t.unlisted, t.failedAt = listing.Partial, now
		t.holdJobs(now, d.staleLimit)
		return
	}
	t.jobsDue = false
	t.relisted(now, d.period, d.refresh, changed)
}

// publishing are the tasks whose jobs are of interest; nil: all.
func (t *tracked) publishing() (tasks []string) {
	for _, d := range t.declarations {
		task := d.task
		if !d.written.isZero() {
			task = d.written.task
		}
		if task == "" {
			return nil
		}
		if !slices.Contains(tasks, task) {
			tasks = append(tasks, task)
		}
	}
	return tasks
}

// suddenlyEmpty reports an answer that no job runs where some did, unless it tells how they ended. It comes about in the
// life of a controller as well; the second such answer in a row is believed.
func (t *tracked) suddenlyEmpty(listing ytclient.JobListing) bool {
	known := len(t.jobs) + len(t.expired)
	for _, j := range listing.Jobs {
		switch {
		case j.Stale:
		case j.State == "running":
			known = 0
		case t.jobs[j.ID] != nil, t.expired[j.ID] != nil:
			known--
		}
	}
	doubtful := listing.Partial == nil && known > 0
	t.emptyOnce = doubtful && !t.emptyOnce
	return t.emptyOnce
}

// mergeJobs takes over what a listing says about the jobs of tasks that publish something.
//
// vouched is what new ones are vouched for: as much as any has been, since one that was known before may come back.
func (t *tracked) mergeJobs(listing ytclient.JobListing, now time.Time, vouched uint32) {
	needsPorts, wanted := make(map[string]bool), make(map[string]bool)
	all := false // an address that was written may be of any job
	for _, d := range t.declarations {
		switch {
		case d.written.isZero():
			needsPorts[d.task], wanted[d.task] = true, true
		case d.written.task == "":
			all = true
		default:
			wanted[d.written.task] = true
		}
	}
	renewed := false
	next := make(map[string]*job, len(listing.Jobs))
	ended := make(map[string]bool)
	for _, j := range listing.Jobs {
		switch {
		case j.Stale || !all && !wanted[j.Task]:
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
			known, renewed = &job{host: host, vouched: vouched}, true
		}
		known.Job, known.needsPorts = j, needsPorts[j.Task]
		known.vouch(now)
		next[j.ID] = known
	}
	if listing.Partial != nil {
		for id, j := range t.jobs {
			if next[id] == nil && !ended[id] {
				next[id] = j
			}
		}
		maps.DeleteFunc(t.expired, func(id string, _ *job) bool { return next[id] != nil || ended[id] })
	} else {
		t.expired = nil
	}
	t.jobs = next
	t.addresses.listed(listing.Partial != nil, renewed)
}

// expire drops jobs that the cluster has not vouched for in too long. Their ports may be somebody else's by now.
func (t *tracked) expire(now time.Time, limit time.Duration) {
	for id, j := range t.jobs {
		if now.Sub(j.seenAt) > limit {
			delete(t.jobs, id)
			if t.expired == nil {
				t.expired = make(map[string]*job)
			}
			t.expired[id] = j
		}
	}
}

// askPorts asks for the ports of every running job of the operations that has none yet and was not asked for in vain.
func (d *Discovery) askPorts(ctx context.Context, ops []*tracked, now time.Time) {
	fresh := portless(ops, func(j *job) bool { return j.failures == 0 && !j.contest.waits(now) })
	for _, j := range fresh {
		j.portsAsked = now
	}
	slices.SortFunc(fresh, byNode)
	d.askBatches(ctx, slices.Collect(slices.Chunk(fresh, portsBatch)))
}

// askSuspects asks, node by node, for the ports of the jobs that were asked for in vain in an earlier cycle.
func (d *Discovery) askSuspects(ctx context.Context, ops []*tracked, now time.Time) bool {
	suspect := portless(ops, func(j *job) bool {
		return j.failures > 0 && !j.portsAsked.Equal(now) && !d.silent.has(j.Address, now)
	})
	d.askBatches(ctx, chunkByNode(suspect, portsBatch))
	return len(suspect) > 0
}

// portless are those running jobs of the operations that have no ports yet, need some, and are picked.
func portless(ops []*tracked, pick func(*job) bool) (jobs []*job) {
	for _, t := range ops {
		if !t.present {
			continue
		}
		for _, j := range t.jobs {
			if j.needsPorts && len(j.ports) == 0 && pick(j) {
				jobs = append(jobs, j)
			}
		}
	}
	return jobs
}

func (d *Discovery) askBatches(ctx context.Context, batches [][]*job) {
	forEach(ctx, d.concurrency, batches, func(batch []*job) { d.askBatch(ctx, batch) })
}

// onNode is what runs on an exec node: a job, or one that is held.
type onNode interface {
	node() (address, jobID string)
}

func (j *job) node() (address, jobID string) { return j.Address, j.ID }

func byNode[T onNode](a, b T) int {
	addressA, idA := a.node()
	addressB, idB := b.node()
	return cmp.Or(strings.Compare(addressA, addressB), strings.Compare(idA, idB))
}

// chunkByNode sorts jobs by their exec nodes and cuts them into batches of one node each, of so many jobs at most.
func chunkByNode[T onNode](jobs []T, most int) (batches [][]T) {
	slices.SortFunc(jobs, byNode)
	for len(jobs) > 0 {
		first, _ := jobs[0].node()
		n := 1
		for ; n < min(len(jobs), most); n++ {
			if address, _ := jobs[n].node(); address != first {
				break
			}
		}
		batches, jobs = append(batches, jobs[:n:n]), jobs[n:]
	}
	return batches
}

// jobPorts makes one call for the ports of jobs.
func (d *Discovery) jobPorts(ctx context.Context, jobs []*job) (answers []ytclient.PortsAnswer, err error) {
	refs := make([]ytclient.JobRef, len(jobs))
	for i, j := range jobs {
		refs[i] = ytclient.JobRef{Address: j.Address, ID: j.ID}
	}
	err = d.call(ctx, func(ctx context.Context) (err error) {
		answers, err = d.source.JobPorts(ctx, refs)
		if err == nil && len(answers) != len(refs) {
			err = fmt.Errorf("%w: %d answers for the ports of %d jobs", ytclient.ErrUnavailable, len(answers), len(refs))
		}
		return err
	})
	if err != nil && ctx.Err() == nil {
		d.log.Debug("ports of jobs not told", "jobs", len(jobs), "err", err)
	}
	return answers, err
}

func (d *Discovery) askBatch(ctx context.Context, batch []*job) {
	answers, err := d.jobPorts(ctx, batch)
	if ctx.Err() != nil {
		return // there was no time
	}
	if batch[0].Address == batch[len(batch)-1].Address { // they are sorted
		d.silent.note(batch[0].Address, err)
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
		j.failures, j.unknown, j.ports, j.portsNew = 0, 0, a.Ports, true
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
	expired := slices.SortedFunc(maps.Values(t.expired), func(a, b *job) int { return strings.Compare(a.ID, b.ID) })
	services := make([]Service, 0, len(t.declarations))
	for _, d := range t.declarations {
		s := Service{
			OperationID: t.op.ID, Task: d.task, Name: d.name, Protocol: d.protocol, Permissions: d.permissions, Origins: d.origins,
			User: t.op.User, StartTime: t.op.StartTime, Alias: t.op.Alias, SparkREST: d.sparkREST,
			RouteTimeout: d.routeTimeout, IdleTimeout: d.idleTimeout, Affinity: d.affinity,
		}
		if !d.written.isZero() {
			s.Endpoints, s.Held = t.writtenEndpoint(d)
			services = append(services, s)
			continue
		}
		for _, j := range jobs[d.task] {
			switch {
			case d.portIndex < len(j.ports):
				s.Endpoints = append(s.Endpoints, j.endpoint(j.ports[d.portIndex]))
			case d.portIndex < len(j.contest.ports):
				s.Held = append(s.Held, j.endpoint(j.contest.ports[d.portIndex]))
			}
		}
		for _, j := range expired {
			if ports := j.portsTold(); j.Task == d.task && d.portIndex < len(ports) {
				s.Held = append(s.Held, j.endpoint(ports[d.portIndex]))
			}
		}
		services = append(services, s)
	}
	return services
}

// endpoint is the job at one of its ports.
func (j *job) endpoint(port int) Endpoint {
	return Endpoint{JobID: j.ID, Addr: j.addr(port), Vouched: j.vouched}
}

// told takes over the ports that a node told of beside those of its other jobs.
func (j *job) told(n ytclient.NodeJob) *job {
	if len(j.ports) == 0 {
		j.ports, j.portsNew = n.Ports, true
	}
	return j
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
