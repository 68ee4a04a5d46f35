package proxy

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"

	"taskproxy/discovery"
	"taskproxy/ytclient"
)

// DebugConfig is what the debug handler shows.
type DebugConfig struct {
	// Proxy whose services are told; required.
	Proxy *Proxy
	// Problems are those of the last discovery cycle; the slice is only read. nil: there are none.
	Problems func() []discovery.Problem
	// Hosts are further host names that the listener is reached by, as in AdminConfig.
	Hosts []string
}

// Debug is the handler of the debug listener: /routes, which tells every service with its endpoints, and every problem, as
// JSON; and /debug/pprof/. It tells names, addresses and logins, and no secrets: it is for those who run the proxy. What
// job authors wrote is in JSON strings. A request for a host name that nobody configured gets 421, one that a page made a browser send 403. Safe for concurrent use.
type Debug struct {
	cfg     DebugConfig
	handler http.Handler

	mu    sync.Mutex
	since map[discovery.Problem]time.Time
}

// NewDebug returns the handler. It starts nothing.
func NewDebug(cfg DebugConfig) *Debug {
	if cfg.Problems == nil {
		cfg.Problems = func() []discovery.Problem { return nil }
	}
	d := &Debug{cfg: cfg, since: make(map[discovery.Problem]time.Time)}
	r := chi.NewRouter()
	r.Use(checkHost(cfg.Hosts), refusePages)
	r.Get("/routes", d.routes)
	r.Head("/routes", d.routes)
	// Package pprof puts itself on http.DefaultServeMux too, which no server here serves.
	r.Get("/debug/pprof/*", pprof.Index)
	r.Get("/debug/pprof/cmdline", pprof.Cmdline)
	r.Get("/debug/pprof/profile", pprof.Profile)
	r.Get("/debug/pprof/trace", pprof.Trace)
	r.HandleFunc("/debug/pprof/symbol", pprof.Symbol) // tools post to it
	d.handler = r
	return d
}

// ServeHTTP answers one request.
func (d *Debug) ServeHTTP(w http.ResponseWriter, r *http.Request) { d.handler.ServeHTTP(w, r) }

// refusePages answers 403 to what a page makes a browser ask for. An admin's browser reaches loopback too, also for pages that
// the admin merely looks at; what they ask for costs us something (a profile) even if they cannot read the answer.
func refusePages(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, page := r.Header["Origin"]
		for _, site := range r.Header["Sec-Fetch-Site"] {
			page = page || site != "none" && site != "same-origin"
		}
		if page {
			say(http.StatusForbidden, "not for pages in a browser")(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Run notes the problems every period, so that they have an age when somebody asks; until ctx ends, then it returns nil.
func (d *Debug) Run(ctx context.Context, period time.Duration) error {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		d.problems()
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

type routes struct {
	Services []route   `json:"services"`
	Problems []problem `json:"problems"`
}

type route struct {
	ID          string                `json:"id"`
	LongID      string                `json:"long_id"`
	Domain      string                `json:"domain"`
	AliasDomain string                `json:"alias_domain,omitempty"`
	OperationID string                `json:"operation_id"`
	User        string                `json:"user"`
	Task        string                `json:"task"`
	Service     string                `json:"service"`
	Protocol    discovery.Protocol    `json:"protocol"`
	Permissions []ytclient.Permission `json:"permissions"`
	Endpoints   []endpoint            `json:"endpoints"`

	// As the annotation has them.
	RouteTimeout float64  `json:"route_timeout_seconds,omitempty"`
	IdleTimeout  *float64 `json:"stream_idle_timeout_seconds,omitempty"` // nil: as the proxy has it for all
	Affinity     string   `json:"affinity,omitempty"`
}

type endpoint struct {
	JobID   string        `json:"job_id"`
	Address string        `json:"address"`
	State   endpointState `json:"state"`
}

type problem struct {
	Kind        discovery.ProblemKind `json:"kind"`
	OperationID string                `json:"operation_id,omitempty"`
	Task        string                `json:"task,omitempty"`
	Service     string                `json:"service,omitempty"`
	Reason      string                `json:"reason"`
	Since       time.Time             `json:"since"` // when this process saw it first
	AgeSeconds  int64                 `json:"age_seconds"`
}

func (d *Debug) routes(w http.ResponseWriter, _ *http.Request) {
	answer := routes{Services: []route{}, Problems: d.problems()}
	p := d.cfg.Proxy
	for _, s := range p.cfg.Table.Load().Services() {
		one := route{
			ID: s.ID, LongID: s.LongID, Domain: discovery.Domain(s.ID, p.cfg.Bases.Primary()), OperationID: s.OperationID,
			User: s.User, Task: s.Task, Service: s.Name, Protocol: s.Protocol, Permissions: s.Permissions, Endpoints: []endpoint{},
		}
		if s.AliasLabel != "" {
			one.AliasDomain = discovery.Domain(s.AliasLabel, p.cfg.Bases.Primary())
		}
		one.RouteTimeout = s.RouteTimeout.Seconds()
		if s.IdleTimeout != 0 {
			one.IdleTimeout = new(max(s.IdleTimeout, 0).Seconds())
		}
		if s.Affinity {
			one.Affinity = "cookie"
		}
		for _, e := range s.Endpoints {
			one.Endpoints = append(one.Endpoints, endpoint{JobID: e.JobID, Address: e.Addr, State: p.balancer.states.of(s).aside.look(e)})
		}
		answer.Services = append(answer.Services, one)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_ = json.NewEncoder(w).Encode(answer) // whoever asked may have left
}

// problems are those of now, each with the time since when it has been there. One that went and came again is a new one.
func (d *Debug) problems() []problem {
	found := d.cfg.Problems()
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	since := make(map[discovery.Problem]time.Time, len(found))
	told := make([]problem, 0, len(found))
	for _, f := range found {
		first, ok := d.since[f]
		if !ok {
			first = now
		}
		since[f] = first
		told = append(told, problem{
			Kind: f.Kind, OperationID: f.OperationID, Task: f.Task, Service: f.Service, Reason: f.Reason,
			Since: first.UTC(), AgeSeconds: int64(now.Sub(first).Seconds()),
		})
	}
	d.since = since
	return told
}

// endpointState is what the balancer thinks of an endpoint, for people.
type endpointState string

const (
	stateUsable   endpointState = "usable"
	stateSetAside endpointState = "set aside" // it did not take a connection; it gets requests when there is no other
	stateDead     endpointState = "dead"      // it did not take one, and nobody has vouched for it since; it gets none at all
)

// look is what a request would find out about an endpoint, without being one: nobody's turn changes.
func (a *setAside) look(e discovery.Endpoint) endpointState {
	if a.size.Load() == 0 {
		return stateUsable
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p, ok := a.m[place(e)]
	switch {
	case !ok:
		return stateUsable
	case a.strict && p.vouched == e.Vouched:
		return stateDead
	case time.Now().Before(p.until):
		return stateSetAside
	}
	return stateUsable // the next request tries it
}
