package discovery

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"taskproxy/ytclient"
)

// SPYTConfig is how Spark's operations are published. The zero value is ready.
type SPYTConfig struct {
	// HideREST leaves the REST submission server of standalone clusters unpublished.
	HideREST bool
	// RESTPermission is what its callers need beside Read; empty: Manage, because whoever gets in runs code as the
	// cluster's owner. Read: no more than that.
	RESTPermission ytclient.Permission
	// Ports are those that Spark's processes may take without having been given them by their exec node. nil: 27000-27999;
	// empty but not nil: none.
	Ports PortRanges
}

// defaultSparkPorts has the ports that SPYT's processes try: 27001 and up, Spark Connect 27080 and up.
var defaultSparkPorts = PortRanges{{27000, 27999}}

func (cfg SPYTConfig) check() error {
	switch cfg.RESTPermission {
	case "", ytclient.Read, ytclient.Manage:
	default:
		return fmt.Errorf("discovery: SPYT.RESTPermission is %q; it must be %s, or %s, or empty for %s",
			cfg.RESTPermission, ytclient.Read, ytclient.Manage, ytclient.Manage)
	}
	for _, r := range cfg.Ports {
		if r.First < 1 || r.Last < r.First {
			return fmt.Errorf("discovery: SPYT.Ports has %s, which is no range of ports", r)
		}
	}
	return nil
}

// Where SPYT leaves things among an operation's annotations.
const (
	isSpark         = "is_spark"
	description     = "description"
	webUI           = "Web UI"                 // in description: the URL of a driver's page, written while the operation runs
	connectEndpoint = "spark_connect_endpoint" // host:port of a Spark Connect server, likewise
	clusterInfo     = "Spark over YT"          // in description: what there is to know about a standalone cluster
	discoveryPath   = "discovery_path"         // in clusterInfo: where in Cypress its processes leave their addresses
)

const driverTask = "driver"

// directSubmit is the publisher of drivers that SPYT starts without a standalone cluster. They are known by what the driver
// writes into the annotations, because titles and everything else can be chosen by the user.
type directSubmit struct {
	// beside are those who may have published the operation already when somebody in it starts a Spark session. A driver
	// in an operation that is not its own, which has no task of that name, must not take the notebook away where it was
	// started: then these are asked as well.
	beside []*publisher
}

func (directSubmit) claims(annotations map[string]any) (verdict, []Problem) {
	if at(descriptionOf(annotations), webUI) != nil || at(annotations, connectEndpoint) != nil {
		return mine, nil
	}
	return notMine, nil
}

// declare publishes the driver's page and its Spark Connect server, whichever are written. The services are of a task called
// driver, also if the operation has none.
func (s directSubmit) declare(annotations map[string]any, tasks []ytclient.Task) ([]declaration, []Problem) {
	var r reading
	var services []declaration
	if v := at(descriptionOf(annotations), webUI); v != nil {
		where := `description/"Web UI"`
		url, ok := v.(string)
		address, problem := parseWebUI(url)
		switch {
		case !ok:
			r.problem(BadAnnotation, driverTask, "ui", where+" is "+describe(v)+"; it must be a string such as http://host:27001")
		case problem != "":
			r.problem(BadAnnotation, driverTask, "ui", where+" is "+describe(v)+"; "+problem)
		default:
			services = append(services, declaration{task: driverTask, name: "ui", protocol: HTTP, permissions: readOnly, written: place{at: address}})
		}
	}
	if v := at(annotations, connectEndpoint); v != nil {
		text, _ := v.(string)
		if address, ok := parseHostPort(text); ok {
			// It is a shell for whoever gets in.
			services = append(services, declaration{task: driverTask, name: "connect", protocol: GRPC, permissions: readAndManage, written: place{at: address}})
		} else {
			r.problem(BadAnnotation, driverTask, "connect", connectEndpoint+" is "+describe(v)+"; it must be a string such as host:27080")
		}
	}
	if _, own := taskNamed(tasks, driverTask); own || isTrue(annotations, isSpark) {
		return services, r.problems
	}
	p, problems := publisherOf(s.beside, annotations)
	r.problems = append(r.problems, problems...)
	if p != nil {
		more, problems := p.declare(annotations, tasks)
		services, r.problems = append(services, more...), append(r.problems, problems...)
	}
	return services, r.problems
}

