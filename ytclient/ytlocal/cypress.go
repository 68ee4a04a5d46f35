package ytlocal

import (
	"slices"

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
			v, err := valueGet(at.node.virtual(), at.rest)
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
	names, _, err := k.params.attributeNames()
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
	names, _, err := k.params.attributeNames()
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

func runSet(k *call) (any, error) {
	flags, err := k.flags("recursive", "force")
	if err != nil {
		return nil, err
	}
	value, err := k.input()
	if err != nil {
		return nil, err
	}
	p, at, err := k.locate()
	if err != nil {
		return nil, err
	}
	done := map[string]any{}
	switch {
	case p.isAttr && len(p.attr) == 0:
		return done, k.replaceAttributes(at.node, value)
	case p.isAttr:
		return done, k.setAttribute(at.node, p.attr, value, flags["recursive"])
	case len(at.rest) == 0:
		return done, k.setNode(at.node, value, flags["force"])
	case at.node.typ == "document" || at.node.typ == "list_node":
		v, err := valueSet(at.node.dataIn(k.tx), at.rest, value, flags["recursive"])
		if err != nil {
			return nil, err
		}
		return done, k.storeData(at.node, v)
	}
	parent, key, err := k.makeParents(at, flags["recursive"])
	if err != nil {
		return nil, err
	}
	_, err = k.addValue(parent, key, value)
	return done, err
}

// replaceAttributes sets all attributes of users at once.
func (k *call) replaceAttributes(n *node, value any) error {
	m, ok := plain(value).(map[string]any)
	if !ok {
		return fail(yterrors.CodeGeneric, "attributes must be a map, not %T", plain(value))
	}
	for name := range n.attrsIn(k.tx) {
		if _, kept := m[name]; !kept && !slices.Contains(systemAttributes, name) {
			if err := k.removeAttribute(n, []string{name}, true); err != nil {
				return err
			}
		}
	}
	return k.setAttributes(n, m)
}

func (k *call) setAttributes(n *node, m map[string]any) error {
	for _, name := range sortedKeys(m) {
		if err := k.setAttribute(n, []string{name}, m[name], false); err != nil {
			return err
		}
	}
	return nil
}

func runMultisetAttributes(k *call) (any, error) {
	value, err := k.input()
	if err != nil {
		return nil, err
	}
	m, ok := plain(value).(map[string]any)
	if !ok {
		return nil, fail(yterrors.CodeGeneric, "attributes must be a map, not %T", plain(value))
	}
	p, at, err := k.locate()
	if err != nil {
		return nil, err
	}
	if !p.isAttr {
		return nil, fail(yterrors.CodeGeneric, "path %.256q must name attributes: end it in /@", p.text)
	}
	for _, name := range sortedKeys(m) {
		if err := k.setAttribute(at.node, append(slices.Clone(p.attr), name), m[name], false); err != nil {
			return nil, err
		}
	}
	return map[string]any{}, nil
}

// scalarType is the node type that carries a value.
func scalarType(v any) (string, error) {
	switch v.(type) {
	case string:
		return "string_node", nil
	case int64:
		return "int64_node", nil
	case uint64:
		return "uint64_node", nil
	case float64:
		return "double_node", nil
	case bool:
		return "boolean_node", nil
	case map[string]any:
		return "map_node", nil
	case []any:
		return "list_node", nil
	}
	return "", fail(yterrors.CodeGeneric, "a node cannot hold an entity")
}

// setNode replaces what an existing node holds.
func (k *call) setNode(n *node, value any, force bool) error {
	attrs := map[string]any{}
	if va, ok := value.(*yson.ValueWithAttrs); ok {
		attrs, value = va.Attrs, va.Value
	}
	if n.typ == "document" {
		return k.storeData(n, value)
	}
	typ, err := scalarType(value)
	if err != nil {
		return err
	}
	switch {
	case n.typ == "map_node" && typ == "map_node":
		if !force {
			return fail(yterrors.CodeGeneric, "\"set\" on the existing map_node %s needs force=%%true: it replaces all children", n.path())
		}
		if err := k.allowed(n, "write"); err != nil {
			return err
		}
		for _, key := range n.keys(k.tx) {
			if err := k.removeNode(n.child(key, k.tx), true); err != nil {
				return err
			}
		}
		return k.addChildren(n, value.(map[string]any), attrs)
	case typ != n.typ:
		return fail(yterrors.CodeGeneric, "Cannot set a value of type %s to %s, which is a %s", typ, n.path(), n.typ)
	}
	if err := k.storeData(n, value); err != nil {
		return err
	}
	return k.setAttributes(n, attrs)
}

// storeData checks, locks and replaces.
func (k *call) storeData(n *node, data any) error {
	if err := k.allowed(n, "write"); err != nil {
		return err
	}
	if err := k.c.change(n, k.tx, exclusiveLock()); err != nil {
		return err
	}
	k.c.setData(n, k.tx, data)
	return nil
}

// mayAdd checks the right to add children to a node, or take them away.
func (k *call) mayAdd(parent *node) error {
	if k.c.permitted(k.user, parent, "modify_children") {
		return nil
	}
	return k.allowed(parent, "write")
}

// makeParents makes what is missing between at.node and the last step, and returns where to hang that.
func (k *call) makeParents(at place, recursive bool) (parent *node, key string, err error) {
	parent = at.node
	if parent.typ != "map_node" {
		return nil, "", missing(at)
	}
	if len(at.rest) > 1 && !recursive {
		return nil, "", missing(at)
	}
	for _, step := range at.rest[:len(at.rest)-1] {
		if parent, err = k.addNode(parent, step, k.c.newNode("map_node", nil)); err != nil {
			return nil, "", err
		}
	}
	return parent, at.rest[len(at.rest)-1], nil
}

// addNode hangs a new node under parent, with all checks, in the transaction of the call.
func (k *call) addNode(parent *node, key string, n *node) (*node, error) {
	if err := k.mayAdd(parent); err != nil {
		return nil, err
	}
	account, _ := n.attrs["account"].(string)
	if account == "" {
		account = parent.account()
	}
	if err := k.mayUse(account); err != nil {
		return nil, err
	}
	if err := k.c.change(parent, k.tx, childLock(key)); err != nil {
		return nil, err
	}
	n.tx = k.tx
	if _, ok := n.attrs["owner"]; !ok {
		n.attrs["owner"] = k.user
	}
	k.c.attach(parent, key, n)
	if k.tx != nil {
		k.tx.created = append(k.tx.created, n)
	}
	return n, nil
}

// addValue makes a node of a value.
func (k *call) addValue(parent *node, key string, value any) (*node, error) {
	attrs := map[string]any{}
	if va, ok := value.(*yson.ValueWithAttrs); ok {
		attrs, value = va.Attrs, va.Value
	}
	typ, err := scalarType(value)
	if err != nil {
		return nil, err
	}
	n := k.c.newNode(typ, nil)
	if n, err = k.addNode(parent, key, n); err != nil {
		return nil, err
	}
	if typ == "map_node" {
		return n, k.addChildren(n, value.(map[string]any), attrs)
	}
	n.data = value
	return n, k.setAttributes(n, attrs)
}

// addChildren fills an empty map node.
func (k *call) addChildren(n *node, children, attrs map[string]any) error {
	for _, key := range sortedKeys(children) {
		if key == "" {
			return fail(yterrors.CodeGeneric, "a key must not be empty")
		}
		if _, err := k.addValue(n, key, children[key]); err != nil {
			return err
		}
	}
	return k.setAttributes(n, attrs)
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
