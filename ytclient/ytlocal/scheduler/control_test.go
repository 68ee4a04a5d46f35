package scheduler

import (
	"reflect"
	"strings"
	"sync"
	"testing"

	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yterrors"
)

func TestAbort(t *testing.T) {
	t.Parallel()
	s := newScheduler(t)
	id := mustStart(t, s, spec(listener(2), "alias", "*web"))
	jobs := waitRunning(t, s, id, 2)
	if err := s.Abort("*web", "no longer needed"); err != nil {
		t.Fatal(err)
	}
	op := operation1(t, s, id)
	if op.State != aborted || !strings.Contains(op.Error, "no longer needed") || op.FinishTime.IsZero() {
		t.Errorf("operation: got %+v", op)
	}
	if got := len(jobsIn(t, s, id, aborted)); got != 2 {
		t.Errorf("aborted jobs: got %d, want 2", got)
	}
	for _, j := range jobs {
		if connects(j.Ports[0]) {
			t.Errorf("port %d still answers", j.Ports[0])
		}
		if got := s.NodeJobs(j.Address); len(got) > 0 {
			t.Errorf("node %s still has %d jobs", j.Address, len(got))
		}
	}
	wantCode(t, s.Abort(id, ""), yterrors.CodeNoSuchOperation)
	wantCode(t, s.Complete("1-2-3-4"), yterrors.CodeNoSuchOperation)
}

// Many may give the same order at once; the order is carried out once, and all return after it was.
func TestAbortByMany(t *testing.T) {
	t.Parallel()
	s := newScheduler(t)
	id := mustStart(t, s, spec(shell("sleep 1000", "job_count", int64(4))))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			_ = s.Abort(id, "") // all but the first may come too late
			s.Operations()
			_, _ = s.Jobs(id)
		})
	}
	all.Wait()
	waitState(t, s, id, aborted)
}

func TestAliases(t *testing.T) {
	t.Parallel()
	s := newScheduler(t)
	pretend := map[string]any{"pretend": true}
	first := mustStart(t, s, spec(shell(""), "alias", "*a", "ytlocal", pretend))
	_, err := s.Start("bob", spec(shell(""), "alias", "*a", "ytlocal", pretend))
	if err == nil || !strings.Contains(err.Error(), first) {
		t.Errorf("second of an alias: got %v, want an error that names the first", err)
	}
	if op, err := s.Operation("*a"); err != nil || op.ID != first {
		t.Errorf("by alias: got %s %v, want %s", op.ID, err, first)
	}
	if err := s.Abort(first, ""); err != nil {
		t.Fatal(err)
	}
	second := mustStart(t, s, spec(shell(""), "alias", "*a", "ytlocal", pretend))
	if op, err := s.Operation("*a"); err != nil || op.ID != second {
		t.Errorf("by alias: got %s %v, want %s", op.ID, err, second)
	}
	ops := s.Operations()
	if len(ops) != 2 || ops[0].ID != second || ops[1].ID != first {
		t.Errorf("operations: got %d, want the newer one first", len(ops))
	}
}

func TestSuspend(t *testing.T) {
	t.Parallel()
	s := newScheduler(t)
	id := mustStart(t, s, spec(shell("sleep 1000")))
	j := waitRunning(t, s, id, 1)[0]
	wantCode(t, s.Resume(id), yterrors.CodeInvalidOperationState)
	for range 2 {
		if err := s.Suspend(id); err != nil {
			t.Fatal(err)
		}
	}
	if !operation1(t, s, id).Suspended {
		t.Error("not suspended")
	}
	killJob(t, j)
	waitFor(t, "the job failed", func() bool { return len(jobsIn(t, s, id, failed)) == 1 })
	if op := operation1(t, s, id); op.Progress["pending"] != int64(1) {
		t.Errorf("progress: got %v, want one pending", op.Progress)
	}
	if err := s.Resume(id); err != nil {
		t.Fatal(err)
	}
	waitRunning(t, s, id, 1)
	if err := s.Suspend(id); err != nil {
		t.Fatal(err)
	}
	if err := s.Abort(id, ""); err != nil {
		t.Errorf("abort a suspended operation: %v", err)
	}
}

