package discovery

import (
	"math"
	"slices"
	"strings"
	"testing"

	"go.ytsaurus.tech/yt/go/yson"

	"taskproxy/ytclient"
)

func TestAnnotationOfTimeoutsAndAffinity(t *testing.T) {
	t.Parallel()
	type m = map[string]any
	const (
		route = "route_timeout_seconds"
		idle  = "stream_idle_timeout_seconds"
		right = "; it must be a number of seconds from 0.001 to 31536000, or 0 for no limit; it is ignored"
	)
	tasks := []ytclient.Task{{Name: "server", JobCount: 1, PortCount: 1}}
	// f says all of the operation and own of its one service.
	f := func(all, own m, want ...string) {
		t.Helper()
		annotation, service := m{"enabled": true}, m{"port_index": int64(0)}
		for k, v := range all {
			annotation[k] = v
		}
		for k, v := range own {
			service[k] = v
		}
		annotation["tasks_info"] = m{"server": m{"ui": service}}
		if got := publish(m{"task_proxy": annotation}, tasks); !slices.Equal(got, want) {
			t.Errorf("%v of all and %v of its own: got:\n%s\nwant:\n%s", all, own, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	const plain = "server/ui http 0"
	of := func(text string) string { return `! bad_annotation task "server" service "ui": ` + text }

	// Every number that YSON has.
	f(nil, m{route: int64(30)}, plain+" route=30s")
	f(nil, m{route: uint64(30)}, plain+" route=30s")
	f(nil, m{route: 30.0}, plain+" route=30s")
	f(nil, m{route: 0.25}, plain+" route=250ms")
	f(nil, m{route: &yson.ValueWithAttrs{Value: int64(30), Attrs: m{"a": 1}}}, plain+" route=30s")
	f(nil, m{idle: int64(600)}, plain+" idle=10m0s")
	f(nil, m{route: 0.001, idle: int64(31536000)}, plain+" route=1ms idle=8760h0m0s")
	// Zero is no limit; nothing at all is the proxy's own.
	f(nil, m{route: int64(0)}, plain)
	f(nil, m{idle: int64(0)}, plain+" idle=-1ns")
	f(nil, m{idle: math.Copysign(0, -1)}, plain+" idle=-1ns")
	f(nil, m{route: nil, idle: nil, "affinity": nil}, plain)
	// The Envoy-based proxy has them for a whole operation; what a service says itself counts instead.
	f(m{route: int64(30), idle: int64(60)}, nil, plain+" route=30s idle=1m0s")
	f(m{route: int64(30), idle: int64(60)}, m{route: int64(0), idle: int64(0)}, plain+" idle=-1ns")
	f(m{route: int64(30), idle: int64(0)}, m{idle: int64(5)}, plain+" route=30s idle=5s")

	f(nil, m{"affinity": "cookie"}, plain+" affinity")
	f(m{"affinity": "cookie"}, nil, plain+" affinity")
	f(m{"affinity": "cookie"}, m{"affinity": "none"}, plain)

	// What is wrong is told, and changes nothing else.
	for _, c := range []struct {
		value any
		is    string
	}{
		{int64(-1), "the integer -1"},
		{int64(math.MinInt64), "the integer -9223372036854775808"},
		{uint64(math.MaxUint64), "the integer 18446744073709551615"},
		{int64(31536001), "the integer 31536001"},
		{-0.5, "the number -0.5"},
		{1e-9, "the number 1e-09"},
		{math.NaN(), "the number NaN"},
		{math.Inf(1), "the number +Inf"},
		{math.Inf(-1), "the number -Inf"},
		{math.MaxFloat64, "the number 1.7976931348623157e+308"},
		{"30", `the string "30"`},
		{true, "the boolean true"},
		{m{}, "a map"},
		{[]any{}, "a list"},
	} {
		for _, key := range []string{route, idle} {
			f(nil, m{key: c.value}, plain, of(key+" is "+c.is+right))
			f(m{key: c.value}, nil, plain, "! bad_annotation: task_proxy/"+key+" is "+c.is+right)
		}
		f(m{route: int64(30)}, m{route: c.value, "permission": "manage"}, plain+" manage route=30s", of(route+" is "+c.is+right))
	}
	f(nil, m{"affinity": "cookies"}, plain, of(`affinity is the string "cookies"; it must be cookie or none; it is ignored`))
	f(nil, m{"affinity": true}, plain, of(`affinity is the boolean true; it must be cookie or none; it is ignored`))
	f(m{"affinity": "cookie"}, m{"affinity": m{}}, plain+" affinity", of(`affinity is a map; it must be cookie or none; it is ignored`))
	f(m{"affinity": []any{}}, nil, plain, `! bad_annotation: task_proxy/affinity is a list; it must be cookie or none; it is ignored`)
}

func TestHandles(t *testing.T) {
	t.Parallel()
	sticky := func(name string, addrs ...string) Service {
		s := svc("1-0-0-0", "t", name, addrs...)
		s.Affinity = true
		return s
	}
	first := mustSnapshot(t, nil, sticky("a", "h:1", "h:2"), sticky("b", "h:1"), svc("1-0-0-0", "t", "c", "h:1"))
	a, b, c := first.Services()[0], first.Services()[1], first.Services()[2]
	for i, e := range a.Endpoints {
		if got, ok := a.ByHandle(a.Handle(e)); !ok || got != i {
			t.Errorf("the handle of endpoint %d leads to %d, %t", i, got, ok)
		}
	}
	if len(a.Handle(a.Endpoints[0])) != 20 || a.Handle(a.Endpoints[0]) == a.Handle(a.Endpoints[1]) {
		t.Errorf("handles %q and %q", a.Handle(a.Endpoints[0]), a.Handle(a.Endpoints[1]))
	}
	if a.Handle(a.Endpoints[0]) == b.Handle(b.Endpoints[0]) {
		t.Error("two services of one job have one handle")
	}
	for _, s := range []*Service{b, c} {
		if i, ok := s.ByHandle(a.Handle(a.Endpoints[0])); ok {
			t.Errorf("another service's handle leads to endpoint %d", i)
		}
	}
	if i, ok := c.ByHandle(c.Handle(c.Endpoints[0])); ok {
		t.Errorf("a service without affinity has a handle for endpoint %d", i)
	}

	// Another process, in which the jobs are told in another order and have other addresses.
	again := sticky("a", "x:1", "x:2")
	again.Endpoints[0], again.Endpoints[1] = again.Endpoints[1], again.Endpoints[0]
	other := mustSnapshot(t, nil, again).Services()[0]
	if i, ok := other.ByHandle(a.Handle(a.Endpoints[0])); !ok || other.Endpoints[i].JobID != a.Endpoints[0].JobID {
		t.Errorf("another replica has endpoint %d, %t", i, ok)
	}
	// The job goes, and its handle with it.
	gone := sticky("a", "h:1")
	gone.Endpoints[0].JobID = "1"
	second := mustSnapshot(t, first, gone, sticky("b", "h:1"), svc("1-0-0-0", "t", "c", "h:1")).Services()[0]
	if i, ok := second.ByHandle(a.Handle(a.Endpoints[0])); ok {
		t.Errorf("a job that is gone has endpoint %d", i)
	}
	if i, ok := second.ByHandle(a.Handle(a.Endpoints[1])); !ok || i != 0 {
		t.Errorf("the job that is left has endpoint %d, %t", i, ok)
	}
}
