package ytlocal

import (
	"maps"
	"slices"

	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yterrors"
)

// builtins are the attributes that the cluster computes for a node. They cannot be set.
var builtins = map[string]func(c *Cluster, n *node, tx *transaction) any{
	"id":                func(_ *Cluster, n *node, _ *transaction) any { return n.id },
	"type":              func(_ *Cluster, n *node, _ *transaction) any { return n.typ },
	"path":              func(_ *Cluster, n *node, _ *transaction) any { return n.path() },
	"creation_time":     func(_ *Cluster, n *node, _ *transaction) any { return timeText(n.created) },
	"modification_time": func(_ *Cluster, n *node, _ *transaction) any { return timeText(n.modified) },
	"access_time":       func(_ *Cluster, n *node, _ *transaction) any { return timeText(n.modified) },
	"revision":          func(_ *Cluster, n *node, _ *transaction) any { return n.revision },
	"content_revision":  func(_ *Cluster, n *node, _ *transaction) any { return n.revision },
	"lock_count":        func(_ *Cluster, n *node, _ *transaction) any { return int64(len(n.locks)) },
	"locks":             func(_ *Cluster, n *node, _ *transaction) any { return lockList(n) },
	"lock_mode":         func(_ *Cluster, n *node, tx *transaction) any { return lockMode(n, tx) },
	"effective_acl":     func(_ *Cluster, n *node, _ *transaction) any { return effectiveACLValue(n) },
	"opaque":            func(_ *Cluster, n *node, _ *transaction) any { return n.virtual != nil },
	"builtin":           func(_ *Cluster, n *node, _ *transaction) any { return n.builtin },
	"external":          func(_ *Cluster, n *node, _ *transaction) any { return false },
	"ref_counter":       func(_ *Cluster, n *node, _ *transaction) any { return int64(1) },
	"user_attribute_keys": func(_ *Cluster, n *node, tx *transaction) any {
		return anyList(slices.DeleteFunc(sortedKeys(n.attrsIn(tx)), func(name string) bool { return slices.Contains(systemAttributes, name) }))
	},
}

// systemAttributes are stored with the users' own, but are the cluster's business.
var systemAttributes = []string{"acl", "inherit_acl", "owner", "account", "schema", "banned"}

// countedAttributes follow from what a node holds or where it is.
var countedAttributes = []string{
	"key", "parent_id", "count", "row_count", "chunk_row_count", "chunk_count", "data_weight", "uncompressed_data_size",
	"compressed_data_size", "sorted", "sorted_by", "schema_mode", "target_path",
}

// shaped are computed attributes that only some types have.
func (c *Cluster) shaped(n *node, tx *transaction) map[string]any {
	m := map[string]any{}
	if n.parent != nil {
		m["key"], m["parent_id"] = n.key, n.parent.id
	}
	m["acl"], m["inherit_acl"] = []any{}, true
	if account := n.account(); account != "" {
		m["account"] = account
	}
	switch n.typ {
	case "map_node":
		m["count"] = int64(len(n.keys(tx)))
	case "list_node":
		list, _ := n.dataIn(tx).([]any)
		m["count"] = int64(len(list))
	case "table":
		rows, _ := n.dataIn(tx).([]row)
		m["row_count"], m["chunk_row_count"] = int64(len(rows)), int64(len(rows))
		m["chunk_count"] = int64(min(len(rows), 1))
		size := int64(0)
		if b, err := encodeRows(rows, nil, format{name: "yson", attrs: map[string]any{"format": "binary"}}); err == nil {
			size = int64(len(b))
		}
		m["data_weight"], m["uncompressed_data_size"], m["compressed_data_size"] = size, size, size
		m["sorted"], m["dynamic"] = false, false
		schema, ok := n.attrIn(tx, "schema")
		m["schema_mode"] = "strong"
		if !ok {
			schema, m["schema_mode"] = weakSchema(), "weak"
		}
		m["schema"] = schema
		if s, err := parseSchema(schema); err == nil {
			m["sorted"] = len(s.sortedBy) > 0
			if len(s.sortedBy) > 0 {
				m["sorted_by"] = anyList(s.sortedBy)
			}
		}
	case "file":
		b, _ := n.dataIn(tx).([]byte)
		m["uncompressed_data_size"], m["compressed_data_size"] = int64(len(b)), int64(len(b))
		m["chunk_count"] = int64(min(len(b), 1))
	case "link":
		m["target_path"] = n.dataIn(tx)
	}
	if n.computed != nil {
		maps.Copy(m, n.computed())
	}
	return m
}

