package ytlocal

import (
	"context"
	"testing"
	"time"

	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yt"
	"go.ytsaurus.tech/yt/go/yterrors"
	"go.ytsaurus.tech/yt/go/ytlock"
)

// begin starts a transaction that the SDK keeps alive until the test ends.
func begin(t *testing.T, yc interface {
	BeginTx(ctx context.Context, options *yt.StartTxOptions) (yt.Tx, error)
}, o *yt.StartTxOptions) yt.Tx {
	t.Helper()
	// The test's context ends before its cleanups run, and the SDK then aborts behind our back.
	tx, err := yc.BeginTx(context.WithoutCancel(t.Context()), o)
	must(t, err)
	t.Cleanup(func() {
		_ = tx.Abort()
		<-tx.Finished()
	})
	return tx
}

func TestTransactionsIsolate(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	ctx, yc := t.Context(), rootClient(t, c)
	create(t, yc, "//tmp/t", yt.NodeTable)
	must(t, writeTable(t, yc, "//tmp/t", pair{"old", ""}))
	set(t, yc, "//tmp/n", "old")
	set(t, yc, "//tmp/gone", 1)

	change := func(tx yt.Tx) {
		t.Helper()
		w, err := tx.WriteTable(ctx, ypath.Path("//tmp/t"), nil)
		must(t, err)
		must(t, w.Write(pair{"new", ""}))
		must(t, w.Commit())
		set(t, tx, "//tmp/n", "new")
		set(t, tx, "//tmp/n/@a", 1)
		create(t, tx, "//tmp/made/deep", yt.NodeMap)
		must(t, tx.RemoveNode(ctx, ypath.Path("//tmp/gone"), nil))
		set(t, tx, "//tmp/gone", "again")
	}
	see := func(yc yt.CypressClient, tc yt.TableClient, row, value, gone string, made bool) {
		t.Helper()
		if got := readPairs(t, tc, "//tmp/t"); len(got) != 1 || got[0].Domain != row {
			t.Errorf("table: got %v, want %s", got, row)
		}
		if got := get(t, yc, "//tmp/n"); got != value {
			t.Errorf("value: got %s, want %s", got, value)
		}
		if got := get(t, yc, "//tmp/gone"); got != gone {
			t.Errorf("replaced node: got %s, want %s", got, gone)
		}
		if got := exists(t, yc, "//tmp/made/deep"); got != made {
			t.Errorf("new node: got %v, want %v", got, made)
		}
		if got := exists(t, yc, "//tmp/n/@a"); got != made {
			t.Errorf("new attribute: got %v, want %v", got, made)
		}
	}

	tx := begin(t, yc, nil)
	change(tx)
	see(tx, tx, "new", "new", "again", true)
	see(yc, yc, "old", "old", "1", false)
	must(t, tx.Abort())
	see(yc, yc, "old", "old", "1", false)

	outer := begin(t, yc, nil)
	nested := begin(t, outer, nil)
	change(nested)
	see(outer, outer, "old", "old", "1", false)
	if err := yc.(yt.LowLevelTxClient).CommitTx(ctx, outer.ID(), nil); err == nil {
		t.Error("a transaction with a living nested one was committed")
	}
	must(t, nested.Commit())
	see(outer, outer, "new", "new", "again", true)
	see(yc, yc, "old", "old", "1", false)
	if _, err := yc.CreateNode(ctx, ypath.Path("//tmp/made"), yt.NodeMap, nil); !yterrors.ContainsErrorCode(err, yterrors.CodeConcurrentTransactionLockConflict) {
		t.Errorf("a key that a transaction holds: got %v, want code 402", err)
	}
	must(t, outer.Commit())
	see(yc, yc, "new", "new", "again", true)
}

func TestAppendsAddUp(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	ctx, yc := t.Context(), rootClient(t, c)
	create(t, yc, "//tmp/t", yt.NodeTable)
	one, two := begin(t, yc, nil), begin(t, yc, nil)
	for _, tx := range []yt.Tx{one, two} {
		w, err := tx.WriteTable(ctx, ypath.NewRich("//tmp/t").SetAppend(), nil)
		must(t, err)
		must(t, w.Write(pair{"x", ""}))
		must(t, w.Commit())
	}
	wantCode(t, writeTable(t, yc, "//tmp/t"), yterrors.CodeConcurrentTransactionLockConflict)
	must(t, one.Commit())
	must(t, two.Commit())
	if got := get(t, yc, "//tmp/t/@row_count"); got != "2" {
		t.Errorf("rows: got %s, want 2", got)
	}
}

