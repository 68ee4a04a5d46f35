package discovery

import (
	"context"
	"strings"
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
// most, and no longer: being served is worth more than the best address. Until they are read, no label that two services
// claim leads to either.
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
		d.labels.unsown = true
	}
}

// setAside takes the labels that two of the services claim from both, as long as the services table has not told whose they
// are: the older of the two need not be their owner. It settles nothing, so that they come back as if nothing had been.
func (l *Labels) setAside(drafts []draft) (problems []Problem) {
	if !l.unsown {
		return nil
	}
	claims := make(map[string]int, 2*len(drafts))
	ids, aliases := make([]string, len(drafts)), make([]string, len(drafts))
	for i := range drafts {
		in := drafts[i].in
		ids[i] = ShortID(in.OperationID, in.Task, in.Name)
		claims[ids[i]]++
		if strings.HasPrefix(in.Alias, "*") {
			aliases[i], _ = newAliasLabel(in.Alias, in.Task, in.Name)
			claims[aliases[i]]++
		}
	}
	for i := range drafts {
		d := &drafts[i]
		if d.noID = claims[ids[i]] > 1; d.noID {
			problems = append(problems, d.problem(Collision, "another service claims its ID "+ids[i]+
				" as well, and the services table, which tells whose it is, could not be read yet; it is published as "+d.longID))
		}
		if d.noAlias = aliases[i] != "" && claims[aliases[i]] > 1; d.noAlias {
			problems = append(problems, d.problem(Collision, "another service claims its alias label "+quote(aliases[i])+
				" as well, and the services table could not be read yet; it is reached by its ID"))
		}
	}
	return problems
}