func TestUpdateParameters(t *testing.T) {
	t.Parallel()
	s := newScheduler(t)
	ace := func(user string) map[string]any {
		return map[string]any{"action": "allow", "subjects": []any{user}, "permissions": []any{"read"}}
	}
	own := allow("alice")
	id := mustStart(t, s, spec(shell(""), "ytlocal", map[string]any{"pretend": true}, "acl", []any{ace("bob")},
		"annotations", map[string]any{"a": map[string]any{"b": int64(1), "c": int64(2)}, "d": int64(3)}))

	steps := []struct {
		name            string
		params          map[string]any
		wantAnnotations map[string]any
		wantACL         []any
	}{
		{"nothing", nil,
			map[string]any{"a": map[string]any{"b": int64(1), "c": int64(2)}, "d": int64(3)}, []any{own, ace("bob")}},
		{"merge", map[string]any{"annotations": map[string]any{"a": map[string]any{"b": int64(5), "e": nil}, "d": map[string]any{"x": true}}},
			map[string]any{"a": map[string]any{"b": int64(5), "c": int64(2), "e": nil}, "d": map[string]any{"x": true}}, []any{own, ace("bob")}},
		{"replace the ACL", map[string]any{"acl": []any{ace("carol")}, "scheduling_options_per_pool_tree": map[string]any{}},
			map[string]any{"a": map[string]any{"b": int64(5), "c": int64(2), "e": nil}, "d": map[string]any{"x": true}}, []any{own, ace("carol")}},
		{"empty the ACL, clear the annotations", map[string]any{"acl": []any{}, "annotations": nil}, nil, []any{own}},
		{"begin anew", map[string]any{"annotations": &yson.ValueWithAttrs{Value: map[string]any{"n": "m"}}},
			map[string]any{"n": "m"}, []any{own}},
	}
	for _, step := range steps {
		before := operation1(t, s, id)
		kept := clone(before.Annotations)
		if err := s.UpdateParameters(id, step.params); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		op := operation1(t, s, id)
		if !reflect.DeepEqual(op.Annotations, step.wantAnnotations) {
			t.Errorf("%s: annotations: got %v, want %v", step.name, op.Annotations, step.wantAnnotations)
		}
		if !reflect.DeepEqual(op.ACL, step.wantACL) {
			t.Errorf("%s: ACL: got %v, want %v", step.name, op.ACL, step.wantACL)
		}
		if !reflect.DeepEqual(any(before.Annotations), kept) {
			t.Errorf("%s: an earlier copy has changed", step.name)
		}
	}

	bad := []struct {
		name   string
		params map[string]any
		want   string
	}{
		{"annotations are no map", map[string]any{"annotations": "x"}, "parameters/annotations"},
		{"acl is no list", map[string]any{"acl": "x"}, "parameters/acl"},
		{"acl is #", map[string]any{"acl": nil}, "parameters/acl"},
		{"unknown", map[string]any{"anotations": nil}, "anotations"},
		{"one good, one bad", map[string]any{"annotations": nil, "acl": int64(1)}, "parameters/acl"},
	}
	for _, tt := range bad {
		err := s.UpdateParameters(id, tt.params)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q in it", tt.name, err, tt.want)
		}
	}
	if op := operation1(t, s, id); len(op.Annotations) != 1 {
		t.Errorf("a refused update has changed the annotations to %v", op.Annotations)
	}
}

// What was returned is the caller's to change.
func TestCopies(t *testing.T) {
	t.Parallel()
	s := newScheduler(t)
	given := spec(shell(""), "ytlocal", map[string]any{"pretend": true}, "annotations", map[string]any{"a": map[string]any{"b": "c"}})
	id := mustStart(t, s, given)
	given["annotations"].(map[string]any)["a"] = "changed"
	op := operation1(t, s, id)
	op.Annotations["a"].(map[string]any)["b"] = "changed"
	op.Spec["tasks"] = "changed"
	op.ACL[0].(map[string]any)["action"] = "changed"
	op = operation1(t, s, id)
	if got := op.Annotations["a"].(map[string]any)["b"]; got != "c" {
		t.Errorf("annotation: got %v, want c", got)
	}
	if _, ok := op.Spec["tasks"].(map[string]any); !ok {
		t.Errorf("tasks: got %v", op.Spec["tasks"])
	}
	if got := op.ACL[0].(map[string]any)["action"]; got != "allow" {
		t.Errorf("action: got %v, want allow", got)
	}
}

func TestUnknown(t *testing.T) {
	t.Parallel()
	s := newScheduler(t)
	id := mustStart(t, s, spec(shell(""), "ytlocal", map[string]any{"pretend": true}))
	_, err := s.Operation("1-2-3fe03e8-4")
	wantCode(t, err, yterrors.CodeAPINoSuchOperation)
	_, err = s.Jobs("")
	wantCode(t, err, yterrors.CodeAPINoSuchOperation)
	_, err = s.Job("*x", "1-2-3fe0384-4")
	wantCode(t, err, yterrors.CodeAPINoSuchOperation)
	_, err = s.Job(id, "1-2-3fe0384-4")
	wantCode(t, err, yterrors.CodeAPINoSuchJob)
	_, err = s.Stderr(id, "../../etc/passwd")
	wantCode(t, err, yterrors.CodeAPINoSuchJob)
	if got := s.NodeJobs("nowhere:1"); len(got) != 0 {
		t.Errorf("jobs of an unknown node: got %d", len(got))
	}
}
