package discovery

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"taskproxy/ytclient"
)

const (
	// freedFor is how long a label whose owner's operation has ended is given to nobody else: links to it are still around.
	freedFor = 24 * time.Hour
	// maxRemembered is how many labels of one operation are remembered: those of 64 services by ID, LongID and alias, and
	// a few that it publishes no more. Labels in use are not counted out; who uses more has as many again remembered.
	maxRemembered = 256
	// maxFreed is how many labels of one user's ended operations are remembered.
	maxFreed = 20_000
)

// Labels is the memory of who owns which label. A label keeps its owner, one service of one operation, for as long as that
// operation lives, with or without endpoints, also while the operation does not publish it. After that nobody else gets it
// for a day.
//
// What it remembers is bounded by what runs: per living operation 256 labels, or twice those in use, and per user 20,000
// labels of operations that have ended. Who goes beyond loses the oldest of their own, never anybody else's.
//
// It is not safe for concurrent use. A nil *Labels remembers nothing.
type Labels struct {
	now     func() time.Time
	owners  map[string]owner   // by label; aliases are in here too, with their "*"
	holders map[string]*holder // by operation id
	living  map[string]bool    // what Living was told last; nil before the first time
	grown   []*holder          // may have too many labels
	round   uint32             // counts calls of assign; what was seeded is of round 0
	moved   bool               // in this round somebody lost a label that it had just got
	unsown  bool               // the services table may tell other owners: what two services claim is nobody's
}

// owner is who owns a label: a service, or an operation as the owner of its alias.
type owner struct {
	*holder
	task, name string // empty for an alias
	round      uint32 // in which it got the label
}

// holder is an operation that holds labels.
type holder struct {
	operation string
	alias     string // with "*"
	user      string // empty while only the services table has told of the operation
	start     time.Time
	labels    []string  // in the order in which it got them; some may be others' by now
	born      uint32    // the round in which it came up
	freedAt   time.Time // when it was first known to have ended; zero: it lives
}

func (o owner) is(operation, task, name string) bool {
	return o.holder != nil && o.operation == operation && o.task == task && o.name == name
}

// NewLabels returns an empty memory. nil stands for time.Now.
func NewLabels(now func() time.Time) *Labels {
	if now == nil {
		now = time.Now
	}
	return &Labels{now: now, owners: make(map[string]owner), holders: make(map[string]*holder)}
}

// Seed takes over the owners that the services table tells: a service under its ID owns it, one under its LongID has lost
// its ID to another and stays where it is. It is for the start, before the first snapshot; where it comes late the table
// wins over what has been settled without it, because that is what other replicas have and users know, unless the row's
// operation is known to have ended.
//
// Rows that no service of ours can have are passed over: those outside the base domains, those whose label does not
// follow from the operation, task and service beside it, and a label that several services have.
func (l *Labels) Seed(rows []ytclient.ServiceRow, bases Bases) {
	if l == nil {
		return
	}
	l.unsown = false
	type accepted struct {
		label string
		ytclient.ServiceRow
	}
	var rest []accepted
	told := make(map[string]ytclient.ServiceRow, len(rows))
	contested := make(map[string]bool)
	for _, r := range rows {
		_, label := bases.Classify(r.Domain)
		if label != ShortID(r.OperationID, r.TaskName, r.Service) && label != LongID(r.OperationID, r.TaskName, r.Service) {
			continue
		}
		if was, ok := told[label]; ok && !sameService(was, r) {
			contested[label] = true
		}
		told[label] = r
		rest = append(rest, accepted{label, r})
	}
	for _, r := range rest {
		if !contested[r.label] {
			l.seed(r.label, r.ServiceRow)
		}
	}
}

func sameService(a, b ytclient.ServiceRow) bool {
	return a.OperationID == b.OperationID && a.TaskName == b.TaskName && a.Service == b.Service
}

// seed takes over one row.
func (l *Labels) seed(label string, r ytclient.ServiceRow) {
	was, taken := l.owners[label]
	if was.is(r.OperationID, r.TaskName, r.Service) {
		return
	}
	ended := l.living != nil && !l.living[r.OperationID]
	if taken && ended {
		return
	}
	// What was settled without the table goes: a service is published under its ID or under its LongID.
	for _, other := range []string{ShortID(r.OperationID, r.TaskName, r.Service), LongID(r.OperationID, r.TaskName, r.Service)} {
		if l.owners[other].is(r.OperationID, r.TaskName, r.Service) {
			delete(l.owners, other)
		}
	}
	h := l.holder(r.OperationID)
	if ended && h.freedAt.IsZero() {
		h.freedAt = l.now()
	}
	l.grant(label, owner{holder: h, task: r.TaskName, name: r.Service})
}

