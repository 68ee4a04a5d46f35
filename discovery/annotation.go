package discovery

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"taskproxy/ytclient"
)

// Limits on what one operation's author can make us do.
const (
	maxName = 256 // bytes of a task's or a service's name
	maxTold = 16  // problems of one operation's annotations; further ones are told as a number
)

// declaration is one service as an operation asks for it, before any job is known. Where it answers is either a port that
// the cluster gives to the jobs of its task, or an address that somebody wrote, which the guard judges.
type declaration struct {
	task        string
	name        string
	protocol    Protocol
	portIndex   int // of the task's ports; meant only if nothing is written
	permissions []ytclient.Permission
	origins     []string // of other sites that may use the visitor's login
	written     place
	sparkREST   bool // Service.SparkREST

	routeTimeout, idleTimeout time.Duration // Service.RouteTimeout, IdleTimeout
	affinity                  bool
}

// publisher is one way in which operations publish services. Both functions are pure.
type publisher struct {
	// claims says whether operations with these annotations are published this way.
	claims func(annotations map[string]any) (verdict, []Problem)
	// declare says what such an operation publishes, given its tasks. The same input gives the same output, order included.
	declare func(annotations map[string]any, tasks []ytclient.Task) ([]declaration, []Problem)
	most    int // services of one operation
}

// verdict is what a publisher says to an operation's annotations.
type verdict int

const (
	notMine verdict = iota // the next publisher is asked
	mine                   // it decides, and no later one is asked
	nothing                // the operation publishes nothing, whatever else it carries
)

// newPublishers lists the publishers in order of precedence: the first that does not say notMine decides. most is how many
// services of one operation are published.
func newPublishers(cfg SPYTConfig, most int) []*publisher {
	notebook := &publisher{claims: claimsNotebook, declare: declareNotebook, most: most}
	taskProxy := &publisher{claims: claimsTaskProxy, declare: annotated{most}.declare, most: most}
	direct := directSubmit{beside: []*publisher{notebook, {claims: claimsClique}, taskProxy}}
	return []*publisher{
		{claims: direct.claims, declare: direct.declare, most: most},
		{claims: claimsCluster, declare: cfg.declareCluster, most: most},
		notebook,
		{claims: claimsClique},
		taskProxy,
	}
}

// publisherOf finds the publisher of an operation; nil when it publishes nothing. The problems are those of publishers that
// could not tell. A panic over annotations that nobody thought of becomes a problem of this operation.
func publisherOf(publishers []*publisher, annotations map[string]any) (p *publisher, problems []Problem) {
	defer func() {
		if recover() != nil {
			p, problems = nil, []Problem{{Kind: BadAnnotation, Reason: "the annotations cannot be read"}}
		}
	}()
	for _, p := range publishers {
		says, trouble := p.claims(annotations)
		problems = append(problems, trouble...)
		switch says {
		case mine:
			return p, problems
		case nothing:
			return nil, problems
		}
	}
	return nil, problems
}

// declared is p.declare with the limits that hold for every publisher, and its panics as problems.
func declared(p *publisher, annotations map[string]any, tasks []ytclient.Task) (services []declaration, problems []Problem) {
	defer func() {
		if recover() != nil {
			services, problems = nil, []Problem{{Kind: BadAnnotation, Reason: "the annotations cannot be read"}}
		}
	}()
	services, problems = p.declare(annotations, tasks)
	if len(services) > p.most {
		services = services[:p.most]
		problems = append([]Problem{{Kind: OverLimit, Reason: fmt.Sprintf("it publishes more than %d services; the first %d count", p.most, p.most)}}, problems...)
	}
	if n := len(problems); n > maxTold {
		problems = append(slices.Clip(problems[:maxTold]), Problem{Kind: BadAnnotation, Reason: fmt.Sprintf("its annotations have %d more problems", n-maxTold)})
	}
	return services, problems
}

// annotationKey is where the annotation is among an operation's annotations.
const annotationKey = "task_proxy"

// claimsTaskProxy reads task_proxy={enabled=%true}. Sloppy clients write the boolean as a string. Absent, null and false mean
// that nothing is published, which is no problem.
func claimsTaskProxy(annotations map[string]any) (verdict, []Problem) {
	bad := func(reason string) (verdict, []Problem) {
		return notMine, []Problem{{Kind: BadAnnotation, Reason: reason}}
	}
	var annotation map[string]any
	switch v := at(annotations, annotationKey).(type) {
	case nil:
		return notMine, nil
	case map[string]any:
		annotation = v
	default:
		return bad("task_proxy is " + describe(v) + "; it must be a map such as {enabled=%true}")
	}
	switch enabled := at(annotation, "enabled").(type) {
	case nil, bool:
		if enabled != true {
			return notMine, nil
		}
		return mine, nil
	case string:
		switch enabled {
		case "true", "True":
			return mine, nil
		case "false", "False":
			return notMine, nil
		}
	}
	return bad("task_proxy/enabled is " + describe(at(annotation, "enabled")) + "; it must be %true or %false")
}