// claimsCluster finds all operations of SPYT that are not drivers. Only standalone clusters say where they leave their
// addresses; executors, Livy servers and data transfers publish nothing.
func claimsCluster(annotations map[string]any) (verdict, []Problem) {
	switch {
	case !isTrue(annotations, isSpark):
		return notMine, nil
	case at(clusterInfoOf(annotations), discoveryPath) == nil:
		return nothing, nil
	}
	return mine, nil
}

// declareCluster publishes the pages of a standalone cluster's master and history server and the REST server of its master:
// these and no others, whatever else the operation carries. SPYT's client reads the rows of its cluster from the services
// table and fails on any that it does not know.
//
// An operation with the workers of such a cluster has the same annotations, but neither task, and publishes nothing.
func (cfg SPYTConfig) declareCluster(annotations map[string]any, tasks []ytclient.Task) ([]declaration, []Problem) {
	var services []declaration
	add := func(task, name, entry string, permissions []ytclient.Permission) {
		services = append(services, declaration{task: task, name: name, protocol: HTTP, permissions: permissions,
			written: place{entry: entry, task: task}})
	}
	if _, ok := taskNamed(tasks, "history"); ok {
		add("history", "ui", "shs", readOnly)
	}
	if _, ok := taskNamed(tasks, "master"); ok {
		if !cfg.HideREST {
			permissions := readAndManage
			if cfg.RESTPermission == ytclient.Read {
				permissions = readOnly
			}
			add("master", "rest", "rest", permissions)
			services[len(services)-1].sparkREST = true
		}
		add("master", "ui", "webui", readOnly)
	}
	if len(services) == 0 {
		return nil, nil
	}
	v := at(clusterInfoOf(annotations), discoveryPath)
	path, _ := v.(string)
	if reason := badPath(path); reason != "" {
		var r reading
		r.problem(BadAnnotation, "", "", `description/"Spark over YT"/discovery_path is `+describe(v)+"; "+reason)
		return nil, r.problems
	}
	for i := range services {
		services[i].written.directory = path + "/discovery"
	}
	return services, nil
}

// descriptionOf is the operation's description if it is a map; people write strings and all else there.
func descriptionOf(annotations map[string]any) map[string]any {
	m, _ := at(annotations, description).(map[string]any)
	return m
}

func clusterInfoOf(annotations map[string]any) map[string]any {
	m, _ := at(descriptionOf(annotations), clusterInfo).(map[string]any)
	return m
}

// maxPath is the longest discovery path in bytes.
const maxPath = 1024

// badPath says why a Cypress path is not one of plain literal names, as the end of a sentence; empty when it is. Anything
// that could mean more than a name in a path (attributes, selectors, escapes, object ids) is refused.
func badPath(path string) string {
	const want = "it must be a Cypress path of plain names, such as //home/spark/cluster"
	if len(path) > maxPath {
		return fmt.Sprintf("it is %d bytes long; at most %d are read", len(path), maxPath)
	}
	names, ok := strings.CutPrefix(path, "//")
	if !ok || !utf8.ValidString(path) {
		return want
	}
	if names == "sys" || strings.HasPrefix(names, "sys/") {
		// Nobody's cluster lives there, but nodes whose orchids may never answer do.
		return "it must not be in //sys"
	}
	for name := range strings.SplitSeq(names, "/") {
		odd := func(c rune) bool {
			return !unicode.IsLetter(c) && !unicode.IsDigit(c) && !strings.ContainsRune("_-.+=:~", c)
		}
		if name == "" || strings.ContainsFunc(name, odd) {
			return want
		}
	}
	return ""
}
