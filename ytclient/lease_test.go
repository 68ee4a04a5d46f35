package ytclient_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.ytsaurus.tech/yt/go/guid"
	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yt"
	"go.ytsaurus.tech/yt/go/yterrors"

	"taskproxy/ytclient"
	"taskproxy/ytclient/ytlocal"
)

// acquire makes the test the writer of the table, until it ends.
func acquire(t *testing.T, table *ytclient.ServicesTable) ytclient.ServicesWriter {
	t.Helper()
	w, err := table.AcquireWriter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Of a cluster that may be gone.
		_ = w.Release(context.WithoutCancel(t.Context()))
	})
	return w
}

// sync replaces the rows of the table.
func sync(t *testing.T, w ytclient.ServicesWriter, rows []ytclient.ServiceRow) {
	t.Helper()
	if wrote, err := w.Sync(t.Context(), replace(rows)); !wrote || err != nil {
		t.Fatalf("Sync = %t, %v", wrote, err)
	}
}

func replace(rows []ytclient.ServiceRow) func([]ytclient.ServiceRow, bool) ([]ytclient.ServiceRow, bool) {
	return func([]ytclient.ServiceRow, bool) ([]ytclient.ServiceRow, bool) { return rows, true }
}

// has fails the test unless the table holds the rows.
func has(t *testing.T, table *ytclient.ServicesTable, rows []ytclient.ServiceRow) {
	t.Helper()
	if got, err := table.ReadServices(t.Context()); err != nil || !slices.Equal(got, rows) {
		t.Errorf("the table holds %+v, %v; want %+v", got, err, rows)
	}
}

var (
	mine   = []ytclient.ServiceRow{{Domain: "2ef4261c.example.net", OperationID: "1-2-3fe03e8-4", TaskName: "mine", Service: "ui", Protocol: "http"}}
	theirs = []ytclient.ServiceRow{{Domain: "ae5cf6f5.example.net", OperationID: "1-2-3fe03e8-5", TaskName: "theirs", Service: "ui", Protocol: "http"}}
)

// testLease is part of the contract with a cluster.
func testLease(t *testing.T, client *ytclient.Client, admin yt.Client) {
	dir := ypath.Path("//tmp/task_proxy_lease_" + guid.New().String())
	removeAfter(t, admin, dir)
	table := client.ServicesTable(dir.Child("services").String())
	first := acquire(t, table) // makes the directory
	held := heldBy(t, table)
	if !strings.Contains(held.Holder, "task-proxy on ") || held.User == "" {
		t.Errorf("the lease is held by %+v, want to read who that is", held)
	}
	// The lease is in nobody's way.
	if err := admin.SetNode(t.Context(), dir.Child("note"), "x", nil); err != nil {
		t.Errorf("another's work in the directory: %v", err)
	}
	sync(t, first, mine)

	if err := first.Release(t.Context()); err != nil {
		t.Error(err)
	}
	select {
	case <-first.Lost():
	default:
		t.Error("a released lease is not lost")
	}
	if err := first.Release(t.Context()); err != nil {
		t.Errorf("released again: %v", err)
	}
	second := acquire(t, table)
	if wrote, err := first.Sync(t.Context(), replace(theirs)); wrote || !errors.Is(err, ytclient.ErrLeaseLost) {
		t.Errorf("Sync after Release = %t, %v; want ErrLeaseLost", wrote, err)
	}

	// Deposed without being told: the transaction ends, and the next ping is seconds away.
	abort(t, admin, heldBy(t, table).Transaction)
	third := acquire(t, table)
	sync(t, third, mine)
	called := false
	wrote, err := second.Sync(t.Context(), func([]ytclient.ServiceRow, bool) ([]ytclient.ServiceRow, bool) {
		called = true
		return theirs, true
	})
	if wrote || called || !errors.Is(err, ytclient.ErrLeaseLost) {
		t.Errorf("Sync of a deposed holder = %t, %v, called %t; want ErrLeaseLost", wrote, err, called)
	}
	has(t, table, mine)

	// Deposed in the midst of it, when it has read, and the next one has written meanwhile.
	var next ytclient.ServicesWriter
	wrote, err = third.Sync(t.Context(), func([]ytclient.ServiceRow, bool) ([]ytclient.ServiceRow, bool) {
		abort(t, admin, heldBy(t, table).Transaction)
		next = acquire(t, table)
		sync(t, next, mine)
		return theirs, true
	})
	if wrote || !errors.Is(err, ytclient.ErrLeaseLost) {
		t.Errorf("Sync of a holder deposed meanwhile = %t, %v; want ErrLeaseLost", wrote, err)
	}
	has(t, table, mine)

	// Who writes without a lease comes before or after, not in between.
	if wrote, err := next.Sync(t.Context(), func([]ytclient.ServiceRow, bool) ([]ytclient.ServiceRow, bool) {
		if err := overwrite(t, admin, dir.Child("services"), theirs); !yterrors.ContainsErrorCode(err, yterrors.CodeConcurrentTransactionLockConflict) {
			t.Errorf("another's write between look and write: %v, want a conflict", err)
		}
		return mine, true
	}); !wrote || err != nil {
		t.Errorf("Sync = %t, %v", wrote, err)
	}
	tx, err := admin.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Abort() //nolint:errcheck // the test is over
	if err := overwrite(t, tx, dir.Child("services"), theirs); err != nil {
		t.Fatal(err)
	}
	if wrote, err := next.Sync(t.Context(), replace(mine)); wrote || !errors.Is(err, ytclient.ErrConflict) {
		t.Errorf("Sync of a table that is being written = %t, %v; want ErrConflict", wrote, err)
	}
}

