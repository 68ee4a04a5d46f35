package proxy

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"taskproxy/discovery"
)

// A cause that is not in the list would have no metric.
func TestCausesAreAllCounted(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("errors.go")
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^\tcause\w+ += &cause\{"(\w+)"`).FindAllStringSubmatch(string(source), -1)
	if len(declared) < 20 {
		t.Fatalf("%d causes in errors.go: has it changed its form?", len(declared))
	}
	for _, d := range declared {
		if !slices.ContainsFunc(causes, func(c *cause) bool { return c.reason == d[1] }) {
			t.Errorf("%s is not among the causes that have metrics", d[1])
		}
	}
}

// Whatever status a job invents, there are so many labels and no more.
func TestStatusLabel(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for status := -1; status < 1100; status++ {
		seen[statusLabel(status)] = true
	}
	if len(seen) > 75 {
		t.Errorf("%d different labels", len(seen))
	}
	for status, want := range map[int]string{0: "other", 200: "200", 299: "2xx", 404: "404", 499: "499", 520: "5xx", 999: "other"} {
		if got := statusLabel(status); got != want {
			t.Errorf("%d: got %q, want %q", status, got, want)
		}
	}
}

// The bytes of a stream count while it goes on, each once.
func TestBytesOfStreamsCountEarly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(cfg *Config) { cfg.DrainTimeout = 30 * time.Millisecond })
	s := w.publish(discovery.Service{}, serve(t, func(rw http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(rw).EnableFullDuplex()
		_, _ = io.WriteString(rw, "12345")
		_ = http.NewResponseController(rw).Flush()
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(rw, "678")
	}))
	sum := func(name string) string {
		t.Helper()
		families, err := w.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "yt_task_proxy_"+name && m.GetLabel()[0].GetValue() == "http" {
					return fmt.Sprint(m.GetCounter().GetValue())
				}
			}
		}
		t.Fatalf("no metric %s", name)
		return ""
	}
	body, feed := io.Pipe()
	res, err := w.client.Do(w.request("POST", host(s), "/", body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := feed.Write([]byte("abcd")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(res.Body, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	// It counts as soon as it has lasted long enough to be looked at.
	for deadline := time.Now().Add(10 * time.Second); sum("received_bytes_total") != "4" || sum("sent_bytes_total") != "5"; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("received %s, sent %s, want 4 and 5 while the stream goes on", sum("received_bytes_total"), sum("sent_bytes_total"))
		}
	}
	feed.Close()
	if rest, err := io.ReadAll(res.Body); err != nil || string(rest) != "678" {
		t.Fatalf("got %q, %v", rest, err)
	}
	w.log.wait(t, res.Header.Get("X-Request-Id"))
	if in, out := sum("received_bytes_total"), sum("sent_bytes_total"); in != "4" || out != "8" {
		t.Errorf("received %s, sent %s, want 4 and 8", in, out)
	}
}

// takeOver is called by whoever looks at the metrics and by the end of an exchange at once.
func TestTakeOverCountsEachByteOnce(t *testing.T) {
	t.Parallel()
	var sum, moved, counted atomic.Int64
	var all sync.WaitGroup
	const each, writers = 10_000, 4
	for range writers {
		all.Go(func() {
			for range each {
				moved.Add(1)
				takeOver(&sum, &moved, &counted)
			}
		})
	}
	for last := int64(0); last < each*writers; {
		now := sum.Load()
		if now < last {
			t.Fatalf("the sum went from %d to %d", last, now)
		}
		last = now
	}
	all.Wait()
	if got := sum.Load(); got != each*writers {
		t.Errorf("got %d, want %d", got, each*writers)
	}
}

// What a request adds to the metrics costs no memory.
func TestRecordDoesNotAllocate(t *testing.T) {
	m, err := newMetrics(nil, gauges{})
	if err != nil {
		t.Fatal(err)
	}
	x := &exchange{in: new(http.Request), authorized: true}
	x.w.x, x.w.status = x, 207
	m.record(x, 0)
	if n := testing.AllocsPerRun(100, func() { x.bytesIn.Add(5); m.record(x, 0) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if got := testutil.ToFloat64(m.of[protocolHTTP].requests.http(207)); got != 102 {
		t.Errorf("counted %v", got)
	}
	if !strings.HasPrefix(causeNoCluster.fault(), "cluster") {
		t.Error("whose fault is that?")
	}
}
