package discovery

import (
	"context"
	"maps"
	"slices"
	"time"
)

// settleSlowly asks what may take as long as a call may: about operations that were asked about in vain, exec nodes likewise, or
// about jobs in doubt, and the places where authors write addresses. Nobody else waits for that: what is known without it is
// swapped in before, and it makes room for a cycle that somebody waits for. Each part reports whether anything may have come
// of it; what there was no time for is asked the next time.
func (d *Discovery) settleSlowly(ctx context.Context, now time.Time) {
	// Not twice in a row, so that there is time for it at all.
	slow, stop := d.slowly(ctx, !d.interrupted)
	defer func() { d.interrupted = stop() }()
	ops := slices.Collect(maps.Values(d.tracked)) // in no order, so that there is time for each once
	told := d.askNodes(slow, ops, now)
	parts := []func() bool{
		func() bool { return d.askAgain(slow, ops, now) },
		func() bool { return d.askMissing(slow, now) },
		func() bool { return d.askSuspects(slow, ops, now) },
		func() bool { return d.askAddresses(ctx, slow, ops) },
	}
	d.turn++
	for i := range parts { // each is the first once
		told = parts[(i+d.turn)%len(parts)]() || told
	}
	if told && ctx.Err() == nil {
		d.swap()
	}
}

// slowly is the context of the slow part of a cycle. It ends when the time of one call is over, or when somebody waits for
// another cycle, if it may. stop must be called; it reports whether somebody did.
func (d *Discovery) slowly(ctx context.Context, may bool) (slow context.Context, stop func() bool) {
	slow, cancel := context.WithCancel(ctx)
	// Calls that are under way when the time is over have had less than theirs, so they are cancelled, not late.
	timer := time.AfterFunc(d.callTimeout+time.Second, cancel)
	interrupted := false
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		woken := false
		for slow.Err() == nil {
			select {
			case <-slow.Done():
			case <-d.early.changed:
				if woken = true; may && d.early.awaited() {
					interrupted = true
					cancel()
				}
			}
		}
		if woken {
			d.early.tell() // Run has not seen it
		}
	}()
	return slow, func() bool {
		timer.Stop()
		cancel()
		<-ended
		return interrupted
	}
}

// askAgain asks about the operations of which a call has failed. Nobody waits for these; if one runs out of time, for as long
// they are not asked about.
func (d *Discovery) askAgain(ctx context.Context, ops []*tracked, now time.Time) bool {
	var untold, unlisted []*tracked
	ops = slices.DeleteFunc(slices.Clone(ops), func(t *tracked) bool { return t.failedAt.Equal(now) })
	for _, t := range ops {
		if t.untold != nil && (!t.present || !t.resolved) && !d.silent.has(t.op.ID, now) {
			untold = append(untold, t)
		}
	}
	forEach(ctx, d.concurrency, untold, func(t *tracked) { d.askOperation(ctx, t, now) })
	for _, t := range ops {
		if (t.unlisted != nil || slices.Contains(untold, t)) && t.jobsNeeded(now) && !d.silent.has(t.op.ID, now) {
			unlisted = append(unlisted, t)
		}
	}
	forEach(ctx, d.concurrency, unlisted, func(t *tracked) { d.listJobs(ctx, t, now) })
	d.askPorts(ctx, unlisted, now)
	d.forget()
	return len(untold)+len(unlisted) > 0
}
