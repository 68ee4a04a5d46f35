package auth

import (
	"context"
	"sync"
)

const (
	// maxRefreshes bounds the calls in the background of all caches together. A use that finds no place asks at the next.
	maxRefreshes = 12
	// maxRefreshesEach is how many of them may be about one login, so that nobody's thousand tokens or operations keep
	// others' answers from being renewed.
	maxRefreshesEach = maxRefreshes / 3
)

// crew owns the goroutines that ask the cluster. They run on its context rather than on a request's: the request that
// was first may be cancelled while others wait for the same answer.
type crew struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu        sync.Mutex // closed and the group's counter must change together
	closed    bool
	group     sync.WaitGroup
	refreshes int            // calls in the background
	byLogin   map[string]int // the same by login, without zeros
}

func newCrew() *crew {
	ctx, cancel := context.WithCancel(context.Background())
	return &crew{ctx: ctx, cancel: cancel, byLogin: map[string]int{}}
}

// run starts f, unless the crew is closed.
func (c *crew) run(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.group.Go(f)
	return true
}

// reserve takes a place for a call in the background, if there is one; release gives it back.
func (c *crew) reserve(login string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refreshes >= maxRefreshes || c.byLogin[login] >= maxRefreshesEach {
		return false
	}
	c.refreshes++
	c.byLogin[login]++
	return true
}

func (c *crew) release(login string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refreshes--
	if c.byLogin[login]--; c.byLogin[login] == 0 {
		delete(c.byLogin, login)
	}
}

// close cancels what is under way and waits for its end.
func (c *crew) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.group.Wait()
}
