package check

import (
	"slices"
	"strings"
	"testing"

	"go.ytsaurus.tech/yt/go/yt"

	"taskproxy/ytclient/ytlocal"
)

// deny puts an entry into the ACL of path that takes from subject what others give.
func (w *world) deny(t *testing.T, path, subject string, more map[string]any, permissions ...string) {
	t.Helper()
	entry := map[string]any{"action": "deny", "subjects": []string{subject}, "permissions": permissions}
	for key, value := range more {
		entry[key] = value
	}
	w.set(t, path+"/@acl/end", entry)
}

// An entry that denies is named, and no command is printed that would change nothing.
func TestDenied(t *testing.T) {
	t.Parallel()
	team := func(t *testing.T, w *world) {
		t.Helper()
		_, err := w.admin.CreateObject(t.Context(), yt.NodeGroup, &yt.CreateObjectOptions{Attributes: map[string]any{"name": "team"}})
		must(t, err)
		must(t, w.admin.AddMember(t.Context(), "team", login, nil))
	}
	for _, tt := range []struct {
		name string
		deny func(*testing.T, *world)
		line string // begins with
		how  string
	}{
		{"to the robot", func(t *testing.T, w *world) { w.deny(t, dir, login, nil, "write") },
			"MISSING  write on " + dir + ":", "{action=deny; subjects=[" + login + "]; permissions=[write]}"},
		{"to one of its groups", func(t *testing.T, w *world) { team(t, w); w.deny(t, dir, "team", nil, "remove", "write") },
			"MISSING  write on " + dir + ":", "{action=deny; subjects=[team]; permissions=[remove; write]}"},
		{"to users, above", func(t *testing.T, w *world) { w.deny(t, "//sys", "users", nil, "write") },
			"MISSING  write on " + dir + ":", "{action=deny; subjects=[users]; permissions=[write]}"},
		{"use of the account", func(t *testing.T, w *world) { w.deny(t, "//sys/accounts/sys", "everyone", nil, "use") },
			"MISSING  use on //sys/accounts/sys:", "{action=deny; subjects=[everyone]; permissions=[use]}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tt.deny(t, w)
			good, lines, all := w.check(t)
			if good || len(lines) == 0 || !strings.HasPrefix(lines[0], tt.line) || !strings.Contains(lines[0], tt.how) ||
				!strings.Contains(lines[0], " — that entry must be removed; yt get ") || strings.Contains(lines[0], "yt set") {
				t.Errorf("content %t, want %q with %q:\n%s", good, tt.line, tt.how, all)
			}
		})
	}
}

// A cluster that does not tell the robot's groups is still known to have it in two of them.
func TestDeniedToAll(t *testing.T) {
	t.Parallel()
	for _, group := range []string{"users", "everyone"} {
		w := newWorld(t)
		w.deny(t, dir, group, nil, "write")
		w.cluster.Faults().Add(ytlocal.Fault{Command: "get", Status: 403, Match: func(c ytlocal.Call) bool {
			path, _ := c.Params["path"].(string)
			return strings.HasSuffix(path, "/@member_of_closure")
		}})
		if _, lines, all := w.check(t); len(lines) < 2 || !strings.HasPrefix(lines[0], "unknown  whether "+login+" is a superuser") ||
			!strings.Contains(lines[1], "{action=deny; subjects=["+group+"]; permissions=[write]}") {
			t.Errorf("%s:\n%s", group, all)
		}
	}
}

// Where the robot may not read the ACL, the cluster's own answer tells, or the line says that it cannot be seen.
func TestDeniedUnseen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deny(t, "//sys/operations", login, nil, "read")
	const begin = "MISSING  read on //sys/operations:"
	if good, lines, all := w.check(t); good || len(lines) != 1 || !strings.HasPrefix(lines[0], begin) || !strings.Contains(lines[0], "if one does, remove it first — yt set ") {
		t.Errorf("a cluster that does not say: content %t:\n%s", good, all)
	}
	for object, shows := range map[string]string{
		"node //sys/operations": "yt get //sys/operations/@acl shows it",
		"node /":                "yt get //@acl shows it",
		"schema":                "yt get //sys/operations/@effective_acl shows it",
		"node //sys/a\nb$(id)":  "yt get '//sys/a b$(id)/@acl' shows it",
	} {
		stop := w.cluster.Faults().Add(ytlocal.Fault{Command: "check_permission", Edit: func(v any) any {
			if m, ok := v.(map[string]any); ok && m["action"] == "deny" {
				m["subject_name"], m["object_name"] = "team", object
			}
			return v
		}})
		good, lines, all := w.check(t)
		stop()
		if good || len(lines) != 1 || !strings.HasPrefix(lines[0], begin) || !strings.Contains(lines[0], "denies read to team, which beats") || !strings.HasSuffix(lines[0], shows) {
			t.Errorf("%q: content %t, want %q:\n%s", object, good, shows, all)
		}
	}
}

// What denies something else, or denies it to somebody else or further below, is not what stands in the way.
func TestDeniedElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.aces(t, dir, []string{"everyone", "read"})
	w.deny(t, dir, "root", nil, "write")
	w.deny(t, dir, login, nil, "remove")
	for _, mode := range []string{"descendants_only", "immediate_descendants_only"} {
		w.deny(t, dir, login, map[string]any{"inheritance_mode": mode}, "write")
	}
	// The cluster lists those as well; this one leaves them out.
	w.cluster.Faults().Add(ytlocal.Fault{Command: "get", Match: func(c ytlocal.Call) bool { return c.Params["path"] == dir+"/@effective_acl" },
		Edit: func(v any) any {
			list, ok := v.(map[string]any)["value"].([]any)
			if !ok {
				t.Errorf("the ACL is %v", v)
				return v
			}
			return map[string]any{"value": append(slices.Clone(list), map[string]any{"action": "deny", "subjects": []any{login}, "permissions": []any{"write"},
				"inheritance_mode": "descendants_only"})}
		}})
	good, lines, all := w.check(t)
	if good || len(lines) == 0 || !strings.HasPrefix(lines[0], "MISSING  write on "+dir+":") || !strings.Contains(lines[0], " — yt set "+dir+"/@acl/end ") {
		t.Errorf("content %t:\n%s", good, all)
	}
}
