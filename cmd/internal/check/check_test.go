package check

import (
	"bytes"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yt"
	"go.ytsaurus.tech/yt/go/yt/ythttp"
	"go.ytsaurus.tech/yt/go/yterrors"

	"taskproxy/cmd/internal/serve"
	"taskproxy/ytclient/ytlocal"
	"taskproxy/ytclient/ytlocal/scheduler"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	login = "robot-task-proxy"
	dir   = "//sys/task_proxies"
	table = dir + "/services"
)

// world is a cluster with a robot that has all its rights and no more, and an admin.
type world struct {
	cluster *ytlocal.Cluster
	admin   yt.Client
	robot   ytlocal.User
	args    []string
}

func newWorld(t *testing.T, edit ...func(*ytlocal.Config)) *world {
	t.Helper()
	cfg := ytlocal.Config{StateDir: t.TempDir(), CookieDomain: ".example.net"}
	for _, e := range edit {
		e(&cfg)
	}
	cluster, err := ytlocal.Start(cfg)
	must(t, err)
	t.Cleanup(func() { must(t, cluster.Close()) })
	admin, err := ythttp.NewClient(&yt.Config{
		Proxy: cluster.Addr(), Token: cluster.RootToken(), CompressionCodec: yt.ClientCodecNone, DisableProxyDiscovery: true,
	})
	must(t, err)
	t.Cleanup(admin.Stop)
	robot, err := cluster.AddUser(login)
	must(t, err)
	w := &world{cluster: cluster, admin: admin, robot: robot}
	w.args = []string{"--yt-proxy=" + cluster.URL(), "--yt-token-path=" + tokenFile(t, robot.Token), "--base-domain=tp.example.net",
		"--login-url=https://yt.example.net/login"}

	allow := func(path string, permissions ...string) {
		w.set(t, path+"/@acl/end", map[string]any{"action": "allow", "subjects": []string{login}, "permissions": permissions})
	}
	allow("//sys/operations", "read")
	allow("//sys/accounts/sys", "use")
	_, err = admin.CreateNode(t.Context(), ypath.Path(dir), yt.NodeMap, nil)
	must(t, err)
	allow(dir, "read", "write")
	must(t, cluster.Scheduler().Pretend(scheduler.Operation{ID: "1-2-3e803e8-4", User: "root"}, nil))
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func tokenFile(t *testing.T, token string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(path, []byte(token), 0o600))
	return path
}

func (w *world) set(t *testing.T, path string, value any) {
	t.Helper()
	must(t, w.admin.SetNode(t.Context(), ypath.Path(path), value, nil))
}

// aces makes an ACL that is all that decides about a node, entries of one subject and its permissions each.
func (w *world) aces(t *testing.T, path string, entries ...[]string) {
	t.Helper()
	acl := []any{}
	for _, e := range entries {
		acl = append(acl, map[string]any{"action": "allow", "subjects": e[:1], "permissions": e[1:]})
	}
	w.set(t, path+"/@acl", acl)
	w.set(t, path+"/@inherit_acl", false)
}

func (w *world) makeTable(t *testing.T) {
	t.Helper()
	_, err := w.admin.CreateNode(t.Context(), ypath.Path(table), yt.NodeTable, nil)
	must(t, err)
}

// check runs the check and returns whether it is content and its lines, without those that are ok.
func (w *world) check(t *testing.T, args ...string) (good bool, lines []string, all string) {
	t.Helper()
	cfg, err := serve.ParseConfig(append(slices.Clone(w.args), args...), func(string) string { return "" }, nil)
	must(t, err)
	var out bytes.Buffer
	good, err = Run(t.Context(), cfg, &out, slog.New(slog.DiscardHandler))
	must(t, err)
	for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		verdict, _, _ := strings.Cut(line, " ")
		if verdict != fine && !strings.Contains(line, " ok,") && !strings.Contains(line, "discovery paths of standalone Spark") {
			lines = append(lines, line)
		}
	}
	for _, secret := range []string{w.robot.Token, w.cluster.RootToken()} {
		if strings.Contains(out.String(), secret) {
			t.Error("the report shows a token")
		}
	}
	return good, lines, out.String()
}

