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

	service atomic.Pointer[discovery.Service]            // as it is in the table; nil: it is not there
	pools   atomic.Pointer[map[discovery.Endpoint]*pool] // of its endpoints, by place; never modified
	retired *retired
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

// of is a service's state; that of one which has left the table meanwhile is a new one, for this attempt alone.
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
				st.update(s.dialer, nil)
			}
		case current[is.LongID] == nil:
			edit()
			current[is.LongID] = s.newState()
			fallthrough
		default:
			current[is.LongID].update(s.dialer, is)
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
		if service := st.service.Load(); service != nil && st.aside.size.Load() > 0 {
			n += st.aside.count(service.Endpoints)
		}
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

// update notes what the service is now, nil for gone, and retires the connections to endpoints that it had. Who swaps snapshots
// calls it, one at a time.
func (st *state) update(d *dialer, service *discovery.Service) {
	was, pools := *st.pools.Load(), map[discovery.Endpoint]*pool{}
	if service != nil {
		pools = make(map[discovery.Endpoint]*pool, len(service.Endpoints))
		for _, e := range service.Endpoints {
			p := was[place(e)]
			if p == nil || p.protocol != service.Protocol {
				p = newPool(d, service.Protocol)
			}
			pools[place(e)] = p
		}
	}
	st.pools.Store(&pools)
	st.service.Store(service)
	for e, p := range was {
		if pools[e] != p {
			st.retired.add(p)
		}
	}
}

// pool is the connections to one of the service's endpoints. A request that is older than the table may ask for one that has left, and
// gets connections of its own.
func (st *state) pool(d *dialer, service *discovery.Service, e discovery.Endpoint) *pool {
	if p := (*st.pools.Load())[place(e)]; p != nil && p.protocol == service.Protocol {
		return p
	}
	p := newPool(d, service.Protocol)
	st.retired.add(p)
	return p
}

// has reports whether endpoints has one at a place.
func has(endpoints []discovery.Endpoint, at discovery.Endpoint) bool {
	return slices.ContainsFunc(endpoints, func(e discovery.Endpoint) bool { return place(e) == at })
}

// pool is the connections to one endpoint of one service: to an address as long as it is a certain job's. Ports are given to
// other people's jobs, and what is kept of one job's must never carry a request for another.
type pool struct {
	dialer   *dialer
	protocol discovery.Protocol
	made     atomic.Pointer[http.Transport] // nil: nobody has asked for the endpoint yet; most are never asked for
	open     atomic.Int64                   // connections, also those that are being made
	spoke    atomic.Uint32                  // what the job spoke first on the last one
	idle     idleConns
}

func newPool(d *dialer, protocol discovery.Protocol) *pool {
	return &pool{dialer: d, protocol: protocol}
}

// RoundTrip is for one attempt of a request.
func (p *pool) RoundTrip(r *http.Request) (*http.Response, error) {
	t := p.made.Load()
	if t == nil {
		p.made.CompareAndSwap(nil, newTransport(p)) // another request may have been faster
		t = p.made.Load()
	}
	return t.RoundTrip(r)
}

// CloseIdleConnections closes those that carry no request.
func (p *pool) CloseIdleConnections() {
	p.idle.close()
	if t := p.made.Load(); t != nil {
		t.CloseIdleConnections()
	}
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
