package discovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"taskproxy/ytclient"
)

// silenceLast is the longest time for which somebody who did not answer in time is left alone.
const silenceLast = time.Minute

// errSilent is the answer of somebody who is left alone.
var errSilent = fmt.Errorf("%w: it did not answer in time a moment ago", ytclient.ErrUnavailable)

// silences are those about whom a call has run out of time: exec nodes by their addresses, operations by their ids. Each such
// call holds up the cycle that makes it, so they are left alone for as long as that, and each time twice as long. Safe for
// concurrent use.
type silences struct {
	first time.Duration

	mu sync.Mutex
	of map[string]silence
}

type silence struct {
	until time.Time
	pause time.Duration
}

func newSilences(first time.Duration) *silences {
	return &silences{first: first, of: make(map[string]silence)}
}

// note takes over how a call about somebody ended.
func (s *silences) note(who string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !errors.Is(err, context.DeadlineExceeded) {
		delete(s.of, who)
		return
	}
	pause := max(s.first, min(2*s.of[who].pause, silenceLast))
	s.of[who] = silence{until: time.Now().Add(pause), pause: pause}
}

// has reports whether somebody is left alone.
func (s *silences) has(who string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return now.Before(s.of[who].until)
}

// sweep forgets those whom nobody has asked for in a while.
func (s *silences) sweep(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.of, func(_ string, a silence) bool { return now.Sub(a.until) > 2*silenceLast })
}
