package proxy

import (
	"sync/atomic"

	"taskproxy/discovery"
)

// Table is the routing table: it holds the snapshot in use. Discovery stores, every request loads once. Safe for concurrent
// use; make it with NewTable.
type Table struct {
	current atomic.Pointer[discovery.Snapshot]
}

// NewTable returns a table that holds an empty snapshot.
func NewTable() *Table {
	t := new(Table)
	t.Store(nil)
	return t
}

// Load is the snapshot in use, never nil.
func (t *Table) Load() *discovery.Snapshot { return t.current.Load() }

// Store makes s the snapshot for all requests that come from now on. A nil s stands for an empty one.
func (t *Table) Store(s *discovery.Snapshot) {
	if s == nil {
		s = new(discovery.Snapshot)
	}
	t.current.Store(s)
}
