package discovery_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"go.ytsaurus.tech/yt/go/guid"
	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yt"
	"go.ytsaurus.tech/yt/go/yt/ythttp"

	"taskproxy/discovery"
	"taskproxy/ytclient"
	"taskproxy/ytclient/ytlocal"
	"taskproxy/ytclient/ytlocal/scheduler"
)

// sparkTown is a local cluster on which things of SPYT's shape run, and a Discovery that watches it and writes the services
// table.
type sparkTown struct {
	t         *testing.T
	cluster   *ytlocal.Cluster
	admin     yt.Client
	client    *ytclient.Client
	discovery *discovery.Discovery
}

// servicesTable is where SPYT's client looks, and nowhere else.
const servicesTable = "//sys/task_proxies/services"

func newSparkTown(t *testing.T) *sparkTown {
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
	client, err := ytclient.New(ytclient.Config{Proxy: cluster.URL(), Token: func() (string, error) { return cluster.RootToken(), nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	w := &sparkTown{t: t, cluster: cluster, client: client}
	w.admin = w.as(cluster.RootToken())
	return w
}

// as returns the SDK's client of somebody.
func (w *sparkTown) as(token string) yt.Client {
	w.t.Helper()
	yc, err := ythttp.NewClient(&yt.Config{
		Proxy: w.cluster.Addr(), Token: token, CompressionCodec: yt.ClientCodecNone, DisableProxyDiscovery: true,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(yc.Stop)
	return yc
}

// watch lets discovery run until the test ends.
func (w *sparkTown) watch() {
	w.t.Helper()
	bases, err := discovery.NewBases("task-proxy.example.com")
	if err != nil {
		w.t.Fatal(err)
	}
	w.discovery, err = discovery.New(discovery.Config{
		Source: w.client, Store: w.client.ServicesTable(servicesTable), Bases: bases,
		Period: 20 * time.Millisecond, JobsRefreshPeriod: 100 * time.Millisecond,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error)
	go func() { done <- w.discovery.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Run = %v", err)
		}
	})
}

// start starts an operation whose jobs are told and not run; tasks give the number of ports.
func (w *sparkTown) start(annotations, description map[string]any, tasks map[string]int) string {
	w.t.Helper()
	spec := map[string]any{"ytlocal": map[string]any{"pretend": true}, "annotations": annotations, "tasks": map[string]any{}}
	if description != nil {
		spec["description"] = description
	}
	for name, ports := range tasks {
		spec["tasks"].(map[string]any)[name] = map[string]any{"job_count": 1, "port_count": ports, "command": "true"}
	}
	id, err := w.admin.StartOperation(w.t.Context(), yt.OperationVanilla, spec, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return guid.GUID(id).String()
}

// say changes annotations as a running job does.
func (w *sparkTown) say(operation string, annotations map[string]any) {
	w.t.Helper()
	id, err := guid.ParseString(operation)
	if err == nil {
		err = w.admin.UpdateOperationParameters(w.t.Context(), yt.OperationID(id), map[string]any{"annotations": annotations}, nil)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// plant replaces entries of a discovery directory in one transaction, as a master does when it registers.
func (w *sparkTown) plant(path string, entries map[string]string) {
	w.t.Helper()
	tx, err := w.admin.BeginTx(w.t.Context(), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	for entry, child := range entries {
		dir := ypath.Path(path).Child("discovery").Child(entry)
		if _, err := tx.CreateNode(w.t.Context(), dir, yt.NodeMap, &yt.CreateNodeOptions{Recursive: true, Force: true}); err != nil {
			w.t.Fatal(err)
		}
		if _, err := tx.CreateNode(w.t.Context(), dir.Child(child), yt.NodeMap, nil); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		w.t.Fatal(err)
	}
}

// job returns the only running job of a task once there is one.
func (w *sparkTown) job(operation, task string) (found scheduler.Job) {
	w.t.Helper()
	w.await("job of task "+task, func() bool {
		jobs, err := w.cluster.Scheduler().Jobs(operation)
		if err != nil {
			w.t.Fatal(err)
		}
		i := slices.IndexFunc(jobs, func(j scheduler.Job) bool { return j.Task == task && j.State == "running" })
		if i >= 0 {
			found = jobs[i]
		}
		return i >= 0
	})
	return found
}

func (w *sparkTown) await(what string, ok func() bool) {
	w.t.Helper()
	timeout := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-timeout:
			w.t.Fatalf("no %s; there is\n%sproblems %v", what, w.discovery.Snapshot(), w.discovery.Problems())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// services of an operation in words: task/name, protocol and endpoints.
func (w *sparkTown) services(operation string) string {
	var lines []string
	for _, s := range w.discovery.Snapshot().Services() {
		if s.OperationID != operation {
			continue
		}
		line := fmt.Sprintf("%s/%s %s %v", s.Task, s.Name, s.Protocol, s.Permissions)
		for _, e := range s.Endpoints {
			line += " " + e.Addr
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func (w *sparkTown) awaitServices(operation string, want ...string) {
	w.t.Helper()
	w.await("services "+strings.Join(want, ", "), func() bool { return w.services(operation) == strings.Join(want, "\n") })
}

func (w *sparkTown) awaitProblem(operation, words string) {
	w.t.Helper()
	w.await("problem "+words, func() bool {
		return slices.ContainsFunc(w.discovery.Problems(), func(p discovery.Problem) bool {
			return p.OperationID == operation && strings.Contains(p.String(), words)
		})
	})
	if got := w.services(operation); strings.Contains(got, "127.0.0.1") {
		w.t.Errorf("services of %s, which must not answer anywhere:\n%s", operation, got)
	}
}

// TestSparkOnCluster goes the whole way with the real SDK: what SPYT's operations look like on a cluster, from their start
// until they answer, and what somebody else would like to make of them.
func TestSparkOnCluster(t *testing.T) {
	t.Parallel()
	w := newSparkTown(t)
	w.watch()
	driver := w.start(nil, map[string]any{"x": "y"}, map[string]int{"driver": 0})
	w.job(driver, "driver")
	w.say(driver, map[string]any{"description": map[string]any{"Web UI": "http://127.0.0.1:27001"}})
	w.awaitServices(driver, "driver/ui http [read] 127.0.0.1:27001")
	w.say(driver, map[string]any{"description": map[string]any{"Executors operation ID": "1-2-3-4"}, "spark_connect_endpoint": "127.0.0.1:27080"})
	w.awaitServices(driver, "driver/connect grpc [read manage] 127.0.0.1:27080", "driver/ui http [read] 127.0.0.1:27001")

	about := map[string]any{"Spark over YT": map[string]any{"discovery_path": "//home/spark/c-1", "job_types": []string{"master", "history", "worker"}}}
	marks := map[string]any{"is_spark": true, "task_proxy": map[string]any{"enabled": true, "tasks_info": map[string]any{
		"master": map[string]any{"rest": map[string]any{"protocol": "http", "port_index": 2}, "ui": map[string]any{"protocol": "http", "port_index": 1}},
	}}}
	spark := w.start(marks, about, map[string]int{"master": 3, "history": 1, "workers": 2})
	child := w.start(marks, about, map[string]int{"workers": 2})
	w.awaitServices(spark, "history/ui http [read]", "master/rest http [read manage]", "master/ui http [read]")
	master, history := w.job(spark, "master"), w.job(spark, "history")
	address := func(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
	w.plant("//home/spark/c-1", map[string]string{
		"operation": spark, "webui": address(master.Ports[1]), "rest": address(master.Ports[2]), "spark_address": address(master.Ports[0]),
	})
	w.awaitServices(spark, "history/ui http [read]", "master/rest http [read manage] "+address(master.Ports[2]), "master/ui http [read] "+address(master.Ports[1]))
	w.plant("//home/spark/c-1", map[string]string{"shs": address(history.Ports[0])})
	whole := []string{"history/ui http [read] " + address(history.Ports[0]), "master/rest http [read manage] " + address(master.Ports[2]), "master/ui http [read] " + address(master.Ports[1])}
	w.awaitServices(spark, whole...)
	if got := w.services(child); got != "" {
		t.Errorf("its workers' operation publishes\n%s", got)
	}
	if p := w.discovery.Problems(); len(p) != 0 {
		t.Errorf("problems %v", p)
	}

	notebook := w.start(map[string]any{"is_notebook": true, "expose": true}, nil, map[string]int{"jupyter": 1})
	clique := w.start(map[string]any{"is_clique": true, "expose": true, "task_proxy": map[string]any{"enabled": true}}, nil, map[string]int{"instances": 5})
	w.awaitServices(notebook, "jupyter/ui http [read manage] "+address(w.job(notebook, "jupyter").Ports[0]))
	if got := w.services(clique); got != "" {
		t.Errorf("a clique publishes\n%s", got)
	}

	// All jobs of the local cluster are at 127.0.0.1, and so is its own proxy.
	for words, url := range map[string]string{
		"its port is neither":        w.cluster.URL(),
		"gave its port to another":   "http://" + address(master.Ports[1]),
		"is not the exec node":       "http://169.254.169.254/latest/meta-data",
		"another operation has its":  "http://[::ffff:127.0.0.1]:27001",
		"must be a URL such as http": "http://127.1:27001",
	} {
		attack := w.start(nil, map[string]any{"Web UI": url}, map[string]int{"driver": 0})
		w.awaitProblem(attack, words)
	}
	w.awaitProblem(w.start(marks, about, map[string]int{"master": 3, "history": 1}), "says that it is another operation's")
	own := maps.Clone(about["Spark over YT"].(map[string]any))
	own["discovery_path"] = "//tmp/mine"
	attack := w.start(marks, map[string]any{"Spark over YT": own}, map[string]int{"master": 1})
	w.plant("//tmp/mine", map[string]string{"operation": attack, "webui": address(master.Ports[1]), "rest": w.cluster.Addr()})
	w.awaitProblem(attack, `service "ui": its address is not used: the exec node gave its port to another job`)
	w.awaitProblem(attack, `service "rest": its address is not used: its port is neither`)
	w.awaitServices(spark, whole...)

	if err := w.cluster.Scheduler().Abort(driver, "seen enough"); err != nil {
		t.Fatal(err)
	}
	w.awaitServices(driver)
}

// TestSPYTReadsTheTable does what spark-submit-yt of SPYT 2.9 does, with the SDK and as a user without rights of his own, when
// its cluster has been started for the task proxy: then the operations carry is_spark and task_proxy both.
func TestSPYTReadsTheTable(t *testing.T) {
	t.Parallel()
	w := newSparkTown(t)
	alice, err := w.cluster.AddUser("alice")
	if err != nil {
		t.Fatal(err)
	}
	yc := w.as(alice.Token)
	const path = "//home/spark/c-1"
	if got, err := spytTaskProxy(t.Context(), yc, path); got != nil || err != nil {
		t.Errorf("without a table there is %v, %v", got, err)
	}

	about := map[string]any{"Spark over YT": map[string]any{"discovery_path": path, "job_types": []string{"master", "history"}}}
	service := func(index int) map[string]any { return map[string]any{"protocol": "http", "port_index": index} }
	spark := w.start(map[string]any{"is_spark": true, "task_proxy": map[string]any{"enabled": true, "tasks_info": map[string]any{
		"master": map[string]any{"rest": service(2), "ui": service(1)}, "history": map[string]any{"ui": service(0)},
	}}}, about, map[string]int{"master": 3, "history": 1})
	children := map[string]any{"is_spark": true, "task_proxy": map[string]any{"enabled": true, "tasks_info": map[string]any{}}}
	w.start(children, about, map[string]int{"workers": 2})
	w.start(children, about, map[string]int{"drivers": 1})
	other := w.start(map[string]any{"task_proxy": map[string]any{"enabled": true}}, nil, map[string]int{"server": 2})
	master, history := w.job(spark, "master"), w.job(spark, "history")
	w.plant(path, map[string]string{
		"operation": spark, "webui": fmt.Sprintf("127.0.0.1:%d", master.Ports[1]), "rest": fmt.Sprintf("127.0.0.1:%d", master.Ports[2]),
		"spark_address": fmt.Sprintf("127.0.0.1:%d", master.Ports[0]), "shs": fmt.Sprintf("127.0.0.1:%d", history.Ports[0]),
	})
	w.watch()

	domain := func(task, name string) string {
		return discovery.ShortID(spark, task, name) + ".task-proxy.example.com"
	}
	want := map[string]string{
		"master_rest": domain("master", "rest"), "master_ui": domain("master", "ui"), "history_ui": domain("history", "ui"),
	}
	var got map[string]string
	w.await("table that SPYT can use", func() bool {
		got, err = spytTaskProxy(t.Context(), yc, path)
		return err != nil || len(got) == len(want)
	})
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("SPYT's client has %v, %v, want %v", got, err, want)
	}
	rows, err := w.client.ServicesTable(servicesTable).ReadServices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if r.OperationID != spark && r.OperationID != other {
			t.Errorf("there is a row of another operation: %+v", r)
		}
	}
	if len(rows) != 5 {
		t.Errorf("there are %d rows, want 3 of SPYT's and 2 of the other operation: %v", len(rows), rows)
	}
}

// spytTaskProxy is SPYT's side: it finds its operation by the discovery path, reads the whole table, keeps that operation's rows
// and hands their domains on, each by a name made of task and service. Whoever gets them knows three of these names, and
// takes no other.
func spytTaskProxy(ctx context.Context, yc yt.Client, discoveryPath ypath.Path) (map[string]string, error) {
	if ok, err := yc.NodeExists(ctx, ypath.Path(servicesTable), nil); err != nil || !ok {
		return nil, err
	}
	var operations []string
	if err := yc.ListNode(ctx, discoveryPath.Child("discovery").Child("operation"), &operations, nil); err != nil {
		return nil, err
	}
	if len(operations) != 1 {
		return nil, fmt.Errorf("the discovery path names the operations %q", operations)
	}
	reader, err := yc.ReadTable(ctx, ypath.Path(servicesTable), nil)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	arguments := map[string]string{}
	for reader.Next() {
		var row map[string]any
		if err := reader.Scan(&row); err != nil {
			return nil, err
		}
		if row["operation_id"] != operations[0] {
			continue
		}
		name := fmt.Sprintf("%s_%s", row["task_name"], row["service"])
		if !slices.Contains([]string{"master_rest", "master_ui", "history_ui"}, name) {
			return nil, fmt.Errorf("TypeError: got an unexpected keyword argument %q", name)
		}
		arguments[name], _ = row["domain"].(string)
	}
	return arguments, reader.Err()
}
