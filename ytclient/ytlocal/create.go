package ytlocal

import (
	"maps"
	"slices"

	"go.ytsaurus.tech/yt/go/yterrors"
)

// creatable are the types of nodes that create makes at a path.
var creatable = []string{
	"map_node", "document", "table", "file", "string_node", "int64_node", "uint64_node", "double_node", "boolean_node",
	"list_node",
}

// zeroes are what new scalars hold.
var zeroes = map[string]any{
	"string_node": "", "int64_node": int64(0), "uint64_node": uint64(0), "double_node": float64(0), "boolean_node": false,
}

func runCreate(k *call) (any, error) {
	typ, err := k.params.need("type")
	if err != nil {
		return nil, err
	}
	attrs, err := k.params.attributes()
	if err != nil {
		return nil, err
	}
	if !k.params.has("path") {
		return k.createObject(typ, attrs)
	}
	if !slices.Contains(creatable, typ) {
		return nil, fail(yterrors.CodeGeneric, "a node of type %.64q cannot be created here; one of %v can", typ, creatable)
	}
	flags, err := k.flags("recursive", "ignore_existing", "force", "ignore_type_mismatch")
	if err != nil {
		return nil, err
	}
	p, at, err := k.locate()
	if err != nil {
		return nil, err
	}
	if p.isAttr {
		return nil, fail(yterrors.CodeGeneric, "path %.256q names an attribute; use set", p.text)
	}
	if len(at.rest) == 0 {
		n, err := k.createOver(at.node, typ, attrs, flags)
		if err != nil {
			return nil, err
		}
		return created(n), nil
	}
	parent, key, err := k.makeParents(at, flags["recursive"])
	if err != nil {
		return nil, err
	}
	n, err := k.createNode(parent, key, typ, attrs)
	if err != nil {
		return nil, err
	}
	return created(n), nil
}

// created is the answer of create. Clients of nodes read one key, those of objects the other.
func created(n *node) map[string]any { return map[string]any{"node_id": n.id, "object_id": n.id} }

// createOver is create where a node is already.
func (k *call) createOver(old *node, typ string, attrs map[string]any, flags map[string]bool) (*node, error) {
	switch {
	case flags["ignore_existing"]:
		if old.typ != typ && !flags["ignore_type_mismatch"] {
			return nil, fail(yterrors.CodeAlreadyExists, "Node %s already exists and has type %s while node of %s type is about to be created", old.path(), old.typ, typ)
		}
		return old, nil
	case flags["force"] && old.parent != nil:
		parent, key := old.parent, old.key
		if err := k.removeNode(old, true); err != nil {
			return nil, err
		}
		return k.createNode(parent, key, typ, attrs)
	}
	return nil, fail(yterrors.CodeAlreadyExists, "Node %s already exists", old.path())
}

// createNode makes one node with attributes.
func (k *call) createNode(parent *node, key, typ string, attrs map[string]any) (*node, error) {
	for _, name := range sortedKeys(attrs) {
		// Rights on the new node are those that its place gives.
		if err := k.checkAttribute(parent, name, attrs[name]); err != nil {
			return nil, err
		}
	}
	n := k.c.newNode(typ, maps.Clone(attrs))
	if zero, ok := zeroes[typ]; ok {
		n.data = zero
	}
	if typ == "document" {
		n.data = n.attrs["value"]
		delete(n.attrs, "value")
	}
	return k.addNode(parent, key, n)
}

// createObject makes what has a name instead of a path.
func (k *call) createObject(typ string, attrs map[string]any) (any, error) {
	if err := k.mustBeSuper("create", "schema "+typ); err != nil {
		return nil, err
	}
	attrs = maps.Clone(attrs)
	name, ok := attrs["name"].(string)
	if !ok {
		return nil, fail(yterrors.CodeGeneric, "attribute name is missing")
	}
	delete(attrs, "name")
	ignore, _, err := k.params.bool("ignore_existing")
	if err != nil {
		return nil, err
	}
	var parent *node
	add := k.c.addUser
	switch typ {
	case "user":
		parent = k.c.mustFind("//sys/users")
	case "group":
		parent, add = k.c.mustFind("//sys/groups"), k.c.addGroup
	case "account":
		parent, add = k.c.accounts, k.c.addAccount
	default:
		return nil, fail(yterrors.CodeGeneric, "objects of type %.64q cannot be created here; user, group and account can", typ)
	}
	if old := parent.child(name, nil); old != nil && ignore {
		return created(old), nil
	}
	n, err := add(name)
	if err != nil {
		return nil, err
	}
	return created(n), k.setAttributes(n, attrs)
}

