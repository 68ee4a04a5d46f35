package discovery

import (
	"context"
	"errors"
	"maps"
	"time"

	"taskproxy/ytclient"
)

// missing are the operations of the rows that the services table had at the start, as long as no listing has shown them and
// the cluster has not said that they ended; by id, since when it does not answer (zero: it does). A process that starts while
// the scheduler revives its operations finds them in no listing. They live all the same, so their labels and their rows
// stay theirs.
type missing map[string]time.Time

// remember notes whose rows the table has.
func (m missing) remember(rows []ytclient.ServiceRow) {
	for _, r := range rows {
		m[r.OperationID] = time.Time{}
	}
}

// askMissing asks about each of them that is not known to live.
func (d *Discovery) askMissing(ctx context.Context, living map[string]bool, now time.Time) {
	maps.DeleteFunc(d.missing, func(id string, _ time.Time) bool { return living[id] })
	ids := make([]string, 0, len(d.missing))
	for id := range d.missing {
		ids = append(ids, id)
	}
	gone := make([]bool, len(ids))
	failed := make([]bool, len(ids))
	d.forEachIndex(ctx, len(ids), func(i int) {
		var info ytclient.OperationInfo
		err := d.call(ctx, func(ctx context.Context) (err error) {
			info, err = d.source.GetOperation(ctx, ids[i])
			return err
		})
		gone[i] = errors.Is(err, ytclient.ErrNoSuchOperation) || err == nil && info.Final()
		failed[i] = err != nil
	})
	if ctx.Err() != nil {
		return
	}
	for i, id := range ids {
		since := d.missing[id]
		switch {
		case gone[i], failed[i] && !since.IsZero() && now.Sub(since) > d.staleLimit:
			delete(d.missing, id)
		case !failed[i]:
			d.missing[id] = time.Time{}
		case since.IsZero():
			d.missing[id] = now
		}
	}
}
