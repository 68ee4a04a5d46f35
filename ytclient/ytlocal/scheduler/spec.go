package scheduler

import (
	"fmt"
	"slices"
	"strings"

	"go.ytsaurus.tech/yt/go/yson"
)

// Limits and defaults of a spec. The ones of the real scheduler, except for the number of processes: it has a cluster
// for them, we have somebody's laptop.
const (
	maxPorts             = 50
	maxProcesses         = 1_000
	maxPretendedJobs     = 100_000
	maxCommand           = 128<<10 - 1 // Linux takes no longer argument
	maxStderr            = 1 << 30
	defaultStderr        = 5 << 20
	defaultMaxFailedJobs = 10
	maxMaxFailedJobs     = 1_000_000
	maxNameLength        = 255
)

// plan is what a spec asks for, checked. It never changes.
type plan struct {
	spec          map[string]any // as given, without secure_vault
	tasks         []*task        // in the order of their names
	total         int            // jobs over all tasks
	title         string
	alias         string
	annotations   map[string]any
	ownACE        []any // the starting user's own entry, or none; an update of the ACL does not take it away
	acl           []any
	maxFailed     int
	failOnRestart bool
	pretend       bool     // jobs without processes
	vault         []string // YT_SECURE_VAULT…, as environment
}

// task is a named group of jobs.
type task struct {
	name             string
	firstIndex       int // of its first job among those of all tasks
	jobCount         int
	command          string
	portCount        int
	files            []filePath
	environ          []string
	restartCompleted bool
	stderrLimit      int64
}

// filePath is one of file_paths; an empty name and a nil executable leave it to the file.
type filePath struct {
	path       string
	name       string
	executable *bool
}

func (p *plan) hasFiles() bool {
	return slices.ContainsFunc(p.tasks, func(t *task) bool { return len(t.files) > 0 })
}

// fields reads the members of one map of a spec. The first error stays, so that a caller may read all it needs and ask
// once.
type fields struct {
	prefix string
	m      map[string]any
	err    error
}

func (f *fields) at(key string) string { return f.prefix + key }

func (f *fields) fail(key, want string) {
	if f.err == nil {
		f.err = specError(f.at(key), f.m[key], want)
	}
}

func (f *fields) integer(key string, missing, low, high int64) int64 {
	v := plain(f.m[key])
	if v == nil {
		return missing
	}
	n, ok := integer(v)
	if !ok || n < low || n > high {
		f.fail(key, fmt.Sprintf("it must be an integer from %d to %d", low, high))
		return missing
	}
	return n
}

func (f *fields) text(key string) string {
	v := plain(f.m[key])
	if v == nil {
		return ""
	}
	s, ok := text(v)
	if !ok {
		f.fail(key, "it must be a string")
	}
	return s
}

func (f *fields) boolean(key string, missing bool) bool {
	v := plain(f.m[key])
	if v == nil {
		return missing
	}
	b, ok := boolean(v)
	if !ok {
		f.fail(key, "it must be %true or %false")
	}
	return b
}

func (f *fields) object(key string) map[string]any {
	v := plain(f.m[key])
	if v == nil {
		return nil
	}
	m, ok := v.(map[string]any)
	if !ok {
		f.fail(key, "it must be a map")
	}
	return m
}

// parseSpec checks the spec of a vanilla operation. Fields that it does not know are accepted, as a cluster accepts them.
func parseSpec(user string, spec map[string]any) (*plan, error) {
	f := &fields{m: spec}
	p := &plan{
		title:         f.text("title"),
		alias:         f.text("alias"),
		annotations:   cloneMap(f.object("annotations")),
		maxFailed:     int(f.integer("max_failed_job_count", defaultMaxFailedJobs, 0, maxMaxFailedJobs)),
		failOnRestart: f.boolean("fail_on_job_restart", false),
	}
	own := &fields{prefix: "ytlocal/", m: f.object("ytlocal")}
	p.pretend = own.boolean("pretend", false)
	if p.alias != "" && (!strings.HasPrefix(p.alias, "*") || len(p.alias) < 2) {
		f.fail("alias", `it must start with "*" and have a name after it`)
	}
	for _, err := range []error{f.err, own.err, p.parseAccess(user, f), p.parseVault(f), p.parseTasks(f)} {
		if err != nil {
			return nil, err
		}
	}
	if description := spec["description"]; plain(description) != nil {
		p.annotations = patch(p.annotations, map[string]any{"description": description})
	}
	p.spec = cloneMap(spec)
	delete(p.spec, "secure_vault")
	return p, nil
}

