package discovery

import (
	"context"
	"errors"
	"slices"
	"time"

	"taskproxy/ytclient"
)

const (
	yieldAfter  = 3                // rewrites by somebody else …
	yieldWithin = 10 * time.Minute // … within which we stop writing
	quietAfter  = 10 * time.Minute // without a write by anybody we write again
	quietCheck  = time.Minute      // between two looks whether anybody writes
)

// rival is somebody who writes the services table without a lease: the product that this one replaces, say, still running.
// Two that overwrite each other serve readers worse than either, so we step back and keep the lease: another replica of
// ours would begin the same quarrel. Once nobody has written for a while, we write again.
type rival struct {
	rewrites []time.Time // when we saw one, those of the last yieldWithin

	ahead      bool // we do not write
	revision   uint64
	checkedAt  time.Time
	quietSince time.Time
}

// rewritten notes that the table holds something else than we last saw or wrote there.
func (t *table) rewritten() {
	now := time.Now()
	t.metrics.rewrites.Inc()
	t.rival.rewrites = slices.DeleteFunc(append(t.rival.rewrites, now), func(at time.Time) bool { return now.Sub(at) >= yieldWithin })
	t.log.Info("services table: rewritten by somebody else", "rewrites", len(t.rival.rewrites))
	if len(t.rival.rewrites) < yieldAfter {
		return
	}
	t.rival = rival{rewrites: t.rival.rewrites, ahead: true, quietSince: now}
	t.metrics.yielding.Set(1)
	t.log.Warn("services table: somebody else keeps rewriting it, so it is not written until nobody has for ten minutes; the services are served all the same")
}

// quiet reports whether we may write again. It asks for the table's revision and not for its rows: a rival may write the
// same ones over and over.
func (t *table) quiet(ctx context.Context) bool {
	now := time.Now()
	if now.Sub(t.rival.checkedAt) < quietCheck {
		return false
	}
	t.rival.checkedAt = now
	call, cancel := context.WithTimeout(ctx, tableTimeout)
	defer cancel()
	revision, err := t.store.Revision(call)
	switch {
	case err != nil && !errors.Is(err, ytclient.ErrNotFound):
		t.fail(ctx, readFailed, "services table not read, so not written either", err)
		return false
	case revision != t.rival.revision:
		t.rival.revision, t.rival.quietSince = revision, now
		return false
	case now.Sub(t.rival.quietSince) < quietAfter:
		return false
	}
	t.known = false // what has come to be there is no further rewrite
	t.rival.rewrites = nil
	t.resume()
	t.log.Info("services table: nobody else writes it any more")
	return true
}

// resume ends the stepping back.
func (t *table) resume() {
	t.rival = rival{rewrites: t.rival.rewrites}
	t.metrics.yielding.Set(0)
}
