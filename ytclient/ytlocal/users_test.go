package ytlocal

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yt"
	"go.ytsaurus.tech/yt/go/yterrors"
)

func TestWhoAmI(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	alice := addUser(t, c, "alice")
	yc := rootClient(t, c)
	for _, tt := range []struct {
		name        string
		credentials yt.Credentials
		want        string
		code        yterrors.ErrorCode
	}{
		{"token", &yt.TokenCredentials{Token: alice.Token}, "alice", 0},
		{"bearer", &yt.BearerCredentials{Token: alice.Token}, "alice", 0},
		{"cookie", &yt.CookieCredentials{Cookie: &http.Cookie{Name: alice.CookieName, Value: alice.Cookie}}, "alice", 0},
		{"root", &yt.TokenCredentials{Token: c.RootToken()}, "root", 0},
		{"unknown token", &yt.TokenCredentials{Token: "nonsense"}, "", yterrors.CodeAuthenticationError},
		{"unknown cookie", &yt.CookieCredentials{Cookie: &http.Cookie{Name: alice.CookieName, Value: "x"}}, "", yterrors.CodeAuthenticationError},
		{"other cookie", &yt.CookieCredentials{Cookie: &http.Cookie{Name: "session", Value: alice.Cookie}}, "", yterrors.CodeInvalidCredentials},
	} {
		t.Run(tt.name, func(t *testing.T) {
			res, err := yc.WhoAmI(yt.WithCredentials(t.Context(), tt.credentials), nil)
			if tt.code != 0 {
				wantCode(t, err, tt.code)
				return
			}
			must(t, err)
			if res.Login != tt.want || res.CSRFToken == "" || res.Realm == "" {
				t.Errorf("got %+v, want login %s", res, tt.want)
			}
		})
	}
	if got := request(t, c, "GET", "/auth/whoami", "", func(r *http.Request) { r.Header.Set("Authorization", "OAuth x") }); got.status != 401 || got.header.Get("X-YT-Error") != "" {
		t.Errorf("a refused whoami got %d with error header %q, want 401 without", got.status, got.header.Get("X-YT-Error"))
	}
}

func TestCSRF(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	alice, bob := addUser(t, c, "alice"), addUser(t, c, "bob")
	old := c.csrfToken("alice", time.Now().Add(-8*24*time.Hour))
	fresh := c.csrfToken("alice", time.Now())
	for _, tt := range []struct {
		name, method string
		csrf         []string
		status       int
	}{
		{"reading needs none", "GET", nil, 200},
		{"none", "POST", nil, 401},
		{"empty", "POST", []string{""}, 503},
		{"malformed", "POST", []string{"x"}, 503},
		{"wrong", "POST", []string{"00:" + strings.Split(fresh, ":")[1]}, 401},
		{"of another user", "POST", []string{c.csrfToken("bob", time.Now())}, 401},
		{"expired", "POST", []string{old}, 401},
		{"good", "POST", []string{fresh}, 200},
	} {
		got := request(t, c, tt.method, "/api/v4/get?path=//tmp", "", func(r *http.Request) {
			r.Header.Del("Authorization")
			r.AddCookie(&http.Cookie{Name: alice.CookieName, Value: alice.Cookie})
			r.Header["X-Csrf-Token"] = tt.csrf
		})
		if got.status != tt.status {
			t.Errorf("%s: got %d %s, want %d", tt.name, got.status, got.body, tt.status)
		}
	}
	_ = bob
}

