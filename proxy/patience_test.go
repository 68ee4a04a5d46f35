package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"taskproxy/discovery"
)

// pipes is a listener in memory, for jobs on a clock of their own.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if conn, ok := <-p; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// waiting is a proxy with a service whose jobs have limit for their answers, in a bubble.
type waiting struct {
	*testing.T
	p      *Proxy
	host   string
	failed atomic.Int32 // connections, as the proxy tells
}

const limit = 30 * time.Second

// inTime runs f with a service that has these jobs, over HTTP/1.1 and over HTTP/2.
func inTime(t *testing.T, limit time.Duration, f func(w *waiting), jobs ...http.HandlerFunc) {
	t.Helper()
	for _, protocol := range []discovery.Protocol{discovery.HTTP, discovery.GRPC} {
		t.Run(string(protocol), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &waiting{T: t}
				service := discovery.Service{OperationID: "1-2-3e8-1", Task: "task", Name: "ui", Protocol: protocol, RouteTimeout: limit}
				listeners := make(map[string]pipes)
				for i, job := range jobs {
					addr := net.JoinHostPort("10.0.0.1", string('1'+rune(i)))
					service.Endpoints = append(service.Endpoints, discovery.Endpoint{JobID: addr, Addr: addr})
					listener := make(pipes)
					listeners[addr] = listener
					server := &http.Server{Handler: job, Protocols: new(http.Protocols)}
					server.Protocols.SetHTTP1(true)
					server.Protocols.SetUnencryptedHTTP2(true)
					go func() { _ = server.Serve(listener) }()
					defer server.Close()
					defer close(listener)
				}
				bases, err := discovery.NewBases(base)
				if err != nil {
					t.Fatal(err)
				}
				table := NewTable()
				snapshot, _ := discovery.NewSnapshot(nil, nil, []discovery.Service{service})
				table.Store(snapshot)
				w.host = host(snapshot.Services()[0])
				w.p, err = New(Config{
					Bases: bases, Table: table, AuthDisabled: true, IdleTimeout: -1,
					OnConnectFailure: func(*discovery.Service, discovery.Endpoint) { w.failed.Add(1) },
				})
				if err != nil {
					t.Fatal(err)
				}
				dial := func(_ context.Context, _, addr string) (net.Conn, error) {
					ours, theirs := net.Pipe()
					listeners[addr] <- theirs
					return ours, nil
				}
				w.p.balancer.dialer.dial = dial
				defer w.p.Close()
				f(w)
			})
		})
	}
}

// send carries a request to the end.
func (w *waiting) send(ctx context.Context, body io.Reader) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", body)
	if body != nil {
		r = httptest.NewRequestWithContext(ctx, http.MethodPost, "/", body)
		r.ContentLength = -1
	}
	r.Host = w.host
	answer := httptest.NewRecorder()
	func() {
		defer func() { // as net/http does
			if v := recover(); v != nil {
				if err, ok := v.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
					panic(v)
				}
			}
		}()
		w.p.ServeHTTP(finalOnly{answer}, r)
	}()
	return answer
}

// finalOnly keeps 1xx answers from a recorder, which takes the first status for the final one.
type finalOnly struct{ *httptest.ResponseRecorder }

func (f finalOnly) WriteHeader(status int) {
	if status >= 200 {
		f.ResponseRecorder.WriteHeader(status)
	}
}

// check sends a request and looks at the answer, and at how long it took.
func (w *waiting) check(body io.Reader, status int, reason string, took time.Duration) {
	w.Helper()
	began := time.Now()
	a := w.send(w.Context(), body)
	if got := a.Header().Get("X-Yt-Taskproxy-Error"); a.Code != status || got != reason || time.Since(began) != took {
		w.Errorf("got %d %q after %s, want %d %q after %s (%s)", a.Code, got, time.Since(began), status, reason, took, a.Body)
	}
}

// slowly is a body that comes in n pieces, each after some time.
func slowly(n int, pause time.Duration) io.Reader {
	r, w := io.Pipe()
	go func() {
		for range n {
			time.Sleep(pause)
			if _, err := w.Write([]byte("piece")); err != nil {
				return
			}
		}
		w.Close()
	}()
	return r
}

func hang(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// after answers when it has the whole request and some time has passed.
func after(d time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		time.Sleep(d)
		_, _ = io.WriteString(w, "here")
	}
}

