package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"taskproxy/discovery"
	"taskproxy/examples/http-service/httpservice"
	"taskproxy/examples/job"
	"taskproxy/ytclient/ytlocal/scheduler"
)

// chaosArgument is the first argument with which the test's executable is a job that serves in all protocols.
const chaosArgument = "chaos-job"

// chaosEcho is a gRPC service of one stream. It begins with the job's id, which is its implementation, and then echoes.
var chaosEcho = grpc.ServiceDesc{ServiceName: "chaos.Echo", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
	StreamName: "Echo", ClientStreams: true, ServerStreams: true,
	Handler: func(id any, s grpc.ServerStream) (err error) {
		for m := wrapperspb.String(id.(string)); err == nil; err = s.RecvMsg(m) {
			if err := s.SendMsg(m); err != nil {
				return err
			}
		}
		return err
	},
}}}

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
	server := grpc.NewServer()
	server.RegisterService(&chaosEcho, info.JobID)
	healthpb.RegisterHealthServer(server, health.NewServer())
	defer context.AfterFunc(ctx, server.Stop)()
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(rpc) }()
	return errors.Join(job.ServeHTTP(ctx, listener, mux), <-ended)
}

// TestChaos is the short form of what TestE2EChaos does for minutes.
func TestChaos(t *testing.T) {
	chaos(t, 20, time.Second/2, time.Second, time.Second/2)
}

// chaos: jobs are killed one after the other, and paused; other people's operations come and go; the routing table changes
// so many times, a multiple of 20; the cluster is away, refuses connections and says nothing, for a while each. Nothing of that concerns
// the callers (load tells what may fail), and what all that took is given back.
func chaos(t *testing.T, changes int, pause, outage, grantTTL time.Duration) {
	given := goleak.IgnoreCurrent()
	before := descriptors(t)
	c := startTestCluster(t)
	cluster := startFront(t, c.URL())
	executable, err := os.Executable()
	must(t, err)
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
	must(t, err)
	jobs := c.jobs(t, id, 3)
	other := c.start(t, c.mallory, "other", 1, everyPort)
	c.jobs(t, other, 1)

	r := c.startEditedReplica(t, func(cfg *Config) { cfg.grantTTL = grantTTL }, "--yt-proxy="+cluster.Addr,
		"--discovery-period=100ms", "--log-level=warn", // an access log would be most of the memory
		"--drain-timeout=1s") // a service that is missed for a second loses its streams
	until(t, "all are endpoints", func() bool { return r.metric(t, "endpoints") == 7 })
	held := heap()
	l := &load{t: t, r: r, user: c.alice}
	veteran := jobs[0] // the one that is never killed
	stop := l.start(t, id, veteran.ID)
	next := 0
	victim := func() {
		jobs = slices.DeleteFunc(jobs, func(j scheduler.Job) bool { return j.ID == veteran.ID })
		next++
		jobs = l.replace(c, id, jobs[next%len(jobs)])
	}
	// away waits while the cluster is: for so long, until it was asked in vain, and streams have been held by what it said before.
	away := func(how string) {
		t.Helper()
		failures := func() (failed, held float64) {
			failed, _ = r.lookMetric(t, `discovery_failed_total{reason="unavailable"}`)
			return failed + float64(cluster.asked.Load()), r.metric(t, "auth_stale_grants_total")
		}
		began := time.Now()
		failedBefore, heldBefore := failures()
		victim()
		l.goesOn(how)
		time.Sleep(time.Until(began.Add(outage)))
		until(t, how+": the cluster was asked in vain, and what it had said counted", func() bool {
			failed, held := failures()
			return failed > failedBefore && held > heldBefore+20
		})
		l.goesOn(how)
	}

	for i := range changes {
		name := fmt.Sprint("name_", i)
		parameters := map[string]any{"annotations": map[string]any{"task_proxy": publishAs("other", name)}}
		must(t, c.Scheduler().UpdateParameters(other, parameters))
		until(t, "the table has changed", func() bool {
			return r.get(t, c.mallory, discovery.ShortID(other, "other", name)).status != http.StatusNotFound
		})
		switch i * 100 / changes {
		case 10, 50, 90:
			victim()
		case 15, 35, 55, 75, 95: // somebody's operation ends, another one begins
			must(t, c.Scheduler().Abort(other, ""))
			other = c.start(t, c.mallory, "other", 1, everyPort)
		case 20:
			l.pause(veteran)
			time.Sleep(pause)
			l.resume(veteran)
			l.goesOn("after a pause")
		case 30: // a job is killed that is paused, with all that waits for it
			for _, j := range jobs {
				if j.ID != veteran.ID {
					l.pause(j)
					l.paused.Store("nobody")
					jobs = l.replace(c, id, j)
					break
				}
			}
		case 60:
			cluster.refuse()
			away("the cluster refuses connections")
			cluster.listen()
		case 80:
			cluster.silent.Store(true)
			away("the cluster says nothing")
			cluster.silent.Store(false)
			cluster.refuse() // it starts again: those who wait get no answer
			cluster.listen()
		}
	}
	l.goesOn("at the end")
	stop()
	var counts []int64
	for i := range l.counts {
		counts = append(counts, l.counts[i].Load())
	}
	t.Logf("GETs, those waiting, those of paused jobs, WebSocket messages, gRPC messages, gRPC calls, the veteran's two, failures that may be: %d", counts)
	until(t, "no stream is left", func() bool {
		return r.metric(t, `streams{protocol="http"}`)+r.metric(t, `streams{protocol="websocket"}`)+r.metric(t, `streams{protocol="grpc"}`) == 0
	})
	now := heap()
	t.Logf("%d bytes of memory are in use, %d were before the load", now, held)
	if now > held+mostHeap+uint64(counts[late])*mostHeapLate {
		t.Error("that is too much")
	}
	r.stop()
	cluster.close()
	must(t, c.Close()) // a connection that was dialled in vain may wait for this end of it
	if err := goleak.Find(given); err != nil {
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

// mostHeap is what a load may leave in use while the process runs, in bytes: buffers that wait to be used again, and what is known of
// jobs that ended. It is less than what is left if each of the short form's two thousand requests left a buffer of 4 KiB, or each of the
// long one's ten thousand and more a kilobyte.
const mostHeap = 6 << 20

// mostHeapLate is what a request may leave that waited for a paused job, in bytes. They all wait at a time, and the runtime keeps half a
// kilobyte for each goroutine that there was at a time.
const mostHeapLate = 5 << 10

// heap is the memory in use.
func heap() uint64 {
	var stats runtime.MemStats
	for range 2 { // what a sync.Pool has outlives one
		runtime.GC()
	}
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// stopProcess pauses a process and returns when it stands still.
func stopProcess(t *testing.T, pid int) {
	t.Helper()
	must(t, syscall.Kill(pid, syscall.SIGSTOP))
	until(t, "the process stands still", func() bool {
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		must(t, err)
		_, state, _ := strings.Cut(string(content), ") ")
		return strings.HasPrefix(state, "T")
	})
}

func continueProcess(t *testing.T, pid int) {
	t.Helper()
	must(t, syscall.Kill(pid, syscall.SIGCONT))
}

// descriptors are the sockets and pipes that this process has open.
func descriptors(t *testing.T) (open []string) {
	t.Helper()
	names, err := filepath.Glob("/proc/self/fd/*")
	if err != nil || len(names) == 0 {
		t.Log("descriptors are not counted: no /proc here")
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
