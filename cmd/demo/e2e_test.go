//go:build e2e

// The end-to-end tests run what the documentation tells people to run, letter by letter, with programs that we did not
// write: the yt command line, curl and grpcurl. `make e2e` installs the first and the last and starts these tests.
package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What the documentation says, to be pasted as it is.
const (
	launchHTTP = `yt vanilla --tasks '{example_http_server={job_count=2; command="python3 -m http.server ${YT_PORT_0}"; port_count=1}}' --spec '{annotations={task_proxy={enabled=%true;}}}'`
	launchGRPC = `yt vanilla --tasks '{example_grpc_server={job_count=2; command="./yt-sample-grpc-service"; file_paths = ["//home/yt-sample-grpc-service"]; port_count=1}}' --spec '{annotations={task_proxy={enabled=%true; tasks_info={example_grpc_server={server={protocol="grpc"; port_index=0}}}}}}'`
	readTable  = `yt read-table //sys/task_proxies/services --format json`
)

// The installation of the proxy beside a cluster, by its administrator.
var install = []string{
	`yt create user --attr "{name=robot-task-proxy}"`,
	`yt issue-token robot-task-proxy > robot-task-proxy-token`,
	`yt set //sys/operations/@acl/end '{subjects=[robot-task-proxy];permissions=[read];action=allow}'`,
	`yt set //sys/accounts/sys/@acl/end '{action=allow; subjects=[robot-task-proxy]; permissions=[use]}'`,
	`yt create map_node //sys/task_proxies`,
	`yt set //sys/task_proxies/@acl/end '{action=allow; subjects=[robot-task-proxy]; permissions=[read; write; create; remove;]}'`,
}

const (
	baseDomain = "task-proxy.localhost"
	// cycle is --discovery-period; what must happen within a cycle gets some seconds on top, for a busy machine.
	cycle       = time.Second
	withinCycle = cycle + 5*time.Second
	// The services table is written at most once in ten seconds.
	tableWritten = 30 * time.Second
)

// stage is a cluster, the proxy beside it and who calls.
type stage struct {
	tools
	dir     string // where commands run
	cluster string // URL of the cluster's HTTP proxy
	proxy   string // host:port of the task proxy
	people  map[string]person
	http    service // filled as they appear in the services table
	grpc    service
}

type person struct{ token, cookieName, cookie string }

// env is what a command finds in its environment: the caller's settings for yt, and names for the values that the
// documentation writes as <…>.
func (s *stage) env(login string) []string {
	id, _, _ := strings.Cut(s.http.Domain, ".")
	grpcID, _, _ := strings.Cut(s.grpc.Domain, ".")
	p := s.people[login]
	_, port, _ := strings.Cut(s.proxy, ":")
	return []string{
		"YT_PROXY=" + s.cluster, "YT_TOKEN=" + p.token,
		"TOKEN=" + p.token, "COOKIE_NAME=" + p.cookieName, "COOKIE=" + p.cookie,
		"PROXY=" + s.proxy, "PROXY_PORT=" + port,
		"DOMAIN=" + s.http.Domain, "ID=" + id, "OPERATION=" + s.http.OperationID,
		"GRPC_DOMAIN=" + s.grpc.Domain, "GRPC_ID=" + grpcID,
		"PROTO=" + filepath.Join(s.root, "examples", "grpc-service", "helloworld"),
	}
}

// ok runs a command as login and returns what it printed. A command that fails ends the test: the next one builds on it.
func (s *stage) ok(t *testing.T, login, command string) string {
	t.Helper()
	r := s.shell(t.Context(), t, s.dir, s.env(login), command)
	if r.code != 0 {
		t.Fatalf("as %q: %s\nexit code %d, want 0\n%s%s", login, command, r.code, tail(r.stdout), tail(r.stderr))
	}
	return r.stdout
}

// must ends the test when a subtest failed that the following ones build on.
func must(t *testing.T, passed bool) {
	t.Helper()
	if !passed {
		t.FailNow()
	}
}

