package ytclient

import (
	"context"
	"fmt"
	"strings"

	"go.ytsaurus.tech/yt/go/schema"
	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yt"
	"go.ytsaurus.tech/yt/go/yterrors"
)

// ServicesTable is the table in Cypress where users and SPYT's clients look up the address of a service.
type ServicesTable struct {
	c    *Client
	path ypath.Path
}

// ServicesTable returns the table at path, which must be absolute and name no attribute. It makes no call.
func (c *Client) ServicesTable(path string) *ServicesTable {
	return &ServicesTable{c: c, path: ypath.Path(path)}
}

// servicesSchema is weak on purpose: the product that this one replaces must be able to overwrite the table after a
// rollback, so nothing is a key, nothing is required, and other columns are allowed.
var servicesSchema = func() schema.Schema {
	lax := false
	s := schema.Schema{Strict: &lax}
	for _, name := range []string{"domain", "operation_id", "task_name", "service", "protocol"} {
		s.Columns = append(s.Columns, schema.Column{Name: name, Type: schema.TypeString})
	}
	return s
}()

// maxRows is far more than we ever write. A table of that size is somebody's data at a path given by mistake: it is not read,
// and so not overwritten either.
const maxRows = 200_000

// ReadServices returns all rows in the table's order. A row that is not made like ours, as another writer may have left it,
// is the zero ServiceRow.
//
// Errors: ErrNotFound when there is no table, ErrDenied, ErrOverloaded, ErrUnavailable, ErrRejected when there is something
// else than a services table.
func (t *ServicesTable) ReadServices(ctx context.Context) (rows []ServiceRow, err error) {
	err = t.c.do(ctx, "read_services", func(ctx context.Context) error {
		tx, err := t.c.yc.BeginTx(ctx, nil)
		if err != nil {
			if ctx.Err() != nil {
				return err
			}
			// Masters that are read-only begin no transaction, but can be read.
			rows, err = t.readUnlocked(ctx)
			return classified(ctx, err)
		}
		defer tx.Abort() //nolint:errcheck // it only read; an abandoned transaction expires
		lock, err := tx.LockNode(ctx, t.path, yt.LockSnapshot, nil)
		if err != nil {
			return classified(ctx, err)
		}
		rows, err = read(ctx, tx, lock.NodeID)
		return classified(ctx, err)
	})
	return rows, err
}

// readUnlocked reads the table as it is from one moment to the next. If it is written in between, the numbers of rows differ, or
// the rows are the old ones or the new ones.
func (t *ServicesTable) readUnlocked(ctx context.Context) ([]ServiceRow, error) {
	var id yt.NodeID
	if err := t.c.yc.GetNode(ctx, t.path.Attr("id"), &id, nil); err != nil {
		return nil, err
	}
	return read(ctx, t.c.yc, id)
}

// Revision is a number that is another one after each write to the table, also of the same rows.
//
// Errors: ErrNotFound when there is no table, ErrDenied, ErrOverloaded, ErrUnavailable.
func (t *ServicesTable) Revision(ctx context.Context) (revision uint64, err error) {
	err = t.c.do(ctx, "services_revision", func(ctx context.Context) error {
		return t.c.yc.GetNode(ctx, t.path.Attr("content_revision"), &revision, nil)
	})
	return revision, err
}

// ServicesWriter is the one who writes the services table, for as long as the lease lives that it holds. An interface, so
// that who writes can be tested without a cluster.
type ServicesWriter interface {
	// Lost is closed when the lease has ended.
	Lost() <-chan struct{}
	// Sync shows want what the table holds and replaces that by rows if want says write. Nobody can write in between. want
	// is called at most once, and not at all when the table cannot be read. current is as in ReadServices; exists is false
	// when there is no table. It is made then, by a write; a table that exists keeps its schema. Readers see the old rows
	// or the new ones.
	//
	// wrote is true when the new rows are there. After an error they may be, if want said write.
	//
	// Errors: ErrLeaseLost, ErrDenied when the robot lacks a right, ErrConflict when somebody else has locked the table,
	// ErrOverloaded, ErrUnavailable, ErrRejected.
	Sync(ctx context.Context, want func(current []ServiceRow, exists bool) (rows []ServiceRow, write bool)) (wrote bool, err error)
	// Release gives the lease up; another may have it at once.
	Release(ctx context.Context) error
}

// AcquireWriter makes the caller the one who writes the table, by the lease of its directory. Errors: as AcquireLease.
func (t *ServicesTable) AcquireWriter(ctx context.Context) (ServicesWriter, error) {
	lease, err := t.c.AcquireLease(ctx, t.directory())
	if err != nil {
		return nil, err
	}
	return &servicesWriter{Lease: lease, t: t}, nil
}

