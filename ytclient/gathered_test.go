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

	"go.ytsaurus.tech/yt/go/yterrors"

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
	client.bounds.answer = maxAnswer
	return &longListing{T: t, cluster: cluster, client: client}
}

// smaller makes all that is long by so many times shorter: the tests handle fewer bytes.
func (l *longListing) smaller(times int) bounds {
	m := &l.client.bounds
	for _, v := range []*int{&m.answer, &m.operation, &m.jobs, &m.item, &m.large, &m.userLarge} {
		*v /= times
	}
	return *m
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

// want lists and checks what is read, what is odd, and how many calls it takes at most, of pages and of single operations.
func (l *longListing) want(ctx context.Context, read, odd []string, pages, singles int) {
	l.Helper()
	before := l.cluster.Faults().Calls()
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
	odd = slices.Sorted(slices.Values(odd))
	if !slices.Equal(gotRead, read) || !slices.Equal(gotOdd, odd) {
		l.Errorf("read %d: %v\nwant %d: %v\nodd %d: %v\nwant %d: %v", len(gotRead), gotRead, len(read), read, len(gotOdd), gotOdd, len(odd), odd)
	}
	after := l.cluster.Faults().Calls()
	if n := after["list_operations"] - before["list_operations"]; n > pages {
		l.Errorf("%d calls of list_operations, want %d at most", n, pages)
	}
	if n := after["get_operation"] - before["get_operation"]; n > singles {
		l.Errorf("%d calls of get_operation, want %d at most", n, singles)
	}
}

// Authors have operations whose items are longer together than a page may be, among those of others: in a row, apart, and some
// that are too long alone. Only these are not read.
func TestLongItemsHarmNobodyElse(t *testing.T) {
	t.Parallel()
	l := newLongListing(t, maxAnswer)
	const times = 16
	l.smaller(times)
	m := &l.client.bounds
	m.answer, m.userLarge = m.answer/2, m.userLarge/2
	var read, odd []string
	for range 20 {
		read = append(read, l.operation("alice", 100))
	}
	each := m.userLarge / (200 << 10 / times)
	for _, user := range []string{"eve", "mallory", "trudy"} {
		for range each {
			read = append(read, l.operation(user, 180<<10/times))
		}
	}
	read = append(read, l.operation("alice", 100))
	odd = append(odd, l.operation("eve", m.item))
	read = append(read, l.operation("alice", 100), l.operation("bob", m.item/2))
	odd = append(odd, l.operation("mallory", m.answer), l.operation("eve", m.item))
	for range 900 {
		read = append(read, l.operation("alice", 10))
	}
	// Two pages are for names; the long ones, what is between them and the rest of a row are single.
	l.want(t.Context(), read, odd, 8, 100)
	// The next time it is known where those are that cannot be read, and pages go around them.
	var asked atomic.Int64
	count := func(item any) {
		if m := item.(map[string]any); m["runtime_parameters"] != nil && slices.Contains(odd, m["id"].(string)) {
			asked.Add(1)
		}
	}
	l.cluster.Faults().Add(ytlocal.Fault{Edit: func(v any) any {
		if m, _ := v.(map[string]any); m["operations"] == nil {
			count(m)
		} else {
			for _, item := range m["operations"].([]any) {
				count(item)
			}
		}
		return v
	}})
	l.want(t.Context(), read, odd, 8, 100)
	if n := asked.Load(); n != 0 {
		t.Errorf("%d that are known to be too long were asked for again", n)
	}
	// After a while they are.
	for id, s := range *l.client.singles.Load() {
		s.asked = s.asked.Add(-heavyFor)
		(*l.client.singles.Load())[id] = s
	}
	l.want(t.Context(), read, odd, 8, 100)
	if n := asked.Load(); n == 0 {
		t.Error("those that were too long are never asked for again")
	}
}

// Two authors' operations started by turns: pages that go around those of one would be of one operation each. The others are
// all read, for a few calls, and change when they do.
func TestLongItemsBetweenOthers(t *testing.T) {
	t.Parallel()
	l := newLongListing(t, maxAnswer)
	const times = 16
	l.smaller(times)
	const n = maxAgain + 50
	var read, odd []string
	for range n {
		odd = append(odd, l.operation("eve", 300<<10/times))
		read = append(read, l.operation("alice", 100))
	}
	l.want(t.Context(), read, odd, 3, n)
	for range 3 {
		l.want(t.Context(), read, odd, 1, n) // those that were in the first page are single now
	}
	l.want(t.Context(), read, odd, 1, maxAgain)

	last := read[n-1]
	err := l.cluster.Scheduler().Pretend(scheduler.Operation{
		ID: last, User: "alice", State: "running", Annotations: map[string]any{"text": "new"}, Progress: map[string]any{"running": int64(77)},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var text any
	for range 1 + n/maxAgain {
		listing, err := l.client.ListOperations(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		o := listing.Operations[n-1]
		if o.ID != last || !strings.Contains(o.BriefProgress, "77") {
			t.Errorf("the progress is an old one: %+v", o)
		}
		if text = o.Annotations["text"]; o.AnnotationsSum != SumAnnotations(o.Annotations) {
			t.Errorf("the sum of %s is not that of its annotations", o.ID)
		}
	}
	if text != "new" {
		t.Errorf("the annotations are still the old ones: %q", text)
	}
	// One that is known and cannot be asked for is told as it was; one that has ended is not told.
	l.cluster.Faults().Add(ytlocal.Fault{Command: "get_operation", Status: 500})
	l.cluster.Scheduler().Forget(read[0])
	l.want(t.Context(), read[1:], odd, 1, maxAgain)
}

// Pages that are cut are of full length, so there are few of them, however many long items nobody knows of yet.
func TestLongItemsCutFewPages(t *testing.T) {
	t.Parallel()
	l := newLongListing(t, 4*maxItem)
	m := l.smaller(4)
	var read, odd []string
	for range 40 {
		odd = append(odd, l.operation("eve", m.item))
		for range 25 {
			read = append(read, l.operation("alice", 10))
		}
	}
	l.want(t.Context(), read, odd, 6, len(read)+len(odd))
	for range 2 {
		l.want(t.Context(), read, odd, 2, len(read))
	}
	l.want(t.Context(), read, odd, 2, maxAgain)
}

// When everything fits into a page again, nothing is kept of what operations told on their own.
func TestSinglesAreForgotten(t *testing.T) {
	t.Parallel()
	const page = 1 << 14
	l := newLongListing(t, page)
	var read []string
	for range 6 {
		read = append(read, l.operation("alice", page/3))
	}
	l.want(t.Context(), read, nil, 2, 4)
	if n := len(*l.client.singles.Load()); n != 4 {
		t.Errorf("%d operations are kept, want 4", n)
	}
	for _, id := range read[2:] {
		l.cluster.Scheduler().Forget(id)
	}
	l.want(t.Context(), read[:2], nil, 1, 0)
	if n := len(*l.client.singles.Load()); n != 0 {
		t.Errorf("%d operations are kept", n)
	}
}

// The cluster's cursor cannot begin between operations of one instant.
func TestLongItemsOfOneInstant(t *testing.T) {
	t.Parallel()
	const page = 1 << 14
	l := newLongListing(t, page)
	var odd []string
	read := []string{l.operation("alice", 100)}
	odd = append(odd, l.operation("eve", page))
	for _, length := range []int{page / 3, 100, 2 * page, 100, page, page / 2} {
		l.begun++
		id := l.operationAt("eve", length, 100*time.Second)
		switch {
		case length >= page:
			odd = append(odd, id)
		default:
			read = slices.Insert(read, 1, id) // newest ids first
		}
	}
	l.begun = 200
	read = append(read, l.operation("alice", 100))
	for range 3 {
		l.want(t.Context(), read, odd, 2, 10)
	}
}

// Whoever started many operations waits for those who started few, and when half of the time is used up, the rest is unread.
func TestLongItemsUseUpTheTime(t *testing.T) {
	t.Parallel()
	const page = 1 << 15
	l := newLongListing(t, page)
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	var read, odd []string
	odd = append(odd, l.operation("eve", page))
	for range 2 * singlesAtOnce {
		odd = append(odd, l.operation("eve", 100))
	}
	for _, user := range []string{"alice", "bob", "alice"} {
		read = append(read, l.operation(user, 100))
	}
	l.cluster.Faults().Add(ytlocal.Fault{Command: "get_operation", Hang: true, Match: func(c ytlocal.Call) bool {
		return slices.Contains(odd, c.Params["operation_id"].(string))
	}})
	begun := time.Now()
	l.want(ctx, read, odd, 2, 3+singlesAtOnce)
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("it took %s, more than half of the time", took)
	}
}

// One that cannot be asked for is odd and fails nobody; a cluster that has enough of us is not asked for the rest.
func TestLongItemsThatCannotBeAsked(t *testing.T) {
	t.Parallel()
	const page, n = 1 << 15, 100
	l := newLongListing(t, page)
	for range n {
		l.operation("eve", page)
	}
	l.operation("alice", 100)
	for name, tt := range map[string]struct {
		fault ytlocal.Fault
		calls int
		want  error
	}{
		"fails":      {ytlocal.Fault{Status: 500}, 2 * n, ErrUnavailable},
		"odd":        {ytlocal.Fault{Edit: func(any) any { return []any{} }}, 2 * n, ErrUnavailable},
		"overloaded": {ytlocal.Fault{Error: &yterrors.Error{Code: yterrors.CodeRequestQueueSizeLimitExceeded}}, 2 * singlesAtOnce, ErrOverloaded},
		"ended":      {ytlocal.Fault{Error: &yterrors.Error{Code: yterrors.CodeAPINoSuchOperation}}, 2 * n, nil},
	} {
		tt.fault.Command = "get_operation"
		remove := l.cluster.Faults().Add(tt.fault)
		before := l.cluster.Faults().Calls()["get_operation"]
		listing, err := l.client.ListOperations(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if calls := l.cluster.Faults().Calls()["get_operation"] - before; calls > tt.calls {
			t.Errorf("%s: %d calls", name, calls)
		}
		if tt.want == nil && len(listing.Odd)+len(listing.Operations) != 0 {
			t.Errorf("%s: %+v", name, listing)
		}
		if tt.want != nil && (len(listing.Odd) != n+1 || !slices.ContainsFunc(listing.Odd, func(o OddItem) bool { return errors.Is(o.Err, tt.want) })) {
			t.Errorf("%s: %d are odd: %v", name, len(listing.Odd), listing.Odd[:1])
		}
		remove()
	}
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

	g := newGathered(t.Context(), defaultBounds, &singles{})
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
		if h.has("one") {
			t.Error("something is heavy from the beginning")
		}
		h.note("one")
		time.Sleep(heavyFor / 2)
		h.note("two")
		if time.Sleep(heavyFor/2 - 1); !h.has("one") || !h.has("two") || h.has("three") {
			t.Errorf("too soon: %v", h.until)
		}
		if time.Sleep(time.Nanosecond); h.has("one") || !h.has("two") {
			t.Errorf("not in time: %v", h.until)
		}
		if h.note("three"); len(h.until) != 2 {
			t.Errorf("one is not forgotten: %v", h.until)
		}
	})
}
