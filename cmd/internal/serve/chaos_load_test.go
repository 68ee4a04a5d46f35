package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"taskproxy/discovery"
	"taskproxy/examples/http-service/httpservice"
	"taskproxy/ytclient/ytlocal"
	"taskproxy/ytclient/ytlocal/scheduler"
)

// load is callers who never rest. What each of them gets is judged, and this is all that may fail, since one job of the task always
// lives:
//
//   - a stream of a job that was killed, once it was open;
//   - a gRPC call, or a stream before its first message, while a job is being killed: it is a POST with a body, which the job may have
//     acted upon. It ends in UNAVAILABLE;
//   - the first message of a WebSocket while a job is being killed: nobody knows whose it was.
//
// A GET never fails, nor does a WebSocket's handshake, which is one: no answer of the size that is sent here is torn in two. A job that is
// paused is slow.
type load struct {
	t        *testing.T
	r        *replica
	user     ytlocal.User
	web, rpc string // labels

	// killed has the ids of jobs that were killed, or are about to be. While kills is odd, one is being killed.
	killed sync.Map
	kills  atomic.Int64

	paused  atomic.Value // the id of the job that is paused, a string
	counts  [kinds]atomic.Int64
	callers []*caller
	delayed atomic.Int64 // GETs that began while a job was paused and have no answer yet
}

// caller is one of them, who waits for each answer before asking again.
type caller struct {
	name     string
	answered atomic.Int64
}

// answer counts an answer of a kind.
func (l *load) answer(who *caller, kind int) {
	l.counts[kind].Add(1)
	who.answered.Add(1)
}

const (
	gets          = iota
	waiting       // GETs that have no answer yet
	late          // GETs that began while the job was paused that answered them
	frames        // of WebSockets
	messages      // of gRPC streams
	calls         // of gRPC
	steadyFrames  // of the one WebSocket that is never closed
	steadyMessage // of the one stream
	permitted     // failures
	kinds
)

// pace is the least time between two messages of a stream, two calls, or two GETs of one caller. It keeps the processor free for what
// else is tested here.
const pace = 20 * time.Millisecond

// calm notes the kills so far; the function that it returns tells whether there was none since, and none under way.
func (l *load) calm() func() bool {
	before := l.kills.Load()
	return func() bool { return before%2 == 0 && l.kills.Load() == before }
}

// fetch makes GETs one after the other on connections that are kept.
func (l *load) fetch(ctx context.Context, who *caller) {
	transport := &http.Transport{MaxIdleConnsPerHost: 4}
	defer transport.CloseIdleConnections()
	for ctx.Err() == nil {
		l.get(transport)
		who.answered.Add(1)
		time.Sleep(pace)
	}
}

// stream makes a GET every so often, however many others have no answer.
func (l *load) stream(ctx context.Context) {
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	defer transport.CloseIdleConnections()
	var under sync.WaitGroup
	defer under.Wait()
	for tick := time.NewTicker(pace); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
			under.Go(func() { l.get(transport) })
		}
	}
}

func (l *load) get(transport *http.Transport) {
	l.counts[waiting].Add(1)
	defer l.counts[waiting].Add(-1)
	req, err := http.NewRequest(http.MethodGet, "http://"+l.r.Public+"/", nil)
	if err != nil {
		l.t.Error(err)
		return
	}
	req.Host = l.web + "." + base
	req.Header.Set("Authorization", "OAuth "+l.user.Token)
	req.Header.Set("Accept", "application/json")
	paused := l.paused.Load()
	if paused != "nobody" {
		l.delayed.Add(1)
		defer l.delayed.Add(-1)
	}
	res, err := (&http.Client{Transport: transport, Timeout: 2 * patience}).Do(req)
	if err != nil {
		l.t.Errorf("GET: %v", err)
		return
	}
	defer res.Body.Close()
	var answer httpservice.Answer
	err = json.NewDecoder(res.Body).Decode(&answer)
	_, _ = io.Copy(io.Discard, res.Body) // so that the connection is kept
	if err != nil || res.StatusCode != http.StatusOK {
		l.t.Errorf("GET: %s %s: %v", res.Status, res.Header.Get("X-Yt-Taskproxy-Error"), err)
		return
	}
	l.counts[gets].Add(1)
	if answer.Job.JobID == paused {
		l.counts[late].Add(1)
	}
}

