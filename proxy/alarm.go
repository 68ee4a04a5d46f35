package proxy

import (
	"sync"
	"time"
)

// alarms lends timers. Nearly every request needs one or two that never ring. Safe for concurrent use.
type alarms struct{ pool sync.Pool }

// alarm is a timer that is lent to one after the other.
type alarm struct {
	timer *time.Timer
	to    ringer // nil while nobody has it
}

// ringer is whom an alarm calls, in a goroutine of its own.
type ringer interface{ ring() }

// set makes to.ring be called after d.
func (as *alarms) set(d time.Duration, to ringer) *alarm {
	if a, ok := as.pool.Get().(*alarm); ok {
		a.to = to
		a.timer.Reset(d)
		return a
	}
	a := &alarm{to: to}
	a.timer = time.AfterFunc(d, func() { a.to.ring() })
	return a
}

// drop ends an alarm; it may be ringing. Only one that is still to ring is lent again: of any other somebody may be about to
// ask to whom it rings. It must not be used afterwards.
func (as *alarms) drop(a *alarm) {
	if a.timer.Stop() {
		a.to = nil
		as.pool.Put(a)
	}
}