// run runs a command that the check has printed, words cut by a real shell, as the admin would.
func (w *world) run(t *testing.T, command string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", `yt() { printf '%s\0' "$@"; }; `+command).Output()
	must(t, err)
	words := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	value := func(s string) (v any) {
		must(t, yson.Unmarshal([]byte(s), &v))
		return v
	}
	switch {
	case words[0] == "set" && len(words) == 3:
		w.set(t, words[1], value(words[2]))
	case words[0] == "create" && len(words) == 6 && words[1] == "map_node" && words[3] == "--recursive" && words[4] == "--attributes":
		_, err := w.admin.CreateNode(t.Context(), ypath.Path(words[2]), yt.NodeMap, &yt.CreateNodeOptions{
			Recursive: true, Attributes: value(words[5]).(map[string]any)})
		must(t, err)
	case words[0] == "remove-member" && len(words) == 3:
		must(t, w.admin.RemoveMember(t.Context(), words[2], words[1], nil))
	default:
		t.Fatalf("no command of ours: %q", words)
	}
}

// nodes is everything that a check could leave behind.
func (w *world) nodes(t *testing.T) (all []string) {
	t.Helper()
	for _, path := range []string{"//sys", "//sys/transactions", dir} {
		var names []string
		must(t, w.admin.ListNode(t.Context(), ypath.Path(path), &names, nil))
		all = append(all, names...)
	}
	return all
}

func TestNothingIsMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, state := range []string{"without a table", "with a table"} {
		before := w.nodes(t)
		good, lines, all := w.check(t)
		if !good || len(lines) > 0 {
			t.Errorf("%s: content %t, lines that are not ok:\n%s", state, good, strings.Join(lines, "\n"))
		}
		for _, want := range []string{"list_jobs", "check_operation_permission", "read on //sys/exec_nodes", "write on " + dir, "use on //sys/accounts/sys",
			"CORS does not let https://x.tp.example.net in", "cookie is for example.net, as narrow as it can be"} {
			if !strings.Contains(all, want) {
				t.Errorf("%s: nothing is said of %q:\n%s", state, want, all)
			}
		}
		if after := w.nodes(t); !slices.Equal(before, after) {
			t.Errorf("%s: the check changed the cluster: %v became %v", state, before, after)
		}
		if state == "without a table" {
			w.makeTable(t)
		}
	}
}

// Each right taken away is the one that is named, and the command that is printed with it brings it back.
func TestMissingRights(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		take func(*testing.T, *world)
		want []string // how the lines begin
		good bool
	}{
		{"operations", func(t *testing.T, w *world) { w.set(t, "//sys/operations/@acl", []any{}) },
			[]string{"MISSING  read on //sys/operations:"}, false},
		{"exec nodes", func(t *testing.T, w *world) { w.aces(t, "//sys/exec_nodes") },
			[]string{"MISSING  read on //sys/exec_nodes:"}, false},
		{"one exec node after the other", func(t *testing.T, w *world) {
			for _, node := range []string{"127.0.0.1:9012", "127.0.0.1:9013"} {
				w.set(t, "//sys/exec_nodes/"+node+"/@acl", []any{map[string]any{"action": "allow", "subjects": []string{"root"}, "permissions": []string{"read"}}})
			}
			w.aces(t, "//sys/exec_nodes", []string{"root", "read"})
		}, []string{"MISSING  read on //sys/exec_nodes:"}, false},
		{"write on the directory", func(t *testing.T, w *world) { w.aces(t, dir, []string{"everyone", "read"}) },
			[]string{"MISSING  write on " + dir + ":"}, false},
		{"read on the directory", func(t *testing.T, w *world) { w.aces(t, dir, []string{login, "write"}, []string{"users", "read"}) },
			nil, true}, // users have it, and the robot is one
		{"the directory", func(t *testing.T, w *world) { must(t, w.admin.RemoveNode(t.Context(), ypath.Path(dir), nil)) },
			[]string{"MISSING  the directory " + dir}, false},
		{"the directory and the account", func(t *testing.T, w *world) {
			must(t, w.admin.RemoveNode(t.Context(), ypath.Path(dir), nil))
			w.set(t, "//sys/accounts/sys/@acl", []any{})
		}, []string{"MISSING  the directory " + dir, "MISSING  use on //sys/accounts/sys:"}, false},
		{"write on the table", func(t *testing.T, w *world) { w.makeTable(t); w.aces(t, table, []string{"everyone", "read"}) },
			[]string{"MISSING  write on " + table + ":"}, false},
		{"use of the account", func(t *testing.T, w *world) { w.set(t, "//sys/accounts/sys/@acl", []any{}) },
			[]string{"MISSING  use on //sys/accounts/sys:"}, false},
		{"everyone's read on the table", func(t *testing.T, w *world) { w.makeTable(t); w.aces(t, table, []string{login, "read", "write"}) },
			[]string{"WARN     no ACL lets everyone or users read the services table"}, true},
		{"everyone's read on the directory", func(t *testing.T, w *world) { w.aces(t, dir, []string{login, "read", "write"}) },
			[]string{"WARN     no ACL lets everyone or users read the services table"}, true},
		{"superuser", func(t *testing.T, w *world) { must(t, w.admin.AddMember(t.Context(), "superusers", login, nil)) },
			[]string{"EXCESS   " + login + " is a superuser"}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tt.take(t, w)
			good, lines, all := w.check(t)
			if good != tt.good || len(lines) != len(tt.want) {
				t.Fatalf("content %t, want %t and %d lines that are not ok:\n%s", good, tt.good, len(tt.want), all)
			}
			for i, line := range lines {
				if !strings.HasPrefix(line, tt.want[i]) {
					t.Errorf("line %q, want %q", line, tt.want[i])
				}
				_, command, ok := strings.Cut(line, " — ")
				if !ok {
					t.Fatalf("no command in %q", line)
				}
				w.run(t, command)
			}
			if good, lines, all = w.check(t); !good || len(lines) > 0 {
				t.Errorf("after the command: content %t:\n%s", good, all)
			}
		})
	}
}

