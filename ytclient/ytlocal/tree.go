package ytlocal

import (
	"fmt"
	"maps"
	"time"

	"go.ytsaurus.tech/yt/go/guid"
	"go.ytsaurus.tech/yt/go/yterrors"
)

// node is one node of Cypress. All of it is guarded by Cluster.mu, except that values, rows and bytes are never changed in
// place (see value.go), so what was read may be used after the lock is gone.
type node struct {
	id       string
	typ      string
	key      string
	parent   *node // nil for the root and for objects outside the tree
	children map[string]*node

	attrs map[string]any // set by users; acl, inherit_acl, owner and account live here too
	// data of a leaf: the value of a scalar or document, rows of a table ([]row), bytes of a file ([]byte), the path
	// of a link (string).
	data any

	created, modified time.Time
	revision          uint64

	// What transactions see differently; see transactions.go.
	views     map[*transaction]*view
	locks     []*lock
	tx        *transaction // created by it, invisible outside until it commits; nil for everybody's nodes
	removedBy *transaction // hidden from it, and gone when it commits
	shadows   *node        // the node that had this key before, while a transaction replaces it
	gone      bool         // detached from the tree
	builtin   bool         // part of every cluster: it stays

	// virtual computes the subtree of a node that exists nowhere, such as an orchid. It may leave out what steps, the
	// rest of the path that is asked for, do not lead to. It is called without Cluster.mu, because it asks the scheduler.
	virtual func(steps []string) any
	// computed attributes of objects that are more than their stored attributes (users, groups, transactions).
	computed func() map[string]any
}

// view is what one transaction sees of a node where that differs from what its parent sees.
type view struct {
	attrs    map[string]any // changed attributes; removed{} for those that are gone
	data     any
	hasData  bool
	extra    any // appended behind data
	snapshot bool
}

// removed marks an attribute that a transaction took away.
type removed struct{}

// row is one row of a table.
type row = map[string]any

// objectTypes are the type codes inside ids, as the cluster numbers them.
var objectTypes = map[string]uint32{
	"transaction": 1, "lock": 200, "string_node": 300, "int64_node": 301, "double_node": 302, "map_node": 303,
	"list_node": 304, "boolean_node": 305, "uint64_node": 306, "file": 400, "table": 401, "orchid": 412, "link": 417,
	"document": 421, "user": 501, "group": 502, "account": 503,
}

// cellTag is the number of our only cell, in the upper half of the third group of every id.
const cellTag = 0x3fe

// newID makes an id of an object of the given type. It is random: nobody finds an object by counting.
func newID(typ string) string {
	a, b := guid.New().Halves()
	return guid.FromParts(uint32(a>>32)|1, uint32(a)|1, cellTag<<16|objectTypes[typ], uint32(b)|1).String()
}

// newNode makes a node that is in no tree yet.
func (c *Cluster) newNode(typ string, attrs map[string]any) *node {
	now := c.now()
	n := &node{id: newID(typ), typ: typ, attrs: attrs, created: now, modified: now}
	if n.attrs == nil {
		n.attrs = map[string]any{}
	}
	switch typ {
	case "map_node":
		n.children = map[string]*node{}
	case "table":
		n.data = []row(nil)
	case "file":
		n.data = []byte(nil)
	case "list_node":
		n.data = []any{}
	}
	c.touch(n)
	return n
}

// touch gives a node a new revision and modification time.
func (c *Cluster) touch(n *node) {
	c.revision++
	n.revision, n.modified = c.revision, c.now()
}

// attach hangs n under parent. What already has the key there stays behind it, for those that do not see n.
func (c *Cluster) attach(parent *node, key string, n *node) {
	n.parent, n.key = parent, key
	n.shadows = parent.children[key]
	parent.children[key] = n
	c.register(n)
	c.touch(parent)
}

// register makes n and what is under it reachable by id.
func (c *Cluster) register(n *node) {
	c.objects[n.id] = n
	for _, child := range n.children {
		c.register(child)
	}
}

// detach takes n out of the tree, and what is under it.
func (c *Cluster) detach(n *node) {
	if p := n.parent; p != nil && !n.gone {
		switch head := p.children[n.key]; {
		case head != n:
			for head.shadows != n {
				head = head.shadows
			}
			head.shadows = n.shadows
		case n.shadows != nil:
			p.children[n.key] = n.shadows
		default:
			delete(p.children, n.key)
		}
		c.touch(p)
	}
	c.forget(n)
}

// forget drops n from the index of ids, unless a transaction still holds a snapshot of it.
func (c *Cluster) forget(n *node) {
	n.gone = true
	if len(n.views) == 0 {
		delete(c.objects, n.id)
	}
	for _, child := range n.children {
		c.forget(child)
	}
}

// visible reports whether tx (nil: nobody's) sees the node.
func (n *node) visible(tx *transaction) bool {
	if n.tx != nil && !n.tx.covers(tx) {
		return false
	}
	return n.removedBy == nil || !n.removedBy.covers(tx)
}

// child with the given key, as tx sees it; nil without one.
func (n *node) child(key string, tx *transaction) *node {
	for c := n.children[key]; c != nil; c = c.shadows {
		if c.visible(tx) {
			return c
		}
	}
	return nil
}

// keys of the children that tx sees, sorted.
func (n *node) keys(tx *transaction) []string {
	keys := make([]string, 0, len(n.children))
	for _, key := range sortedKeys(n.children) {
		if n.child(key, tx) != nil {
			keys = append(keys, key)
		}
	}
	return keys
}

// dataIn is the node's data as tx sees it.
func (n *node) dataIn(tx *transaction) any {
	if tx == nil {
		return n.data
	}
	v := n.views[tx]
	if v == nil {
		return n.dataIn(tx.parent)
	}
	base := v.data
	if !v.hasData {
		base = n.dataIn(tx.parent)
	}
	return appendData(base, v.extra)
}

