package discovery

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"taskproxy/ytclient"
)

// store is a services table in memory that notes when it is written. Its mutex guards what the test and its cluster share
// as well: the test holds it except while it lets time pass.
type store struct {
	mu       sync.Mutex
	exists   bool
	rows     []ytclient.ServiceRow
	revision uint64
	leaseErr error // who asks for the lease gets this
	readErr  error
	writeErr error
	arrives  bool // what fails to be written is written all the same
	hang     bool // writes take until their context ends
	reads    int  // without a lease
	looks    int  // with one
	asked    int  // for the revision
	tried    int  // to get the lease
	writes   []time.Time
	writer   *memoryWriter // who has the lease; nil: nobody
}

func (s *store) ReadServices(context.Context) ([]ytclient.ServiceRow, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	return s.read()
}

func (s *store) read() ([]ytclient.ServiceRow, error) {
	if s.readErr != nil {
		return nil, s.readErr
	}
	if !s.exists {
		return nil, ytclient.ErrNotFound
	}
	return slices.Clone(s.rows), nil
}

func (s *store) Revision(context.Context) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	return s.revision, s.readErr
}

func (s *store) AcquireWriter(context.Context) (ytclient.ServicesWriter, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tried++
	if s.leaseErr != nil {
		return nil, s.leaseErr
	}
	if s.writer != nil {
		return nil, &ytclient.HeldError{Transaction: "1-2-3-4"}
	}
	s.writer = &memoryWriter{s: s, lost: make(chan struct{})}
	return s.writer, nil
}

// rewrite is what somebody does who knows of no lease.
func (s *store) rewrite(rows ...ytclient.ServiceRow) {
	s.exists, s.rows = true, rows
	s.revision++
}

// lose ends the lease.
func (s *store) lose() {
	close(s.writer.lost)
	s.writer = nil
}

type memoryWriter struct {
	s    *store
	lost chan struct{}
}

func (w *memoryWriter) Lost() <-chan struct{} { return w.lost }

func (w *memoryWriter) Release(context.Context) error {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if w.s.writer == w {
		w.s.lose()
	}
	return nil
}

func (w *memoryWriter) Sync(ctx context.Context, want func([]ytclient.ServiceRow, bool) ([]ytclient.ServiceRow, bool)) (bool, error) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writer != w {
		return false, ytclient.ErrLeaseLost
	}
	s.looks++
	current, err := s.read()
	if err != nil && !errors.Is(err, ytclient.ErrNotFound) {
		return false, err
	}
	rows, write := want(current, err == nil)
	if !write {
		return false, nil
	}
	if s.hang {
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return false, ctx.Err()
	}
	s.writes = append(s.writes, time.Now())
	if s.writeErr == nil || s.arrives {
		s.rewrite(slices.Clone(rows)...)
	}
	return s.writeErr == nil, s.writeErr
}

// pass lets time pass.
func (s *store) pass(d time.Duration) {
	s.mu.Unlock()
	time.Sleep(d)
	synctest.Wait()
	s.mu.Lock()
}

// settle lets some cycles pass.
func (s *store) settle() { s.pass(time.Minute) }

// operations prints the operations that the table names.
func (s *store) operations() string {
	var ids []string
	for _, r := range s.rows {
		ids = append(ids, r.OperationID)
	}
	slices.Sort(ids)
	return strings.Join(ids, " ")
}