func TestRouteTimeout(t *testing.T) {
	t.Parallel()
	t.Run("a job that does not answer", func(t *testing.T) {
		t.Parallel()
		var left atomic.Int32
		inTime(t, limit, func(w *waiting) {
			left.Store(0)
			for n := range int32(3) {
				w.check(nil, 504, "route_timeout", limit)
				synctest.Wait()
				if left.Load() != n+1 { // its connection, or stream, was given up
					w.Errorf("%d requests have ended at the job, want %d", left.Load(), n+1)
				}
			}
			if n := w.p.balancer.states.aside(); n != 0 || w.failed.Load() != 0 {
				w.Errorf("%d endpoints are set aside, %d failures told: it is there, and takes connections", n, w.failed.Load())
			}
		}, func(w http.ResponseWriter, r *http.Request) { hang(w, r); left.Add(1) })
	})
	t.Run("one that answers in time", func(t *testing.T) {
		t.Parallel()
		inTime(t, limit, func(w *waiting) { w.check(nil, 200, "", limit-1) }, after(limit-1))
	})
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		inTime(t, 0, func(w *waiting) { w.check(nil, 200, "", 24*time.Hour) }, after(24*time.Hour))
	})
	t.Run("a body that takes longer", func(t *testing.T) {
		t.Parallel()
		inTime(t, limit, func(w *waiting) { w.check(slowly(10, limit), 200, "", 10*limit+limit/2) }, after(limit/2))
		inTime(t, limit, func(w *waiting) { w.check(slowly(10, limit), 504, "route_timeout", 11*limit) }, hang)
	})
	t.Run("an answer that takes longer", func(t *testing.T) {
		t.Parallel()
		inTime(t, limit, func(w *waiting) { w.check(nil, 200, "", 10*limit) }, func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).Flush()
			for range 10 {
				time.Sleep(limit)
				_, _ = io.WriteString(w, "piece")
			}
		})
	})
	t.Run("an answer before the body has ended", func(t *testing.T) {
		t.Parallel()
		inTime(t, limit, func(w *waiting) { w.check(slowly(4, limit), 200, "", 8*limit) }, func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).EnableFullDuplex()
			_ = http.NewResponseController(w).Flush()
			_, _ = io.Copy(io.Discard, r.Body)
			time.Sleep(4 * limit) // the body ends after the answer has begun
		})
	})
	t.Run("hints are no answer", func(t *testing.T) {
		t.Parallel()
		inTime(t, limit, func(w *waiting) { w.check(nil, 504, "route_timeout", limit) }, func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				w.WriteHeader(http.StatusEarlyHints)
				select {
				case <-time.After(limit / 3):
				case <-r.Context().Done():
				}
			}
		})
	})
	t.Run("a second attempt has what is left", func(t *testing.T) {
		t.Parallel()
		inTime(t, limit, func(w *waiting) {
			if w.p.cfg.Table.Load().Services()[0].Protocol == discovery.HTTP { // over HTTP/2 there is none
				w.check(nil, 504, "route_timeout", limit)
			}
		}, func(http.ResponseWriter, *http.Request) { time.Sleep(limit / 2); panic(http.ErrAbortHandler) }, hang)
	})
	t.Run("a caller who leaves", func(t *testing.T) {
		t.Parallel()
		inTime(t, limit, func(w *waiting) {
			ctx, leave := context.WithTimeout(w.Context(), limit/2)
			defer leave()
			began := time.Now()
			w.send(ctx, nil)
			if took := time.Since(began); took != limit/2 {
				w.Errorf("it took %s", took)
			}
		}, hang)
	})
}

// Nothing is left of a wait that is over, or the exchange would be kept until its time has come.
func TestPatienceEndsWithTheExchange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	x := w.proxy.begin(nullWriter{http.Header{}}, r)
	x.service = w.publish(discovery.Service{RouteTimeout: time.Hour})
	x.carrier.begin(t.Context(), x)
	w.proxy.watch(x)
	trace := httptrace.ContextClientTrace(x.traced(t.Context()))
	trace.WroteRequest(struct{ Err error }{})
	w.proxy.unwatch(x)
	if x.patience.timer.Stop() {
		t.Error("the timer goes on")
	}
	late := &patience{x: x, limit: time.Nanosecond, over: true}
	late.wrote(struct{ Err error }{})
	if late.timer != nil {
		t.Error("somebody who has answered is waited for")
	}

	if x.carrier.Err() != nil {
		t.Error("it was ended")
	}

	x.service, x.patience = w.publish(discovery.Service{}), nil
	if trace := httptrace.ContextClientTrace(x.traced(t.Context())); trace.WroteRequest != nil || x.patience != nil {
		t.Error("a service without a limit pays for one")
	}
}

// Whoever comes too late is not half let through: the caller is told one thing.
func TestAnswerThatComesTooLate(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	defer theirs.Close()
	x := &exchange{patience: &patience{limit: time.Second, late: true}, upgraded: &upgraded{conn: ours}}
	res, err := x.answered(nil, errSwitched)
	if c, public := known(err); res != nil || c != causeRouteTimeout || public != "the job did not begin its answer within 1s (route_timeout_seconds in its annotation)" {
		t.Errorf("got %v, %v", res, err)
	}
	_ = ours.SetDeadline(time.Unix(1, 0))
	if _, err := ours.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) || x.upgraded != nil {
		t.Errorf("the tunnel is still there: %v", err)
	}
}

