//go:build e2e

package main_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestE2EPrintedCommands starts the whole demo and pastes each command that it prints into a shell.
func TestE2EPrintedCommands(t *testing.T) {
	x := newTools(t)
	demo, r := startDemo(t, x, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
	for _, url := range []string{r.Admin + "/healthz", r.Admin + "/readyz", r.Admin + "/metrics"} {
		if code, err := status(t.Context(), url); err != nil || code != 200 {
			t.Errorf("%s: got %d, %v, want 200", url, code, err)
		}
	}
	if len(r.Services) != 7 {
		t.Errorf("the ready file has %d services, want an HTTP, a gRPC, a WebSocket and four Spark ones: %+v", len(r.Services), r.Services)
	}
	// The last command of all is printed after the ready file is written.
	eventually(t, "the demo has printed all", 10*time.Second, func() error {
		if !strings.Contains(demo.stdout.String(), "Ctrl-C ends it all") {
			return errors.New("its last line is missing")
		}
		return nil
	})
	commands := printedCommands(demo.stdout.String())
	if len(commands) < 10 {
		t.Fatalf("found %d commands in\n%s", len(commands), demo.stdout.String())
	}
	home := t.TempDir()
	// The commands go to the shell unchanged; curl says the status because its user's settings ask for it.
	settings := "silent\nshow-error\nwrite-out = \"%{stderr}HTTP %{http_code}\"\n"
	if err := os.WriteFile(filepath.Join(home, ".curlrc"), []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, c := range commands {
		t.Run(fmt.Sprintf("%d %s", i, c.comment), func(t *testing.T) { c.run(t, x, home) })
	}
	for i, c := range links(demo.stdout.String()) {
		t.Run(fmt.Sprintf("link %d %s", i, c.comment), func(t *testing.T) { c.open(t, x) })
	}
	t.Run("Ctrl-C", func(t *testing.T) {
		ids := operations(r)
		if len(jobProcesses(t, ids...)) == 0 {
			t.Fatal("no job runs")
		}
		if err := demo.cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the demo ends", 20*time.Second, func() error {
			if demo.running() == nil {
				return errors.New("it runs")
			}
			return nil
		})
		if code := demo.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("exit code: got %d, want 0", code)
		}
		if left := jobProcesses(t, ids...); len(left) > 0 {
			t.Errorf("processes of jobs are left: %v", left)
		}
	})
}

// printedCommand is a line that the demo printed to be pasted, with what its comment promises.
type printedCommand struct {
	comment, line string
	want          string // "" for success, an HTTP status, or the name of a gRPC one
	endless       bool
}

var (
	pasteable = regexp.MustCompile(`^([A-Z_]+=\S+ )*(curl|grpcurl|yt) `)
	promised  = regexp.MustCompile(`: (\d{3}|[A-Z][a-z]+[A-Za-z]*)(?:;|$)`)
	// A call that fails prints "Code: NotFound"; where reflection fails before it, the message has "code = NotFound".
	grpcStatus = regexp.MustCompile(`(?:Code: |code = )([A-Za-z]+)`)
	styles     = regexp.MustCompile(`\x1b\[[0-9;]*m`)
)

// printedCommands finds the commands. A comment stands for all commands up to the next one, and names their outcomes in
// their order.
func printedCommands(printed string) (commands []printedCommand) {
	var comment string
	var outcomes []string
	for line := range strings.Lines(styles.ReplaceAllString(printed, "")) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "# "):
			comment, outcomes = line[2:], nil
			for _, m := range promised.FindAllStringSubmatch(comment, -1) {
				outcomes = append(outcomes, m[1])
			}
		case line == "":
			comment, outcomes = "", nil
		case pasteable.MatchString(line):
			c := printedCommand{comment: comment, line: line, endless: strings.Contains(comment, "Ctrl-C ends it")}
			if len(outcomes) > 0 {
				c.want, outcomes = outcomes[0], outcomes[1:]
			}
			commands = append(commands, c)
		}
	}
	return commands
}

// links finds the addresses that are printed to be opened in a browser.
func links(printed string) (found []printedCommand) {
	var comment string
	for line := range strings.Lines(styles.ReplaceAllString(printed, "")) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "# "):
			comment = line[2:]
		case strings.HasPrefix(line, "http://"):
			c := printedCommand{comment: comment, line: line, want: "200"}
			if strings.Contains(comment, "may not") {
				c.want = "403"
			}
			found = append(found, c)
		}
	}
	return found
}

// open follows a link as a browser does, with a cookie jar, and says at which page it ends.
func (c printedCommand) open(t *testing.T, x tools) {
	t.Helper()
	r := x.shell(t.Context(), t, t.TempDir(), []string{"LINK=" + c.line},
		`curl -sSL -b jar -c jar -H 'Accept: text/html' -o page -w '%{http_code}' "$LINK"`)
	if r.stdout != c.want {
		t.Errorf("%s\ngot %q, want %q\n%s", c.line, r.stdout, c.want, tail(r.stderr))
	}
}