// account that pays for the node: its own, or that of the nearest node above.
func (n *node) account() string {
	for ; n != nil; n = n.parent {
		if a, ok := n.attrs["account"].(string); ok {
			return a
		}
	}
	return ""
}

// attribute of a node as tx sees it.
func (c *Cluster) attribute(n *node, tx *transaction, name string) (any, bool) {
	if f := builtins[name]; f != nil {
		return f(c, n, tx), true
	}
	if a, ok := n.attrIn(tx, name); ok {
		return a, true
	}
	a, ok := c.shaped(n, tx)[name]
	return a, ok
}

// attributeAt follows "@name/steps".
func (c *Cluster) attributeAt(n *node, tx *transaction, steps []string) (any, error) {
	if len(steps) == 0 {
		return c.allAttributes(n, tx), nil
	}
	a, ok := c.attribute(n, tx, steps[0])
	if !ok {
		return nil, fail(yterrors.CodeResolveError, "Attribute %.256q is not found", steps[0])
	}
	return valueGet(a, steps[1:])
}

// allAttributes is what "@" alone shows.
func (c *Cluster) allAttributes(n *node, tx *transaction) map[string]any {
	m := c.shaped(n, tx)
	for name, f := range builtins {
		m[name] = f(c, n, tx)
	}
	maps.Copy(m, n.attrsIn(tx))
	return m
}

// wrap puts the asked attributes around a value, those that the node has.
func (c *Cluster) wrap(n *node, tx *transaction, names []string, value any) any {
	attrs := map[string]any{}
	for _, name := range names {
		if a, ok := c.attribute(n, tx, name); ok {
			attrs[name] = a
		}
	}
	if len(attrs) == 0 {
		return value
	}
	return &yson.ValueWithAttrs{Attrs: attrs, Value: value}
}

// checkAttribute says whether the caller may give the node this attribute, and whether the value makes sense.
func (k *call) checkAttribute(n *node, name string, value any) error {
	_, builtin := builtins[name]
	if n.computed != nil && !builtin {
		_, builtin = n.computed()[name]
	}
	if builtin || slices.Contains(countedAttributes, name) {
		return fail(yterrors.CodeGeneric, "Builtin attribute %q cannot be set", name)
	}
	switch name {
	case "acl":
		acl, err := parseACL(value)
		if err != nil {
			return err
		}
		for _, a := range acl {
			for _, s := range a.subjects {
				if k.c.users[s] == nil && k.c.groups[s] == nil && s != "owner" {
					return fail(yterrors.CodeNoSuchSubject, "No such user or group %.64q", s)
				}
			}
		}
		return k.allowed(n, "administer")
	case "inherit_acl":
		if _, ok := value.(bool); !ok {
			return fail(yterrors.CodeGeneric, "inherit_acl must be a boolean, not %T", value)
		}
		return k.allowed(n, "administer")
	case "owner":
		if s, ok := value.(string); !ok || k.c.users[s] == nil {
			return fail(yterrors.CodeNoSuchSubject, "No such user %.64q", value)
		}
		if k.c.isSuperuser(k.user) || value == k.user {
			return nil
		}
		return denied(k.user, "administer", n.path())
	case "account":
		name, _ := value.(string)
		return k.mayUse(name)
	case "schema":
		_, err := parseSchema(value)
		return err
	case "banned":
		if _, ok := value.(bool); !ok {
			return fail(yterrors.CodeGeneric, "banned must be a boolean, not %T", value)
		}
	case "dynamic":
		if yes, _ := toBool(value); yes {
			return fail(yterrors.CodeGeneric, "dynamic tables are not supported here")
		}
	}
	return nil
}