func TestTokensAndMembers(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	ctx, root := t.Context(), rootClient(t, c)
	_, err := root.CreateObject(ctx, yt.NodeUser, &yt.CreateObjectOptions{Attributes: map[string]any{"name": "carol"}})
	must(t, err)
	_, err = root.CreateObject(ctx, yt.NodeUser, &yt.CreateObjectOptions{Attributes: map[string]any{"name": "carol"}})
	wantCode(t, err, yterrors.CodeAlreadyExists)
	token, err := root.IssueToken(ctx, "carol", "", nil)
	must(t, err)
	carol := client(t, c, token)
	who, err := carol.WhoAmI(ctx, nil)
	must(t, err)
	if who.Login != "carol" {
		t.Errorf("the new token belongs to %q", who.Login)
	}
	_, err = carol.IssueToken(ctx, "root", "", nil)
	wantCode(t, err, yterrors.CodeAuthorizationError)
	_, err = carol.CreateObject(ctx, yt.NodeUser, &yt.CreateObjectOptions{Attributes: map[string]any{"name": "eve"}})
	wantCode(t, err, yterrors.CodeAuthorizationError)
	wantCode(t, carol.AddMember(ctx, "superusers", "carol", nil), yterrors.CodeAuthorizationError)

	_, err = root.CreateObject(ctx, yt.NodeGroup, &yt.CreateObjectOptions{Attributes: map[string]any{"name": "team"}})
	must(t, err)
	must(t, root.AddMember(ctx, "team", "carol", nil))
	if got, want := get(t, root, "//sys/groups/team/@members"), "[carol;]"; got != want {
		t.Errorf("members: got %s, want %s", got, want)
	}
	must(t, root.RemoveMember(ctx, "team", "carol", nil))
	if got, want := get(t, root, "//sys/users/carol/@member_of"), "[users;]"; got != want {
		t.Errorf("member_of: got %s, want %s", got, want)
	}

	set(t, root, "//sys/users/carol/@banned", true)
	if _, err = carol.NodeExists(ctx, ypath.Path("//tmp"), nil); !yterrors.ContainsErrorCode(err, yterrors.CodeUserBanned) {
		t.Errorf("a banned user got %v, want code 903", err)
	}
	if _, err = carol.WhoAmI(ctx, nil); err != nil {
		t.Errorf("whoami of a banned user: %v", err)
	}
	must(t, root.RevokeToken(ctx, "carol", "", token, nil))
	_, err = carol.WhoAmI(ctx, nil)
	wantCode(t, err, yterrors.CodeAuthenticationError)
}

func TestImpersonation(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	alice := addUser(t, c, "alice")
	as := func(token, user string) int {
		return request(t, c, "GET", "/auth/whoami", "", func(r *http.Request) {
			r.Header.Set("Authorization", "OAuth "+token)
			r.Header.Set("X-YT-User-Name", user)
		}).status
	}
	if got := as(c.RootToken(), "alice"); got != 200 {
		t.Errorf("root as alice: got %d, want 200", got)
	}
	if got := as(alice.Token, "root"); got != 403 {
		t.Errorf("alice as root: got %d, want 403", got)
	}
}

func TestAuthOff(t *testing.T) {
	t.Parallel()
	c := startCluster(t, func(cfg *Config) { cfg.AuthOff = true })
	who, err := client(t, c, "garbage").WhoAmI(t.Context(), nil)
	must(t, err)
	if who.Login != "root" || who.Realm != "YT" {
		t.Errorf("got %+v, want root of realm YT", who)
	}
	if got := request(t, c, "GET", "/auth/whoami", "", func(r *http.Request) { r.Host = "evil.example" }); got.status != 403 {
		t.Errorf("without authentication a rebound name got %d, want 403", got.status)
	}
}

// A robot gets what an installation grants, one right after the other, and each missing one shows.
func TestRightsOfARobot(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	ctx, root := t.Context(), rootClient(t, c)
	robot := client(t, c, addUser(t, c, "robot").Token)
	createTable := func() error {
		_, err := robot.CreateNode(ctx, ypath.Path("//sys/task_proxies/services"), yt.NodeTable, nil)
		return err
	}
	_, err := robot.CreateNode(ctx, ypath.Path("//sys/task_proxies"), yt.NodeMap, nil)
	wantCode(t, err, yterrors.CodeAuthorizationError)
	create(t, root, "//sys/task_proxies", yt.NodeMap)
	wantCode(t, createTable(), yterrors.CodeAuthorizationError)
	set(t, root, "//sys/task_proxies/@acl/end", map[string]any{"action": "allow", "subjects": []string{"robot"}, "permissions": []string{"read", "write", "create", "remove"}})
	wantCode(t, createTable(), yterrors.CodeAuthorizationError) // of the account
	set(t, root, "//sys/accounts/sys/@acl/end", map[string]any{"action": "allow", "subjects": []string{"robot"}, "permissions": []string{"use"}})
	must(t, createTable())
	must(t, robot.RemoveNode(ctx, ypath.Path("//sys/task_proxies/services"), nil))
	wantCode(t, robot.RemoveNode(ctx, ypath.Path("//sys/users"), &yt.RemoveNodeOptions{Recursive: true}), yterrors.CodeAuthorizationError)
	wantCode(t, robot.SetNode(ctx, ypath.Path("//sys/operations/@acl/end"), map[string]any{"action": "allow", "subjects": []string{"robot"}, "permissions": []string{"manage"}}, nil), yterrors.CodeAuthorizationError)
	wantCode(t, robot.SetNode(ctx, ypath.Path("//sys/task_proxies/@acl"), []any{}, nil), yterrors.CodeAuthorizationError)
}