// annotated declares what the annotation says. Of a task's default names it makes one more than most at most, however many
// ports there are.
type annotated struct{ most int }

// declare reads the annotation
//
//	task_proxy={enabled=%true; permission=manage; cross_site={origins=[…]};
//	    route_timeout_seconds=30; stream_idle_timeout_seconds=600; affinity=cookie;
//	    tasks_info={<task>={<service>={protocol=http; port_index=0; permission=manage; cross_site={origins=[…]}; …}}}}
//
// where all but enabled may be left out, and what a service says itself counts instead of what is said for all. Every port of
// every task is a service: one that tasks_info names has that name, every other one is port_<i> over http. Two names may
// share a port: one process can speak HTTP and gRPC there. An entry that is wrong is not published; if its port can be read,
// the port is not published by its default name either. A timeout or an affinity that is wrong counts as not there.
//
// Whoever tightens a permission and mistypes is not published wider than meant: an unreadable permission publishes
// nothing of what it governs, and an entry with a permission but without a readable port keeps its task's other ports closed.
//
// Named services come first, then default ones, each by task and then by name or port: that order decides when there are too many.
func (a annotated) declare(annotations map[string]any, tasks []ytclient.Task) ([]declaration, []Problem) {
	annotation, _ := at(annotations, annotationKey).(map[string]any)
	r := reading{most: a.most}
	permissions, ok := r.permission(annotation, "", "", "task_proxy/permission", readOnly)
	if !ok {
		return nil, r.problems
	}
	all := declaration{protocol: HTTP, permissions: permissions, origins: r.origins(annotation, "", "", "task_proxy/cross_site", nil)}
	all.affinity = r.affinity(annotation, "", "", "task_proxy/", false)
	r.timeouts(annotation, "", "", "task_proxy/", &all)
	info, ok := r.mapAt(annotation["tasks_info"], "", "", "task_proxy/tasks_info")
	if !ok {
		return nil, r.problems
	}

	tasks = slices.SortedFunc(slices.Values(tasks), func(a, b ytclient.Task) int { return strings.Compare(a.Name, b.Name) })
	ports := 0
	for _, t := range tasks {
		ports = max(ports, t.PortCount)
	}
	if ports <= 0 {
		r.problem(BadPortIndex, "", "", "the operation has no task with ports; set port_count of the task that serves")
	}
	for _, name := range slices.Sorted(maps.Keys(info)) {
		if !slices.ContainsFunc(tasks, func(t ytclient.Task) bool { return t.Name == name }) {
			r.problem(UnknownTask, name, "", "tasks_info names a task that the operation does not have")
		}
	}

	var named, rest []declaration
	for _, t := range tasks {
		if t.PortCount <= 0 && info[t.Name] == nil {
			continue
		}
		if reason := badName(t.Name); reason != "" {
			r.problem(BadName, t.Name, "", "the task's name "+reason)
			continue
		}
		n, d := r.task(t, info[t.Name], all)
		named, rest = append(named, n...), append(rest, d...)
	}
	return append(named, rest...), r.problems
}

// reading is one annotation being read: its problems pile up here.
type reading struct {
	most     int // services that count
	problems []Problem
}

func (r *reading) problem(kind ProblemKind, task, service, reason string) {
	r.problems = append(r.problems, Problem{Kind: kind, Task: task, Service: service, Reason: reason})
}

// task reads one task's entries and gives the ports that remain their default names. Where an entry says nothing, what
// holds for all counts.
func (r *reading) task(t ytclient.Task, v any, all declaration) (named, rest []declaration) {
	all.task = t.Name
	entries, ok := r.mapAt(v, t.Name, "", "tasks_info of the task")
	if !ok {
		return nil, nil
	}
	claimed := make(map[int]bool) // ports that an entry speaks for, also a wrong one
	closed := false               // whether ports that no entry speaks for stay unpublished
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		e := r.entry(t, name, entries[name], all)
		if e.hasPort {
			claimed[e.portIndex] = true
		} else if e.guarded {
			closed = true
		}
		if e.ok {
			named = append(named, e.declaration)
		}
	}
	if closed {
		r.problem(BadPortIndex, t.Name, "", "a service with a permission has no readable port_index, so no port of the task is published by its default name")
		return named, nil
	}
	for i := 0; i < t.PortCount && len(rest) <= r.most; i++ {
		if claimed[i] {
			continue
		}
		d := all
		d.name, d.portIndex = fmt.Sprintf("port_%d", i), i
		if _, taken := entries[d.name]; taken {
			r.problem(BadPortIndex, t.Name, d.name, fmt.Sprintf("its name is that of port %d, which is not published: give that port a name as well", i))
			continue
		}
		rest = append(rest, d)
	}
	return named, rest
}

