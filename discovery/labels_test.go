package discovery

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskproxy/ytclient"
)

// A pair that a search found in a second: services of two operations that have one ID.
const (
	victimID   = "5d1f3a72-8c04be91-5103e8-3b6e9f04"
	attackerID = "2b90c4e8-1f6ad357-5103e8-70c1d2ab"
	stolenID   = "791f841b"
)

var (
	victim = svc(victimID, "trainer_27520", "ui", "10.0.0.1:80")
	// The attacker's operation is the older one, and its service can be renamed at any time.
	attacker = started(svc(attackerID, "miner", "web_17209", "10.6.6.6:80"), start.Add(-time.Hour))
	harmless = started(svc(attackerID, "miner", "web", "10.6.6.6:80"), start.Add(-time.Hour))
)

// replica is what one process makes of a cluster's operations, on a clock of its own.
type replica struct {
	t        *testing.T
	labels   *Labels
	snapshot *Snapshot
	problems []Problem
	clock    *time.Time
}

func testBases(t *testing.T) Bases {
	t.Helper()
	bases, err := NewBases("proxy.test")
	if err != nil {
		t.Fatal(err)
	}
	return bases
}

// newReplica starts a process that finds these rows in the services table.
func newReplica(t *testing.T, clock *time.Time, rows ...ytclient.ServiceRow) *replica {
	r := &replica{t: t, labels: NewLabels(func() time.Time { return *clock }), clock: clock}
	r.labels.Seed(rows, testBases(t))
	return r
}

// rows is what this process writes to the services table.
func (r *replica) rows() []ytclient.ServiceRow { return Rows(r.snapshot, "proxy.test") }

// cycle is one answered cycle: these services, and alive whatever operations they are of and those in more.
func (r *replica) cycle(more []string, services ...Service) *replica {
	r.t.Helper()
	alive := make(map[string]bool)
	for _, id := range more {
		alive[id] = true
	}
	for _, s := range services {
		alive[s.OperationID] = true
	}
	r.labels.Living(alive)
	r.snapshot, r.problems = NewSnapshot(r.snapshot, r.labels, services)
	return r
}

// check checks whose a label is; no operation: nobody's.
func (r *replica) check(label, operation string) {
	r.t.Helper()
	got := ""
	if s := r.snapshot.Lookup(label); s != nil {
		got = s.OperationID
	}
	if got != operation {
		r.t.Errorf("%s is the address of %q, want %q\n%s%v", label, got, operation, r.snapshot, r.problems)
	}
}

func (r *replica) checkProblems(want ...ProblemKind) {
	r.t.Helper()
	got := make([]ProblemKind, 0, len(r.problems))
	for _, p := range r.problems {
		got = append(got, p.Kind)
	}
	if !slices.Equal(got, want) {
		r.t.Errorf("problems %v, want %v", r.problems, want)
	}
}

func TestFoundPairCollides(t *testing.T) {
	t.Parallel()
	for _, s := range []Service{victim, attacker} {
		if got := ShortID(s.OperationID, s.Task, s.Name); got != stolenID {
			t.Errorf("%s %s %s has the ID %s", s.OperationID, s.Task, s.Name, got)
		}
	}
}

func TestAttackRenameToAVictimsID(t *testing.T) {
	t.Parallel()
	now := start
	r := newReplica(t, &now).cycle(nil, harmless, victim)
	r.check(stolenID, victimID)
	r.cycle(nil, attacker, victim)
	r.check(stolenID, victimID)
	r.check(LongID(attackerID, attacker.Task, attacker.Name), attackerID)
	r.checkProblems(Collision)
	if p := r.problems[0]; p.OperationID != attackerID || p.Service != attacker.Name {
		t.Errorf("the problem is %s", p)
	}

	// While the victim has no endpoints, and while it does not publish the service at all.
	r.cycle(nil, attacker, svc(victimID, victim.Task, victim.Name))
	r.check(stolenID, victimID)
	r.cycle([]string{victimID}, attacker)
	r.check(stolenID, "")
	r.cycle(nil, attacker, victim)
	r.check(stolenID, victimID)

	// Also by leaving and coming back between.
	r.cycle([]string{victimID}, harmless).cycle([]string{victimID}, attacker)
	r.check(stolenID, "")
	r.cycle(nil, attacker, victim)
	r.check(stolenID, victimID)
}

