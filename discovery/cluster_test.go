package discovery_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"taskproxy/discovery"
	"taskproxy/ytclient"
	"taskproxy/ytclient/ytlocal"
)

// TestCluster goes the whole way: a local cluster that runs real jobs, the real SDK, the services table in its Cypress.
func TestCluster(t *testing.T) {
	t.Parallel()
	cluster, err := ytlocal.Start(ytlocal.Config{StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cluster.Close(); err != nil {
			t.Error(err)
		}
	}()
	client, err := ytclient.New(ytclient.Config{Proxy: cluster.URL(), Token: func() (string, error) { return cluster.RootToken(), nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	table := tellingStore{client.ServicesTable("//sys/task_proxies/services"), make(chan struct{}, 100)}
	bases, err := discovery.NewBases("task-proxy.example.com")
	if err != nil {
		t.Fatal(err)
	}

	id, err := cluster.Scheduler().Start("root", map[string]any{
		"tasks": map[string]any{
			"server": map[string]any{"job_count": int64(2), "port_count": int64(2), "command": "exec sleep 3600"},
		},
		"annotations": map[string]any{"task_proxy": map[string]any{"enabled": true, "tasks_info": map[string]any{
			"server": map[string]any{"api": map[string]any{"protocol": "grpc", "port_index": int64(1), "permission": "manage",
				"cross_site": map[string]any{"origins": []any{"https://app.example.com"}}}},
		}}},
		"alias": "*sample",
	})
	if err != nil {
		t.Fatal(err)
	}

	snapshots := make(chan *discovery.Snapshot, 100)
	d, err := discovery.New(discovery.Config{
		Source: client, Store: table, Bases: bases, Period: 50 * time.Millisecond,
		OnSnapshot: func(s *discovery.Snapshot) { snapshots <- s },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- d.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	}()
	await := func(what string, ok func(*discovery.Snapshot) bool) *discovery.Snapshot {
		t.Helper()
		timeout := time.After(20 * time.Second)
		for {
			select {
			case s := <-snapshots:
				if ok(s) {
					return s
				}
			case <-timeout:
				t.Fatalf("no snapshot %s; the last is\n%sproblems %v", what, d.Snapshot(), d.Problems())
			}
		}
	}

	s := await("with two endpoints a service", func(s *discovery.Snapshot) bool { return s.Len() == 2 && s.Endpoints() == 4 })
	api, port := s.Lookup(discovery.ShortID(id, "server", "api")), s.Lookup(discovery.LongID(id, "server", "port_0"))
	if api == nil || port == nil {
		t.Fatalf("not found in\n%s", s)
	}
	if !slices.Equal(api.Origins, []string{"https://app.example.com"}) || len(port.Origins) != 0 {
		t.Errorf("api is opened to %q, the other port to %q", api.Origins, port.Origins)
	}
	if api.Protocol != discovery.GRPC || !slices.Equal(api.Permissions, []ytclient.Permission{ytclient.Read, ytclient.Manage}) || api.User != "root" || api.Alias != "*sample" || api.StartTime.IsZero() {
		t.Errorf("api is %+v", api)
	}
	jobs, err := cluster.Scheduler().Jobs(id)
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range jobs {
		if !slices.ContainsFunc(api.Endpoints, func(e discovery.Endpoint) bool { return e.JobID == j.ID }) {
			t.Errorf("job %s is no endpoint of\n%s", j.ID, s)
		}
	}
	if !d.Ready() || len(d.Problems()) != 0 {
		t.Errorf("ready %t, problems %v", d.Ready(), d.Problems())
	}

	// The services are known before any job answers, so as a rule the first write has them all.
	want := discovery.Rows(s, "task-proxy.example.com")
	for matches := false; !matches; {
		select {
		case <-table.written:
		case <-time.After(20 * time.Second):
			t.Fatal("the services table is not written as it should be")
		}
		rows, err := table.ReadServices(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if matches = slices.Equal(rows, want); !matches {
			t.Logf("the table holds %v, want %v", rows, want)
		}
	}

	if err := cluster.Scheduler().Abort(id, "seen enough"); err != nil {
		t.Fatal(err)
	}
	await("without services", func(s *discovery.Snapshot) bool { return s.Len() == 0 })
}

// tellingStore is a services table that tells of each write once it is done.
type tellingStore struct {
	discovery.Store
	written chan struct{}
}

func (s tellingStore) AcquireWriter(ctx context.Context) (ytclient.ServicesWriter, error) {
	w, err := s.Store.AcquireWriter(ctx)
	if err != nil {
		return nil, err
	}
	return tellingWriter{w, s.written}, nil
}

type tellingWriter struct {
	ytclient.ServicesWriter
	written chan struct{}
}

func (w tellingWriter) Sync(ctx context.Context, want func([]ytclient.ServiceRow, bool) ([]ytclient.ServiceRow, bool)) (bool, error) {
	wrote, err := w.ServicesWriter.Sync(ctx, want)
	if wrote {
		w.written <- struct{}{}
	}
	return wrote, err
}