// Where the robot may not even read what it writes, both are named at once.
func TestNoRightAtAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.aces(t, dir)
	good, lines, all := w.check(t)
	if good || len(lines) != 3 || !strings.HasPrefix(lines[0], "MISSING  read on "+dir) || !strings.HasPrefix(lines[1], "MISSING  write on "+dir) ||
		!strings.HasPrefix(lines[2], "unknown  whether users can read") {
		t.Fatalf("content %t:\n%s", good, all)
	}
	for _, line := range lines[:2] {
		_, command, _ := strings.Cut(line, " — ")
		w.run(t, command)
	}
	if good, lines, all = w.check(t); !good || len(lines) != 1 || !strings.HasPrefix(lines[0], "WARN     no ACL lets everyone") {
		t.Errorf("after the commands: content %t:\n%s", good, all)
	}
}

func TestExcess(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		path, permission string
		want             []string
	}{
		{"/", "write", []string{"write on /:"}},
		{"/", "administer", []string{"administer on /:"}},
		{"//sys", "write", []string{"write on //sys:"}},
		{"//sys/operations", "write", []string{"write on //sys/operations:"}},
		{"//sys/operations", "manage", []string{"manage on //sys/operations:"}},
		{dir, "administer", []string{"administer on " + dir + ":"}},
	} {
		t.Run(tt.permission+" "+tt.path, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.set(t, tt.path+"/@acl/end", map[string]any{"action": "allow", "subjects": []string{login}, "permissions": []string{tt.permission}})
			good, lines, all := w.check(t)
			if !good || len(lines) != len(tt.want) {
				t.Fatalf("content %t:\n%s", good, all)
			}
			for i, line := range lines {
				if !strings.HasPrefix(line, "EXCESS   "+tt.want[i]) || !strings.Contains(line, "@effective_acl") {
					t.Errorf("line %q, want %q", line, tt.want[i])
				}
			}
		})
	}
}

func TestDirectoryThatTheProxyMakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	good, lines, all := w.check(t, "--dir-path=//home/proxies/tp")
	if !good || len(lines) > 0 || !strings.Contains(all, "the proxy makes it, for it has write on //home") {
		t.Errorf("content %t:\n%s", good, all)
	}
	if good, lines, _ := w.check(t, "--dir-path=//sys/other"); good || len(lines) != 1 || !strings.HasPrefix(lines[0], "MISSING  the directory //sys/other") {
		t.Errorf("content %t: %q", good, lines)
	}
}

func TestCORSAndCookie(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *ytlocal.Config) {
		c.CORSHostSuffixes = []string{".example.net"}
		c.CookieDomain = ""
	})
	good, lines, all := w.check(t, "--base-domain=tp.example.net,tp.example.org")
	if !good || len(lines) != 3 {
		t.Fatalf("content %t:\n%s", good, all)
	}
	for i, want := range []string{
		"WARN     the cluster's CORS lets https://x.tp.example.net in",
		"WARN     the cluster's login cookie has no Domain: browsers do not send it to tp.example.net",
		"WARN     the cluster's login cookie has no Domain: browsers do not send it to tp.example.org",
	} {
		if !strings.HasPrefix(lines[i], want) {
			t.Errorf("line %q, want %q", lines[i], want)
		}
	}
	if !strings.Contains(all, "ok       the cluster's CORS does not let https://x.tp.example.org in") {
		t.Errorf("nothing of the other base domain:\n%s", all)
	}
	if _, lines, _ = w.check(t, "--auth-cookie-name=session"); !slices.ContainsFunc(lines, func(l string) bool {
		return strings.HasPrefix(l, "unknown  how wide the cookie session is")
	}) {
		t.Errorf("nothing of the other cookie: %q", lines)
	}
}

func TestClusterThatCannotBeChecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := func(what string, want string, args ...string) {
		t.Helper()
		if good, lines, all := w.check(t, args...); good || len(lines) == 0 || !strings.HasPrefix(lines[0], want) {
			t.Errorf("%s: content %t, want %q:\n%s", what, good, want, all)
		}
	}
	one("wrong token", "MISSING  a token that http://127.0.0.1:", "--yt-token-path="+tokenFile(t, "nobody's"))
	one("nobody answers", "unknown  whose the token is: ", "--yt-proxy=127.0.0.1:1")
	w.set(t, "//sys/users/"+login+"/@banned", true)
	one("banned", "unknown  whether "+login+" is a superuser: ")
	open := newWorld(t, func(c *ytlocal.Config) { c.AuthOff = true })
	one("no authentication", "MISSING  authentication: the cluster has no authentication: it takes a random token for \"root\"", "--yt-proxy="+open.cluster.URL())
	if good, lines, _ := w.check(t, "--yt-proxy="+open.cluster.URL(), "--auth-enabled=false"); !good || !strings.HasPrefix(lines[0], "WARN     the cluster has no authentication") {
		t.Errorf("no authentication on purpose: content %t: %q", good, lines)
	}
}

// What rights alone do not tell is tried.
func TestTrials(t *testing.T) {
	t.Parallel()
	one := func(want string, how string, edit func(*world)) {
		t.Helper()
		w := newWorld(t)
		edit(w)
		good, lines, all := w.check(t)
		if good || len(lines) != 1 || !strings.HasPrefix(lines[0], want) || !strings.Contains(lines[0], how) {
			t.Errorf("content %t, want %q:\n%s", good, want, all)
		}
	}
	for code, message := range map[yterrors.ErrorCode]string{yterrors.CodeAccountLimitExceeded: "account is full", yterrors.CodeAuthorizationError: "not you"} {
		one("MISSING  lock "+dir+" and make a table there", "the cluster says: ", func(w *world) {
			w.cluster.Faults().Add(ytlocal.Fault{Command: "create", Error: &yterrors.Error{Code: code, Message: message}})
		})
	}
	one("MISSING  a services table at "+table, "another --table-path", func(w *world) {
		_, err := w.admin.CreateNode(t.Context(), ypath.Path(table), yt.NodeMap, nil)
		must(t, err)
	})
	// One node that refuses is not made good by another that answers.
	one("MISSING  read on //sys/exec_nodes:", "yt set //sys/exec_nodes/@acl/end", func(w *world) { w.aces(t, "//sys/exec_nodes/127.0.0.1:9012") })
}

// Who is denied cannot read, whoever else says so; and what is only for the directory is not for the table in it.
func TestReaders(t *testing.T) {
	t.Parallel()
	for _, edit := range []map[string]any{
		{"action": "deny", "subjects": []string{"users"}, "permissions": []string{"read"}},
		{"action": "allow", "subjects": []string{"users"}, "permissions": []string{"read"}, "inheritance_mode": "object_only"},
	} {
		w := newWorld(t)
		must(t, w.admin.AddMember(t.Context(), "superusers", login, nil)) // or it would be denied as well
		if edit["action"] == "allow" {
			w.set(t, dir+"/@inherit_acl", false)
		}
		w.set(t, dir+"/@acl/end", edit)
		if _, lines, all := w.check(t); len(lines) != 2 || !strings.HasPrefix(lines[1], "WARN     no ACL lets everyone or users read") {
			t.Errorf("%v:\n%s", edit, all)
		}
	}
}

// What the cluster does not answer is not taken for fine.
func TestUnanswered(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"check_permission", "list_operations", "list_jobs", "check_operation_permission", "exists", "start_transaction", "execute_batch"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.makeTable(t)
			w.cluster.Faults().Add(ytlocal.Fault{Command: command, Status: 500})
			if good, lines, all := w.check(t); good || len(lines) == 0 {
				t.Errorf("content %t:\n%s", good, all)
			}
		})
	}
}
