package discovery

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func aliasSvc(operation, alias, task, name string) Service {
	s := svc(operation, task, name)
	s.Alias = alias
	return s
}

func TestNewAliasLabel(t *testing.T) {
	t.Parallel()
	good := func(alias, task, name, want string) {
		t.Helper()
		if got, p := newAliasLabel(alias, task, name); got != want || p != (Problem{}) {
			t.Errorf("newAliasLabel(%q, %q, %q) = %q, %v, want %q", alias, task, name, got, p, want)
		}
	}
	bad := func(alias, task, name string, want ProblemKind) {
		t.Helper()
		if got, p := newAliasLabel(alias, task, name); got != "" || p.Kind != want || len(p.Reason) > 300 {
			t.Errorf("newAliasLabel(%.80q, %.80q, %.80q) = %q, %v, want %s", alias, task, name, got, p, want)
		}
	}
	good("*notes", "server", "ui", "notes-server-ui")
	good("notes", "server", "ui", "notes-server-ui")
	good("*My_Notes", "Server", "port_0", "my_notes-server-port_0")
	good("*a", "b", "c", "a-b-c")
	good("*1", "2", "3", "1-2-3")
	good("*a-b", "c-d", "e-f", "a-b-c-d-e-f")
	good("*_", "_", "_", "_-_-_")
	good("*"+strings.Repeat("a", maxLabel-4), "b", "c", strings.Repeat("a", maxLabel-4)+"-b-c")
	good("*abc", "-", "d", "abc---d")

	bad("*"+strings.Repeat("a", maxLabel-3), "b", "c", LabelTooLong)
	bad("*a", strings.Repeat("\x00", 1<<16), "c", LabelTooLong)
	bad("*a", "b", strings.Repeat("ы", 40), LabelTooLong)
	bad("*", "b", "c", BadLabel)
	bad("", "b", "c", BadLabel)
	bad("*a", "", "c", BadLabel)
	bad("*a", "b", "", BadLabel)
	bad("**a", "b", "c", BadLabel)
	bad("*a.b", "c", "d", BadLabel)
	bad("*a", "b/c", "d", BadLabel)
	bad("*a", "b", "c\x00", BadLabel)
	bad("*a", "b", "c\n", BadLabel)
	bad("*a", "b", `c"`, BadLabel)
	bad("*a", "b", "c d", BadLabel)
	bad("*a", "b", "\u212a", BadLabel) // the Kelvin sign is no "k"
	bad("*-a", "b", "c", BadLabel)
	bad("*a", "b", "c-", BadLabel)
	bad("*xn-", "b", "c", BadLabel)
	bad("*xn--a", "b", "c", BadLabel)
	bad("*ab", "-c", "d", BadLabel)
}

// Whatever the names: a label is one that a host can have, no ID and not the proxy's own.
func FuzzNewAliasLabel(f *testing.F) {
	f.Add("*notes", "server", "ui")
	f.Add("*A", "", "x-")
	f.Add("**", "\x00", "--")
	f.Add("xn-", "-", "\u212a")
	bases, err := NewBases("proxy.test")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, alias, task, name string) {
		label, p := newAliasLabel(alias, task, name)
		if (label == "") == (p.Kind == "") {
			t.Fatalf("label %q, problem %v", label, p)
		}
		if label == "" {
			return
		}
		if kind, got := bases.Classify(bases.Domain(label)); kind != HostService || got != label {
			t.Errorf("%q is read as %v %q", label, kind, got)
		}
		if !strings.Contains(label, "-") || label == ownLabel || strings.HasPrefix(label[2:], "--") {
			t.Errorf("%q is taken", label)
		}
		again, _ := newAliasLabel(strings.ToUpper(alias), task, name)
		if strings.ToUpper(alias) == alias && again != label {
			t.Errorf("%q, then %q", label, again)
		}
	})
}

func TestAliasLabels(t *testing.T) {
	t.Parallel()
	now := start
	ui := aliasSvc("1-0-0-1", "*Notes", "server", "ui")
	r := newReplica(t, &now).cycle(nil, ui, svc("1-0-0-2", "server", "ui"))
	r.checkProblems()
	s := r.snapshot.Lookup("notes-server-ui")
	if s == nil || s.AliasLabel != "notes-server-ui" || s.ID != ShortID("1-0-0-1", "server", "ui") || r.snapshot.Lookup(s.ID) != s || r.snapshot.Lookup(s.LongID) != s {
		t.Fatalf("got %v", s)
	}
	if got := r.snapshot.Services()[1].AliasLabel; got != "" {
		t.Errorf("without an alias the label is %q", got)
	}
	if got := len(r.rows()); got != 2 || strings.Contains(r.rows()[0].Domain+r.rows()[1].Domain, "notes") {
		t.Errorf("the services table has %v", r.rows())
	}
	if next := r.snapshot; r.cycle(nil, ui, svc("1-0-0-2", "server", "ui")).snapshot != next {
		t.Error("nothing changed, but the snapshot did")
	}

	// Names that make no label are one problem of their service, and only with an alias.
	odd := aliasSvc("1-0-0-1", "*Notes", "server", "a.b")
	long := aliasSvc("1-0-0-1", "*Notes", "server", strings.Repeat("x", 60))
	r.cycle(nil, ui, odd, long, svc("1-0-0-2", "server", "a.b"))
	r.checkProblems(BadLabel, LabelTooLong)
	r.check(ShortID("1-0-0-1", "server", "a.b"), "1-0-0-1")
}

