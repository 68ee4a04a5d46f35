package ytlocal

import (
	"slices"
	"time"

	"go.ytsaurus.tech/yt/go/yterrors"
)

// lock of a transaction on a node. Guarded by Cluster.mu.
type lock struct {
	id        string
	node      *node
	tx        *transaction
	mode      string // exclusive, shared, snapshot
	childKey  string // of a shared lock; empty: none
	attribute string // of a shared lock; empty: none
	pending   bool   // waits for others to let go
	explicit  bool   // asked for by the lock command, not a side effect of a change
}

// conflictsWith reports whether the two may not hold at once. A transaction may build on what its ancestors locked.
func (l *lock) conflictsWith(held *lock) bool {
	if held.pending || held.mode == "snapshot" || l.mode == "snapshot" || held.tx.covers(l.tx) {
		return false
	}
	if l.mode == "exclusive" || held.mode == "exclusive" {
		return true
	}
	return l.childKey != "" && l.childKey == held.childKey || l.attribute != "" && l.attribute == held.attribute
}

// conflict finds a lock that stands in the way of l.
func (n *node) conflict(l *lock) *lock {
	for _, held := range n.locks {
		if l.conflictsWith(held) {
			return held
		}
	}
	return nil
}

// failConflict is the answer to whoever came second. It names the winner, as lock clients expect.
func failConflict(l, held *lock) *yterrors.Error {
	e := fail(yterrors.CodeConcurrentTransactionLockConflict,
		"Cannot take %q lock for node %s since %q lock is taken by concurrent transaction %s", l.mode, l.node.path(), held.mode, held.tx.id)
	// No number among these: the SDK reads numbers in JSON as strings and then fails to find the winner.
	return with(e, "winner_transaction", map[string]any{
		"id": held.tx.id, "owner": held.tx.user, "start_time": timeText(held.tx.started),
	})
}

// take takes a lock. Without a transaction nothing is kept: the call only must not run into the locks of others.
func (c *Cluster) take(l *lock, waitable bool) error {
	if held := l.node.conflict(l); held != nil {
		if !waitable {
			return failConflict(l, held)
		}
		l.pending = true
	}
	if l.tx == nil {
		return nil
	}
	l.id = newID("lock")
	l.node.locks = append(l.node.locks, l)
	l.tx.locks = append(l.tx.locks, l)
	c.locks[l.id] = l
	return nil
}

// change takes the lock that a change implies, unless the transaction already has one like it.
func (c *Cluster) change(n *node, tx *transaction, l lock) error {
	l.node, l.tx = n, tx
	for _, held := range n.locks {
		if tx != nil && held.tx == tx && !held.pending &&
			(held.mode == "exclusive" || held.mode == l.mode && held.childKey == l.childKey && held.attribute == l.attribute) {
			return nil
		}
	}
	return c.take(&l, false)
}

// The locks that changes imply.
func exclusiveLock() lock                 { return lock{mode: "exclusive"} }
func sharedLock() lock                    { return lock{mode: "shared"} }
func childLock(key string) lock           { return lock{mode: "shared", childKey: key} }
func attributeLock(attribute string) lock { return lock{mode: "shared", attribute: attribute} }

// release lets a lock go and grants those that waited for it, in the order in which they came.
func (c *Cluster) release(l *lock) {
	drop := func(held *lock) bool { return held == l }
	l.node.locks = slices.DeleteFunc(l.node.locks, drop)
	l.tx.locks = slices.DeleteFunc(l.tx.locks, drop)
	delete(c.locks, l.id)
	for _, waiting := range l.node.locks {
		if waiting.pending && l.node.conflict(waiting) == nil {
			waiting.pending = false
		}
	}
}

// state of a lock as the cluster names it.
func (l *lock) state() string {
	if l.pending {
		return "pending"
	}
	return "acquired"
}

// describe is the lock as an object with attributes.
func (l *lock) describe() map[string]any {
	m := map[string]any{
		"state": l.state(), "mode": l.mode, "transaction_id": l.tx.id, "node_id": l.node.id, "implicit": !l.explicit,
	}
	if l.childKey != "" {
		m["child_key"] = l.childKey
	}
	if l.attribute != "" {
		m["attribute_key"] = l.attribute
	}
	return m
}

func runLock(k *call) (any, error) {
	if k.tx == nil {
		return nil, fail(yterrors.CodeGeneric, "a lock needs a transaction: parameter transaction_id is missing")
	}
	p, err := k.params.path("path")
	if err != nil {
		return nil, err
	}
	l := &lock{tx: k.tx, mode: "exclusive", explicit: true}
	for name, to := range map[string]*string{"mode": &l.mode, "child_key": &l.childKey, "attribute_key": &l.attribute} {
		if v, ok, err := k.params.string(name); err != nil {
			return nil, err
		} else if ok {
			*to = v
		}
	}
	permission := "write"
	switch l.mode {
	case "exclusive", "shared":
	case "snapshot":
		permission = "read"
	default:
		return nil, fail(yterrors.CodeGeneric, "lock mode %.64q is none of exclusive, shared, snapshot", l.mode)
	}
	if l.mode != "shared" && (l.childKey != "" || l.attribute != "") {
		return nil, fail(yterrors.CodeGeneric, "child_key and attribute_key are for shared locks only, not for %q", l.mode)
	}
	waitable, _, err := k.params.bool("waitable")
	if err != nil {
		return nil, err
	}
	if l.node, err = k.c.find(p, k.tx); err != nil {
		return nil, err
	}
	if err := k.allowed(l.node, permission); err != nil {
		return nil, err
	}
	if err := k.c.take(l, waitable); err != nil {
		return nil, err
	}
	if l.mode == "snapshot" {
		data := l.node.dataIn(k.tx)
		v := l.node.viewIn(k.tx)
		if !v.hasData {
			v.data, v.hasData, v.snapshot = data, true, true
		}
	}
	return map[string]any{"lock_id": l.id, "node_id": l.node.id, "revision": l.node.revision}, nil
}

func runUnlock(k *call) (any, error) {
	if k.tx == nil {
		return nil, fail(yterrors.CodeGeneric, "an unlock needs a transaction: parameter transaction_id is missing")
	}
	p, err := k.params.path("path")
	if err != nil {
		return nil, err
	}
	n, err := k.c.find(p, k.tx)
	if err != nil {
		return nil, err
	}
	if v := n.views[k.tx]; v != nil && v.snapshot {
		delete(n.views, k.tx)
	} else if v != nil {
		return nil, fail(yterrors.CodeGeneric, "Node %s cannot be unlocked: transaction %s has changed it", n.path(), k.tx.id)
	}
	for _, l := range slices.Clone(n.locks) {
		if l.tx == k.tx && l.explicit {
			k.c.release(l)
		}
	}
	return map[string]any{}, nil
}

// timeText prints a moment as YSON and JSON carry it.
func timeText(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z") }
