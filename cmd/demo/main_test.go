package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain lets the test's executable be the samples' jobs, as the demo's own is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == jobCommand {
		main()
	}
	goleak.VerifyTestMain(m)
}

// running is a demo that was started by startDemo.
type running struct {
	ready  readiness
	stdout *buffer
	stderr *buffer
	// end tells it to end, as Ctrl-C does, and returns its exit code.
	end func() int
}

// startDemo runs the real thing and returns once its ready file is there. Its temporary files go to tmp.
func startDemo(t *testing.T, tmp string, args ...string) *running {
	t.Helper()
	t.Setenv("TMPDIR", tmp)
	readyFile := filepath.Join(t.TempDir(), "ready.json")
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{stdout: new(buffer), stderr: new(buffer)}
	exit := make(chan int, 1)
	go func() { exit <- run(ctx, append(args, "--ready-file="+readyFile), os.Getenv, r.stdout, r.stderr) }()
	r.end = sync.OnceValue(func() int {
		cancel()
		return <-exit
	})
	t.Cleanup(func() {
		r.end()
		if t.Failed() {
			t.Logf("stdout:\n%s\nstderr:\n%s", r.stdout, r.stderr)
		}
	})

	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		data, err := os.ReadFile(readyFile)
		if err == nil {
			// It is put into place whole, so the first look must parse.
			if err := json.Unmarshal(data, &r.ready); err != nil {
				t.Fatalf("the ready file: %v in %q", err, data)
			}
			info, err := os.Stat(readyFile)
			if err != nil || info.Mode().Perm() != 0o600 {
				t.Fatalf("got %v, %v, want a ready file with mode 0600", info, err)
			}
			return r
		}
		select {
		case code := <-exit:
			exit <- code
			t.Fatalf("ended with %d before it was ready", code)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("not ready after a minute")
		}
	}
}

// user returns the user of the ready file.
func (r *running) user(t *testing.T, login string) user {
	t.Helper()
	for _, user := range r.ready.Users {
		if user.Login == login {
			return user
		}
	}
	t.Fatalf("the ready file has no user %q", login)
	return user{}
}

// buffer is written by the demo while the test may read it.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// runToEnd runs the demo with arguments that must make it end by itself.
func runToEnd(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out, err bytes.Buffer
	code = run(ctx, args, os.Getenv, &out, &err)
	if ctx.Err() != nil {
		t.Fatalf("did not end by itself; stdout:\n%s", out.String())
	}
	return code, out.String(), err.String()
}

