package ytclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Authors decide how long their operations' items are, and everybody's items come in one listing. So nobody's may choke it:
// a page is read as far as it is held in memory, and what is whole in it counts. What is missing has its name from pages of
// names, which no author can make long; it is then asked for in pages that go around all that is known to be too long, and
// where these would be short, one by one (singles.go).

const (
	// maxItem is the longest item that is decoded, in bytes. Decoded it is several times as long.
	maxItem = 256 << 10
	// largeItem is a length that few items have. Those that have it are, of one user, at most maxLarge together: what is
	// listed stays in memory until the next listing.
	largeItem = 16 << 10
	maxLarge  = 16 << 20
	// maxRuns bounds the pages of a listing that goes by names, but those of names; maxCut those of all that are cut.
	maxRuns = 16
	maxCut  = 4
	// minRun is how many operations in a row are worth a page.
	minRun = 32
)

var (
	errLongItem = errors.New("what the cluster tells about it is too long")
	errUnread   = errors.New("what the cluster tells about other operations took too long to read")
)

// nameAttributes are those that the cluster itself writes. A page of them is short, whatever authors do.
var nameAttributes = []string{"id", "state", "authenticated_user", "start_time", "brief_progress"}

// gathered is what a listing has so far.
type gathered struct {
	bounds  bounds
	listing Listing
	known   singles // of the listing before
	next    singles // for the listing after, if it goes by names
	seen    map[string]bool
	large   map[string]int // bytes of large items, by user
	cut     int            // pages
	until   time.Time      // when to stop reading items that make the listing long; zero: never
}

// newGathered begins a listing. Half of its time is for what is too long; the other half is for all else.
func newGathered(ctx context.Context, b bounds, known *singles) *gathered {
	g := &gathered{bounds: b, known: *known, next: make(singles), seen: make(map[string]bool), large: make(map[string]int)}
	if deadline, ok := ctx.Deadline(); ok {
		g.until = time.Now().Add(time.Until(deadline) / 2)
	}
	return g
}

func (g *gathered) late() bool { return !g.until.IsZero() && !time.Now().Before(g.until) }

func (g *gathered) missing(name listedItem) bool { return name.ID != "" && !g.seen[name.ID] }

// anyLong reports whether pages must go around something.
func (g *gathered) anyLong() bool {
	for _, s := range g.known {
		if s.long {
			return true
		}
	}
	return false
}

// isLong reports whether pages must go around an operation.
func (g *gathered) isLong(name listedItem) bool { return g.known[name.ID].long || g.next[name.ID].long }

// take adds the operations of a page that are not there yet.
func (g *gathered) take(p operationsPage) {
	for _, i := range p.items {
		if i.ID != "" && g.seen[i.ID] || !g.fits(i.ID, i.User, i.size) {
			continue
		}
		o, err := i.decode()
		if err != nil {
			g.odd(i.ID, err)
			continue
		}
		g.add(o)
	}
}

// fits counts an item of so many bytes, or notes that it is too long.
func (g *gathered) fits(id, user string, size int) bool {
	switch {
	case size > g.bounds.item, size > g.bounds.large && g.large[user]+size > g.bounds.userLarge:
		g.tooLong(id)
		return false
	case size > g.bounds.large:
		g.large[user] += size
	}
	return true
}

func (g *gathered) add(o Operation) {
	g.seen[o.ID] = true
	g.listing.Operations = append(g.listing.Operations, o)
}

func (g *gathered) odd(id string, err error) {
	if id != "" {
		g.seen[id] = true
	}
	g.listing.Odd = append(g.listing.Odd, OddItem{OperationID: id, Err: err})
}

func (g *gathered) tooLong(id string) {
	g.next[id] = single{long: true, asked: time.Now()}
	g.odd(id, errLongItem)
}

// nextLimit counts a page of so many operations at most, and is how many the next one should have: if it was cut, and that by
// nothing that the next one goes around, as many as were whole; more again when pages are light.
func (g *gathered) nextLimit(p operationsPage, limit int) int {
	switch {
	case p.cut:
		g.cut++
		if !slices.ContainsFunc(p.items, g.isLong) {
			return max(1, len(p.items))
		}
	case p.light:
		return min(pageSize, 4*limit)
	}
	return limit
}

// listByName lists what is missing. It begins with pages of so many operations.
func (c *Client) listByName(ctx context.Context, g *gathered, limit int) (Listing, error) {
	names, err := c.listNames(ctx)
	if err != nil {
		return Listing{}, err
	}
	if err := c.listRuns(ctx, g, names, limit); err != nil {
		return Listing{}, err
	}
	if err := c.listSingles(ctx, g, names); err != nil {
		return Listing{}, err
	}
	c.singles.Store(&g.next)
	slices.SortStableFunc(g.listing.Operations, func(a, b Operation) int {
		return cmp.Or(b.StartTime.Compare(a.StartTime), cmp.Compare(b.ID, a.ID))
	})
	slices.SortStableFunc(g.listing.Odd, func(a, b OddItem) int { return cmp.Compare(a.OperationID, b.OperationID) })
	return g.listing, nil
}

// listNames lists the names of all operations, newest first, some perhaps twice.
func (c *Client) listNames(ctx context.Context) (names []listedItem, err error) {
	var cursor time.Time
	for range maxPages {
		p, err := c.operationsPage(ctx, cursor, pageSize, nameAttributes)
		switch {
		case err != nil:
			return nil, err
		case p.cut:
			return nil, fmt.Errorf("list_operations: %w: the names of %d operations alone are longer than %d bytes", ErrUnavailable, pageSize, c.bounds.answer)
		}
		names = append(names, p.items...)
		if !p.incomplete {
			return names, nil
		}
		if cursor, err = p.after(cursor); err != nil {
			return nil, err
		}
	}
	return nil, errManyPages
}

// listRuns lists, page by page, where many operations in a row are missing with none between them that is known to be too
// long. What it leaves out is left to listSingles.
func (c *Client) listRuns(ctx context.Context, g *gathered, names []listedItem, limit int) error {
	missing := 0
	for _, name := range names {
		if g.missing(name) {
			missing++
		}
	}
	worth := max(minRun, missing/maxRuns) // so no more than maxRuns are
	left := maxRuns
	for i := 0; i < len(names) && left > 0 && g.cut < maxCut && !g.late(); {
		if !g.missing(names[i]) || g.isLong(names[i]) || names[i].StartTime.IsZero() {
			i++
			continue
		}
		end, n := i, 0
		for ; end < len(names) && !g.isLong(names[end]); end++ {
			if g.missing(names[end]) {
				n++
			}
		}
		if min(n, limit) < worth {
			i = end
			continue
		}
		left--
		// The cursor excludes its own instant.
		p, err := c.operationsPage(ctx, names[i].StartTime.Add(time.Microsecond), min(limit, end-i), operationAttributes)
		if err != nil {
			return err
		}
		g.take(p)
		limit = g.nextLimit(p, limit)
		// Whatever was not told by a page that should, has ended, or is what the page was cut in.
		for p.cut && i < end && !g.missing(names[i]) {
			i++
		}
		i++
	}
	return nil
}
