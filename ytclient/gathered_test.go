package ytclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskproxy/ytclient/ytlocal"
	"taskproxy/ytclient/ytlocal/scheduler"
)

// longListing is a cluster whose operations have annotations of some length, and a client that reads little at once.
type longListing struct {
	*testing.T
	cluster *ytlocal.Cluster
	client  *Client
	begun   int
}

func newLongListing(t *testing.T, maxAnswer int) *longListing {
	t.Helper()
	cluster, err := ytlocal.Start(ytlocal.Config{StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	client, err := New(Config{Proxy: cluster.URL(), Token: func() (string, error) { return cluster.RootToken(), nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	client.maxAnswer = maxAnswer
	return &longListing{T: t, cluster: cluster, client: client}
}

// operation begins before all that have begun so far.
func (l *longListing) operation(user string, length int) (id string) {
	l.Helper()
	l.begun++
	return l.operationAt(user, length, time.Duration(l.begun)*time.Second)
}

func (l *longListing) operationAt(user string, length int, ago time.Duration) (id string) {
	l.Helper()
	id = fmt.Sprintf("%x-0-3e803e8-1", l.begun)
	err := l.cluster.Scheduler().Pretend(scheduler.Operation{
		ID: id, User: user, StartTime: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(-ago),
		Annotations: map[string]any{"text": strings.Repeat("x", length)},
	}, nil)
	if err != nil {
		l.Fatal(err)
	}
	return id
}

// want lists and checks what is read, what is odd, and how many calls it takes at most.
func (l *longListing) want(ctx context.Context, read, odd []string, calls int) {
	l.Helper()
	before := l.cluster.Faults().Calls()["list_operations"]
	listing, err := l.client.ListOperations(ctx)
	if err != nil {
		l.Fatal(err)
	}
	var gotRead, gotOdd []string
	for _, o := range listing.Operations {
		gotRead = append(gotRead, o.ID)
		if o.Annotations["text"] == nil || o.BriefProgress == "" {
			l.Errorf("of %s only its name is listed: %+v", o.ID, o)
		}
	}
	for _, o := range listing.Odd {
		gotOdd = append(gotOdd, o.OperationID)
		if !errors.Is(o.Err, errLongItem) && !errors.Is(o.Err, errUnread) {
			l.Errorf("odd: %s: %v", o.OperationID, o.Err)
		}
	}
	if !slices.Equal(gotRead, read) || !slices.Equal(gotOdd, odd) {
		l.Errorf("read %d: %v\nwant %d: %v\nodd %d: %v\nwant %d: %v", len(gotRead), gotRead, len(read), read, len(gotOdd), gotOdd, len(odd), odd)
	}
	if n := l.cluster.Faults().Calls()["list_operations"] - before; n > calls {
		l.Errorf("%d calls of list_operations, want %d at most", n, calls)
	}
}

// One author has operations whose items are longer together than a page may be, among those of others: in a row, apart, and
// some that are longer alone. Only these are not read.
func TestLongItemsHarmNobodyElse(t *testing.T) {
	t.Parallel()
	const page = maxItem // the names of a thousand fit
	l := newLongListing(t, page)
	var read, odd []string
	for range 20 {
		read = append(read, l.operation("alice", 100))
	}
	for range 17 {
		read = append(read, l.operation("eve", page/3))
	}
	read = append(read, l.operation("alice", 100))
	odd = append(odd, l.operation("eve", page))
	read = append(read, l.operation("alice", 100), l.operation("bob", page/2))
	// What follows an item that fills nearly a whole page does not fit into the same one.
	read = append(read, l.operation("eve", page-1_000), l.operation("alice", 2_000), l.operation("eve", page-1_000))
	odd = append(odd, l.operation("eve", 2*page), l.operation("eve", page))
	for range 1_200 {
		read = append(read, l.operation("alice", 10))
	}
	// A call for a long item at worst, a few until pages have their size again, each time, and two for names.
	l.want(t.Context(), read, odd, 40)
	// The next time it is known where those are that cannot be read, and pages go around them.
	var asked atomic.Int64
	l.cluster.Faults().Add(ytlocal.Fault{Command: "list_operations", Edit: func(v any) any {
		for _, item := range v.(map[string]any)["operations"].([]any) {
			if m := item.(map[string]any); m["runtime_parameters"] != nil && slices.Contains(odd, m["id"].(string)) {
				asked.Add(1)
			}
		}
		return v
	}})
	l.want(t.Context(), read, odd, 40)
	if n := asked.Load(); n != 0 {
		t.Errorf("%d that are known to be too long were asked for again", n)
	}
	// After a while they are.
	for id := range l.client.heavy.until {
		l.client.heavy.until[id] = time.Now()
	}
	l.want(t.Context(), read, odd, 40)
	if n := asked.Load(); n == 0 {
		t.Error("those that were too long are never asked for again")
	}
}

// The cluster's cursor cannot begin between operations of one instant: what comes after one there that cannot be read, cannot be
// read either, and is told so. Everything else is there.
func TestLongItemsOfOneInstant(t *testing.T) {
	t.Parallel()
	const page = 1 << 14
	l := newLongListing(t, page)
	read := []string{l.operation("alice", 100)}
	l.operation("eve", page)
	// Two of one instant, when pages are of one operation each.
	for range 2 {
		l.begun++
		read = append(read, l.operationAt("alice", page/3, 50*time.Second))
	}
	var same []string
	for _, length := range []int{100, 2 * page, 100, page} {
		l.begun++
		same = append(same, l.operationAt("eve", length, 100*time.Second))
	}
	l.begun = 200
	older := l.operation("alice", 100)

	listing, err := l.client.ListOperations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]bool{}
	for _, o := range listing.Operations {
		told[o.ID] = true
	}
	for _, id := range append(read, older) {
		if !told[id] {
			t.Errorf("%s is not listed", id)
		}
	}
	for _, o := range listing.Odd {
		told[o.OperationID] = true
	}
	if len(listing.Odd) > 5 {
		t.Errorf("odd: %v", listing.Odd)
	}
	for _, id := range same {
		if !told[id] {
			t.Errorf("%s is neither listed nor odd", id)
		}
	}
	if len(told) != 9 {
		t.Errorf("%d operations are told of: %v", len(told), told)
	}
}

// However many there are, the calls are bounded and ask for little, and what there is no call left for has its name.
func TestLongItemsUseUpTheCalls(t *testing.T) {
	t.Parallel()
	const page = 1 << 15
	l := newLongListing(t, page)
	read := []string{l.operation("alice", 100)}
	var odd []string
	for range maxPages + 20 {
		odd = append(odd, l.operation("eve", page))
	}
	odd = append(odd, l.operation("alice", 100))
	var asked atomic.Int64
	l.cluster.Faults().Add(ytlocal.Fault{Command: "list_operations", Match: func(c ytlocal.Call) bool {
		if len(c.Params["attributes"].([]any)) > len(nameAttributes) {
			asked.Add(c.Params["limit"].(int64))
		}
		return false
	}})
	l.want(t.Context(), read, odd, maxPages+2)
	if n := asked.Load(); n > pageSize+2*maxPages {
		t.Errorf("the cluster was asked for what %d operations have, for none", n)
	}
}

// When half of the time is used up, the rest is for names.
func TestLongItemsUseUpTheTime(t *testing.T) {
	t.Parallel()
	const page = 1 << 15
	l := newLongListing(t, page)
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	read := []string{l.operation("alice", 100)}
	odd := []string{l.operation("eve", page), l.operation("alice", 100)}
	l.cluster.Faults().Add(ytlocal.Fault{Command: "list_operations", Delay: 3500 * time.Millisecond, Match: func(c ytlocal.Call) bool {
		_, later := c.Params["cursor_time"]
		return later && len(c.Params["attributes"].([]any)) > len(nameAttributes)
	}})
	l.want(ctx, read, odd, 3)
}

// Long items are not decoded, and large ones of one user only up to so much.
func TestLargeItemsOfOneUser(t *testing.T) {
	t.Parallel()
	const fit = maxLarge / maxItem
	ids := 0
	p := operationsPage{}
	add := func(user string, size int) (id string) {
		ids++
		i := identify([]byte(strings.Replace(opItem(fmt.Sprintf("%x-0-3e803e8-1", ids), t0), "alice", user, 1)))
		i.size = size
		p.items = append(p.items, i)
		return i.ID
	}
	var read, odd []string
	odd = append(odd, add("alice", maxItem+1))
	for range fit {
		read = append(read, add("eve", maxItem))
	}
	odd = append(odd, add("eve", maxItem), add("eve", largeItem+1))
	read = append(read, add("eve", largeItem), add("bob", maxItem))

	g := newGathered(t.Context())
	g.take(p)
	g.take(p) // as at the edge of a page
	var gotRead, gotOdd []string
	for _, o := range g.listing.Operations {
		gotRead = append(gotRead, o.ID)
	}
	for _, o := range g.listing.Odd {
		gotOdd = append(gotOdd, o.OperationID)
	}
	if !slices.Equal(gotRead, read) || !slices.Equal(gotOdd, odd) {
		t.Errorf("read %v, want %v; odd %v, want %v", gotRead, read, gotOdd, odd)
	}
}

func TestHeavyIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var h heavy
		if h.any() || h.has("one") {
			t.Error("something is heavy from the beginning")
		}
		h.note("")
		h.note("one")
		time.Sleep(heavyFor / 2)
		h.note("two")
		if time.Sleep(heavyFor/2 - 1); !h.any() || !h.has("one") || !h.has("two") || h.has("three") {
			t.Errorf("too soon: %v", h.until)
		}
		if time.Sleep(time.Nanosecond); !h.any() || h.has("one") || len(h.until) != 1 {
			t.Errorf("one is not forgotten: %v", h.until)
		}
		if time.Sleep(heavyFor); h.any() || len(h.until) != 0 {
			t.Errorf("there are %v", h.until)
		}
	})
}
