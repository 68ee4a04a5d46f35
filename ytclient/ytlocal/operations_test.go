package ytlocal

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.ytsaurus.tech/yt/go/guid"
	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yt"
	"go.ytsaurus.tech/yt/go/yterrors"

	"taskproxy/ytclient/ytlocal/scheduler"
)

// vanilla is a spec of one task named "web".
func vanilla(jobs int, command string, more map[string]any) map[string]any {
	spec := map[string]any{"tasks": map[string]any{"web": map[string]any{"job_count": jobs, "command": command, "port_count": 2}}}
	for k, v := range more {
		spec[k] = v
	}
	return spec
}

// start starts an operation as the SDK does.
func start(t *testing.T, yc yt.Client, spec map[string]any) yt.OperationID {
	t.Helper()
	id, err := yc.StartOperation(t.Context(), yt.OperationVanilla, spec, nil)
	must(t, err)
	return id
}

// eventually waits for what the cluster does in its own time.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long until %s", what)
		}
	}
}

// running are the running jobs of an operation, once there are as many as wanted.
func running(t *testing.T, yc yt.Client, id yt.OperationID, want int) []yt.JobStatus {
	t.Helper()
	var jobs []yt.JobStatus
	eventually(t, fmt.Sprint(want, " jobs run"), func() bool {
		state := yt.JobRunning
		res, err := yc.ListJobs(t.Context(), id, &yt.ListJobsOptions{JobState: &state})
		must(t, err)
		jobs = res.Jobs
		return len(jobs) == want
	})
	return jobs
}

func TestOperationFromStartToEnd(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	ctx, root := t.Context(), rootClient(t, c)
	alice := client(t, c, addUser(t, c, "alice").Token)
	create(t, root, "//tmp/script", yt.NodeFile)
	w, err := root.WriteFile(ctx, ypath.Path("//tmp/script"), nil)
	must(t, err)
	_, err = io.WriteString(w, "#!/bin/sh\necho port $YT_PORT_0 of $YT_TASK_NAME >&2\nexec sleep 600\n")
	must(t, err)
	must(t, w.Close())
	set(t, root, "//tmp/script/@executable", true)

	spec := vanilla(2, "./script", map[string]any{"title": "T", "alias": "*a", "annotations": map[string]any{"task_proxy": map[string]any{"enabled": true}}})
	spec["tasks"].(map[string]any)["web"].(map[string]any)["file_paths"] = []any{"//tmp/script"}
	id := start(t, alice, spec)
	jobs := running(t, alice, id, 2)

	for _, j := range jobs {
		if j.TaskName != "web" || j.Address == "" || j.StartTime == (yson.Time{}) {
			t.Errorf("job: got %+v", j)
		}
		var ports []int
		for _, dir := range []string{"exec_nodes", "cluster_nodes"} {
			base := "//sys/" + dir + "/" + j.Address + "/orchid/exec_node/job_controller/active_jobs"
			must(t, alice.GetNode(ctx, ypath.Path(base+"/"+j.ID.String()+"/job_ports"), &ports, nil))
			if len(ports) != 2 {
				t.Errorf("ports: got %v, want two", ports)
			}
			if got := get(t, alice, base+"/"+j.ID.String()+"/operation_id"); strings.Trim(got, `"`) != id.String() {
				t.Errorf("operation of the job: got %s, want %s", got, id)
			}
			if exists(t, alice, base+"/1-2-3fe0384-4") {
				t.Error("a job that never was exists on the node")
			}
			wantCode(t, alice.GetNode(ctx, ypath.Path(base+"/1-2-3fe0384-4/job_ports"), &ports, nil), yterrors.CodeResolveError)
		}
		eventually(t, "the job wrote", func() bool {
			stderr, err := alice.GetJobStderr(ctx, id, j.ID, nil)
			must(t, err)
			return strings.HasPrefix(string(stderr), fmt.Sprintf("port %d of web", ports[0]))
		})
		res, err := alice.GetJob(ctx, id, j.ID, nil)
		must(t, err)
		if res.State != string(yt.JobRunning) || res.Address != j.Address {
			t.Errorf("get_job: got %+v", res)
		}
	}

	op, err := alice.GetOperation(ctx, id, nil)
	must(t, err)
	if op.ID != id || op.State != yt.StateRunning || op.BriefSpec["alias"] != "*a" || op.BriefSpec["title"] != "T" || op.AuthenticatedUser != "alice" {
		t.Errorf("get_operation: got %+v", op)
	}
	byAlias, err := alice.GetOperationByAlias(ctx, "*a", nil)
	must(t, err)
	if byAlias.ID != id {
		t.Errorf("by alias: got %s", byAlias.ID)
	}

	bob := client(t, c, addUser(t, c, "bob").Token)
	wantCode(t, bob.AbortOperation(ctx, id, nil), yterrors.CodeAuthorizationError)
	wantCode(t, bob.CompleteOperation(ctx, id, nil), yterrors.CodeAuthorizationError)
	wantCode(t, bob.UpdateOperationParameters(ctx, id, map[string]any{"annotations": nil}, nil), yterrors.CodeAuthorizationError)
	_, err = bob.GetJobStderr(ctx, id, jobs[0].ID, nil)
	wantCode(t, err, yterrors.CodeAuthorizationError)

	must(t, alice.UpdateOperationParameters(ctx, id, map[string]any{"annotations": map[string]any{"task_proxy": map[string]any{"x": 1}}}, nil))
	op, err = root.GetOperation(ctx, id, nil)
	must(t, err)
	if got, want := fmt.Sprint(op.RuntimeParameters.Annotations), "map[task_proxy:map[enabled:true x:1]]"; got != want {
		t.Errorf("annotations: got %s, want %s", got, want)
	}

	must(t, alice.AbortOperation(ctx, id, nil))
	op, err = root.GetOperation(ctx, id, nil)
	must(t, err)
	if op.State != yt.StateAborted || time.Time(op.FinishTime).IsZero() {
		t.Errorf("after abort: %s, finished %v", op.State, op.FinishTime)
	}
	running(t, root, id, 0)
	wantCode(t, alice.AbortOperation(ctx, id, nil), yterrors.CodeNoSuchOperation)
}

