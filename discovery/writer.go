package discovery

import (
	"context"
	"errors"
	"slices"
	"time"

	"taskproxy/ytclient"
)

const (
	rereadAfter    = 10              // answered cycles after which the table is read again: others may write it as well
	releaseTimeout = 5 * time.Second // of giving up the lease
	believeEmptyAt = 2               // how many cycles after the start must find nothing before a table with rows is emptied
)

// writeResult says how an attempt to bring the table up to date went.
type writeResult string

const (
	written     writeResult = "written"
	readFailed  writeResult = "read_failed"
	writeFailed writeResult = "write_failed"
	leaseFailed writeResult = "lease_failed" // to be had, for another reason than that another replica has it
	leaseLost   writeResult = "lease_lost"   // on the way
)

var writeResults = []writeResult{written, readFailed, writeFailed, leaseFailed, leaseLost}

// acquire tries to become the writer, and reports whether this replica is now.
func (t *table) acquire(ctx context.Context) bool {
	t.triedAt = time.Now()
	call, cancel := context.WithTimeout(ctx, tableTimeout)
	defer cancel()
	w, err := t.store.AcquireWriter(call)
	var held *ytclient.HeldError
	switch {
	case errors.As(err, &held):
		t.failing = ""
		if t.holder != held.Transaction || t.holder == "" {
			t.holder = held.Transaction
			t.log.Info("services table: another replica writes", "holder", quote(held.Holder), "transaction", quote(held.Transaction), "user", quote(held.User))
		}
		return false
	case err != nil:
		t.fail(ctx, leaseFailed, "services table: no lease on its directory, so it is not written; the services are served all the same", err)
		return false
	}
	t.writer, t.pending, t.holder, t.failing = w, true, "", ""
	t.metrics.lease.Set(1)
	t.log.Info("services table: this replica writes")
	return true
}

// release lets another have the lease.
func (t *table) release(ctx context.Context) {
	if t.writer == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := t.writer.Release(ctx); err != nil {
		t.log.Warn("services table: the lease is not given up, it ends by itself", "reason", cause(err), "err", err)
	}
	t.drop("services table: the lease is given up")
}

// drop forgets the lease and what was learned by it. The rewrites of a rival are remembered: whoever gets the lease back
// does not begin the quarrel anew.
func (t *table) drop(message string) {
	t.writer, t.known = nil, false
	t.resume()
	t.metrics.lease.Set(0)
	t.log.Info(message) //nolint:sloglint // one of two constants
}

// sync makes one attempt for the latest offer. What fails is tried again with the next one: each answered cycle makes an
// offer, also when nothing has changed.
func (t *table) sync(ctx context.Context) {
	if t.rival.ahead && !t.quiet(ctx) {
		return
	}
	if t.known && t.age < rereadAfter {
		if _, write := t.decide(); !write {
			t.succeed()
			return
		}
	}
	call, cancel := context.WithTimeout(ctx, tableTimeout)
	defer cancel()
	t.syncedAt = time.Now()
	result, rows := readFailed, []ytclient.ServiceRow(nil)
	wrote, err := t.writer.Sync(call, func(current []ytclient.ServiceRow, exists bool) (_ []ytclient.ServiceRow, write bool) {
		t.look(current, exists)
		result = writeFailed
		rows, write = t.decide()
		return rows, write
	})
	switch {
	case errors.Is(err, ytclient.ErrLeaseLost):
		t.fail(ctx, leaseLost, "services table not written, another replica may have taken over", err)
		t.release(ctx) // as far as there is anything left of it
	case err != nil:
		t.known = false // a write may have arrived all the same
		t.fail(ctx, result, "services table not written, the services are served all the same", err)
	case wrote:
		t.exists, t.content, t.failing = true, rows, ""
		t.metrics.writes.WithLabelValues(string(written)).Inc()
		t.log.Info("services table written", "rows", len(rows))
	}
	if err == nil {
		t.succeed()
	}
}

// succeed notes that the table holds what it should, unless it is left to a rival.
func (t *table) succeed() {
	if !t.rival.ahead {
		t.metrics.upToDate.SetToCurrentTime()
	}
}

// look takes over what the table holds.
func (t *table) look(current []ytclient.ServiceRow, exists bool) {
	var content []ytclient.ServiceRow
	if exists {
		content = slices.SortedFunc(slices.Values(current), compareRows)
	}
	if t.known && (t.exists != exists || !slices.Equal(t.content, content)) {
		t.rewritten()
	}
	t.known, t.exists, t.content, t.age = true, exists, content, 0
}

// decide compares the latest offer with what the table holds.
func (t *table) decide() (rows []ytclient.ServiceRow, write bool) {
	rows = withHeld(Rows(t.latest.snapshot, t.base), t.content, t.latest.unresolved)
	switch {
	case t.rival.ahead, t.exists && slices.Equal(rows, t.content):
		return nil, false
	case len(rows) == 0 && len(t.content) > 0 && !t.nonempty && t.empty < believeEmptyAt:
		return nil, false // a cluster that has just come up may well answer that nothing runs
	}
	return rows, true
}

// fail counts a failure, and logs it if it is another one than the last.
func (t *table) fail(ctx context.Context, result writeResult, message string, err error) {
	if ctx.Err() != nil {
		return // our own end
	}
	t.metrics.writes.WithLabelValues(string(result)).Inc()
	reason := cause(err)
	if t.failing == string(result)+reason {
		return
	}
	t.failing = string(result) + reason
	attrs := []any{"reason", reason, "err", err}
	if errors.Is(err, ytclient.ErrDenied) {
		attrs = append(attrs, "hint", "the robot needs read, write, create and remove on the directory of the table, and use on its account")
	}
	t.log.Warn(message, attrs...) //nolint:sloglint // one of few constants
}