func TestACL(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	ctx, root := t.Context(), rootClient(t, c)
	alice := client(t, c, addUser(t, c, "alice").Token)
	_, err := root.CreateObject(ctx, yt.NodeGroup, &yt.CreateObjectOptions{Attributes: map[string]any{"name": "team"}})
	must(t, err)
	must(t, root.AddMember(ctx, "team", "alice", nil))
	create(t, root, "//home/secret/deep", yt.NodeMap)
	entry := func(action, subject string, permissions ...string) map[string]any {
		return map[string]any{"action": action, "subjects": []string{subject}, "permissions": permissions}
	}
	for _, tt := range []struct {
		name        string
		acl         []any
		inherit     bool
		read, write bool
	}{
		{"inherited", []any{}, true, true, true},
		{"cut off", []any{}, false, false, false},
		{"given to the group", []any{entry("allow", "team", "read")}, false, true, false},
		{"denied to the user", []any{entry("allow", "team", "read", "write"), entry("deny", "alice", "write")}, false, true, false},
		{"denied to the group", []any{entry("allow", "alice", "read"), entry("deny", "team", "read")}, true, false, true},
		{"write is not read", []any{entry("allow", "alice", "write")}, false, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			set(t, root, "//home/secret/@acl", tt.acl)
			set(t, root, "//home/secret/@inherit_acl", tt.inherit)
			var v any
			err := alice.GetNode(ctx, ypath.Path("//home/secret/deep"), &v, nil)
			if (err == nil) != tt.read {
				t.Errorf("read: got %v, want %v", err, tt.read)
			}
			if err = alice.GetNode(ctx, ypath.Path("//home"), &v, nil); (err == nil) != tt.read {
				t.Errorf("read of all above: got %v, want %v", err, tt.read)
			}
			err = alice.SetNode(ctx, ypath.Path("//home/secret/deep/@x"), 1, nil)
			if (err == nil) != tt.write {
				t.Errorf("write: got %v, want %v", err, tt.write)
			}
			_, err = alice.CreateNode(ctx, ypath.Path("//home/secret/deep/made"), yt.NodeMap, nil)
			if (err == nil) != tt.write {
				t.Errorf("create: got %v, want %v", err, tt.write)
			}
			must(t, root.RemoveNode(ctx, ypath.Path("//home/secret/deep/*"), nil))
			for permission, want := range map[yt.Permission]bool{"read": tt.read, "write": tt.write} {
				res, err := root.CheckPermission(ctx, "alice", permission, ypath.Path("//home/secret/deep"), nil)
				must(t, err)
				if got := res.Action == yt.ActionAllow; got != want {
					t.Errorf("check_permission %s: got %v, want %v", permission, got, want)
				}
			}
		})
	}
	for name, bad := range map[string]any{
		"no list":            "x",
		"unknown subject":    []any{entry("allow", "nobody", "read")},
		"unknown permission": []any{entry("allow", "alice", "fly")},
		"unknown action":     []any{entry("maybe", "alice", "read")},
	} {
		if err := root.SetNode(ctx, ypath.Path("//home/secret/@acl"), bad, nil); err == nil {
			t.Errorf("%s: a bad ACL was accepted", name)
		}
	}
}
