package discovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yt"

	"taskproxy/ytclient"
	"taskproxy/ytclient/ytlocal"
	"taskproxy/ytclient/ytlocal/scheduler"
)

// suiteWorld is a cluster at one moment, read from one part of a file. Words are separated by spaces; one that has spaces or
// stranger things is quoted as in Go, and "x"*1000 is a thousand of them. A line that begins with # says nothing.
//
//	after 70s                             time passes first
//	same                                  the operations and jobs of the part before; what follows changes them
//	gone ID                               but not this operation or job
//	restart                               another process of the proxy looks; it knows no more than the services table says
//	set NAME VALUE                        of the configuration: spyt-rest=hide, spyt-rest-permission, spyt-ports,
//	                                      per-operation, per-user, all; in the first part or beside restart
//	                                      an operation or job that is told again keeps what belongs to it
//	operation ID [user=] [alias=] [state=] [start=SECONDS] [acl=deny] [{ANNOTATIONS}]
//	                                      the annotations are YSON and end the line, "x"*1000 being a thousand x in them,
//	                                      too; acl=deny: its author lets the robot not read it
//	task OPERATION NAME [jobs=1] [ports=1]
//	job OPERATION ID TASK ADDRESS [ports=1,2] [state=] [stale] [away]
//	                                      ports are those that the node has given; away: the node does not know the job
//	node PATH                             in Cypress, with all above it, from now on
//	remove PATH                           from now on
//	resolve HOST [IP...]                  from now on; without an IP the resolver does not answer
//	refused JOB                           a connection to the job's endpoints has just failed
//	token revoked|renewed                 the robot's, from now on
//	rights none|read                      of the robot on operations, from now on; at first it may read them
//	fault scheduler restarts
//	fault COMMAND [if=TEXT] [times=N] WHAT
//
// A fault hits calls of the command ("any": of each) with TEXT in their parameters; inside batches too. WHAT is one of
//
//	code N [STATUS]                       the cluster's error, with its own status or another
//	status N [BODY]                       a status without any error of the cluster's, such as a balancer's page
//	body TEXT                             another body with status 200; with repetitions, as annotations
//	cut before|headers|body               the connection breaks
//	state S                               get_operation tells this state
//	without [ID...]                       list_operations or list_jobs leaves these out, or all
//	odd ID YSON                           list_operations has this in the operation's place
//	partial CODE [ID...]                  list_jobs could not ask everybody; these jobs are missing
//	stale ID...                           list_jobs does not vouch for these
//	moved ID ADDRESS                      list_jobs tells this address
//	ports N,N                             get tells these ports
type suiteWorld struct {
	before            *suiteWorld // the part before; empty for the first
	after             time.Duration
	restart           bool
	configure         func(*Config)
	operations        []suiteOperation
	cypress           []func(context.Context, yt.Client) error
	names             names
	refused           []string
	robot             []func(context.Context, *stage) error
	faults            []ytlocal.Fault
	schedulerRestarts bool
}

type suiteOperation struct {
	scheduler.Operation
	jobs []scheduler.Job
}

func parseSuiteWorld(text string, before *suiteWorld) (*suiteWorld, error) {
	w := &suiteWorld{before: before, names: names{}}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := w.parse(line); err != nil {
			return nil, fmt.Errorf("%.200q: %w", line, err)
		}
	}
	return w, nil
}

var errWords = errors.New("there are too few words, or too many")

func (w *suiteWorld) parse(line string) error {
	var annotations string
	if strings.HasPrefix(line, "operation ") {
		if i := strings.Index(line, " {"); i >= 0 {
			line, annotations = line[:i], line[i+1:]
		}
	}
	words, options, err := splitLine(line)
	if err != nil {
		return err
	}
	lines := map[string]struct {
		least, most int
		parse       func(words []string, options map[string]string) error
	}{
		"after": {1, 1, func(words []string, _ map[string]string) (err error) {
			w.after, err = time.ParseDuration(words[0])
			return err
		}},
		"same":    {0, 0, w.same},
		"gone":    {1, 1, w.gone},
		"restart": {0, 0, func([]string, map[string]string) error { w.restart = true; return nil }},
		"set":     {2, 2, func(words []string, _ map[string]string) error { return w.set(words[0], words[1]) }},
		"operation": {1, 1, func(words []string, options map[string]string) error {
			return w.operation(words[0], options, annotations)
		}},
		"task":    {2, 2, w.task},
		"job":     {4, 6, w.job},
		"node":    {1, 1, w.node},
		"remove":  {1, 1, w.remove},
		"resolve": {1, 9, w.resolve},
		"refused": {1, 1, func(words []string, _ map[string]string) error { w.refused = append(w.refused, words[0]); return nil }},
		"token":   {1, 1, w.token},
		"rights":  {1, 1, w.rights},
		"fault":   {2, 99, w.fault},
	}
	l, ok := lines[words[0]]
	switch {
	case !ok:
		return errors.New("no such line")
	case len(words)-1 < l.least || len(words)-1 > l.most:
		return errWords
	}
	return l.parse(words[1:], options)
}

