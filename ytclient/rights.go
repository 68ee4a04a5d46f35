package ytclient

import (
	"context"
	"errors"
	"fmt"

	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yt"
)

// Permissions on nodes of Cypress and on accounts, besides Read and, on the base ACL of operations, Manage.
const (
	Write      Permission = "write"
	Use        Permission = "use"        // of an account, for what takes place on disks
	Administer Permission = "administer" // of a node's ACL: who has it can give itself the rest
)

// CheckPermission asks the cluster whether a user has a right on a node. As with operations, only a plain "allow" is a yes
// and only a plain "deny" is a no.
//
// Errors: ErrNotFound when there is no such node (or user), ErrDenied when the robot may not ask, ErrOverloaded,
// ErrUnavailable, ErrRejected.
func (c *Client) CheckPermission(ctx context.Context, login, path string, p Permission) (allowed bool, err error) {
	err = c.do(ctx, "check_permission", func(ctx context.Context) error {
		r, err := c.yc.CheckPermission(ctx, login, yt.Permission(p), ypath.Path(path), nil)
		switch {
		case err != nil:
			return err
		case r == nil:
			return fmt.Errorf("%w: it is empty", ErrOddAnswer)
		case r.Action == yt.ActionAllow:
			allowed = true
		case r.Action != yt.ActionDeny:
			return fmt.Errorf("%w: its action is %.32q, neither allow nor deny", ErrOddAnswer, r.Action)
		}
		return nil
	})
	return allowed, err
}

// Groups are the groups that a user is in, directly or through other groups.
//
// Errors: ErrNotFound when there is no such user, ErrDenied, ErrOverloaded, ErrUnavailable.
func (c *Client) Groups(ctx context.Context, login string) ([]string, error) {
	v, err := c.attribute(ctx, "get_groups", "//sys/users/"+escapeComponent(login), "member_of_closure")
	if err != nil {
		return nil, err
	}
	return texts(v), nil
}

// Account is the account that pays for a node. Errors: as Groups.
func (c *Client) Account(ctx context.Context, path string) (string, error) {
	v, err := c.attribute(ctx, "get_account", path, "account")
	if err != nil {
		return "", err
	}
	account, ok := v.(string)
	if !ok || account == "" {
		return "", fmt.Errorf("get_account: %w: the account of %s is no name", ErrOddAnswer, path)
	}
	return account, nil
}

// ACE is one entry of an ACL: some subjects, users and groups, have some permissions, or are denied them.
type ACE struct {
	Deny        bool
	Subjects    []string
	Permissions []Permission
	// Inheritance is the cluster's inheritance_mode: "object_only" does not count for what is below. Empty: for all.
	Inheritance string
}

// EffectiveACL is what decides about a node: its own entries and those that it inherits. Errors: as Groups.
func (c *Client) EffectiveACL(ctx context.Context, path string) ([]ACE, error) {
	v, err := c.attribute(ctx, "get_acl", path, "effective_acl")
	if err != nil {
		return nil, err
	}
	list, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("get_acl: %w: the ACL of %s is no list", ErrOddAnswer, path)
	}
	acl := make([]ACE, 0, len(list))
	for _, entry := range list {
		m, _ := Plain(entry).(map[string]any)
		action, _ := Plain(m["action"]).(string)
		if action != "allow" && action != "deny" {
			return nil, fmt.Errorf("get_acl: %w: an entry of the ACL of %s has the action %.32q", ErrOddAnswer, path, action)
		}
		a := ACE{Deny: action == "deny", Subjects: texts(m["subjects"])}
		for _, p := range texts(m["permissions"]) {
			a.Permissions = append(a.Permissions, Permission(p))
		}
		a.Inheritance, _ = Plain(m["inheritance_mode"]).(string)
		acl = append(acl, a)
	}
	return acl, nil
}

// attribute reads one attribute of a node, in the types that Operation.Annotations names.
func (c *Client) attribute(ctx context.Context, request, path, name string) (v any, err error) {
	err = c.do(ctx, request, func(ctx context.Context) error {
		var raw yson.RawValue
		if err := c.yc.GetNode(ctx, ypath.Path(path).Attr(name), &raw, nil); err != nil {
			return err
		}
		if err := item(raw, &v); err != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		v = Plain(v)
		return nil
	})
	return v, err
}

// texts are the strings of a list; what is something else is left out.
func texts(v any) (out []string) {
	list, _ := Plain(v).([]any)
	for _, item := range list {
		if s, ok := Plain(item).(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// TryWriter does in a transaction, which it then aborts, what a writer of the services table does in the table's
// directory: it locks it and makes a table. Nothing of it stays or can be seen by others. It does not stand in the way of a
// writer, nor a writer in its way.
//
// Errors: ErrNotFound when there is no directory, ErrDenied when a right is missing, ErrRejected when an account is full,
// say, ErrOverloaded, ErrUnavailable.
func (t *ServicesTable) TryWriter(ctx context.Context) error {
	return t.c.do(ctx, "try_writer", func(ctx context.Context) (err error) {
		tx, err := t.c.yc.BeginTx(ctx, &yt.StartTxOptions{Attributes: map[string]any{"title": "task-proxy check; is aborted at once"}})
		if err != nil {
			return err
		}
		defer func() {
			if abort := tx.Abort(); err == nil && abort != nil {
				err = fmt.Errorf("abort the transaction of the trial (it expires by itself): %w", abort)
			}
		}()
		// The name of the new node has the transaction's id in it, so that it can be nobody's.
		dir, key := ypath.Path(t.directory()), "task-proxy-check-"+tx.ID().String()
		if _, err := tx.LockNode(ctx, dir, yt.LockShared, &yt.LockNodeOptions{ChildKey: &key}); err != nil {
			return classified(ctx, err)
		}
		_, err = tx.CreateNode(ctx, dir.Child(key), yt.NodeTable, &yt.CreateNodeOptions{Attributes: map[string]any{"schema": servicesSchema}})
		return classified(ctx, err)
	})
}

// Exists reports whether there is a node at path. Errors: ErrDenied, ErrOverloaded, ErrUnavailable.
func (c *Client) Exists(ctx context.Context, path string) (yes bool, err error) {
	err = c.do(ctx, "exists", func(ctx context.Context) error {
		yes, err = c.yc.NodeExists(ctx, ypath.Path(path), nil)
		return err
	})
	if errors.Is(err, ErrNotFound) { // some clusters say so of a path below a missing node
		return false, nil
	}
	return yes, err
}
