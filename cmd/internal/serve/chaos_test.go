package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"taskproxy/discovery"
	"taskproxy/examples/grpc-service/greeter"
	"taskproxy/examples/grpc-service/helloworld"
	"taskproxy/examples/http-service/httpservice"
	"taskproxy/examples/job"
	"taskproxy/ytclient/ytlocal"
	"taskproxy/ytclient/ytlocal/scheduler"
)

// chaosArgument is the first argument with which the test's executable is a job that serves in all protocols.
const chaosArgument = "chaos-job"

// serveAll answers HTTP at its first port, with a WebSocket at /socket that begins with the job's id and then echoes, and gRPC at
// its second.
func serveAll(ctx context.Context, info job.Info, listener net.Listener) error {
	rpc, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", os.Getenv("YT_PORT_1")))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/", httpservice.Handler(info))
	mux.HandleFunc("/socket", func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		for kind, message := websocket.MessageText, []byte(info.JobID); err == nil; kind, message, err = c.Read(ctx) {
			if c.Write(ctx, kind, message) != nil {
				return
			}
		}
	})
	ended := make(chan error, 1)
	go func() { ended <- greeter.Serve(ctx, info, rpc) }()
	return errors.Join(job.ServeHTTP(ctx, listener, mux), <-ended)
}

// load is callers who never rest, and what they may not see.
type load struct {
	t      *testing.T
	r      *replica
	user   ytlocal.User
	killed sync.Map // ids of the jobs that were killed, or are about to be: what they carry may break
	counts [3]atomic.Int64
}

const (
	gets = iota
	frames
	replies
)

// fetch makes GET requests on connections that are kept. None fails: one job is always there.
func (l *load) fetch(ctx context.Context, label string) {
	transport := &http.Transport{MaxIdleConnsPerHost: 4}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: patience}
	for ctx.Err() == nil {
		req, err := http.NewRequest(http.MethodGet, "http://"+l.r.Public+"/", nil)
		if err != nil {
			l.t.Error(err)
			return
		}
		req.Host = label + "." + base
		req.Header.Set("Authorization", "OAuth "+l.user.Token)
		req.Header.Set("Accept", "application/json")
		res, err := client.Do(req)
		if err != nil {
			l.t.Errorf("GET: %v", err)
			return
		}
		var answer httpservice.Answer
		err = json.NewDecoder(res.Body).Decode(&answer)
		_, _ = io.Copy(io.Discard, res.Body) // so that the connection is kept
		res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK {
			l.t.Errorf("GET: %s %s: %v", res.Status, res.Header.Get("X-Yt-Taskproxy-Error"), err)
		}
		l.counts[gets].Add(1)
	}
}

// converse keeps one WebSocket busy until its job is killed, and then opens another one.
func (l *load) converse(ctx context.Context, label string) {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	options := &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: transport}, Host: label + "." + base,
		HTTPHeader: http.Header{"Authorization": {"OAuth " + l.user.Token}},
	}
	for ctx.Err() == nil {
		job := ""
		err := func() error {
			c, _, err := websocket.Dial(ctx, "ws://"+l.r.Public+"/socket", options)
			if err != nil {
				return err
			}
			defer c.CloseNow()
			_, first, err := c.Read(ctx)
			if err != nil {
				return err
			}
			job = string(first)
			for i := 0; ; i++ {
				sent := fmt.Sprint("message ", i)
				if err := c.Write(ctx, websocket.MessageText, []byte(sent)); err != nil {
					return err
				}
				if _, got, err := c.Read(ctx); err != nil || string(got) != sent {
					return errors.Join(err, fmt.Errorf("sent %q, got %q", sent, got))
				}
				l.counts[frames].Add(1)
			}
		}()
		l.broken(ctx, "WebSocket", job, err)
	}
}

// listen keeps one gRPC stream open until its job is killed or has said all, and then opens another one.
func (l *load) listen(ctx context.Context, label string) {
	conn, err := grpc.NewClient("passthrough:///"+l.r.Public, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority(label+"."+base))
	if err != nil {
		l.t.Error(err)
		return
	}
	defer conn.Close()
	client := helloworld.NewGreeterClient(conn)
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+l.user.Token)
	for ctx.Err() == nil {
		job := ""
		err := func() error {
			stream, err := client.SayHelloStream(ctx, &helloworld.HelloStreamRequest{Count: 1000, PauseMs: 10})
			for err == nil {
				var reply *helloworld.HelloReply
				if reply, err = stream.Recv(); err == nil {
					job = reply.GetJobId()
					l.counts[replies].Add(1)
				}
			}
			return err
		}()
		if !errors.Is(err, io.EOF) {
			l.broken(ctx, "gRPC stream", job, err)
		}
	}
}

// replace kills a job of the operation and returns those that answer when its successor does.
func (l *load) replace(c *testCluster, operation string, dead scheduler.Job) []scheduler.Job {
	l.t.Helper()
	l.killed.Store(dead.ID, true)
	kill(l.t, dead)
	return c.jobs(l.t, operation, 3)
}