// directory of the table; "/" is the root.
func (t *ServicesTable) directory() string {
	dir := string(t.path[:strings.LastIndexByte(string(t.path), '/')])
	if dir == "/" {
		return dir
	}
	return strings.TrimSuffix(dir, "/")
}

type servicesWriter struct {
	*Lease
	t *ServicesTable
}

func (w *servicesWriter) Sync(ctx context.Context, want func([]ServiceRow, bool) ([]ServiceRow, bool)) (wrote bool, err error) {
	err = w.t.c.do(ctx, "sync_services", func(ctx context.Context) error {
		return w.within(ctx, w.t.c.yc, func(tx yt.Tx) (bool, error) {
			wrote, err = w.t.sync(ctx, tx, want)
			return wrote, err
		})
	})
	return wrote && err == nil, err
}

func (t *ServicesTable) sync(ctx context.Context, tx yt.Tx, want func([]ServiceRow, bool) ([]ServiceRow, bool)) (write bool, err error) {
	var current []ServiceRow
	// Exclusive from the beginning: what want is shown is what gets replaced, whoever else writes without a lease.
	lock, err := tx.LockNode(ctx, t.path, yt.LockExclusive, nil)
	exists := !yterrors.ContainsErrorCode(err, yterrors.CodeResolveError)
	if exists {
		if err != nil {
			return false, err
		}
		if current, err = read(ctx, tx, lock.NodeID); err != nil {
			return false, err
		}
	}
	rows, write := want(current, exists)
	if !write {
		return false, nil
	}
	if !exists {
		// Not if it has come to exist meanwhile: nobody has read that one.
		_, err := tx.CreateNode(ctx, t.path, yt.NodeTable, &yt.CreateNodeOptions{Attributes: map[string]any{"schema": servicesSchema}})
		if err != nil {
			return false, err
		}
	}
	return true, writeRows(ctx, tx, t.path, rows)
}

// reader is a transaction, or a client without one.
type reader interface {
	yt.CypressClient
	yt.TableClient
}

// read reads the table that is this node. The SDK loses errors that the cluster reports after it has begun to send rows, so
// the number of rows is asked for as well.
func read(ctx context.Context, tx reader, id yt.NodeID) ([]ServiceRow, error) {
	table := ypath.Path("#" + id.String())
	var count int
	if err := tx.GetNode(ctx, table.Attr("row_count"), &count, nil); err != nil {
		if yterrors.ContainsErrorCode(err, yterrors.CodeResolveError) {
			// Must not pass for ErrNotFound: there is something, and nobody may put a table in its place.
			return nil, fmt.Errorf("%w: the node at its path is no table: %w", ErrRejected, err)
		}
		return nil, err
	}
	if count > maxRows {
		return nil, fmt.Errorf("%w: the table has %d rows, a services table has %d at most", ErrRejected, count, maxRows)
	}
	r, err := tx.ReadTable(ctx, table, nil)
	if err != nil {
		return nil, err
	}
	defer r.Close() // reading is over, r.Err tells how it went
	rows := make([]ServiceRow, 0, count)
	for r.Next() {
		var raw yson.RawValue
		if err := r.Scan(&raw); err != nil {
			return nil, err
		}
		rows = append(rows, serviceRow(raw))
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	if len(rows) != count {
		return nil, fmt.Errorf("%w: it sent %d of %d rows", ErrUnavailable, len(rows), count)
	}
	return rows, nil
}

// serviceRow is the row, or the zero one if its columns are not ours. Columns that we do not know are overlooked.
func serviceRow(raw yson.RawValue) (row ServiceRow) {
	if err := yson.Unmarshal(raw, &row); err != nil {
		return ServiceRow{}
	}
	return row
}

func writeRows(ctx context.Context, tx yt.Tx, path ypath.Path, rows []ServiceRow) error {
	w, err := yt.WriteTable(ctx, tx, path, yt.WithExistingTable())
	if err != nil {
		return err
	}
	for i := range rows {
		if err := w.Write(rows[i]); err != nil {
			return err
		}
	}
	return w.Commit()
}

// CheckPath reports what is wrong with a Cypress path from the configuration.
func CheckPath(path string) error {
	switch {
	case !strings.HasPrefix(path, "//") || len(path) < 3:
		return fmt.Errorf("%q is no absolute Cypress path like //sys/task_proxies", path)
	case strings.HasSuffix(path, "/") || strings.Contains(path[2:], "//") || strings.ContainsAny(path, "@&*[]{}<>\\ \t\r\n\x00"):
		return fmt.Errorf("%q is no plain Cypress path: names only, separated by single slashes", path)
	}
	return nil
}