// parseAccess reads who may do what with the operation.
func (p *plan) parseAccess(user string, f *fields) error {
	acl, acoName, owners := plain(f.m["acl"]), plain(f.m["aco_name"]), plain(f.m["owners"])
	if acoName != nil {
		return specError("aco_name", acoName, "access control objects do not exist here; give an acl")
	}
	switch {
	case acl != nil:
		list, err := parseACL("acl", acl)
		if err != nil {
			return err
		}
		p.acl = list
	case owners != nil:
		names, err := parseStrings("owners", owners, "users")
		if err != nil {
			return err
		}
		subjects := make([]any, len(names))
		for i, name := range names {
			subjects[i] = name
		}
		p.acl = []any{allow(subjects...)}
	}
	if f.boolean("add_authenticated_user_to_acl", true) {
		p.ownACE = []any{allow(user)}
	}
	return f.err
}

// parseVault turns secure_vault into environment: the whole as YSON, and each scalar of it by name.
func (p *plan) parseVault(f *fields) error {
	vault := f.object("secure_vault")
	if vault == nil {
		return nil
	}
	// No message shows a value: the vault is for secrets.
	whole, err := yson.MarshalFormat(vault, yson.FormatText)
	if err != nil || strings.ContainsRune(string(whole), 0) {
		return badField("secure_vault", "it must be a map of YSON values")
	}
	p.vault = append(p.vault, "YT_SECURE_VAULT="+string(whole))
	for key, value := range vault {
		if !isEnvironName(key) {
			return badField("secure_vault", fmt.Sprintf("%s cannot be the name of an environment variable", quote(key)))
		}
		switch v := plain(value).(type) {
		case string:
			if strings.ContainsRune(v, 0) {
				return badField("secure_vault", fmt.Sprintf("the value of %s holds a zero byte", quote(key)))
			}
			p.vault = append(p.vault, "YT_SECURE_VAULT_"+key+"="+v)
		case int64, uint64, float64, bool:
			p.vault = append(p.vault, fmt.Sprintf("YT_SECURE_VAULT_%s=%v", key, v))
		}
	}
	return nil
}

// parseTasks reads the tasks and how many jobs they make.
func (p *plan) parseTasks(f *fields) error {
	tasks := f.object("tasks")
	if f.err != nil {
		return f.err
	}
	if len(tasks) == 0 {
		return missing("tasks", "a vanilla operation needs a map with at least one task")
	}
	names := make([]string, 0, len(tasks))
	for name := range tasks {
		names = append(names, name)
	}
	slices.Sort(names)
	limit, of := maxProcesses, "processes"
	if p.pretend {
		limit, of = maxPretendedJobs, "pretended jobs"
	}
	for _, name := range names {
		t, err := parseTask(name, tasks[name], p.pretend)
		if err != nil {
			return err
		}
		t.firstIndex = p.total
		p.tasks = append(p.tasks, t)
		if p.total += t.jobCount; p.total > limit {
			return specError("tasks/"+cut(name)+"/job_count", int64(t.jobCount),
				fmt.Sprintf("an operation may have %d %s in all", limit, of))
		}
	}
	return nil
}