// broken judges the end of a stream: only that of a job that was killed may end, and of a handshake nobody knows whom it met.
func (l *load) broken(ctx context.Context, what, job string, err error) {
	if ctx.Err() != nil {
		return // the load's own end
	}
	if _, dead := l.killed.Load(job); !dead && job != "" {
		l.t.Errorf("the %s of the living job %s broke: %v", what, job, err)
	}
}

// Jobs are killed one after the other, other people's operations come and go, the routing table changes a hundred times, the cluster
// is away for a while: no GET fails, and no stream of a job that lives is cut. What all that took is given back.
func TestChaos(t *testing.T) {
	const changes = 100
	before := descriptors(t)
	c := startTestCluster(t)
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	service := func(protocol string, port int64) map[string]any {
		return map[string]any{"protocol": protocol, "port_index": port}
	}
	id, err := c.Scheduler().Start(c.alice.Login, map[string]any{
		"tasks": map[string]any{"server": map[string]any{
			"job_count": int64(3), "port_count": int64(2), "command": fmt.Sprintf("exec '%s' %s", executable, chaosArgument),
		}},
		"max_failed_job_count": int64(1000),
		"annotations": map[string]any{"task_proxy": map[string]any{"enabled": true, "tasks_info": map[string]any{
			"server": map[string]any{"web": service("http", 0), "rpc": service("grpc", 1)},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	jobs := c.jobs(t, id, 3)
	other := c.start(t, c.mallory, "other", 1, everyPort)
	c.jobs(t, other, 1)

	r := c.startReplica(t, "--discovery-period=100ms", "--drain-timeout=1s") // a service that is missed for a second loses its streams
	until(t, "all are endpoints", func() bool { return r.metric(t, "endpoints") == 7 })
	l := &load{t: t, r: r, user: c.alice}
	ctx, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for range 3 {
		callers.Go(func() { l.fetch(ctx, discovery.ShortID(id, "server", "web")) })
		callers.Go(func() { l.converse(ctx, discovery.ShortID(id, "server", "web")) })
		callers.Go(func() { l.listen(ctx, discovery.ShortID(id, "server", "rpc")) })
	}
	defer callers.Wait()
	defer stop()
	until(t, "all callers are at work", func() bool {
		return l.counts[gets].Load() > 10 && l.counts[frames].Load() > 10 && l.counts[replies].Load() > 10
	})

	for i := range changes {
		name := fmt.Sprint("name_", i)
		parameters := map[string]any{"annotations": map[string]any{"task_proxy": publishAs("other", name)}}
		if err := c.Scheduler().UpdateParameters(other, parameters); err != nil {
			t.Fatal(err)
		}
		until(t, "the table has changed", func() bool {
			return r.get(t, c.mallory, discovery.ShortID(other, "other", name)).status != http.StatusNotFound
		})
		switch {
		case i%20 == 10: // a job is killed; its successor takes part
			jobs = l.replace(c, id, jobs[i/20%len(jobs)])
		case i%20 == 15: // somebody's operation ends, another one begins
			if err := c.Scheduler().Abort(other, ""); err != nil {
				t.Fatal(err)
			}
			other = c.start(t, c.mallory, "other", 1, everyPort)
		case i == 52: // the cluster is away, and a job is killed meanwhile
			over := c.Faults().Add(ytlocal.Fault{Status: http.StatusServiceUnavailable})
			jobs = l.replace(c, id, jobs[0])
			calls, fetched := c.Faults().Calls()["list_operations"], l.counts[gets].Load()
			until(t, "the cluster was asked in vain", func() bool {
				return c.Faults().Calls()["list_operations"] > calls+2 && l.counts[gets].Load() > fetched+100
			})
			over()
		}
	}
	stop()
	callers.Wait()
	t.Logf("%d GETs, %d WebSocket messages, %d gRPC replies", l.counts[gets].Load(), l.counts[frames].Load(), l.counts[replies].Load())
	r.stop()
	if err := c.Close(); err != nil { // a connection that was dialled in vain may wait for this end of it
		t.Error(err)
	}
	var after []string
	defer func() {
		if t.Failed() {
			t.Logf("descriptors before and after:\n%q\n%q", before, after)
		}
	}()
	until(t, "no more descriptors are open than before", func() bool {
		after = descriptors(t)
		return len(after) <= len(before)
	})
}

// descriptors are the sockets and pipes that this process has open.
func descriptors(t *testing.T) (open []string) {
	t.Helper()
	names, err := filepath.Glob("/proc/self/fd/*")
	if err != nil || len(names) == 0 {
		t.Skip("no /proc here")
	}
	for _, name := range names {
		target, err := os.Readlink(name) // one is the listing's own, which is closed by now
		if err == nil && (strings.HasPrefix(target, "socket:") || strings.HasPrefix(target, "pipe:")) {
			open = append(open, target)
		}
	}
	slices.Sort(open)
	return open
}
