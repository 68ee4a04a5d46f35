package ytlocal

import (
	"slices"

	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yterrors"
)

func runSet(k *call) (any, error) {
	flags, err := k.flags("recursive", "force")
	if err != nil {
		return nil, err
	}
	value := k.input()
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
	err = k.addValue(parent, key, value)
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
	value := k.input()
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
func (k *call) addValue(parent *node, key string, value any) error {
	attrs := map[string]any{}
	if va, ok := value.(*yson.ValueWithAttrs); ok {
		attrs, value = va.Attrs, va.Value
	}
	typ, err := scalarType(value)
	if err != nil {
		return err
	}
	n := k.c.newNode(typ, nil)
	if n, err = k.addNode(parent, key, n); err != nil {
		return err
	}
	if typ == "map_node" {
		return k.addChildren(n, value.(map[string]any), attrs)
	}
	n.data = value
	return k.setAttributes(n, attrs)
}

// addChildren fills an empty map node.
func (k *call) addChildren(n *node, children, attrs map[string]any) error {
	for _, key := range sortedKeys(children) {
		if key == "" {
			return fail(yterrors.CodeGeneric, "a key must not be empty")
		}
		if err := k.addValue(n, key, children[key]); err != nil {
			return err
		}
	}
	return k.setAttributes(n, attrs)
}
