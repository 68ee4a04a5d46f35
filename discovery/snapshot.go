package discovery

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
)

// Snapshot is an immutable set of services and the labels that they are reached by. A request loads one and keeps it to
// its end. The zero Snapshot and a nil one are empty. Safe for concurrent use.
type Snapshot struct {
	services []*Service          // sorted by operation, task, name; no two of a kind
	labels   map[string]*Service // ID and LongID of each
}

// NewSnapshot makes a snapshot of the services, as the successor of prev (nil: there is none). It fills in ID, LongID and
// missing permissions (Read) and keeps, by pointer, every service of prev that did not change; one that changed keeps its
// round-robin position. When nothing at all changed the result is prev itself. It is never nil.
//
// services may come in any order and is not modified, but its elements' slices are shared from now on.
//
// A short ID belongs to one service only: to that of the operation which owned it in prev, else to the one whose operation
// started first, else to the smaller operation id. Whoever loses is published under its LongID for as long as it lives, also
// when the winner ends before it, so that its address does not move; and it is a problem.
func NewSnapshot(prev *Snapshot, services []Service) (*Snapshot, []Problem) {
	order := make([]*Service, len(services))
	for i := range services {
		order[i] = &services[i]
	}
	if !slices.IsSortedFunc(order, compareServices) {
		slices.SortStableFunc(order, compareServices)
	}
	b := builder{prev: prev, drafts: make([]draft, 0, len(order))}
	b.pair(order)
	b.own()
	return b.build()
}

// draft is a service on its way into a snapshot.
type draft struct {
	Service
	old *Service // the same service in prev; nil when it is new
}

type builder struct {
	prev     *Snapshot
	drafts   []draft
	problems []Problem
}

// pair finds each service's predecessor and takes over or computes its identifiers. Both sides are sorted, so it is one
// walk, and a service that was there before is not hashed again.
func (b *builder) pair(order []*Service) {
	before := b.prev.Services()
	for i, s := range order {
		if i > 0 && compareServices(order[i-1], s) == 0 {
			b.problem(s, "the operation publishes this service twice; the first one counts")
			continue
		}
		d := draft{Service: *s}
		for len(before) > 0 && compareServices(before[0], s) < 0 {
			before = before[1:]
		}
		if len(before) > 0 && compareServices(before[0], s) == 0 {
			d.old = before[0]
			d.ID, d.LongID, d.cursor = d.old.ID, d.old.LongID, d.old.cursor
		} else {
			d.ID, d.LongID, d.cursor = ShortID(s.OperationID, s.Task, s.Name), LongID(s.OperationID, s.Task, s.Name), new(atomic.Uint64)
		}
		if len(d.Permissions) == 0 {
			d.Permissions = readOnly
		}
		b.drafts = append(b.drafts, d)
	}
}

// own settles which service has a contested label.
func (b *builder) own() {
	owners := make(map[string]int, len(b.drafts))
	for i := range b.drafts {
		d := &b.drafts[i]
		if d.ID == d.LongID {
			continue // lost before, and stays where its users know it
		}
		j, taken := owners[d.ID]
		if !taken {
			owners[d.ID] = i
			continue
		}
		loser := i
		if b.precedes(d, &b.drafts[j]) {
			owners[d.ID], loser = i, j
		}
		b.drafts[loser].ID = b.drafts[loser].LongID
	}
	for i := range b.drafts {
		if d := &b.drafts[i]; d.ID == d.LongID {
			b.problem(&d.Service, "its ID "+ShortID(d.OperationID, d.Task, d.Name)+" belongs to another service; it is published as "+d.LongID)
		}
	}
}

// precedes reports whether x rather than y owns the ID that both have.
func (b *builder) precedes(x, y *draft) bool {
	rank := func(d *draft) int {
		switch was := b.prev.Lookup(d.ID); {
		case was == nil:
			return 2
		case d.old == was:
			return 0
		case d.OperationID == was.OperationID:
			return 1
		}
		return 2
	}
	return cmp.Or(cmp.Compare(rank(x), rank(y)), x.StartTime.Compare(y.StartTime), compareServices(&x.Service, &y.Service)) < 0
}