func TestWrongFlagsAreNamed(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	tests := []struct {
		name string
		args []string
		want string // in the one line on stderr
	}{
		{name: "unknown flag", args: []string{"--frob"}, want: "-frob"},
		{name: "argument", args: []string{"serve"}, want: `"serve"`},
		{name: "no port", args: []string{"--listen=localhost"}, want: `--listen: "localhost"`},
		{name: "wrong port", args: []string{"--admin-listen=:99999"}, want: `--admin-listen: ":99999"`},
		{name: "no address", args: []string{"--cluster-listen=x"}, want: `--cluster-listen: "x"`},
		{name: "cluster on all interfaces", args: []string{"--cluster-listen=:0"}, want: `--cluster-listen: ":0" is not on loopback`},
		{name: "cluster off loopback", args: []string{"--cluster-listen=10.0.0.1:0"}, want: `--cluster-listen: "10.0.0.1:0" is not on loopback`},
		{name: "empty", args: []string{"--base-domain="}, want: "--base-domain is empty"},
		{name: "no domain", args: []string{"--base-domain=a b"}, want: "--base-domain: "},
		{name: "no boolean", args: []string{"--cluster-only=perhaps"}, want: "-cluster-only"},
		{name: "no sample", args: []string{"job", "frob"}, want: `"frob"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := runToEnd(t, append(test.args, "--ready-file="+file)...)
			if test.args[0] == jobCommand {
				code, stdout, stderr = runToEnd(t, test.args...)
			}
			if code != 2 || stdout != "" {
				t.Errorf("got exit code %d and output %q, want 2 and none", code, stdout)
			}
			if !strings.Contains(stderr, test.want) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("got %q, want one line with %q", stderr, test.want)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := runToEnd(t, "--help")
	if code != 0 || stderr != "" {
		t.Errorf("got exit code %d and stderr %q, want 0 and none", code, stderr)
	}
	for _, flag := range []string{"listen", "admin-listen", "cluster-listen", "base-domain", "cluster-only", "state-dir", "ready-file"} {
		if !strings.Contains(stdout, "-"+flag) {
			t.Errorf("the help does not name --%s", flag)
		}
	}
}

// What is wrong outside of the command line is one line too, and nothing stays behind.
func TestFailuresAreOneLine(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	inUse := taken.Addr().String()
	open := t.TempDir()
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	private := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(private, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		args []string
		want string
	}{
		{name: "proxy's address in use", args: []string{"--listen=" + inUse}, want: inUse},
		{name: "admin address in use", args: []string{"--listen=127.0.0.1:0", "--admin-listen=" + inUse}, want: inUse},
		{name: "cluster's address in use", args: []string{"--cluster-listen=" + inUse}, want: inUse},
		{name: "state for everybody to see", args: []string{"--state-dir=" + open}, want: "--state-dir: " + open + " has mode 0755"},
		{name: "state in a file", args: []string{"--state-dir=" + private}, want: "--state-dir: " + private},
		{name: "state nowhere", args: []string{"--state-dir=" + filepath.Join(open, "no", "such")}, want: "--state-dir: "},
		{name: "ready file nowhere", args: []string{"--ready-file=" + filepath.Join(open, "no", "such")}, want: "--ready-file: "},
		{name: "ready file is a directory", args: []string{"--ready-file=" + open}, want: "--ready-file: " + open},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			tmp := t.TempDir()
			t.Setenv("TMPDIR", tmp)
			code, _, stderr := runToEnd(t, test.args...)
			if code != 1 {
				t.Errorf("got exit code %d, want 1", code)
			}
			if !strings.Contains(stderr, test.want) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("got %q, want one line with %q", stderr, test.want)
			}
			expectEmpty(t, tmp)
			expectNoJobs(t)
		})
	}
}

// Ctrl-C before everything is up is a clean end as well.
func TestEndDuringTheStart(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	for _, until := range []string{"", "cluster up", "services started", "discovered"} {
		t.Run(fmt.Sprintf("after %q", until), func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var stderr buffer
			stdout := &trigger{word: until, fire: cancel}
			stdout.Write(nil)
			code := run(ctx, []string{"--listen=127.0.0.1:0"}, os.Getenv, stdout, &stderr)
			if code != 0 || strings.Contains(stderr.String(), "demo: ") {
				t.Errorf("got exit code %d and stderr %q, want 0 and no failure", code, stderr.String())
			}
			expectEmpty(t, tmp)
			expectNoJobs(t)
		})
	}
}

// trigger fires when the word has been written.
type trigger struct {
	buffer
	word string
	fire func()
}

func (w *trigger) Write(p []byte) (int, error) {
	n, err := w.buffer.Write(p)
	if strings.Contains(w.buffer.String(), w.word) {
		w.fire()
	}
	return n, err
}

// A state directory that was given is kept, and is nobody else's.
func TestStateDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	r := startDemo(t, t.TempDir(), "--cluster-only", "--state-dir="+dir)
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("got %v, %v, want a directory with mode 0700", info, err)
	}
	if code := r.end(); code != 0 {
		t.Errorf("got exit code %d, want 0", code)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("got %v, want the given directory to stay", err)
	}
}

// A fresh cluster has its users and nothing of the proxy's.
func TestClusterOnly(t *testing.T) {
	r := startDemo(t, t.TempDir(), "--cluster-only")
	if r.ready.Proxy != "" || r.ready.Admin != "" || len(r.ready.Services) != 0 {
		t.Errorf("got %+v, want no proxy, no admin, no services", r.ready)
	}
	root := &client{url: r.ready.Cluster, token: r.user(t, "root").Token}
	answer, err := root.query(t.Context(), "exists", map[string]any{"path": proxyDir})
	if err != nil || !strings.Contains(string(answer), "false") {
		t.Errorf("got %s, %v, want no %s", answer, err, proxyDir)
	}
	for _, login := range []string{"alice", "bob"} {
		asUser := &client{url: r.ready.Cluster, token: r.user(t, login).Token}
		if _, err := asUser.query(t.Context(), "get", map[string]any{"path": "//sys/users/" + login + "/@name"}); err != nil {
			t.Errorf("%s: %v", login, err)
		}
	}
	if code := r.end(); code != 0 || r.stderr.String() != "" {
		t.Errorf("got exit code %d and stderr %q, want 0 and none", code, r.stderr)
	}
}

// expectEmpty fails unless nothing is left in the directory.
func expectEmpty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 0 {
		t.Errorf("got %v, %v, want nothing left in the temporary directory", entries, err)
	}
}

// jobProcesses returns the ids of the samples' processes that run now. It knows them where the system has /proc.
func jobProcesses(t *testing.T) (pids []string) {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		command, err := os.ReadFile(line)
		if err == nil && strings.HasPrefix(string(command), executable+"\x00"+jobCommand+"\x00") {
			pids = append(pids, filepath.Base(filepath.Dir(line)))
		}
	}
	return pids
}

// expectNoJobs fails if a sample's process is left.
func expectNoJobs(t *testing.T) {
	t.Helper()
	if pids := jobProcesses(t); len(pids) > 0 {
		t.Errorf("got processes %q, want none left", pids)
	}
}
