package discovery

import (
	"context"
	"errors"
	"slices"
	"time"

	"taskproxy/ytclient"
)

// missing are the operations of the rows that the services table had at the start, as long as no listing has shown them and
// the cluster has not said that they ended; by id, since when it does not answer (zero: it does). A process that starts while
// the scheduler revives its operations finds them in no listing. They live all the same, so their labels and their rows
// stay theirs, and what they publish is published.
type missing map[string]time.Time

// remember notes whose rows the table has.
func (m missing) remember(rows []ytclient.ServiceRow) {
	for _, r := range rows {
		m[r.OperationID] = time.Time{}
	}
}

// askMissing asks about each of them, and reports whether anything came of it.
func (d *Discovery) askMissing(ctx context.Context, now time.Time) (told bool) {
	ids := make([]string, 0, len(d.missing))
	for id := range d.missing {
		if !d.silent.has(id, now) {
			ids = append(ids, id)
		}
	}
	infos := make([]ytclient.OperationInfo, len(ids))
	errs := slices.Repeat([]error{context.Canceled}, len(ids)) // there may be no time to ask
	d.forEachIndex(ctx, len(ids), func(i int) {
		err := d.call(ctx, func(ctx context.Context) (err error) {
			infos[i], err = d.source.GetOperation(ctx, ids[i])
			return err
		})
		if err == nil || ctx.Err() == nil {
			errs[i] = err
			d.silent.note(ids[i], err)
		}
	})
	for i, id := range ids {
		since := d.missing[id]
		switch {
		case errors.Is(errs[i], context.Canceled):
		case errors.Is(errs[i], ytclient.ErrNoSuchOperation), errs[i] == nil && infos[i].Final():
			delete(d.missing, id)
			told = true
		case errs[i] == nil:
			d.missing[id] = time.Time{}
			if d.adopt(infos[i]) {
				delete(d.missing, id)
				told = true
			}
		case since.IsZero():
			d.missing[id] = now
		case now.Sub(since) > d.staleLimit:
			delete(d.missing, id)
			told = true
		}
	}
	return told
}

// adopt makes a missing operation one that was known and is not listed, and reports whether it publishes anything. Its
// services have no endpoints before it is listed again, but they are there.
func (d *Discovery) adopt(info ytclient.OperationInfo) bool {
	if info.Operation == nil {
		return false
	}
	p, problems := publisherOf(d.publishers, info.Operation.Annotations)
	if p == nil {
		return false
	}
	t := &tracked{
		op: *info.Operation, state: info.State, publisher: p, claimProblems: problems,
		resolved: true, tasks: info.Tasks, jobs: make(map[string]*job),
	}
	t.declare()
	d.tracked[info.ID] = t
	return true
}
