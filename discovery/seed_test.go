package discovery

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskproxy/ytclient"
)

// unsown starts a process that could not read the services table yet.
func unsown(t *testing.T, clock *time.Time) *replica {
	r := newReplica(t, clock)
	r.labels.unsown = true
	return r
}

// However long the services table cannot be read, an ID that two operations claim leads to neither. All else is served.
func TestContestedIDsUntilTheTableIsRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		table := &slowToRead{store: &store{exists: true, rows: []ytclient.ServiceRow{
			{Domain: stolenID + ".proxy.test", OperationID: victimID, TaskName: victim.Task, Service: victim.Name, Protocol: "http"},
		}}}
		before := slices.Clone(table.rows)
		table.failing.Store(true)
		src := renamed()
		list, get := src.listOperations, src.getOperation
		src.listOperations = func() (ytclient.Listing, error) {
			l, err := list()
			l.Operations = append(l.Operations, ytclient.Operation{ID: "1-2-3-4", User: "bob", State: "running", StartTime: start, Alias: "*notes",
				Annotations: map[string]any{"task_proxy": map[string]any{"enabled": true}}})
			return l, err
		}
		src.getOperation = func(id string) (ytclient.OperationInfo, error) {
			if id == "1-2-3-4" {
				return ytclient.OperationInfo{ID: id, State: "running", Tasks: []ytclient.Task{{Name: "server", PortCount: 1}}}, nil
			}
			return get(id)
		}
		stolen := "" // what the ID led to meanwhile
		d, err := New(Config{Source: src, Store: table, Bases: testBases(t), OnSnapshot: func(s *Snapshot) {
			if svc := s.Lookup(stolenID); svc != nil && svc.OperationID != victimID {
				stolen = svc.OperationID
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- d.Run(ctx) }()
		long := map[string]string{
			LongID(victimID, victim.Task, victim.Name):       victimID,
			LongID(attackerID, attacker.Task, attacker.Name): attackerID,
			LongID("1-2-3-4", "server", "port_0"):            "1-2-3-4",
			ShortID("1-2-3-4", "server", "port_0"):           "1-2-3-4",
			"notes-server-port_0":                            "1-2-3-4",
		}
		check := func(owner string, problems int) {
			t.Helper()
			synctest.Wait()
			if !d.Ready() {
				t.Fatal("not ready")
			}
			got := ""
			if s := d.Snapshot().Lookup(stolenID); s != nil {
				got = s.OperationID
			}
			if got != owner || stolen != "" {
				t.Errorf("%s leads to %q, want %q; and to the attacker's %q in between", stolenID, got, owner, stolen)
			}
			for label, operation := range long {
				if s := d.Snapshot().Lookup(label); s == nil || s.OperationID != operation {
					t.Errorf("%s is not the address of %s\n%s", label, operation, d.Snapshot())
				}
			}
			var told []string
			for _, p := range d.Problems() {
				told = append(told, p.String())
			}
			if len(told) == 0 {
				t.Fatal("there is no problem")
			}
			if len(told) != problems || !strings.HasPrefix(strings.Join(told, "\n"), "collision "+attackerID) {
				t.Errorf("problems %q, want %d collisions", told, problems)
			}
		}
		for range 30 {
			time.Sleep(time.Minute)
			check("", 2)
			if table.mu.Lock(); !slices.Equal(table.rows, before) {
				t.Errorf("the table was written: %v", table.rows)
			}
			table.mu.Unlock()
		}
		if p := slices.MaxFunc(d.Problems(), compareProblems); !strings.Contains(p.Reason, "the services table, which tells whose it is, could not be read yet; it is published as "+LongID(victimID, victim.Task, victim.Name)) {
			t.Errorf("the problem is %s", p)
		}
		table.failing.Store(false)
		time.Sleep(time.Minute)
		check(victimID, 1)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// What was claimed by two settles nothing: once the table is read all is as if it had been read at the start.
func TestContestedIDsOnceTheTableIsRead(t *testing.T) {
	t.Parallel()
	now := start
	rows := newReplica(t, &now).cycle(nil, harmless, victim).rows()
	for _, c := range []struct {
		name    string
		cycles  [][]Service // before the table is read
		owner   string      // of the ID after each; empty: nobody
		rows    []ytclient.ServiceRow
		settled string // whose it is then
	}{
		{"the table knows", [][]Service{{attacker, victim}}, "", rows, victimID},
		{"the table knows nothing", [][]Service{{attacker, victim}}, "", nil, attackerID},
		{"the victim was there first", [][]Service{{harmless, victim}, {attacker, victim}}, "", nil, victimID},
		{"the attacker was there first", [][]Service{{attacker}, {attacker, victim}}, "", rows, victimID},
		{"the attacker has gone again", [][]Service{{attacker, victim}, {harmless, victim}}, victimID, nil, victimID},
		{"one alone", [][]Service{{victim}}, victimID, nil, victimID},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := unsown(t, &now)
			for _, services := range c.cycles {
				r.cycle([]string{victimID, attackerID}, services...)
			}
			r.check(stolenID, c.owner)
			r.labels.Seed(c.rows, testBases(t))
			r.cycle(nil, attacker, victim)
			r.check(stolenID, c.settled)
			r.checkProblems(Collision)
			again := r.snapshot
			if r.cycle(nil, attacker, victim).snapshot != again {
				t.Error("the next cycle makes another snapshot")
			}
		})
	}
}

// Labels made of aliases likewise.
func TestContestedAliasLabelsUntilTheTableIsRead(t *testing.T) {
	t.Parallel()
	now := start
	composed, plainly, apart := svc("1-0-0-1", "b-c", "ui"), svc("1-0-0-2", "c", "ui"), svc("1-0-0-3", "c", "ui")
	composed.Alias, plainly.Alias, apart.Alias = "*a", "*a-b", "*x"
	r := unsown(t, &now)
	for range 2 {
		r.cycle(nil, composed, plainly, apart)
		r.check("a-b-c-ui", "")
		r.check("x-c-ui", "1-0-0-3")
		r.checkProblems(Collision, Collision)
		for _, s := range []Service{composed, plainly, apart} {
			r.check(ShortID(s.OperationID, s.Task, s.Name), s.OperationID)
			if r.snapshot.ByAlias(s.Alias[1:], s.Task, s.Name) == nil {
				t.Errorf("%s is not found by its alias", s.OperationID)
			}
		}
	}
	r.labels.Seed(nil, testBases(t))
	r.cycle(nil, composed, plainly, apart)
	r.check("a-b-c-ui", "1-0-0-2")
	r.check("x-c-ui", "1-0-0-3")
	r.checkProblems(Collision)

	// Who had it alone has it back.
	r = unsown(t, &now).cycle(nil, composed)
	r.check("a-b-c-ui", "1-0-0-1")
	r.cycle(nil, composed, plainly)
	r.check("a-b-c-ui", "")
	r.labels.Seed(nil, testBases(t))
	r.cycle(nil, composed, plainly)
	r.check("a-b-c-ui", "1-0-0-1")
	r.checkProblems(Collision)
}
