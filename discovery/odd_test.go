package discovery

import (
	"errors"
	"testing"
	"time"

	"taskproxy/ytclient"
)

// An operation whose entry in the listing cannot be read lives, whatever it was known to publish: nobody else gets its labels.
func TestUnreadableOperationKeepsItsLabels(t *testing.T) {
	played(t, func(t *testing.T) {
		cluster := renamed()
		list := cluster.listOperations
		var victims, attackers func(op ytclient.Operation, l *ytclient.Listing)
		as := func(op ytclient.Operation, l *ytclient.Listing) { l.Operations = append(l.Operations, op) }
		silent := func(op ytclient.Operation, l *ytclient.Listing) {
			op.Annotations = nil
			l.Operations = append(l.Operations, op)
		}
		odd := func(op ytclient.Operation, l *ytclient.Listing) {
			l.Odd = append(l.Odd, ytclient.OddItem{OperationID: op.ID, Err: errors.New("odd")})
		}
		cluster.listOperations = func() (l ytclient.Listing, err error) {
			all, err := list()
			victims(all.Operations[0], &l)
			attackers(all.Operations[1], &l)
			return l, err
		}
		d, err := New(Config{Source: cluster})
		if err != nil {
			t.Fatal(err)
		}
		cycle := func(what, owner string) {
			t.Helper()
			if err := d.cycle(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := ""
			if s := d.Snapshot().Lookup(stolenID); s != nil {
				got = s.OperationID
			}
			if got != owner {
				t.Errorf("%s: %s leads to %q, want %q", what, stolenID, got, owner)
			}
		}
		victims, attackers = as, silent
		cycle("at first", victimID)
		victims = silent
		cycle("the victim publishes nothing", "")
		victims = odd
		for range 3 {
			cycle("the victim cannot be read", "")
			time.Sleep(freedFor / 2)
		}
		attackers = as
		cycle("the attacker asks for its ID", "")
		victims = as
		cycle("the victim is back", victimID)
	})
}