func (b *builder) build() (*Snapshot, []Problem) {
	same := b.prev != nil && b.prev.Len() == len(b.drafts)
	next := &Snapshot{services: make([]*Service, 0, len(b.drafts)), labels: make(map[string]*Service, 2*len(b.drafts))}
	for i := range b.drafts {
		d := &b.drafts[i]
		s := d.old
		if s == nil || !equalServices(s, &d.Service) {
			same = false
			fresh := d.Service
			s = &fresh
		}
		// 64 bits collide only when one author searches among services of his own; then the first keeps the label.
		if _, taken := next.labels[s.LongID]; taken {
			same = false
			b.problem(s, "its long ID "+s.LongID+" belongs to another service; it is not published")
			continue
		}
		next.services = append(next.services, s)
		next.labels[s.ID], next.labels[s.LongID] = s, s
	}
	if same {
		next = b.prev
	}
	return next, newProblems(b.problems)
}

func (b *builder) problem(s *Service, reason string) {
	b.problems = append(b.problems, Problem{Kind: Collision, OperationID: s.OperationID, Task: s.Task, Service: s.Name, Reason: reason})
}

func compareServices(a, b *Service) int {
	return cmp.Or(cmp.Compare(a.OperationID, b.OperationID), cmp.Compare(a.Task, b.Task), cmp.Compare(a.Name, b.Name))
}

// equalServices compares everything that users of a Service can see.
func equalServices(a, b *Service) bool {
	return compareServices(a, b) == 0 && a.Protocol == b.Protocol && a.User == b.User && a.StartTime.Equal(b.StartTime) &&
		a.Alias == b.Alias && a.ID == b.ID && a.LongID == b.LongID &&
		slices.Equal(a.Permissions, b.Permissions) && slices.Equal(a.Endpoints, b.Endpoints)
}

// Lookup finds the service that a label names, by its ID or its LongID; nil when none does. Labels are lower-case.
func (s *Snapshot) Lookup(label string) *Service {
	if s == nil {
		return nil
	}
	return s.labels[label]
}

// Services are all services, sorted by operation, task and name. The slice is shared: callers must not modify it.
func (s *Snapshot) Services() []*Service {
	if s == nil {
		return nil
	}
	return slices.Clip(s.services)
}

// Len is the number of services.
func (s *Snapshot) Len() int { return len(s.Services()) }

// Endpoints is the number of endpoints of all services.
func (s *Snapshot) Endpoints() int {
	n := 0
	for _, svc := range s.Services() {
		n += len(svc.Endpoints)
	}
	return n
}

// Equal reports whether two snapshots say the same. Round-robin positions don't count.
func (s *Snapshot) Equal(t *Snapshot) bool {
	return s == t || slices.EqualFunc(s.Services(), t.Services(), func(a, b *Service) bool { return a == b || equalServices(a, b) })
}

// String is one line per service, in the order of Services.
func (s *Snapshot) String() string {
	var b strings.Builder
	for _, svc := range s.Services() {
		b.WriteString(line(svc))
		b.WriteByte('\n')
	}
	return b.String()
}

// Diff tells what changed from prev to s: the lines of String that went, after "- ", and those that came, after "+ ".
// Services that are the same are not told; nothing changed: an empty string.
func (s *Snapshot) Diff(prev *Snapshot) string {
	var b strings.Builder
	walkChanges(prev, s, func(was, is *Service) {
		if was != nil {
			b.WriteString("- " + line(was) + "\n")
		}
		if is != nil {
			b.WriteString("+ " + line(is) + "\n")
		}
	})
	return b.String()
}

// walkChanges calls f for every service that is not the same in both snapshots: was is nil for a new one, is for a gone one.
func walkChanges(prev, next *Snapshot, f func(was, is *Service)) {
	before, after := prev.Services(), next.Services()
	for len(before) > 0 || len(after) > 0 {
		switch {
		case len(after) == 0 || len(before) > 0 && compareServices(before[0], after[0]) < 0:
			f(before[0], nil)
			before = before[1:]
		case len(before) == 0 || compareServices(before[0], after[0]) > 0:
			f(nil, after[0])
			after = after[1:]
		default:
			if before[0] != after[0] && !equalServices(before[0], after[0]) {
				f(before[0], after[0])
			}
			before, after = before[1:], after[1:]
		}
	}
}

func line(s *Service) string {
	addrs := make([]string, len(s.Endpoints))
	for i, e := range s.Endpoints {
		addrs[i] = e.Addr
	}
	where := strings.Join(addrs, ",")
	if where == "" {
		where = "-"
	}
	permissions := make([]string, len(s.Permissions))
	for i, p := range s.Permissions {
		permissions[i] = string(p)
	}
	return fmt.Sprintf("%s %s %s %s %s %s %s", s.ID, s.OperationID, quote(s.Task), quote(s.Name), s.Protocol, strings.Join(permissions, "+"), where)
}