// addAccount makes an account that only superusers may use until its ACL says otherwise.
func (c *Cluster) addAccount(name string) (*node, error) {
	if !subjectName.MatchString(name) {
		return nil, fail(yterrors.CodeGeneric, "account name %.64q must be 1 to 128 letters, digits, dots, dashes, underscores or @", name)
	}
	if c.accounts.child(name, nil) != nil {
		return nil, fail(yterrors.CodeAlreadyExists, "Account %q already exists", name)
	}
	n := c.newNode("account", nil)
	n.computed = func() map[string]any { return map[string]any{"name": name} }
	c.attach(c.accounts, name, n)
	return n, nil
}

func runCopy(k *call) (any, error) { return k.copyNode(false) }
func runMove(k *call) (any, error) { return k.copyNode(true) }

// copyNode makes a copy with new ids; a move removes the source in the same transaction.
func (k *call) copyNode(move bool) (any, error) {
	flags, err := k.flags("recursive", "ignore_existing", "force")
	if err != nil {
		return nil, err
	}
	from, err := k.params.path("source_path")
	if err != nil {
		return nil, err
	}
	to, err := k.params.path("destination_path")
	if err != nil {
		return nil, err
	}
	source, err := k.c.find(from, k.tx)
	if err != nil {
		return nil, err
	}
	if err := k.allowed(source, "read"); err != nil {
		return nil, err
	}
	if move && source.builtin {
		return nil, fail(yterrors.CodeGeneric, "Node %s is part of the system and cannot be moved", source.path())
	}
	at, err := k.c.walk(to, k.tx, 0)
	if err != nil {
		return nil, err
	}
	for n := at.node; n != nil; n = n.parent {
		if n == source {
			return nil, fail(yterrors.CodeGeneric, "Node %s cannot be copied or moved into itself", source.path())
		}
	}
	if at, err = k.clearTarget(at, flags); err != nil {
		return nil, err
	}
	if len(at.rest) == 0 {
		return created(at.node), nil
	}
	parent, key, err := k.makeParents(at, flags["recursive"])
	if err != nil {
		return nil, err
	}
	n, err := k.clone(source, parent, key)
	if err != nil {
		return nil, err
	}
	if move {
		if err := k.removeNode(source, true); err != nil {
			return nil, err
		}
	}
	return created(n), nil
}

// clearTarget makes room where a copy or link goes. A place without rest means: leave what is there.
func (k *call) clearTarget(at place, flags map[string]bool) (place, error) {
	switch {
	case len(at.rest) > 0 || flags["ignore_existing"]:
		return at, nil
	case flags["force"] && at.node.parent != nil:
		parent, key := at.node.parent, at.node.key
		return place{node: parent, rest: []string{key}}, k.removeNode(at.node, true)
	}
	return at, fail(yterrors.CodeAlreadyExists, "Node %s already exists", at.node.path())
}

// clone copies a node and what is below it, as the call's transaction sees them.
func (k *call) clone(source, parent *node, key string) (*node, error) {
	if err := k.allowed(source, "read"); err != nil {
		return nil, err
	}
	if source.typ != "link" && !slices.Contains(creatable, source.typ) {
		return nil, fail(yterrors.CodeGeneric, "Node %s of type %s cannot be copied or moved", source.path(), source.typ)
	}
	attrs := source.attrsIn(k.tx)
	for _, name := range []string{"owner", "account", "acl", "inherit_acl"} {
		delete(attrs, name) // a copy belongs to who made it and has the rights of its new place
	}
	n := k.c.newNode(source.typ, attrs)
	n.data = source.dataIn(k.tx)
	n, err := k.addNode(parent, key, n)
	if err != nil {
		return nil, err
	}
	for _, name := range source.keys(k.tx) {
		if _, err := k.clone(source.child(name, k.tx), n, name); err != nil {
			return nil, err
		}
	}
	return n, nil
}

func runLink(k *call) (any, error) {
	flags, err := k.flags("recursive", "ignore_existing", "force")
	if err != nil {
		return nil, err
	}
	target, err := k.params.path("target_path")
	if err != nil {
		return nil, err
	}
	at, err := k.params.path("link_path")
	if err != nil {
		return nil, err
	}
	if _, err := k.c.find(target, k.tx); err != nil {
		return nil, err
	}
	at.nolink = true
	where, err := k.c.walk(at, k.tx, 0)
	if err != nil {
		return nil, err
	}
	if where, err = k.clearTarget(where, flags); err != nil {
		return nil, err
	}
	if len(where.rest) == 0 {
		return created(where.node), nil
	}
	parent, key, err := k.makeParents(where, flags["recursive"])
	if err != nil {
		return nil, err
	}
	n := k.c.newNode("link", nil)
	n.data = target.text
	if n, err = k.addNode(parent, key, n); err != nil {
		return nil, err
	}
	return created(n), nil
}
