package proxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"taskproxy/discovery"
)

// countingJob is a server that tells how many connections it has.
type countingJob struct {
	*httptest.Server
	mu   sync.Mutex
	open map[net.Conn]bool
	made int
}

// newCountingJob listens at addr, or anywhere if that is empty. It serves HTTP/1.1 and h2c.
func newCountingJob(tb testing.TB, addr string, h http.HandlerFunc) *countingJob {
	tb.Helper()
	j := &countingJob{Server: httptest.NewUnstartedServer(h), open: make(map[net.Conn]bool)}
	if addr != "" {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			tb.Fatal(err)
		}
		j.Listener.Close()
		j.Listener = l
	}
	j.Config.Protocols = new(http.Protocols)
	j.Config.Protocols.SetHTTP1(true)
	j.Config.Protocols.SetUnencryptedHTTP2(true)
	j.Config.ConnState = func(c net.Conn, state http.ConnState) {
		j.mu.Lock()
		defer j.mu.Unlock()
		switch state {
		case http.StateNew:
			j.open[c] = true
			j.made++
		case http.StateClosed, http.StateHijacked:
			delete(j.open, c)
		}
	}
	j.Start()
	tb.Cleanup(func() { j.CloseClientConnections(); j.Close() })
	return j
}

func (j *countingJob) addr() string { return j.Listener.Addr().String() }

func (j *countingJob) connections() (open, made int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.open), j.made
}

// republish replaces the endpoints of the first service.
func (w *world) republish(endpoints ...discovery.Endpoint) {
	w.tb.Helper()
	w.services[0].Endpoints = endpoints
	snapshot, problems := discovery.NewSnapshot(w.table.Load(), w.labels, w.services)
	if len(problems) > 0 {
		w.tb.Fatal(problems)
	}
	w.table.Store(snapshot)
}

var bothProtocols = []discovery.Protocol{discovery.HTTP, discovery.GRPC}

// An endpoint that leaves has its idle connections closed, and one that is in use when the exchange ends. Other endpoints of the
// service, and other services, keep theirs.
func TestConnectionsToVanishedEndpointsAreClosed(t *testing.T) {
	t.Parallel()
	for _, protocol := range bothProtocols {
		t.Run(string(protocol), func(t *testing.T) {
			t.Parallel()
			released := make(chan struct{})
			release := sync.OnceFunc(func() { close(released) })
			serve := func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/slow" {
					_, _ = io.WriteString(w, "begun")
					_ = http.NewResponseController(w).Flush()
					<-released
				}
				_, _ = io.WriteString(w, ".")
			}
			a, b, other := newCountingJob(t, "", serve), newCountingJob(t, "", serve), newCountingJob(t, "", serve)
			w := newWorld(t)
			defer release()
			s := w.publish(discovery.Service{Protocol: protocol}, a.addr(), b.addr())
			o := w.publish(discovery.Service{Protocol: protocol}, other.addr())
			for range 6 {
				w.get(host(s), "/")
				w.get(host(o), "/")
			}
			slow, err := w.client.Do(w.request("GET", host(s), "/slow", nil))
			if err != nil {
				t.Fatal(err)
			}
			defer slow.Body.Close()
			w.get(host(s), "/") // the slow one is a's, this is b's
			w.get(host(s), "/")
			if open, _ := a.connections(); open != map[discovery.Protocol]int{discovery.HTTP: 2, discovery.GRPC: 1}[protocol] {
				t.Fatalf("a has %d connections", open)
			}
			w.republish(discovery.Endpoint{JobID: "job-1", Addr: b.addr()})
			eventually(t, "the idle connection is closed", func() bool { open, _ := a.connections(); return open == 1 })
			for range 4 {
				w.get(host(s), "/")
				w.get(host(o), "/")
			}
			for name, j := range map[string]*countingJob{"the one that stays": b, "another service's": other} {
				if open, made := j.connections(); open != 1 || made != 1 {
					t.Errorf("%s has %d connections of %d that were made, want its first one", name, open, made)
				}
			}
			if open, _ := a.connections(); open != 1 {
				t.Errorf("a has %d connections while it answers, want one", open)
			}
			release()
			if body, err := io.ReadAll(slow.Body); err != nil || string(body) != "begun." {
				t.Errorf("the answer that went on is %q, %v", body, err)
			}
			eventually(t, "the last connection is closed", func() bool { open, _ := a.connections(); return open == 0 })
			r := &w.proxy.balancer.states.retired
			eventually(t, "nothing is remembered of it", func() bool {
				r.mu.Lock()
				defer r.mu.Unlock()
				return len(r.pools) == 0 && !r.ticking
			})
		})
	}
}

