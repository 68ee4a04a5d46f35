//go:build e2e

package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// tools are the programs that callers and admins use and that we did not write, and our own commands, freshly built.
type tools struct {
	bin  string // a directory with all of them, first on the PATH of every command
	root string // the repository
}

func newTools(t *testing.T) tools {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(t.TempDir(), "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	missing := false
	for variable, name := range map[string]string{"YT_CLI": "yt", "GRPCURL": "grpcurl"} {
		path := os.Getenv(variable)
		if info, err := os.Stat(path); path == "" || err != nil || info.Mode()&0o111 == 0 {
			t.Errorf("%s=%q is no program: set it to the path of %s, or run `make e2e`, which installs it", variable, path, name)
			missing = true
			continue
		}
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"curl", "python3", "go"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Errorf("%s is not on the PATH: install it", name)
			missing = true
		}
	}
	if missing {
		t.FailNow()
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin+"/", "./cmd/demo", "./cmd/task-proxy")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build demo and task-proxy: %v\n%s", err, out)
	}
	return tools{bin: bin, root: root}
}

// environment is all that a command sees of the test's: nothing of the user's own YTsaurus settings.
func (x tools) environment(home string, more ...string) []string {
	return append([]string{
		"PATH=" + x.bin + string(os.PathListSeparator) + os.Getenv("PATH"),
		"HOME=" + home,
		"TMPDIR=" + os.TempDir(),
		"LANG=C.UTF-8",
		"NO_PROXY=*",
	}, more...)
}

// process is a running program. Its output is kept, and shown when the test fails.
type process struct {
	name   string
	cmd    *exec.Cmd
	stdout output
	stderr output
	done   chan struct{} // closed when it ended; cmd.ProcessState tells how
}

// start runs a program until the test ends, when it gets SIGTERM and, much later, SIGKILL.
func start(t *testing.T, dir string, env []string, name string, args ...string) *process {
	t.Helper()
	p := &process{name: filepath.Base(name), done: make(chan struct{})}
	p.cmd = exec.Command(name, args...) // without a context: stop begins with SIGTERM
	p.cmd.Dir, p.cmd.Env = dir, env
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	// What it leaves behind may hold its output open: don't wait for that for ever.
	p.cmd.WaitDelay = 10 * time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", p.name, err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // the exit status is asked of ProcessState
	}()
	t.Cleanup(func() {
		p.stop(t)
		if t.Failed() {
			t.Logf("%s printed:\n%s\nand to stderr:\n%s", p.name, tail(p.stdout.String()), tail(p.stderr.String()))
		}
	})
	return p
}

// stop ends the program as Ctrl-C or a service manager would, and fails the test if it doesn't end.
func (p *process) stop(t *testing.T) {
	t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		t.Errorf("%s does not end after SIGTERM", p.name)
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// running returns an error when the program has ended.
func (p *process) running() error {
	select {
	case <-p.done:
		return errors.New(p.name + " has ended: " + p.cmd.ProcessState.String() + "\n" + tail(p.stderr.String()))
	default:
		return nil
	}
}

func tail(s string) string {
	const most = 6000
	if len(s) > most {
		return "…" + s[len(s)-most:]
	}
	return s
}

// output is a buffer that is read while a program writes to it.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// errNotYet is an answer to ask again after: the service is not there yet.
var errNotYet = errors.New("not yet")

// eventually asks until the answer is nil or the time is up.
func eventually(t *testing.T, what string, limit time.Duration, ask func() error) {
	t.Helper()
	began := time.Now()
	for {
		err := ask()
		if err == nil {
			t.Logf("%s: after %s", what, time.Since(began).Round(10*time.Millisecond))
			return
		}
		if time.Since(began) > limit {
			t.Fatalf("%s: not within %s; at last: %v", what, limit, err)
		}
		time.Sleep(100 * time.Millisecond) // between two questions
	}
}

// ready is what the demo writes to --ready-file.
type ready struct {
	Proxy      string `json:"proxy"`
	Admin      string `json:"admin"`
	Cluster    string `json:"cluster"`
	BaseDomain string `json:"base_domain"`
	Users      []struct {
		Login      string `json:"login"`
		Token      string `json:"token"`
		CookieName string `json:"cookie_name"`
		Cookie     string `json:"cookie"`
	} `json:"users"`
	Services []service `json:"services"`
}

// service is a row of the services table.
type service struct {
	Domain      string `json:"domain"`
	OperationID string `json:"operation_id"`
	TaskName    string `json:"task_name"`
	Service     string `json:"service"`
	Protocol    string `json:"protocol"`
}

// startDemo starts the demo on free ports and waits until it says that all answers.
func startDemo(t *testing.T, x tools, flags ...string) (*process, ready) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "ready.json")
	args := append([]string{
		"--cluster-listen", "127.0.0.1:0", "--state-dir", filepath.Join(dir, "state"), "--ready-file", file,
	}, flags...)
	p := start(t, dir, x.environment(dir), filepath.Join(x.bin, "demo"), args...)
	var r ready
	eventually(t, "demo is ready", time.Minute, func() error {
		if err := p.running(); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		return json.Unmarshal(content, &r)
	})
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("ready file has tokens in it and mode %o, want 600", info.Mode().Perm())
	}
	return p, r
}

// result is how a command ended.
type result struct {
	stdout, stderr string
	code           int
}

// shell runs a command as somebody pastes it into a terminal.
func (x tools) shell(ctx context.Context, t *testing.T, dir string, env []string, command string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Dir, cmd.Env = dir, x.environment(dir, env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		t.Fatalf("%s\ndid not end within a minute; printed:\n%s\n%s", command, tail(stdout.String()), tail(stderr.String()))
	case err != nil && !errors.As(err, &exit):
		t.Fatalf("%s\n%v", command, err)
	}
	return result{stdout: stdout.String(), stderr: stderr.String(), code: cmd.ProcessState.ExitCode()}
}

// jobProcesses finds the processes of operations by the variable that every job has and hands down.
func jobProcesses(t *testing.T, operationIDs ...string) (pids []int) {
	t.Helper()
	entries, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		environ, err := os.ReadFile(entry)
		if err != nil {
			continue // it ended, or is somebody else's
		}
		for variable := range strings.SplitSeq(string(environ), "\x00") {
			id, ok := strings.CutPrefix(variable, "YT_OPERATION_ID=")
			if ok && slices.Contains(operationIDs, id) {
				if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(entry))); err == nil {
					pids = append(pids, pid)
				}
			}
		}
	}
	return pids
}

// status asks with GET and returns only the status.
func status(ctx context.Context, url string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}
