package proxy

import (
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"taskproxy/discovery"
)

// states are what the proxy knows of services beyond snapshots, which come and go: the connections to their endpoints, and which of
// these did not take any. A request finds its service's by one look into a map that is never modified; who swaps snapshots makes
// the next map.
type states struct {
	dialer  *dialer
	strict  bool // setAside.strict
	retired retired
	current atomic.Pointer[map[string]*state] // by LongID
}

// state is one service's.
type state struct {
	aside *setAside

	mu        sync.Mutex // of those who make or retire a pool
	protocol  discovery.Protocol
	endpoints []discovery.Endpoint                         // that are in the table
	pools     atomic.Pointer[map[discovery.Endpoint]*pool] // by place, never modified
	retired   *retired
}

func newStates(d *dialer, strict bool) *states {
	s := &states{dialer: d, strict: strict}
	s.current.Store(&map[string]*state{})
	return s
}

func (s *states) newState() *state {
	st := &state{aside: newSetAside(), retired: &s.retired}
	st.aside.strict = s.strict
	st.pools.Store(&map[discovery.Endpoint]*pool{})
	return st
}

// of is a service's state; that of one which has left the table meanwhile is a new one, for this request alone.
func (s *states) of(service *discovery.Service) *state {
	if st := (*s.current.Load())[service.LongID]; st != nil {
		return st
	}
	return s.newState()
}

// follow takes over what changes when next comes after prev. It runs before the swap, so that who sees a new endpoint finds a
// place for its connections. A request that has loaded prev gets none at an endpoint that goes: its connection is its own.
func (s *states) follow(prev, next *discovery.Snapshot) {
	current, changed := *s.current.Load(), false
	edit := func() {
		if !changed {
			current, changed = maps.Clone(current), true
		}
	}
	next.Changes(prev, func(was, is *discovery.Service) {
		switch {
		case is == nil:
			if st := current[was.LongID]; st != nil {
				st.update("", nil)
			}
		case current[is.LongID] == nil:
			edit()
			current[is.LongID] = s.newState()
			fallthrough
		default:
			current[is.LongID].update(is.Protocol, is.Endpoints)
		}
	})
	for id, st := range current {
		// A service may come back with the endpoint that failed: what is known of that stays for its time.
		if next.Lookup(id) == nil && st.aside.forgotten() {
			edit()
			delete(current, id)
		}
	}
	if changed {
		s.current.Store(&current)
	}
}

// aside is how many endpoints of the table get no requests as long as there is another.
func (s *states) aside() (n int) {
	for _, st := range *s.current.Load() {
		if st.aside.size.Load() == 0 {
			continue
		}
		st.mu.Lock()
		endpoints := st.endpoints
		st.mu.Unlock()
		n += st.aside.count(endpoints)
	}
	return n
}

func (s *states) closeIdle() {
	for _, st := range *s.current.Load() {
		for _, p := range *st.pools.Load() {
			p.CloseIdleConnections()
		}
	}
	s.retired.sweep()
}

// update notes which endpoints the service has, and retires the connections to those that it had.
func (st *state) update(protocol discovery.Protocol, endpoints []discovery.Endpoint) {
	st.mu.Lock()
	defer st.mu.Unlock()
	switched := protocol != st.protocol
	st.protocol, st.endpoints = protocol, endpoints
	pools := *st.pools.Load()
	kept := make(map[discovery.Endpoint]*pool, len(pools))
	for e, p := range pools {
		if switched || !has(endpoints, e) {
			st.retired.add(p)
		} else {
			kept[e] = p
		}
	}
	if len(kept) < len(pools) {
		st.pools.Store(&kept)
	}
}

// pool is the connections to one of the service's endpoints.
func (st *state) pool(d *dialer, service *discovery.Service, e discovery.Endpoint) *pool {
	e = place(e)
	if p := (*st.pools.Load())[e]; p != nil && p.protocol == service.Protocol {
		return p
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	pools := *st.pools.Load()
	if p := pools[e]; p != nil && p.protocol == service.Protocol {
		return p
	}
	p := newPool(d, service.Protocol)
	if service.Protocol == st.protocol && has(st.endpoints, e) {
		pools = maps.Clone(pools)
		pools[e] = p
		st.pools.Store(&pools)
	} else {
		st.retired.add(p) // the request is older than the table
	}
	return p
}

// has reports whether endpoints has one at a place.
func has(endpoints []discovery.Endpoint, at discovery.Endpoint) bool {
	return slices.ContainsFunc(endpoints, func(e discovery.Endpoint) bool { return place(e) == at })
}

// pool is the connections to one endpoint of one service: to an address as long as it is a certain job's. Ports are given to
// other people's jobs, and what is kept of one job's must never carry a request for another.
type pool struct {
	*http.Transport
	protocol discovery.Protocol
	open     atomic.Int64  // connections, also those that are being made
	spoke    atomic.Uint32 // what the job spoke first on the last one
}

// retired are pools of endpoints that have left the table. No new request comes to them. Idle connections are closed at
// once, the others when they are found idle.
type retired struct {
	mu      sync.Mutex
	pools   map[*pool]struct{}
	ticking bool // a timer will sweep
}

// sweepPeriod is how often connections to endpoints that have vanished are looked at.
const sweepPeriod = time.Second

func (r *retired) add(p *pool) {
	p.CloseIdleConnections()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pools == nil {
		r.pools = make(map[*pool]struct{})
	}
	r.pools[p] = struct{}{}
	if !r.ticking {
		r.ticking = true
		time.AfterFunc(sweepPeriod, r.tick)
	}
}

func (r *retired) tick() {
	r.sweep()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ticking = len(r.pools) > 0; r.ticking {
		time.AfterFunc(sweepPeriod, r.tick)
	}
}

// sweep closes what is idle, and forgets pools that have no connections any more.
func (r *retired) sweep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.pools {
		if p.CloseIdleConnections(); p.open.Load() == 0 {
			delete(r.pools, p)
		}
	}
}
