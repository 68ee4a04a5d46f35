package discovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"taskproxy/ytclient"
)

// cycle asks the cluster once and swaps the snapshot. It fails only if the operations cannot be listed; then nothing
// changes, except that endpoints nobody has vouched for in StaleLimit go.
func (d *Discovery) cycle(ctx context.Context) error {
	d.calls.Store(0)
	now := time.Now()
	refresh, failures := d.early.begin(now)
	d.noteFailures(failures)
	for _, id := range refresh {
		if t := d.tracked[id]; t != nil {
			t.jobsDue = true
		}
	}
	err := d.ask(ctx, now)
	// Who waits for the cycle waits for what is swapped in by now. The rest may take long.
	d.early.end(time.Now(), err == nil)
	if err == nil {
		d.settleSlowly(ctx, now)
	}
	return err
}

func (d *Discovery) ask(ctx context.Context, now time.Time) error {
	var listing ytclient.Listing
	err := d.call(ctx, func(ctx context.Context) (err error) {
		listing, err = d.source.ListOperations(ctx)
		return err
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		d.hold(now)
		return fmt.Errorf("list running operations: %w", err)
	}

	d.strays = d.observe(listing)
	d.askOperations(ctx, now)
	d.settle(ctx, slices.Collect(maps.Values(d.tracked)), now)
	d.sow(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	living := d.living(listing)
	for id := range d.missing {
		if living[id] {
			delete(d.missing, id)
		}
		living[id] = true
	}
	d.labels.Living(living)
	d.swap()
	return nil
}

// living is every operation that is known to be alive, whether it publishes anything or not: those that are listed, and
// those that are held.
func (d *Discovery) living(listing ytclient.Listing) map[string]bool {
	ids := make(map[string]bool, len(listing.Operations))
	for _, op := range listing.Operations {
		if !(ytclient.OperationInfo{State: op.State}).Final() {
			ids[op.ID] = true
		}
	}
	for _, odd := range listing.Odd {
		ids[odd.OperationID] = true
	}
	for id := range d.tracked {
		ids[id] = true
	}
	return ids
}

// settle asks what there is to ask about the jobs of operations whose declarations are known.
func (d *Discovery) settle(ctx context.Context, ops []*tracked, now time.Time) {
	d.askJobs(ctx, ops, now)
	d.askPorts(ctx, ops, now)
}

// hold is what a failed cycle does to what is known.
func (d *Discovery) hold(now time.Time) {
	if !d.ready.Load() {
		return
	}
	for _, t := range d.tracked {
		t.holdJobs(now, d.staleLimit)
	}
	services, _ := d.services()
	next, _ := NewSnapshot(d.Snapshot(), d.labels, services)
	d.use(next)
}

// observe takes over the listing. It returns the problems of operations that publish nothing because of them.
func (d *Discovery) observe(listing ytclient.Listing) (strays []Problem) {
	for _, t := range d.tracked {
		t.present, t.trouble = false, nil
	}
	for _, odd := range listing.Odd {
		p := Problem{Kind: OddAnswer, OperationID: odd.OperationID, Reason: "the cluster's listing of the operation cannot be read"}
		if t := d.tracked[odd.OperationID]; t != nil {
			t.present = true // it runs, and what it publishes is what it last published
			t.problem(p)
			continue
		}
		strays = append(strays, p)
	}
	for _, op := range listing.Operations {
		strays = append(strays, d.observeOperation(op)...)
	}
	return strays
}

func (d *Discovery) observeOperation(op ytclient.Operation) []Problem {
	t := d.tracked[op.ID]
	if (ytclient.OperationInfo{State: op.State}).Final() {
		delete(d.tracked, op.ID)
		return nil
	}
	if t != nil && t.op.AnnotationsSum == op.AnnotationsSum {
		t.jobsDue = t.jobsDue || t.state != op.State || t.op.BriefProgress != op.BriefProgress
		t.unchanged()
		t.op, t.state, t.present, t.absentSince = op, op.State, true, time.Time{}
		return nil
	}

	p, problems := publisherOf(d.publishers, op.Annotations)
	if p == nil {
		delete(d.tracked, op.ID)
		for i := range problems {
			problems[i].OperationID = op.ID
		}
		return problems
	}
	if t == nil {
		t = &tracked{jobs: make(map[string]*job)}
		d.tracked[op.ID] = t
	}
	t.publisher, t.claimProblems = p, problems
	t.op, t.state, t.present, t.absentSince = op, op.State, true, time.Time{}
	t.declare()
	return nil
}

// askOperations asks one by one about operations that are new, and about those that are no longer listed: the listing
// alone does not tell an operation that ended from one that the scheduler is reviving.
func (d *Discovery) askOperations(ctx context.Context, now time.Time) {
	var open []*tracked
	for _, t := range d.tracked {
		if !t.present || !t.resolved {
			open = append(open, t)
		}
	}
	d.silent.sweep(now)
	open = slices.DeleteFunc(open, func(t *tracked) bool {
		if t.untold != nil {
			d.holdUntold(t, now)
		}
		return t.untold != nil // askAgain sees to it
	})
	forEach(ctx, d.concurrency, open, func(t *tracked) { d.askOperation(ctx, t, now) })
	d.forget()
}

func (d *Discovery) askOperation(ctx context.Context, t *tracked, now time.Time) {
	var info ytclient.OperationInfo
	err := d.call(ctx, func(ctx context.Context) (err error) {
		info, err = d.source.GetOperation(ctx, t.op.ID)
		return err
	})
	if err != nil && ctx.Err() != nil {
		return // there was no time
	}
	t.untold = nil
	d.silent.note(t.op.ID, err)
	switch {
	case errors.Is(err, ytclient.ErrNoSuchOperation), err == nil && info.Final():
		t.gone = true
	case err != nil:
		t.untold, t.failedAt = err, now
		d.holdUntold(t, now)
		t.gone = !t.present && now.Sub(t.absentSince) > d.staleLimit
	default:
		t.absentSince = time.Time{}
		if t.state != info.State {
			t.state, t.jobsDue = info.State, true
		}
		if !t.resolved {
			t.tasks, t.resolved = info.Tasks, true
			t.declare()
		}
		if !t.present {
			t.holdJobs(now, d.staleLimit)
		}
	}
}

// holdUntold is what it means for an operation that get_operation fails.
func (d *Discovery) holdUntold(t *tracked, now time.Time) {
	if t.present {
		return
	}
	t.holdJobs(now, d.staleLimit)
	if t.absentSince.IsZero() {
		t.absentSince = now
	}
}

// askJobs lists the jobs of those operations where something may have changed, and holds those of operations that are
// being revived.
func (d *Discovery) askJobs(ctx context.Context, ops []*tracked, now time.Time) {
	var due []*tracked
	for _, t := range ops {
		switch {
		case t.jobsNeeded(now) && t.unlisted != nil:
			t.holdJobs(now, d.staleLimit) // askAgain sees to it
		case t.jobsNeeded(now):
			due = append(due, t)
		case t.present && reviving(t.state):
			t.holdJobs(now, d.staleLimit)
		}
	}
	forEach(ctx, d.concurrency, due, func(t *tracked) { d.listJobs(ctx, t, now) })
	d.forget()
}

// forget drops the operations of which the cluster has answered that they ended.
func (d *Discovery) forget() {
	maps.DeleteFunc(d.tracked, func(_ string, t *tracked) bool { return t.gone })
}

// swap makes the snapshot of what is known now, hands it on, and offers it to the services table.
func (d *Discovery) swap() {
	contested := d.reassign()
	services, excess := d.services()
	next, problems := NewSnapshot(d.Snapshot(), d.labels, services)
	problems = slices.Concat(problems, excess, d.strays, contested)
	unresolved := make(map[string]bool)
	for id, t := range d.tracked {
		if !t.resolved {
			unresolved[id] = true
		}
		for _, p := range t.declProblems {
			p.OperationID = id
			problems = append(problems, p)
		}
		problems = append(problems, t.trouble...)
		problems = slices.Concat(problems, t.callProblems(), t.portProblems(), t.addressProblems())
	}
	for id := range d.missing {
		unresolved[id] = true
	}
	for _, p := range d.strays {
		if p.Kind == OddAnswer && p.OperationID != "" {
			unresolved[p.OperationID] = true
		}
	}
	d.tell(newProblems(problems))
	d.use(next)
	d.ready.Store(true) // after OnSnapshot: who is ready routes by it
	// Before it is known what the table tells of IDs nothing is written: what is settled without it could take one from its
	// owner in the very place where that is kept.
	if d.table != nil && d.seeds == nil {
		d.table.offer(offer{snapshot: next, unresolved: unresolved})
	}
}

// services is what all operations publish now, sorted, and the problems of those over a limit.
func (d *Discovery) services() ([]Service, []Problem) {
	var services []Service
	for _, id := range slices.Sorted(maps.Keys(d.tracked)) {
		t := d.tracked[id]
		own := t.withoutRefused(t.services())
		slices.SortStableFunc(own, func(a, b Service) int { return compareServices(&a, &b) })
		services = append(services, own...)
	}
	return d.limits.admit(d.Snapshot(), services)
}

// use swaps the snapshot if it is another one, or the first.
func (d *Discovery) use(next *Snapshot) {
	prev := d.Snapshot()
	if next == prev && d.ready.Load() {
		return
	}
	d.snapshot.Store(next)
	d.metrics.observeSnapshot(next)
	d.logChanges(prev, next)
	d.onSnapshot(next)
}

// maxLogged is how many lines of one kind a cycle logs: an author must not be able to flood the log.
const maxLogged = 50

func (d *Discovery) logChanges(prev, next *Snapshot) {
	lines, changed := 0, 0
	walkChanges(prev, next, func(was, is *Service) {
		if changed++; lines == maxLogged {
			return
		}
		lines++
		s, what := is, "service changed"
		switch {
		case was == nil:
			what = "service published"
		case is == nil:
			s, what = was, "service gone"
		}
		d.log.Info(what, "operation_id", s.OperationID, "task", quote(s.Task), "service", quote(s.Name), //nolint:sloglint // one of three constants
			"id", s.ID, "protocol", s.Protocol, "endpoints", len(s.Endpoints))
	})
	d.log.Info("services swapped", "services", next.Len(), "endpoints", next.Endpoints(), "changed", changed)
}

// tell keeps the problems and logs those that are new and those that are gone.
func (d *Discovery) tell(next []Problem) {
	added, removed := diffProblems(d.Problems(), next)
	d.problems.Store(&next)
	d.metrics.observeProblems(next)
	d.metrics.operations.Set(float64(len(d.tracked)))
	for i, p := range added {
		if i == maxLogged {
			d.log.Warn("further problems of services", "problems", len(added)-i)
			break
		}
		d.log.Warn("problem of a service", "problem", p)
	}
	for i, p := range removed {
		if i == maxLogged {
			d.log.Info("further problems of services are gone", "problems", len(removed)-i)
			break
		}
		d.log.Info("problem of a service is gone", "problem", p)
	}
}

// call makes one call to the cluster: counted, with a deadline, and with a panic over a strange answer as its error.
func (d *Discovery) call(ctx context.Context, f func(context.Context) error) (err error) {
	d.calls.Add(1)
	ctx, cancel := context.WithTimeout(ctx, d.callTimeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: panic: %.256q", errPanicked, fmt.Sprint(p))
		}
	}()
	return f(ctx)
}

// forEach calls f for each item, at most limit at a time, and returns when all calls have. Once ctx has ended it begins no
// further one.
func forEach[T any](ctx context.Context, limit int, items []T, f func(T)) {
	var wg sync.WaitGroup
	next := make(chan T)
	for range min(limit, len(items)) {
		wg.Go(func() {
			for item := range next {
				f(item)
			}
		})
	}
	for _, item := range items {
		if ctx.Err() != nil {
			break
		}
		next <- item
	}
	close(next)
	wg.Wait()
}