// newStage installs the proxy beside an empty local cluster, as documented.
func newStage(t *testing.T) *stage {
	t.Helper()
	x := newTools(t)
	s := &stage{tools: x, dir: t.TempDir(), people: map[string]person{"": {}}}
	_, r := startDemo(t, x, "--cluster-only")
	s.cluster = r.Cluster
	for _, u := range r.Users {
		s.people[u.Login] = person{u.Token, u.CookieName, u.Cookie}
	}
	if s.people["root"].token == "" {
		t.Fatalf("the ready file has no token for root: %+v", r)
	}
	for _, command := range install {
		must(t, t.Run(command, func(t *testing.T) { s.ok(t, "root", command) }))
	}
	s.startProxy(t)
	return s
}

// TestE2EDocumentedCommands launches the services of the README, calls them in each documented way, and ends them.
func TestE2EDocumentedCommands(t *testing.T) {
	s := newStage(t)
	s.meet(t, "carol")
	http, grpc := s.launch(t)
	t.Run("list-operations", s.testListOperations)
	t.Run("http", s.testHTTP)
	t.Run("jobs answer in turn", s.testTurns)
	t.Run("grpc", s.testGRPC)
	t.Run("abort-op", func(t *testing.T) { s.testAbort(t, http, grpc) })
}

// meet makes one more user, by the command line, besides alice and bob, who came with the cluster and have cookies.
func (s *stage) meet(t *testing.T, login string) {
	t.Helper()
	create := fmt.Sprintf(`yt create user --attr "{name=%s}"`, login)
	must(t, t.Run(create, func(t *testing.T) { s.ok(t, "root", create) }))
	issue := "yt issue-token " + login
	must(t, t.Run(issue, func(t *testing.T) {
		token := strings.Trim(strings.TrimSpace(s.ok(t, "root", issue)), `"`)
		if token == "" {
			t.Fatal("printed no token")
		}
		s.people[login] = person{token: token}
	}))
}

// startProxy runs the product as an administrator does, with the token file as the yt command line wrote it.
func (s *stage) startProxy(t *testing.T) {
	t.Helper()
	p := start(t, s.dir, s.environment(s.dir), filepath.Join(s.bin, "task-proxy"), "serve",
		"--yt-proxy", s.cluster, "--yt-token-path", "robot-task-proxy-token", "--base-domain", baseDomain,
		"--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--log-format", "json",
		"--discovery-period", cycle.String(), "--shutdown-delay", "0s")
	var admin string
	eventually(t, "task-proxy serves", time.Minute, func() error {
		if err := p.running(); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(p.stderr.String()) {
			var record struct {
				Msg, Listen string
				AdminListen string `json:"admin_listen"`
			}
			if json.Unmarshal([]byte(line), &record) == nil && record.Msg == "serving" {
				s.proxy, admin = record.Listen, record.AdminListen
				return nil
			}
		}
		return errors.New("no record \"serving\" in its log")
	})
	eventually(t, "task-proxy is ready", time.Minute, func() error {
		code, err := status(t.Context(), "http://"+admin+"/readyz")
		if err == nil && code != 200 {
			err = fmt.Errorf("/readyz says %d", code)
		}
		return err
	})
	t.Cleanup(func() {
		for login, who := range s.people {
			if who.token != "" && strings.Contains(p.stderr.String()+p.stdout.String(), who.token) {
				t.Errorf("%s's token is in the log of task-proxy", login)
			}
		}
	})
}