func TestAttackRenameBeforeARestart(t *testing.T) {
	t.Parallel()
	now := start
	before := newReplica(t, &now).cycle(nil, harmless, victim)
	// The process ends and another one starts: after it has written the renamed service, or before.
	for name, rows := range map[string][]ytclient.ServiceRow{
		"not written":    before.rows(),
		"written":        before.cycle(nil, attacker, victim).rows(),
		"victim is away": newReplica(t, &now, before.rows()...).cycle([]string{attackerID}, victim).rows(),
	} {
		t.Run(name, func(t *testing.T) {
			r := newReplica(t, &now, rows...).cycle(nil, attacker, victim)
			r.check(stolenID, victimID)
			r.checkProblems(Collision)
			away := newReplica(t, &now, rows...).cycle([]string{victimID}, attacker)
			away.check(stolenID, "")
			away.cycle(nil, attacker, victim).check(stolenID, victimID)
			if got, want := r.snapshot.String(), away.snapshot.String(); got != want {
				t.Errorf("two replicas say\n%sand\n%s", got, want)
			}
		})
	}

	// Without the seed the attacker would have it: it is the older one. That is what the table is read for.
	newReplica(t, &now).cycle(nil, attacker, victim).check(stolenID, attackerID)
}

// The table could not be read at the start. What a replica settled meanwhile gives way to what the table says.
func TestSeedThatComesLate(t *testing.T) {
	t.Parallel()
	now := start
	rows := newReplica(t, &now).cycle(nil, harmless, victim).rows()
	r := newReplica(t, &now).cycle(nil, attacker, victim)
	r.check(stolenID, attackerID)
	r.labels.Seed(rows, testBases(t))
	r.cycle(nil, attacker, victim)
	r.check(stolenID, victimID)
	r.check(LongID(attackerID, attacker.Task, attacker.Name), attackerID)
	r.checkProblems(Collision)

	// But a row of an operation that has ended takes nothing from one that lives.
	r = newReplica(t, &now).cycle(nil, attacker)
	r.labels.Seed(rows, testBases(t))
	r.cycle(nil, attacker).check(stolenID, attackerID)
	r.checkProblems()
	// And what nobody has it keeps for its day.
	r = newReplica(t, &now).cycle([]string{attackerID})
	r.labels.Seed(rows, testBases(t))
	r.cycle(nil, attacker).check(stolenID, "")
}

// The loser of an ID stays at its long ID for as long as it lives: after the winner, after a day, and after a restart.
func TestLoserStaysWhereItIs(t *testing.T) {
	t.Parallel()
	now := start
	long := LongID(attackerID, attacker.Task, attacker.Name)
	r := newReplica(t, &now).cycle(nil, victim).cycle(nil, attacker, victim)
	r.check(long, attackerID)
	rows := r.rows()
	for name, r := range map[string]*replica{"same process": r, "restarted": newReplica(t, &now, rows...)} {
		t.Run(name, func(t *testing.T) {
			r.t = t
			for range 3 {
				r.cycle(nil, attacker)
				r.check(stolenID, "")
				r.check(long, attackerID)
				r.checkProblems(Collision)
				r.cycle([]string{attackerID}) // and it does not help to go and come back
				now = now.Add(freedFor)
			}
		})
	}
}