func parseTask(name string, v any, pretend bool) (*task, error) {
	at := "tasks/" + cut(name)
	if name == "" || len(name) > maxNameLength || strings.ContainsRune(name, 0) {
		return nil, specError("tasks", name, "the name of a task must have 1 to 255 bytes and no zero byte")
	}
	m, ok := plain(v).(map[string]any)
	if !ok {
		return nil, specError(at, v, "a task must be a map")
	}
	f := &fields{prefix: at + "/", m: m}
	t := &task{
		name:             name,
		jobCount:         int(f.integer("job_count", 0, 1, maxPretendedJobs)),
		command:          f.text("command"),
		portCount:        int(f.integer("port_count", 0, 0, maxPorts)),
		restartCompleted: f.boolean("restart_completed_jobs", false),
		stderrLimit:      f.integer("max_stderr_size", defaultStderr, 0, maxStderr),
	}
	if f.err != nil {
		return nil, f.err
	}
	if t.jobCount == 0 {
		return nil, missing(f.at("job_count"), "it must be the number of jobs, at least 1")
	}
	switch {
	case t.command == "" && !pretend:
		return nil, missing(f.at("command"), "it must be the shell command of a job")
	case len(t.command) > maxCommand:
		return nil, specError(f.at("command"), t.command, fmt.Sprintf("it must have at most %d bytes", maxCommand))
	case strings.ContainsRune(t.command, 0):
		return nil, specError(f.at("command"), t.command, "it must not hold a zero byte")
	}
	var err error
	if t.files, err = parseFilePaths(f); err != nil {
		return nil, err
	}
	t.environ, err = parseEnvironment(f)
	return t, err
}

// parseFilePaths reads file_paths: strings, with the name and the executable bit as attributes in front of the value or
// inside of the string.
func parseFilePaths(f *fields) ([]filePath, error) {
	const key = "file_paths"
	v := plain(f.m[key])
	if v == nil {
		return nil, nil
	}
	list, ok := v.([]any)
	if !ok {
		return nil, specError(f.at(key), v, "it must be a list of Cypress paths")
	}
	var files []filePath
	for i, item := range list {
		at := fmt.Sprintf("%s/%d", f.at(key), i)
		s, ok := text(item)
		if !ok {
			return nil, specError(at, item, "it must be a Cypress path")
		}
		file := filePath{path: s}
		attrs := attributes(item)
		if strings.HasPrefix(strings.TrimSpace(s), "<") {
			if attrs, file.path, ok = splitAttributes(s); !ok {
				return nil, specError(at, s, "its attributes must be <name=value;…> in front of the path")
			}
		}
		a := &fields{prefix: at + "/@", m: attrs}
		if attrs["file_name"] != nil {
			file.name = a.text("file_name")
		}
		if attrs["executable"] != nil {
			on := a.boolean("executable", false)
			file.executable = &on
		}
		if a.err != nil {
			return nil, a.err
		}
		if !strings.HasPrefix(file.path, "/") && !strings.HasPrefix(file.path, "#") {
			return nil, specError(at, s, `it must be a Cypress path, starting with "//"`)
		}
		if file.name != "" && !isFileName(file.name) {
			return nil, specError(at+"/@file_name", file.name, "it must be a plain file name")
		}
		files = append(files, file)
	}
	return files, nil
}

// splitAttributes cuts the text form of a path, <file_name=x>//tmp/y, in two. The path is no YSON, so the attributes end
// at the first ">" that makes YSON of what is before it.
func splitAttributes(s string) (attrs map[string]any, path string, ok bool) {
	for i := range len(s) {
		if s[i] != '>' {
			continue
		}
		var v any
		if yson.Unmarshal([]byte(s[:i+1]+"#"), &v) == nil {
			return attributes(v), strings.TrimSpace(s[i+1:]), true
		}
	}
	return nil, "", false
}

// parseEnvironment reads the environment of a task, in the order of its names.
func parseEnvironment(f *fields) ([]string, error) {
	const key = "environment"
	m := f.object(key)
	var environ []string
	for name, v := range m {
		value, ok := text(v)
		switch {
		case !isEnvironName(name):
			return nil, specError(f.at(key), name, `the name of a variable must not be empty nor hold "=" or a zero byte`)
		case !ok || strings.ContainsRune(value, 0):
			return nil, specError(f.at(key)+"/"+cut(name), v, "it must be a string without a zero byte")
		}
		environ = append(environ, name+"="+value)
	}
	slices.Sort(environ)
	return environ, f.err
}

func isEnvironName(name string) bool { return name != "" && !strings.ContainsAny(name, "=\x00") }

// isFileName tells a name that stays in the directory it is put into.
func isFileName(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= maxNameLength && !strings.ContainsAny(name, "/\x00")
}
