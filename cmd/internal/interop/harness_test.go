//go:build e2e

package interop_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"taskproxy/discovery"
	"taskproxy/examples/job"
	"taskproxy/ytclient/ytlocal"
)

// httpJob is the first argument with which the tests' executable is a job that answers HTTP.
const httpJob = "http-job"

// scratch is where the product is built; it goes with the process.
var scratch string

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == httpJob {
		job.Main(serveFiles)
		os.Exit(0)
	}
	var err error
	if scratch, err = os.MkdirTemp("", "interop"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(scratch)
	os.Exit(code)
}

// product builds the product, once for all tests.
var product = sync.OnceValues(func() (string, error) {
	path := filepath.Join(scratch, "task-proxy")
	build := exec.Command("go", "build", "-o", path, "./cmd/task-proxy")
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build task-proxy: %w\n%s", err, out)
	}
	return path, nil
})

// program is the path of a program that `make e2e` installs, from the environment.
func program(t *testing.T, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if info, err := os.Stat(path); path == "" || err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
		t.Fatalf("%s=%q is no program: run `make e2e`, which installs it and sets this", variable, path)
	}
	return path
}

// patience is how long a test waits for what has no time limit of its own.
const patience = 30 * time.Second

const baseDomain = "task-proxy.localhost"

// world is a local cluster and the product beside it, as a process.
type world struct {
	cluster *ytlocal.Cluster
	alice   ytlocal.User
	proxy   string // host:port of the public listener
	admin   string // and of the one with the metrics
	pid     int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	local, err := ytlocal.Start(ytlocal.Config{
		StateDir:   t.TempDir(),
		JobEnviron: []string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "LISTEN_HOST=127.0.0.1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := local.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &world{cluster: local}
	if w.alice, err = local.AddUser("alice"); err != nil {
		t.Fatal(err)
	}
	w.startProduct(t)
	return w
}

// startProduct returns when the product listens; it ends with the test, by SIGTERM.
func (w *world) startProduct(t *testing.T) {
	t.Helper()
	binary, err := product()
	if err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(w.cluster.RootToken()), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "serve", "--yt-proxy", w.cluster.URL(), "--yt-token-path", token, "--base-domain", baseDomain+","+plainDomain,
		"--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--debug-listen=", "--log-format", "json",
		"--discovery-period", "1s", "--shutdown-delay", "0s", "--shutdown-timeout", "5s")
	log := new(output)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("task-proxy: %v", err)
			}
		case <-time.After(patience):
			_ = cmd.Process.Kill()
			t.Errorf("task-proxy does not end after SIGTERM; killed: %v", <-ended)
		}
		if strings.Contains(log.String(), w.alice.Token) {
			t.Error("the caller's token is in the log of task-proxy")
		}
		if t.Failed() {
			t.Logf("task-proxy logged:\n%s", tail(log.String()))
		}
	})
	w.pid = cmd.Process.Pid
	eventually(t, "task-proxy listens", func() error {
		for line := range strings.Lines(log.String()) {
			var record struct {
				Msg, Listen string
				Admin       string `json:"admin_listen"`
			}
			if json.Unmarshal([]byte(line), &record) == nil && record.Msg == "serving" {
				w.proxy, w.admin = record.Listen, record.Admin
				return nil
			}
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("task-proxy ended: %v\n%s", err, log)
		default:
		}
		return errors.New(`no record "serving" in its log`)
	})
}

// endpoint is a service with one job, and both ways to it.
type endpoint struct {
	id     string // the first label of its domain
	domain string
	direct string // host:port of the job
}

// launch starts an operation of alice's with one task and one job, which serves at YT_PORT_0, and returns when it answers
// through the proxy.
func (w *world) launch(t *testing.T, task, protocol, command string) endpoint {
	t.Helper()
	operation, err := w.cluster.Scheduler().Start(w.alice.Login, map[string]any{
		"tasks": map[string]any{task: map[string]any{"job_count": int64(1), "port_count": int64(1), "command": "exec " + command}},
		"annotations": map[string]any{"task_proxy": map[string]any{"enabled": true, "tasks_info": map[string]any{
			task: map[string]any{"server": map[string]any{"protocol": protocol, "port_index": int64(0)}},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	e := endpoint{id: discovery.ShortID(operation, task, "server")}
	e.domain = e.id + "." + baseDomain
	eventually(t, task+" listens", func() error {
		jobs, err := w.cluster.Scheduler().Jobs(operation)
		if err != nil {
			t.Fatal(err)
		}
		if len(jobs) != 1 || jobs[0].State != "running" {
			return fmt.Errorf("its jobs: %+v", jobs)
		}
		host, _, err := net.SplitHostPort(jobs[0].Address)
		if err != nil {
			t.Fatal(err)
		}
		e.direct = net.JoinHostPort(host, strconv.Itoa(jobs[0].Ports[0]))
		conn, err := net.DialTimeout("tcp", e.direct, time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	eventually(t, task+" is found by the proxy", func() error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+w.proxy+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+w.alice.Token)
		req.Header.Set("X-Yt-Taskproxy-Id", e.id)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body)
		// A gRPC server answers this GET in its own way, which is an answer, too.
		if reason := res.Header.Get("X-Yt-Taskproxy-Error"); reason != "" && reason != "protocol_mismatch" {
			return fmt.Errorf("%s %s", res.Status, reason)
		}
		return nil // whatever the job says to this
	})
	return e
}

// startBare serves the handler by net/http alone, in the protocols of the public listener, and returns its host:port.
func startBare(t *testing.T, handler http.Handler) string {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // what is asked of it may be wrong on purpose
	server.Start()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// eventually asks until the answer is nil or patience ends.
func eventually(t *testing.T, what string, ask func() error) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) { // between two questions
		err := ask()
		if err == nil {
			return
		}
		if time.Since(began) > patience {
			t.Fatalf("%s: not within %s; at last: %v", what, patience, err)
		}
	}
}

// result is how a program ended.
type result struct {
	stdout, stderr string
	code           int
}

// run runs a program to its end, and fails the test if that takes longer than a minute.
func run(t *testing.T, dir string, env []string, name string, args ...string) result {
	t.Helper()
	return runFor(t, time.Minute, dir, env, name, args...)
}

func runFor(t *testing.T, limit time.Duration, dir string, env []string, name string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "LANG=C.UTF-8", "NO_PROXY=*"}, env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		t.Fatalf("%s %q did not end in time; printed:\n%s\n%s", name, args, tail(stdout.String()), tail(stderr.String()))
	case err != nil && !errors.As(err, &exit):
		t.Fatalf("%s: %v", name, err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
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