func TestRows(t *testing.T) {
	t.Parallel()
	s, _ := NewSnapshot(nil, nil, []Service{svc("a6e04b98-bf982394-5103e8-55754a49", "history", "ui"), svc("a6e04b98-bf982394-5103e8-55754a49", "master", "ui"), svc("1-0", "ab", "c"), svc("1-0", "a", "bc")})
	rows := Rows(s, "task-proxy.example.com")
	if len(rows) != 4 || !slices.IsSortedFunc(rows, compareRows) {
		t.Fatalf("rows %v", rows)
	}
	want := ytclient.ServiceRow{Domain: "2ef4261c.task-proxy.example.com", OperationID: "a6e04b98-bf982394-5103e8-55754a49", TaskName: "master", Service: "ui", Protocol: "http"}
	if !slices.Contains(rows, want) {
		t.Errorf("rows %v, want among them %v", rows, want)
	}
	// Who lost an ID is in the table under the domain that is really its own.
	if d := LongID("1-0", "ab", "c") + ".task-proxy.example.com"; !slices.ContainsFunc(rows, func(r ytclient.ServiceRow) bool { return r.Domain == d }) {
		t.Errorf("rows %v, want among them one of domain %s", rows, d)
	}
	if got := Rows(nil, "x"); len(got) != 0 {
		t.Errorf("Rows(nil) = %v", got)
	}
}

