package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"taskproxy/ytclient"
)

// Permissions that the proxy never needs.
const (
	create         ytclient.Permission = "create"          // of a schema: make objects of that type
	modifyChildren ytclient.Permission = "modify_children" // add and remove what is in a node
	remove         ytclient.Permission = "remove"
)

// change is all by which a node, what is in it, or who may do so becomes another.
var change = []ytclient.Permission{ytclient.Write, modifyChildren, remove, ytclient.Administer}

// danger is what somebody else could do with the robot's token, if it had one of these rights.
type danger struct {
	path        string
	permissions []ytclient.Permission
	harm        string
	// often are those that clusters give to all users on purpose. A robot that has them because it is one has nothing in excess.
	often []ytclient.Permission
}

// dangers are the rights that are looked for. What holds for a node stands behind those above it.
func (c *checker) dangers() []danger {
	with := func(more ytclient.Permission) []ytclient.Permission { return append(slices.Clone(change), more) }
	read := []ytclient.Permission{ytclient.Read}
	all := []danger{
		{path: "/", permissions: change, harm: "change what has no ACL of its own"},
		{path: "//home", permissions: change, harm: "change what users keep there", often: []ytclient.Permission{ytclient.Write, modifyChildren, remove}},
		{path: "//sys", permissions: change, harm: "change the system"},
		// The older tokens and the cookies are kept as they are, the newer tokens by their hash; whoever adds one is anybody.
		{path: "//sys/tokens", permissions: read, harm: "read everybody's tokens"},
		{path: "//sys/tokens", permissions: change, harm: "make tokens and so be anybody, or take them away"},
		{path: "//sys/cypress_tokens", permissions: read, harm: "read whose tokens there are"},
		{path: "//sys/cypress_tokens", permissions: change, harm: "make tokens and so be anybody, or take them away"},
		{path: "//sys/cypress_cookies", permissions: read, harm: "read everybody's login cookies"},
		{path: "//sys/cypress_cookies", permissions: change, harm: "make login cookies and so be anybody, or take them away"},
		{path: "//sys/users", permissions: change, harm: "change or remove users"},
		{path: "//sys/users/root", permissions: change, harm: "change the user that no ACL binds, its password say"},
		{path: "//sys/groups", permissions: change, harm: "change or remove groups"},
		{path: "//sys/groups/superusers", permissions: change, harm: "make itself a superuser"},
		{path: "//sys/accounts", permissions: change, harm: "change everybody's quotas"},
		{path: "//sys/schemas", permissions: change, harm: "change what says who may do what with whole types of objects"},
		{path: "//sys/operations", permissions: with(ytclient.Manage), harm: "change and abort everybody's operations"},
		{path: "//sys/exec_nodes", permissions: change, harm: "take exec nodes away or put others there"},
	}
	for _, object := range []string{"user", "group", "account"} {
		all = append(all, danger{path: "//sys/schemas/" + object, permissions: with(create), harm: "make a new " + object + ", or change any",
			often: []ytclient.Permission{create}})
	}
	dir := c.cfg.TablePath[:strings.LastIndexByte(c.cfg.TablePath, '/')]
	return append(all, danger{path: dir, permissions: []ytclient.Permission{ytclient.Administer}, harm: "change who may read and write the services table"})
}

// excess looks for rights that the proxy has no use for.
func (c *checker) excess(ctx context.Context) {
	var found []string  // "write //sys": what is inherited is named once
	var looked []string // paths that there are
	whole := true
	for _, d := range c.dangers() {
		has, there, err := c.has(ctx, d)
		if err != nil {
			whole = false
			c.line(unknown, fmt.Sprintf("which rights %s has in excess on %s: %s", c.login, d.path, cut(err.Error())), "")
			if !errors.Is(err, ytclient.ErrDenied) && !errors.Is(err, ytclient.ErrRejected) {
				c.line(unknown, "which it has on the paths after that: not asked", "")
				return // a cluster that does not answer is not asked dozens of times
			}
		}
		if there && !slices.Contains(looked, d.path) {
			looked = append(looked, d.path)
		}
		var fresh []string
		for _, p := range has {
			one := string(p) + " " + d.path
			if !slices.ContainsFunc(found, func(f string) bool { return inherits(f, one) }) {
				fresh = append(fresh, string(p))
			}
			found = append(found, one)
		}
		if len(fresh) > 0 {
			c.line(excess, fmt.Sprintf("%s on %s: %s could %s", strings.Join(fresh, ", "), d.path, c.login, d.harm),
				fmt.Sprintf("yt get %s shows which entry gives it", shellWord(d.path+"/@effective_acl")))
		}
	}
	if len(found) == 0 && whole {
		c.ok("%s has none of the dangerous rights that were looked for on %s; what it has elsewhere was not looked at", c.login, strings.Join(looked, ", "))
	}
}

// has asks which of a danger's rights the robot has. Where there is no such node it has none.
func (c *checker) has(ctx context.Context, d danger) (has []ytclient.Permission, there bool, err error) {
	for _, p := range d.permissions {
		yes, err := c.client.CheckPermission(ctx, c.login, d.path, p)
		if errors.Is(err, ytclient.ErrNotFound) {
			return nil, false, nil
		}
		if err != nil {
			return has, true, err
		}
		if yes {
			has = append(has, p)
		}
	}
	common := func(p ytclient.Permission) bool { return slices.Contains(d.often, p) }
	if slices.ContainsFunc(has, common) {
		// Without the ACL it stays named: better once too often.
		if acl, err := c.client.EffectiveACL(ctx, d.path); err == nil {
			has = slices.DeleteFunc(has, func(p ytclient.Permission) bool { return common(p) && everybodys(acl, p) })
		}
	}
	return has, true, nil
}

// everybodys reports whether an entry gives a permission to all users.
func everybodys(acl []ytclient.ACE, p ytclient.Permission) bool {
	return slices.ContainsFunc(acl, func(a ytclient.ACE) bool {
		return !a.Deny && !below(a) && slices.Contains(a.Permissions, p) && (slices.Contains(a.Subjects, everyone) || slices.Contains(a.Subjects, users))
	})
}

// inherits reports whether a found excess, "write //sys", makes another one a matter of course, "write //sys/x".
func inherits(found, other string) bool {
	fp, fpath, _ := strings.Cut(found, " ")
	op, opath, _ := strings.Cut(other, " ")
	return fp == op && strings.HasPrefix(opath, strings.TrimSuffix(fpath, "/")+"/")
}
