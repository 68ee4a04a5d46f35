package ytclient

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Authors decide how long their operations' items are, and everybody's items come in one listing. So nobody's may choke it:
// a page is read as far as it is held in memory, what is whole in it counts, and the rest is asked for in smaller pages that
// begin exactly where something is missing. Next time they go around those that were long.

const (
	// maxItem is the longest item that is decoded, in bytes. Decoded it is several times as long.
	maxItem = 256 << 10
	// largeItem is a length that few items have. Those that have it are, of one user, at most maxLarge together: what is
	// listed stays in memory until the next listing.
	largeItem = 16 << 10
	maxLarge  = 16 << 20
	// heavyFor is how long an item that was too long, and made a listing long, is not asked for again.
	heavyFor = 5 * time.Minute
)

var (
	errLongItem = errors.New("what the cluster tells about it is too long")
	errUnread   = errors.New("what the cluster tells about the operations before it took too long to read")
)

// nameAttributes are those that the cluster itself writes. A page of them is short, whatever authors do.
var nameAttributes = []string{"id", "state", "authenticated_user", "start_time"}

// gathered is what a listing has so far.
type gathered struct {
	listing Listing
	seen    map[string]bool
	large   map[string]int // bytes of large items, by user
	until   time.Time      // when to stop reading items that make the listing long; zero: never
}

// newGathered begins a listing. Half of its time is for what is too long; the other half is for all else.
func newGathered(ctx context.Context) *gathered {
	g := &gathered{seen: make(map[string]bool), large: make(map[string]int)}
	if deadline, ok := ctx.Deadline(); ok {
		g.until = time.Now().Add(time.Until(deadline) / 2)
	}
	return g
}

// take adds the operations of a page that are not there yet.
func (g *gathered) take(p operationsPage) {
	for _, i := range p.items {
		if i.ID != "" && g.seen[i.ID] {
			continue
		}
		if i.size > maxItem || i.size > largeItem && g.large[i.User]+i.size > maxLarge {
			g.odd(i.ID, errLongItem)
			continue
		}
		if i.size > largeItem {
			g.large[i.User] += i.size
		}
		o, err := i.decode()
		if err != nil {
			g.odd(i.ID, err)
			continue
		}
		g.seen[o.ID] = true
		g.listing.Operations = append(g.listing.Operations, o)
	}
}

func (g *gathered) odd(id string, err error) {
	if id != "" {
		g.seen[id] = true
	}
	g.listing.Odd = append(g.listing.Odd, OddItem{OperationID: id, Err: err})
}

// listByName lists what is missing of the operations that started before the cursor. It asks for their names first, so that
// one that cannot be read has a name, and the page after it a place to begin.
func (c *Client) listByName(ctx context.Context, g *gathered, cursor time.Time, limit int) error {
	left := maxPages
	for range maxPages {
		names, err := c.operationsPage(ctx, cursor, pageSize, nameAttributes)
		switch {
		case err != nil:
			return err
		case names.cut:
			return fmt.Errorf("list_operations: %w: the names of %d operations alone are longer than %d bytes", ErrUnavailable, pageSize, c.maxAnswer)
		}
		for i, name := range names.items {
			switch {
			case name.ID == "" || g.seen[name.ID]:
				continue
			case c.heavy.has(name.ID):
				g.odd(name.ID, errLongItem)
				continue
			case name.StartTime.IsZero() || left == 0 || !g.until.IsZero() && time.Now().After(g.until):
				g.odd(name.ID, errUnread)
				continue
			}
			left--
			if limit, err = c.listFrom(ctx, g, names, i, limit); err != nil {
				return err
			}
		}
		if !names.incomplete {
			return nil
		}
		if cursor, err = names.after(cursor); err != nil {
			return err
		}
	}
	return errManyPages
}

// listFrom lists a page of so many operations at most that begins with the i-th of the names, and returns how many to ask for
// the next time. Whatever comes of it, nothing is open about that operation any more.
func (c *Client) listFrom(ctx context.Context, g *gathered, names operationsPage, i, limit int) (next int, err error) {
	// The page begins with its instant, has room for all that started then, and ends before the next that is heavy.
	name := names.items[i]
	before, same := names.instant(i)
	room := before + len(names.items) - i
	if k := slices.IndexFunc(names.items[i:], func(n listedItem) bool { return c.heavy.has(n.ID) }); k >= 0 {
		room = before + k
	}
	p, err := c.operationsPage(ctx, name.StartTime.Add(time.Microsecond), max(min(limit, room), same), operationAttributes)
	if err != nil {
		return 0, err
	}
	g.take(p)
	if p.cut && !g.seen[name.ID] {
		g.odd(name.ID, errLongItem)
		c.heavy.note(name.ID)
	}
	for _, item := range p.items {
		if item.size > maxItem {
			c.heavy.note(item.ID)
		}
	}
	g.seen[name.ID] = true // if it is not in a page that is whole, it has ended since
	return p.nextLimit(limit), nil
}

// instant is how many operations of the page started when the i-th did, and how many of them come before it.
func (p operationsPage) instant(i int) (before, n int) {
	for k, o := range p.items {
		if o.StartTime.Equal(p.items[i].StartTime) {
			if n++; k < i {
				before++
			}
		}
	}
	return before, n
}

// nextLimit is how many operations to ask for after a page of so many: as many as were whole in one that was cut, and more
// again when pages are light.
func (p operationsPage) nextLimit(limit int) int {
	switch {
	case p.cut:
		return max(1, len(p.items))
	case p.light:
		return min(pageSize, 4*limit)
	}
	return limit
}

// heavy remembers the operations whose items made a listing long, until when they are not asked for. As long as there are any,
// listings go by names from the beginning. Safe for concurrent use.
type heavy struct {
	mu    sync.Mutex
	until map[string]time.Time
}

func (h *heavy) note(id string) {
	if id == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.until == nil {
		h.until = make(map[string]time.Time)
	}
	h.until[id] = time.Now().Add(heavyFor)
}

func (h *heavy) has(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	until, ok := h.until[id]
	return ok && time.Now().Before(until)
}

// any reports whether there are any, and forgets those whose time is over.
func (h *heavy) any() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(h.until, func(_ string, until time.Time) bool { return !now.Before(until) })
	return len(h.until) > 0
}
