package proxy

import (
	"fmt"
	"io"
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
