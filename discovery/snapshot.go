package discovery

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"taskproxy/ytclient"
)

// Snapshot is an immutable set of services and the labels that they are reached by. A request loads one and keeps it to
// its end. The zero Snapshot and a nil one are empty. Safe for concurrent use.
type Snapshot struct {
	services []*Service          // sorted by operation, task, name; no two of a kind
	labels   map[string]*Service // ID, LongID and AliasLabel of each
	aliases  map[string]string   // alias without its "*" -> id of the operation that it belongs to
}

// NewSnapshot makes a snapshot of the services, as the successor of prev (nil: there is none). It fills in ID, LongID,
// AliasLabel and missing permissions (Read) and keeps, by pointer, every service of prev that did not change; one that
// changed keeps its round-robin position. When nothing at all changed the result is prev itself. It is never nil.
//
// services may come in any order and is not modified, but its elements' slices are shared from now on.
//
// A short ID belongs to one service only: to the one that labels remembers, else to the one whose operation started first,
// else to the smaller operation id, task and name; labels remembers that from now on. Whoever loses is published under its
// LongID for as long as it lives, also when the winner ends before it, so that its address does not move; and it is a
// problem. Alias labels have owners likewise; who loses has none. A nil labels stands for an empty one: then nothing is
// known of what prev settled.
func NewSnapshot(prev *Snapshot, labels *Labels, services []Service) (*Snapshot, []Problem) {
	order := make([]*Service, len(services))
	for i := range services {
		order[i] = &services[i]
	}
	if !slices.IsSortedFunc(order, compareServices) {
		slices.SortStableFunc(order, compareServices)
	}
	if labels == nil {
		labels = NewLabels(nil)
	}
	b := builder{prev: prev, drafts: make([]draft, 0, len(order))}
	b.pair(order)
	b.problems = append(b.problems, labels.assign(b.drafts)...)
	return b.build(), newProblems(b.problems)
}

// draft is a service on its way into a snapshot.
type draft struct {
	in  *Service // as it was given: without labels
	old *Service // the same service in prev; nil when it is new

	id, longID, aliasLabel string
	hasAlias               bool // the operation's alias is its own
	noID, noAlias          bool // it gets no ID or alias label this time, and nobody else does
}

type builder struct {
	prev     *Snapshot
	drafts   []draft
	problems []Problem
}

// pair finds each service's predecessor and its LongID. Both sides are sorted, so it is one walk, and a service that was
// there before is not hashed again.
func (b *builder) pair(order []*Service) {
	before := b.prev.Services()
	for i, s := range order {
		d := draft{in: s}
		if i > 0 && compareServices(order[i-1], s) == 0 {
			b.problems = append(b.problems, d.problem(Collision, "the operation publishes this service twice; the first one counts"))
			continue
		}
		for len(before) > 0 && compareServices(before[0], s) < 0 {
			before = before[1:]
		}
		if len(before) > 0 && compareServices(before[0], s) == 0 {
			d.old, d.longID = before[0], before[0].LongID
		} else {
			d.longID = LongID(s.OperationID, s.Task, s.Name)
		}
		b.drafts = append(b.drafts, d)
	}
}

// build makes the snapshot of the drafts, or finds that it is prev.
func (b *builder) build() *Snapshot {
	if b.unchanged() {
		return b.prev
	}
	next := &Snapshot{
		services: make([]*Service, 0, len(b.drafts)),
		labels:   make(map[string]*Service, 2*len(b.drafts)),
		aliases:  make(map[string]string),
	}
	for i := range b.drafts {
		d := &b.drafts[i]
		// 64 bits collide only when one author searches among services of his own; then the first keeps the label.
		if _, taken := next.labels[d.longID]; taken {
			b.problems = append(b.problems, d.problem(Collision, "its long ID "+d.longID+" belongs to another service; it is not published"))
			continue
		}
		s := d.service()
		next.services = append(next.services, s)
		next.labels[s.ID], next.labels[s.LongID] = s, s
		if s.AliasLabel != "" {
			next.labels[s.AliasLabel] = s
		}
		if d.hasAlias {
			next.aliases[s.Alias[1:]] = s.OperationID
		}
	}
	if b.prev != nil && slices.Equal(next.services, b.prev.services) && maps.Equal(next.aliases, b.prev.aliases) {
		return b.prev
	}
	return next
}

// unchanged reports whether the drafts are prev, at a glance that spares building it again.
func (b *builder) unchanged() bool {
	if b.prev == nil || b.prev.Len() != len(b.drafts) {
		return false
	}
	for i := range b.drafts {
		d := &b.drafts[i]
		if !d.unchanged() || d.hasAlias != b.prev.hasAlias(d.old) {
			return false
		}
	}
	return true
}

