package ytclient

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.ytsaurus.tech/yt/go/schema"
	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yt"
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

// ReadServices returns all rows in the table's order.
//
// Errors: ErrNotFound when there is no table, ErrDenied, ErrOverloaded, ErrUnavailable.
func (t *ServicesTable) ReadServices(ctx context.Context) (rows []ServiceRow, err error) {
	err = t.c.do(ctx, "read_services", func(ctx context.Context) error {
		tx, err := t.c.yc.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Abort() //nolint:errcheck // it only read; an abandoned transaction expires
		rows, err = t.read(ctx, tx)
		return err
	})
	return rows, err
}

// read reads the table as it stands at one moment. The SDK loses errors that the cluster reports after it has begun to
// send rows, so the number of rows is asked for as well.
func (t *ServicesTable) read(ctx context.Context, tx yt.Tx) ([]ServiceRow, error) {
	lock, err := tx.LockNode(ctx, t.path, yt.LockSnapshot, nil)
	if err != nil {
		return nil, err
	}
	table := ypath.Path("#" + lock.NodeID.String())
	var count int
	if err := tx.GetNode(ctx, table.Attr("row_count"), &count, nil); err != nil {
		return nil, err
	}
	r, err := tx.ReadTable(ctx, table, nil)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	rows := make([]ServiceRow, 0, count)
	for r.Next() {
		var row ServiceRow
		if err := r.Scan(&row); err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	if len(rows) != count {
		return nil, fmt.Errorf("%w: it sent %d of %d rows", ErrUnavailable, len(rows), count)
	}
	return rows, nil
}

// WriteServices replaces all rows. It makes the table and the directories above it when they are missing; a table that
// exists keeps its schema. Readers see the old rows or the new ones.
//
// Errors: ErrDenied when the robot lacks a right, ErrConflict, ErrOverloaded, ErrUnavailable, ErrRejected.
func (t *ServicesTable) WriteServices(ctx context.Context, rows []ServiceRow) error {
	return t.c.do(ctx, "write_services", func(ctx context.Context) error {
		if err := t.create(ctx); err != nil {
			return err
		}
		tx, err := t.c.yc.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := write(ctx, tx, t.path, rows); err != nil {
			return errors.Join(err, tx.Abort())
		}
		return tx.Commit()
	})
}

// create makes the table if there is none. It is asked first: the robot need not have the right to create anything once
// the table stands.
func (t *ServicesTable) create(ctx context.Context) error {
	exists, err := t.c.yc.NodeExists(ctx, t.path, nil)
	if err != nil || exists {
		return err
	}
	_, err = t.c.yc.CreateNode(ctx, t.path, yt.NodeTable, &yt.CreateNodeOptions{
		Recursive: true, IgnoreExisting: true,
		Attributes: map[string]any{"schema": servicesSchema},
	})
	return err
}

func write(ctx context.Context, tx yt.Tx, path ypath.Path, rows []ServiceRow) error {
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