func TestFreedIDWaitsADay(t *testing.T) {
	t.Parallel()
	now := start
	r := newReplica(t, &now).cycle(nil, victim)
	now = now.Add(time.Hour)
	r.cycle(nil, attacker) // the victim has ended
	r.check(stolenID, "")
	r.checkProblems(Collision)

	// A third operation, since the attacker has lost it for good. Its ID is the same in this test only.
	third := func() (operation string) {
		d := draft{in: &Service{OperationID: "3-3-3-3", Task: "t", Name: "n", StartTime: start}}
		r.labels.round++
		if r.labels.ask(idLabel, stolenID, r.labels.ownerOf(&d)) {
			return "3-3-3-3"
		}
		return ""
	}
	now = now.Add(freedFor - time.Second)
	r.cycle([]string{"3-3-3-3"})
	if third() != "" {
		t.Error("the ID is given away within a day")
	}
	now = now.Add(time.Second)
	r.cycle([]string{"3-3-3-3"})
	if third() == "" {
		t.Error("the ID is not given to anybody after a day")
	}

	// The restarted process knows of it as well, by the row that is left in the table.
	rows := newReplica(t, &now).cycle(nil, victim).rows()
	newReplica(t, &now, rows...).cycle(nil, attacker).check(stolenID, "")
}

// An operation that seemed to have ended and is back (a scheduler that was restarted) has its labels.
func TestOperationIsBack(t *testing.T) {
	t.Parallel()
	now := start
	r := newReplica(t, &now).cycle(nil, victim).cycle(nil, harmless)
	now = now.Add(freedFor - time.Second)
	r.cycle(nil, harmless, victim).check(stolenID, victimID)
	now = now.Add(2 * freedFor)
	r.cycle([]string{victimID}, attacker).check(stolenID, "")
	r.cycle(nil, attacker, victim).check(stolenID, victimID)
}

func TestSeedPassesOverOddRows(t *testing.T) {
	t.Parallel()
	now := start
	row := func(domain string, s Service) ytclient.ServiceRow {
		return ytclient.ServiceRow{Domain: domain, OperationID: s.OperationID, TaskName: s.Task, Service: s.Name}
	}
	for _, c := range []struct {
		name string
		rows []ytclient.ServiceRow
		want string
	}{
		{"good", []ytclient.ServiceRow{row(stolenID+".proxy.test", victim)}, victimID},
		{"in capitals", []ytclient.ServiceRow{row(strings.ToUpper(stolenID)+".proxy.test", victim)}, victimID},
		{"twice the same", []ytclient.ServiceRow{row(stolenID+".proxy.test", victim), row(stolenID+".proxy.test", victim)}, victimID},
		{"lost", []ytclient.ServiceRow{row(LongID(attackerID, attacker.Task, attacker.Name)+".proxy.test", attacker)}, victimID},
		{"none", nil, attackerID},
		{"another base domain", []ytclient.ServiceRow{row(stolenID+".elsewhere.test", victim)}, attackerID},
		{"label of another service", []ytclient.ServiceRow{row(stolenID+".proxy.test", svc(victimID, "t", "n"))}, attackerID},
		{"no label", []ytclient.ServiceRow{row("proxy.test", victim), row("", victim)}, attackerID},
		{"two owners", []ytclient.ServiceRow{row(stolenID+".proxy.test", victim), row(stolenID+".proxy.test", attacker)}, attackerID},
		{"two owners, the other way round", []ytclient.ServiceRow{row(stolenID+".proxy.test", attacker), row(stolenID+".proxy.test", victim)}, attackerID},
	} {
		t.Run(c.name, func(t *testing.T) {
			newReplica(t, &now, c.rows...).cycle(nil, attacker, victim).check(stolenID, c.want)
		})
	}
}

