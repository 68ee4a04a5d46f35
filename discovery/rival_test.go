package discovery

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"taskproxy/ytclient"
)

// TestRival: somebody overwrites the table who knows of no lease.
func TestRival(t *testing.T) {
	t.Parallel()
	theirs := ytclient.ServiceRow{Domain: "x", OperationID: "theirs", TaskName: "t", Service: "s", Protocol: "http"}
	const period = 10 * time.Second
	// f plays a table whose cycles go on and on. rewrite lets the rival write until we have seen it.
	type play struct {
		t       *testing.T
		s       *store
		table   *table
		log     *bytes.Buffer // read only while nothing else runs
		rewrite func()
	}
	f := func(name string, story func(p *play)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m, err := newMetrics(nil, time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				var log bytes.Buffer
				p := &play{t: t, s: &store{}, log: &log}
				p.table = newTable(p.s, "example.com", period, slog.New(slog.NewTextHandler(&log, nil)), m)
				snapshot, _ := NewSnapshot(nil, nil, []Service{svc("1", "t", "ours")})
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { p.table.run(ctx) })
				running.Go(func() {
					for ctx.Err() == nil {
						p.table.offer(offer{snapshot: snapshot})
						select {
						case <-ctx.Done():
						case <-time.After(period):
						}
					}
				})
				p.s.mu.Lock()
				defer func() {
					p.s.mu.Unlock()
					cancel()
					running.Wait()
				}()
				p.s.pass(time.Second)
				seen := 0.0
				p.rewrite = func() {
					p.s.rewrite(theirs)
					seen++
					for range rereadAfter + 1 {
						if testutil.ToFloat64(m.rewrites) == seen {
							return
						}
						p.s.pass(period)
					}
					t.Fatalf("rewrite %v was not seen", seen)
				}
				story(p)
			})
		})
	}
	stopped := func(p *play, want bool) {
		p.t.Helper()
		holds, yields := p.s.operations() == "1", testutil.ToFloat64(p.table.metrics.yielding) == 0
		if holds == want || yields == want {
			p.t.Errorf("the table names %s, yielding %t; want stopped %t", p.s.operations(), !yields, want)
		}
	}

	f("three times in ten minutes: we stop, keep the lease, and say so once", func(p *play) {
		for range yieldAfter {
			stopped(p, false)
			p.rewrite()
		}
		stopped(p, true)
		known := testutil.ToFloat64(p.table.metrics.upToDate)
		if age := time.Since(time.Unix(0, int64(1e9*known))); age < period {
			p.t.Errorf("the table passed for up to date %s ago, when the rival was seen", age)
		}
		defer func() {
			if known == 0 || testutil.ToFloat64(p.table.metrics.upToDate) <= known {
				p.t.Error("nobody can tell that the table is ours again")
			}
		}()
		writes, looks := len(p.s.writes), p.s.looks
		for range 20 { // the same rows again and again, in the end: the rival lives
			p.s.rewrite(theirs, theirs)
			p.s.pass(5 * time.Minute)
		}
		stopped(p, true)
		if len(p.s.writes) != writes || p.s.looks != looks || p.s.writer == nil {
			p.t.Errorf("%d writes and %d looks although we have stopped, lease %v", len(p.s.writes)-writes, p.s.looks-looks, p.s.writer)
		}
		if n := strings.Count(p.log.String(), "level=WARN"); n != 1 {
			p.t.Errorf("%d warnings, want 1, in\n%s", n, p.log)
		}
		if testutil.ToFloat64(p.table.metrics.upToDate) != known {
			p.t.Error("the table passes for up to date while a rival writes it")
		}
		// It is gone.
		p.s.pass(quietAfter - 6*time.Minute)
		stopped(p, true)
		p.s.pass(5 * time.Minute)
		stopped(p, false)
		if got := testutil.ToFloat64(p.table.metrics.rewrites); got != yieldAfter {
			p.t.Errorf("%v rewrites counted, want those before we stopped", got)
		}
		p.rewrite() // and may come back once or twice
		stopped(p, false)
	})
	f("now and then: we go on", func(p *play) {
		for range 5 {
			p.rewrite()
			p.s.pass(yieldWithin / 2)
			stopped(p, false)
		}
	})
	f("a revision that cannot be read is no news", func(p *play) {
		for range yieldAfter {
			p.rewrite()
		}
		p.s.pass(2 * quietCheck)
		p.s.readErr = ytclient.ErrUnavailable
		p.s.pass(time.Hour)
		stopped(p, true)
		p.s.readErr = nil
		p.s.pass(2 * quietCheck)
		stopped(p, false)
	})
	f("a lease lost and found is no new quarrel", func(p *play) {
		for range yieldAfter {
			p.rewrite()
		}
		p.s.lose()
		p.s.pass(leaseInterval + writeInterval + time.Second)
		stopped(p, false) // who has just come to the lease cannot know
		p.rewrite()
		stopped(p, true)
	})
}