// removeAfter removes the directory once the leases on it are released, which stand in the way of that.
func removeAfter(t *testing.T, admin yt.Client, dir ypath.Path) {
	t.Helper()
	t.Cleanup(func() {
		if err := admin.RemoveNode(context.WithoutCancel(t.Context()), dir, &yt.RemoveNodeOptions{Recursive: true, Force: true}); err != nil {
			t.Error(err)
		}
	})
}

// heldBy is who has the lease that the test asks for in vain.
func heldBy(t *testing.T, table *ytclient.ServicesTable) *ytclient.HeldError {
	t.Helper()
	w, err := table.AcquireWriter(t.Context())
	var held *ytclient.HeldError
	if w != nil || !errors.As(err, &held) || !errors.Is(err, ytclient.ErrConflict) || held.Transaction == "" {
		t.Fatalf("AcquireWriter = %v, %v; want a HeldError", w, err)
	}
	return held
}

func abort(t *testing.T, admin yt.Client, transaction string) {
	t.Helper()
	id, err := guid.ParseString(transaction)
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.AbortTx(t.Context(), yt.TxID(id), nil); err != nil {
		t.Fatal(err)
	}
}

// overwrite is what a writer does who knows of no lease. rows is a slice of anything.
func overwrite[R any](t *testing.T, yc yt.CypressClient, path ypath.Path, rows []R) error {
	t.Helper()
	w, err := yt.WriteTable(t.Context(), yc, path, yt.WithExistingTable())
	if err != nil {
		return err
	}
	for _, row := range rows {
		if err := w.Write(row); err != nil {
			return err
		}
	}
	return w.Commit()
}

// robot is a user who may do everything, and whom the cluster's faults can tell from others.
func robot(t *testing.T, cluster *ytlocal.Cluster, admin yt.Client, login string) *ytclient.Client {
	t.Helper()
	user, err := cluster.AddUser(login)
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.AddMember(t.Context(), "superusers", login, nil); err != nil {
		t.Fatal(err)
	}
	return client(t, cluster, user.Token)
}

