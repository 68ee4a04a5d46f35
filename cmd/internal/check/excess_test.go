package check

import (
	"slices"
	"strings"
	"testing"

	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yt"

	"taskproxy/ytclient/ytlocal"
)

// allow gives the robot permissions on path, which is made if it is not there.
func (w *world) allow(t *testing.T, path, subject string, permissions ...string) {
	t.Helper()
	_, err := w.admin.CreateNode(t.Context(), ypath.Path(path), yt.NodeMap, &yt.CreateNodeOptions{Recursive: true, IgnoreExisting: true})
	if there, _ := w.admin.NodeExists(t.Context(), ypath.Path(path), nil); !there {
		must(t, err)
	}
	w.set(t, path+"/@acl/end", map[string]any{"action": "allow", "subjects": []string{subject}, "permissions": permissions})
}

// A robot that could take the cluster is not certified, by whatever node and right it could.
func TestExcessThatTakesTheCluster(t *testing.T) {
	t.Parallel()
	for path, permissions := range map[string][]string{
		"//home":                  {"administer"},
		"//sys/tokens":            {"read", "write", "modify_children", "remove", "administer"},
		"//sys/cypress_tokens":    {"read", "write", "modify_children", "remove", "administer"},
		"//sys/cypress_cookies":   {"read", "write", "modify_children", "remove", "administer"},
		"//sys/users":             {"write", "modify_children", "remove", "administer"},
		"//sys/users/root":        {"write", "remove", "administer"},
		"//sys/groups":            {"write", "modify_children", "remove", "administer"},
		"//sys/groups/superusers": {"write", "modify_children", "remove", "administer"},
		"//sys/accounts":          {"write", "modify_children", "remove", "administer"},
		"//sys/schemas":           {"write", "remove", "administer"},
		"//sys/schemas/user":      {"create", "write", "administer"},
		"//sys/schemas/group":     {"create", "write", "administer"},
		"//sys/schemas/account":   {"create", "write", "administer"},
		"//sys/operations":        {"remove", "modify_children"},
		"//sys/exec_nodes":        {"write", "remove", "administer"},
		"//sys":                   {"modify_children", "remove"},
		"/":                       {"modify_children", "remove"},
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			// Real clusters let nobody read them, and here everybody reads what has no ACL of its own.
			for _, secret := range []string{"//sys/tokens", "//sys/cypress_tokens", "//sys/cypress_cookies"} {
				w.allow(t, secret, "root", "read")
				w.aces(t, secret, []string{"root", "read"})
			}
			if _, lines, all := w.check(t); len(lines) > 0 || !strings.Contains(all, "has none of the dangerous rights that were looked for on /, //home, //sys, ") {
				t.Fatalf("before:\n%s", all)
			}
			w.allow(t, path, login, permissions...)
			good, lines, all := w.check(t)
			named := len(lines) > 0
			var told []string
			for _, line := range lines {
				rights, _, _ := strings.Cut(strings.TrimPrefix(line, "EXCESS   "), " on ")
				told = append(told, strings.Split(rights, ", ")...)
				named = named && strings.HasPrefix(line, "EXCESS   ") && strings.Contains(line, " on "+path+": "+login+" could ") &&
					strings.Contains(line, path+"/@effective_acl")
			}
			if !good || !named || strings.Contains(all, "none of the dangerous") {
				t.Errorf("content %t:\n%s", good, all)
			}
			for _, p := range permissions {
				if !slices.Contains(told, p) {
					t.Errorf("%s is not told:\n%s", p, all)
				}
			}
		})
	}
}

// What all users have is no excess of the robot's where clusters mean it so, and only there.
func TestExcessOfEverybody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.allow(t, "//sys/schemas/account", "users", "create")
	w.allow(t, "//home", login, "write") // and users have it as well
	if _, lines, all := w.check(t); len(lines) > 0 {
		t.Errorf("content:\n%s", all)
	}
	w.aces(t, "//home", []string{login, "read", "write"})
	w.set(t, "//home/@acl/end", map[string]any{"action": "allow", "subjects": []string{"users"}, "permissions": []string{"write"}, "inheritance_mode": "descendants_only"})
	// The cluster lists that entry, too; this one leaves it out.
	w.cluster.Faults().Add(ytlocal.Fault{Command: "get", Match: func(c ytlocal.Call) bool { return c.Params["path"] == "//home/@effective_acl" },
		Edit: func(v any) any {
			list, ok := v.(map[string]any)["value"].([]any)
			if !ok {
				t.Errorf("the ACL is %v", v)
				return v
			}
			return map[string]any{"value": append(slices.Clone(list), map[string]any{"action": "allow", "subjects": []any{"users"}, "permissions": []any{"write"},
				"inheritance_mode": "descendants_only"})}
		}})
	w.allow(t, "//sys/schemas/account", "users", "write")
	w.allow(t, "//sys/groups/superusers", "everyone", "write")
	_, lines, all := w.check(t)
	for i, want := range []string{"EXCESS   write on //home:", "EXCESS   write on //sys/groups/superusers:", "EXCESS   write on //sys/schemas/account:"} {
		if len(lines) != 3 || !strings.HasPrefix(lines[i], want) {
			t.Errorf("line %d, want %q:\n%s", i, want, all)
		}
	}
}

// Nothing is certified that could not be asked, and a cluster that is away is not asked dozens of times.
func TestExcessUnasked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	on := func(c ytlocal.Call) bool { return c.Params["path"] == "//sys/users" }
	var most int
	for _, fault := range []ytlocal.Fault{{Command: "check_permission", Match: on, Status: 403}, {Command: "check_permission", Match: on, Status: 500}} {
		stop := w.cluster.Faults().Add(fault)
		before := w.cluster.Faults().Calls()["check_permission"]
		_, lines, all := w.check(t)
		asked := w.cluster.Faults().Calls()["check_permission"] - before
		stop()
		if len(lines) == 0 || !strings.HasPrefix(lines[0], "unknown  which rights "+login+" has in excess on //sys/users: ") || strings.Contains(all, "none of the dangerous") {
			t.Errorf("status %d:\n%s", fault.Status, all)
		}
		if fault.Status == 403 {
			most = asked
		}
		if stopped := len(lines) == 2 && strings.HasSuffix(lines[1], "not asked") && asked < most; stopped != (fault.Status == 500) {
			t.Errorf("status %d: stopped %t after %d questions of %d:\n%s", fault.Status, stopped, asked, most, all)
		}
	}
}