func (c printedCommand) run(t *testing.T, x tools, home string) {
	t.Helper()
	if c.endless {
		c.runEndless(t, x, home)
		return
	}
	r := x.shell(t.Context(), t, home, nil, c.line)
	var got, want string
	switch {
	case strings.HasPrefix(c.line, "curl "):
		_, got, _ = strings.Cut(r.stderr, "HTTP ")
		if want = c.want; want == "" {
			want = "200"
		}
	case strings.HasPrefix(c.line, "grpcurl ") && c.want != "":
		if m := grpcStatus.FindStringSubmatch(r.stderr + r.stdout); m != nil {
			got = m[1]
		}
		want = c.want
	default:
		got, want = strconv.Itoa(r.code), "0"
	}
	if got != want {
		t.Errorf("%s\ngot %q, want %q\n%s%s", c.line, got, want, tail(r.stdout), tail(r.stderr))
	}
}

// runEndless takes an endless answer's beginning and presses Ctrl-C.
func (c printedCommand) runEndless(t *testing.T, x tools, home string) {
	t.Helper()
	p := start(t, home, x.environment(home), "sh", "-c", "exec "+c.line)
	eventually(t, "two events", 10*time.Second, func() error {
		if err := p.running(); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(p.stdout.String(), "\ndata:") + strings.Count(p.stdout.String(), "\nevent:"); n < 2 {
			return fmt.Errorf("it has printed %q", p.stdout.String())
		}
		return nil
	})
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	<-p.done
}

// TestE2EPrintedInstallation starts the demo as a bare cluster and pastes what it prints: an administrator installs the
// proxy, alice launches a service, and its address appears.
func TestE2EPrintedInstallation(t *testing.T) {
	x := newTools(t)
	demo, _ := startDemo(t, x, "--cluster-only")
	eventually(t, "the demo has printed all", 10*time.Second, func() error {
		if !strings.Contains(demo.stdout.String(), "Ctrl-C ends it all") {
			return errors.New("its last line is missing")
		}
		return nil
	})
	var admin []string // what is pasted into one terminal, one after the other
	var serve, launch, read string
	for line := range strings.Lines(styles.ReplaceAllString(demo.stdout.String(), "")) {
		line = strings.TrimSpace(line)
		switch {
		case strings.Contains(line, "task-proxy serve"):
			serve = strings.Replace(line, "go run ./cmd/task-proxy", "exec task-proxy", 1) // built once is enough
		case strings.Contains(line, " yt vanilla "):
			launch = line
		case strings.HasPrefix(line, "yt read-table"):
			read = line
		case strings.HasPrefix(line, "export "), strings.HasPrefix(line, "yt "), strings.HasPrefix(line, "("):
			admin = append(admin, line)
		}
	}
	if len(admin) < 6 || serve == "" || launch == "" || read == "" {
		t.Fatalf("not all commands were found in\n%s", demo.stdout.String())
	}
	dir := t.TempDir()
	export := admin[0]
	if r := x.shell(t.Context(), t, dir, nil, "set -ex\n"+strings.Join(admin, "\n")); r.code != 0 {
		t.Fatalf("exit code %d\n%s", r.code, tail(r.stderr))
	}
	free := []string{"TASK_PROXY_LISTEN=127.0.0.1:0", "TASK_PROXY_ADMIN_LISTEN=127.0.0.1:0", "TASK_PROXY_SHUTDOWN_DELAY=0s"}
	proxy := start(t, dir, x.environment(dir, free...), "sh", "-c", serve)
	// exec, so that the end of the test reaches yt itself.
	vanilla := start(t, dir, x.environment(dir), "sh", "-c", export+"\n"+strings.Replace(launch, " yt ", " exec yt ", 1))
	eventually(t, "the service is in the table", tableWritten, func() error {
		if err := proxy.running(); err != nil {
			t.Fatal(err)
		}
		// With --async it ends once the operation has started.
		if err := vanilla.running(); err != nil && !vanilla.cmd.ProcessState.Success() {
			t.Fatal(err)
		}
		r := x.shell(t.Context(), t, dir, nil, export+"\n"+read)
		if !strings.Contains(r.stdout, `"example_http_server"`) {
			return fmt.Errorf("exit code %d, %s%s", r.code, r.stdout, tail(r.stderr))
		}
		return nil
	})
}

// TestE2EKilled kills the demo without a warning, as a machine short of memory does, while it runs jobs that resist:
// one that ignores SIGTERM, with a child in the background that holds its output open.
func TestE2EKilled(t *testing.T) {
	x := newTools(t)
	demo, r := startDemo(t, x, "--cluster-only")
	s := &stage{tools: x, dir: t.TempDir(), cluster: r.Cluster, people: map[string]person{}}
	for _, u := range r.Users {
		s.people[u.Login] = person{token: u.Token}
	}
	const launch = `yt vanilla --async --tasks '{stubborn={job_count=2; command="trap \"\" TERM HUP INT; sleep 1000 & sleep 1000"; port_count=1}}' --spec '{}'`
	operation := strings.Trim(strings.TrimSpace(s.ok(t, "alice", launch)), `"`)
	t.Cleanup(func() {
		for _, pid := range jobProcesses(t, operation) { // none, if this passes
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	eventually(t, "jobs and their children run", 20*time.Second, func() error {
		if n := len(jobProcesses(t, operation)); n < 6 {
			return fmt.Errorf("operation %s has %d processes, want a shell and two sleeps of two jobs", operation, n)
		}
		return nil
	})
	if err := demo.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-demo.done
	eventually(t, "no process of a job is left", 15*time.Second, func() error {
		if left := jobProcesses(t, operation); len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
}

func operations(r ready) (ids []string) {
	for _, service := range r.Services {
		ids = append(ids, service.OperationID)
	}
	return ids
}
