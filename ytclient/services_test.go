package ytclient_test

import (
	"errors"
	"slices"
	"testing"

	"go.ytsaurus.tech/yt/go/schema"
	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yt"
	"go.ytsaurus.tech/yt/go/yterrors"

	"taskproxy/ytclient"
	"taskproxy/ytclient/ytlocal"
)

// TestSyncOfTablesThatOthersMade: a table is used as it stands, and a row that is not made like ours can be told from ours.
func TestSyncOfTablesThatOthersMade(t *testing.T) {
	t.Parallel()
	cluster, admin := localCluster(t)
	robot := client(t, cluster, cluster.RootToken())
	str := func(name string, order schema.SortOrder) schema.Column {
		return schema.Column{Name: name, Type: schema.TypeString, SortOrder: order}
	}
	ours := map[string]any{"domain": "x", "operation_id": "1-2-3-4", "task_name": "t", "service": "s", "protocol": "http"}
	odd := ytclient.ServiceRow{}
	oursRow := ytclient.ServiceRow{Domain: "x", OperationID: "1-2-3-4", TaskName: "t", Service: "s", Protocol: "http"}
	with := func(name string, v any) map[string]any {
		m := map[string]any{name: v}
		for k, v := range ours {
			if k != name {
				m[k] = v
			}
		}
		return m
	}
	tests := []struct {
		name   string
		schema any // nil: weak
		rows   []map[string]any
		want   []ytclient.ServiceRow
		err    error // of writing rows of ours
	}{
		{"weak and empty", nil, nil, []ytclient.ServiceRow{}, nil},
		{"weak", nil, []map[string]any{ours}, []ytclient.ServiceRow{oursRow}, nil},
		{"a column that we do not know", nil, []map[string]any{with("extra", 1)}, []ytclient.ServiceRow{oursRow}, nil},
		{"a column of another type", nil, []map[string]any{with("domain", 5), ours}, []ytclient.ServiceRow{odd, oursRow}, nil},
		{"a column without a value", nil, []map[string]any{with("protocol", nil)}, []ytclient.ServiceRow{{Domain: "x", OperationID: "1-2-3-4", TaskName: "t", Service: "s"}}, nil},
		{"other columns", nil, []map[string]any{{"key": "k"}}, []ytclient.ServiceRow{odd}, nil},
		{"sorted by domain", schema.Schema{Columns: []schema.Column{str("domain", schema.SortAscending), str("operation_id", ""), str("task_name", ""), str("service", ""), str("protocol", "")}},
			[]map[string]any{ours}, []ytclient.ServiceRow{oursRow}, nil},
		{"strict, of other columns", schema.Schema{Columns: []schema.Column{str("key", "")}}, []map[string]any{{"key": "k"}}, []ytclient.ServiceRow{odd}, ytclient.ErrRejected},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := ypath.Path("//tmp").Child(t.Name()[len("TestSyncOfTablesThatOthersMade/"):]).Child("services")
			opts := &yt.CreateNodeOptions{Recursive: true}
			if tt.schema != nil {
				opts.Attributes = map[string]any{"schema": tt.schema}
			}
			if _, err := admin.CreateNode(t.Context(), path, yt.NodeTable, opts); err != nil {
				t.Fatal(err)
			}
			if err := overwrite(t, admin, path, tt.rows); err != nil {
				t.Fatal(err)
			}
			table := robot.ServicesTable(path.String())
			has(t, table, tt.want)
			wrote, err := acquire(t, table).Sync(t.Context(), func(current []ytclient.ServiceRow, exists bool) ([]ytclient.ServiceRow, bool) {
				if !exists || !slices.Equal(current, tt.want) {
					t.Errorf("shown %v, %t; want %v", current, exists, tt.want)
				}
				return mine, true
			})
			if wrote != (tt.err == nil) || !errors.Is(err, tt.err) {
				t.Errorf("Sync = %t, %v; want %v", wrote, err, tt.err)
			}
			if tt.err == nil {
				has(t, table, mine)
			} else {
				has(t, table, tt.want)
			}
		})
	}
}

