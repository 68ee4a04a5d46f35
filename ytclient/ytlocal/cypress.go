package ytlocal

import (
	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yterrors"
)

// deferred is the rest of a command that must run after Cluster.mu is released, since it asks the scheduler.
type deferred func() (any, error)

// inner reads what is below a node of the tree: inside a document, or inside what a virtual node computes. then turns
// it into the answer.
func inner(at place, tx *transaction, then func(any) (any, error)) (any, error) {
	switch {
	case at.node.virtual != nil:
		return deferred(func() (any, error) {
			v, err := valueGet(at.node.virtual(at.rest), at.rest)
			if err != nil {
				return nil, err
			}
			return then(v)
		}), nil
	case at.node.typ == "document" || at.node.typ == "list_node":
		v, err := valueGet(at.node.dataIn(tx), at.rest)
		if err != nil {
			return nil, err
		}
		return then(v)
	}
	return nil, missing(at)
}

// envelope is the answer of get, list and exists. return_only_value asks for the bare value: the Python client does.
func (k *call) envelope(v any) (any, error) {
	bare, _, err := k.params.bool("return_only_value")
	if err != nil || bare {
		return v, err
	}
	return map[string]any{"value": v}, nil
}

// locate reads the path parameter and follows it.
func (k *call) locate() (path, place, error) {
	p, err := k.params.path("path")
	if err != nil {
		return p, place{}, err
	}
	at, err := k.c.walk(p, k.tx, 0)
	if err == nil && p.isAttr && len(at.rest) > 0 {
		err = missing(at)
	}
	return p, at, err
}

func runGet(k *call) (any, error) {
	names, err := k.params.attributeNames()
	if err != nil {
		return nil, err
	}
	p, at, err := k.locate()
	if err != nil {
		return nil, err
	}
	if err := k.allowed(at.node, "read"); err != nil {
		return nil, err
	}
	if p.isAttr {
		v, err := k.c.attributeAt(at.node, k.tx, p.attr)
		if err != nil {
			return nil, err
		}
		return k.envelope(v)
	}
	if len(at.rest) > 0 || at.node.virtual != nil {
		return inner(at, k.tx, k.envelope)
	}
	v, err := k.render(at.node, names)
	if err != nil {
		return nil, err
	}
	return k.envelope(v)
}

// render is a node and all that is below it, as a value.
func (k *call) render(n *node, names []string) (any, error) {
	if err := k.allowed(n, "read"); err != nil {
		return nil, err
	}
	switch n.typ {
	case "map_node":
		m := map[string]any{}
		for _, key := range n.keys(k.tx) {
			v, err := k.render(n.child(key, k.tx), names)
			if err != nil {
				return nil, err
			}
			m[key] = v
		}
		return k.c.wrap(n, k.tx, names, m), nil
	case "string_node", "int64_node", "uint64_node", "double_node", "boolean_node", "document", "list_node":
		return k.c.wrap(n, k.tx, names, n.dataIn(k.tx)), nil
	}
	return k.c.wrap(n, k.tx, names, nil), nil
}

func runList(k *call) (any, error) {
	names, err := k.params.attributeNames()
	if err != nil {
		return nil, err
	}
	limit, limited, err := k.params.int("max_size")
	if err != nil {
		return nil, err
	}
	p, at, err := k.locate()
	if err != nil {
		return nil, err
	}
	if err := k.allowed(at.node, "read"); err != nil {
		return nil, err
	}
	answer := func(items []any) (any, error) {
		if limited && int64(len(items)) > limit {
			return k.envelope(&yson.ValueWithAttrs{Attrs: map[string]any{"incomplete": true}, Value: items[:max(limit, 0)]})
		}
		return k.envelope(items)
	}
	keysOf := func(v any) (any, error) {
		m, ok := plain(v).(map[string]any)
		if !ok {
			return nil, fail(yterrors.CodeGeneric, "\"List\" needs a map, %.256q is none", p.text)
		}
		return answer(anyList(sortedKeys(m)))
	}
	if p.isAttr {
		v, err := k.c.attributeAt(at.node, k.tx, p.attr)
		if err != nil {
			return nil, err
		}
		return keysOf(v)
	}
	if at.node == k.c.transactions && len(at.rest) == 0 {
		return answer(anyList(sortedKeys(k.c.txs)))
	}
	if len(at.rest) > 0 || at.node.typ != "map_node" {
		return inner(at, k.tx, keysOf)
	}
	items := []any{}
	for _, key := range at.node.keys(k.tx) {
		items = append(items, k.c.wrap(at.node.child(key, k.tx), k.tx, names, key))
	}
	return answer(items)
}