func client(t *testing.T, cluster *ytlocal.Cluster, token string) *ytclient.Client {
	t.Helper()
	c, err := ytclient.New(ytclient.Config{Proxy: cluster.URL(), Token: func() (string, error) { return token, nil }, CallTimeout: time.Minute, TxTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestLeaseOfAVanishedHolder: the holder is cut off as if it was killed. Another gets the lease when the transaction has
// expired, and the old holder learns of it.
func TestLeaseOfAVanishedHolder(t *testing.T) {
	t.Parallel()
	cluster, admin := localCluster(t)
	gone, heir := robot(t, cluster, admin, "gone"), robot(t, cluster, admin, "heir")
	path := "//tmp/leases/services"
	w := acquire(t, gone.ServicesTable(path))
	sync(t, w, mine)
	heal := cluster.Faults().Add(ytlocal.Fault{Match: func(c ytlocal.Call) bool { return c.User == "gone" }, Cut: ytlocal.CutBefore})
	defer heal()
	cut := time.Now()
	// What is under way ends with the lease, and not with the deadline of the call, which is a minute.
	if wrote, err := w.Sync(t.Context(), replace(theirs)); wrote || !errors.Is(err, ytclient.ErrLeaseLost) || time.Since(cut) > 30*time.Second {
		t.Errorf("Sync of a holder that is cut off = %t, %v after %s; want ErrLeaseLost after a second", wrote, err, time.Since(cut))
	}
	next := await(t, "the lease has expired", func() (*ytclient.ServicesWriter, error) {
		w, err := heir.ServicesTable(path).AcquireWriter(t.Context())
		if err != nil {
			return nil, err
		}
		return &w, nil
	})
	if took := time.Since(cut); took < 500*time.Millisecond {
		t.Errorf("a lease of a second lasted %s", took)
	}
	<-w.Lost()
	heal()
	sync(t, *next, theirs)
	if wrote, err := w.Sync(t.Context(), replace(mine)); wrote || !errors.Is(err, ytclient.ErrLeaseLost) {
		t.Errorf("Sync of the old holder = %t, %v; want ErrLeaseLost", wrote, err)
	}
	has(t, heir.ServicesTable(path), theirs)
	if err := (*next).Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestLeaseIsNotLeftBehind: who gives up asking for a lease, or is refused, holds none; and a Client that is closed holds none.
func TestLeaseIsNotLeftBehind(t *testing.T) {
	t.Parallel()
	cluster, admin := localCluster(t)
	robot := robot(t, cluster, admin, "robot")
	table := robot.ServicesTable("//tmp/leases/services")
	hang := cluster.Faults().Add(ytlocal.Fault{Command: "lock", Match: func(c ytlocal.Call) bool { return c.User == "robot" }, Hang: true, Times: 1})
	defer hang()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := table.AcquireWriter(ctx); !errors.Is(err, ytclient.ErrUnavailable) {
		t.Errorf("AcquireWriter of a cluster that hangs = %v, want ErrUnavailable", err)
	}
	second := client(t, cluster, cluster.RootToken())
	w := acquire(t, second.ServicesTable("//tmp/leases/services"))
	if held := heldBy(t, table); held.User != "root" {
		t.Errorf("held by %+v, want root's lease only", held)
	}
	second.Close()
	<-w.Lost()
	acquire(t, table)
	await(t, "only one transaction is left", func() (*int, error) {
		var ids []string
		if err := admin.ListNode(t.Context(), ypath.Path("//sys/transactions"), &ids, nil); err != nil || len(ids) != 1 {
			return nil, err
		}
		return new(int), nil
	})
}

func TestLeaseDenied(t *testing.T) {
	t.Parallel()
	cluster, admin := localCluster(t)
	user, err := cluster.AddUser("poor")
	if err != nil {
		t.Fatal(err)
	}
	poor := client(t, cluster, user.Token)
	for _, dir := range []string{"//sys/task_proxies", "//sys"} {
		_, err := poor.AcquireLease(t.Context(), dir)
		if !errors.Is(err, ytclient.ErrDenied) || !strings.Contains(err.Error(), dir) {
			t.Errorf("lease of %s = %v, want ErrDenied that names the directory", dir, err)
		}
	}
	if exists, err := admin.NodeExists(t.Context(), ypath.Path("//sys/task_proxies"), nil); exists || err != nil {
		t.Errorf("the directory exists: %t, %v", exists, err)
	}
}

func localCluster(t *testing.T) (*ytlocal.Cluster, yt.Client) {
	t.Helper()
	cluster, err := ytlocal.Start(ytlocal.Config{StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	return cluster, sdk(t, cluster.URL(), cluster.RootToken())
}
