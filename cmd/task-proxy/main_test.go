package main

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"taskproxy/ytclient/ytlocal"
)

func TestMain(m *testing.M) {
	if os.Getenv(process) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// buffer is what a process writes while somebody reads it.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// noEnv is a process without variables.
var noEnv []string

func startCluster(t *testing.T, authOff bool) *ytlocal.Cluster {
	t.Helper()
	cluster, err := ytlocal.Start(ytlocal.Config{StateDir: t.TempDir(), AuthOff: authOff})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	return cluster
}

func writeToken(t *testing.T, token string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// What keeps the proxy from starting is told in one last line that names it, and the process ends with an error.
func TestWhatKeepsItFromStarting(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, false)
	open := startCluster(t, true)
	token := writeToken(t, cluster.RootToken())
	unreadable := writeToken(t, "x")
	if err := os.Chmod(unreadable, 0); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() }) // parallel subtests outlive this function
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	silent.Close() // refuses from now on

	tests := []struct {
		name string
		args []string
		code int
		want []string // parts of the last line
		skip bool
	}{
		{"token missing", []string{"--yt-token-path=/does/not/exist"}, 1, []string{"/does/not/exist", "no such file"}, false},
		{"token empty", []string{"--yt-token-path=" + writeToken(t, "\n")}, 1, []string{"is empty"}, false},
		{"token unreadable", []string{"--yt-token-path=" + unreadable}, 1, []string{unreadable, "permission denied"}, os.Geteuid() == 0},
		{"token refused", []string{"--yt-token-path=" + writeToken(t, "nobody's")}, 1, []string{"refuses the robot's token"}, false},
		{"cluster does not answer", []string{"--yt-proxy=" + silent.Addr().String(), "--startup-timeout=0s"}, 1, []string{silent.Addr().String(), "does not answer", "connection refused"}, false},
		{"no cluster there", []string{"--yt-proxy=" + taken.Addr().String(), "--startup-timeout=0s"}, 1, []string{taken.Addr().String(), "does not answer"}, false},
		{"cluster without authentication", []string{"--yt-proxy=" + open.Addr()}, 1, []string{"has no authentication"}, false},
		{"address in use", []string{"--listen=" + taken.Addr().String()}, 1, []string{"--listen", taken.Addr().String(), "address already in use"}, false},
		{"admin address in use", []string{"--admin-listen=" + taken.Addr().String()}, 1, []string{"--admin-listen", taken.Addr().String(), "address already in use"}, false},
		{"debug address in use", []string{"--debug-listen=" + taken.Addr().String()}, 1, []string{"--debug-listen", taken.Addr().String(), "address already in use"}, false},
		{"unknown flag", []string{"--lisen=:80"}, 2, []string{"See task-proxy serve --help."}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.skip {
				t.Skip("root reads everything")
			}
			args := append([]string{"serve", "--yt-proxy=" + cluster.URL(), "--yt-token-path=" + token, "--base-domain=tp.example.net",
				"--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--debug-listen=", "--shutdown-delay=0s"}, tt.args...)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			var stdout, stderr buffer
			if code := run(ctx, args, noEnv, &stdout, &stderr); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
			last := lines[len(lines)-1]
			for _, want := range tt.want {
				if !strings.Contains(last, want) {
					t.Errorf("the last line does not say %q: %s", want, last)
				}
			}
		})
	}
}

