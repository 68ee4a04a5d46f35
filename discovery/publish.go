package discovery

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"taskproxy/ytclient"
)

// Store is the services table.
type Store interface {
	// ReadServices returns ytclient.ErrNotFound if there is no table.
	ReadServices(ctx context.Context) ([]ytclient.ServiceRow, error)
	// WriteServices replaces all rows. It makes the table and its directory when they are missing.
	WriteServices(ctx context.Context, rows []ytclient.ServiceRow) error
}

var _ Store = (*ytclient.ServicesTable)(nil)

const (
	writeInterval  = 10 * time.Second // between two attempts to bring the table up to date
	rereadAfter    = 10               // answered cycles after which the table is read again: others may write it as well
	tableTimeout   = 30 * time.Second // of one read or write
	believeEmptyAt = 2                // how many cycles after the start must find nothing before a table with rows is emptied
)

// writeResult says how an attempt to bring the table up to date went.
type writeResult string

const (
	written     writeResult = "written"
	readFailed  writeResult = "read_failed"
	writeFailed writeResult = "write_failed"
)

var writeResults = []writeResult{written, readFailed, writeFailed}

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

// table keeps the services table equal to the newest snapshot, in a goroutine of its own: neither cycles nor requests wait for it.
type table struct {
	store   Store
	base    string
	log     *slog.Logger
	metrics *metrics
	offers  chan offer // of one: a newer offer takes the place of one that was not looked at

	// Below: only run's.
	known    bool                  // content and exists are what the table holds, as far as we know
	exists   bool                  // there is a table
	content  []ytclient.ServiceRow // sorted; nil without a table
	age      int                   // offers looked at since the table was read
	empty    int                   // offers of nothing since the start, if no other came
	nonempty bool                  // an offer of something came: from then on cycles confirm what is gone
	wroteAt  time.Time             // when the last write was tried
	failing  string                // what failed last, so that it is logged once
}

func newTable(store Store, base string, log *slog.Logger, m *metrics) *table {
	return &table{store: store, base: base, log: log, metrics: m, offers: make(chan offer, 1)}
}

// offer hands over the outcome of a cycle. It never waits. Only one goroutine may call it.
func (t *table) offer(o offer) {
	select {
	case <-t.offers:
	default:
	}
	t.offers <- o
}

// run brings the table up to date after each offer, until ctx ends.
func (t *table) run(ctx context.Context) {
	for {
		var o offer
		select {
		case <-ctx.Done():
			return
		case o = <-t.offers:
		}
		if wait := writeInterval - time.Since(t.wroteAt); wait > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			select {
			case o = <-t.offers: // newer
			default:
			}
		}
		t.sync(ctx, o)
	}
}

// sync makes one attempt for an offer. What fails is tried again with the next one: each answered cycle makes an offer,
// also when nothing has changed.
func (t *table) sync(ctx context.Context, o offer) {
	t.age++
	if o.snapshot.Len() > 0 {
		t.nonempty = true
	} else {
		t.empty++
	}
	if (!t.known || t.age >= rereadAfter) && !t.read(ctx) {
		return
	}
	rows := withHeld(Rows(o.snapshot, t.base), t.content, o.unresolved)
	if t.exists && slices.Equal(rows, t.content) {
		return
	}
	if len(rows) == 0 && len(t.content) > 0 && !t.nonempty && t.empty < believeEmptyAt {
		return // a cluster that has just come up may well answer that nothing runs
	}
	t.write(ctx, rows)
}

// read learns what the table holds, and reports whether that is known now.
func (t *table) read(ctx context.Context) bool {
	call, cancel := context.WithTimeout(ctx, tableTimeout)
	defer cancel()
	rows, err := t.store.ReadServices(call)
	t.known, t.exists = err == nil || errors.Is(err, ytclient.ErrNotFound), err == nil
	if !t.known {
		t.fail(ctx, readFailed, "services table not read, so not written either", err)
		return false
	}
	t.age = 0
	t.content = nil
	if t.exists {
		t.content = slices.SortedFunc(slices.Values(rows), compareRows)
	}
	return true
}

func (t *table) write(ctx context.Context, rows []ytclient.ServiceRow) {
	call, cancel := context.WithTimeout(ctx, tableTimeout)
	defer cancel()
	t.wroteAt = time.Now()
	if err := t.store.WriteServices(call, rows); err != nil {
		t.known = false // it may have arrived all the same
		t.fail(ctx, writeFailed, "services table not written, the services are served all the same", err)
		return
	}
	t.known, t.exists, t.content, t.failing = true, true, rows, ""
	t.metrics.writes.WithLabelValues(string(written)).Inc()
	t.log.Info("services table written", "rows", len(rows))
}

// fail counts a failure, and logs it if it is another one than the last.
func (t *table) fail(ctx context.Context, result writeResult, message string, err error) {
	if ctx.Err() != nil {
		return // our own end
	}
	t.metrics.writes.WithLabelValues(string(result)).Inc()
	if reason := cause(err); t.failing != string(result)+reason {
		t.failing = string(result) + reason
		t.log.Warn(message, "reason", reason, "err", err) //nolint:sloglint // one of two constants
	}
}