// TestTable has a Discovery live through a cluster where the operations of ids run.
func TestTable(t *testing.T) {
	t.Parallel()
	row := ytclient.ServiceRow{Domain: "x", OperationID: "old", TaskName: "t", Service: "s", Protocol: "http"}
	setup := func(t *testing.T, s *store) (d *Discovery, ids *string, getErr map[string]error) {
		t.Helper()
		ids, getErr = new(string), map[string]error{}
		bases, err := NewBases("task-proxy.example.com")
		if err != nil {
			t.Fatal(err)
		}
		d, err = New(Config{Store: s, Bases: bases, Source: &source{
			listOperations: func() (ytclient.Listing, error) {
				s.mu.Lock()
				defer s.mu.Unlock()
				if *ids == "down" {
					return ytclient.Listing{}, ytclient.ErrUnavailable
				}
				var l ytclient.Listing
				for id := range strings.FieldsSeq(*ids) {
					l.Operations = append(l.Operations, ytclient.Operation{ID: id, Annotations: map[string]any{"task_proxy": map[string]any{"enabled": true}}})
				}
				return l, nil
			},
			getOperation: func(id string) (ytclient.OperationInfo, error) {
				s.mu.Lock()
				defer s.mu.Unlock()
				if !slices.Contains(strings.Fields(*ids), id) {
					return ytclient.OperationInfo{}, ytclient.ErrNoSuchOperation
				}
				return ytclient.OperationInfo{ID: id, State: "running", Tasks: []ytclient.Task{{Name: "t", PortCount: 1}}}, getErr[id]
			},
			listJobs: func(string) (ytclient.JobListing, error) { return ytclient.JobListing{}, nil },
		}})
		if err != nil {
			t.Fatal(err)
		}
		return d, ids, getErr
	}
	play := func(name string, s *store, f func(t *testing.T, d *Discovery, ids *string, getErr map[string]error)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d, ids, getErr := setup(t, s)
				s.mu.Lock()
				defer s.mu.Unlock()
				f(t, d, ids, getErr)
			})
		})
	}
	// begin runs d, and returns what ends it.
	begin := func(t *testing.T, s *store, d *Discovery) func() {
		t.Helper()
		stop := running(t, d)
		return func() {
			s.mu.Unlock()
			stop()
			s.mu.Lock()
		}
	}

	s1 := &store{}
	play("made, kept and written on change only", s1, func(t *testing.T, d *Discovery, ids *string, _ map[string]error) {
		t.Helper()
		stop := begin(t, s1, d)
		defer stop()
		s1.settle()
		if !s1.exists || len(s1.writes) != 1 || s1.looks != 1 {
			t.Errorf("an empty cluster without a table: exists %t, %d writes, %d looks", s1.exists, len(s1.writes), s1.looks)
		}
		*ids = "1 2"
		s1.settle()
		if s1.operations() != "1 2" || len(s1.writes) != 2 {
			t.Errorf("table %q after %d writes", s1.operations(), len(s1.writes))
		}
		*ids = ""
		s1.settle()
		if s1.operations() != "" || len(s1.writes) != 3 {
			t.Errorf("after all have ended: table %q after %d writes", s1.operations(), len(s1.writes))
		}
		if got := testutil.ToFloat64(d.metrics.writes.WithLabelValues("written")); got != 3 {
			t.Errorf("%v writes counted", got)
		}
		// Up to date it is also as long as there is nothing to write.
		for range rereadAfter {
			s1.pass(10 * time.Second)
			if age := time.Since(time.Unix(0, int64(1e9*testutil.ToFloat64(d.metrics.upToDate)))); age > 20*time.Second {
				t.Errorf("not known to be up to date for %s", age)
			}
		}
	})

	s2 := &store{exists: true}
	play("equal content in another order is left alone", s2, func(t *testing.T, d *Discovery, ids *string, _ map[string]error) {
		t.Helper()
		*ids = "1 2"
		first, _ := NewSnapshot(nil, nil, []Service{svc("1", "t", "port_0"), svc("2", "t", "port_0")})
		s2.rows = Rows(first, "task-proxy.example.com")
		slices.Reverse(s2.rows)
		stop := begin(t, s2, d)
		defer stop()
		s2.settle()
		if len(s2.writes) != 0 {
			t.Errorf("%d writes", len(s2.writes))
		}
		// Somebody else's change is seen when the table is read again.
		s2.rows = []ytclient.ServiceRow{row}
		s2.settle()
		s2.settle()
		if s2.operations() != "1 2" || len(s2.writes) != 1 {
			t.Errorf("after somebody's change: table %q, %d writes", s2.operations(), len(s2.writes))
		}
	})

	s3 := &store{exists: true, rows: []ytclient.ServiceRow{row}, readErr: ytclient.ErrDenied}
	play("never written when it cannot be read", s3, func(t *testing.T, d *Discovery, ids *string, _ map[string]error) {
		t.Helper()
		*ids = "1"
		stop := begin(t, s3, d)
		defer stop()
		s3.settle()
		if len(s3.writes) != 0 || s3.reads < 2 || d.Snapshot().Len() != 1 {
			t.Errorf("%d writes, %d reads, %d services", len(s3.writes), s3.reads, d.Snapshot().Len())
		}
		s3.readErr = nil
		s3.settle()
		if s3.operations() != "1" {
			t.Errorf("table %q once it can be read", s3.operations())
		}
	})

	s4 := &store{writeErr: errors.New("quota")}
	play("a failed write is repeated, at most once in ten seconds", s4, func(t *testing.T, d *Discovery, ids *string, _ map[string]error) {
		t.Helper()
		*ids = "1"
		d.period = time.Second
		stop := begin(t, s4, d)
		defer stop()
		s4.settle()
		if n := len(s4.writes); n < 5 || n > 7 || d.Snapshot().Len() != 1 {
			t.Errorf("%d writes in a minute, %d services", n, d.Snapshot().Len())
		}
		for i := 1; i < len(s4.writes); i++ {
			if pause := s4.writes[i].Sub(s4.writes[i-1]); pause < writeInterval {
				t.Errorf("two writes within %s", pause)
			}
		}
		if s4.looks < len(s4.writes) {
			t.Errorf("%d looks for %d failed writes, which may have arrived all the same", s4.looks, len(s4.writes))
		}
		s4.arrives = true
		s4.settle()
		s4.writeErr = nil
		s4.settle()
		if rewrites := testutil.ToFloat64(d.metrics.rewrites); s4.operations() != "1" || rewrites != 0 {
			t.Errorf("table %q, our own write counted as somebody else's %v times", s4.operations(), rewrites)
		}
	})

	s5 := &store{exists: true, rows: []ytclient.ServiceRow{row}}
	play("not touched before the first answered cycle", s5, func(t *testing.T, d *Discovery, ids *string, _ map[string]error) {
		t.Helper()
		*ids = "down"
		stop := begin(t, s5, d)
		defer stop()
		s5.settle()
		if s5.tried != 0 || s5.looks != 0 || len(s5.writes) != 0 {
			t.Errorf("%d tries to get the lease, %d looks, %d writes", s5.tried, s5.looks, len(s5.writes))
		}
	})

	s6 := &store{exists: true, rows: []ytclient.ServiceRow{row}}
	play("the first empty answer does not empty it", s6, func(t *testing.T, d *Discovery, _ *string, _ map[string]error) {
		t.Helper()
		stop := begin(t, s6, d)
		defer stop()
		s6.pass(time.Second)
		if len(s6.writes) != 0 {
			t.Error("emptied at once")
		}
		s6.settle()
		if len(s6.rows) != 0 {
			t.Errorf("table %q", s6.operations())
		}
	})

	s7 := &store{exists: true, rows: []ytclient.ServiceRow{row, {Domain: "y", OperationID: "gone", TaskName: "t", Service: "s", Protocol: "http"}}}
	play("rows of an operation that cannot be read stay", s7, func(t *testing.T, d *Discovery, ids *string, getErr map[string]error) {
		t.Helper()
		*ids = "1 old"
		getErr["old"] = ytclient.ErrOverloaded
		stop := begin(t, s7, d)
		defer stop()
		s7.settle()
		if s7.operations() != "1 old" || !slices.Contains(s7.rows, row) {
			t.Errorf("table %v", s7.rows)
		}
		delete(getErr, "old")
		s7.settle()
		if s7.operations() != "1 old" || slices.Contains(s7.rows, row) {
			t.Errorf("table %v once it could be read", s7.rows)
		}
	})

	s8 := &store{hang: true}
	play("a write that hangs delays no cycle", s8, func(t *testing.T, d *Discovery, ids *string, _ map[string]error) {
		t.Helper()
		stop := begin(t, s8, d)
		defer stop()
		s8.pass(time.Second)
		*ids = "1"
		s8.pass(11 * time.Second)
		if d.Snapshot().Len() != 1 {
			t.Error("the service is not served")
		}
	})

	s9 := &store{writer: new(memoryWriter)}
	play("not written while another replica has the lease", s9, func(t *testing.T, d *Discovery, ids *string, _ map[string]error) {
		t.Helper()
		*ids = "1"
		stop := begin(t, s9, d)
		defer stop()
		s9.settle()
		if len(s9.writes) != 0 || s9.looks != 0 || s9.tried < 10 || s9.tried > 13 || d.Snapshot().Len() != 1 {
			t.Errorf("%d writes, %d looks, %d tries in a minute, %d services", len(s9.writes), s9.looks, s9.tried, d.Snapshot().Len())
		}
		if got := testutil.ToFloat64(d.metrics.lease); got != 0 {
			t.Errorf("lease is %v", got)
		}
		// The other one goes. What this one knows is written without waiting for a cycle.
		s9.writer = nil
		s9.pass(leaseInterval + time.Second)
		if s9.operations() != "1" || testutil.ToFloat64(d.metrics.lease) != 1 {
			t.Errorf("table %q, lease %v", s9.operations(), testutil.ToFloat64(d.metrics.lease))
		}
		// The lease is lost, and to be had again: what the table holds now was written by nobody's rival.
		s9.lose()
		s9.rewrite(row)
		s9.settle()
		if s9.operations() != "1" || s9.writer == nil || testutil.ToFloat64(d.metrics.rewrites) != 0 {
			t.Errorf("table %q, lease %v, %v rewrites", s9.operations(), s9.writer, testutil.ToFloat64(d.metrics.rewrites))
		}
		// Also without an offer.
		*ids = "down"
		s9.pass(writeInterval + time.Second)
		s9.lose()
		s9.rewrite(row)
		s9.pass(leaseInterval + writeInterval + time.Second)
		if s9.operations() != "1" {
			t.Errorf("table %q", s9.operations())
		}
		// The cluster has ended the lease, and nobody here knows.
		s9.writer = nil
		*ids = "1 2"
		s9.settle()
		if s9.operations() != "1 2" {
			t.Errorf("table %q", s9.operations())
		}
		for what, got := range map[string]float64{"lease_failed": 0, "lease_lost": 1, "written": 4} {
			if n := testutil.ToFloat64(d.metrics.writes.WithLabelValues(what)); n != got {
				t.Errorf("%v times %s, want %v", n, what, got)
			}
		}
	})

	s10 := &store{}
	play("the lease is given up at the end, and when there is no news", s10, func(t *testing.T, d *Discovery, ids *string, _ map[string]error) {
		t.Helper()
		*ids = "1"
		stop := begin(t, s10, d)
		s10.settle()
		*ids = "down"
		s10.pass(minPatience - 20*time.Second)
		if s10.writer == nil {
			t.Error("given up too soon")
		}
		s10.pass(time.Minute)
		if s10.writer != nil || s10.operations() != "1" || testutil.ToFloat64(d.metrics.lease) != 0 {
			t.Errorf("lease %v, table %q", s10.writer, s10.operations())
		}
		tried := s10.tried
		s10.pass(10 * time.Minute)
		if s10.tried != tried {
			t.Errorf("%d tries to get it although there is no news", s10.tried-tried)
		}
		*ids = "1 2"
		s10.pass(2 * time.Minute)
		if s10.writer == nil || s10.operations() != "1 2" {
			t.Errorf("lease %v, table %q once there is news", s10.writer, s10.operations())
		}
		stop()
		if s10.writer != nil {
			t.Error("still has the lease after its end")
		}
	})

	s11 := &store{leaseErr: ytclient.ErrDenied}
	play("served without the right to lock", s11, func(t *testing.T, d *Discovery, ids *string, _ map[string]error) {
		t.Helper()
		*ids = "1"
		stop := begin(t, s11, d)
		defer stop()
		s11.settle()
		if d.Snapshot().Len() != 1 || len(s11.writes) != 0 || testutil.ToFloat64(d.metrics.writes.WithLabelValues("lease_failed")) < 10 {
			t.Errorf("%d services, %d writes", d.Snapshot().Len(), len(s11.writes))
		}
		if testutil.ToFloat64(d.metrics.upToDate) != 0 || testutil.ToFloat64(d.metrics.operations) != 1 {
			t.Errorf("up to date at %v, %v operations", testutil.ToFloat64(d.metrics.upToDate), testutil.ToFloat64(d.metrics.operations))
		}
	})
}

