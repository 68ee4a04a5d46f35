package discovery

import (
	"context"
	"errors"
	"slices"
	"time"

	"taskproxy/ytclient"
)

// A job is held when calls that would have told whether it still runs have failed: what was known of it is kept for a
// while. Meanwhile it may have ended, and its ports may be somebody else's. So a held job's endpoint is given up at the
// first connection that it does not take, and after a minute its exec node must confirm the job, unless the whole cluster
// is silent.

// unconfirmedLimit is how long a held job takes new connections on the strength of its last answer alone.
const unconfirmedLimit = time.Minute

// maxRefused is how many addresses of one job are remembered: as many as an operation has services, as a rule.
const maxRefused = 64

// holding is what a job that is held has on it. The zero value: nothing, the cluster vouches for the job.
type holding struct {
	since     time.Time // zero: it is not held
	confirmed time.Time // when its node last told of it meanwhile
	silent    bool      // its node was asked and did not confirm it: no new connections
	// refused are addresses of the job that did not take a connection since the cluster last vouched for it; it counts once
	// the job is held. nil as a rule.
	refused map[string]bool
}

// disown ends the operation's claims to addresses of a job that its node does not know.
func (t *tracked) disown(jobID string) {
	for _, c := range t.addresses.claims {
		if c.job == jobID {
			c.job = ""
		}
	}
}

// vouch ends all doubts: the cluster has just told that the job runs.
func (j *job) vouch(now time.Time) {
	j.seenAt, j.holding = now, holding{}
}

// dispel ends a doubt about the job: its endpoints are others from now on than those that failed.
func (d *Discovery) dispel(j *job) {
	if j.doubted {
		j.doubted = false
		j.vouched = d.vouches.Add(1)
	}
}

// listLag is how long a job that has ended may be listed as running.
const listLag = 15 * time.Second

// dispelUnconfirmed is what remains when the node does not answer about a job in doubt: if the cluster lists it still, a good
// while after it failed, it runs. If nobody vouches for it, the doubt stays, and its operation's jobs are listed again.
func (d *Discovery) dispelUnconfirmed(t *tracked, j *job) {
	if j.seenAt.Sub(j.doubtedAt) >= listLag {
		d.dispel(j)
	}
	t.jobsDue = t.jobsDue || j.doubted
}

// takes reports whether new connections may go to an address of the job.
func (j *job) takes(addr string) bool {
	return j.holding.since.IsZero() || !j.holding.silent && !j.holding.refused[addr]
}

// unconfirmed reports whether the node must be asked before the job takes further connections.
func (j *job) unconfirmed(now time.Time) bool {
	h := &j.holding
	return !h.since.IsZero() && (h.silent || now.Sub(later(h.since, h.confirmed)) > unconfirmedLimit)
}

// holdJobs begins to hold the jobs that this cycle has no answer about, and ends it for those held too long.
func (t *tracked) holdJobs(now time.Time, limit time.Duration) {
	for _, j := range t.jobs {
		if j.holding.since.IsZero() && !j.seenAt.Equal(now) {
			j.holding.since = now
		}
	}
	t.expire(now, limit)
}

// unchanged is what the listing of an operation says that is as it was, its progress included: its jobs are the same, and
// those that were held because nothing could be listed are not any more.
func (t *tracked) unchanged() {
	if t.jobsDue {
		return
	}
	for _, j := range t.jobs {
		j.holding = holding{}
	}
}

// noteFailures takes over which endpoints did not take connections, and reports whether one goes because of it.
func (d *Discovery) noteFailures(failures []failure) (dropped bool) {
	for _, f := range failures {
		t := d.tracked[f.operationID]
		if t == nil {
			continue
		}
		j := t.jobs[f.endpoint.JobID]
		if j == nil || f.endpoint.Vouched != j.vouched {
			continue // it is gone, or has been looked after since
		}
		if t.jobsDue = true; !j.doubted {
			j.doubted, j.doubtedAt = true, time.Now()
		}
		d.doubtful[f.operationID] = true
		dropped = dropped || !j.holding.since.IsZero() && j.takes(f.endpoint.Addr)
		if j.holding.refused == nil {
			j.holding.refused = make(map[string]bool)
		}
		if len(j.holding.refused) < maxRefused {
			j.holding.refused[f.endpoint.Addr] = true
		}
	}
	return dropped
}