func TestRouteTimeoutOfWebSocket(t *testing.T) {
	t.Parallel()
	const limit = 500 * time.Millisecond
	w := newWorld(t)
	left := make(chan struct{})
	silent := w.publish(discovery.Service{Name: "silent", RouteTimeout: 50 * time.Millisecond}, rawJob(t, func(conn net.Conn, _ *http.Request, _ *bufio.Reader) {
		_, _ = io.Copy(io.Discard, conn)
		close(left)
	}))
	_, res, err := w.dialWebSocket(host(silent), nil)
	if err == nil || res == nil || res.StatusCode != 504 || res.Header.Get("X-Yt-Taskproxy-Error") != "route_timeout" {
		t.Fatalf("got %v, %v", res, err)
	}
	<-left

	open := w.publish(discovery.Service{Name: "open", RouteTimeout: limit}, serveUnguarded(t, wsEcho(t, nil)))
	conn, _, err := w.dialWebSocket(host(open), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	for began := time.Now(); time.Since(began) < limit+limit/4; {
		if err := conn.Write(t.Context(), websocket.MessageText, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, _, err := conn.Read(t.Context()); err != nil {
			t.Fatalf("after %s: %v", time.Since(began), err)
		}
	}
}

// lateJob hangs when it is asked for something big.
type lateJob struct {
	grpcJob
	left chan error
}

func (j *lateJob) UnaryCall(ctx context.Context, r *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	if r.GetResponseSize() == 0 {
		return j.grpcJob.UnaryCall(ctx, r)
	}
	<-ctx.Done()
	j.left <- ctx.Err()
	return nil, ctx.Err()
}

func TestRouteTimeoutOfGRPC(t *testing.T) {
	t.Parallel()
	l := listen(t)
	job := &lateJob{grpcJob: grpcJob{tb: t, name: "one"}, left: make(chan error, 1)}
	server := grpc.NewServer()
	testpb.RegisterTestServiceServer(server, job)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-done })

	w := newWorld(t)
	s := w.publish(discovery.Service{Protocol: discovery.GRPC, RouteTimeout: time.Second}, l.Addr().String())
	client := w.dialGRPC(host(s))
	var trailer metadata.MD
	_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{ResponseSize: 1}, grpc.Trailer(&trailer))
	if got := trailer.Get("x-yt-taskproxy-error"); status.Code(err) != codes.DeadlineExceeded || len(got) != 1 || got[0] != "route_timeout" {
		t.Errorf("got %v, trailer %v", err, trailer)
	}
	if err := <-job.left; err == nil {
		t.Error("the job goes on")
	}
	// The others on the job's connection are not concerned.
	if res, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil || res.GetServerId() != "one" {
		t.Errorf("got %v, %v", res, err)
	}
	if n := w.proxy.balancer.states.aside(); n != 0 {
		t.Errorf("%d endpoints are set aside", n)
	}
}

// A service's annotation overrides --idle-timeout in both directions.
func TestIdleTimeoutOfAService(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		all, own  time.Duration
		ends      time.Duration
		goesOnFor time.Duration
	}{
		{"shorter", time.Hour, 5 * time.Minute, 5 * time.Minute, 5*time.Minute - 1},
		{"longer", time.Minute, time.Hour, time.Hour, time.Hour - 1},
		{"never", time.Minute, -1, 0, 24 * time.Hour},
		{"where all others have none", -1, time.Minute, time.Minute, time.Minute - 1},
		{"that of all", time.Minute, 0, time.Minute, time.Minute - 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(cfg *Config, _ *moments) {
				cfg.IdleTimeout = c.all
				s := *cfg.Table.Load().Services()[0]
				s.IdleTimeout = c.own
				snapshot, _ := discovery.NewSnapshot(nil, nil, []discovery.Service{s})
				cfg.Table.Store(snapshot)
			}, func(w *watched) {
				time.Sleep(c.goesOnFor)
				if got := w.reason(); got != "" {
					t.Errorf("ended because of %s", got)
				}
				if c.ends > 0 {
					w.ends("idle_timeout", c.ends, c.ends)
				}
			})
		})
	}
	w := newWorld(t, func(c *Config) { c.IdleTimeout = -1 })
	silent := listen(t)
	defer silent.Close()
	s := w.publish(discovery.Service{IdleTimeout: 50 * time.Millisecond}, silent.Addr().String())
	w.get(host(s), "/").check(t, 504, "idle_timeout")
}
