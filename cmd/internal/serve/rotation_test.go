package serve

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.ytsaurus.tech/yt/go/yt"
	"go.ytsaurus.tech/yt/go/yt/ythttp"

	"taskproxy/discovery"
)

// robot is the user whose token the product has, and whoever administers it.
type robot struct {
	t     *testing.T
	admin yt.Client
	token string
}

func (c *testCluster) newRobot(t *testing.T) *robot {
	t.Helper()
	admin, err := ythttp.NewClient(&yt.Config{Proxy: c.URL(), DisableProxyDiscovery: true, Credentials: &yt.TokenCredentials{Token: c.RootToken()}})
	must(t, err)
	t.Cleanup(admin.Stop)
	user, err := c.AddUser("robot")
	must(t, err)
	must(t, admin.AddMember(t.Context(), "superusers", "robot", nil))
	return &robot{t, admin, user.Token}
}

// issue makes a new token; the result revokes the one before.
func (r *robot) issue() (revoke func()) {
	r.t.Helper()
	old := r.token
	token, err := r.admin.IssueToken(r.t.Context(), "robot", "", nil)
	must(r.t, err)
	r.token = token
	return func() {
		r.t.Helper()
		must(r.t, r.admin.RevokeToken(r.t.Context(), "robot", "", old, nil))
	}
}

// tokenWays are ways in which an admin's tools write a token where another one is. Each is a function that makes the place and returns
// the path of --yt-token-path and what replaces the token there.
var tokenWays = []struct {
	name  string
	place func(t *testing.T) (path string, put func(token string))
}{
	{"a file written over", func(t *testing.T) (string, func(string)) {
		path := filepath.Join(t.TempDir(), "token")
		return path, func(token string) { must(t, os.WriteFile(path, []byte(token+"\n"), 0o600)) }
	}},
	{"quoted, as the command line prints it", func(t *testing.T) (string, func(string)) {
		path := filepath.Join(t.TempDir(), "token")
		return path, func(token string) { must(t, os.WriteFile(path, []byte(`"`+token+"\"\n"), 0o600)) }
	}},
	{"a file renamed over it, all of one time", func(t *testing.T) (string, func(string)) {
		path := filepath.Join(t.TempDir(), "token")
		at := time.Now().Add(-time.Hour)
		return path, func(token string) {
			must(t, os.WriteFile(path+".new", []byte(token), 0o600))
			must(t, os.Chtimes(path+".new", at, at)) // as archives and copies that keep times do
			must(t, os.Rename(path+".new", path))
		}
	}},
	{"a mounted secret, its directory", func(t *testing.T) (string, func(string)) {
		dir := t.TempDir()
		return dir, swapSecret(t, dir)
	}},
	{"a mounted secret, its file", func(t *testing.T) (string, func(string)) {
		dir := t.TempDir()
		return filepath.Join(dir, "token"), swapSecret(t, dir)
	}},
}

// swapSecret replaces a file "token" as Kubernetes does: it is a link through ..data, which is swapped.
func swapSecret(t *testing.T, dir string) func(token string) {
	must(t, os.Symlink("..data/token", filepath.Join(dir, "token")))
	version := 0
	return func(token string) {
		version++
		name := fmt.Sprintf("..%d", version)
		must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, name, "token"), []byte(token), 0o600))
		must(t, os.Symlink(name, filepath.Join(dir, "..next")))
		must(t, os.Rename(filepath.Join(dir, "..next"), filepath.Join(dir, "..data")))
		must(t, os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..%d", version-1))))
	}
}

