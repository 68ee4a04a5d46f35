package ytclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"go.ytsaurus.tech/yt/go/yson"
)

const (
	// maxSingles is how many operations one listing asks for one by one at most; maxAgain, how many of these have been asked for
	// by earlier listings: the others are told as they were then.
	maxSingles = 2_000
	maxAgain   = 128
	// singlesAtOnce is how many are asked for at the same time.
	singlesAtOnce = 16
)

// single is what an operation that is asked for on its own has told.
type single struct {
	Operation
	size  int  // bytes
	long  bool // too long, and nothing of it is known; it is asked for on its own again after heavyFor
	asked time.Time
}

type singles map[string]single // by operation

var singleAttributes = []string{"id", "brief_spec", "runtime_parameters"}

// listSingles lists what is still missing of the names. Those who start many operations wait for those who start few: the
// first missing one of each user comes first, then the second, and so on. What cannot be asked is odd.
func (c *Client) listSingles(ctx context.Context, g *gathered, names []listedItem) error {
	fresh, again := g.missingSingles(names)
	asked := min(len(again), maxAgain)
	for _, name := range again[asked:] {
		g.addSingle(name, g.known[name.ID])
	}
	for a := range c.askSingles(ctx, g.until, slices.Concat(fresh[:min(len(fresh), maxSingles)], again[:asked])) {
		switch {
		case errors.Is(a.err, ErrNoSuchOperation):
			g.seen[a.name.ID] = true // it has ended since
		case errors.Is(a.err, errLongAnswer):
			g.tooLong(a.name.ID)
		case a.err != nil:
			g.unread(a.name, a.err)
		default:
			item := listedItem{Operation: a.name.Operation, fields: a.fields}
			if o, err := item.decode(); err != nil {
				g.odd(a.name.ID, err)
			} else {
				g.addSingle(a.name, single{Operation: o, size: a.size, asked: time.Now()})
			}
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("list_operations: %w: %w", ErrUnavailable, err)
	}
	for _, name := range slices.Concat(fresh, again) {
		if g.missing(name) {
			g.unread(name, errUnread)
		}
	}
	return nil
}

// missingSingles are the names of which nothing is listed yet and something may be: those of which nothing is known, and those
// of which something is, the ones first that were asked for longest ago.
func (g *gathered) missingSingles(names []listedItem) (fresh, again []listedItem) {
	rank, of := make(map[string]int), make(map[string]int)
	for _, name := range names {
		last, known := g.known[name.ID]
		_, twice := rank[name.ID]
		switch {
		case twice || !g.missing(name):
			continue
		case name.err != nil:
			g.odd(name.ID, name.err)
			continue
		case last.long && time.Since(last.asked) < heavyFor:
			g.unread(name, errLongItem)
			continue
		case known && !last.long:
			again = append(again, name)
		default:
			fresh = append(fresh, name)
		}
		rank[name.ID] = of[name.User]
		of[name.User]++
	}
	slices.SortStableFunc(fresh, func(a, b listedItem) int { return cmp.Compare(rank[a.ID], rank[b.ID]) })
	slices.SortStableFunc(again, func(a, b listedItem) int { return g.known[a.ID].asked.Compare(g.known[b.ID].asked) })
	return fresh, again
}

// addSingle adds what an operation has told, with what its name tells now.
func (g *gathered) addSingle(name listedItem, s single) {
	if !g.fits(name.ID, name.User, s.size) {
		return
	}
	g.next[name.ID] = s
	o := s.Operation
	o.State, o.BriefProgress = name.State, string(name.fields["brief_progress"])
	g.add(o)
}

// unread adds what is known of an operation that was not asked for, or in vain; if nothing is, it is odd.
func (g *gathered) unread(name listedItem, err error) {
	last, known := g.known[name.ID]
	switch {
	case known && !last.long:
		g.addSingle(name, last)
		return
	case known:
		g.next[name.ID] = last
	}
	g.odd(name.ID, err)
}

type singleAnswer struct {
	name   listedItem
	fields map[string]yson.RawValue
	size   int // bytes
	err    error
}

// askSingles yields answers as they come, until that time (zero: without end), or until the cluster has enough of us.
func (c *Client) askSingles(ctx context.Context, until time.Time, names []listedItem) iter.Seq[singleAnswer] {
	return func(yield func(singleAnswer) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if !until.IsZero() {
			ctx, cancel = context.WithDeadline(ctx, until)
			defer cancel()
		}
		asked, answers := make(chan listedItem, len(names)), make(chan singleAnswer)
		for _, name := range names {
			asked <- name
		}
		close(asked)
		var wg sync.WaitGroup
		for range min(singlesAtOnce, len(names)) {
			wg.Go(func() {
				for name := range asked {
					if ctx.Err() != nil {
						return
					}
					a := c.askSingle(ctx, name)
					switch {
					case a.err != nil && ctx.Err() != nil:
						return
					case errors.Is(a.err, ErrOverloaded), errors.Is(a.err, ErrUnauthenticated):
						cancel()
					}
					answers <- a
				}
			})
		}
		go func() { wg.Wait(); close(answers) }()
		more := true
		for a := range answers {
			if more = more && yield(a); !more {
				cancel()
			}
		}
	}
}

// askSingle asks for what authors write of one operation. errLongAnswer: that is too long.
func (c *Client) askSingle(ctx context.Context, name listedItem) singleAnswer {
	a := singleAnswer{name: name}
	params := map[string]any{"operation_id": name.ID, "attributes": singleAttributes}
	a.err = c.do(ctx, "get_operation", func(ctx context.Context) error {
		body, cut, err := c.getBody(ctx, "get_operation", params, min(c.bounds.item, c.bounds.answer))
		switch {
		case err != nil:
			return err
		case cut:
			return errLongAnswer
		}
		a.size = len(body)
		a.fields, err = answerMap(body)
		return err
	})
	return a
}
