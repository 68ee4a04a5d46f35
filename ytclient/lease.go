package ytclient

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yt"
	"go.ytsaurus.tech/yt/go/yterrors"
)

// Lease makes one process of many the leader in a directory: a transaction, pinged from here, that holds a lock. The lock
// is shared and has a child key, so it stands in the way of nothing but another lease.
//
// What a leader does must not depend on its own belief in the lease, which can be seconds old: it must happen in
// transactions that have the lease as prerequisite, which the cluster aborts together with it.
//
// It is safe for concurrent use. Release it; closing the Client releases it as well.
type Lease struct {
	tx  yt.Tx
	end context.CancelFunc // stops the pings
}

// leaseKey is the child key that leases conflict by. No node of this name is made.
const leaseKey = "task-proxy-writer"

// HeldError is why a lease cannot be had: it is another's. It wraps ErrConflict. What its fields say was written by others.
type HeldError struct {
	Transaction string // that stands in the way; empty if the cluster did not say
	User        string // whose transaction it is
	Holder      string // in words, as a lease introduces itself; empty if it is no lease of ours or ended meanwhile
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("%v: held by transaction %.64q of %.256q (%.256q)", ErrConflict, e.Transaction, e.User, e.Holder)
}

func (e *HeldError) Unwrap() error { return ErrConflict }

// AcquireLease makes the caller the leader in the directory dir, which is made if it is missing. It does not wait: if there
// is another leader it fails with a *HeldError. The lease outlives ctx.
//
// Errors: *HeldError, ErrDenied when the robot may neither lock nor make the directory, ErrOverloaded, ErrUnavailable,
// ErrRejected.
func (c *Client) AcquireLease(ctx context.Context, dir string) (lease *Lease, err error) {
	var held *HeldError
	err = c.do(ctx, "acquire_lease", func(ctx context.Context) (err error) {
		lease, err = c.acquire(ctx, ypath.Path(dir))
		if e := conflict(err); e != nil {
			held = c.introduce(ctx, e)
			return nil // an answer, and no failed call
		}
		return err
	})
	if held != nil {
		err = fmt.Errorf("lock %s: %w", dir, held)
	}
	if err != nil {
		return nil, err
	}
	return lease, nil
}

func (c *Client) acquire(ctx context.Context, dir ypath.Path) (lease *Lease, err error) {
	// The SDK pings for as long as the context lasts that the transaction was begun with. Until the lock is there that is
	// the caller's, so that nothing is left behind when the caller gives up.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	detach := context.AfterFunc(ctx, end)
	var tx yt.Tx
	defer func() {
		if lease != nil {
			return
		}
		if tx != nil {
			_ = tx.Abort() // it expires if this fails
		}
		end()
	}()
	tx, err = c.yc.BeginTx(life, &yt.StartTxOptions{Attributes: map[string]any{"title": introduction()}})
	if err != nil {
		return nil, err
	}
	if err := c.lockDirectory(ctx, tx, dir); err != nil {
		return nil, classified(ctx, err)
	}
	if !detach() {
		return nil, context.Cause(ctx)
	}
	return &Lease{tx: tx, end: end}, nil
}

// lockDirectory takes the lock. It is asked first: the robot need not have the right to make the directory once it stands.
func (c *Client) lockDirectory(ctx context.Context, tx yt.Tx, dir ypath.Path) error {
	key := leaseKey
	lock := func() error {
		_, err := tx.LockNode(ctx, dir, yt.LockShared, &yt.LockNodeOptions{ChildKey: &key})
		return err
	}
	err := lock()
	if !yterrors.ContainsErrorCode(err, yterrors.CodeResolveError) {
		return err
	}
	if _, err := c.yc.CreateNode(ctx, dir, yt.NodeMap, &yt.CreateNodeOptions{Recursive: true, IgnoreExisting: true}); err != nil {
		return fmt.Errorf("there is no directory %s, and making it: %w", dir, err)
	}
	return lock()
}

// introduction tells people and other replicas whose transaction this is.
func introduction() string {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	return fmt.Sprintf("task-proxy on %s, pid %d, writes the services table since %s", host, os.Getpid(), time.Now().UTC().Format(time.RFC3339))
}

func conflict(err error) *yterrors.Error {
	return yterrors.FindErrorCode(err, yterrors.CodeConcurrentTransactionLockConflict)
}

// introduce says who is meant by the cluster's answer that a lock is taken.
func (c *Client) introduce(ctx context.Context, e *yterrors.Error) *HeldError {
	held := &HeldError{}
	winner, _ := e.Attributes["winner_transaction"].(map[string]any)
	held.Transaction, _ = winner["id"].(string)
	held.User, _ = winner["owner"].(string)
	if held.Transaction != "" {
		// Only for the log: it may be gone already, or not be ours to read.
		_ = c.yc.GetNode(ctx, ypath.Path("#"+held.Transaction).Attr("title"), &held.Holder, nil)
	}
	return held
}

// Lost is closed when the lease has ended: it was released, the cluster ended it, or did not answer for as long as a lease
// lives without pings.
func (l *Lease) Lost() <-chan struct{} { return l.tx.Finished() }

// Release gives the lease up. When it fails the lease ends by itself a little later.
func (l *Lease) Release(ctx context.Context) error {
	defer l.end()
	select {
	case <-l.Lost():
		return nil
	default:
	}
	defer context.AfterFunc(ctx, l.end)()
	if err := l.tx.Abort(); err != nil {
		return fmt.Errorf("release the lease: %w", err)
	}
	return nil
}

// within runs f in a transaction that the cluster commits only while the lease lives; f reports whether there is anything
// to commit.
//
// Errors: those of f, and ErrLeaseLost.
func (l *Lease) within(ctx context.Context, yc yt.Client, f func(yt.Tx) (commit bool, err error)) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go l.watch(ctx, cancel)
	tx, err := yc.BeginTx(ctx, &yt.StartTxOptions{PrerequisiteTransactionIDs: []yt.TxID{l.tx.ID()}})
	if err != nil {
		return l.explain(err)
	}
	done := false
	defer func() { // also when f panics
		if !done {
			_ = tx.Abort() // it expires if this fails
		}
	}()
	commit, err := f(tx)
	if err != nil {
		return classified(ctx, l.explain(err))
	}
	if !commit {
		return nil
	}
	done = true
	return l.explain(tx.Commit())
}

// watch gives up what cannot succeed any more, when the lease ends before the context does.
func (l *Lease) watch(ctx context.Context, cancel context.CancelFunc) {
	select {
	case <-l.Lost():
		cancel()
	case <-ctx.Done():
	}
}

// explain finds out whether a transaction failed because the lease is gone. The cluster says so as long as it remembers
// the lease, and afterwards that there is no such transaction; the SDK has its own words for one that it found ended.
func (l *Lease) explain(err error) error {
	if err == nil || errors.Is(err, ErrConflict) {
		return err
	}
	lost := yterrors.ContainsErrorCode(err, yterrors.CodePrerequisiteCheckFailed) || yterrors.ContainsErrorCode(err, yterrors.CodeNoSuchTransaction)
	select {
	case <-l.Lost():
		lost = true
	default:
	}
	if lost {
		return fmt.Errorf("%w: %w", ErrLeaseLost, err)
	}
	return err
}

// transactionTimes are how long a transaction lives without a ping, and how often it is pinged.
func transactionTimes(timeout time.Duration) (time.Duration, time.Duration) {
	if timeout <= 0 {
		timeout = 15 * time.Second
	}
	return timeout, timeout / 5
}
