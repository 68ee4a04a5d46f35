package discovery

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"taskproxy/ytclient"
)

// words prints declarations and problems one a line, as the tables below want them.
func words(services []declaration, problems []Problem) []string {
	var lines []string
	for _, d := range services {
		line := fmt.Sprintf("%s/%s %s %d", d.task, d.name, d.protocol, d.portIndex)
		switch w := d.written; {
		case w.directory != "":
			line = fmt.Sprintf("%s/%s %s %s/%s", d.task, d.name, d.protocol, w.directory, w.entry)
		case !w.isZero():
			line = fmt.Sprintf("%s/%s %s %s", d.task, d.name, d.protocol, w.at)
		}
		if slices.Contains(d.permissions, ytclient.Manage) {
			line += " manage"
		}
		if d.routeTimeout != 0 {
			line += " route=" + d.routeTimeout.String()
		}
		if d.idleTimeout != 0 {
			line += " idle=" + d.idleTimeout.String()
		}
		if d.affinity {
			line += " affinity"
		}
		lines = append(lines, line)
	}
	for _, p := range problems {
		lines = append(lines, "! "+p.String())
	}
	return lines
}

// publish runs an operation's annotations through all that a cycle does with them.
func publish(annotations map[string]any, tasks []ytclient.Task) []string {
	p, problems := publisherOf(newPublishers(SPYTConfig{}, DefaultMaxServicesPerOperation), annotations)
	if p == nil {
		return words(nil, problems)
	}
	services, more := declared(p, annotations, tasks)
	return words(services, append(problems, more...))
}

