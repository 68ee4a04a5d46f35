package ytlocal

import (
	"slices"
	"time"

	"go.ytsaurus.tech/yt/go/yterrors"
)

// transaction is a master transaction. Guarded by Cluster.mu.
//
// Inside one, new nodes, removals, changed attributes and written data are seen only by it and its descendants until it
// commits. Moves and copies make new nodes and removals, and so behave alike. Users, groups and accounts are not
// transactional.
type transaction struct {
	id       string
	parent   *transaction
	children map[*transaction]struct{}
	user     string
	attrs    map[string]any
	started  time.Time
	timeout  time.Duration
	deadline time.Time // of the next ping
	// dependents have t as a prerequisite: they are aborted when it ends, whichever way.
	dependents []*transaction
	dead       bool

	changed []*node // have a view of it
	created []*node
	removed []*node
	locks   []*lock
}

// covers reports whether other is t or one of its descendants. The nil transaction is nobody's descendant.
func (t *transaction) covers(other *transaction) bool {
	for ; other != nil; other = other.parent {
		if other == t {
			return true
		}
	}
	return false
}

// Limits of transaction timeouts, in line with the server's.
const (
	defaultTxTimeout = 15 * time.Second
	maxTxTimeout     = 60 * time.Minute
)

// noTransaction is what clients of a transaction that ended are told.
func noTransaction(id string) *yterrors.Error {
	return fail(yterrors.CodeNoSuchTransaction, "No such transaction %.64s", id)
}

// transactionByID finds a living transaction.
func (c *Cluster) transactionByID(id string) (*transaction, error) {
	if t := c.txs[id]; t != nil {
		return t, nil
	}
	return nil, noTransaction(id)
}

// reap aborts the transactions whose owners stopped pinging. It runs at the start of every call, so that an expired
// transaction is never met alive; no goroutine is needed for it.
func (c *Cluster) reap() {
	now := c.now()
	for _, t := range c.txs {
		if !t.dead && now.After(t.deadline) {
			c.abort(t)
		}
	}
}

// begin starts a transaction.
func (c *Cluster) begin(user string, parent *transaction, timeout time.Duration, attrs map[string]any) *transaction {
	now := c.now()
	t := &transaction{
		id: newID("transaction"), parent: parent, children: map[*transaction]struct{}{}, user: user, attrs: attrs,
		started: now, timeout: timeout, deadline: now.Add(timeout),
	}
	c.txs[t.id] = t
	if parent != nil {
		parent.children[t] = struct{}{}
	}
	return t
}

// ping puts off the deadline of t, and with ancestors that of the transactions above it.
func (c *Cluster) ping(t *transaction, ancestors bool) {
	for ; t != nil; t = t.parent {
		t.deadline = c.now().Add(t.timeout)
		if !ancestors {
			return
		}
	}
}

// abort undoes what t did, its descendants first.
func (c *Cluster) abort(t *transaction) {
	if t.dead {
		return
	}
	for child := range t.children {
		c.abort(child)
	}
	for _, n := range t.changed {
		delete(n.views, t)
	}
	for _, n := range slices.Backward(t.created) {
		if n.tx == t {
			c.detach(n)
		}
	}
	for _, n := range t.removed {
		if n.removedBy == t {
			n.removedBy = nil
		}
	}
	c.end(t)
}

// commit hands what t did to its parent, or to everybody.
func (c *Cluster) commit(t *transaction) error {
	if len(t.children) > 0 {
		return fail(yterrors.CodeGeneric, "Transaction %s cannot be committed: it has living nested transactions", t.id)
	}
	for _, n := range t.changed {
		v := n.views[t]
		delete(n.views, t)
		if v != nil && !v.snapshot {
			c.mergeView(n, v, t.parent)
		}
	}
	for _, n := range t.created {
		if n.tx != t {
			continue
		}
		n.tx = t.parent
		if t.parent != nil {
			t.parent.created = append(t.parent.created, n)
		}
	}
	for _, n := range t.removed {
		if n.removedBy != t {
			continue
		}
		if n.removedBy = t.parent; t.parent != nil {
			t.parent.removed = append(t.parent.removed, n)
			continue
		}
		c.detach(n)
	}
	if t.parent != nil {
		for _, l := range t.locks {
			if l.mode != "snapshot" && !l.pending {
				l.tx = t.parent
				t.parent.locks = append(t.parent.locks, l)
			}
		}
		t.locks = slices.DeleteFunc(t.locks, func(l *lock) bool { return l.tx != t })
	}
	c.end(t)
	return nil
}