// TestSyncNeverWritesWhatItCouldNotRead: whatever fails before all rows were seen, nobody is asked what to write.
func TestSyncNeverWritesWhatItCouldNotRead(t *testing.T) {
	t.Parallel()
	cluster, admin := localCluster(t)
	robot := robot(t, cluster, admin, "robot")
	table := robot.ServicesTable("//tmp/services")
	w := acquire(t, table)
	sync(t, w, mine)
	answer := func(s string) *string { return &s }
	tests := []struct {
		name  string
		fault ytlocal.Fault
		err   error
	}{
		{"no lock", ytlocal.Fault{Command: "lock", Status: 503}, ytclient.ErrUnavailable},
		{"no row count", ytlocal.Fault{Command: "get", Status: 503}, ytclient.ErrUnavailable},
		{"no rows", ytlocal.Fault{Command: "read_table", Status: 503}, ytclient.ErrUnavailable},
		{"the rows break off", ytlocal.Fault{Command: "read_table", Cut: ytlocal.CutHeaders}, ytclient.ErrUnavailable},
		{"no row although there is one", ytlocal.Fault{Command: "read_table", Body: answer("")}, ytclient.ErrUnavailable},
		{"half of a row", ytlocal.Fault{Command: "read_table", Body: answer(`{"domain"="x";`)}, ytclient.ErrUnavailable},
		{"far too many rows", ytlocal.Fault{Command: "get", Edit: func(any) any { return map[string]any{"value": int64(maxRows + 1)} }}, ytclient.ErrRejected},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.fault.Match = func(c ytlocal.Call) bool { return c.User == "robot" }
			defer cluster.Faults().Add(tt.fault)()
			before := cluster.Faults().Calls()["write_table"]
			called := false
			wrote, err := w.Sync(t.Context(), func([]ytclient.ServiceRow, bool) ([]ytclient.ServiceRow, bool) {
				called = true
				return theirs, true
			})
			if wrote || called || !errors.Is(err, tt.err) {
				t.Errorf("Sync = %t, %v, asked %t; want %v", wrote, err, called, tt.err)
			}
			if n := cluster.Faults().Calls()["write_table"] - before; n != 0 {
				t.Errorf("%d writes", n)
			}
		})
	}
	has(t, table, mine)

	t.Run("no table at the path", func(t *testing.T) {
		if _, err := admin.CreateNode(t.Context(), ypath.Path("//tmp/other/services"), yt.NodeMap, &yt.CreateNodeOptions{Recursive: true}); err != nil {
			t.Fatal(err)
		}
		table := robot.ServicesTable("//tmp/other/services")
		if rows, err := table.ReadServices(t.Context()); !errors.Is(err, ytclient.ErrRejected) || errors.Is(err, ytclient.ErrNotFound) {
			t.Errorf("ReadServices = %v, %v; want ErrRejected", rows, err)
		}
		if wrote, err := acquire(t, table).Sync(t.Context(), replace(mine)); wrote || !errors.Is(err, ytclient.ErrRejected) {
			t.Errorf("Sync = %t, %v; want ErrRejected", wrote, err)
		}
	})
	t.Run("a table that comes to be meanwhile", func(t *testing.T) {
		table := robot.ServicesTable("//tmp/third/services")
		wrote, err := acquire(t, table).Sync(t.Context(), func(_ []ytclient.ServiceRow, exists bool) ([]ytclient.ServiceRow, bool) {
			if exists {
				t.Error("there is no table yet")
			}
			if _, err := admin.CreateNode(t.Context(), ypath.Path("//tmp/third/services"), yt.NodeTable, nil); err != nil {
				t.Fatal(err)
			}
			if err := overwrite(t, admin, "//tmp/third/services", theirs); err != nil {
				t.Fatal(err)
			}
			return mine, true
		})
		if wrote || err == nil {
			t.Errorf("Sync = %t, %v; want an error", wrote, err)
		}
		has(t, table, theirs)
	})
}

// maxRows is how many rows a services table has at most.
const maxRows = 200_000

// TestReadServicesOfReadOnlyMasters: while no transaction can begin, the table is read without one, with the same care.
func TestReadServicesOfReadOnlyMasters(t *testing.T) {
	t.Parallel()
	cluster, admin := localCluster(t)
	table := client(t, cluster, cluster.RootToken()).ServicesTable("//tmp/services")
	sync(t, acquire(t, table), mine)
	readOnly := &yterrors.Error{Code: 602, Message: "Cannot perform mutation: the masters are read-only"}
	defer cluster.Faults().Add(ytlocal.Fault{Command: "start_transaction", Error: readOnly})()
	has(t, table, mine)
	if _, err := client(t, cluster, cluster.RootToken()).ServicesTable("//tmp/none").ReadServices(t.Context()); !errors.Is(err, ytclient.ErrNotFound) {
		t.Errorf("no table: %v", err)
	}
	if _, err := admin.CreateNode(t.Context(), ypath.Path("//tmp/map"), yt.NodeMap, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := client(t, cluster, cluster.RootToken()).ServicesTable("//tmp/map").ReadServices(t.Context()); !errors.Is(err, ytclient.ErrRejected) {
		t.Errorf("no table but something else: %v", err)
	}

	// It is written between the two calls: the row count is one, and two rows are sent.
	remove := cluster.Faults().Add(ytlocal.Fault{Command: "get", Edit: func(v any) any {
		if m, ok := v.(map[string]any); ok && m["value"] == int64(len(mine)) {
			return map[string]any{"value": int64(len(mine) + 1)}
		}
		return v
	}})
	if rows, err := table.ReadServices(t.Context()); !errors.Is(err, ytclient.ErrUnavailable) {
		t.Errorf("rows that do not add up: %v, %v", rows, err)
	}
	remove()
	has(t, table, mine)
}
