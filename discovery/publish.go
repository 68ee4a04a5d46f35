package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"taskproxy/ytclient"
)

// Store is the services table.
type Store interface {
	// ReadServices returns ytclient.ErrNotFound if there is no table. A row that is not made like ours is the zero row.
	ReadServices(ctx context.Context) ([]ytclient.ServiceRow, error)
	// Revision is another one after each write by whomever, also of the same rows. It returns ytclient.ErrNotFound if there
	// is no table.
	Revision(ctx context.Context) (uint64, error)
	// AcquireWriter makes this process the one that writes the table, or returns a *ytclient.HeldError while another is.
	AcquireWriter(ctx context.Context) (ytclient.ServicesWriter, error)
}

var _ Store = (*ytclient.ServicesTable)(nil)

// Rows is the content of the services table for a snapshot: sorted, each service under the ID that it is published by.
func Rows(s *Snapshot, base string) []ytclient.ServiceRow {
	rows := make([]ytclient.ServiceRow, 0, s.Len())
	for _, svc := range s.Services() {
		rows = append(rows, ytclient.ServiceRow{
			Domain:      Domain(svc.ID, base),
			OperationID: svc.OperationID,
			TaskName:    svc.Task,
			Service:     svc.Name,
			Protocol:    string(svc.Protocol),
		})
	}
	slices.SortFunc(rows, compareRows)
	return rows
}

func compareRows(a, b ytclient.ServiceRow) int {
	return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.OperationID, b.OperationID), cmp.Compare(a.TaskName, b.TaskName),
		cmp.Compare(a.Service, b.Service), cmp.Compare(a.Protocol, b.Protocol))
}

// withHeld adds the table's own rows of operations that run but could not be read: their services are unknown to us, not gone.
func withHeld(rows, table []ytclient.ServiceRow, unresolved map[string]bool) []ytclient.ServiceRow {
	if len(unresolved) == 0 {
		return rows
	}
	taken := make(map[string]bool, len(rows))
	for _, r := range rows {
		taken[r.Domain] = true
	}
	for _, r := range table {
		if unresolved[r.OperationID] && !taken[r.Domain] {
			taken[r.Domain] = true
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, compareRows)
	return rows
}

// offer is the outcome of an answered cycle.
type offer struct {
	snapshot   *Snapshot
	unresolved map[string]bool // ids of operations that run and publish something nobody could read yet
}

const (
	leaseInterval = 5 * time.Second  // between two attempts to become the writer
	writeInterval = 10 * time.Second // between two looks at the table, with what may follow from them
	tableTimeout  = 30 * time.Second // of one look at the table, and the write that may follow
	seedTimeout   = 5 * time.Second  // of the read at the start, which the first snapshot waits for
	minPatience   = 2 * time.Minute  // how long a replica whose cycles fail goes on to be the writer, at least
)

// table keeps the services table equal to the newest snapshot, in a goroutine of its own: neither cycles nor requests wait
// for it. Of all replicas one writes: the one that has the lease (writer.go).
type table struct {
	store    Store
	base     string
	patience time.Duration // how long an offer counts as news
	retry    time.Duration // leaseInterval, but in tests
	pause    time.Duration // writeInterval, but in tests
	log      *slog.Logger
	metrics  *metrics
	offers   chan offer // of one: a newer offer takes the place of one that was not looked at

	// Below: only run's.
	latest   offer
	pending  bool      // latest is to be compared with the table
	heardAt  time.Time // when latest came; zero: none has come
	empty    int       // offers of nothing since the start, if no other came
	nonempty bool      // an offer of something came: from then on cycles confirm what is gone

	writer  ytclient.ServicesWriter // nil: this replica does not write
	triedAt time.Time               // when it last tried to become the writer
	holder  string                  // the transaction of the writer last heard of, so that it is logged once
	failing string                  // what failed last, so that it is logged once

	known    bool                  // content and exists are what the table holds, as far as we know
	exists   bool                  // there is a table
	content  []ytclient.ServiceRow // sorted; nil without a table
	age      int                   // offers since the table was read
	syncedAt time.Time             // when it was last read, and maybe written

	rival rival
}

func newTable(store Store, base string, period time.Duration, log *slog.Logger, m *metrics) *table {
	return &table{
		store: store, base: base, patience: max(minPatience, 3*period), retry: leaseInterval, pause: writeInterval,
		log: log, metrics: m, offers: make(chan offer, 1),
	}
}

// initial is what the table holds now, so that a new process knows who owns which ID. It needs no lease, takes a few seconds at
// most, and may be called beside run. No table, also a nil one, holds nothing.
func (t *table) initial(ctx context.Context) ([]ytclient.ServiceRow, error) {
	if t == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, seedTimeout)
	defer cancel()
	rows, err := t.store.ReadServices(ctx)
	switch {
	case errors.Is(err, ytclient.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the services table: %w", err)
	}
	return rows, nil
}

// offer hands over the outcome of a cycle. It never waits. Only one goroutine may call it.
func (t *table) offer(o offer) {
	select {
	case <-t.offers:
	default:
	}
	t.offers <- o
}

// run keeps the table up to date, as far as this is this replica's business, until ctx ends. Then it lets another have the
// lease at once.
func (t *table) run(ctx context.Context) {
	defer t.release(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-t.offers:
			t.accept(o)
		case <-t.lost():
			t.drop("services table: the lease is lost, another replica may write")
		case <-t.due():
		}
		t.step(ctx)
	}
}

func (t *table) accept(o offer) {
	t.latest, t.pending, t.heardAt = o, true, time.Now()
	t.age++
	if o.snapshot.Len() > 0 {
		t.nonempty = true
	} else {
		t.empty++
	}
}

// deaf reports whether there is no news of the cluster. Such a replica leaves writing to those that have news.
func (t *table) deaf() bool { return time.Since(t.heardAt) >= t.patience }

// lost is the end of the lease; never, without one.
func (t *table) lost() <-chan struct{} {
	if t.writer == nil {
		return nil
	}
	return t.writer.Lost()
}

// due is when something is to be done without an offer.
func (t *table) due() <-chan time.Time {
	at := t.heardAt.Add(t.patience)
	switch {
	case t.deaf():
		return nil
	case t.writer == nil:
		at = t.triedAt.Add(t.retry)
	case t.pending:
		at = t.syncedAt.Add(t.pause)
	}
	return time.After(time.Until(at))
}

func (t *table) step(ctx context.Context) {
	switch {
	case t.deaf():
		t.release(ctx)
		return
	case t.writer == nil:
		if time.Since(t.triedAt) < t.retry || !t.acquire(ctx) {
			return
		}
	}
	if t.pending && time.Since(t.syncedAt) >= t.pause {
		t.pending = false
		t.sync(ctx)
	}
}
