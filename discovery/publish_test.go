package discovery

import (
	"context"
	"errors"
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
	readErr  error
	writeErr error
	hang     bool // writes take until their context ends
	reads    int
	writes   []time.Time
}

func (s *store) ReadServices(context.Context) ([]ytclient.ServiceRow, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	if s.readErr != nil {
		return nil, s.readErr
	}
	if !s.exists {
		return nil, ytclient.ErrNotFound
	}
	return slices.Clone(s.rows), nil
}

func (s *store) WriteServices(ctx context.Context, rows []ytclient.ServiceRow) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hang {
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return ctx.Err()
	}
	s.writes = append(s.writes, time.Now())
	if s.writeErr != nil {
		return s.writeErr
	}
	s.exists, s.rows = true, slices.Clone(rows)
	return nil
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
	s, _ := NewSnapshot(nil, []Service{svc("a6e04b98-bf982394-5103e8-55754a49", "history", "ui"), svc("a6e04b98-bf982394-5103e8-55754a49", "master", "ui"), svc("1-0", "ab", "c"), svc("1-0", "a", "bc")})
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
		if !s1.exists || len(s1.writes) != 1 || s1.reads != 1 {
			t.Errorf("an empty cluster without a table: exists %t, %d writes, %d reads", s1.exists, len(s1.writes), s1.reads)
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
	})

	s2 := &store{exists: true}
	play("equal content in another order is left alone", s2, func(t *testing.T, d *Discovery, ids *string, _ map[string]error) {
		t.Helper()
		*ids = "1 2"
		first, _ := NewSnapshot(nil, []Service{svc("1", "t", "port_0"), svc("2", "t", "port_0")})
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
		if s4.reads < len(s4.writes) {
			t.Errorf("%d reads for %d failed writes, which may have arrived all the same", s4.reads, len(s4.writes))
		}
		s4.writeErr = nil
		s4.settle()
		if s4.operations() != "1" {
			t.Errorf("table %q", s4.operations())
		}
	})

	s5 := &store{exists: true, rows: []ytclient.ServiceRow{row}}
	play("not touched before the first answered cycle", s5, func(t *testing.T, d *Discovery, ids *string, _ map[string]error) {
		t.Helper()
		*ids = "down"
		stop := begin(t, s5, d)
		defer stop()
		s5.settle()
		if s5.reads != 0 || len(s5.writes) != 0 {
			t.Errorf("%d reads, %d writes", s5.reads, len(s5.writes))
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
}
