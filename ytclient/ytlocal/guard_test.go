package ytlocal

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What a page in somebody's browser could try against a cluster on the same machine. The token is there, so nothing but
// the guard stands in the way.
func TestGuardRefusesBrowsers(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	_, port, _ := net.SplitHostPort(c.Addr())
	start := `{"operation_type":"vanilla","spec":{"tasks":{"t":{"job_count":1,"command":"touch ` + filepath.Join(t.TempDir(), "pwned") + `"}}}}`
	for _, tt := range []struct {
		name string
		edit func(*http.Request)
		want int
	}{
		{"own address", func(r *http.Request) { r.Host = c.Addr() }, 200},
		{"localhost", func(r *http.Request) { r.Host = "LocalHost:" + port }, 200},
		{"typed into the address bar", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "none") }, 200},
		{"rebound name", func(r *http.Request) { r.Host = "evil.example:" + port }, 403},
		{"rebound name without a port", func(r *http.Request) { r.Host = "evil.example" }, 403},
		{"another port", func(r *http.Request) { r.Host = "127.0.0.1:1" }, 403},
		{"another loopback address", func(r *http.Request) { r.Host = "127.0.0.2:" + port }, 403},
		{"subdomain of localhost", func(r *http.Request) { r.Host = "x.localhost:" + port }, 403},
		{"foreign origin", func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") }, 403},
		{"null origin", func(r *http.Request) { r.Header.Set("Origin", "null") }, 403},
		{"empty origin", func(r *http.Request) { r.Header["Origin"] = []string{""} }, 403},
		{"own origin", func(r *http.Request) { r.Header.Set("Origin", c.URL()) }, 403},
		{"cross site", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, 403},
		{"same site", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") }, 403},
		{"same origin", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-origin") }, 403},
		{"two values", func(r *http.Request) { r.Header["Sec-Fetch-Site"] = []string{"none", "cross-site"} }, 403},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := len(c.Scheduler().Operations())
			got := request(t, c, "POST", "/api/v4/start_operation", start, func(r *http.Request) {
				r.Header.Set("Content-Type", "application/json")
				tt.edit(r)
			})
			if got.status != tt.want {
				t.Errorf("got %d %s, want %d", got.status, got.body, tt.want)
			}
			if started := len(c.Scheduler().Operations()) - before; started != map[int]int{200: 1}[tt.want] {
				t.Errorf("%d operations were started", started)
			}
			// The open routes are guarded as well.
			if got := request(t, c, "GET", "/hosts", "", tt.edit); got.status != tt.want {
				t.Errorf("/hosts: got %d, want %d", got.status, tt.want)
			}
		})
	}
}

func TestNothingWithoutCredentials(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	open := map[string]bool{"/hosts": true, "/ping": true, "/ping/": true, "/version": true, "/api": true, "/api/v4": true}
	paths := []string{"/", "/service", "/hosts/all", "/auth/whoami", "/api/v3/get", "/api/v4/nonsense", "/metrics"}
	for path := range open {
		paths = append(paths, path)
	}
	for name := range commands() {
		paths = append(paths, "/api/v4/"+name)
	}
	for _, path := range paths {
		for name, edit := range map[string]func(*http.Request){
			"no credentials": func(r *http.Request) { r.Header.Del("Authorization") },
			"wrong token":    func(r *http.Request) { r.Header.Set("Authorization", "OAuth wrong") },
			"empty token":    func(r *http.Request) { r.Header.Set("Authorization", "OAuth ") },
			"token in query": func(r *http.Request) {
				r.Header.Del("Authorization")
				r.URL.RawQuery = "token=" + c.RootToken()
			},
			"basic":        func(r *http.Request) { r.Header.Del("Authorization"); r.SetBasicAuth("root", c.RootToken()) },
			"wrong cookie": func(r *http.Request) { r.Header.Del("Authorization"); r.Header.Set("Cookie", CookieName+"=x") },
			"token as cookie": func(r *http.Request) {
				r.Header.Del("Authorization")
				r.Header.Set("Cookie", CookieName+"="+c.RootToken())
			},
			"impersonation": func(r *http.Request) { r.Header.Del("Authorization"); r.Header.Set("X-YT-User-Name", "root") },
		} {
			want := http.StatusUnauthorized
			if open[path] {
				want = http.StatusOK
			}
			if got := request(t, c, "POST", path, "{}", edit); got.status != want {
				t.Errorf("%s with %s: got %d, want %d", path, name, got.status, want)
			}
		}
	}
}

func TestListensOnLoopbackOnly(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0", "example.com:0", "10.0.0.1:0", "127.0.0.1", "[::ffff:0.0.0.0]:0", "127.0.0.1.nip.io:0"} {
		c, err := Start(Config{Listen: address, StateDir: filepath.Join(t.TempDir(), "s")})
		if err == nil {
			t.Errorf("%s: the cluster listens on %s", address, c.Addr())
			must(t, c.Close())
			continue
		}
		if !strings.Contains(err.Error(), fmt.Sprintf("%q", address)) {
			t.Errorf("%s: error %q does not name the address", address, err)
		}
	}
	c := startCluster(t, func(cfg *Config) { cfg.Listen = "localhost:0" })
	if _, err := Start(Config{Listen: c.Addr(), StateDir: filepath.Join(t.TempDir(), "s")}); err == nil {
		t.Error("a second cluster got the same address")
	}
}

func TestStateDirIsPrivate(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "state")
	startCluster(t, func(cfg *Config) { cfg.StateDir = dir })
	for _, d := range []string{dir, filepath.Join(dir, "cluster")} {
		info, err := os.Stat(d)
		must(t, err)
		if info.Mode().Perm() != 0o700 {
			t.Errorf("%s has mode %v, want 0700", d, info.Mode())
		}
	}
	shared := t.TempDir()
	must(t, os.Chmod(shared, 0o777))
	planted, target, loose := t.TempDir(), t.TempDir(), t.TempDir()
	must(t, os.Chmod(target, 0o700))
	must(t, os.Symlink(target, filepath.Join(planted, "cluster")))
	must(t, os.Mkdir(filepath.Join(loose, "cluster"), 0o700))
	must(t, os.Chmod(filepath.Join(loose, "cluster"), 0o755))
	for name, bad := range map[string]string{"none": "", "writable by others": shared, "planted link": planted, "readable by others": loose} {
		if c, err := Start(Config{StateDir: bad}); err == nil {
			t.Errorf("%s: %q was accepted", name, bad)
			must(t, c.Close())
		}
	}
}

func TestSecretsStayOut(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	c, err := Start(Config{StateDir: filepath.Join(t.TempDir(), "s"),
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	must(t, err)
	alice, err := c.AddUser("alice")
	must(t, err)
	request(t, c, "POST", "/api/v4/issue_token", `{"user":"alice","password_sha256":"hash"}`, func(r *http.Request) { r.Header.Set("Content-Type", "application/json") })
	request(t, c, "GET", "/api/v4/get?path=//sys", "", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+alice.Token) })
	must(t, c.Close())
	for _, printed := range []string{log.String(), fmt.Sprint(alice), fmt.Sprintf("%+v %#v", alice, alice)} {
		for _, secret := range []string{c.RootToken(), alice.Token, alice.Cookie, "hash"} {
			if strings.Contains(printed, secret) {
				t.Errorf("a secret was printed: %s", printed)
			}
		}
	}
	if other := startCluster(t); other.RootToken() == c.RootToken() || len(other.RootToken()) < 32 {
		t.Error("the root token is not random per run")
	}
}