func TestLocks(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	ctx, yc := t.Context(), rootClient(t, c)
	create(t, yc, "//tmp/d", yt.NodeMap)
	key := func(k string) *yt.LockNodeOptions { return &yt.LockNodeOptions{ChildKey: &k} }
	attr := func(k string) *yt.LockNodeOptions { return &yt.LockNodeOptions{AttributeKey: &k} }
	for _, tt := range []struct {
		name         string
		held, wanted yt.LockMode
		heldO, wantO *yt.LockNodeOptions
		conflict     bool
	}{
		{"exclusive twice", yt.LockExclusive, yt.LockExclusive, nil, nil, true},
		{"exclusive, shared", yt.LockExclusive, yt.LockShared, nil, nil, true},
		{"shared, exclusive", yt.LockShared, yt.LockExclusive, nil, nil, true},
		{"shared twice", yt.LockShared, yt.LockShared, nil, nil, false},
		{"snapshot", yt.LockExclusive, yt.LockSnapshot, nil, nil, false},
		{"under a snapshot", yt.LockSnapshot, yt.LockExclusive, nil, nil, false},
		{"same child", yt.LockShared, yt.LockShared, key("a"), key("a"), true},
		{"other child", yt.LockShared, yt.LockShared, key("a"), key("b"), false},
		{"child and attribute", yt.LockShared, yt.LockShared, key("a"), attr("a"), false},
		{"same attribute", yt.LockShared, yt.LockShared, attr("a"), attr("a"), true},
		{"child, exclusive", yt.LockShared, yt.LockExclusive, key("a"), nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			one, two := begin(t, yc, nil), begin(t, yc, nil)
			_, err := one.LockNode(ctx, ypath.Path("//tmp/d"), tt.held, tt.heldO)
			must(t, err)
			nested := begin(t, one, nil)
			_, err = nested.LockNode(ctx, ypath.Path("//tmp/d"), tt.wanted, tt.wantO)
			if err != nil {
				t.Errorf("under the holder's own transaction: %v", err)
			}
			must(t, nested.Abort())
			_, err = two.LockNode(ctx, ypath.Path("//tmp/d"), tt.wanted, tt.wantO)
			if got := yterrors.ContainsErrorCode(err, yterrors.CodeConcurrentTransactionLockConflict); got != tt.conflict {
				t.Errorf("got %v, want conflict %v", err, tt.conflict)
			}
			if tt.conflict {
				if w := ytlock.FindConflictWinner(err); w == nil || w.ID != one.ID() {
					t.Errorf("winner: got %+v, want %s", w, one.ID())
				}
			}
		})
	}
}

func TestWaitableLock(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	ctx, yc := t.Context(), rootClient(t, c)
	create(t, yc, "//tmp/d", yt.NodeMap)
	one, two := begin(t, yc, nil), begin(t, yc, nil)
	_, err := one.LockNode(ctx, ypath.Path("//tmp/d"), yt.LockExclusive, nil)
	must(t, err)
	l, err := two.LockNode(ctx, ypath.Path("//tmp/d"), yt.LockExclusive, &yt.LockNodeOptions{Waitable: true})
	must(t, err)
	state := "#" + l.LockID.String() + "/@state"
	if got := get(t, yc, state); got != "pending" {
		t.Errorf("got %s, want pending", got)
	}
	must(t, one.UnlockNode(ctx, ypath.Path("//tmp/d"), nil))
	if got := get(t, yc, state); got != "acquired" {
		t.Errorf("got %s, want acquired", got)
	}
	must(t, two.Abort())
	if exists(t, yc, state) {
		t.Error("the lock outlived its transaction")
	}
}

