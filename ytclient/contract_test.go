package ytclient_test

import (
	"cmp"
	"context"
	"errors"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	"go.ytsaurus.tech/yt/go/guid"
	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yt"
	"go.ytsaurus.tech/yt/go/yt/ythttp"

	"taskproxy/ytclient"
	"taskproxy/ytclient/ytlocal"
)

// TestContract holds what the rest of the project relies on against a cluster: the local one, or, with
// TASK_PROXY_TEST_YT_PROXY and TASK_PROXY_TEST_YT_TOKEN (an admin's), a real one.
func TestContract(t *testing.T) {
	t.Parallel()
	address, token := testCluster(t)
	client, err := ytclient.New(ytclient.Config{Proxy: address, Token: func() (string, error) { return token, nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := sdk(t, address, token)

	var login string
	t.Run("whoami", func(t *testing.T) {
		for _, kind := range []ytclient.Kind{ytclient.OAuth, ytclient.Bearer} {
			if login, err = client.WhoAmI(t.Context(), ytclient.Credentials{Kind: kind, Secret: token}); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		}
		for _, cr := range []ytclient.Credentials{
			{Kind: ytclient.OAuth, Secret: "nobody's"},
			{Kind: ytclient.Bearer, Secret: "nobody's"},
			{Kind: ytclient.Cookie, CookieName: "YTCypressCookie", Secret: "nobody's"},
		} {
			if l, err := client.WhoAmI(t.Context(), cr); !errors.Is(err, ytclient.ErrUnauthenticated) {
				t.Errorf("%s of nobody = %q, %v; want ErrUnauthenticated", cr.Kind, l, err)
			}
		}
	})

	id := start(t, admin)
	t.Run("listed", func(t *testing.T) {
		o := await(t, "the operation is listed", func() (*ytclient.Operation, error) {
			listing, err := client.ListOperations(t.Context())
			if i := slices.IndexFunc(listing.Operations, func(o ytclient.Operation) bool { return o.ID == id }); i >= 0 {
				return &listing.Operations[i], nil
			}
			return nil, err
		})
		if o.User != login || o.State != "running" || o.StartTime.IsZero() || o.BriefProgress == "" {
			t.Errorf("operation = %+v", o)
		}
		if annotation, _ := ytclient.Plain(o.Annotations["task_proxy"]).(map[string]any); annotation["enabled"] != true {
			t.Errorf("annotations = %v", o.Annotations)
		}
	})
	t.Run("jobs and ports", func(t *testing.T) {
		jobs := await(t, "both jobs run", func() (*[]ytclient.Job, error) {
			listing, err := client.ListJobs(t.Context(), id)
			if err == nil && listing.Partial == nil && len(listing.Jobs) == 2 {
				return &listing.Jobs, nil
			}
			return nil, cmp.Or(err, listing.Partial)
		})
		refs := []ytclient.JobRef{
			{Address: (*jobs)[0].Address, ID: (*jobs)[0].ID},
			{Address: (*jobs)[1].Address, ID: (*jobs)[1].ID},
			{Address: (*jobs)[1].Address, ID: guid.New().String()},
		}
		await(t, "the nodes tell the ports", func() (*int, error) {
			answers, err := client.JobPorts(t.Context(), refs)
			if err != nil {
				return nil, err
			}
			if !errors.Is(answers[2].Err, ytclient.ErrNotFound) {
				t.Errorf("ports of a job that does not exist: %v, %v; want ErrNotFound", answers[2].Ports, answers[2].Err)
			}
			if a, b := answers[0], answers[1]; a.Err == nil && b.Err == nil && len(a.Ports) == 3 && len(b.Ports) == 3 {
				return new(int), nil
			}
			return nil, cmp.Or(answers[0].Err, answers[1].Err)
		})
	})
	t.Run("tasks", func(t *testing.T) {
		info, err := client.GetOperation(t.Context(), id)
		if err != nil || info.Final() || !slices.Equal(info.Tasks, []ytclient.Task{{Name: "server", JobCount: 2, PortCount: 3}}) {
			t.Errorf("GetOperation = %+v, %v", info, err)
		}
		listing, err := client.ListOperations(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(listing.Operations, func(o ytclient.Operation) bool { return o.ID == id })
		if i < 0 || info.Operation == nil {
			t.Fatalf("operation listed at %d, GetOperation tells of it: %t", i, info.Operation != nil)
		}
		listed := listing.Operations[i]
		listed.BriefProgress = ""
		if len(listed.Annotations) == 0 || !reflect.DeepEqual(*info.Operation, listed) {
			t.Errorf("GetOperation tells %+v, the listing %+v", *info.Operation, listed)
		}
	})
	t.Run("permission", func(t *testing.T) {
		for _, p := range []ytclient.Permission{ytclient.Read, ytclient.Manage} {
			if ok, err := client.CheckOperationPermission(t.Context(), login, id, p); !ok || err != nil {
				t.Errorf("%s of its owner = %v, %v", p, ok, err)
			}
		}
		if ok, err := client.CheckOperationPermission(t.Context(), "nobody-"+guid.New().String(), id, ytclient.Read); ok || errors.Is(err, ytclient.ErrUnavailable) {
			t.Errorf("an unknown user = %v, %v", ok, err)
		}
	})
	t.Run("an operation that does not exist", func(t *testing.T) {
		const nowhere = "1-2-3fe03e8-4"
		if _, err := client.GetOperation(t.Context(), nowhere); !errors.Is(err, ytclient.ErrNoSuchOperation) {
			t.Errorf("GetOperation: %v", err)
		}
		if _, err := client.ListJobs(t.Context(), nowhere); !errors.Is(err, ytclient.ErrNoSuchOperation) {
			t.Errorf("ListJobs: %v", err)
		}
		if ok, err := client.CheckOperationPermission(t.Context(), login, nowhere, ytclient.Read); ok || !errors.Is(err, ytclient.ErrNoSuchOperation) {
			t.Errorf("CheckOperationPermission: %v, %v", ok, err)
		}
	})
	t.Run("services table", func(t *testing.T) { testServicesTable(t, client, admin) })
	t.Run("lease", func(t *testing.T) { testLease(t, client, admin) })
	t.Run("ended", func(t *testing.T) {
		if err := admin.AbortOperation(t.Context(), operationID(t, id), nil); err != nil {
			t.Fatal(err)
		}
		await(t, "the operation is final", func() (*int, error) {
			info, err := client.GetOperation(t.Context(), id)
			if err == nil && info.Final() {
				return new(int), nil
			}
			return nil, err
		})
		await(t, "the operation is not listed", func() (*int, error) {
			listing, err := client.ListOperations(t.Context())
			if err == nil && !slices.ContainsFunc(listing.Operations, func(o ytclient.Operation) bool { return o.ID == id }) {
				return new(int), nil
			}
			return nil, err
		})
	})
}

func testServicesTable(t *testing.T, client *ytclient.Client, admin yt.Client) {
	dir := ypath.Path("//tmp/task_proxy_contract_" + guid.New().String())
	removeAfter(t, admin, dir)
	table := client.ServicesTable(dir.Child("deep").Child("services").String())
	if rows, err := table.ReadServices(t.Context()); !errors.Is(err, ytclient.ErrNotFound) {
		t.Errorf("before it is written = %v, %v; want ErrNotFound", rows, err)
	}
	if revision, err := table.Revision(t.Context()); !errors.Is(err, ytclient.ErrNotFound) {
		t.Errorf("revision before it is written = %v, %v; want ErrNotFound", revision, err)
	}
	many := []ytclient.ServiceRow{
		{Domain: "2ef4261c.example.net", OperationID: "1-2-3fe03e8-4", TaskName: "master", Service: "ui", Protocol: "http"},
		{Domain: "ae5cf6f5.example.net", OperationID: "1-2-3fe03e8-5", TaskName: "a/b \"c\"\nd\x00é\xff<>;{}", Service: "server", Protocol: "grpc"},
	}
	writer := acquire(t, table)
	revisions := map[uint64]bool{}
	before, existed := []ytclient.ServiceRow(nil), false
	for _, rows := range [][]ytclient.ServiceRow{many, {}, many[:1]} {
		wrote, err := writer.Sync(t.Context(), func(current []ytclient.ServiceRow, exists bool) ([]ytclient.ServiceRow, bool) {
			if !slices.Equal(current, before) || exists != existed {
				t.Errorf("shown %v, %t; want %v, %t", current, exists, before, existed)
			}
			return rows, true
		})
		if !wrote || err != nil {
			t.Fatalf("Sync = %t, %v", wrote, err)
		}
		if got, err := table.ReadServices(t.Context()); err != nil || !slices.Equal(got, rows) {
			t.Errorf("rows = %+v, %v; want %+v", got, err, rows)
		}
		revision, err := table.Revision(t.Context())
		if err != nil || revisions[revision] {
			t.Errorf("revision %d, %v; want a new one after each write", revision, err)
		}
		revisions[revision], before, existed = true, rows, true
	}
	wrote, err := writer.Sync(t.Context(), func([]ytclient.ServiceRow, bool) ([]ytclient.ServiceRow, bool) { return many, false })
	if wrote || err != nil {
		t.Errorf("Sync that was told not to write = %t, %v", wrote, err)
	}
	if revision, err := table.Revision(t.Context()); err != nil || !revisions[revision] {
		t.Errorf("revision %d, %v; want the one from before a look", revision, err)
	}
	// A table that stands already, made by somebody else without a schema, is used as it is. It is in another directory: the
	// lease is of one.
	weak := dir.Child("weak")
	if _, err := admin.CreateNode(t.Context(), weak, yt.NodeTable, nil); err != nil {
		t.Fatal(err)
	}
	sync(t, acquire(t, client.ServicesTable(weak.String())), many)
	if got, err := client.ServicesTable(weak.String()).ReadServices(t.Context()); err != nil || !slices.Equal(got, many) {
		t.Errorf("rows of a table without schema = %+v, %v; want %+v", got, err, many)
	}
	// What the product before this one would do after a rollback: overwrite the table, with a column of its own.
	w, err := yt.WriteTable(t.Context(), admin, dir.Child("deep").Child("services"), yt.WithExistingTable())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(map[string]any{"domain": "x", "extra": 1}); err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(); err != nil {
		t.Errorf("the table does not take another writer's rows: %v", err)
	}
}

func testCluster(t *testing.T) (address, token string) {
	t.Helper()
	if address = os.Getenv("TASK_PROXY_TEST_YT_PROXY"); address != "" {
		return address, os.Getenv("TASK_PROXY_TEST_YT_TOKEN")
	}
	cluster, err := ytlocal.Start(ytlocal.Config{StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	return cluster.URL(), cluster.RootToken()
}

// sdk is the SDK itself, for what the project's own client never does.
func sdk(t *testing.T, address, token string) yt.Client {
	t.Helper()
	yc, err := ythttp.NewClient(&yt.Config{
		Proxy: address, Token: token, CompressionCodec: yt.ClientCodecNone, DisableProxyDiscovery: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(yc.Stop)
	return yc
}

func start(t *testing.T, admin yt.Client) string {
	t.Helper()
	id, err := admin.StartOperation(t.Context(), yt.OperationVanilla, map[string]any{
		"tasks":       map[string]any{"server": map[string]any{"job_count": 2, "port_count": 3, "command": "exec sleep 3600"}},
		"annotations": map[string]any{"task_proxy": map[string]any{"enabled": true}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Ended already when all went well.
		_ = admin.AbortOperation(context.WithoutCancel(t.Context()), id, nil)
	})
	return guid.GUID(id).String()
}

func operationID(t *testing.T, id string) yt.OperationID {
	t.Helper()
	g, err := guid.ParseString(id)
	if err != nil {
		t.Fatal(err)
	}
	return yt.OperationID(g)
}

// await asks until there is a value, for a minute at most: a cluster takes its time.
func await[T any](t *testing.T, what string, ask func() (*T, error)) *T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		v, err := ask()
		if v != nil {
			return v
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waited in vain until %s: %v", what, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