func TestUnknownOperations(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	ctx, yc := t.Context(), rootClient(t, c)
	none, err := guid.ParseString("1-2-3fe03e8-4")
	must(t, err)
	id := yt.OperationID(none)
	_, err = yc.GetOperation(ctx, id, nil)
	wantCode(t, err, yterrors.CodeAPINoSuchOperation)
	_, err = yc.ListJobs(ctx, id, nil)
	wantCode(t, err, yterrors.CodeAPINoSuchOperation)
	_, err = yc.CheckOperationPermission(ctx, id, "root", "read", nil)
	wantCode(t, err, yterrors.CodeAPINoSuchOperation)
	wantCode(t, yc.AbortOperation(ctx, id, nil), yterrors.CodeNoSuchOperation)
	op := start(t, yc, vanilla(1, "sleep 600", nil))
	_, err = yc.GetJob(ctx, op, yt.JobID(none), nil)
	wantCode(t, err, yterrors.CodeAPINoSuchJob)
	_, err = yc.StartOperation(ctx, yt.OperationMap, map[string]any{}, nil)
	if err == nil {
		t.Error("a map operation was started")
	}
}

// Files reach jobs only if who starts the operation may read them.
func TestFilesOfOthers(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	ctx, root := t.Context(), rootClient(t, c)
	bob := client(t, c, addUser(t, c, "bob").Token)
	create(t, root, "//tmp/secret", yt.NodeFile)
	set(t, root, "//tmp/secret/@inherit_acl", false)
	spec := vanilla(1, "cat secret", nil)
	for _, path := range []any{"//tmp/secret", "<executable=%true>//tmp/secret", &yson.ValueWithAttrs{Attrs: map[string]any{"file_name": "x"}, Value: "//tmp/secret"}} {
		spec["tasks"].(map[string]any)["web"].(map[string]any)["file_paths"] = []any{path}
		_, err := bob.StartOperation(ctx, yt.OperationVanilla, spec, nil)
		wantCode(t, err, yterrors.CodeAuthorizationError)
	}
	if n := len(c.Scheduler().Operations()); n != 0 {
		t.Errorf("%d operations were started", n)
	}
}

