package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"taskproxy/discovery"
)

// tally is jobs that count their requests.
type tally []atomic.Int64

func newTally(tb testing.TB, jobs int) (t tally, endpoints []discovery.Endpoint) {
	t = make(tally, jobs)
	for i := range t {
		addr := serve(tb, func(http.ResponseWriter, *http.Request) { t[i].Add(1) })
		endpoints = append(endpoints, discovery.Endpoint{JobID: fmt.Sprint("job-", i), Addr: addr})
	}
	return t, endpoints
}

// counts are the requests since the last look.
func (t tally) counts() (counts []int64) {
	for i := range t {
		counts = append(counts, t[i].Swap(0))
	}
	return counts
}

const clients, times = 8, 27 // 216 requests, no multiple of five

// crowd has clients ask so many times each, all at once, and calls meanwhile until they are done.
func (w *world) crowd(s *discovery.Service, meanwhile func(i int)) {
	w.tb.Helper()
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for range times {
				res, err := w.client.Do(w.request("GET", host(s), "/", nil))
				if err != nil {
					w.tb.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, res.Body)
				if res.Body.Close(); res.StatusCode != 200 {
					w.tb.Errorf("status %d", res.StatusCode)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	often := time.NewTicker(time.Millisecond)
	defer often.Stop()
	for i := 0; ; i++ {
		select {
		case <-done:
			return
		case <-often.C:
			meanwhile(i)
		}
	}
}

// wantEven checks that counts differ by one at most and that nothing is lost.
func wantEven(tb testing.TB, when string, counts []int64) {
	tb.Helper()
	sum := int64(0)
	for _, n := range counts {
		sum += n
	}
	if slices.Max(counts)-slices.Min(counts) > 1 || sum != clients*times {
		tb.Errorf("%s: %v of %d requests, want the same for each", when, counts, clients*times)
	}
}

// The round robin is exact whatever is swapped meanwhile: this service's siblings, and this service itself with the endpoints that
// it had.
func TestRoundRobinIsExact(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.client.Transport.(*http.Transport).MaxIdleConnsPerHost = 8
	jobs, endpoints := newTally(t, 5)
	s := w.publish(discovery.Service{Endpoints: endpoints})
	sibling := discovery.Service{OperationID: "1-2-3e8-99", Task: "task", Name: "sibling", Protocol: discovery.HTTP}
	swaps := 0
	swap := func(i int) {
		w.services = w.services[:1]
		w.services[0].Origins = [][]string{nil, {"https://a.test"}, {"https://b.test"}}[i%3]
		if i%2 == 0 {
			w.services = append(w.services, sibling)
		}
		w.republish(endpoints...)
		swaps++
	}
	w.crowd(s, swap)
	wantEven(t, "swapped all the time", jobs.counts())
	if swaps < 3 {
		t.Errorf("%d swaps", swaps)
	}

	w.republish(endpoints[:3]...)
	w.crowd(s, func(int) {})
	wantEven(t, "two have left", jobs.counts()[:3])
	w.republish(endpoints...)
	w.crowd(s, func(int) {})
	wantEven(t, "they are back", jobs.counts())
}

// What an endpoint that is set aside leaves to others it leaves to all of them alike: also the requests that try it again.
func TestRoundRobinIsExactOverTheRest(t *testing.T) {
	t.Parallel()
	for _, vouching := range []bool{false, true} {
		w := newWorld(t, func(c *Config) {
			if vouching {
				c.OnConnectFailure = func(*discovery.Service, discovery.Endpoint) {}
			}
		})
		w.client.Transport.(*http.Transport).MaxIdleConnsPerHost = 8
		jobs, endpoints := newTally(t, 4)
		dead := discovery.Endpoint{JobID: "dead", Addr: deadAddr(t)}
		s := w.publish(discovery.Service{Endpoints: slices.Insert(slices.Clone(endpoints), 1, dead)})
		aside := w.proxy.balancer.states.of(s).aside
		aside.failed(dead)
		w.crowd(s, func(int) {
			aside.mu.Lock()
			defer aside.mu.Unlock()
			if p := aside.m[dead]; !p.probing {
				p.until = p.until.Add(-longAside) // its time is over: somebody tries it again
			}
		})
		wantEven(t, fmt.Sprint("one is set aside, vouching ", vouching), jobs.counts())
	}
}

// A server may end a kept connection just when a request comes. That is no failure of a request that may be sent again, also if the
// other endpoints are known to be dead, or turn out to be.
func TestBrokenKeptConnectionWithoutAnother(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{true, false} {
		var told atomic.Int32
		breaksKept := rawJob(t, func(conn net.Conn, _ *http.Request, rest *bufio.Reader) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			if _, err := http.ReadRequest(rest); err == nil {
				told.Add(1)
			}
		})
		w := newWorld(t, func(c *Config) { c.OnConnectFailure = func(*discovery.Service, discovery.Endpoint) {} })
		s := w.publish(discovery.Service{}, breaksKept, deadAddr(t))
		for range 8 {
			w.get(host(s), "/").check(t, 200, "")
			if !known { // it fails for each request anew
				w.proxy.balancer.states.of(s).aside.succeeded(vouched(s.Endpoints[1]))
			}
		}
		if told.Load() == 0 {
			t.Error("no kept connection was used")
		}
		w.proxy.Close()
	}
}

// vouched is an endpoint as it is when somebody has vouched for it since.
func vouched(e discovery.Endpoint) discovery.Endpoint {
	e.Vouched++
	return e
}

// A request that one job has kept for long moves on to an endpoint of now: what its snapshot has may be a stranger's by then.
func TestMovesOnToWhatIsThereNow(t *testing.T) {
	t.Parallel()
	for _, change := range []string{"another endpoint", "none left", "the service has gone", "it was gone for a while"} {
		arrived, cut := make(chan struct{}), make(chan struct{})
		keeps := rawJob(t, func(net.Conn, *http.Request, *bufio.Reader) { close(arrived); <-cut })
		stranger := serve(t, func(http.ResponseWriter, *http.Request) { t.Errorf("%s: a stranger got the request", change) })
		now := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "now") })
		w := newWorld(t)
		s := w.publish(discovery.Service{}, keeps, stranger)
		first := s.Endpoints[0]
		answers := make(chan answer)
		go func() { answers <- w.get(host(s), "/") }()
		<-arrived
		next := discovery.Endpoint{JobID: "next", Addr: now}
		switch change {
		case "another endpoint":
			w.republish(first, next)
		case "none left":
			w.republish(first)
		case "the service has gone":
			w.table.Store(nil)
		case "it was gone for a while":
			w.table.Store(nil)
			w.republish(next)
		}
		close(cut)
		a := <-answers
		if change == "another endpoint" || change == "it was gone for a while" {
			if a.check(t, 200, ""); a.body != "now" {
				t.Errorf("%s: got %q", change, a.body)
			}
		} else {
			a.check(t, 502, "upstream_broken")
		}
	}
}

// Calling all endpoints of a large service costs each of them the same, and the swap costs no transports.
func TestStateOfALargeService(t *testing.T) {
	endpoints := make([]discovery.Endpoint, 4000)
	for i := range endpoints {
		endpoints[i] = discovery.Endpoint{JobID: fmt.Sprint(i), Addr: fmt.Sprint("node:", i+1)}
	}
	w := newWorld(t)
	s := w.publish(discovery.Service{Endpoints: endpoints})
	states := w.proxy.balancer.states
	if n := testing.AllocsPerRun(1, func() {
		for _, e := range endpoints {
			if states.of(s).pool(states.dialer, s, e).made.Load() != nil {
				t.Fatal("made before anybody has asked for it")
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