// Ports are given to other people's jobs. A connection that was made to one job never carries a request for another that has the
// same address later, whosever it is, also if the old one is still there and would answer.
func TestConnectionIsNeverAnotherJobs(t *testing.T) {
	t.Parallel()
	for _, protocol := range bothProtocols {
		for _, same := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, same service %t", protocol, same), func(t *testing.T) {
				t.Parallel()
				says := func(name string) http.HandlerFunc {
					return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }
				}
				first := newCountingJob(t, "", says("first"))
				w := newWorld(t)
				s := w.publish(discovery.Service{Protocol: protocol}, first.addr())
				if got := w.get(host(s), "/").body; got != "first" {
					t.Fatalf("got %q", got)
				}
				// It gives its port up and goes on serving its connections.
				first.Listener.Close()
				newCountingJob(t, first.addr(), says("second"))
				old, next := w.services[0].Endpoints[0], discovery.Endpoint{JobID: "next", Addr: first.addr()}
				if same {
					w.republish(next)
				} else {
					// The old service is still in the table: discovery has not yet heard of its job's end.
					w.services = append(w.services, discovery.Service{
						OperationID: "1-2-3e8-99", Task: "task", Name: "ui", Protocol: protocol, User: "bob", Endpoints: []discovery.Endpoint{next},
					})
					w.republish(old)
					s = w.table.Load().Lookup(discovery.LongID("1-2-3e8-99", "task", "ui"))
				}
				if open, _ := first.connections(); !same && open != 1 {
					t.Errorf("the first job has %d connections", open)
				}
				for range 3 {
					if got := w.get(host(s), "/").body; got != "second" {
						t.Errorf("got %q, want what the second job says", got)
					}
				}
				if same { // and back: the second's must not serve the first's name
					third := discovery.Endpoint{JobID: "third", Addr: first.addr()}
					before := w.proxy.balancer.states.of(s).pool(nil, s, place(next))
					w.republish(third)
					s = w.table.Load().Services()[0]
					if w.proxy.balancer.states.of(s).pool(newDialer(time.Second), s, third) == before {
						t.Error("one pool for two jobs")
					}
				}
			})
		}
	}
}

// A request that resolved its service just before a swap may still go to the endpoint that has left, on a connection that nobody
// else gets and that does not stay.
func TestRequestOlderThanTheTable(t *testing.T) {
	t.Parallel()
	for _, protocol := range bothProtocols {
		job := newCountingJob(t, "", func(http.ResponseWriter, *http.Request) {})
		w := newWorld(t)
		s := w.publish(discovery.Service{Protocol: protocol}, job.addr())
		e := s.Endpoints[0]
		states := w.proxy.balancer.states
		for _, what := range []string{"its endpoint", "its service"} {
			if w.republish(); what == "its service" {
				w.table.Store(nil)
			}
			p := states.of(s).pool(states.dialer, s, e)
			r, _ := http.NewRequestWithContext(t.Context(), "GET", "http://"+job.addr(), nil)
			res, err := p.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if states.of(s).pool(states.dialer, s, e) == p {
				t.Errorf("%s has left, and the pool has not", what)
			}
			eventually(t, "its connection is closed", func() bool { open, made := job.connections(); return open == 0 && made > 0 })
		}
		if n := len(*states.current.Load()); n != 0 {
			t.Errorf("%d services remembered", n)
		}
	}
}

// What is known of an endpoint that failed outlives a service that goes and comes back.
func TestFailureOutlivesItsService(t *testing.T) {
	t.Parallel()
	f := new(failures)
	w := newWorld(t, func(c *Config) { c.OnConnectFailure = f.add })
	s := w.publish(discovery.Service{}, deadAddr(t))
	w.get(host(s), "/").check(t, 502, "connect_failed")
	w.table.Store(nil)
	w.republish(w.services[0].Endpoints...)
	a := w.get(host(s), "/")
	a.check(t, 502, "connect_failed")
	if record := w.log.wait(t, a.Header.Get("X-Request-Id")); record["endpoint"] != nil {
		t.Errorf("dialled %v again, and nobody has vouched for it", record["endpoint"])
	}
}

// A job that has ended, as the cluster says, is done with within DrainTimeout, and told so as everything else; its service and
// the other jobs go on. One that is held is not cut.
func TestStreamsEndWithTheirJob(t *testing.T) {
	t.Parallel()
	for protocol, open := range openers {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			const timeout = 600 * time.Millisecond
			w := newWorld(t, func(c *Config) { c.DrainTimeout = timeout })
			c := open(t, w)
			was := w.services[0].Endpoints
			w.services[0].Held = was
			w.republish()
			for start := time.Now(); time.Since(start) < 2*timeout; time.Sleep(timeout / 10) {
				if err := c.alive(); err != nil {
					t.Fatalf("a held one: %v", err)
				}
			}
			again := was[0]
			again.Vouched++
			w.republish(again)
			w.services[0].Held = nil
			w.republish(again)
			if err := c.alive(); err != nil {
				t.Fatal(err)
			}
			w.republish(discovery.Endpoint{JobID: "another", Addr: was[0].Addr}) // a job that has the same port now
			start := time.Now()
			c.check(t, w, protocol, "job_ended")
			if took := time.Since(start); took < timeout/2 || took > timeout+2*time.Second {
				t.Errorf("ended after %s", took)
			}
		})
	}
}

// Finding an endpoint's connections costs a request no allocation.
func TestStateCostsNoAllocation(t *testing.T) {
	w := newWorld(t)
	s := w.publish(discovery.Service{}, "127.0.0.1:1", "127.0.0.1:2")
	states := w.proxy.balancer.states
	e := s.Endpoints[1]
	if n := testing.AllocsPerRun(100, func() { states.of(s).pool(states.dialer, s, e) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
