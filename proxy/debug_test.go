package proxy

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskproxy/discovery"
)

// debugServer is the debug listener of a world's proxy; get asks it by a host name.
func debugServer(t *testing.T, w *world, problems func() []discovery.Problem) (get func(host, path string) (status int, text string)) {
	t.Helper()
	server := httptest.NewServer(NewDebug(DebugConfig{Proxy: w.proxy, Problems: problems, Hosts: []string{"debug.example.com"}}))
	t.Cleanup(server.Close)
	return func(host, path string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		res, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
}

func TestDebugRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alive, dead := serve(t, echoJob("a")), deadAddr(t)
	odd := "<script>\x1b[31m\xff\"\n"
	s := w.publish(discovery.Service{Task: odd, Name: "ui"}, alive, dead)
	w.publish(discovery.Service{Name: "later", Protocol: discovery.GRPC, RouteTimeout: 2500 * time.Millisecond, IdleTimeout: -1, Affinity: true})
	found := []discovery.Problem{{Kind: discovery.BadAnnotation, OperationID: s.OperationID, Task: odd, Reason: "because"}}
	get := debugServer(t, w, func() []discovery.Problem { return found })

	states := func() (of map[string]string, text string) {
		t.Helper()
		status, text := get("localhost", "/routes")
		var answer routes
		if err := json.Unmarshal([]byte(text), &answer); status != 200 || err != nil {
			t.Fatalf("%d, %v: %s", status, err, text)
		}
		if len(answer.Services) != 2 || len(answer.Problems) != 1 {
			t.Fatalf("%d services, %d problems", len(answer.Services), len(answer.Problems))
		}
		of = make(map[string]string)
		for _, e := range answer.Services[0].Endpoints {
			of[e.Address] = string(e.State)
		}
		return of, text
	}
	if of, _ := states(); of[alive] != "usable" || of[dead] != "usable" {
		t.Errorf("before any request: %v", of)
	}
	w.get(host(s), "/")
	w.get(host(s), "/") // one of the two met the dead one
	of, text := states()
	if of[alive] != "usable" || of[dead] == "usable" {
		t.Errorf("after a request: %v", of)
	}
	for _, want := range []string{
		`"id":"` + s.ID + `","long_id":"` + s.LongID + `","domain":"` + host(s) + `","operation_id":"` + s.OperationID + `","user":"alice"`,
		`"task":"\u003cscript\u003e\u001b[31m\ufffd\"\n","service":"ui","protocol":"http","permissions":["read"]`,
		`{"job_id":"job-0","address":"` + alive + `","state":"usable"}`,
		`"endpoints":[]` + `,"route_timeout_seconds":2.5,"stream_idle_timeout_seconds":0,"affinity":"cookie"}`,
		`"service":"later","protocol":"grpc","permissions":["read"],"endpoints":[]`,
		`"state":"` + of[dead] + `"}]},{`, // a service whose annotation says nothing of these
		`{"kind":"bad_annotation","operation_id":"` + s.OperationID + `","task":"\u003cscript\u003e\u001b[31m\ufffd\"\n","reason":"because","since":"`,
		`"age_seconds":0`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it lacks %s:\n%s", want, text)
		}
	}
	if strings.ContainsAny(strings.TrimSuffix(text, "\n"), "<>\x1b\n") {
		t.Errorf("somebody else's words are not all in JSON strings: %q", text)
	}
}

// What an endpoint is told to be is what a request would find, and being asked about costs it nothing.
func TestLookAtSetAside(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newSetAside()
		e := discovery.Endpoint{JobID: "1", Addr: "127.0.0.1:1"}
		want := func(state endpointState) {
			t.Helper()
			if got := a.look(e); got != state {
				t.Errorf("got %q, want %q", got, state)
			}
		}
		want(stateUsable)
		a.failed(e)
		want(stateSetAside)
		time.Sleep(firstAside)
		want(stateUsable)
		want(stateUsable)
		if a.standing(e) != probe || a.standing(e) != aside {
			t.Error("looking took the turn of the request that tries it again")
		}
		want(stateSetAside) // somebody tries it
		a.succeeded(e)
		want(stateUsable)

		a.strict = true
		a.failed(e)
		want(stateDead)
		time.Sleep(longAside)
		want(stateDead)
		e.Vouched++
		want(stateUsable)
		a.failed(e)
		e.Vouched++
		want(stateSetAside)
	})
}

