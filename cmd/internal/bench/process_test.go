package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"taskproxy/discovery"
	"taskproxy/examples/grpc-service/greeter"
	"taskproxy/examples/job"
	"taskproxy/ytclient/ytlocal"
)

// jobArgument is the first argument with which the benchmarks' executable is a job.
const jobArgument = "job"

const (
	base = "task-proxy.localhost"
	// patience is how long is waited for what has no time limit of its own.
	patience = 30 * time.Second
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == jobArgument {
		job.Main(serve)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// largeBody is how long the body of /large is, and largeWrite how much of it the job writes at a time.
const (
	largeBody  = 16 << 20
	largeWrite = 1 << 20
)

var large [largeWrite]byte

// serve is the job: 1 KiB over HTTP and a silent WebSocket at its first port, gRPC at its second.
func serve(ctx context.Context, info job.Info, listener net.Listener) error {
	rpc, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", os.Getenv("YT_PORT_1")))
	if err != nil {
		return err
	}
	page := []byte(strings.Repeat("0123456789abcdef", 64))
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write(page)
	})
	mux.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", strconv.Itoa(largeBody))
		for range largeBody / largeWrite {
			if _, err := w.Write(large[:]); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/socket", func(w http.ResponseWriter, r *http.Request) {
		if c, err := websocket.Accept(w, r, nil); err == nil {
			_, _, _ = c.Read(ctx)
			_ = c.CloseNow()
		}
	})
	ended := make(chan error, 1)
	go func() { ended <- greeter.Serve(ctx, info, rpc) }()
	return errors.Join(job.ServeHTTP(ctx, listener, mux), <-ended)
}

// product is a proxy that runs, and the two services of one job behind it.
type product struct {
	tb                   testing.TB
	pid                  int
	public, admin, debug string // addresses
	token                string // of a user who may read the operation
	web, rpc             string // hosts of the services
	accessLog            string // a file
	mallocsPerLook       float64
}

// start builds the product and starts it, with everything on that is on in a cluster.
func start(tb testing.TB) *product {
	tb.Helper()
	dir := tb.TempDir()
	executable := filepath.Join(dir, "task-proxy")
	build := exec.Command("go", "build", "-trimpath", "-o", executable, "taskproxy/cmd/task-proxy")
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("build task-proxy: %v\n%s", err, out)
	}
	cluster, err := ytlocal.Start(ytlocal.Config{
		StateDir:   filepath.Join(dir, "cluster"),
		JobEnviron: []string{"PATH=" + os.Getenv("PATH"), "LISTEN_HOST=127.0.0.1"},
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := cluster.Close(); err != nil {
			tb.Error(err)
		}
	})
	alice, err := cluster.AddUser("alice")
	if err != nil {
		tb.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	id, err := cluster.Scheduler().Start("alice", map[string]any{
		"tasks": map[string]any{"server": map[string]any{
			"job_count": int64(1), "port_count": int64(2), "command": fmt.Sprintf("exec '%s' %s", self, jobArgument),
		}},
		"annotations": map[string]any{"task_proxy": map[string]any{"enabled": true, "tasks_info": map[string]any{"server": map[string]any{
			"web": map[string]any{"port_index": int64(0)},
			"rpc": map[string]any{"port_index": int64(1), "protocol": "grpc"},
		}}}},
	})
	if err != nil {
		tb.Fatal(err)
	}
	robot := filepath.Join(dir, "token")
	if err := os.WriteFile(robot, []byte(cluster.RootToken()), 0o600); err != nil {
		tb.Fatal(err)
	}
	p := &product{
		tb: tb, token: alice.Token, accessLog: filepath.Join(dir, "log"),
		web: discovery.Domain(discovery.ShortID(id, "server", "web"), base), rpc: discovery.Domain(discovery.ShortID(id, "server", "rpc"), base),
	}
	output, err := os.Create(p.accessLog)
	if err != nil {
		tb.Fatal(err)
	}
	defer output.Close()
	// Between two cycles of discovery nothing allocates but requests.
	run := exec.Command(executable, "serve", "--yt-proxy="+cluster.URL(), "--yt-token-path="+robot, "--base-domain="+base, "--listen=127.0.0.1:0",
		"--admin-listen=127.0.0.1:0", "--debug-listen=127.0.0.1:0", "--discovery-period=1h", "--log-format=json", "--shutdown-delay=0s")
	run.Env = append(os.Environ(), "GOMEMLIMIT=512MiB") // as in a container
	run.Stderr = output
	if err := run.Start(); err != nil {
		tb.Fatal(err)
	}
	p.pid = run.Process.Pid
	tb.Cleanup(func() {
		_ = run.Process.Signal(syscall.SIGTERM)
		if err := run.Wait(); err != nil {
			tb.Errorf("the product ended with: %v", err)
		}
	})
	p.until("it listens", func() bool {
		text, _ := os.ReadFile(p.accessLog)
		for key, at := range map[string]*string{"listen": &p.public, "admin_listen": &p.admin, "debug_listen": &p.debug} {
			_, rest, _ := strings.Cut(string(text), `"`+key+`":"`)
			*at, _, _ = strings.Cut(rest, `"`)
		}
		return p.debug != ""
	})
	return p
}

