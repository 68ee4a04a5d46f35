package ytlocal

import (
	"slices"

	"go.ytsaurus.tech/yt/go/yterrors"
)

// permissions that an ACE may name.
var permissions = []string{
	"read", "write", "use", "administer", "create", "remove", "mount", "manage", "modify_children", "full_read",
	"register_queue_consumer",
}

// ace is one entry of an ACL.
type ace struct {
	deny        bool
	subjects    []string
	permissions []string
	inheritance string
}

// parseACL reads an ACL. Entries that are broken are errors: one must not think that a right was given or taken.
func parseACL(v any) ([]ace, error) {
	list, ok := plain(v).([]any)
	if !ok {
		return nil, fail(yterrors.CodeGeneric, "an ACL must be a list, not %T", plain(v))
	}
	acl := make([]ace, 0, len(list))
	for _, item := range list {
		m, ok := plain(item).(map[string]any)
		if !ok {
			return nil, fail(yterrors.CodeGeneric, "an ACE must be a map, not %T", plain(item))
		}
		var a ace
		switch action := plain(m["action"]); action {
		case "allow":
		case "deny":
			a.deny = true
		default:
			return nil, fail(yterrors.CodeGeneric, "action of an ACE must be allow or deny, not %.64q", action)
		}
		if a.subjects, ok = toStrings(m["subjects"]); !ok {
			return nil, fail(yterrors.CodeGeneric, "subjects of an ACE must be a list of strings")
		}
		if a.permissions, ok = toStrings(m["permissions"]); !ok {
			return nil, fail(yterrors.CodeGeneric, "permissions of an ACE must be a list of strings")
		}
		for _, p := range a.permissions {
			if !slices.Contains(permissions, p) {
				return nil, fail(yterrors.CodeGeneric, "permission %.64q of an ACE is none of %v", p, permissions)
			}
		}
		a.inheritance = "object_and_descendants"
		if mode, ok := m["inheritance_mode"]; ok {
			if a.inheritance, ok = plain(mode).(string); !ok || !slices.Contains(inheritanceModes, a.inheritance) {
				return nil, fail(yterrors.CodeGeneric, "inheritance_mode %.64q of an ACE is none of %v", mode, inheritanceModes)
			}
		}
		acl = append(acl, a)
	}
	return acl, nil
}

var inheritanceModes = []string{"object_only", "object_and_descendants", "descendants_only", "immediate_descendants_only"}

// applies reports whether an ACE of a node that lies depth levels above counts.
func (a ace) applies(depth int) bool {
	switch a.inheritance {
	case "object_only":
		return depth == 0
	case "descendants_only":
		return depth > 0
	case "immediate_descendants_only":
		return depth == 1
	}
	return true
}

// effectiveACL of a node: its own and what it inherits.
func (n *node) effectiveACL() []ace {
	var out []ace
	for depth := 0; n != nil; depth++ {
		if raw, ok := n.attrs["acl"]; ok {
			acl, err := parseACL(raw)
			if err != nil {
				// Only checked ACLs are stored; one that does not parse gives nobody anything.
				return []ace{{deny: true, subjects: []string{everyone}, permissions: permissions}}
			}
			for _, a := range acl {
				if a.applies(depth) {
					out = append(out, a)
				}
			}
		}
		if inherit, ok := n.attrs["inherit_acl"].(bool); ok && !inherit {
			break
		}
		n = n.parent
	}
	return out
}

// decide reports whether acl gives user the permission: somebody must say yes and nobody no.
func (c *Cluster) decide(acl []ace, user, permission, owner string) bool {
	allowed := false
	for _, a := range acl {
		if !slices.Contains(a.permissions, permission) {
			continue
		}
		for _, subject := range a.subjects {
			if !c.isMember(user, subject) && (subject != "owner" || owner == "" || user != owner) {
				continue
			}
			if a.deny {
				return false
			}
			allowed = true
		}
	}
	return allowed
}

// permitted reports whether user has the permission on the node. For a superuser the answer is always yes.
func (c *Cluster) permitted(user string, n *node, permission string) bool {
	if c.isSuperuser(user) {
		return true
	}
	owner, _ := n.attrs["owner"].(string)
	return c.decide(n.effectiveACL(), user, permission, owner)
}

// allowed is nil if the caller has the permission on the node.
func (k *call) allowed(n *node, permission string) error {
	if k.c.permitted(k.user, n, permission) {
		return nil
	}
	return denied(k.user, permission, n.path())
}

// denied is the answer to a missing right.
func denied(user, permission, what string) *yterrors.Error {
	e := fail(yterrors.CodeAuthorizationError, "Access denied for user %q: %q permission for %s is not allowed by any matching ACE", user, permission, what)
	e.AddAttr("user", user)
	e.AddAttr("permission", permission)
	return e
}

// operationACL is what decides about an operation: the base ACL of //sys/operations, in which write means read and
// manage, and the operation's own.
func (c *Cluster) operationACL(own []any) []ace {
	var acl []ace
	for _, a := range c.operations.effectiveACL() {
		if slices.Contains(a.permissions, "write") {
			a.permissions = append(slices.Clone(a.permissions), "read", "manage")
		}
		acl = append(acl, a)
	}
	parsed, err := parseACL(own)
	if err != nil {
		// The scheduler checks what it stores; an ACL that is no ACL gives nobody anything.
		return nil
	}
	return append(acl, parsed...)
}

// permittedOperation reports whether user has the permission on an operation with the given ACL of its own.
func (c *Cluster) permittedOperation(user string, own []any, permission string) bool {
	return c.isSuperuser(user) || c.decide(c.operationACL(own), user, permission, "")
}

func runCheckPermission(k *call) (any, error) {
	user, permission, err := k.checkedSubject(permissions)
	if err != nil {
		return nil, err
	}
	p, err := k.params.path("path")
	if err != nil {
		return nil, err
	}
	n, err := k.c.find(p, k.tx)
	if err != nil {
		return nil, err
	}
	return decision(k.c.permitted(user, n, permission)), nil
}

// checkedSubject reads the user and the permission that a check asks about.
func (k *call) checkedSubject(known []string) (user, permission string, err error) {
	if user, err = k.params.need("user"); err != nil {
		return "", "", err
	}
	if permission, err = k.params.need("permission"); err != nil {
		return "", "", err
	}
	if !slices.Contains(known, permission) {
		return "", "", fail(yterrors.CodeGeneric, "permission %.64q is none of %v", permission, known)
	}
	if k.c.users[user] == nil {
		return "", "", fail(yterrors.CodeResolveError, "No such user %.64q", user)
	}
	return user, permission, nil
}

// decision is the answer of both permission checks.
func decision(yes bool) map[string]any {
	if yes {
		return map[string]any{"action": "allow"}
	}
	return map[string]any{"action": "deny"}
}
