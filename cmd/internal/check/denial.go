package check

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"taskproxy/ytclient"
)

// lacks is the line for a right that the robot has not got. Mostly nobody has given it; but where an entry of an ACL denies
// it, another one that allows it is of no use: deny beats allow.
func (c *checker) lacks(ctx context.Context, p ytclient.Permission, path, what string) {
	entry, shows, sure := c.denial(ctx, p, path)
	switch {
	case entry != "":
		c.line(missing, what+"; "+entry+", which beats every entry that allows it",
			fmt.Sprintf("that entry must be removed; yt get %s shows it", shellWord(shows)))
	case sure:
		c.line(missing, what, grant(path, c.login, string(p)))
	default:
		c.line(missing, what+"; whether an entry denies it cannot be seen with this token: if one does, remove it first", grant(path, c.login, string(p)))
	}
}

// denial looks for the entry that denies the robot a right: what it is, and the attribute that shows it. sure says that
// there is none when none is named.
func (c *checker) denial(ctx context.Context, p ytclient.Permission, path string) (entry, shows string, sure bool) {
	// Some clusters say it by themselves. That also serves where the robot may not read the ACL.
	if subject, object, err := c.client.DeniedBy(ctx, c.login, path, p); err == nil && subject != "" {
		shows = path + "/@effective_acl"
		if node, ok := strings.CutPrefix(object, "node /"); ok {
			shows = "/" + node + "/@acl"
		}
		return fmt.Sprintf("an entry of the ACL of %s denies %s to %s", cut(object), p, cut(subject)), shows, true
	}
	acl, err := c.client.EffectiveACL(ctx, path)
	if err != nil {
		return "", "", false
	}
	for _, a := range acl {
		if a.Deny && !below(a) && slices.Contains(a.Permissions, p) && slices.ContainsFunc(a.Subjects, c.is) {
			return "the ACL has the entry " + cut(written(a)) + ", its own or one from above", path + "/@effective_acl", true
		}
	}
	return "", "", true
}

// below reports whether an entry only counts for what is below the node; a node's effective ACL lists it as well.
func below(a ytclient.ACE) bool {
	return a.Inheritance == "descendants_only" || a.Inheritance == "immediate_descendants_only"
}

// is reports whether an entry for subject is one for the robot.
func (c *checker) is(subject string) bool {
	return subject == c.login || subject == everyone || subject == users || slices.Contains(c.member, subject)
}

// The groups that every robot is in, whatever else the cluster says.
const (
	everyone = "everyone"
	users    = "users"
)

// written is an entry in YSON.
func written(a ytclient.ACE) string {
	action := "allow"
	if a.Deny {
		action = "deny"
	}
	subjects := make([]string, 0, len(a.Subjects))
	for _, s := range a.Subjects {
		subjects = append(subjects, ysonWord(s))
	}
	permissions := make([]string, 0, len(a.Permissions))
	for _, p := range a.Permissions {
		permissions = append(permissions, ysonWord(string(p)))
	}
	return fmt.Sprintf("{action=%s; subjects=[%s]; permissions=[%s]}", action, strings.Join(subjects, "; "), strings.Join(permissions, "; "))
}