// entry is what became of one service of tasks_info.
type entry struct {
	declaration
	ok      bool // it can be published
	hasPort bool // portIndex is one of the task's ports
	guarded bool // it says something about permissions
}

func (r *reading) entry(t ytclient.Task, name string, v any, all declaration) entry {
	fields, isMap := ytclient.Plain(v).(map[string]any)
	if !isMap {
		r.problem(BadAnnotation, t.Name, name, "it is "+describe(ytclient.Plain(v))+"; it must be a map such as {protocol=http; port_index=0}")
		return entry{}
	}
	e := entry{declaration: all, ok: true, guarded: at(fields, "permission") != nil}
	e.name = name
	fail := func(kind ProblemKind, reason string) {
		e.ok = false
		r.problem(kind, t.Name, name, reason)
	}
	if reason := badName(name); reason != "" {
		fail(BadName, "the service's name "+reason)
	}
	switch p := at(fields, "protocol"); p {
	case nil, "http", "websocket": // a WebSocket begins as an HTTP request
		e.protocol = HTTP
	case "grpc":
		e.protocol = GRPC
	default:
		fail(BadAnnotation, "protocol is "+describe(p)+"; it must be http, grpc or websocket")
	}
	if index, ok := ytclient.Integer(fields["port_index"]); !ok {
		fail(BadPortIndex, "port_index is "+describe(at(fields, "port_index"))+"; it must be an integer")
	} else if index < 0 || index >= int64(t.PortCount) {
		fail(BadPortIndex, fmt.Sprintf("port_index is %d; the task has %d ports, counted from 0", index, t.PortCount))
	} else {
		e.portIndex, e.hasPort = int(index), true
	}
	permissions, ok := r.permission(fields, t.Name, name, "permission", all.permissions)
	e.permissions, e.ok = permissions, e.ok && ok
	e.origins = r.origins(fields, t.Name, name, "cross_site", all.origins)
	e.affinity = r.affinity(fields, t.Name, name, "", all.affinity)
	r.timeouts(fields, t.Name, name, "", &e.declaration)
	return e
}

// permission reads what a caller needs. It can only be tightened, to read and manage; inherited stands when nothing is said.
func (r *reading) permission(fields map[string]any, task, service, where string, inherited []ytclient.Permission) ([]ytclient.Permission, bool) {
	switch p := at(fields, "permission"); p {
	case nil:
		return inherited, true
	case string(ytclient.Manage):
		return readAndManage, true
	default:
		r.problem(BadAnnotation, task, service, where+" is "+describe(p)+"; it can only be manage, or left out; nothing that it governs is published")
		return nil, false
	}
}

// mapAt reads a map that may be absent.
func (r *reading) mapAt(v any, task, service, where string) (map[string]any, bool) {
	switch v := ytclient.Plain(v).(type) {
	case nil:
		return nil, true
	case map[string]any:
		return v, true
	default:
		r.problem(BadAnnotation, task, service, where+" is "+describe(v)+"; it must be a map")
		return nil, false
	}
}

// badName says why a task or service cannot be published by its name, as the end of a sentence; empty when it can.
func badName(name string) string {
	switch {
	case name == "":
		return "is empty"
	case len(name) > maxName:
		return fmt.Sprintf("is %d bytes long; at most %d are published", len(name), maxName)
	case !utf8.ValidString(name):
		return "is not UTF-8"
	case strings.ContainsFunc(name, func(c rune) bool { return !unicode.IsPrint(c) }):
		return "has characters that cannot be printed"
	}
	return ""
}

// at is the value of a key without its attributes; nil when there is none.
func at(m map[string]any, key string) any { return ytclient.Plain(m[key]) }

// describe names a value in a reason: its type and, if it is short by nature, itself.
func describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "missing"
	case string:
		return "the string " + quote(v)
	case bool:
		return fmt.Sprintf("the boolean %t", v)
	case int64, uint64:
		return fmt.Sprintf("the integer %d", v)
	case float64:
		return fmt.Sprintf("the number %v", v)
	case map[string]any:
		return "a map"
	case []any:
		return "a list"
	}
	return "a value of another kind"
}
