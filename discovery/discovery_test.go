package discovery

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"taskproxy/ytclient"
)

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	f := func(change func(*Config), want string) {
		t.Helper()
		cfg := Config{Source: &source{}}
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
	f(func(c *Config) { c.Source = nil }, "Source is required")
	f(func(c *Config) { c.Store = &store{} }, "Bases are required")
	f(func(c *Config) { c.Period = -time.Second }, "Period is -1s")
	f(func(c *Config) { c.CallTimeout = -1 }, "CallTimeout is -1ns")
	f(func(c *Config) { c.JobsRefreshPeriod = -1 }, "JobsRefreshPeriod is -1ns")
	f(func(c *Config) { c.StaleLimit = -1 }, "StaleLimit is -1ns")
	f(func(c *Config) { c.Concurrency = -2 }, "Concurrency is -2")
	r := prometheus.NewRegistry()
	if _, err := New(Config{Source: &source{}, Registerer: r}); err != nil {
		t.Fatal(err)
	}
	f(func(c *Config) { c.Registerer = r }, "register the metrics")
}

// running starts d and returns a function that ends it and fails the test if it does not end well.
func running(t *testing.T, d *Discovery) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- d.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	}
}

// near fails the test unless got is want, give or take the jitter of a tenth.
func near(t *testing.T, what string, got, want time.Duration) {
	t.Helper()
	if got < want*9/10 || got > want*11/10 {
		t.Errorf("%s after %s, want %s ± 10%%", what, got, want)
	}
}

func TestRunPeriod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var cycles []time.Time
		var snapshots int
		d, err := New(Config{
			Source: &source{listOperations: func() (ytclient.Listing, error) {
				mu.Lock()
				defer mu.Unlock()
				cycles = append(cycles, time.Now())
				if len(cycles) == 3 {
					time.Sleep(15 * time.Second) // outlasts the period
				}
				return ytclient.Listing{}, nil
			}},
			CallTimeout: time.Minute,
			OnSnapshot:  func(*Snapshot) { snapshots++ },
		})
		if err != nil {
			t.Fatal(err)
		}
		if d.Ready() || d.Snapshot() == nil || d.Snapshot().Len() != 0 {
			t.Error("before Run: ready, or no empty snapshot")
		}
		began := time.Now()
		stop := running(t, d)
		synctest.Wait()
		mu.Lock()
		if !d.Ready() || snapshots != 1 || len(cycles) != 1 || !cycles[0].Equal(began) {
			t.Errorf("at once: ready %t, %d snapshots, cycles %v; want an empty snapshot from a cycle at once", d.Ready(), snapshots, cycles)
		}
		mu.Unlock()
		time.Sleep(time.Minute)
		stop()
		near(t, "the second cycle", cycles[1].Sub(cycles[0]), 10*time.Second)
		near(t, "the third cycle", cycles[2].Sub(cycles[1]), 10*time.Second)
		near(t, "the cycle after one that outlasted the period", cycles[3].Sub(cycles[2])-15*time.Second, 2500*time.Millisecond)
		if snapshots != 1 {
			t.Errorf("%d snapshots although nothing changed", snapshots)
		}
	})
}

func TestRunBackoff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var cycles []time.Time
		answers := map[int]bool{8: true}
		registry := prometheus.NewRegistry()
		d, err := New(Config{
			Registerer: registry,
			Source: &source{listOperations: func() (ytclient.Listing, error) {
				cycles = append(cycles, time.Now())
				if answers[len(cycles)] {
					return ytclient.Listing{}, nil
				}
				return ytclient.Listing{}, ytclient.ErrUnavailable
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		stop := running(t, d)
		time.Sleep(10 * time.Second)
		if d.Ready() {
			t.Error("ready although no cycle was answered")
		}
		time.Sleep(10 * time.Minute)
		if !d.Ready() {
			t.Error("failures after the first answer cost readiness")
		}
		stop()
		// Before the first answer from a second on, after it from the period on, and never beyond a minute.
		for i, want := range []int{1, 2, 4, 8, 16, 32, 60, 10, 10, 20, 40, 60, 60} {
			near(t, "a cycle", cycles[i+1].Sub(cycles[i]), time.Duration(want)*time.Second)
		}
		if got := testutil.ToFloat64(d.metrics.failed.WithLabelValues("unavailable")); got != float64(len(cycles)-1) {
			t.Errorf("%v failures counted of %d", got, len(cycles)-1)
		}
		if got := testutil.ToFloat64(d.metrics.succeeded); got != 1 {
			t.Errorf("%v successes counted", got)
		}
		if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) != 0 {
			t.Errorf("metrics: %v %v", err, problems)
		}
	})
}