// launch starts the two documented operations as alice, as attached commands, and learns their addresses as the
// documentation says.
func (s *stage) launch(t *testing.T) (http, grpc *process) {
	t.Helper()
	build := `CGO_ENABLED=0 go build -o "$OUT/yt-sample-grpc-service" ./examples/grpc-service`
	must(t, t.Run(build, func(t *testing.T) {
		if r := s.shell(t.Context(), t, s.root, append(goSettings(t), "OUT="+s.dir), build); r.code != 0 {
			t.Fatal(r.stderr)
		}
	}))
	for _, command := range []string{
		`cat yt-sample-grpc-service | yt upload --executable //home/yt-sample-grpc-service`,
		`cat yt-sample-grpc-service | yt write-file //home/yt-sample-grpc-service-again`,
		`yt read-file //home/yt-sample-grpc-service-again | cmp - yt-sample-grpc-service`,
		`test "$(yt get //home/yt-sample-grpc-service/@executable)" = %true`,
	} {
		must(t, t.Run(command, func(t *testing.T) { s.ok(t, "alice", command) }))
	}
	env := s.environment(s.dir, s.env("alice")...)
	http = start(t, s.dir, env, "sh", "-c", "exec "+launchHTTP)
	grpc = start(t, s.dir, env, "sh", "-c", "exec "+launchGRPC)
	must(t, t.Run(readTable, func(t *testing.T) {
		eventually(t, "both services are in the table", tableWritten, func() error {
			if err := errors.Join(http.running(), grpc.running()); err != nil {
				t.Fatal(err)
			}
			rows, err := s.table(t)
			s.http, s.grpc = rows["example_http_server"], rows["example_grpc_server"]
			if err == nil && (s.http.Domain == "" || s.grpc.Domain == "") {
				err = fmt.Errorf("it has %v", rows)
			}
			return err
		})
		for _, c := range []struct{ got, service, protocol string }{
			{s.http.Service + " " + s.http.Protocol, "port_0", "http"},
			{s.grpc.Service + " " + s.grpc.Protocol, "server", "grpc"},
		} {
			if want := c.service + " " + c.protocol; c.got != want {
				t.Errorf("service and protocol: got %q, want %q", c.got, want)
			}
		}
		for _, domain := range []string{s.http.Domain, s.grpc.Domain} {
			if id, ok := strings.CutSuffix(domain, "."+baseDomain); !ok || len(id) != 8 {
				t.Errorf("domain %q: want eight hex digits and .%s", domain, baseDomain)
			}
		}
	}))
	return http, grpc
}

// table reads the services table by the documented command, as somebody who may read it.
func (s *stage) table(t *testing.T) (byTask map[string]service, err error) {
	t.Helper()
	r := s.shell(t.Context(), t, s.dir, s.env("alice"), readTable)
	if r.code != 0 {
		return nil, fmt.Errorf("exit code %d: %s", r.code, tail(r.stderr))
	}
	byTask = map[string]service{}
	for line := range strings.Lines(r.stdout) {
		var row service
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			return nil, fmt.Errorf("row %q: %w", line, err)
		}
		if _, twice := byTask[row.TaskName]; twice {
			t.Errorf("task %s has two rows:\n%s", row.TaskName, r.stdout)
		}
		byTask[row.TaskName] = row
	}
	return byTask, nil
}

func (s *stage) testListOperations(t *testing.T) {
	var list struct {
		Operations []struct {
			ID, State, Type string
			User            string `json:"authenticated_user"`
		}
	}
	printed := s.ok(t, "alice", `yt list-operations --state running --format json`)
	if err := json.Unmarshal([]byte(printed), &list); err != nil {
		t.Fatalf("%v in %s", err, printed)
	}
	seen := map[string]string{}
	for _, o := range list.Operations {
		seen[o.ID] = o.State + " " + o.Type + " " + o.User
	}
	for _, id := range []string{s.http.OperationID, s.grpc.OperationID} {
		if got, want := seen[id], "running vanilla alice"; got != want {
			t.Errorf("operation %s: got %q, want %q", id, got, want)
		}
	}
	if out := s.ok(t, "alice", `yt list-operations`); !strings.Contains(out, s.http.OperationID) {
		t.Errorf("without options, got no operation %s in %s", s.http.OperationID, tail(out))
	}
}

// testTurns shows by the jobs' own logs, read with the yt command line, that the two answer in turn.
func (s *stage) testTurns(t *testing.T) {
	jobs := s.runningJobs(t, s.http.OperationID)
	if len(jobs) != 2 {
		t.Fatalf("yt list-jobs: got %d running jobs, want 2", len(jobs))
	}
	// A job that has just begun is given no requests until it listens: wait until both have answered once.
	count := func(mark string) (counts []int) {
		for _, job := range jobs {
			log := s.ok(t, "alice", "yt get-job-stderr "+job+" $OPERATION")
			counts = append(counts, strings.Count(log, mark))
		}
		return counts
	}
	call := func(mark string) {
		s.ok(t, "alice", `curl -sS --fail-with-body -o /dev/null -H "Authorization: OAuth $TOKEN" "http://$DOMAIN:$PROXY_PORT/?`+mark+`"`)
	}
	eventually(t, "both jobs answer", 20*time.Second, func() error {
		call("warm")
		if n := count("GET /?warm "); n[0] == 0 || n[1] == 0 {
			return fmt.Errorf("the jobs answered %v requests", n)
		}
		return nil
	})
	for range 6 {
		call("turn")
	}
	eventually(t, "each has answered half of six requests", 5*time.Second, func() error {
		if n := count("GET /?turn "); n[0] != 3 || n[1] != 3 {
			return fmt.Errorf("the jobs answered %v requests", n)
		}
		return nil
	})
}

