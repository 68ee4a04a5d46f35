package discovery

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"taskproxy/ytclient"
)

// published makes services "user operation task", one a word of three parts; operations start in the order of their ids.
func published(words ...string) (services []Service) {
	for _, w := range words {
		p := strings.Split(w, "/")
		var n int
		if _, err := fmt.Sscanf(p[1], "%d", &n); err != nil {
			panic(err)
		}
		services = append(services, Service{User: p[0], OperationID: p[1], Task: p[2], Name: "ui", Protocol: HTTP, StartTime: start.Add(time.Duration(n) * time.Second)})
	}
	slices.SortFunc(services, func(a, b Service) int { return compareServices(&a, &b) })
	return services
}

func TestLimits(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		limits   limits
		prev     []string // as the snapshot has them
		services []string
		want     string // user/operation/task of each admitted one
		problems string
	}{
		{"nothing", limits{perUser: 1, all: 1}, nil, nil, "", ""},
		{"at the limits", limits{perUser: 2, all: 3}, nil, []string{"a/1/x", "a/1/y", "b/2/x"}, "a/1/x a/1/y b/2/x", ""},
		{
			"of a user: the operation that started first", limits{perUser: 2, all: 10}, nil, []string{"a/3/x", "a/1/x", "a/2/x", "a/2/y", "b/4/x"}, "a/1/x a/2/x b/4/x",
			"over_limit 2: its user publishes more than 2 services; 1 of this operation are left out; over_limit 3: its user publishes more than 2 services; 1 of this operation are left out",
		},
		{
			"of a user: who is there stays", limits{perUser: 2, all: 10}, []string{"a/3/x", "a/3/y"}, []string{"a/1/x", "a/3/x", "a/3/y", "b/4/x"}, "a/3/x a/3/y b/4/x",
			"over_limit 1: its user publishes more than 2 services; 1 of this operation are left out",
		},
		{
			"in all: who is there stays", limits{perUser: 10, all: 3}, []string{"a/3/x", "b/4/x"}, []string{"a/3/x", "b/4/x", "mallory/1/x", "mallory/1/y", "mallory/2/x"}, "mallory/1/x a/3/x b/4/x",
			"over_limit 1: there are more than 3 services; 1 of this operation are left out; over_limit 2: there are more than 3 services; 1 of this operation are left out",
		},
		{
			"a place that came free", limits{perUser: 10, all: 2}, []string{"a/3/x", "b/4/x"}, []string{"a/3/x", "a/5/x", "a/6/x"}, "a/3/x a/5/x",
			"over_limit 6: there are more than 2 services; 1 of this operation are left out",
		},
		{
			"what a user has too much takes no place", limits{perUser: 1, all: 2}, nil, []string{"a/1/x", "a/1/y", "a/2/x", "b/3/x"}, "a/1/x b/3/x",
			"over_limit 1: its user publishes more than 1 services; 1 of this operation are left out; over_limit 2: its user publishes more than 1 services; 1 of this operation are left out",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			prev, _ := NewSnapshot(nil, nil, published(tt.prev...))
			admitted, problems := tt.limits.admit(prev, published(tt.services...))
			var got []string
			for _, s := range admitted {
				got = append(got, s.User+"/"+s.OperationID+"/"+s.Task)
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("admitted %v, want %s", got, tt.want)
			}
			var told []string
			for _, p := range newProblems(problems) {
				told = append(told, p.String())
			}
			if strings.Join(told, "; ") != tt.problems {
				t.Errorf("problems %q, want %q", strings.Join(told, "; "), tt.problems)
			}
		})
	}
}

// A user who floods the cluster with operations takes no service away, whatever ids and start times the flood has.
func TestFloodDisplacesNobody(t *testing.T) {
	t.Parallel()
	l := newLittle()
	for i := range 50 {
		l.run(fmt.Sprintf("5-%d", i))
	}
	users := map[bool]string{true: "alice", false: "mallory"}
	src := l.source()
	list := src.listOperations
	src.listOperations = func() (ytclient.Listing, error) {
		listing, err := list()
		for i := range listing.Operations {
			op := &listing.Operations[i]
			op.User = users[strings.HasPrefix(op.ID, "5-")]
			if op.User == "mallory" {
				op.StartTime = start.Add(-time.Hour)
			}
		}
		return listing, err
	}
	d, err := New(Config{Source: src, MaxServicesPerUser: 60, MaxServices: 80})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cycle(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := d.Snapshot()
	for i := range 100 {
		l.run(fmt.Sprintf("1-%d", i))
	}
	for range 3 {
		if err := d.cycle(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, s := range before.Services() {
			if got := d.Snapshot().Lookup(s.LongID); got != s {
				t.Fatalf("%s is %v", s.OperationID, got)
			}
		}
		if n := d.Snapshot().Len(); n != 80 {
			t.Errorf("%d services, want 80", n)
		}
		if n := len(d.Problems()); n != 70 {
			t.Errorf("%d problems, want one for each operation that is left out", n)
		}
	}
}