func TestPause(t *testing.T) {
	t.Parallel()
	f := func(period time.Duration, failures int, took, want time.Duration) {
		t.Helper()
		d := &Discovery{period: period}
		d.ready.Store(true)
		if got := d.pause(failures, took); got != want {
			t.Errorf("period %s, %d failures, took %s: pause %s, want %s", period, failures, took, got, want)
		}
	}
	f(10*time.Second, 0, 0, 10*time.Second)
	f(10*time.Second, 0, 4*time.Second, 6*time.Second)
	f(10*time.Second, 0, time.Hour, 2500*time.Millisecond)
	f(10*time.Second, 3, time.Hour, 40*time.Second)
	f(10*time.Second, 1000, 0, time.Minute)
	f(5*time.Minute, 1, 0, 5*time.Minute)
	f(5*time.Minute, 1000, 0, 5*time.Minute)
}

func TestRunCallTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		d, err := New(Config{Source: &hanging{}, CallTimeout: 3 * time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		stop := running(t, d)
		time.Sleep(3*time.Second + time.Millisecond)
		synctest.Wait()
		if got := testutil.ToFloat64(d.metrics.failed.WithLabelValues("timeout")); got != 1 || !strings.Contains(log.String(), "reason=timeout") {
			t.Errorf("%v timeouts counted, log %q", got, log.String())
		}
		time.Sleep(2 * time.Second) // into the next call
		log.Reset()
		stop()
		if got := testutil.ToFloat64(d.metrics.failed.WithLabelValues("timeout")); got != 1 || log.Len() != 0 {
			t.Errorf("our own end is told as a failure: %v counted, log %q", got, log.String())
		}
	})
}

// hanging is a cluster that never answers.
type hanging struct{ source }

func (hanging) ListOperations(ctx context.Context) (ytclient.Listing, error) {
	<-ctx.Done()
	return ytclient.Listing{}, ctx.Err()
}

// The fan-out is as wide as the configuration says, and no wider.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		listing := ytclient.Listing{}
		for _, id := range strings.Fields("1 2 3 4 5 6 7 8 9 10") {
			listing.Operations = append(listing.Operations, ytclient.Operation{ID: id, Annotations: map[string]any{"task_proxy": map[string]any{"enabled": true}}})
		}
		slow := func() {
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(time.Second)
			now.Add(-1)
		}
		d, err := New(Config{Concurrency: 4, Source: &source{
			listOperations: func() (ytclient.Listing, error) { return listing, nil },
			getOperation: func(id string) (ytclient.OperationInfo, error) {
				slow()
				return ytclient.OperationInfo{ID: id, State: "running", Tasks: []ytclient.Task{{Name: "t", JobCount: 1, PortCount: 1}}}, nil
			},
			listJobs: func(string) (ytclient.JobListing, error) { slow(); return ytclient.JobListing{}, nil },
		}})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := d.cycle(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := time.Since(began); most.Load() != 4 || got != 6*time.Second {
			t.Errorf("%d calls at a time, %s in all; want 4 and 6s", most.Load(), got)
		}
		if got := d.Snapshot().Len(); got != 10 {
			t.Errorf("%d services", got)
		}
		if got := d.calls.Load(); got != 21 {
			t.Errorf("%d calls counted, want 21", got)
		}
	})
}

// A problem is logged when it comes and when it goes, not in between, and what its author wrote stays on one line.
func TestProblemsAreToldOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	annotation := map[string]any{"enabled": "maybe\nlevel=ERROR msg=forged"}
	d, err := New(Config{
		Source: &source{listOperations: func() (ytclient.Listing, error) {
			return ytclient.Listing{Operations: []ytclient.Operation{{ID: "1-1", Annotations: map[string]any{"task_proxy": annotation}}}}, nil
		}},
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	cycles := func(n int) string {
		log.Reset()
		for range n {
			if err := d.cycle(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		return log.String()
	}
	if got := cycles(3); strings.Count(got, "level=WARN") != 1 || strings.Contains(got, "\nlevel=ERROR") {
		t.Errorf("the log of a new problem:\n%s", got)
	}
	if got := testutil.ToFloat64(d.metrics.problems.WithLabelValues("bad_annotation")); got != 1 || len(d.Problems()) != 1 {
		t.Errorf("%v problems counted, told %v", got, d.Problems())
	}
	annotation = nil
	if got := cycles(3); strings.Count(got, "problem of a service is gone") != 1 || len(d.Problems()) != 0 {
		t.Errorf("the log of a problem that is gone:\n%s", got)
	}
}

func TestCause(t *testing.T) {
	t.Parallel()
	if got := cause(errors.New("x")); got != "other" {
		t.Errorf("cause of an unknown error = %q", got)
	}
}
