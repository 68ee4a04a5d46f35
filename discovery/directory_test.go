package discovery

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"taskproxy/ytclient"
)

// hangs makes every call hang that is about discovery directories of mallory's, and gives her so many operations with such.
func (w *town) hangs(operations int) {
	src := w.d.source.(*source)
	list := src.listChildren
	src.listChildren = func(paths []string) ([]ytclient.ChildrenAnswer, error) {
		for _, path := range paths {
			if strings.HasPrefix(path, "//home/mallory") {
				time.Sleep(w.d.callTimeout)
				return nil, fmt.Errorf("%w: %w", ytclient.ErrUnavailable, context.DeadlineExceeded)
			}
		}
		return list(paths)
	}
	for i := range operations {
		id := fmt.Sprintf("mallory-%d", i)
		w.operation(id, map[string]any{"is_spark": true, "description": map[string]any{
			"Spark over YT": map[string]any{"discovery_path": fmt.Sprintf("//home/mallory/%d", i)},
		}}, "master").User = "mallory"
		w.job(id, "m"+id, "master", "node-3.local:9012")
	}
}

// Directories are listed in one call, so one that hangs takes the others along: once, and then they are read without it.
func TestDirectoryThatHangs(t *testing.T) {
	played(t, func(t *testing.T) {
		w := spark(t)
		w.register("one")
		w.hangs(4)
		clusterOf := func(what, ui, rest, history string) {
			t.Helper()
			for _, s := range [][3]string{{"master", "ui", ui}, {"master", "rest", rest}, {"history", "ui", history}} {
				if got := w.endpoints("one", s[0], s[1]); got != s[2] {
					t.Errorf("%s: %s/%s has %q, want %q; problems %v", what, s[0], s[1], got, s[2], w.d.Problems())
				}
			}
		}
		w.cycle() // the one that it may cost
		time.Sleep(w.d.period)
		w.cycle()
		clusterOf("the second cycle", masterUI, masterREST, historyUI)

		// Nor later: a master that is started anew is found in the cycle in which its first directories can be read.
		for i := range 5 {
			time.Sleep(2 * time.Minute)
			old, id := []string{"a", "b"}[i%2], []string{"b", "a"}[i%2]
			w.endJob(old)
			w.job("one", id, "master", "node-1.local:9012", 20001, 20003, 20004)
			w.register("one")
			w.cycle()
			time.Sleep(w.d.period)
			w.cycle()
			clusterOf(fmt.Sprintf("master %d", i), id+"=10.0.0.1:20003", id+"=10.0.0.1:20004", historyUI)
		}
	})
}
