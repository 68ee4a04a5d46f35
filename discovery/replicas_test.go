package discovery

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"taskproxy/ytclient"
	"taskproxy/ytclient/ytlocal"
)

const replicaBase = "task-proxy.example.com"

// replicas are tables that share one in a local cluster, each with a robot of its own, so that faults can hit one of them.
type replicas struct {
	t       *testing.T
	cluster *ytlocal.Cluster
	tables  []*table
	stop    []func() // ends the replica, gracefully
	reader  *ytclient.ServicesTable
}

const replicaTable = "//sys/task_proxies/services"

func startReplicas(t *testing.T, n int) *replicas {
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
	r := &replicas{t: t, cluster: cluster}
	r.reader = r.client(cluster.RootToken()).ServicesTable(replicaTable)
	for i := range n {
		r.add(fmt.Sprintf("robot-%d", i))
	}
	return r
}

func (r *replicas) client(token string) *ytclient.Client {
	r.t.Helper()
	c, err := ytclient.New(ytclient.Config{
		Proxy: r.cluster.URL(), Token: func() (string, error) { return token, nil },
		CallTimeout: 2 * time.Second, TxTimeout: time.Second,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(c.Close)
	return c
}

func (r *replicas) add(login string) {
	t := r.t
	t.Helper()
	user, err := r.cluster.AddUser(login)
	if err != nil {
		t.Fatal(err)
	}
	r.admin("add_member", http.MethodPost, map[string]any{"group": "superusers", "member": login})
	m, err := newMetrics(nil, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	table := newTable(r.client(user.Token).ServicesTable(replicaTable), replicaBase, time.Hour, slog.New(slog.DiscardHandler), m)
	table.retry, table.pause = 10*time.Millisecond, 5*time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		table.run(ctx)
	}()
	stop := func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	r.tables, r.stop = append(r.tables, table), append(r.stop, stop)
}

// offer gives every replica the same snapshot, and returns its rows.
func (r *replicas) offer(services ...Service) []ytclient.ServiceRow {
	s, _ := NewSnapshot(nil, nil, services)
	for _, t := range r.tables {
		t.offer(offer{snapshot: s})
	}
	return Rows(s, replicaBase)
}

// await waits until something holds.
func (r *replicas) await(what string, ok func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("waited in vain until %s", what)
		}
	}
}

func (r *replicas) awaitRows(want []ytclient.ServiceRow) {
	r.t.Helper()
	var got []ytclient.ServiceRow
	var err error
	defer func() {
		if r.t.Failed() {
			r.t.Logf("the table holds %v, %v; want %v", got, err, want)
		}
	}()
	r.await("the table holds the rows", func() bool {
		got, err = r.reader.ReadServices(r.t.Context())
		return err == nil && slices.Equal(got, want)
	})
}

func (r *replicas) calls(command string) int { return r.cluster.Faults().Calls()[command] }

// leader waits until one replica has the lease, and says which.
func (r *replicas) leader() (leader int) {
	r.t.Helper()
	r.await("there is one leader", func() bool {
		leaders := 0
		for i, t := range r.tables {
			if testutil.ToFloat64(t.metrics.lease) == 1 {
				leaders++
				leader = i
			}
		}
		return leaders == 1
	})
	return leader
}

// settled waits until every replica has looked at what it was offered: one that is not the leader has tried to become it.
func (r *replicas) settled() {
	r.t.Helper()
	before := r.calls("lock")
	r.await("the replicas have looked around", func() bool {
		for _, t := range r.tables {
			if len(t.offers) > 0 {
				return false
			}
		}
		return r.calls("lock") >= before+len(r.tables)
	})
}