// What no memory and no table decides is decided alike by all, in whatever order they hear of it.
func TestFreshCollisionsAreSettledAlike(t *testing.T) {
	t.Parallel()
	now := start
	// The plain concatenation collides within one operation without any search, and here between three.
	a, b := svc("1-0-0-0", "ab", "c"), svc("1-0-0-0", "a", "bc")
	c, d := svc("1-0-0-01", "1a", "x"), svc("1-0-0-0", "11a", "x")
	younger := started(svc("1-0-0-011", "a", "x"), start.Add(time.Second))
	older := started(younger, start.Add(-time.Second))
	for _, x := range []struct {
		name string
		all  []Service
		want int // whose the ID is
	}{
		{"one operation", []Service{a, b}, 1},
		{"smaller operation id", []Service{c, d, younger}, 1},
		{"older operation", []Service{c, d, older}, 2},
	} {
		t.Run(x.name, func(t *testing.T) {
			id := ShortID(x.all[0].OperationID, x.all[0].Task, x.all[0].Name)
			for range 10 {
				rand.Shuffle(len(x.all), func(i, j int) {
					x.all[i], x.all[j] = x.all[j], x.all[i]
					switch x.want {
					case i:
						x.want = j
					case j:
						x.want = i
					}
				})
				r := newReplica(t, &now).cycle(nil, x.all...)
				if got, want := r.snapshot.Lookup(id), x.all[x.want]; got == nil || compareServices(got, &want) != 0 {
					t.Errorf("%s is %v, want %v", id, got, want)
				}
				if len(r.problems) != len(x.all)-1 {
					t.Errorf("problems %v", r.problems)
				}
				if again := r.snapshot; r.cycle(nil, x.all...).snapshot != again {
					t.Error("the next cycle makes another snapshot")
				}
			}
		})
	}

	// Within an operation, too, an ID stays where it is.
	r := newReplica(t, &now).cycle(nil, a).cycle(nil, a, b)
	if got := r.snapshot.Lookup(ShortID("1-0-0-0", "ab", "c")); got.Task != "ab" {
		t.Errorf("task %s has the ID now", got.Task)
	}
}

// An author who renames services forever fills no memory, and takes nothing from others.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	now := start
	r := newReplica(t, &now).cycle(nil, victim)
	mine := svc(attackerID, "miner", "stays")
	for i := range 100 {
		services := []Service{victim, mine, attacker}
		for j := range 50 {
			services = append(services, svc(attackerID, "miner", fmt.Sprintf("web_%d_%d", i, j)))
		}
		r.cycle(nil, services...)
		if stays := ShortID(attackerID, "miner", "stays"); !r.labels.owners[stays].is(attackerID, "miner", "stays") {
			t.Fatal("a label in use was forgotten")
		}
	}
	if got := len(r.labels.owners); got > maxRemembered+2 {
		t.Errorf("%d labels are remembered", got)
	}
	r.check(stolenID, victimID)
	if len(r.labels.holders[attackerID].labels) > maxRemembered {
		t.Errorf("%d labels of one operation", len(r.labels.holders[attackerID].labels))
	}

	// Nor does a user whose operations come and go: what ended longest ago is forgotten first, and only theirs.
	own := func(i int) Service {
		s := svc(fmt.Sprintf("1-0-0-%x", i+1), "t", "n")
		s.User = "mallory"
		return s
	}
	r.cycle(nil)
	for i := range 5 {
		var services []Service
		for j := range maxFreed / 4 {
			services = append(services, own(i*maxFreed/4+j))
		}
		now = now.Add(time.Minute)
		r.cycle(nil, services...)
	}
	now = now.Add(time.Minute)
	r.cycle(nil)
	if _, kept := r.labels.owners[stolenID]; !kept {
		t.Error("somebody else's label was forgotten")
	}
	if got := len(r.labels.owners) - len(r.labels.holders[victimID].labels) - len(r.labels.holders[attackerID].labels); got != maxFreed {
		t.Errorf("%d labels of ended operations are remembered, want %d", got, maxFreed)
	}
	if first, last := own(0), own(5*maxFreed/4-1); r.labels.holders[first.OperationID] != nil || r.labels.holders[last.OperationID] == nil {
		t.Error("not the oldest were forgotten")
	}
	now = now.Add(freedFor)
	if r.cycle(nil); len(r.labels.owners)+len(r.labels.holders) != 0 {
		t.Errorf("%d labels are remembered after a day", len(r.labels.owners))
	}
}