// until waits for something that must become so.
func (p *product) until(what string, ok func() bool) {
	p.tb.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.tb.Fatalf("waited in vain until %s", what)
		}
	}
}

// request is what a script sends.
func (p *product) request(path string) *http.Request {
	r, err := http.NewRequestWithContext(p.tb.Context(), http.MethodGet, "http://"+p.public+path, nil)
	if err != nil {
		p.tb.Fatal(err)
	}
	r.Host = p.web
	r.Header.Set("Authorization", "OAuth "+p.token)
	return r
}

// mallocs is how many objects the process has allocated so far, those for telling so left out.
func (p *product) mallocs() float64 {
	p.tb.Helper()
	if p.mallocsPerLook == 0 {
		p.allMallocs() // the connection, and whatever is made once
		first := p.allMallocs()
		p.mallocsPerLook = p.allMallocs() - first
	}
	return p.allMallocs() - p.mallocsPerLook
}

// allMallocs is how many objects the process has allocated so far.
func (p *product) allMallocs() float64 {
	const name = "go_memstats_mallocs_total"
	p.tb.Helper()
	r, err := http.NewRequestWithContext(p.tb.Context(), http.MethodGet, "http://"+p.admin+"/metrics", nil)
	if err != nil {
		p.tb.Fatal(err)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		p.tb.Fatal(err)
	}
	defer res.Body.Close()
	content, err := io.ReadAll(res.Body)
	if err != nil {
		p.tb.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(content), "\n"+name+" ")
	if !ok {
		p.tb.Fatalf("no metric %s", name)
	}
	line, _, _ := strings.Cut(rest, "\n")
	value, err := strconv.ParseFloat(line, 64)
	if err != nil {
		p.tb.Fatal(err)
	}
	return value
}

// memory is what the system holds for the process, in bytes: its part of shared pages, and all of its own (proc_pid_smaps(5)).
func (p *product) memory() float64 {
	p.tb.Helper()
	file, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", p.pid))
	if err != nil {
		p.tb.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "Pss:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			if err != nil {
				p.tb.Fatal(err)
			}
			return kib * 1024
		}
	}
	p.tb.Fatal("smaps_rollup has no Pss")
	return 0
}

// unexpected is an answer that is none of ours.
type unexpected struct {
	status string
	bytes  int64
	err    error
}

func (u *unexpected) Error() string {
	return fmt.Sprintf("got %s with %d bytes (%v), want 200 with 1024", u.status, u.bytes, u.err)
}

// profilesVariable names a directory for profiles of allocations, before and after each benchmark of them. With GODEBUG=memprofilerate=1
// nothing is left out, and `go tool pprof -sample_index=alloc_objects -diff_base http.before -list ServeHTTP http.after` tells it by the line.
const profilesVariable = "PROFILES"

// profile keeps what the process has allocated so far, if anybody wants to know.
func (p *product) profile(name string) {
	dir := os.Getenv(profilesVariable)
	if dir == "" {
		return
	}
	r, err := http.NewRequestWithContext(p.tb.Context(), http.MethodGet, "http://"+p.debug+"/debug/pprof/allocs?gc=1", nil)
	if err != nil {
		p.tb.Fatal(err)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		p.tb.Fatal(err)
	}
	defer res.Body.Close()
	content, err := io.ReadAll(res.Body)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name), content, 0o600)
	}
	if err != nil {
		p.tb.Fatal(err)
	}
}

// cpu is the time that the process has worked so far, in user and in kernel mode (proc_pid_stat(5)).
func (p *product) cpu() time.Duration {
	p.tb.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	if err != nil {
		p.tb.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(content), ") ") // the name may have spaces
	fields := strings.Fields(rest)
	var ticks float64
	for _, field := range fields[11:13] { // utime and stime
		n, err := strconv.ParseFloat(field, 64)
		if err != nil {
			p.tb.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks * float64(time.Second/100)) // USER_HZ is 100 wherever Go runs
}