func TestReplicas(t *testing.T) {
	t.Parallel()
	r := startReplicas(t, 3)
	odd := svc("1-2-3-4", "a/b \"c\" 'd'\n\\e\x00\xffé", "ui<>;{}")
	rows := r.offer(odd, svc("1-2-3-5", "t", "s"))
	r.awaitRows(rows)
	leader := r.leader()
	if n := r.calls("write_table"); n != 1 {
		t.Errorf("%d writes by three replicas of the same rows", n)
	}

	// What did not change is not written, by nobody, also when the table is read again.
	for range 2 * rereadAfter {
		r.offer(odd, svc("1-2-3-5", "t", "s"))
		r.settled()
	}
	if n := r.calls("write_table"); n != 1 || r.calls("read_table") < 2 {
		t.Errorf("%d writes and %d reads although nothing changed", n, r.calls("read_table"))
	}

	// The holder is killed: its calls reach nobody any more, not even its farewell.
	login := fmt.Sprintf("robot-%d", leader)
	heal := r.cluster.Faults().Add(ytlocal.Fault{Match: func(c ytlocal.Call) bool { return c.User == login }, Cut: ytlocal.CutBefore})
	rows = r.offer(svc("1-2-3-5", "t", "s"), svc("1-2-3-6", "t", "new"))
	r.awaitRows(rows)
	r.await("the old holder knows", func() bool { return testutil.ToFloat64(r.tables[leader].metrics.lease) == 0 })
	heir := r.leader()
	if heir == leader {
		t.Fatalf("replica %d writes without reaching the cluster", leader)
	}
	// It comes back, with what it knew before.
	heal()
	writes := r.calls("write_table")
	stale, _ := NewSnapshot(nil, nil, []Service{odd})
	r.tables[leader].offer(offer{snapshot: stale})
	r.settled()
	r.awaitRows(rows)
	if n := r.calls("write_table") - writes; n != 0 {
		t.Errorf("%d writes after the return of the old holder", n)
	}

	// One that shuts down leaves no lease behind: it is to be had in that moment.
	for _, stop := range []int{leader, 3 - leader - heir, heir} {
		r.stop[stop]()
	}
	w, err := r.reader.AcquireWriter(t.Context())
	if err != nil {
		t.Fatalf("the lease after all have gone: %v", err)
	}
	if err := w.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestReplicasAndARival: another writer, without a lease, wins against all replicas.
func TestReplicasAndARival(t *testing.T) {
	t.Parallel()
	r := startReplicas(t, 2)
	theirs := ytclient.ServiceRow{Domain: "theirs", OperationID: "1-2-3-4", TaskName: "t", Service: "s", Protocol: "http"}
	r.awaitRows(r.offer(svc("1-2-3-5", "t", "0")))
	leader := r.tables[r.leader()]
	for i := range yieldAfter {
		r.rewrite(theirs)
		rows := r.offer(svc("1-2-3-5", "t", fmt.Sprint(i+1)))
		if i < yieldAfter-1 {
			r.awaitRows(rows)
		}
	}
	r.await("we stop writing", func() bool { return testutil.ToFloat64(leader.metrics.yielding) == 1 })
	writes := r.calls("write_table")
	r.offer(svc("1-2-3-5", "t", "last"))
	r.settled()
	r.awaitRows([]ytclient.ServiceRow{theirs})
	if n := r.calls("write_table") - writes; n != 0 {
		t.Errorf("%d writes after we have stopped", n)
	}
	if got := testutil.ToFloat64(leader.metrics.rewrites); got != yieldAfter {
		t.Errorf("%v rewrites counted", got)
	}
}

func (r *replicas) rewrite(rows ...ytclient.ServiceRow) {
	r.t.Helper()
	var body []any
	for _, row := range rows {
		body = append(body, map[string]string{
			"domain": row.Domain, "operation_id": row.OperationID, "task_name": row.TaskName, "service": row.Service, "protocol": row.Protocol,
		})
	}
	r.admin("write_table", http.MethodPut, map[string]any{"path": replicaTable, "input_format": "json"}, body...)
}

// admin makes a call as root, of a command for which the project has no words. What follows the parameters is its input,
// values one after another.
func (r *replicas) admin(command, method string, params map[string]any, input ...any) {
	r.t.Helper()
	var body bytes.Buffer
	for _, v := range input {
		if err := json.NewEncoder(&body).Encode(v); err != nil {
			r.t.Fatal(err)
		}
	}
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.cluster.URL()+"/api/v4/"+command, &body)
	if err != nil {
		r.t.Fatal(err)
	}
	p, err := json.Marshal(params)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "OAuth "+r.cluster.RootToken())
	req.Header.Set("X-YT-Header-Format", "json")
	req.Header.Set("X-YT-Parameters", string(p))
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	if answer, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		r.t.Fatalf("%s: %s %s %v", command, resp.Status, answer, err)
	}
}

// TestReplicaWithoutRights: what the robot may not do is told, and costs nobody a service.
func TestReplicaWithoutRights(t *testing.T) {
	t.Parallel()
	r := startReplicas(t, 0)
	user, err := r.cluster.AddUser("poor")
	if err != nil {
		t.Fatal(err)
	}
	m, err := newMetrics(nil, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	s, _ := NewSnapshot(nil, nil, []Service{svc("1-2-3-5", "t", "s")})
	table := newTable(r.client(user.Token).ServicesTable(replicaTable), replicaBase, time.Hour, slog.New(slog.NewTextHandler(&log, nil)), m)
	table.accept(offer{snapshot: s})
	table.step(t.Context())
	table.triedAt = time.Time{}
	table.step(t.Context())
	if n := testutil.ToFloat64(m.writes.WithLabelValues(string(leaseFailed))); n != 2 {
		t.Errorf("%v failures counted, want 2", n)
	}
	if strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "reason=denied") || !strings.Contains(log.String(), "hint=") || !strings.Contains(log.String(), "//sys/task_proxies") {
		t.Errorf("log, want one line that names the directory and the rights:\n%s", &log)
	}
}