// The truth table that the vendor's tests assert.
func TestCheckOperationPermission(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	ctx, root := t.Context(), rootClient(t, c)
	for _, login := range []string{"owner", "nobody", "reader", "manager", "member", "half", "banned", "robot", "writer"} {
		addUser(t, c, login)
	}
	_, err := root.CreateObject(ctx, yt.NodeGroup, &yt.CreateObjectOptions{Attributes: map[string]any{"name": "team"}})
	must(t, err)
	for _, login := range []string{"member", "half", "banned"} {
		must(t, root.AddMember(ctx, "team", login, nil))
	}
	entry := func(action, subject string, permissions ...any) any {
		return map[string]any{"action": action, "subjects": []any{subject}, "permissions": permissions}
	}
	for subject, permission := range map[string]string{"robot": "read", "writer": "write"} {
		set(t, root, "//sys/operations/@acl/end", entry("allow", subject, permission))
	}
	id := start(t, root, vanilla(1, "sleep 600", map[string]any{"acl": []any{
		entry("allow", "reader", "read"), entry("allow", "manager", "manage"), entry("allow", "team", "read", "manage"),
		entry("deny", "half", "manage"), entry("deny", "banned", "read", "manage"),
	}}))
	for user, want := range map[string][2]bool{
		"nobody": {false, false}, "reader": {true, false}, "manager": {false, true}, "member": {true, true}, "half": {true, false},
		"banned": {false, false}, "robot": {true, false}, "writer": {true, true}, "root": {true, true},
	} {
		for i, permission := range []yt.Permission{"read", "manage"} {
			res, err := root.CheckOperationPermission(ctx, id, user, permission, nil)
			must(t, err)
			if got := res.Action == yt.ActionAllow; got != want[i] {
				t.Errorf("%s, %s: got %v, want %v", user, permission, got, want[i])
			}
		}
	}
	if _, err = root.CheckOperationPermission(ctx, id, "unknown", "read", nil); err == nil {
		t.Error("an unknown user got a decision")
	}
	if _, err = root.CheckOperationPermission(ctx, id, "reader", "write", nil); err == nil {
		t.Error("an unknown permission got a decision")
	}
}

// listed are the ids of a page of list_operations.
func listed(t *testing.T, c *Cluster, params string) (ids []string, incomplete bool, code int) {
	t.Helper()
	got := request(t, c, "GET", "/api/v4/list_operations", "", func(r *http.Request) {
		r.Header.Set("X-YT-Parameters", params)
		r.Header.Set("X-YT-Output-Format", "yson")
	})
	var v struct {
		Operations []map[string]any `yson:"operations"`
		Incomplete bool             `yson:"incomplete"`
	}
	if got.status == 200 {
		must(t, yson.Unmarshal([]byte(got.body), &v))
	}
	for _, op := range v.Operations {
		ids = append(ids, op["id"].(string))
		if op["start_time"] == nil {
			t.Errorf("%s: no start_time", params)
		}
	}
	return ids, v.Incomplete, got.status
}

func TestListOperations(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	root := rootClient(t, c)
	alice := client(t, c, addUser(t, c, "alice").Token)
	for i := range 5 {
		yc := []yt.Client{root, alice}[i%2]
		start(t, yc, vanilla(1, "sleep 600", map[string]any{"title": fmt.Sprint("title", i), "annotations": map[string]any{"n": fmt.Sprint("mark", i)}}))
		last := c.Scheduler().Operations()[0].StartTime
		eventually(t, "the clock moved", func() bool { return time.Since(last) > time.Millisecond })
	}
	all := c.Scheduler().Operations() // newest first
	if len(all) != 5 {
		t.Fatalf("%d operations", len(all))
	}
	id := func(i ...int) (ids []string) {
		for _, i := range i {
			ids = append(ids, all[i].ID)
		}
		return ids
	}
	at := func(i int) string { return timeText(all[i].StartTime) }
	f := func(params string, incomplete bool, want ...string) {
		t.Helper()
		got, more, status := listed(t, c, params)
		if status != 200 || !slices.Equal(got, want) || more != incomplete {
			t.Errorf("%s: got %d %v, incomplete %v; want %v, %v", params, status, got, more, want, incomplete)
		}
	}
	f("{}", false, id(0, 1, 2, 3, 4)...)
	f("{limit=2}", true, id(0, 1)...)
	f("{limit=5}", false, id(0, 1, 2, 3, 4)...)
	f(`{attributes=[state]}`, false, id(0, 1, 2, 3, 4)...)
	f(`{user=alice}`, false, id(1, 3)...)
	f(`{state=completed}`, false)
	f(`{filter=MARK3}`, false, id(1)...)
	f(`{filter=title0}`, false, id(4)...)
	f(`{type=map}`, false)
	f(`{cursor_time="`+at(2)+`"}`, false, id(3, 4)...) // the cursor itself is not part of the page
	f(`{cursor_time="`+at(2)+`";limit=1}`, true, id(3)...)
	f(`{cursor_time="`+at(2)+`";cursor_direction=future}`, false, id(0, 1)...)
	f(`{cursor_time="`+at(4)+`";cursor_direction=future;limit=2}`, true, id(2, 3)...)
	f(`{from_time="`+at(3)+`";to_time="`+at(1)+`"}`, false, id(2, 3)...)
	for _, bad := range []string{
		"{limit=1001}", "{limit=0}", "{attributes=[nonsense]}", "{cursor_time=yesterday}", "{cursor_direction=sideways}",
		"{include_archive=%true}", `{from_time="` + at(2) + `";cursor_time="` + at(4) + `"}`,
	} {
		if _, _, status := listed(t, c, bad); status != 400 {
			t.Errorf("%s: got %d, want 400", bad, status)
		}
	}

	// The SDK's own view, with exactly what a discovery asks for.
	limit, state := 100, yt.StateRunning
	eventually(t, "all run", func() bool {
		res, err := root.ListOperations(t.Context(), &yt.ListOperationsOptions{Limit: &limit, State: &state, Attributes: []string{"id", "runtime_parameters", "brief_spec", "brief_progress"}})
		must(t, err)
		return len(res.Operations) == 5 && res.Operations[0].RuntimeParameters.Annotations["n"] == "mark4" && res.Operations[0].BriefSpec["title"] == "title4"
	})
	_, err := root.ListOperations(t.Context(), &yt.ListOperationsOptions{Attributes: []string{"nonsense"}})
	wantCode(t, err, yterrors.CodeNoSuchAttribute)
}