// mergeView applies a committed view to what the parent sees; a nil parent is everybody.
func (c *Cluster) mergeView(n *node, v *view, parent *transaction) {
	if v.hasData {
		c.setData(n, parent, v.data)
	}
	if v.extra != nil {
		c.addData(n, parent, v.extra)
	}
	for name, a := range v.attrs {
		c.setAttr(n, parent, name, a)
	}
}

// end takes t and its locks away.
func (c *Cluster) end(t *transaction) {
	t.dead = true
	delete(c.txs, t.id)
	if t.parent != nil {
		delete(t.parent.children, t)
	}
	for _, l := range slices.Clone(t.locks) {
		c.release(l)
	}
	for _, n := range t.changed {
		if n.gone && len(n.views) == 0 {
			delete(c.objects, n.id)
		}
	}
	for _, d := range t.dependents {
		c.abort(d)
	}
}

// failPrerequisite is the answer to a call whose prerequisite transaction has ended.
func failPrerequisite(id string) *yterrors.Error {
	return fail(yterrors.CodePrerequisiteCheckFailed, "Prerequisite check failed: transaction %.64s is missing", id)
}

// describe is the transaction as an object with attributes.
func (t *transaction) describe() map[string]any {
	parent := "0-0-0-0"
	if t.parent != nil {
		parent = t.parent.id
	}
	nested := make([]any, 0, len(t.children))
	for child := range t.children {
		nested = append(nested, child.id)
	}
	locks := make([]any, 0, len(t.locks))
	for _, l := range t.locks {
		locks = append(locks, l.id)
	}
	m := map[string]any{
		"owner": t.user, "start_time": timeText(t.started), "timeout": t.timeout.Milliseconds(),
		"last_ping_time": timeText(t.deadline.Add(-t.timeout)), "parent_id": parent,
		"nested_transaction_ids": nested, "lock_ids": locks, "title": t.attrs["title"],
	}
	for name, a := range t.attrs {
		m[name] = a
	}
	return m
}

// runStartTransaction starts a transaction under the one of the call, if any.
func runStartTransaction(k *call) (any, error) {
	timeout := defaultTxTimeout
	if ms, ok, err := k.params.int("timeout"); err != nil {
		return nil, err
	} else if ok {
		if ms <= 0 || ms > maxTxTimeout.Milliseconds() {
			return nil, fail(yterrors.CodeGeneric, "timeout %d is out of range: milliseconds from 1 to %d", ms, maxTxTimeout.Milliseconds())
		}
		timeout = time.Duration(ms) * time.Millisecond
	}
	attrs, err := k.params.attributes()
	if err != nil {
		return nil, err
	}
	t := k.c.begin(k.user, k.tx, timeout, attrs)
	for _, p := range k.prerequisites {
		p.dependents = append(p.dependents, t)
	}
	return map[string]any{"transaction_id": t.id}, nil
}

// ownTx finds the transaction that a transaction command is about. Others' transactions belong to their users.
func (k *call) ownTx() (*transaction, error) {
	if k.tx == nil {
		return nil, fail(yterrors.CodeGeneric, "parameter transaction_id is missing")
	}
	if k.tx.user != k.user && !k.c.isSuperuser(k.user) {
		return nil, denied(k.user, "write", "transaction "+k.tx.id)
	}
	return k.tx, nil
}

func runPingTransaction(k *call) (any, error) {
	t, err := k.ownTx()
	if err != nil {
		return nil, err
	}
	ancestors, ok, err := k.params.bool("ping_ancestor_transactions")
	if err != nil {
		return nil, err
	}
	k.c.ping(t, ancestors || !ok)
	return map[string]any{}, nil
}

func runCommitTransaction(k *call) (any, error) {
	t, err := k.ownTx()
	if err != nil {
		return nil, err
	}
	return map[string]any{}, k.c.commit(t)
}

func runAbortTransaction(k *call) (any, error) {
	t, err := k.ownTx()
	if err != nil {
		return nil, err
	}
	k.c.abort(t)
	return map[string]any{}, nil
}