// What a service was called a while ago is still its operation's, however few or many services that publishes.
func TestMemoryOfRenamedServices(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ services, renames int }{{1, 200}, {64, 3}, {300, 1}} {
		t.Run(fmt.Sprintf("%d services", c.services), func(t *testing.T) {
			now := start
			r := newReplica(t, &now)
			for n := range c.renames + 1 {
				var services []Service
				for i := range c.services {
					services = append(services, svc(victimID, "trainer", fmt.Sprintf("ui_%d_%d", i, n)))
				}
				r.cycle(nil, services...)
			}
			for i := range c.services {
				name := fmt.Sprintf("ui_%d_0", i)
				if id := ShortID(victimID, "trainer", name); !r.labels.owners[id].is(victimID, "trainer", name) {
					t.Fatalf("whose %s is, the ID of %s, is forgotten", id, name)
				}
			}
		})
	}
}

func TestNilLabels(t *testing.T) {
	t.Parallel()
	var l *Labels
	l.Living(map[string]bool{"1": true})
	l.Seed([]ytclient.ServiceRow{{}}, Bases{})
	if s, problems := NewSnapshot(nil, l, []Service{victim}); s.Len() != 1 || len(problems) != 0 {
		t.Errorf("%s %v", s, problems)
	}
}

// Whatever comes and goes, restarts included: an ID that a living operation's service has been published under is its own.
func TestOwnersKeepTheirIDs(t *testing.T) {
	t.Parallel()
	// Few names that run together, so that most services have rivals, within their operation and without.
	operations := []string{"1-0-0-0", "1-0-0-01", "1-0-0-011", "1-0-0-0111"}
	tasks := []string{"1a", "11a", "a", "111a", "ab"}
	names := []string{"x", "bx", "xb"}
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		now := start
		r := newReplica(t, &now)
		alive := make(map[string]bool)
		published := make(map[[3]string]string) // services of living operations, and their IDs
		freed := make(map[string]time.Time)     // IDs of the last day, and when their operation ended
		last := make(map[string]string)         // … and whose they were
		for range 60 {
			now = now.Add(time.Duration(rng.IntN(8)) * time.Hour)
			for _, id := range operations {
				if rng.IntN(6) == 0 {
					alive[id] = !alive[id]
				}
			}
			// What an operation had it may have again when it is back, but need not.
			for key, id := range published {
				if !alive[key[0]] {
					freed[id], last[id] = now, key[0]
					delete(published, key)
				}
			}
			var services []Service
			for id, lives := range alive {
				for _, task := range tasks {
					for _, name := range names {
						if lives && rng.IntN(3) == 0 {
							services = append(services, started(svc(id, task, name), start.Add(time.Duration(rng.IntN(3)))))
						}
					}
				}
			}
			var more []string
			for id, lives := range alive {
				if lives {
					more = append(more, id)
				}
			}
			if rng.IntN(10) == 0 {
				// Restart: what the process published last is what the table has. What was published before that and is
				// not now is forgotten, and so are the days of freed labels.
				rows := r.rows()
				r = newReplica(t, &now, rows...)
				for key, id := range published {
					if !slices.ContainsFunc(rows, func(row ytclient.ServiceRow) bool {
						return row.Domain == id+".proxy.test" && [3]string{row.OperationID, row.TaskName, row.Service} == key
					}) {
						delete(published, key)
					}
				}
				clear(freed)
			}
			r.cycle(more, services...)
			owners := make(map[string][3]string)
			for key, id := range published {
				owners[id] = key
			}
			for _, s := range r.snapshot.Services() {
				key := [3]string{s.OperationID, s.Task, s.Name}
				if id, was := published[key]; was && id != s.ID {
					t.Fatalf("seed %d: %v moved from %s to %s", seed, key, id, s.ID)
				}
				if owner, owned := owners[s.ID]; owned && owner != key {
					t.Fatalf("seed %d: %v has the ID %s of %v", seed, key, s.ID, owner)
				}
				if at, was := freed[s.ID]; was && now.Sub(at) < freedFor && last[s.ID] != s.OperationID {
					t.Fatalf("seed %d: %v has the ID %s, which was freed %s ago", seed, key, s.ID, now.Sub(at))
				}
				if r.snapshot.Lookup(s.LongID) != s || r.snapshot.Lookup(s.ID) != s || r.snapshot.ByOperation(key[0], key[1], key[2]) != s {
					t.Fatalf("seed %d: %v is not reached", seed, key)
				}
				published[key], owners[s.ID] = s.ID, key
				delete(freed, s.ID)
			}
		}
	}
}