// A problem's age counts from when it was first there, also when nobody looks; one that comes back is new.
func TestDebugProblemsAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		old, young := discovery.Problem{Kind: discovery.Collision, Reason: "old"}, discovery.Problem{Kind: discovery.BadName, Reason: "young"}
		var found atomic.Pointer[[]discovery.Problem]
		found.Store(&[]discovery.Problem{old})
		d := NewDebug(DebugConfig{Problems: func() []discovery.Problem { return *found.Load() }})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = d.Run(ctx, 10*time.Second) }()
		ages := func(want ...int64) {
			t.Helper()
			got := d.problems()
			for i := range want {
				if len(got) != len(want) || got[i].AgeSeconds != want[i] {
					t.Errorf("got %+v, want ages %d", got, want)
					return
				}
			}
		}
		synctest.Wait()
		found.Store(&[]discovery.Problem{young, old})
		time.Sleep(61 * time.Second)
		synctest.Wait()
		ages(51, 61)
		found.Store(&[]discovery.Problem{young})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		ages(61)
		found.Store(&[]discovery.Problem{young, old})
		ages(61, 0)
	})
}

func TestDebugListener(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	get := debugServer(t, w, nil)
	for _, c := range []struct {
		host, path string
		status     int
		text       string
	}{
		{"127.0.0.1:9103", "/routes", 200, `{"services":[],"problems":[]}`},
		{"localhost", "/debug/pprof/", 200, "goroutine"},
		{"debug.example.com:1", "/debug/pprof/goroutine?debug=1", 200, "goroutine profile: total"},
		{"localhost", "/debug/pprof/cmdline", 200, "proxy.test"},
		{"evil.test", "/routes", 421, ""},
		{"evil.test", "/debug/pprof/", 421, ""},
		{"evil.test", "/debug/pprof/cmdline", 421, ""},
		{"localhost", "/", 404, ""},
		{"localhost", "/metrics", 404, ""},
	} {
		if status, text := get(c.host, c.path); status != c.status || !strings.Contains(text, c.text) {
			t.Errorf("%s%s: got %d %.200s, want %d", c.host, c.path, status, text, c.status)
		}
	}
	// Package pprof puts itself on the default mux; no other listener shows it.
	w.get("00000000."+base, "/debug/pprof/cmdline").check(t, 404, "no_such_service")
}

// A page that an admin looks at has the admin's browser ask loopback; what it asks for is not done.
func TestDebugListenerRefusesPages(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(NewDebug(DebugConfig{Proxy: newWorld(t).proxy}))
	t.Cleanup(server.Close)
	for _, c := range []struct {
		header string
		status int
	}{
		{"", 200},
		{"Sec-Fetch-Site: none", 200}, // typed into the address bar
		{"Sec-Fetch-Site: same-origin", 200},
		{"Sec-Fetch-Site: same-site", 403},
		{"Sec-Fetch-Site: cross-site", 403},
		{"Sec-Fetch-Site: whatever", 403},
		{"Origin: https://evil.test", 403},
		{"Origin: null", 403},
	} {
		for _, path := range []string{"/routes", "/debug/pprof/cmdline"} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if name, value, ok := strings.Cut(c.header, ": "); ok {
				r.Header.Set(name, value)
			}
			res, err := server.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != c.status {
				t.Errorf("%s with %q: got %d, want %d", path, c.header, res.StatusCode, c.status)
			}
		}
	}
}
