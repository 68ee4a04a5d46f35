package discovery

import (
	"context"
	"time"

	"taskproxy/ytclient"
)

// seedRetry is the pause before a services table that could not be read at the start is read again.
const seedRetry = 10 * time.Second

// seeds are the rows of the services table as they were at the start. They say who owns which ID, so that a restart and
// another replica give each service the address that its users know.
type seeds struct {
	rows  chan []ytclient.ServiceRow // of one
	tried chan struct{}              // closed after the first attempt to read them
}

func newSeeds() *seeds {
	return &seeds{rows: make(chan []ytclient.ServiceRow, 1), tried: make(chan struct{})}
}

// readSeeds reads them, beside the first cycle, until it succeeds once.
func (d *Discovery) readSeeds(ctx context.Context, s *seeds) {
	rows, err := d.table.initial(ctx)
	if err != nil && ctx.Err() == nil {
		d.log.Warn("services table not read at the start: what it tells of IDs is taken over later, and it is not written before", "reason", cause(err), "err", err)
	}
	if err == nil {
		s.rows <- rows
	}
	close(s.tried)
	for err != nil {
		d.metrics.writes.WithLabelValues(string(readFailed)).Inc()
		select {
		case <-ctx.Done():
			return
		case <-time.After(seedRetry):
		}
		if rows, err = d.table.initial(ctx); err == nil {
			s.rows <- rows
		}
	}
}

// sow tells the labels their owners. The first snapshot waits for the first attempt to read them, which takes seconds at
// most, and no longer: being served is worth more than the best address.
func (d *Discovery) sow(ctx context.Context) {
	s := d.seeds
	if s == nil {
		return
	}
	if !d.ready.Load() {
		select {
		case <-s.tried:
		case <-ctx.Done():
			return
		}
	}
	select {
	case rows := <-s.rows:
		d.labels.Seed(rows, d.bases)
		d.missing.remember(rows)
		d.seeds = nil
	default:
	}
}