// appendData puts rows behind rows and bytes behind bytes, leaving both as they are.
func appendData(base, extra any) any {
	switch extra := extra.(type) {
	case []row:
		old, _ := base.([]row)
		return append(old[:len(old):len(old)], extra...)
	case []byte:
		old, _ := base.([]byte)
		return append(old[:len(old):len(old)], extra...)
	}
	return base
}

// attrIn is a stored attribute as tx sees it.
func (n *node) attrIn(tx *transaction, name string) (any, bool) {
	for ; tx != nil; tx = tx.parent {
		if v := n.views[tx]; v != nil {
			if a, ok := v.attrs[name]; ok {
				_, dead := a.(removed)
				return a, !dead
			}
		}
	}
	a, ok := n.attrs[name]
	return a, ok
}

// attrsIn are all stored attributes as tx sees them.
func (n *node) attrsIn(tx *transaction) map[string]any {
	if tx == nil {
		return maps.Clone(n.attrs)
	}
	attrs := n.attrsIn(tx.parent)
	if v := n.views[tx]; v != nil {
		mergeAttrs(attrs, v.attrs, true)
	}
	return attrs
}

// mergeAttrs applies changes to attrs. At the end of the chain removed attributes vanish; before it their marks stay.
func mergeAttrs(attrs, changes map[string]any, last bool) {
	for name, a := range changes {
		if _, dead := a.(removed); dead && last {
			delete(attrs, name)
			continue
		}
		attrs[name] = a
	}
}

// viewIn is the view that tx may change; tx must not be nil.
func (n *node) viewIn(tx *transaction) *view {
	v := n.views[tx]
	if v == nil {
		v = &view{attrs: map[string]any{}}
		if n.views == nil {
			n.views = map[*transaction]*view{}
		}
		n.views[tx] = v
		tx.changed = append(tx.changed, n)
	}
	return v
}

// setData replaces the data of n in tx.
func (c *Cluster) setData(n *node, tx *transaction, data any) {
	if tx == nil {
		n.data = data
		c.touch(n)
		return
	}
	v := n.viewIn(tx)
	v.data, v.hasData, v.extra, v.snapshot = data, true, nil, false
}

// addData appends to the data of n in tx.
func (c *Cluster) addData(n *node, tx *transaction, extra any) {
	if tx == nil {
		n.data = appendData(n.data, extra)
		c.touch(n)
		return
	}
	v := n.viewIn(tx)
	if v.extra == nil {
		v.extra = extra
		return
	}
	v.extra = appendData(v.extra, extra)
}

// setAttr stores an attribute of n in tx; removed{} takes it away.
func (c *Cluster) setAttr(n *node, tx *transaction, name string, value any) {
	if tx == nil {
		mergeAttrs(n.attrs, map[string]any{name: value}, true)
		c.touch(n)
		return
	}
	n.viewIn(tx).attrs[name] = value
}

// path of a node, escaped.
func (n *node) path() string {
	if n.parent == nil {
		if n.typ == "map_node" {
			return "/"
		}
		return "#" + n.id
	}
	if n.parent.parent == nil {
		return "//" + escapeStep(n.key)
	}
	return n.parent.path() + "/" + escapeStep(n.key)
}

// maxLinks bounds how many links one path may lead through.
const maxLinks = 8

// place is where a path leads: the deepest node on it, and the steps that remain below that node.
type place struct {
	node *node
	rest []string
}

// walk follows p from the root or its object, through links. The steps that are left may lie inside a document, an orchid,
// or nowhere.
func (c *Cluster) walk(p path, tx *transaction, links int) (place, error) {
	n, steps := c.root, p.steps
	if p.object != "" {
		if n = c.object(p.object); n == nil || !n.visible(tx) {
			return place{}, fail(yterrors.CodeResolveError, "No such object %.64s", p.object)
		}
	}
	for {
		if n.typ == "link" && (len(steps) > 0 || !p.nolink) {
			if links++; links > maxLinks {
				return place{}, fail(yterrors.CodeResolveError, "Too many links on the way to %.256q", p.text)
			}
			target, err := parsePath(n.dataIn(tx))
			if err != nil {
				return place{}, err
			}
			at, err := c.walk(target, tx, links)
			if err != nil || len(at.rest) > 0 {
				return at, err
			}
			n = at.node
		}
		if len(steps) == 0 {
			return place{node: n}, nil
		}
		next := n.child(steps[0], tx)
		if next == nil && n == c.transactions {
			next = c.object(steps[0])
		}
		if next == nil {
			return place{node: n, rest: steps}, nil
		}
		n, steps = next, steps[1:]
	}
}

// find is walk for paths that must end at a node of the tree.
func (c *Cluster) find(p path, tx *transaction) (*node, error) {
	at, err := c.walk(p, tx, 0)
	if err != nil {
		return nil, err
	}
	if len(at.rest) > 0 {
		return nil, missing(at)
	}
	return at.node, nil
}

// missing is the answer for a path that leads nowhere.
func missing(at place) error {
	return fail(yterrors.CodeResolveError, "Node %s has no child with key %.256q", at.node.path(), at.rest[0])
}

// mustFind is find for paths that the cluster made itself.
func (c *Cluster) mustFind(text string) *node {
	p, err := parsePath(text)
	if err != nil {
		panic(fmt.Sprintf("ytlocal: own path %s: %v", text, err))
	}
	n, err := c.find(p, nil)
	if err != nil {
		panic(fmt.Sprintf("ytlocal: own path %s: %v", text, err))
	}
	return n
}