func TestServesUntilToldToStop(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, false)
	path := writeToken(t, "\""+cluster.RootToken()+"\"\n") // as the yt command line prints it
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var stderr buffer
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"--yt-proxy=" + cluster.URL(), "--yt-token-path=" + path, "--base-domain=tp.example.net",
			"--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--debug-listen=", "--shutdown-delay=0s", "--log-format=json"}, noEnv, &stderr, &stderr)
	}()
	addr := func(key string) string {
		_, rest, ok := strings.Cut(stderr.String(), `"`+key+`":"`)
		if !ok {
			return ""
		}
		value, _, _ := strings.Cut(rest, `"`)
		return value
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		deadline := time.Now().Add(20 * time.Second)
		for !ok() {
			if time.Now().After(deadline) {
				t.Fatalf("waited in vain until %s; the log:\n%s", what, &stderr)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	status := func(url, token string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "OAuth "+token)
		}
		req.Header.Set("X-Yt-Taskproxy-Id", "00000000")
		res, err := client.Do(req)
		if err != nil {
			return 0
		}
		res.Body.Close()
		return res.StatusCode
	}
	until("it serves", func() bool { return addr("listen") != "" })
	until("it is ready", func() bool { return status("http://"+addr("admin_listen")+"/readyz", "") == 200 })
	for token, want := range map[string]int{"": 401, "nobody's": 401, cluster.RootToken(): 404} {
		if got := status("http://"+addr("listen")+"/", token); got != want {
			t.Errorf("status %d, want %d", got, want)
		}
	}
	stop()
	select {
	case c := <-code:
		if c != 0 {
			t.Errorf("exit code %d, want 0", c)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it does not stop")
	}
	if strings.Contains(stderr.String(), cluster.RootToken()) {
		t.Error("the log shows the robot's token")
	}
}

func TestCommands(t *testing.T) {
	t.Parallel()
	tests := []struct {
		args []string
		code int
		out  string
	}{
		{[]string{"version"}, 0, "task-proxy dev go"},
		{[]string{"--version"}, 0, "task-proxy dev go"},
		{[]string{"help"}, 0, "--base-domain"},
		{[]string{"serve", "--help"}, 0, "--base-domain"},
		{[]string{"--help"}, 0, "--base-domain"},
		{[]string{"serve", "--dry-run", "-namespace=yt", "--yt-token-path=/none", "--base-domain=x.example.net"}, 0, "--yt-proxy=http-proxies-lb.yt.svc.cluster.local "},
		{[]string{"serve", "--dry-run", "--yt-token-path=/none"}, 2, "--base-domain (or TASK_PROXY_BASE_DOMAIN) is required"},
		{[]string{"server"}, 2, `unknown command "server"`},
		{nil, 2, "--yt-proxy (or TASK_PROXY_YT_PROXY) is required"},
		{[]string{"check"}, 2, "--base-domain (or TASK_PROXY_BASE_DOMAIN) is required"},
		{[]string{"check", "--help"}, 0, "task-proxy check [flags]"},
	}
	for _, tt := range tests {
		var out bytes.Buffer
		if code := run(t.Context(), tt.args, noEnv, &out, &out); code != tt.code || !strings.Contains(out.String(), tt.out) {
			t.Errorf("%q: exit code %d, output %q; want %d and %q", tt.args, code, out.String(), tt.code, tt.out)
		}
	}
}

// The exit code of check is for scripts: root lacks nothing, a new user nearly everything.
func TestCheck(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, false)
	nobody, err := cluster.AddUser("nobody")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path string
		code int
		out  string
	}{
		{writeToken(t, cluster.RootToken()), 0, "EXCESS   root is a superuser"},
		{writeToken(t, nobody.Token), 1, "MISSING  read on //sys/operations"},
		{writeToken(t, "nobody's"), 1, "MISSING  a token that"},
		{"/does/not/exist", 1, "/does/not/exist"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), []string{"check", "--yt-proxy=" + cluster.URL(), "--base-domain=tp.example.net", "--yt-token-path=" + tt.path}, noEnv, &stdout, &stderr)
		if all := stdout.String() + stderr.String(); code != tt.code || !strings.Contains(all, tt.out) {
			t.Errorf("exit code %d, want %d and %q:\n%s", code, tt.code, tt.out, all)
		}
	}
}

// process is the environment variable that makes the test's executable the product.
const process = "TEST_AS_TASK_PROXY"

// The first signal ends the process in its time, with exit code 0; the second one at once.
func TestSignals(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, false)
	token := writeToken(t, cluster.RootToken())
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, delay string
		signals     int
	}{
		{"one", "0s", 1},
		{"two", "10m", 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			var stderr buffer
			p := exec.CommandContext(ctx, executable, "--yt-proxy="+cluster.URL(), "--yt-token-path="+token, "--base-domain=tp.example.net",
				"--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--debug-listen=", "--shutdown-delay="+tt.delay, "--log-format=json")
			p.Env, p.Stderr = append(os.Environ(), process+"=1"), &stderr
			if err := p.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- p.Wait() }()
			until := func(message string) {
				t.Helper()
				for !strings.Contains(stderr.String(), `"msg":"`+message+`"`) {
					select {
					case err := <-ended:
						t.Fatalf("it ended: %v\n%s", err, &stderr)
					case <-time.After(10 * time.Millisecond):
					}
				}
			}
			until("serving")
			if err := p.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if tt.signals == 1 {
				if err := <-ended; err != nil || !strings.Contains(stderr.String(), `"msg":"shut down"`) {
					t.Errorf("%v\n%s", err, &stderr)
				}
				return
			}
			until("shutting down")
			for {
				_ = p.Process.Signal(syscall.SIGTERM) // one that comes within microseconds of the first is the same to it
				select {
				case err := <-ended:
					status, ok := p.ProcessState.Sys().(syscall.WaitStatus)
					if ctx.Err() != nil || !ok || !status.Signaled() || status.Signal() != syscall.SIGTERM {
						t.Errorf("it ended otherwise than by the second signal: %v", err)
					}
					return
				case <-time.After(100 * time.Millisecond):
				}
			}
		})
	}
}

// A variable that nobody reads is a typo, and ends the process before it begins.
func TestUnknownVariable(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	args := []string{"--yt-proxy=127.0.0.1:1", "--yt-token-path=/none", "--base-domain=x.example.net", "--dry-run"}
	code := run(t.Context(), args, []string{"TASK_PROXY_LISTN=:1"}, &out, &out)
	if want := "TASK_PROXY_LISTN: no flag has this variable; is TASK_PROXY_LISTEN meant?"; code != 2 || !strings.Contains(out.String(), want) {
		t.Errorf("exit code %d, output %q; want 2 and %q", code, out.String(), want)
	}
}