func TestInitialRows(t *testing.T) {
	t.Parallel()
	m, err := newMetrics(nil, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	row := ytclient.ServiceRow{Domain: "x", OperationID: "1"}
	tests := []struct {
		name string
		s    Store
		want []ytclient.ServiceRow
		err  error
	}{
		{"nothing is published", nil, nil, nil},
		{"no table", &store{}, nil, nil},
		{"rows", &store{exists: true, rows: []ytclient.ServiceRow{row}, writer: new(memoryWriter)}, []ytclient.ServiceRow{row}, nil},
		{"denied", &store{readErr: ytclient.ErrDenied}, nil, ytclient.ErrDenied},
		{"hangs", hangingStore{}, nil, context.DeadlineExceeded},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var table *table
				if tt.s != nil {
					table = newTable(tt.s, "x", time.Second, slog.New(slog.DiscardHandler), m)
				}
				start := time.Now()
				got, err := table.initial(t.Context())
				if !slices.Equal(got, tt.want) || !errors.Is(err, tt.err) || time.Since(start) > seedTimeout {
					t.Errorf("initial = %v, %v after %s; want %v, %v", got, err, time.Since(start), tt.want, tt.err)
				}
			})
		})
	}
}

// hangingStore answers nothing.
type hangingStore struct{ Store }

func (hangingStore) ReadServices(ctx context.Context) ([]ytclient.ServiceRow, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
