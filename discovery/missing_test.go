package discovery

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskproxy/ytclient"
)

// A process that starts while the scheduler revives an operation takes neither its row nor its ID away; when the cluster says
// that it has ended, both go.
func TestRestartWhileTheSchedulerRevives(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := renamed()
		all, info := s.listOperations, s.getOperation
		var state atomic.Value // what get_operation says; empty: it fails
		state.Store("reviving")
		s.listOperations = func() (ytclient.Listing, error) {
			l, err := all()
			l.Operations = slices.DeleteFunc(l.Operations, func(o ytclient.Operation) bool { return o.ID == victimID })
			return l, err
		}
		s.getOperation = func(id string) (ytclient.OperationInfo, error) {
			i, err := info(id)
			if id == victimID {
				if i.State = state.Load().(string); i.State == "" {
					return i, ytclient.ErrUnavailable
				}
			}
			return i, err
		}
		row := ytclient.ServiceRow{Domain: stolenID + ".proxy.test", OperationID: victimID, TaskName: victim.Task, Service: victim.Name, Protocol: "http"}
		table := &slowToRead{store: &store{exists: true, rows: []ytclient.ServiceRow{row}}}
		d, err := New(Config{Source: s, Store: table, Bases: testBases(t)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- d.Run(ctx) }()
		defer func() {
			stop()
			if err := <-ended; err != nil {
				t.Errorf("Run = %v", err)
			}
		}()
		kept := func() bool {
			synctest.Wait()
			table.mu.Lock()
			defer table.mu.Unlock()
			return slices.Contains(table.rows, row)
		}
		time.Sleep(2 * time.Minute)
		if !kept() {
			t.Error("the row of an operation that is being revived is gone")
		}
		state.Store("")
		time.Sleep(2 * time.Minute)
		if !kept() {
			t.Error("the row of an operation that the cluster does not tell of is gone")
		}
		state.Store("completed")
		time.Sleep(time.Minute)
		if kept() {
			t.Error("the row of an operation that has ended is still there")
		}
	})
}