// The robot's token is replaced again and again under load, in all the ways in which that is done, and the old one is revoked when the new
// one is there: no request fails, neither one that is cached nor one for which the cluster must be asked, no cycle either, and the table is written.
func TestTokenRotationUnderLoad(t *testing.T) {
	t.Parallel()
	for _, way := range tokenWays {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			c := startTestCluster(t)
			robot := c.newRobot(t)
			path, put := way.place(t)
			put(robot.token)
			id := c.start(t, c.alice, "server", 1, everyPort)
			c.jobs(t, id, 1)
			// Every answer is asked for again after a moment, so that requests wait for the cluster all the time.
			r := c.startEditedReplica(t, func(cfg *Config) { cfg.grantTTL = 20 * time.Millisecond }, "--yt-token-path="+path, "--discovery-period=100ms")
			label := discovery.ShortID(id, "server", "port_0")
			until(t, "the job answers", func() bool { return r.get(t, c.alice, label).status == http.StatusOK })

			ctx, cancel := context.WithCancel(t.Context())
			var callers sync.WaitGroup
			defer func() { cancel(); callers.Wait() }()
			var answered atomic.Int64
			for range 3 {
				callers.Go(func() {
					for ctx.Err() == nil {
						if got := r.get(t, c.alice, label); got.status != http.StatusOK {
							t.Errorf("got %s", got)
						}
						answered.Add(1)
						time.Sleep(pace)
					}
				})
			}
			goesOn := func(what string) {
				t.Helper()
				before, asked, cycles := answered.Load(), c.Faults().Calls()["check_operation_permission"], r.metric(t, "discovery_success_total")
				until(t, what, func() bool {
					return answered.Load() > before+10 && c.Faults().Calls()["check_operation_permission"] > asked+5 && r.metric(t, "discovery_success_total") > cycles+1
				})
			}
			for range 2 {
				revoke := robot.issue()
				put(robot.token)
				goesOn("calls under way with the old token are over") // that much patience an admin should have
				revoke()
				goesOn("callers and cycles are answered without it")
			}
			cancel()
			callers.Wait()
			// A file that is written over is empty for a moment, which the log may tell.
			text := r.log.String()
			if strings.Count(text, "token changed") != 2 || strings.Count(text, `"level":"WARN"`) != strings.Count(text, "using the last token") {
				t.Errorf("the log tells of %d new tokens, or of trouble", strings.Count(text, "token changed"))
			}
		})
	}
}

// A token that is revoked before there is another one: until then who has an answer keeps it, and is served, also in streams; who would have to be
// asked about gets 503, and nobody an answer that says that it is the caller's fault. The first request after the new token is there is answered.
func TestTokenRevokedTooSoon(t *testing.T) {
	t.Parallel()
	c := startTestCluster(t)
	robot := c.newRobot(t)
	path := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(path, []byte(robot.token), 0o600))
	id := c.start(t, c.alice, "server", 1, everyPort)
	job := c.jobs(t, id, 1)[0]
	r := c.startReplica(t, "--yt-token-path="+path, "--discovery-period=100ms")
	label := discovery.ShortID(id, "server", "port_0")
	until(t, "the job answers", func() bool { return r.get(t, c.alice, label).status == http.StatusOK })

	robot.issue()()
	until(t, "cycles fail", func() bool {
		failed, _ := r.lookMetric(t, `discovery_failed_total{reason="unauthenticated"}`)
		return failed > 1
	})
	for range 20 {
		if got := r.get(t, c.alice, label); got.status != http.StatusOK || got.job.JobID != job.ID {
			t.Errorf("who was answered before gets %s", got)
		}
	}
	if got := r.get(t, c.mallory, label); got.status != http.StatusServiceUnavailable || got.reason != "cluster_unavailable" {
		t.Errorf("who was not gets %s", got)
	}
	must(t, os.WriteFile(path, []byte(robot.token), 0o600))
	if got := r.get(t, c.mallory, label); got.status != http.StatusOK {
		t.Errorf("with the new token the first answer is %s", got)
	}
	cycles := r.metric(t, "discovery_success_total")
	until(t, "cycles are answered again", func() bool { return r.metric(t, "discovery_success_total") > cycles })
	until(t, "the services table is written", func() bool { return len(c.services(t)) == 1 })
}