// Living tells which operations are alive, all of them, whether they publish anything or not. It is called in each answered
// cycle, before NewSnapshot. The labels of every other operation are freed: from now on they wait a day for a new owner.
// Should the operation turn out to live after all it has them back. ids is kept and must not be changed afterwards.
func (l *Labels) Living(ids map[string]bool) {
	if l == nil {
		return
	}
	l.living = ids
	now := l.now()
	freed := make(map[string]int) // labels by user
	over := false
	for id, h := range l.holders {
		switch {
		case ids[id]:
			h.freedAt = time.Time{}
			continue
		case h.freedAt.IsZero():
			h.freedAt = now
		case now.Sub(h.freedAt) >= freedFor:
			l.forget(h)
			continue
		}
		freed[h.user] += len(h.labels)
		over = over || freed[h.user] > maxFreed
	}
	if over {
		l.forgetExcess(freed)
	}
}

// forgetExcess makes each user's ended operations fit the limit, the oldest of them first.
func (l *Labels) forgetExcess(freed map[string]int) {
	byUser := make(map[string][]*holder)
	for _, h := range l.holders {
		if !h.freedAt.IsZero() && freed[h.user] > maxFreed {
			byUser[h.user] = append(byUser[h.user], h)
		}
	}
	for user, holders := range byUser {
		slices.SortFunc(holders, func(a, b *holder) int {
			return cmp.Or(a.freedAt.Compare(b.freedAt), cmp.Compare(a.operation, b.operation))
		})
		for _, h := range holders {
			if freed[user] <= maxFreed {
				break
			}
			freed[user] -= len(h.labels)
			l.forget(h)
		}
	}
}

func (l *Labels) forget(h *holder) {
	for _, label := range h.labels {
		l.drop(label, h)
	}
	delete(l.holders, h.operation)
}

// drop forgets who owns a label if that is still this operation.
func (l *Labels) drop(label string, h *holder) {
	if l.owners[label].holder == h {
		delete(l.owners, label)
	}
}

func (l *Labels) holder(operationID string) *holder {
	h := l.holders[operationID]
	if h == nil {
		h = &holder{operation: operationID, born: l.round, labels: make([]string, 0, 4)}
		l.holders[operationID] = h
	}
	return h
}

func (l *Labels) grant(label string, o owner) {
	l.owners[label] = o
	o.labels = append(o.labels, label)
	if len(o.labels) > maxRemembered {
		l.grown = append(l.grown, o.holder)
	}
}

func (l *Labels) owns(label string, d *draft) bool {
	return l.owners[label].is(d.in.OperationID, d.in.Task, d.in.Name)
}

// labelKind tells apart the rules by which a label that has had an owner finds another one.
type labelKind uint8

const (
	idLabel     labelKind = iota // an ID
	theAlias                     // an alias itself: whose operation it names
	madeOfAlias                  // a label made of an alias
)

// ask lets a service have a label that it does not own, if nobody does. Among services that ask in the same round the order in
// which they ask does not matter; so whoever got it may lose it again (moved).
func (l *Labels) ask(kind labelKind, label string, o owner) bool {
	was, taken := l.owners[label]
	contested := taken && was.round == l.round
	// An alias is the cluster's to give: who has it next has its labels as well, at once, which is what aliases are for.
	inherited := taken && !was.freedAt.IsZero() && kind != idLabel && was.alias == o.alias
	switch {
	case contested && !o.precedes(kind, was):
		return false
	case contested:
		l.moved = true
	case taken && !inherited:
		return false // while its owner lives, and a day longer
	}
	if !inherited || kind == theAlias {
		o.round = l.round // labels that come with an alias are not contested
	}
	l.grant(label, o)
	return true
}

// precedes reports whether o rather than x gets a label that both ask for, before anybody has owned it.
func (o owner) precedes(kind labelKind, x owner) bool {
	if kind == madeOfAlias {
		if a, b := plain(o.alias, o.task, o.name), plain(x.alias, x.task, x.name); a != b {
			return a
		}
	}
	return cmp.Or(o.start.Compare(x.start), cmp.Compare(o.operation, x.operation), cmp.Compare(o.task, x.task), cmp.Compare(o.name, x.name)) < 0
}

// plain reports whether these parts are what their label reads as when it is cut at the last two "-": of all parts that make
// one label only one triple is. No table keeps the owners of such labels, so after a restart this decides before age does:
// who has plain names cannot lose their label to somebody who composes it otherwise, however old that operation is.
func plain(alias, task, name string) bool {
	return !strings.Contains(task, "-") && !strings.Contains(name, "-") &&
		lowerASCII(alias) == alias && lowerASCII(task) == task && lowerASCII(name) == name
}

// assign gives every draft its ID and AliasLabel. The drafts are sorted as services are. It returns what could not be had.
func (l *Labels) assign(drafts []draft) (problems []Problem) {
	l.round++
	if len(l.owners) == 0 {
		l.owners = make(map[string]owner, len(drafts))
	}
	problems = l.setAside(drafts)
	l.assignIDs(drafts)
	for i := range drafts {
		if d := &drafts[i]; d.id == d.longID && !d.noID {
			problems = append(problems, d.problem(Collision, fmt.Sprintf("its ID %s belongs to another service, or did less than a day ago; it is published as %s",
				ShortID(d.in.OperationID, d.in.Task, d.in.Name), d.longID)))
		}
	}
	problems = append(problems, l.assignAliases(drafts)...)
	for _, h := range l.grown {
		l.trim(h, drafts)
	}
	l.grown = nil
	return problems
}