// splitLine takes a line apart into words and options, name=value.
func splitLine(line string) (words []string, options map[string]string, err error) {
	options = map[string]string{}
	for rest := strings.TrimSpace(line); rest != ""; rest = strings.TrimLeft(rest, " ") {
		if rest[0] != '"' {
			var word string
			word, rest, _ = strings.Cut(rest, " ")
			if name, value, ok := strings.Cut(word, "="); ok && !strings.ContainsAny(name, "/{<") {
				options[name] = value
			} else {
				words = append(words, word)
			}
			continue
		}
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return nil, nil, err
		}
		word, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, nil, err
		}
		rest = rest[len(quoted):]
		if times, ok := strings.CutPrefix(rest, "*"); ok {
			times, rest, _ = strings.Cut(times, " ")
			n, err := strconv.Atoi(times)
			if err != nil {
				return nil, nil, err
			}
			word = strings.Repeat(word, n)
		}
		words = append(words, word)
	}
	return words, options, nil
}

func (w *suiteWorld) set(name, value string) error {
	before := w.configure
	var change func(*Config)
	switch name {
	case "spyt-rest":
		change = func(c *Config) { c.SPYT.HideREST = value == "hide" }
	case "spyt-rest-permission":
		change = func(c *Config) { c.SPYT.RESTPermission = ytclient.Permission(value) }
	case "spyt-ports":
		ranges, err := ParsePortRanges(strings.TrimPrefix(value, "none"))
		if err != nil {
			return err
		}
		change = func(c *Config) { c.SPYT.Ports = ranges }
	case "per-operation", "per-user", "all":
		n, err := strconv.Atoi(value)
		if err != nil {
			return err
		}
		change = func(c *Config) {
			*map[string]*int{"per-operation": &c.MaxServicesPerOperation, "per-user": &c.MaxServicesPerUser, "all": &c.MaxServices}[name] = n
		}
	default:
		return errors.New("no such setting")
	}
	w.configure = func(c *Config) {
		if before != nil {
			before(c)
		}
		change(c)
	}
	return nil
}

func (w *suiteWorld) operation(id string, options map[string]string, annotations string) error {
	op := suiteOperation{Operation: scheduler.Operation{ID: id, User: "alice", StartTime: start}}
	for name, value := range options {
		switch name {
		case "user":
			op.User = value
		case "alias":
			op.Alias = value
		case "state":
			op.State = value
		case "acl":
			if value != "deny" {
				return errors.New("an acl is deny")
			}
			op.ACL = robotDenied
		case "start":
			n, err := strconv.Atoi(value)
			if err != nil {
				return err
			}
			op.StartTime = start.Add(time.Duration(n) * time.Second)
		default:
			return fmt.Errorf("no such option: %s", name)
		}
	}
	if annotations != "" {
		if err := yson.Unmarshal([]byte(repeated(annotations)), &op.Annotations); err != nil {
			return err
		}
	}
	if before, err := w.find(id); err == nil {
		op.Spec = before.Spec
		before.Operation = op.Operation
		return nil
	}
	op.Spec = map[string]any{"tasks": map[string]any{}}
	w.operations = append(w.operations, op)
	return nil
}

func (w *suiteWorld) same([]string, map[string]string) error {
	if w.before == nil || len(w.operations) > 0 {
		return errors.New("it must come first, and not in the first part")
	}
	for _, op := range w.before.operations {
		spec := map[string]any{"tasks": maps.Clone(op.Spec["tasks"].(map[string]any))}
		op.Spec, op.jobs = spec, slices.Clone(op.jobs)
		w.operations = append(w.operations, op)
	}
	return nil
}