func (d *draft) unchanged() bool {
	return d.old != nil && d.id == d.old.ID && d.aliasLabel == d.old.AliasLabel && equalDeclared(d.in, d.old)
}

// service is what the draft becomes: what it was before, or a new one.
func (d *draft) service() *Service {
	if d.unchanged() {
		return d.old
	}
	s := *d.in
	s.ID, s.LongID, s.AliasLabel, s.Permissions = d.id, d.longID, d.aliasLabel, required(d.in)
	if d.old != nil {
		s.cursor = d.old.cursor
	} else {
		s.cursor = new(atomic.Uint64)
	}
	s.handles = newHandles(&s)
	return &s
}

func (d *draft) problem(kind ProblemKind, reason string) Problem {
	return Problem{Kind: kind, OperationID: d.in.OperationID, Task: d.in.Task, Service: d.in.Name, Reason: reason}
}

// required are the permissions that a service needs: nobody who forgets to say so publishes to everybody.
func required(s *Service) []ytclient.Permission {
	if len(s.Permissions) == 0 {
		return readOnly
	}
	return s.Permissions
}

func compareServices(a, b *Service) int {
	return cmp.Or(cmp.Compare(a.OperationID, b.OperationID), cmp.Compare(a.Task, b.Task), cmp.Compare(a.Name, b.Name))
}

// equalServices compares everything that users of a Service can see.
func equalServices(a, b *Service) bool {
	return a.ID == b.ID && a.LongID == b.LongID && a.AliasLabel == b.AliasLabel && equalDeclared(a, b)
}

// equalDeclared compares everything but the labels.
func equalDeclared(a, b *Service) bool {
	return compareServices(a, b) == 0 && a.Protocol == b.Protocol && a.User == b.User && a.StartTime.Equal(b.StartTime) &&
		a.Alias == b.Alias && a.SparkREST == b.SparkREST && slices.Equal(required(a), required(b)) && slices.Equal(a.Origins, b.Origins) &&
		a.RouteTimeout == b.RouteTimeout && a.IdleTimeout == b.IdleTimeout && a.Affinity == b.Affinity &&
		slices.Equal(a.Endpoints, b.Endpoints) && slices.Equal(a.Held, b.Held)
}

// Lookup finds the service that a label names, by its ID, its LongID or its AliasLabel; nil when none does. Labels are
// lower-case.
func (s *Snapshot) Lookup(label string) *Service {
	if s == nil {
		return nil
	}
	return s.labels[label]
}

// ByOperation finds a service by its operation's id in canonical form, its task and its name, as they are written; nil when
// there is none. It does not allocate for names that can be published.
func (s *Snapshot) ByOperation(operationID, task, name string) *Service {
	if s == nil {
		return nil
	}
	label := longID(operationID, task, name)
	svc := s.labels[string(label[:])]
	if svc == nil || svc.OperationID != operationID || svc.Task != task || svc.Name != name {
		return nil
	}
	return svc
}

// ByAlias is ByOperation for the operation that an alias, given without its "*", belongs to. Letter case matters: an alias is
// the cluster's name for an operation, not a label.
func (s *Snapshot) ByAlias(alias, task, name string) *Service {
	if s == nil {
		return nil
	}
	operationID, ok := s.aliases[alias]
	if !ok {
		return nil
	}
	return s.ByOperation(operationID, task, name)
}

// hasAlias reports whether the alias of a service's operation is its own.
func (s *Snapshot) hasAlias(svc *Service) bool {
	return strings.HasPrefix(svc.Alias, "*") && s.aliases[svc.Alias[1:]] == svc.OperationID
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

// Changes calls f for every service that is not the same in prev and in s: was is nil for a new one, is for a gone one. Either
// snapshot may be nil.
func (s *Snapshot) Changes(prev *Snapshot, f func(was, is *Service)) { walkChanges(prev, s, f) }

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
	text := fmt.Sprintf("%s %s %s %s %s %s %s", s.ID, s.OperationID, quote(s.Task), quote(s.Name), s.Protocol, strings.Join(permissions, "+"), where)
	if s.AliasLabel != "" {
		text += " " + s.AliasLabel
	}
	if len(s.Origins) > 0 {
		text += " " + strings.Join(s.Origins, ",")
	}
	if s.RouteTimeout > 0 {
		text += " route_timeout=" + s.RouteTimeout.String()
	}
	switch {
	case s.IdleTimeout > 0:
		text += " idle_timeout=" + s.IdleTimeout.String()
	case s.IdleTimeout < 0:
		text += " idle_timeout=never"
	}
	if s.Affinity {
		text += " affinity=cookie"
	}
	return text
}