// withoutRefused takes out of an operation's services the endpoints that must not get new connections: these are held. What is
// there may be the job all the same, behind a network that is broken in one place, and what goes on with it is not cut.
func (t *tracked) withoutRefused(services []Service) []Service {
	held := false
	for _, j := range t.jobs {
		held = held || !j.holding.since.IsZero()
	}
	if !held {
		return services
	}
	for i := range services {
		s := &services[i]
		s.Endpoints = slices.DeleteFunc(s.Endpoints, func(e Endpoint) bool {
			j := t.jobs[e.JobID]
			if j == nil || j.takes(e.Addr) {
				return false
			}
			s.Held = append(s.Held, e)
			return true
		})
	}
	return services
}

// heldJob is a job and whose it is.
type heldJob struct {
	*job
	of *tracked
}

// askNodes asks the exec nodes about held jobs that nobody has confirmed in a minute, and about jobs that did not take a
// connection: a job that was killed may be listed as running for a while. Jobs without ports are nobody's endpoints, unless
// somebody wrote where they answer.
func (d *Discovery) askNodes(ctx context.Context, ops []*tracked, now time.Time) (told bool) {
	var asked []heldJob
	for _, t := range ops {
		for _, j := range t.jobs {
			doubted := j.doubted && !now.Before(j.askAt)
			silent, vouched := j.holding.silent, j.vouched
			switch {
			case !doubted && !j.unconfirmed(now) || !j.isAnswering():
			case d.silent.has(j.Address, now):
				// It was asked a moment ago and hangs: that is no confirmation.
				j.holding.silent = silent || j.unconfirmed(now)
				d.dispelUnconfirmed(t, j)
				told = told || j.holding.silent != silent || j.vouched != vouched
			default:
				asked = append(asked, heldJob{job: j, of: t})
			}
		}
	}
	// One node that hangs makes its whole call fail, so each call is about one.
	batches := chunkByNode(asked, portsBatch)
	answered := make([][]ytclient.PortsAnswer, len(batches))
	at := make([]int, len(batches))
	for i := range at {
		at[i] = i
	}
	forEach(ctx, d.concurrency, at, func(i int) { answered[i] = d.confirm(ctx, batches[i]) })
	for i, batch := range batches {
		for k := range answered[i] { // none: there was no time to ask
			d.confirmed(batch[k], answered[i][k], now)
		}
	}
	return told || len(asked) > 0
}

// doubtPause is the least time between two questions about a job that does not take connections.
const doubtPause = time.Second

// nextDoubt is when the exec nodes are to be asked again about jobs in doubt; zero: about none.
func (d *Discovery) nextDoubt(now time.Time) (at time.Time) {
	for id := range d.doubtful {
		open := false
		if t := d.tracked[id]; t != nil {
			for _, j := range t.jobs {
				if !j.doubted || !j.isAnswering() {
					continue
				}
				open = true
				if ask := later(j.askAt, now); !d.silent.has(j.Address, now) && (at.IsZero() || ask.Before(at)) {
					at = ask
				}
			}
		}
		if !open {
			delete(d.doubtful, id)
		}
	}
	return at
}

// isAnswering reports that the job may be somebody's endpoint: without ports it is none, unless somebody wrote where it answers.
func (j *job) isAnswering() bool { return len(j.ports) > 0 || j.claimed }

// confirm asks for the ports of held jobs, and returns an answer for each.
func (d *Discovery) confirm(ctx context.Context, batch []heldJob) []ytclient.PortsAnswer {
	jobs := make([]*job, len(batch))
	for i, h := range batch {
		jobs[i] = h.job
	}
	answers, err := d.jobPorts(ctx, jobs)
	if ctx.Err() != nil {
		return nil
	}
	d.silent.note(jobs[0].Address, err)
	if err != nil {
		answers = make([]ytclient.PortsAnswer, len(batch))
		for i := range answers {
			answers[i].Err = err
		}
	}
	return answers
}

// confirmed takes over what the node says of the job. A job that it does not know has ended, even if it is still listed;
// everything else but the ports that it always had is no confirmation, and a held job is asked about again.
func (d *Discovery) confirmed(h heldJob, a ytclient.PortsAnswer, now time.Time) {
	h.askAt = now.Add(doubtPause)
	switch {
	case errors.Is(a.Err, ytclient.ErrNotFound):
		delete(h.of.jobs, h.ID)
		h.of.disown(h.ID)
		h.of.jobsDue = true
		d.vouches.Add(1) // should the node know it again, it is another endpoint
		return
	case a.Err == nil:
		d.dispel(h.job)
	default:
		d.dispelUnconfirmed(h.of, h.job)
	}
	switch {
	case a.Err == nil && h.holding.since.IsZero() && len(h.ports) > 0:
		h.ports, h.portsNew = a.Ports, true
	case a.Err != nil || !slices.Equal(a.Ports, h.ports):
		h.holding.silent = true
	default:
		h.holding.silent, h.holding.confirmed = false, now
	}
}