func (w *suiteWorld) gone(words []string, _ map[string]string) error {
	found := false
	gone := func(id string) bool { found = found || id == words[0]; return id == words[0] }
	w.operations = slices.DeleteFunc(w.operations, func(op suiteOperation) bool { return gone(op.ID) })
	for i := range w.operations {
		w.operations[i].jobs = slices.DeleteFunc(w.operations[i].jobs, func(j scheduler.Job) bool { return gone(j.ID) })
	}
	if !found {
		return errors.New("there is none")
	}
	return nil
}

func (w *suiteWorld) find(id string) (*suiteOperation, error) {
	i := slices.IndexFunc(w.operations, func(op suiteOperation) bool { return op.ID == id })
	if i < 0 {
		return nil, fmt.Errorf("there is no operation %s yet", id)
	}
	return &w.operations[i], nil
}

// cluster returns the id if that operation is a standalone cluster of SPYT's, which its annotations tell.
func (w *suiteWorld) cluster(id string) string {
	op, err := w.find(id)
	if err != nil || at(clusterInfoOf(op.Annotations), discoveryPath) == nil || at(descriptionOf(op.Annotations), webUI) != nil {
		return ""
	}
	return id
}

func (w *suiteWorld) task(words []string, options map[string]string) error {
	op, err := w.find(words[0])
	if err != nil {
		return err
	}
	task := map[string]any{"job_count": int64(1), "port_count": int64(1), "command": "serve"}
	for name, value := range options {
		n, err := strconv.Atoi(value)
		if err != nil {
			return err
		}
		switch name {
		case "jobs":
			task["job_count"] = int64(n)
		case "ports":
			task["port_count"] = int64(n)
		default:
			return fmt.Errorf("no such option: %s", name)
		}
	}
	op.Spec["tasks"].(map[string]any)[words[1]] = task
	return nil
}

func (w *suiteWorld) job(words []string, options map[string]string) error {
	op, err := w.find(words[0])
	if err != nil {
		return err
	}
	j := scheduler.Job{ID: words[1], Task: words[2], Address: words[3]}
	for _, word := range words[4:] {
		switch word {
		case "stale":
			j.Stale = true
		case "away":
			j.Away = true
		default:
			return fmt.Errorf("no such word: %s", word)
		}
	}
	for name, value := range options {
		switch name {
		case "state":
			j.State = value
		case "ports":
			if j.Ports, err = parsePorts(value); err != nil {
				return err
			}
		default:
			return fmt.Errorf("no such option: %s", name)
		}
	}
	if i := slices.IndexFunc(op.jobs, func(known scheduler.Job) bool { return known.ID == j.ID }); i >= 0 {
		op.jobs[i] = j
		return nil
	}
	op.jobs = append(op.jobs, j)
	return nil
}

func parsePorts(s string) (ports []int, err error) {
	for p := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(p)
		if err != nil {
			return nil, err
		}
		ports = append(ports, n)
	}
	return ports, nil
}

// cypressPath makes a path of one whose names are as they are: escaped where they would mean more.
func cypressPath(s string) ypath.Path {
	escape := strings.NewReplacer(`\`, `\\`, "[", `\[`, "{", `\{`, "*", `\*`, "&", `\&`, "@", `\@`)
	return ypath.Path(escape.Replace(s))
}

func (w *suiteWorld) node(words []string, _ map[string]string) error {
	w.cypress = append(w.cypress, func(ctx context.Context, yc yt.Client) error {
		_, err := yc.CreateNode(ctx, cypressPath(words[0]), yt.NodeMap, &yt.CreateNodeOptions{Recursive: true, IgnoreExisting: true})
		return err
	})
	return nil
}

func (w *suiteWorld) remove(words []string, _ map[string]string) error {
	w.cypress = append(w.cypress, func(ctx context.Context, yc yt.Client) error {
		return yc.RemoveNode(ctx, cypressPath(words[0]), &yt.RemoveNodeOptions{Recursive: true})
	})
	return nil
}

func (w *suiteWorld) resolve(words []string, _ map[string]string) error {
	ips := []netip.Addr{}
	for _, s := range words[1:] {
		ip, err := netip.ParseAddr(s)
		if err != nil {
			return err
		}
		ips = append(ips, ip)
	}
	w.names[words[0]] = ips
	return nil
}