func (s *stage) runningJobs(t *testing.T, operation string) (ids []string) {
	t.Helper()
	var list struct {
		Jobs []struct {
			ID, State string
		}
	}
	printed := s.ok(t, "alice", "yt list-jobs "+operation+" --format json")
	if err := json.Unmarshal([]byte(printed), &list); err != nil {
		t.Fatalf("%v in %s", err, printed)
	}
	for _, job := range list.Jobs {
		if job.State == "running" {
			ids = append(ids, job.ID)
		}
	}
	return ids
}

// testAbort ends the operations: an address is gone within a cycle, the command that launched it says why, no process
// is left, and the table follows.
func (s *stage) testAbort(t *testing.T, http, grpc *process) {
	t.Helper()
	if len(jobProcesses(t, s.http.OperationID)) < 2 || len(jobProcesses(t, s.grpc.OperationID)) < 2 {
		t.Fatal("the jobs are no processes of this machine, so their end would not be seen")
	}
	s.ok(t, "alice", `yt abort-op $OPERATION`)
	eventually(t, "the address is 404", withinCycle, func() error {
		if code := s.curl(t, "alice", `-H "Authorization: OAuth $TOKEN" http://$DOMAIN:$PROXY_PORT/`); code != "404" {
			return fmt.Errorf("got %s", code)
		}
		return nil
	})
	eventually(t, "the attached yt vanilla ends", 20*time.Second, func() error {
		if http.running() == nil {
			return errors.New("it runs")
		}
		if http.cmd.ProcessState.Success() {
			t.Error("yt vanilla says that an aborted operation went well")
		}
		return nil
	})
	eventually(t, "its row is gone and the other's is not", tableWritten, func() error {
		rows, err := s.table(t)
		if err == nil && (rows["example_http_server"].Domain != "" || rows["example_grpc_server"].Domain == "") {
			err = fmt.Errorf("the table has %v", rows)
		}
		return err
	})
	eventually(t, "its processes are gone", 10*time.Second, func() error {
		if left := jobProcesses(t, s.http.OperationID); len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
	if err := grpc.running(); err != nil {
		t.Errorf("the other operation did not go on: %v", err)
	}
	s.ok(t, "alice", "yt abort-op "+s.grpc.OperationID)
	eventually(t, "the table is empty", tableWritten, func() error {
		rows, err := s.table(t)
		if err == nil && len(rows) > 0 {
			err = fmt.Errorf("it has %v", rows)
		}
		return err
	})
}

// curl calls and returns the status as curl prints it.
func (s *stage) curl(t *testing.T, login, arguments string) string {
	t.Helper()
	return s.ok(t, login, `curl -sS -o /dev/null -w '%{http_code}' `+arguments)
}

// goSettings are for commands that build.
func goSettings(t *testing.T) []string {
	t.Helper()
	return []string{"HOME=" + os.Getenv("HOME"), "GOCACHE=" + goEnv(t, "GOCACHE"), "GOMODCACHE=" + goEnv(t, "GOMODCACHE"), "GOFLAGS=" + os.Getenv("GOFLAGS")}
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	r := tools{}.shell(t.Context(), t, ".", []string{"HOME=" + os.Getenv("HOME"), "GOFLAGS=" + os.Getenv("GOFLAGS")}, "go env "+name)
	if r.code != 0 {
		t.Fatalf("go env %s: %s", name, r.stderr)
	}
	return strings.TrimSpace(r.stdout)
}