// An alias outlives its operation: that is what it is for. Whoever has it next has its labels at once.
func TestAliasLabelsFollowTheAlias(t *testing.T) {
	t.Parallel()
	now := start
	r := newReplica(t, &now).cycle(nil, aliasSvc("1-0-0-1", "*notes", "server", "ui"))
	r.cycle(nil, aliasSvc("1-0-0-2", "*notes", "server", "ui"))
	r.check("notes-server-ui", "1-0-0-2")
	r.checkProblems()
	if r.snapshot.ByAlias("notes", "server", "ui") == nil {
		t.Error("the alias is nobody's")
	}
}

// While an operation lives, also unpublished, its alias and labels are its own, whoever else claims to have them.
func TestAttackAliasOfALivingOperation(t *testing.T) {
	t.Parallel()
	now := start
	mine := aliasSvc("2-0-0-1", "*notes", "server", "ui")
	rival := started(aliasSvc("1-0-0-1", "*notes", "server", "ui"), start.Add(-time.Hour))
	r := newReplica(t, &now).cycle(nil, mine).cycle(nil, mine, rival)
	r.check("notes-server-ui", "2-0-0-1")
	r.checkProblems(Collision)
	if got := r.snapshot.ByAlias("notes", "server", "ui"); got == nil || got.OperationID != "2-0-0-1" {
		t.Errorf("the alias names %v", got)
	}
	// Nor has the rival any other label that says it were the one.
	if r.cycle(nil, mine, aliasSvc("1-0-0-1", "*notes", "login", "ui")); r.snapshot.Lookup("notes-login-ui") != nil {
		t.Error("the rival has a label of the alias")
	}
	r.cycle([]string{"2-0-0-1"}, rival)
	r.check("notes-server-ui", "")
	if got := r.snapshot.ByAlias("notes", "server", "ui"); got != nil {
		t.Errorf("the alias names %v", got)
	}
	r.cycle(nil, rival)
	r.check("notes-server-ui", "1-0-0-1")
	r.checkProblems()

	// The alias changes hands also where no label of it does.
	mine.Name, rival.Name = "a.b", "a.b"
	r = newReplica(t, &now).cycle(nil, mine).cycle([]string{"2-0-0-1"}, rival).cycle(nil, rival)
	if got := r.snapshot.ByAlias("notes", "server", "a.b"); got == nil || got.OperationID != "1-0-0-1" {
		t.Errorf("the alias names %v", got)
	}
}

// a-b + c + d is a + b-c + d.
func TestAttackAliasComposedOtherwise(t *testing.T) {
	t.Parallel()
	now := start
	plain := aliasSvc("2-0-0-1", "*a-b", "c", "d")
	other := started(aliasSvc("1-0-0-1", "*a", "b-c", "d"), start.Add(-time.Hour))
	other2 := started(aliasSvc("1-0-0-2", "*A-B", "c", "d"), start.Add(-time.Hour))
	const label = "a-b-c-d"

	r := newReplica(t, &now).cycle(nil, plain).cycle(nil, plain, other, other2)
	r.check(label, "2-0-0-1")
	r.checkProblems(Collision, Collision)
	// Nor do they have it within a day after, when the operation's next life with the same alias takes it at once.
	r.cycle(nil, other, other2).check(label, "")
	next := plain
	next.OperationID = "3-0-0-1"
	r.cycle(nil, other, next, other2).check(label, "3-0-0-1")
	r.cycle(nil, other)
	now = now.Add(freedFor)
	r.cycle(nil, other).check(label, "1-0-0-1")

	// After a restart nobody remembers. Plain names win all the same, in any order and whatever the age.
	for range 10 {
		all := []Service{plain, other, other2}
		rand.Shuffle(3, func(i, j int) { all[i], all[j] = all[j], all[i] })
		newReplica(t, &now).cycle(nil, all...).check(label, "2-0-0-1")
	}
	// Without plain names age decides, as for an ID.
	less := aliasSvc("2-0-0-1", "*a", "b", "c-d")
	newReplica(t, &now).cycle(nil, less, other).check(label, "1-0-0-1")
	// What comes with an alias is not contested by those who ask at the same moment either.
	r = newReplica(t, &now).cycle(nil, other)
	next = other
	next.OperationID = "1-0-0-9"
	r.cycle(nil, next, plain).check(label, "1-0-0-9")
	// Who has it keeps it, from plain names too.
	newReplica(t, &now).cycle(nil, other).cycle(nil, other, plain).check(label, "1-0-0-1")
}

// An alias is text of a job author's. Without its "*" it would be a name among labels; as a label it never is an ID.
func TestAttackAliasThatLooksLikeAnID(t *testing.T) {
	t.Parallel()
	now := start
	r := newReplica(t, &now).cycle(nil, aliasSvc("1-0-0-1", stolenID, "t", "n"), aliasSvc("1-0-0-2", "*"+stolenID, "t", "n"))
	r.cycle(nil, aliasSvc("1-0-0-1", stolenID, "t", "n"), aliasSvc("1-0-0-2", "*"+stolenID, "t", "n"), victim)
	r.check(stolenID, victimID)
	r.check(stolenID+"-t-n", "1-0-0-2")
	r.checkProblems()
}
