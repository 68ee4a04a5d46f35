package serve

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"taskproxy/ytclient/ytlocal"
	"taskproxy/ytclient/ytlocal/scheduler"
)

// process is a proxy that Run serves, and all that it says.
type process struct {
	Addresses
	log   *buffer
	token string // the file with the robot's
	stop  func() // and wait until it has ended
}

// startProcess runs the proxy on free ports before the cluster, as its robot. It ends with the test.
func startProcess(t *testing.T, cluster *ytlocal.Cluster, robot string, args ...string) *process {
	t.Helper()
	return startEdited(t, cluster, robot, func(*Config) {}, args...)
}

// startEdited is startProcess with what no flag says.
func startEdited(t *testing.T, cluster *ytlocal.Cluster, robot string, edit func(*Config), args ...string) *process {
	t.Helper()
	p := &process{log: new(buffer), token: filepath.Join(t.TempDir(), "token")}
	must(t, os.WriteFile(p.token, []byte(robot+"\n"), 0o600))
	args = append([]string{"--yt-proxy=" + cluster.URL(), "--yt-token-path=" + p.token, "--base-domain=tp.example.net", "--listen=127.0.0.1:0",
		"--admin-listen=127.0.0.1:0", "--debug-listen=127.0.0.1:0", "--discovery-period=100ms", "--shutdown-delay=0s", "--shutdown-timeout=5s", "--log-level=debug"}, args...)
	cfg, err := ParseConfig(args, env(nil), nil)
	must(t, err)
	edit(&cfg)
	ctx, cancel := context.WithCancel(context.Background())
	started, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- Run(ctx, cfg, NewLogger(p.log, cfg), func(a Addresses) { p.Addresses = a; close(started) })
	}()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	t.Cleanup(p.stop)
	select {
	case <-started:
	case err := <-ended:
		ended <- err
		t.Fatalf("it did not start: %v", err)
	}
	return p
}

func startCluster(t *testing.T) *ytlocal.Cluster {
	t.Helper()
	cluster, err := ytlocal.Start(ytlocal.Config{StateDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(func() { must(t, cluster.Close()) })
	return cluster
}

// publish lets the cluster tell of an operation of alice's that nobody else may read, whose one job is the server. It returns
// what names its service in a request.
func publish(t *testing.T, cluster *ytlocal.Cluster, job *httptest.Server) []func(*http.Request) {
	t.Helper()
	_, port, err := net.SplitHostPort(job.Listener.Addr().String())
	must(t, err)
	number, err := strconv.Atoi(port)
	must(t, err)
	const id = "1-2-3e803e8-4"
	must(t, cluster.Scheduler().Pretend(scheduler.Operation{
		ID: id, User: "alice", Annotations: map[string]any{"task_proxy": map[string]any{"enabled": true}},
		ACL:  []any{map[string]any{"action": "allow", "subjects": []any{"alice"}, "permissions": []any{"read", "manage"}}},
		Spec: map[string]any{"tasks": map[string]any{"server": map[string]any{"job_count": int64(1), "port_count": int64(1)}}},
	}, []scheduler.Job{{ID: "1-2-3840384-5", Task: "server", Address: "127.0.0.1:9012", Ports: []int{number}}}))
	return []func(*http.Request){header("x-yt-taskproxy-operation-id", id), header("x-yt-taskproxy-task-name", "server"),
		header("x-yt-taskproxy-service", "port_0")}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// patience is how long a test waits for what has no time limit of its own.
const patience = time.Minute

// until waits for something that must become so. It looks often at first, and less often the longer that takes: to look costs time too.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	pause := 5 * time.Millisecond
	for deadline := time.Now().Add(patience); !ok(); pause = min(2*pause, 40*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(pause)
	}
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   string
}

// get asks for a URL; edit changes the request before it leaves. A connection that breaks is an answer of status 0.
func get(t *testing.T, url string, edit ...func(*http.Request)) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	must(t, err)
	for _, e := range edit {
		e(r)
	}
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	defer transport.CloseIdleConnections()
	res, err := transport.RoundTrip(r)
	if err != nil {
		return answer{}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	must(t, err)
	return answer{res.StatusCode, res.Header, string(body)}
}

// header sets one on a request.
func header(name string, values ...string) func(*http.Request) {
	return func(r *http.Request) { r.Header[http.CanonicalHeaderKey(name)] = slices.Clone(values) }
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
