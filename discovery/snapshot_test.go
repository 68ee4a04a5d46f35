package discovery

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"taskproxy/ytclient"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// svc is a service with one endpoint per address.
func svc(operation, task, name string, addrs ...string) Service {
	s := Service{OperationID: operation, Task: task, Name: name, Protocol: HTTP, User: "alice", StartTime: start}
	for i, a := range addrs {
		s.Endpoints = append(s.Endpoints, Endpoint{JobID: fmt.Sprint(i), Addr: a})
	}
	return s
}

func started(s Service, at time.Time) Service {
	s.StartTime = at
	return s
}

// mustSnapshot fails the test on any problem.
func mustSnapshot(t *testing.T, prev *Snapshot, services ...Service) *Snapshot {
	t.Helper()
	s, problems := NewSnapshot(prev, nil, services)
	if s == nil || len(problems) != 0 {
		t.Fatalf("NewSnapshot = %v, problems %v", s, problems)
	}
	return s
}

func TestEmptySnapshots(t *testing.T) {
	t.Parallel()
	var none *Snapshot
	made, problems := NewSnapshot(nil, nil, nil)
	if made == nil || len(problems) != 0 {
		t.Fatalf("NewSnapshot(nil, nil) = %v, %v", made, problems)
	}
	for _, s := range []*Snapshot{none, {}, made} {
		if s.Len() != 0 || s.Endpoints() != 0 || s.Lookup("x") != nil || len(s.Services()) != 0 || s.String() != "" || s.Diff(none) != "" || !s.Equal(&Snapshot{}) {
			t.Errorf("%#v is not empty", s)
		}
	}
	if again, _ := NewSnapshot(made, nil, nil); again != made {
		t.Error("the successor of an empty snapshot is another one")
	}
}

func TestSnapshotLookup(t *testing.T) {
	t.Parallel()
	const op = "a6e04b98-bf982394-5103e8-55754a49"
	s := mustSnapshot(t, nil, svc(op, "master", "ui", "10.0.0.1:80"), svc(op, "history", "ui"))
	if got := s.Lookup("2ef4261c"); got == nil || got.Task != "master" || got.ID != "2ef4261c" || got != s.Lookup(got.LongID) {
		t.Errorf("Lookup(2ef4261c) = %v", got)
	}
	if got := s.Lookup("51a6d485"); got == nil || got.Task != "history" || len(got.Permissions) != 1 || got.Permissions[0] != ytclient.Read {
		t.Errorf("Lookup(51a6d485) = %v", got)
	}
	if got := s.Lookup("00000000"); got != nil {
		t.Errorf("Lookup of an unknown label = %v", got)
	}
	if got := s.Services(); len(got) != 2 || got[0].Task != "history" {
		t.Errorf("services not sorted: %s", s)
	}
	want := `51a6d485 a6e04b98-bf982394-5103e8-55754a49 "history" "ui" http read -
2ef4261c a6e04b98-bf982394-5103e8-55754a49 "master" "ui" http read 10.0.0.1:80
`
	if got := s.String(); got != want {
		t.Errorf("String() =\n%swant\n%s", got, want)
	}
}

func TestSnapshotKeepsWhatDidNotChange(t *testing.T) {
	t.Parallel()
	a, b := svc("1-0-0-0", "t", "a", "h:1"), svc("1-0-0-0", "t", "b", "h:2")
	first := mustSnapshot(t, nil, a, b)
	first.Services()[0].Next()
	first.Services()[1].Next()

	if same := mustSnapshot(t, first, b, a); same != first {
		t.Error("the same services in another order make another snapshot")
	}

	b.Endpoints = append([]Endpoint{{JobID: "9", Addr: "h:9"}}, b.Endpoints...)
	second := mustSnapshot(t, first, a, b, svc("2-0-0-0", "t", "c"))
	if second.Services()[0] != first.Services()[0] {
		t.Error("a service that did not change is another *Service")
	}
	if was, is := first.Services()[1], second.Services()[1]; was == is || is.Next() != 1 || was.Next() != 2 {
		t.Error("a service that changed does not share its round-robin position")
	}
	if len(first.Services()[1].Endpoints) != 1 {
		t.Error("a published snapshot changed")
	}
	want := `- 0d5ccd2d 1-0-0-0 "t" "b" http read h:2
+ 0d5ccd2d 1-0-0-0 "t" "b" http read h:9,h:2
+ 7df5ab11 2-0-0-0 "t" "c" http read -
`
	want = strings.ReplaceAll(strings.ReplaceAll(want, "0d5ccd2d", ShortID("1-0-0-0", "t", "b")), "7df5ab11", ShortID("2-0-0-0", "t", "c"))
	if got := second.Diff(first); got != want {
		t.Errorf("Diff =\n%swant\n%s", got, want)
	}
	if got := first.Diff(second); strings.Count(got, "\n") != 3 || first.Equal(second) {
		t.Errorf("the way back: Diff =\n%s", got)
	}
	if third := mustSnapshot(t, nil, a, b, svc("2-0-0-0", "t", "c")); third == second || !third.Equal(second) {
		t.Error("two snapshots of the same services are not equal")
	}

	// Everything that a request can see makes a change.
	for name, change := range map[string]func(*Service){
		"protocol":    func(s *Service) { s.Protocol = GRPC },
		"user":        func(s *Service) { s.User = "bob" },
		"route limit": func(s *Service) { s.RouteTimeout = time.Second },
		"idle limit":  func(s *Service) { s.IdleTimeout = -1 },
		"affinity":    func(s *Service) { s.Affinity = true },
		"start time":  func(s *Service) { s.StartTime = start.Add(1) },
		"alias":       func(s *Service) { s.Alias = "*x" },
		"permissions": func(s *Service) { s.Permissions = []ytclient.Permission{ytclient.Read, ytclient.Manage} },
		"origins":     func(s *Service) { s.Origins = []string{"https://app.example.com"} },
		"endpoints":   func(s *Service) { s.Endpoints = nil },
		"Spark REST":  func(s *Service) { s.SparkREST = true },
	} {
		changed := a
		change(&changed)
		if next := mustSnapshot(t, first, changed, first.services[1].clone()); next == first || next.Equal(first) || next.Services()[1] != first.Services()[1] {
			t.Errorf("another %s makes no change", name)
		}
	}
}