func TestListJobs(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	ctx, yc := t.Context(), rootClient(t, c)
	spec := vanilla(3, "sleep 600", nil)
	spec["tasks"].(map[string]any)["other"] = map[string]any{"job_count": 2, "command": "sleep 600"}
	id := start(t, yc, spec)
	jobs := running(t, yc, id, 5)
	count := func(o yt.ListJobsOptions) int {
		t.Helper()
		res, err := yc.ListJobs(ctx, id, &o)
		must(t, err)
		return len(res.Jobs)
	}
	task, failed, limit, offset, far, field := "other", yt.JobFailed, 3, 4, 9, yt.JobSortField("id")
	if got := count(yt.ListJobsOptions{TaskName: &task}); got != 2 {
		t.Errorf("by task: %d", got)
	}
	if got := count(yt.ListJobsOptions{JobState: &failed}); got != 0 {
		t.Errorf("by state: %d", got)
	}
	if got := count(yt.ListJobsOptions{Limit: &limit}); got != 3 {
		t.Errorf("limit: %d", got)
	}
	if got := count(yt.ListJobsOptions{Limit: &limit, Offset: &offset, SortField: &field}); got != 1 {
		t.Errorf("offset: %d", got)
	}
	if got := count(yt.ListJobsOptions{Offset: &far}); got != 0 {
		t.Errorf("offset behind the end: %d", got)
	}
	nodes := map[string]int{}
	for _, j := range jobs {
		nodes[j.Address]++
	}
	if len(nodes) != 2 {
		t.Errorf("jobs are not spread over the nodes: %v", nodes)
	}
	got := request(t, c, "GET", "/api/v4/list_jobs?operation_id="+id.String()+"&state=running&attributes[0]=x", "", nil)
	if got.status != 400 {
		t.Errorf("odd attributes: got %d", got.status)
	}
}

// Closing the cluster leaves no process behind.
func TestCloseEndsJobs(t *testing.T) {
	t.Parallel()
	c, err := Start(Config{StateDir: t.TempDir()})
	must(t, err)
	id, err := c.Scheduler().Start("root", map[string]any{"tasks": map[string]any{"t": map[string]any{"job_count": int64(2), "command": "sleep 600"}}})
	must(t, err)
	var jobs []scheduler.Job
	eventually(t, "jobs run", func() bool {
		jobs, err = c.Scheduler().Jobs(id)
		must(t, err)
		return len(jobs) == 2 && jobs[0].PID > 0 && jobs[1].PID > 0
	})
	must(t, c.Close())
	must(t, c.Close())
	for _, j := range jobs {
		if alive(j.PID) {
			t.Errorf("process %d outlived the cluster", j.PID)
		}
	}
}
