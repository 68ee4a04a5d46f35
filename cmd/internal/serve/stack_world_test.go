package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"taskproxy/examples/http-service/httpservice"
	"taskproxy/examples/job"
	"taskproxy/ytclient"
	"taskproxy/ytclient/ytlocal"
	"taskproxy/ytclient/ytlocal/scheduler"
)

// jobArgument is the first argument with which the test's executable is a job.
const jobArgument = "job"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == jobArgument {
		job.Main(httpservice.Serve)
		os.Exit(0)
	}
	if len(os.Args) > 1 && os.Args[1] == chaosArgument {
		job.Main(serveAll)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

const base = "tp.example.net"

// testCluster is a local cluster with two users who start operations.
type testCluster struct {
	*ytlocal.Cluster
	alice, mallory ytlocal.User
}

func startTestCluster(t *testing.T) *testCluster {
	t.Helper()
	local, err := ytlocal.Start(ytlocal.Config{
		StateDir:   t.TempDir(),
		JobEnviron: []string{"PATH=" + os.Getenv("PATH"), "LISTEN_HOST=127.0.0.1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := local.Close(); err != nil {
			t.Error(err)
		}
	})
	c := &testCluster{Cluster: local}
	for login, user := range map[string]*ytlocal.User{"alice": &c.alice, "mallory": &c.mallory} {
		if *user, err = local.AddUser(login); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// start starts an operation whose jobs answer HTTP at their one port, and returns its id. Everybody may read it.
func (c *testCluster) start(t *testing.T, user ytlocal.User, task string, jobs int, annotation map[string]any) string {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	spec := map[string]any{
		"tasks": map[string]any{task: map[string]any{
			"job_count": int64(jobs), "port_count": int64(1), "command": fmt.Sprintf("exec '%s' %s", executable, jobArgument),
		}},
		"acl":                  []any{map[string]any{"action": "allow", "subjects": []any{"everyone"}, "permissions": []any{"read"}}},
		"max_failed_job_count": int64(1000),
	}
	if annotation != nil {
		spec["annotations"] = map[string]any{"task_proxy": annotation}
	}
	id, err := c.Scheduler().Start(user.Login, spec)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// everyPort is the annotation that publishes port 0 as the service "port_0".
var everyPort = map[string]any{"enabled": true}

// publishAs is the annotation that publishes port 0 of a task under a name.
func publishAs(task, name string) map[string]any {
	return map[string]any{"enabled": true, "tasks_info": map[string]any{task: map[string]any{name: map[string]any{"protocol": "http", "port_index": int64(0)}}}}
}

// jobs are the operation's jobs that run and answer; it waits for so many, and not for those that are named.
func (c *testCluster) jobs(t *testing.T, operation string, count int, not ...string) (answering []scheduler.Job) {
	t.Helper()
	until(t, fmt.Sprintf("%d jobs answer", count), func() bool {
		all, err := c.Scheduler().Jobs(operation)
		if err != nil {
			t.Fatal(err)
		}
		answering = answering[:0]
		for _, j := range all {
			if j.State == "running" && !strings.Contains(strings.Join(not, " "), j.ID) && accepts(addressOf(j)) {
				answering = append(answering, j)
			}
		}
		return len(answering) == count
	})
	return answering
}

// kill ends a job's processes without a word to them, and waits until nobody listens at its port any more.
func kill(t *testing.T, j scheduler.Job) {
	t.Helper()
	if err := syscall.Kill(-j.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "the killed job's port is closed", func() bool { return !accepts(addressOf(j)) })
}

// slowJobs makes the cluster take its time over whatever is asked about jobs and exec nodes. Once stuck is true list_jobs goes on
// telling what it has told last: the cluster has not noticed what happened since.
func (c *testCluster) slowJobs(pause time.Duration) (stuck *atomic.Bool) {
	stuck = new(atomic.Bool)
	var mu sync.Mutex
	var last any
	c.Faults().Add(ytlocal.Fault{Command: "execute_batch", Delay: pause})
	c.Faults().Add(ytlocal.Fault{Command: "list_jobs", Delay: pause, Edit: func(answer any) any {
		mu.Lock()
		defer mu.Unlock()
		if !stuck.Load() {
			last = answer
		}
		return last
	}})
	return stuck
}

// services are the rows of the services table; none as long as there is no table.
func (c *testCluster) services(t *testing.T) []ytclient.ServiceRow {
	t.Helper()
	client, err := ytclient.New(ytclient.Config{Proxy: c.URL(), Token: func() (string, error) { return c.RootToken(), nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	rows, err := client.ServicesTable("//sys/task_proxies/services").ReadServices(t.Context())
	if err != nil && !errors.Is(err, ytclient.ErrNotFound) {
		t.Fatal(err)
	}
	return rows
}

func addressOf(j scheduler.Job) string {
	host, _, _ := net.SplitHostPort(j.Address)
	return net.JoinHostPort(host, strconv.Itoa(j.Ports[0]))
}

// accepts reports whether somebody listens there.
func accepts(address string) bool {
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// replica is the product, running.
type replica struct {
	Addresses
	stop   func() // as SIGTERM does; it waits for the end
	client *http.Client
	log    *buffer
}

// startReplica starts the product as a shell would, and returns when it is ready.
func (c *testCluster) startReplica(t *testing.T, flags ...string) *replica {
	t.Helper()
	return c.startEditedReplica(t, func(*Config) {}, flags...)
}

// startEditedReplica is startReplica with what no flag says.
func (c *testCluster) startEditedReplica(t *testing.T, edit func(*Config), flags ...string) *replica {
	t.Helper()
	token := t.TempDir() + "/token"
	if err := os.WriteFile(token, []byte(c.RootToken()), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := ParseConfig(append([]string{"--yt-proxy=" + c.URL(), "--yt-token-path=" + token, "--base-domain=" + base,
		"--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--debug-listen=", "--shutdown-delay=0s"}, flags...), env(nil), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	edit(&cfg)
	log := new(buffer)
	ctx, cancel := context.WithCancel(context.Background())
	started, ended := make(chan Addresses, 1), make(chan error, 1)
	go func() { ended <- Run(ctx, cfg, NewLogger(log, cfg), func(a Addresses) { started <- a }) }()
	transport := &http.Transport{}
	r := &replica{client: &http.Client{Transport: transport}, log: log}
	r.stop = sync.OnceFunc(func() {
		transport.CloseIdleConnections()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		r.stop()
		if t.Failed() {
			t.Logf("the log:\n%s", log)
		}
	})
	select {
	case r.Addresses = <-started:
	case err := <-ended:
		ended <- err
		t.Fatal("it did not start")
	}
	// Ready is a little sooner than the end of the first cycle, and before that no cycle is early.
	until(t, "the first cycle is over", func() bool { return r.metric(t, "discovery_success_total") >= 1 })
	return r
}

// metric is the value of a metric, with its labels if it has some.
func (r *replica) metric(t *testing.T, name string) float64 {
	t.Helper()
	value, ok := r.lookMetric(t, name)
	if !ok {
		t.Fatalf("no metric %s", name)
	}
	return value
}

// lookMetric is metric for those that are there only once something has happened.
func (r *replica) lookMetric(t *testing.T, name string) (value float64, ok bool) {
	t.Helper()
	family, _, _ := strings.Cut("yt_task_proxy_"+name, "{") // only this one: all of them cost a test that waits for one more than the test
	res, err := r.client.Get("http://" + r.Admin + "/metrics?name[]=" + family)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	content, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(content), "\nyt_task_proxy_"+name+" ")
	if !ok {
		return 0, false
	}
	line, _, _ := strings.Cut(rest, "\n")
	if value, err = strconv.ParseFloat(line, 64); err != nil {
		t.Fatal(err)
	}
	return value, true
}

// reply is what a caller gets, and who answered.
type reply struct {
	status int
	reason string // why the proxy refused, if it did
	job    job.Info
}

// String tells who answered.
func (a reply) String() string {
	if a.status == http.StatusOK {
		return fmt.Sprintf("200 from %s of operation %s", a.job, a.job.OperationID)
	}
	return fmt.Sprintf("%d %s", a.status, a.reason)
}

// get asks for a service by its label, in the name of a user.
func (r *replica) get(t *testing.T, user ytlocal.User, label string) (a reply) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.Public+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = label + "." + base
	req.Header.Set("Authorization", "OAuth "+user.Token)
	req.Header.Set("Accept", "application/json")
	res, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	content, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	a.status, a.reason = res.StatusCode, res.Header.Get("X-Yt-Taskproxy-Error")
	if a.status == http.StatusOK {
		var body httpservice.Answer
		if err := json.Unmarshal(content, &body); err != nil {
			t.Fatalf("%v in %q", err, content)
		}
		a.job = body.Job
	}
	return a
}

// impostor is somebody else's server that got the port of a job that is no more.
type impostor struct{ connections atomic.Int32 }

func listenAsImpostor(t *testing.T, address string) *impostor {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	i := new(impostor)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(`{"job":{"job_id":"impostor"}}`))
	}))
	server.Listener.Close()
	server.Listener = listener
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			i.connections.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	return i
}