// The lease of the services table, as the product holds it: a shared lock on a child key in a long transaction, and each
// write in a short transaction that has the long one as prerequisite.
func TestPrerequisites(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	ctx, yc := t.Context(), rootClient(t, c)
	create(t, yc, "//tmp/d/t", yt.NodeTable)
	lease := begin(t, yc, nil)
	key := "leader"
	_, err := lease.LockNode(ctx, ypath.Path("//tmp/d"), yt.LockShared, &yt.LockNodeOptions{ChildKey: &key})
	must(t, err)
	set(t, yc, "//tmp/d/other", 1) // the directory goes on living

	opts := &yt.StartTxOptions{PrerequisiteTransactionIDs: []yt.TxID{lease.ID()}}
	write := begin(t, yc, opts)
	set(t, write, "//tmp/d/value", 1)
	must(t, write.Commit())

	late, err := yc.(yt.LowLevelTxClient).StartTx(ctx, opts)
	must(t, err)
	must(t, yc.SetNode(ctx, ypath.Path("//tmp/d/value"), 2, &yt.SetNodeOptions{TransactionOptions: &yt.TransactionOptions{TransactionID: late}}))
	must(t, lease.Abort())
	if err := yc.(yt.LowLevelTxClient).CommitTx(ctx, late, nil); !yterrors.ContainsErrorCode(err, yterrors.CodeNoSuchTransaction) {
		t.Errorf("committing after the prerequisite has ended: got %v, want code 11000", err)
	}
	if got := get(t, yc, "//tmp/d/value"); got != "1" {
		t.Errorf("value: got %s, want 1", got)
	}
	_, err = yc.BeginTx(ctx, opts)
	wantCode(t, err, yterrors.CodePrerequisiteCheckFailed)
	err = yc.SetNode(ctx, ypath.Path("//tmp/d/value"), 3, &yt.SetNodeOptions{PrerequisiteOptions: &yt.PrerequisiteOptions{TransactionIDs: []yt.TxID{lease.ID()}}})
	wantCode(t, err, yterrors.CodePrerequisiteCheckFailed)
}

func TestTransactionsExpire(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	ctx, yc := t.Context(), rootClient(t, c)
	ll, ok := yc.(yt.LowLevelTxClient)
	if !ok {
		t.Fatal("the SDK's client has no StartTx")
	}
	set(t, yc, "//tmp/n", 1)
	timeout := yson.Duration(50 * time.Millisecond)
	id, err := ll.StartTx(ctx, &yt.StartTxOptions{Timeout: &timeout})
	must(t, err)
	in := &yt.TransactionOptions{TransactionID: id}
	must(t, yc.SetNode(ctx, ypath.Path("//tmp/n"), 2, &yt.SetNodeOptions{TransactionOptions: in}))
	// Everything but a ping leaves the deadline where it is; the SDK never pings what StartTx started.
	deadline := time.Now().Add(10 * time.Second)
	for exists(t, yc, "#"+id.String()+"/@id") {
		if time.Now().After(deadline) {
			t.Fatal("the transaction did not expire")
		}
	}
	wantCode(t, ll.PingTx(ctx, id, nil), yterrors.CodeNoSuchTransaction)
	wantCode(t, yc.SetNode(ctx, ypath.Path("//tmp/n"), 3, &yt.SetNodeOptions{TransactionOptions: in}), yterrors.CodeNoSuchTransaction)
	if got := get(t, yc, "//tmp/n"); got != "1" {
		t.Errorf("after expiry: got %s, want 1", got)
	}
	must(t, yc.SetNode(ctx, ypath.Path("//tmp/n"), 4, nil)) // its lock is gone too
}

func TestTransactionsBelongToUsers(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	yc := rootClient(t, c)
	bob := client(t, c, addUser(t, c, "bob").Token)
	tx := begin(t, yc, nil)
	wantCode(t, bob.(yt.LowLevelTxClient).AbortTx(t.Context(), tx.ID(), nil), yterrors.CodeAuthorizationError)
	wantCode(t, bob.(yt.LowLevelTxClient).CommitTx(t.Context(), tx.ID(), nil), yterrors.CodeAuthorizationError)
}

func TestYTLock(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	yc := rootClient(t, c)
	lock := ytlock.NewLockOptions(yc, "//tmp/lock", ytlock.Options{CreateIfMissing: true, LockMode: yt.LockExclusive})
	ctx := context.WithoutCancel(t.Context())
	_, err := lock.Acquire(ctx)
	must(t, err)
	_, err = ytlock.NewLock(yc, "//tmp/lock").Acquire(ctx)
	wantCode(t, err, yterrors.CodeConcurrentTransactionLockConflict)
	must(t, lock.Release(ctx))
}