// mayUse checks the right to fill an account.
func (k *call) mayUse(account string) error {
	n := k.c.accounts.child(account, nil)
	if n == nil {
		return fail(yterrors.CodeResolveError, "No such account %.64q", account)
	}
	if !k.c.permitted(k.user, n, "use") {
		return denied(k.user, "use", "account "+account)
	}
	return nil
}

// setAttribute stores "@name/steps" of n.
func (k *call) setAttribute(n *node, steps []string, value any, recursive bool) error {
	name := steps[0]
	if err := k.allowed(n, "write"); err != nil && name != "acl" && name != "inherit_acl" {
		return err
	}
	if len(steps) > 1 {
		old, ok := k.c.attribute(n, k.tx, name)
		if !ok {
			return fail(yterrors.CodeResolveError, "Attribute %.256q is not found", name)
		}
		var err error
		if value, err = valueSet(old, steps[1:], value, recursive); err != nil {
			return err
		}
	}
	if err := k.checkAttribute(n, name, value); err != nil {
		return err
	}
	return k.storeAttribute(n, name, value)
}

// storeAttribute takes the lock and stores. Rights do not wait for a transaction's end.
func (k *call) storeAttribute(n *node, name string, value any) error {
	if err := k.c.change(n, k.tx, attributeLock(name)); err != nil {
		return err
	}
	tx := k.tx
	if slices.Contains(systemAttributes, name) && name != "schema" {
		tx = nil
	}
	k.c.setAttr(n, tx, name, value)
	return nil
}

// removeAttribute takes "@name/steps" of n away.
func (k *call) removeAttribute(n *node, steps []string, force bool) error {
	if len(steps) == 0 {
		return fail(yterrors.CodeGeneric, "name the attribute to remove")
	}
	name := steps[0]
	if err := k.allowed(n, "write"); err != nil && name != "acl" {
		return err
	}
	old, ok := n.attrIn(k.tx, name)
	if !ok {
		if _, computed := k.c.attribute(n, k.tx, name); computed {
			return fail(yterrors.CodeGeneric, "Builtin attribute %q cannot be removed", name)
		}
		if force {
			return nil
		}
		return fail(yterrors.CodeResolveError, "Attribute %.256q is not found", name)
	}
	if len(steps) == 1 {
		if name == "acl" || name == "inherit_acl" {
			if err := k.allowed(n, "administer"); err != nil {
				return err
			}
		}
		return k.storeAttribute(n, name, removed{})
	}
	value, err := valueRemove(old, steps[1:])
	if err != nil {
		if force && yterrors.ContainsResolveError(err) {
			return nil
		}
		return err
	}
	if err := k.checkAttribute(n, name, value); err != nil {
		return err
	}
	return k.storeAttribute(n, name, value)
}

// lockList is the attribute "locks".
func lockList(n *node) any {
	list := make([]any, 0, len(n.locks))
	for _, l := range n.locks {
		m := l.describe()
		m["id"] = l.id
		list = append(list, m)
	}
	return list
}

// lockMode is the attribute "lock_mode": the strongest lock that tx holds.
func lockMode(n *node, tx *transaction) any {
	mode := "none"
	for _, l := range n.locks {
		if tx != nil && l.tx == tx && !l.pending && (mode == "none" || l.mode == "exclusive") {
			mode = l.mode
		}
	}
	return mode
}

// effectiveACLValue is the attribute "effective_acl".
func effectiveACLValue(n *node) any {
	list := []any{}
	for _, a := range n.effectiveACL() {
		action := "allow"
		if a.deny {
			action = "deny"
		}
		list = append(list, map[string]any{
			"action": action, "subjects": anyList(a.subjects), "permissions": anyList(a.permissions),
			"inheritance_mode": a.inheritance,
		})
	}
	return list
}
