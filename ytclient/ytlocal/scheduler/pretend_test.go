package scheduler

import (
	"slices"
	"testing"
	"time"
)

func TestPretend(t *testing.T) {
	s := newScheduler(t)
	first := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	op := Operation{
		ID: "1-2-3fe03e8-4", User: "bob", Alias: "*told", StartTime: first, Annotations: map[string]any{"a": int64(1)},
		Spec: map[string]any{"tasks": map[string]any{"web": map[string]any{"job_count": int64(3)}}},
	}
	jobs := []Job{
		{ID: "1-1-3fe0384-1", Task: "web", Address: "[fd00::1]:9012", Ports: []int{20001}},
		{ID: "1-1-3fe0384-2", Task: "web", Address: "node-1:9012", Ports: []int{20002}, Away: true},
		{ID: "1-1-3fe0384-3", Task: "web", Address: "node-1:9012", State: "failed"},
	}
	pretend := func(op Operation, jobs []Job) Operation {
		t.Helper()
		if err := s.Pretend(op, jobs); err != nil {
			t.Fatal(err)
		}
		got, err := s.Operation(op.ID)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	got := pretend(op, jobs)
	if got.State != "running" || got.Type != "vanilla" || !got.StartTime.Equal(first) || !got.FinishTime.IsZero() || got.Annotations["a"] != int64(1) {
		t.Errorf("got %+v", got)
	}
	for key, want := range map[string]int64{"total": 3, "running": 2, "failed": 1, "pending": 1, "aborted": 0} {
		if got.Progress[key] != want {
			t.Errorf("progress has %s=%v, want %d", key, got.Progress[key], want)
		}
	}
	if all := s.Operations(); len(all) != 1 || all[0].ID != op.ID {
		t.Errorf("listed: %v", all)
	}
	if byAlias, err := s.Operation("*told"); err != nil || byAlias.ID != op.ID {
		t.Errorf("by alias: %v, %v", byAlias.ID, err)
	}
	listed, err := s.Jobs(op.ID)
	if err != nil || len(listed) != 3 || listed[0].OperationID != op.ID || listed[0].State != "running" || !listed[0].StartTime.Equal(first) {
		t.Errorf("jobs: %+v, %v", listed, err)
	}
	listed[0].Ports[0] = 0
	if j, ok := s.NodeJob("[fd00::1]:9012", jobs[0].ID); !ok || !slices.Equal(j.Ports, []int{20001}) {
		t.Errorf("on its node: %+v, %t", j, ok)
	}
	// Neither a job that is away nor one that has ended is on its node.
	if on := s.NodeJobs("node-1:9012"); len(on) != 0 {
		t.Errorf("on node-1: %+v", on)
	}
	if _, ok := s.NodeJob("node-1:9012", jobs[1].ID); ok {
		t.Error("a job that is away is on its node")
	}
	if j, err := s.Job(op.ID, jobs[2].ID); err != nil || j.State != "failed" {
		t.Errorf("job: %+v, %v", j, err)
	}
	_, err = s.Job(op.ID, "1-1-3fe0384-9")
	wantCode(t, err, 1916)

	// The same again moves nothing, a change of a job moves the time of the progress, also when the counts stay.
	if again := pretend(op, jobs); again.Progress["build_time"] != got.Progress["build_time"] {
		t.Error("the same jobs have another progress")
	}
	jobs[0].ID = "1-1-3fe0384-4"
	if changed := pretend(op, jobs); changed.Progress["build_time"] == got.Progress["build_time"] || changed.Progress["running"] != int64(2) {
		t.Errorf("another job has the progress %v, before it was %v", changed.Progress, got.Progress)
	}

	// What has ended has no alias.
	op.State = "completed"
	if ended := pretend(op, nil); ended.FinishTime.IsZero() {
		t.Error("completed without a time")
	}
	_, err = s.Operation("*told")
	wantCode(t, err, 1915)
	s.Forget(op.ID)
	_, err = s.Operation(op.ID)
	wantCode(t, err, 1915)
	_, err = s.Jobs(op.ID)
	wantCode(t, err, 1915)
}

func TestPretendRefuses(t *testing.T) {
	s := newScheduler(t)
	for _, id := range []string{"", "x", "1-2-3", "1-2-3-04", "1-2-3-4junk"} {
		if err := s.Pretend(Operation{ID: id}, nil); err == nil {
			t.Errorf("id %q was taken", id)
		}
	}
	real := mustStart(t, s, spec(shell(""), "ytlocal", map[string]any{"pretend": true}))
	if err := s.Pretend(Operation{ID: real}, nil); err == nil {
		t.Error("an operation that exists was taken over")
	}
}