// clone is the service as a cycle finds it again.
func (s *Service) clone() Service {
	return Service{OperationID: s.OperationID, Task: s.Task, Name: s.Name, Protocol: s.Protocol, User: s.User, StartTime: s.StartTime,
		Alias: s.Alias, Permissions: s.Permissions, Endpoints: s.Endpoints}
}

func TestSnapshotFindsByOperationAndAlias(t *testing.T) {
	ui := svc("1-0-0-1", "driver", "ui")
	ui.Alias = "*Spark"
	odd := svc("1-0-0-1", "a task/\x00", strings.Repeat("n", 300))
	odd.Alias = ui.Alias
	s, problems := NewSnapshot(nil, nil, []Service{ui, odd, svc("1-0-0-2", "driver", "ui")})
	if len(problems) != 1 || problems[0].Kind != LabelTooLong {
		t.Errorf("problems %v", problems)
	}
	f := func(got *Service, want string) {
		t.Helper()
		if label := LongID(want, "driver", "ui"); want == "" && got != nil || want != "" && (got == nil || got.LongID != label) {
			t.Errorf("got %v, want the one of %q", got, want)
		}
	}
	f(s.ByOperation("1-0-0-1", "driver", "ui"), "1-0-0-1")
	f(s.ByOperation("1-0-0-2", "driver", "ui"), "1-0-0-2")
	f(s.ByOperation("1-0-0-3", "driver", "ui"), "")
	f(s.ByOperation("1-0-0-1", "driver", "u"), "")
	f(s.ByOperation("1-0-0-1", "drive", "rui"), "")
	f(s.ByOperation("", "", ""), "")
	f(s.ByAlias("Spark", "driver", "ui"), "1-0-0-1")
	f(s.ByAlias("spark", "driver", "ui"), "")
	f(s.ByAlias("*Spark", "driver", "ui"), "")
	f(s.ByAlias("", "driver", "ui"), "")
	f(s.ByAlias("Spark", "driver", "rest"), "")
	f(s.Lookup("spark-driver-ui"), "1-0-0-1")
	f(s.Lookup("Spark-driver-ui"), "")
	if got := s.ByOperation("1-0-0-1", odd.Task, odd.Name); got == nil || got.Task != odd.Task || got.AliasLabel != "" {
		t.Errorf("got %v", got)
	}
	if n := testing.AllocsPerRun(100, func() { s.ByAlias("Spark", "driver", "ui") }); n != 0 {
		t.Errorf("ByAlias allocates %v times", n)
	}
	// Should two ever have one long ID, the wrong one is not found instead.
	forged := &Snapshot{labels: map[string]*Service{LongID("1-0-0-1", "a", "b"): s.Services()[0]}}
	f(forged.ByOperation("1-0-0-1", "a", "b"), "")
	var none *Snapshot
	f(none.ByAlias("Spark", "driver", "ui"), "")
	f(none.ByOperation("1-0-0-1", "driver", "ui"), "")
}

func TestSnapshotTakesAServiceOnce(t *testing.T) {
	t.Parallel()
	s, problems := NewSnapshot(nil, nil, []Service{svc("1-0-0-0", "t", "a", "h:1"), svc("1-0-0-0", "t", "a", "h:2")})
	if s.Len() != 1 || s.Services()[0].Endpoints[0].Addr != "h:1" || len(problems) != 1 || problems[0].Kind != Collision {
		t.Errorf("%s problems %v", s, problems)
	}
}

func ExampleSnapshot() {
	s, _ := NewSnapshot(nil, nil, []Service{{
		OperationID: "a8ef7695-3de07913-5103e8-e29a6707", Task: "example_grpc_server", Name: "server", Protocol: GRPC,
		Endpoints: []Endpoint{{JobID: "1-2-3-4", Addr: "10.0.0.1:20001"}},
	}})
	fmt.Println(s.Lookup("ae5cf6f5").Endpoints[0].Addr)
	fmt.Println(Domain(s.Services()[0].ID, "task-proxy.example.com"))
	// Output:
	// 10.0.0.1:20001
	// ae5cf6f5.task-proxy.example.com
}