func (l *Labels) assignIDs(drafts []draft) {
	l.moved = false
	var lost, won []*draft
	for i := range drafts {
		d := &drafts[i]
		switch {
		case d.noID:
			d.id = d.longID
		case l.resume(d):
		case l.ask(idLabel, d.id, l.ownerOf(d)):
			won = append(won, d)
		default:
			lost = append(lost, d)
		}
	}
	if l.moved {
		for _, d := range won {
			if !l.owns(d.id, d) {
				lost = append(lost, d)
			}
		}
	}
	for _, d := range lost {
		d.id = d.longID
		l.grant(d.id, l.ownerOf(d))
	}
}

// resume finds the ID that a service has had before. If it has had none, id is the one that it may ask for.
func (l *Labels) resume(d *draft) bool {
	if d.old != nil && l.owns(d.old.ID, d) {
		d.id = d.old.ID
		return true
	}
	d.id = ShortID(d.in.OperationID, d.in.Task, d.in.Name)
	switch h := l.holders[d.in.OperationID]; {
	case h == nil || h.born == l.round:
		return false
	case l.owns(d.longID, d):
		d.id = d.longID // lost before, and stays where its users know it
		return true
	}
	return l.owns(d.id, d)
}

// ownerOf is a service as the owner of labels.
func (l *Labels) ownerOf(d *draft) owner {
	h := l.holder(d.in.OperationID)
	h.user, h.alias, h.start = d.in.User, d.in.Alias, d.in.StartTime
	return owner{holder: h, task: d.in.Task, name: d.in.Name}
}

// assignAliases settles whose the aliases are, then whose the labels made of them. Two operations have one alias, or one
// label, only while one of them is just ending, or by composing it differently.
func (l *Labels) assignAliases(drafts []draft) (problems []Problem) {
	for d := range aliased(drafts) {
		if !l.owners[d.in.Alias].is(d.in.OperationID, "", "") {
			o := l.ownerOf(d)
			o.task, o.name = "", ""
			l.ask(theAlias, d.in.Alias, o)
		}
	}
	var open []*draft
	for d := range aliased(drafts) {
		d.hasAlias = l.owners[d.in.Alias].is(d.in.OperationID, "", "")
		if !d.hasAlias {
			problems = append(problems, Problem{Kind: Collision, OperationID: d.in.OperationID,
				Reason: "its alias " + quote(d.in.Alias) + " belongs to another operation; its services are reached by their IDs"})
			continue
		}
		if !d.noAlias && d.old != nil && d.old.AliasLabel != "" && d.old.Alias == d.in.Alias && l.owns(d.old.AliasLabel, d) {
			d.aliasLabel = d.old.AliasLabel
			continue
		}
		label, p := newAliasLabel(d.in.Alias, d.in.Task, d.in.Name)
		if p.Kind != "" {
			problems = append(problems, d.problem(p.Kind, p.Reason))
			continue
		}
		if d.noAlias {
			continue
		}
		d.aliasLabel = label
		if !l.owns(label, d) {
			l.ask(madeOfAlias, label, l.ownerOf(d))
		}
		open = append(open, d)
	}
	for _, d := range open {
		if !l.owns(d.aliasLabel, d) {
			problems = append(problems, d.problem(Collision,
				"its alias label "+quote(d.aliasLabel)+" belongs to another service, or did less than a day ago; it is reached by its ID"))
			d.aliasLabel = ""
		}
	}
	return problems
}

// aliased are the drafts whose operation has an alias.
func aliased(drafts []draft) func(yield func(*draft) bool) {
	return func(yield func(*draft) bool) {
		for i := range drafts {
			// Without its "*" an alias would be a name among labels, and somebody else's maybe.
			if strings.HasPrefix(drafts[i].in.Alias, "*") && !yield(&drafts[i]) {
				return
			}
		}
	}
}

// trim makes an operation's labels fit the limit: the oldest of those that it does not use are forgotten.
func (l *Labels) trim(h *holder, drafts []draft) {
	used := map[string]bool{h.alias: true}
	first, _ := slices.BinarySearchFunc(drafts, h.operation, func(d draft, id string) int { return cmp.Compare(d.in.OperationID, id) })
	for _, d := range drafts[first:] {
		if d.in.OperationID != h.operation {
			break
		}
		used[d.id], used[d.aliasLabel] = true, true
	}
	excess := len(h.labels) - max(maxRemembered, 2*len(used))
	if excess <= 0 {
		return
	}
	h.labels = slices.DeleteFunc(h.labels, func(label string) bool {
		if excess == 0 || used[label] {
			return false
		}
		excess--
		l.drop(label, h)
		return true
	})
}
