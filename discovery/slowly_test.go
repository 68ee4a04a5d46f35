package discovery

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskproxy/ytclient"
)

// mute is a cluster of which some calls are never answered.
type mute struct {
	*source
	directories bool
	operation   string // get_operation of this one, and list_jobs
}

func (m *mute) ListChildren(ctx context.Context, paths []string) ([]ytclient.ChildrenAnswer, error) {
	if m.directories && strings.Contains(fmt.Sprint(paths), "hangs") {
		<-ctx.Done()
		return nil, fmt.Errorf("%w: %w", ytclient.ErrUnavailable, ctx.Err())
	}
	return m.source.ListChildren(ctx, paths)
}

func (m *mute) GetOperation(ctx context.Context, id string) (ytclient.OperationInfo, error) {
	if strings.HasPrefix(id, m.operation) && m.operation != "" {
		<-ctx.Done()
		return ytclient.OperationInfo{}, fmt.Errorf("%w: %w", ytclient.ErrUnavailable, ctx.Err())
	}
	return m.source.GetOperation(ctx, id)
}

// One author's discovery directories that hang, however many, hold nobody up who asks for a service, and others little who do not.
func TestManyDirectoriesThatHang(t *testing.T) {
	played(t, func(t *testing.T) {
		w := newTown(t)
		h := &mute{source: w.source(), directories: true}
		w.d.source = h
		for i := range 100 {
			id := fmt.Sprintf("eve-%d", i)
			w.operation(id, map[string]any{"is_spark": true, "description": map[string]any{"Spark over YT": map[string]any{
				"discovery_path": fmt.Sprintf("//home/hangs/%d", i),
			}}}, "master")
			w.job(id, fmt.Sprintf("e%d", i), "master", "node-2.local:9012")
		}
		stop := running(t, w.d)
		defer stop()
		time.Sleep(5 * time.Minute)
		synctest.Wait()

		publish := func(id string) string {
			synctest.Wait()
			w.operation(id, map[string]any{"task_proxy": map[string]any{"enabled": true}})
			w.tasks[id] = []ytclient.Task{{Name: "server", JobCount: 1, PortCount: 1}}
			w.job(id, "j"+id, "server", "node-3.local:9012", 20100)
			w.d.early.tell() // Run reads what is written above after this
			return LongID(id, "server", "port_0")
		}
		label := publish("asked")
		began := time.Now()
		if !w.d.Await(t.Context(), "alice", label) || w.d.Snapshot().Lookup(label) == nil {
			t.Errorf("somebody asked, waited for %s, and it is not there", time.Since(began))
		}
		time.Sleep(time.Minute)
		label = publish("unasked")
		for began = time.Now(); w.d.Snapshot().Lookup(label) == nil && time.Since(began) < time.Hour; {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if took := time.Since(began); took > 35*time.Second {
			t.Errorf("nobody asked, and it was found after %s", took)
		}
	})
}

// An operation about which get_operation hangs holds up the first cycle that asks, and no other.
func TestGetOperationThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLittle()
		l.run("1-1", "a:20001")
		h := &mute{source: l.source(), operation: "1-1"}
		d, err := New(Config{Source: h})
		if err != nil {
			t.Fatal(err)
		}
		cycles(t, d, 1, 0)
		for i := range 12 {
			id := fmt.Sprintf("%d-2", i+2)
			l.run(id, fmt.Sprintf("%c:%d", 'b'+rune(i), 20002+i))
			ended := make(chan struct{})
			go func() { defer close(ended); cycles(t, d, 1, 0) }()
			synctest.Wait() // no time passes
			if got := addrs(d, id); got == "none" || got == "" {
				t.Errorf("cycle %d: another's new operation has endpoints %q while it hangs", i, got)
			}
			<-ended
			time.Sleep(10 * time.Second)
		}
		h.operation = ""
		cycles(t, d, 8, 10*time.Second)
		if addrs(d, "1-1") != "node-1:20001 " {
			t.Error("it is not there when it is answered again")
		}
	})
}

// The service of somebody who never answers about its jobs is held, and let go when it has been held for too long.
func TestGetOperationThatHangsForAnAbsentOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLittle()
		l.run("1-1", "a:20001")
		h := &mute{source: l.source()}
		d, err := New(Config{Source: h, StaleLimit: 5 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		cycles(t, d, 1, 0)
		l.set(func(l *little) { delete(l.ops, "1-1") })
		h.operation = "1-1"
		cycles(t, d, 20, 10*time.Second)
		if addrs(d, "1-1") == "none" {
			t.Error("gone although nobody said so")
		}
		cycles(t, d, 30, 10*time.Second)
		if got := addrs(d, "1-1"); got != "none" {
			t.Errorf("held for ever: %q", got)
		}
	})
}
