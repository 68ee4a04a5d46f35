package proxy

import (
	"sync"
	"sync/atomic"

	"taskproxy/discovery"
)

// Table is the routing table: it holds the snapshot in use. Discovery stores, every request loads once. Safe for concurrent
// use; make it with NewTable.
type Table struct {
	current atomic.Pointer[discovery.Snapshot]

	mu        sync.Mutex // of those who store
	followers []func(prev, next *discovery.Snapshot)
}

// NewTable returns a table that holds an empty snapshot.
func NewTable() *Table {
	t := new(Table)
	t.Store(nil)
	return t
}

// Load is the snapshot in use, never nil.
func (t *Table) Load() *discovery.Snapshot { return t.current.Load() }

// Store makes s the snapshot for all requests that come from now on, and has the idle connections to endpoints closed that are
// not in it. A nil s stands for an empty one.
func (t *Table) Store(s *discovery.Snapshot) {
	if s == nil {
		s = new(discovery.Snapshot)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.followers {
		f(t.current.Load(), s)
	}
	t.current.Store(s)
}

// follow has f called before each swap, and now for the snapshot in use.
func (t *Table) follow(f func(prev, next *discovery.Snapshot)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(nil, t.current.Load())
	t.followers = append(t.followers, f)
}