// call makes gRPC calls one after the other.
func (l *load) call(ctx context.Context, who *caller) {
	conn := l.dial()
	defer conn.Close()
	client := healthpb.NewHealthClient(conn)
	for ctx.Err() == nil {
		calm := l.calm()
		_, err := client.Check(l.identified(ctx), &healthpb.HealthCheckRequest{})
		switch {
		case err == nil:
			l.answer(who, calls)
		case ctx.Err() != nil:
		case status.Code(err) == codes.Unavailable && !calm():
			l.counts[permitted].Add(1)
		default:
			l.t.Errorf("gRPC call: %v", err)
		}
		time.Sleep(pace)
	}
}

func (l *load) dial() *grpc.ClientConn {
	conn, err := grpc.NewClient("passthrough:///"+l.r.Public, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority(l.rpc+"."+base))
	if err != nil {
		panic(err) // the arguments are constants
	}
	return conn
}

func (l *load) identified(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+l.user.Token)
}

// echo is a stream, open: the job's id, and what sends a message and returns the one that comes back.
type echo struct {
	job   string
	say   func(message string) (string, error)
	close func()
}

// openWebSocket opens one. A handshake never fails.
func (l *load) openWebSocket(ctx context.Context) (*echo, error) {
	transport := &http.Transport{}
	c, _, err := websocket.Dial(ctx, "ws://"+l.r.Public+"/socket", &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: transport}, Host: l.web + "." + base,
		HTTPHeader: http.Header{"Authorization": {"OAuth " + l.user.Token}},
	})
	if err != nil {
		if ctx.Err() == nil {
			l.t.Errorf("WebSocket handshake: %v", err)
		}
		return nil, err
	}
	stop := func() { c.CloseNow(); transport.CloseIdleConnections() }
	_, first, err := c.Read(ctx)
	if err != nil {
		stop()
		return nil, err
	}
	return &echo{string(first), func(message string) (string, error) {
		if err := c.Write(ctx, websocket.MessageText, []byte(message)); err != nil {
			return "", err
		}
		_, back, err := c.Read(ctx)
		return string(back), err
	}, stop}, nil
}

// openStream opens one of gRPC.
func (l *load) openStream(ctx context.Context) (*echo, error) {
	conn := l.dial()
	ctx, cancel := context.WithCancel(ctx)
	stop := func() { cancel(); conn.Close() }
	s, err := conn.NewStream(l.identified(ctx), &chaosEcho.Streams[0], "/"+chaosEcho.ServiceName+"/"+chaosEcho.Streams[0].StreamName)
	first := new(wrapperspb.StringValue)
	if err == nil {
		err = s.RecvMsg(first)
	}
	if err != nil {
		stop()
		if status.Code(err) != codes.Unavailable && ctx.Err() == nil {
			l.t.Errorf("gRPC stream: %v", err)
		}
		return nil, err
	}
	return &echo{first.GetValue(), func(message string) (string, error) {
		if err := s.SendMsg(wrapperspb.String(message)); err != nil && !errors.Is(err, io.EOF) { // EOF: RecvMsg says why
			return "", err
		}
		back := new(wrapperspb.StringValue)
		err := s.RecvMsg(back)
		return back.GetValue(), err
	}, stop}, nil
}

// converse keeps one stream busy until it ends, and then opens another one. With a job's id it wants a stream of that job; no other is
// ever opened then, since that one does not end.
func (l *load) converse(ctx context.Context, open func(context.Context) (*echo, error), job string, kind int, who *caller) {
	for ctx.Err() == nil {
		calm := l.calm()
		s, err := open(ctx)
		switch {
		case ctx.Err() != nil:
			if err == nil {
				s.close()
			}
			return
		case err != nil && calm():
			l.t.Errorf("a stream ended before its first message: %v", err)
			continue
		case err != nil:
			l.counts[permitted].Add(1)
			continue
		case job != "" && s.job != job:
			s.close()
			continue
		}
		for i := 0; ; i++ {
			var back string
			sent := fmt.Sprint("message ", i)
			if back, err = s.say(sent); err != nil {
				break
			}
			if back != sent {
				l.t.Errorf("sent %q, got %q", sent, back)
			}
			l.answer(who, kind)
			time.Sleep(pace)
		}
		s.close()
		if ctx.Err() != nil {
			return // the load's own end
		}
		if _, dead := l.killed.Load(s.job); !dead {
			l.t.Errorf("the stream of the living job %s broke: %v", s.job, err)
		}
		l.counts[permitted].Add(1)
	}
}