func runExists(k *call) (any, error) {
	p, err := k.params.path("path")
	if err != nil {
		return nil, err
	}
	at, err := k.c.walk(p, k.tx, 0)
	if err != nil {
		return k.existsAnswer(false, err)
	}
	if p.isAttr {
		if len(at.rest) > 0 {
			return k.envelope(false)
		}
		_, err := k.c.attributeAt(at.node, k.tx, p.attr)
		return k.existsAnswer(true, err)
	}
	if len(at.rest) == 0 {
		return k.envelope(true)
	}
	v, err := inner(at, k.tx, func(any) (any, error) { return k.envelope(true) })
	if later, ok := v.(deferred); ok {
		return deferred(func() (any, error) {
			_, err := later()
			return k.existsAnswer(true, err)
		}), nil
	}
	return k.existsAnswer(true, err)
}

// existsAnswer makes "no" of a path that does not resolve.
func (k *call) existsAnswer(yes bool, err error) (any, error) {
	if err != nil && !yterrors.ContainsResolveError(err) {
		return nil, err
	}
	return k.envelope(yes && err == nil)
}

// flags reads booleans that are false when absent.
func (k *call) flags(names ...string) (map[string]bool, error) {
	out := map[string]bool{}
	for _, name := range names {
		b, _, err := k.params.bool(name)
		if err != nil {
			return nil, err
		}
		out[name] = b
	}
	return out, nil
}

func runRemove(k *call) (any, error) {
	flags, err := k.flags("recursive", "force")
	if err != nil {
		return nil, err
	}
	done := map[string]any{}
	p, at, err := k.locate()
	if err != nil {
		if flags["force"] && yterrors.ContainsResolveError(err) {
			return done, nil
		}
		return nil, err
	}
	switch {
	case p.isAttr:
		return done, k.removeAttribute(at.node, p.attr, flags["force"])
	case len(at.rest) > 0 && (at.node.typ == "document" || at.node.typ == "list_node"):
		v, err := valueRemove(at.node.dataIn(k.tx), at.rest)
		if err != nil {
			return nil, err
		}
		return done, k.storeData(at.node, v)
	case len(at.rest) > 0:
		if flags["force"] {
			return done, nil
		}
		return nil, missing(at)
	case p.wild:
		for _, key := range at.node.keys(k.tx) {
			if err := k.removeNode(at.node.child(key, k.tx), true); err != nil {
				return nil, err
			}
		}
		return done, nil
	}
	return done, k.removeNode(at.node, flags["recursive"])
}

// removeNode takes a node away: at once, or when the transaction of the call commits.
func (k *call) removeNode(n *node, recursive bool) error {
	if err := k.allowed(n, "remove"); err != nil {
		return err
	}
	if n.parent == nil || n.builtin {
		return fail(yterrors.CodeGeneric, "Node %s is part of the system and cannot be removed", n.path())
	}
	if n.typ != "user" && n.typ != "group" && n.typ != "account" {
		if err := k.mayAdd(n.parent); err != nil {
			return err
		}
	}
	if len(n.keys(k.tx)) > 0 && !recursive {
		return fail(yterrors.CodeGeneric, "Cannot remove non-empty composite node %s without recursive=%%true", n.path())
	}
	if err := k.c.change(n, k.tx, exclusiveLock()); err != nil {
		return err
	}
	if err := k.c.change(n.parent, k.tx, childLock(n.key)); err != nil {
		return err
	}
	if k.tx != nil && n.tx != k.tx {
		n.removedBy = k.tx
		k.tx.removed = append(k.tx.removed, n)
		return nil
	}
	k.c.removeSubject(n)
	k.c.detach(n)
	return nil
}
