package proxy

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

type bell struct{ rung atomic.Int32 }

func (b *bell) ring() { b.rung.Add(1) }

// An alarm that was dropped in time rings for its next owner only, and one that has rung is nobody's any more.
func TestAlarmsAreLentOneAfterTheOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var as alarms
		var first, second, third bell
		for range 100 { // a pool forgets some
			as.drop(as.set(time.Second, &first))
			a := as.set(time.Minute, &second)
			time.Sleep(2 * time.Second)
			as.drop(a)
		}
		if first.rung.Load() != 0 || second.rung.Load() != 0 {
			t.Errorf("dropped alarms rang: %d, %d", first.rung.Load(), second.rung.Load())
		}
		a := as.set(time.Second, &first)
		time.Sleep(time.Second)
		synctest.Wait()
		as.drop(a)
		if first.rung.Load() != 1 {
			t.Errorf("it rang %d times, want once", first.rung.Load())
		}
		for range 100 {
			if b := as.set(time.Hour, &third); b == a {
				t.Error("an alarm that has rung was lent again")
			}
		}
	})
}