func TestAnnotation(t *testing.T) {
	t.Parallel()
	two := []ytclient.Task{{Name: "server", JobCount: 2, PortCount: 2}, {Name: "aux", JobCount: 1}}
	type m = map[string]any
	info := func(services m) any { return m{"enabled": true, "tasks_info": m{"server": services}} }
	defaults := []string{"server/port_0 http 0", "server/port_1 http 1"}

	tests := []struct {
		name       string
		annotation any
		tasks      []ytclient.Task // nil: two
		want       []string
	}{
		{name: "minimal", annotation: m{"enabled": true}, want: defaults},
		{name: "enabled as a string", annotation: m{"enabled": "True"}, want: defaults},
		{name: "disabled", annotation: m{"enabled": false}},
		{name: "disabled as a string", annotation: m{"enabled": "false"}},
		{name: "without enabled", annotation: m{"tasks_info": m{}}},
		{name: "null", annotation: nil},
		{name: "no map", annotation: "yes", want: []string{`! bad_annotation: task_proxy is the string "yes"; it must be a map such as {enabled=%true}`}},
		{name: "enabled of another type", annotation: m{"enabled": int64(1)}, want: []string{`! bad_annotation: task_proxy/enabled is the integer 1; it must be %true or %false`}},
		{name: "enabled as another string", annotation: m{"enabled": "yes"}, want: []string{`! bad_annotation: task_proxy/enabled is the string "yes"; it must be %true or %false`}},
		{name: "unknown keys", annotation: m{"enabled": true, "timeout_seconds": int64(5)}, want: defaults},

		{name: "named", annotation: info(m{"ui": m{"protocol": "http", "port_index": int64(1)}, "api": m{"protocol": "grpc", "port_index": uint64(0)}}),
			want: []string{"server/api grpc 0", "server/ui http 1"}},
		{name: "further ports keep their default", annotation: info(m{"ui": m{"protocol": "http", "port_index": 1.0}}),
			want: []string{"server/ui http 1", "server/port_0 http 0"}},
		{name: "websocket is http", annotation: info(m{"ws": m{"protocol": "websocket", "port_index": int64(0)}}),
			want: []string{"server/ws http 0", "server/port_1 http 1"}},
		{name: "http by default", annotation: info(m{"ui": m{"port_index": int64(0)}}), want: []string{"server/ui http 0", "server/port_1 http 1"}},
		{name: "two names for one port", annotation: info(m{"ui": m{"protocol": "http", "port_index": int64(0)}, "api": m{"protocol": "grpc", "port_index": int64(0)}}),
			want: []string{"server/api grpc 0", "server/ui http 0", "server/port_1 http 1"}},
		{name: "tasks_info null", annotation: m{"enabled": true, "tasks_info": nil}, want: defaults},
		{name: "tasks_info no map", annotation: m{"enabled": true, "tasks_info": []any{}},
			want: []string{`! bad_annotation: task_proxy/tasks_info is a list; it must be a map`}},
		{name: "task no map", annotation: m{"enabled": true, "tasks_info": m{"server": true}},
			want: []string{`! bad_annotation task "server": tasks_info of the task is the boolean true; it must be a map`}},

		{name: "unknown protocol", annotation: info(m{"ui": m{"protocol": "tcp", "port_index": int64(0)}}),
			want: []string{"server/port_1 http 1", `! bad_annotation task "server" service "ui": protocol is the string "tcp"; it must be http, grpc or websocket`}},
		{name: "no port index", annotation: info(m{"ui": m{"protocol": "http"}}),
			want: append(slices.Clone(defaults), `! bad_port_index task "server" service "ui": port_index is missing; it must be an integer`)},
		{name: "port index out of range", annotation: info(m{"ui": m{"port_index": int64(2)}}),
			want: append(slices.Clone(defaults), `! bad_port_index task "server" service "ui": port_index is 2; the task has 2 ports, counted from 0`)},
		{name: "negative port index", annotation: info(m{"ui": m{"port_index": int64(-1)}}),
			want: append(slices.Clone(defaults), `! bad_port_index task "server" service "ui": port_index is -1; the task has 2 ports, counted from 0`)},
		{name: "huge port index", annotation: info(m{"ui": m{"port_index": uint64(math.MaxUint64)}}),
			want: append(slices.Clone(defaults), `! bad_port_index task "server" service "ui": port_index is the integer 18446744073709551615; it must be an integer`)},
		{name: "broken port index", annotation: info(m{"ui": m{"port_index": 0.5}}),
			want: append(slices.Clone(defaults), `! bad_port_index task "server" service "ui": port_index is the number 0.5; it must be an integer`)},
		{name: "infinite port index", annotation: info(m{"ui": m{"port_index": math.Inf(1)}}),
			want: append(slices.Clone(defaults), `! bad_port_index task "server" service "ui": port_index is the number +Inf; it must be an integer`)},
		{name: "service no map", annotation: info(m{"ui": int64(0)}),
			want: append(slices.Clone(defaults), `! bad_annotation task "server" service "ui": it is the integer 0; it must be a map such as {protocol=http; port_index=0}`)},
		{name: "unknown task", annotation: m{"enabled": true, "tasks_info": m{"sever": m{"ui": m{"port_index": int64(0)}}}},
			want: append(slices.Clone(defaults), `! unknown_task task "sever": tasks_info names a task that the operation does not have`)},
		{name: "name with a newline", annotation: info(m{"a\nb": m{"port_index": int64(0)}}),
			want: []string{"server/port_1 http 1", `! bad_name task "server" service "a\nb": the service's name has characters that cannot be printed`}},
		{name: "empty name", annotation: info(m{"": m{"port_index": int64(0)}}),
			want: []string{"server/port_1 http 1", `! bad_name task "server": the service's name is empty`}},
		{name: "name not UTF-8", annotation: info(m{"\xff": m{"port_index": int64(0)}}),
			want: []string{"server/port_1 http 1", `! bad_name task "server" service "\xff": the service's name is not UTF-8`}},
		{name: "name of another port", annotation: info(m{"port_1": m{"port_index": int64(0)}}),
			want: []string{"server/port_1 http 0", `! bad_port_index task "server" service "port_1": its name is that of port 1, which is not published: give that port a name as well`}},
		{name: "task with a bad name", annotation: m{"enabled": true}, tasks: []ytclient.Task{{Name: "a\x00", PortCount: 1}, {Name: "b", PortCount: 1}},
			want: []string{"b/port_0 http 0", `! bad_name task "a\x00": the task's name has characters that cannot be printed`}},
		{name: "no ports at all", annotation: m{"enabled": true}, tasks: []ytclient.Task{{Name: "a", JobCount: 1}},
			want: []string{`! bad_port_index: the operation has no task with ports; set port_count of the task that serves`}},
		{name: "no tasks", annotation: m{"enabled": true}, tasks: []ytclient.Task{},
			want: []string{`! bad_port_index: the operation has no task with ports; set port_count of the task that serves`}},

		{name: "permission of the operation", annotation: m{"enabled": true, "permission": "manage"}, want: []string{"server/port_0 http 0 manage", "server/port_1 http 1 manage"}},
		{name: "permission of a service", annotation: info(m{"ui": m{"port_index": int64(0), "permission": "manage"}}),
			want: []string{"server/ui http 0 manage", "server/port_1 http 1"}},
		{name: "permission cannot be loosened", annotation: m{"enabled": true, "permission": "manage", "tasks_info": m{"server": m{"ui": m{"port_index": int64(0), "permission": "read"}}}},
			want: []string{"server/port_1 http 1 manage", `! bad_annotation task "server" service "ui": permission is the string "read"; it can only be manage, or left out; nothing that it governs is published`}},
		{name: "mistyped permission of the operation", annotation: m{"enabled": true, "permission": "mange"},
			want: []string{`! bad_annotation: task_proxy/permission is the string "mange"; it can only be manage, or left out; nothing that it governs is published`}},
		{name: "mistyped permission of a service", annotation: info(m{"ui": m{"port_index": int64(0), "permission": true}}),
			want: []string{"server/port_1 http 1", `! bad_annotation task "server" service "ui": permission is the boolean true; it can only be manage, or left out; nothing that it governs is published`}},
		{name: "a guarded service without a port closes the others", annotation: info(m{"ui": m{"port_index": "0", "permission": "manage"}, "api": m{"port_index": int64(1)}}),
			want: []string{"server/api http 1",
				`! bad_port_index task "server" service "ui": port_index is the string "0"; it must be an integer`,
				`! bad_port_index task "server": a service with a permission has no readable port_index, so no port of the task is published by its default name`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tasks := tt.tasks
			if tasks == nil {
				tasks = two
			}
			got := publish(m{"task_proxy": tt.annotation, "description": "x"}, tasks)
			if !slices.Equal(got, tt.want) {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
	if got := publish(nil, two); got != nil {
		t.Errorf("no annotations publish %q", got)
	}
}

func TestAnnotationLimits(t *testing.T) {
	t.Parallel()
	annotations := map[string]any{"task_proxy": map[string]any{"enabled": true}}

	p, _ := publisherOf(newPublishers(SPYTConfig{}, DefaultMaxServicesPerOperation), annotations)
	services, problems := declared(p, annotations, []ytclient.Task{{Name: "a", PortCount: 63}, {Name: "b", PortCount: math.MaxInt}, {Name: "c", PortCount: math.MaxInt}})
	if len(services) != DefaultMaxServicesPerOperation || services[63].task != "b" {
		t.Errorf("%d services, the last of %v; want %d, the last of task b", len(services), services[len(services)-1], DefaultMaxServicesPerOperation)
	}
	if len(problems) != 1 || problems[0].Kind != OverLimit {
		t.Errorf("problems %v, want one over the limit", problems)
	}
	if services, problems = declared(p, annotations, []ytclient.Task{{Name: "a", PortCount: 64}}); len(services) != 64 || len(problems) != 0 {
		t.Errorf("64 services: %d published, problems %v", len(services), problems)
	}

	// Problems are limited as well, and what authors write into them is cut.
	entries := map[string]any{}
	for i := range 1000 {
		entries[fmt.Sprintf("service%04d", i)] = map[string]any{"port_index": strings.Repeat("x", 1000)}
	}
	annotations["task_proxy"].(map[string]any)["tasks_info"] = map[string]any{"a": entries}
	_, problems = declared(p, annotations, []ytclient.Task{{Name: "a", PortCount: 1}})
	if len(problems) != maxTold+1 || !strings.Contains(problems[maxTold].Reason, "984 more") {
		t.Errorf("%d problems, the last %v", len(problems), problems[len(problems)-1])
	}
	if n := len(problems[0].String()); n > 600 {
		t.Errorf("a problem is told in %d bytes", n)
	}
}

func TestPublisherThatPanics(t *testing.T) {
	t.Parallel()
	p := &publisher{declare: func(map[string]any, []ytclient.Task) ([]declaration, []Problem) { panic("odd") }}
	services, problems := declared(p, nil, nil)
	if len(services) != 0 || len(problems) != 1 || problems[0].Kind != BadAnnotation {
		t.Errorf("services %v, problems %v; want one problem", services, problems)
	}
}

func FuzzAnnotation(f *testing.F) {
	f.Add(`{"task_proxy":{"enabled":true}}`, "server", 2)
	f.Add(`{"task_proxy":{"enabled":"true","permission":"manage","tasks_info":{"server":{"ui":{"protocol":"grpc","port_index":1}}}}}`, "server", 2)
	f.Add(`{"task_proxy":{"enabled":true,"tasks_info":{"server":{"port_1":{"port_index":0,"permission":7},"b":[]},"x":null}}}`, "server", 70)
	f.Add(`{"task_proxy":{"enabled":true,"cross_site":{"origins":["https://a.test",1]},"tasks_info":{"server":{"ui":{"port_index":0,"cross_site":{"origins":["*"]}}}}}}`, "server", 2)
	f.Add(`{"task_proxy":{"enabled":true,"route_timeout_seconds":1e300,"affinity":1,"tasks_info":{"server":{"ui":{"port_index":0,"stream_idle_timeout_seconds":-0.5,"affinity":"cookie"}}}}}`, "server", 2)
	f.Add(`{"task_proxy":[]}`, "", -1)
	f.Fuzz(func(t *testing.T, annotation, task string, ports int) {
		var annotations map[string]any
		if json.Unmarshal([]byte(annotation), &annotations) != nil {
			return
		}
		if task == "other" {
			return // a spec does not name a task twice
		}
		tasks := []ytclient.Task{{Name: "other", PortCount: 1}, {Name: task, PortCount: ports}}
		p, _ := publisherOf(newPublishers(SPYTConfig{}, DefaultMaxServicesPerOperation), annotations)
		if p == nil {
			return
		}
		services, problems := p.declare(annotations, tasks) // past the recover of declared
		again, _ := p.declare(annotations, tasks)
		if !slices.EqualFunc(services, again, func(a, b declaration) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
			t.Errorf("twice the same annotation, two results: %v and %v", services, again)
		}
		seen := map[string]bool{}
		for _, d := range services {
			if seen[d.task+"\x00"+d.name] {
				t.Errorf("%s/%s is declared twice", d.task, d.name)
			}
			seen[d.task+"\x00"+d.name] = true
			if badName(d.name) != "" || badName(d.task) != "" || d.portIndex < 0 || d.portIndex >= max(ports, 1) || len(d.permissions) == 0 || d.permissions[0] != ytclient.Read {
				t.Errorf("declared %+v", d)
			}
			if len(d.origins) > maxOrigins || slices.ContainsFunc(d.origins, func(o string) bool { return CheckOrigin(o) != nil }) {
				t.Errorf("opened to %q", d.origins)
			}
			if d.routeTimeout < 0 || d.routeTimeout > maxTimeout || d.idleTimeout < -1 || d.idleTimeout > maxTimeout {
				t.Errorf("timeouts %s and %s", d.routeTimeout, d.idleTimeout)
			}
		}
		for _, p := range problems {
			if strings.ContainsAny(p.String(), "\n\x00\x1b") || len(p.String()) > 4096 {
				t.Errorf("problem %q", p.String())
			}
		}
	})
}