// slowToRead is a services table that cannot be read for a while by who does not write it.
type slowToRead struct {
	*store
	failing atomic.Bool
}

func (s *slowToRead) ReadServices(ctx context.Context) ([]ytclient.ServiceRow, error) {
	if s.failing.Load() {
		return nil, ytclient.ErrUnavailable
	}
	return s.store.ReadServices(ctx)
}

// A new replica meets an older operation that has renamed its service to a victim's ID. Whether it can read the services
// table at once or not, neither the table nor a snapshot ever tells that the ID is the attacker's.
func TestAttackRenameMeetsANewReplica(t *testing.T) {
	t.Parallel()
	for _, readable := range []bool{true, false} {
		t.Run(fmt.Sprintf("readable=%t", readable), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := &slowToRead{store: &store{exists: true, rows: []ytclient.ServiceRow{
					{Domain: stolenID + ".proxy.test", OperationID: victimID, TaskName: victim.Task, Service: victim.Name, Protocol: "http"},
				}}}
				table.failing.Store(!readable)
				d, err := New(Config{Source: renamed(), Store: table, Bases: testBases(t)})
				if err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- d.Run(ctx) }()
				check := func(final bool) {
					t.Helper()
					synctest.Wait()
					s := d.Snapshot().Lookup(stolenID)
					if final && s == nil || s != nil && s.OperationID != victimID {
						t.Errorf("%s is the address of %v", stolenID, s)
					}
					table.mu.Lock()
					defer table.mu.Unlock()
					if !slices.ContainsFunc(table.rows, func(r ytclient.ServiceRow) bool {
						return r.Domain == stolenID+".proxy.test" && r.OperationID == victimID
					}) {
						t.Fatalf("the table tells %v", table.rows)
					}
				}
				for range 10 {
					check(readable)
					time.Sleep(5 * time.Second)
				}
				table.failing.Store(false)
				time.Sleep(time.Minute)
				check(true)
				if table.mu.Lock(); len(table.rows) != 2 {
					t.Errorf("the table tells %v", table.rows)
				}
				table.mu.Unlock()
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// renamed is a cluster where the attacker has renamed its service.
func renamed() *source {
	operation := func(s Service) ytclient.Operation {
		return ytclient.Operation{ID: s.OperationID, User: s.User, State: "running", StartTime: s.StartTime, Annotations: map[string]any{
			"task_proxy": map[string]any{"enabled": true, "tasks_info": map[string]any{s.Task: map[string]any{s.Name: map[string]any{"port_index": int64(0)}}}},
		}}
	}
	return &source{
		listOperations: func() (ytclient.Listing, error) {
			return ytclient.Listing{Operations: []ytclient.Operation{operation(victim), operation(attacker)}}, nil
		},
		getOperation: func(id string) (ytclient.OperationInfo, error) {
			task := map[string]string{victimID: victim.Task, attackerID: attacker.Task}[id]
			return ytclient.OperationInfo{ID: id, State: "running", Tasks: []ytclient.Task{{Name: task, JobCount: 0, PortCount: 1}}}, nil
		},
		listJobs: func(string) (ytclient.JobListing, error) { return ytclient.JobListing{}, nil },
		jobPorts: func(refs []ytclient.JobRef) ([]ytclient.PortsAnswer, error) {
			return make([]ytclient.PortsAnswer, len(refs)), nil
		},
	}
}