// start starts everybody; the streams of the veteran last for as long as the load. The result ends it.
func (l *load) start(t *testing.T, operation, veteran string) (stop func()) {
	t.Helper()
	l.web, l.rpc = discovery.ShortID(operation, "server", "web"), discovery.ShortID(operation, "server", "rpc")
	l.paused.Store("nobody")
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	goes := func(name string, f func(*caller)) {
		who := &caller{name: name}
		l.callers = append(l.callers, who)
		callers.Go(func() { f(who) })
	}
	callers.Go(func() { l.stream(ctx) })
	goes("the veteran's WebSocket", func(who *caller) { l.converse(ctx, l.openWebSocket, veteran, steadyFrames, who) })
	goes("the veteran's gRPC stream", func(who *caller) { l.converse(ctx, l.openStream, veteran, steadyMessage, who) })
	for range 3 {
		goes("GETs", func(who *caller) { l.fetch(ctx, who) })
		goes("gRPC calls", func(who *caller) { l.call(ctx, who) })
		goes("WebSockets", func(who *caller) { l.converse(ctx, l.openWebSocket, "", frames, who) })
		goes("gRPC streams", func(who *caller) { l.converse(ctx, l.openStream, "", messages, who) })
	}
	stop = func() { cancel(); callers.Wait() }
	t.Cleanup(stop)
	l.goesOn("at first")
	return stop
}

// goesOn waits until every single caller got an answer to what was asked meanwhile. That some of a kind go on would say little: who is
// with a job that was killed and does not learn it hangs, and how many of them are is chance.
func (l *load) goesOn(when string) {
	l.t.Helper()
	before := make([]int64, len(l.callers))
	for i, who := range l.callers {
		before[i] = who.answered.Load()
	}
	defer func() {
		if l.t.Failed() { // who hangs, and where
			stacks := make([]byte, 4<<20)
			l.t.Logf("%s", stacks[:runtime.Stack(stacks, true)])
		}
	}()
	for i, who := range l.callers {
		until(l.t, when+": "+who.name+" get answers, all of them", func() bool { return who.answered.Load() > before[i]+1 })
	}
}

// replace kills a job of the operation, which may be paused, and returns those that answer when its successor does, at other ports.
func (l *load) replace(c *testCluster, operation string, dead scheduler.Job) []scheduler.Job {
	l.t.Helper()
	l.killed.Store(dead.ID, true)
	l.kills.Add(1)
	kill(l.t, dead)
	jobs := c.jobs(l.t, operation, 3)
	l.kills.Add(1)
	for _, j := range jobs {
		for i := range j.Ports {
			if j.Ports[i] == dead.Ports[i] {
				l.t.Errorf("job %s listens at port %d of the one that was killed", j.ID, j.Ports[i])
			}
		}
	}
	return jobs
}

// pause stops a job's process and returns when GETs wait for it. Its kernel goes on to take connections.
func (l *load) pause(j scheduler.Job) {
	l.t.Helper()
	stopProcess(l.t, j.PID)
	before := l.counts[waiting].Load()
	l.paused.Store(j.ID)
	until(l.t, "requests wait for the paused job", func() bool { return l.counts[waiting].Load() > before+15 })
}

// resume lets it go on, and returns when what has waited is answered by it.
func (l *load) resume(j scheduler.Job) {
	l.t.Helper()
	l.paused.Store("nobody")
	before := l.counts[late].Load()
	continueProcess(l.t, j.PID)
	until(l.t, "those who waited got their answers", func() bool { return l.counts[late].Load() > before+5 && l.delayed.Load() == 0 })
}
