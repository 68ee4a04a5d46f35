package discovery

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"go.ytsaurus.tech/yt/go/yson"

	"taskproxy/ytclient"
)

func TestPublishers(t *testing.T) {
	t.Parallel()
	type m = map[string]any
	url := func(v any) m { return m{"description": m{"Web UI": v}} }
	info := func(path any) m {
		return m{"description": m{"Spark over YT": m{"discovery_path": path, "enablers": "{}", "job_types": []any{"master"}}}}
	}
	with := func(base m, more ...any) m {
		out := maps.Clone(base)
		for i := 0; i < len(more); i += 2 {
			out[more[i].(string)] = more[i+1]
		}
		return out
	}
	on := m{"enabled": true, "tasks_info": m{"master": m{"rest": m{"protocol": "http", "port_index": int64(2)}, "ui": m{"protocol": "http", "port_index": int64(1)}}}}
	driver := []ytclient.Task{{Name: "driver", JobCount: 1}}
	cluster := []ytclient.Task{{Name: "history", JobCount: 1, PortCount: 1}, {Name: "master", JobCount: 1, PortCount: 3}, {Name: "workers", JobCount: 2, PortCount: 2}}
	three := []string{"history/ui http //home/x/discovery/shs", "master/rest http //home/x/discovery/rest manage", "master/ui http //home/x/discovery/webui"}
	notebook := []ytclient.Task{{Name: "jupyter", JobCount: 1, PortCount: 1}}

	tests := []struct {
		name        string
		annotations m
		tasks       []ytclient.Task
		cfg         SPYTConfig
		want        []string
	}{
		{name: "driver", annotations: url("http://node:27001"), tasks: driver, want: []string{"driver/ui http node:27001"}},
		{name: "driver with further keys", annotations: m{"description": m{"Web UI": "http://node:27001", "Executors operation ID": "1-2-3-4", "x": nil}}, tasks: driver,
			want: []string{"driver/ui http node:27001"}},
		{name: "driver with attributes", annotations: m{"description": &yson.ValueWithAttrs{Value: m{"Web UI": &yson.ValueWithAttrs{Value: "http://node:27001"}}}}, tasks: driver,
			want: []string{"driver/ui http node:27001"}},
		{name: "driver with metrics", annotations: with(url("http://node:27001"), "is_spark", true), tasks: driver, want: []string{"driver/ui http node:27001"}},
		{name: "driver with a task_proxy", annotations: with(url("http://node:27001"), "task_proxy", on), tasks: driver, want: []string{"driver/ui http node:27001"}},
		{name: "driver in IPv6", annotations: url("http://[2001:DB8::0:1]:27001"), tasks: driver, want: []string{"driver/ui http [2001:db8::1]:27001"}},
		{name: "driver without a port", annotations: url("http://node/"), tasks: driver, want: []string{"driver/ui http node:80"}},
		{name: "driver with a path", annotations: url("http://node:4040/proxy/x?y#z"), tasks: driver, want: []string{"driver/ui http node:4040"}},
		{name: "driver with TLS", annotations: url("https://node:27001"), tasks: driver,
			want: []string{`! bad_annotation task "driver" service "ui": description/"Web UI" is the string "https://node:27001"; jobs are spoken to over http: switch Spark's SSL off, the proxy has its own`}},
		{name: "driver with nonsense", annotations: url("no\nURL"), tasks: driver,
			want: []string{`! bad_annotation task "driver" service "ui": description/"Web UI" is the string "no\nURL"; it must be a URL such as http://host:27001`}},
		{name: "driver with a number", annotations: url(int64(5)), tasks: driver,
			want: []string{`! bad_annotation task "driver" service "ui": description/"Web UI" is the integer 5; it must be a string such as http://host:27001`}},
		{name: "driver with null", annotations: url(nil), tasks: driver},
		{name: "description of another kind", annotations: m{"description": "Web UI"}, tasks: driver},
		{name: "description a list", annotations: m{"description": []any{"Web UI"}}, tasks: driver},
		{name: "connect server", annotations: with(url("http://node:27001"), "spark_connect_endpoint", "node:27080"), tasks: driver,
			want: []string{"driver/ui http node:27001", "driver/connect grpc node:27080 manage"}},
		{name: "connect server without a page", annotations: m{"spark_connect_endpoint": "[::1]:27080"}, tasks: driver, want: []string{"driver/connect grpc [::1]:27080 manage"}},
		{name: "connect server with nonsense", annotations: m{"spark_connect_endpoint": "sc://node:27080"}, tasks: driver,
			want: []string{`! bad_annotation task "driver" service "connect": spark_connect_endpoint is the string "sc://node:27080"; it must be a string such as host:27080`}},
		{name: "a session in a notebook", annotations: with(url("http://node:27001"), "is_notebook", true), tasks: notebook,
			want: []string{"driver/ui http node:27001", "jupyter/ui http 0 manage"}},
		{name: "a session in an annotated operation", annotations: with(url("http://node:27001"), "task_proxy", m{"enabled": true}), tasks: notebook,
			want: []string{"driver/ui http node:27001", "jupyter/port_0 http 0"}},
		{name: "a session in a clique", annotations: with(url("http://node:27001"), "is_clique", true, "task_proxy", m{"enabled": true}), tasks: notebook,
			want: []string{"driver/ui http node:27001"}},

		{name: "a session in a cluster", annotations: with(info("//home/x"), "description", m{"Web UI": "http://node:1"}, "is_spark", true, "task_proxy", on), tasks: cluster,
			want: []string{"driver/ui http node:1"}},

		{name: "cluster", annotations: with(info("//home/x"), "is_spark", true), tasks: cluster, want: three},
		{name: "cluster with is_spark as a string", annotations: with(info("//home/x"), "is_spark", "True"), tasks: cluster, want: three},
		{name: "cluster with a task_proxy", annotations: with(info("//home/x"), "is_spark", true, "task_proxy", on), tasks: cluster, want: three},
		{name: "cluster without history", annotations: with(info("//home/x"), "is_spark", true), tasks: cluster[1:], want: three[1:]},
		{name: "history alone", annotations: with(info("//home/x"), "is_spark", true), tasks: cluster[:1], want: three[:1]},
		{name: "hidden REST", annotations: with(info("//home/x"), "is_spark", true), tasks: cluster, cfg: SPYTConfig{HideREST: true}, want: []string{three[0], three[2]}},
		{name: "REST for readers", annotations: with(info("//home/x"), "is_spark", true), tasks: cluster, cfg: SPYTConfig{RESTPermission: ytclient.Read},
			want: []string{three[0], "master/rest http //home/x/discovery/rest", three[2]}},
		{name: "workers of a cluster", annotations: with(info("//home/x"), "is_spark", true, "task_proxy", m{"enabled": true}), tasks: cluster[2:]},
		{name: "cluster without a discovery path", annotations: m{"is_spark": true, "description": m{"Spark over YT": m{"discovery_group_id": "x"}}, "task_proxy": on}, tasks: cluster},
		{name: "executors", annotations: m{"is_spark": true, "task_proxy": m{"enabled": true}}, tasks: []ytclient.Task{{Name: "executor", JobCount: 5, PortCount: 1}}},
		{name: "Livy", annotations: m{"is_spark": true, "description": "x"}, tasks: []ytclient.Task{{Name: "livy", JobCount: 1}}},
		{name: "not Spark", annotations: with(info("//home/x"), "is_spark", false), tasks: cluster},
		{name: "not Spark but annotated", annotations: with(info("//home/x"), "is_spark", "no", "task_proxy", m{"enabled": true}), tasks: notebook, want: []string{"jupyter/port_0 http 0"}},
		{name: "discovery path of another kind", annotations: with(info([]any{}), "is_spark", true), tasks: cluster,
			want: []string{`! bad_annotation: description/"Spark over YT"/discovery_path is a list; it must be a Cypress path of plain names, such as //home/spark/cluster`}},

		{name: "notebook", annotations: m{"is_notebook": true, "expose": true}, tasks: notebook, want: []string{"jupyter/ui http 0 manage"}},
		{name: "notebook with a task_proxy", annotations: m{"is_notebook": true, "task_proxy": m{"enabled": true}}, tasks: notebook, want: []string{"jupyter/ui http 0 manage"}},
		{name: "notebook without a port", annotations: m{"is_notebook": "true"}, tasks: []ytclient.Task{{Name: "jupyter", JobCount: 1}},
			want: []string{`! bad_port_index task "jupyter": the notebook's task has no port; set its port_count to 1`}},
		{name: "notebook without its task", annotations: m{"is_notebook": true}, tasks: cluster,
			want: []string{`! unknown_task task "jupyter": the operation is a notebook by its annotations, but does not have this task`}},
		{name: "clique", annotations: m{"is_clique": true, "task_proxy": m{"enabled": true}}, tasks: []ytclient.Task{{Name: "instances", JobCount: 1, PortCount: 5}}},
		{name: "not a clique", annotations: m{"is_clique": false, "task_proxy": m{"enabled": true}}, tasks: notebook, want: []string{"jupyter/port_0 http 0"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, problems := publisherOf(newPublishers(tt.cfg, DefaultMaxServicesPerOperation), tt.annotations)
			got := words(nil, problems)
			if p != nil {
				services, more := declared(p, tt.annotations, tt.tasks)
				got = words(services, append(problems, more...))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

// Operations that certainly publish nothing cost no call.
func TestSilentOperationsAreNotAskedAbout(t *testing.T) {
	t.Parallel()
	for _, annotations := range []map[string]any{{"is_spark": true}, {"is_clique": true, "task_proxy": map[string]any{"enabled": true}}, {"description": map[string]any{"x": "y"}}, nil} {
		if p, problems := publisherOf(newPublishers(SPYTConfig{}, DefaultMaxServicesPerOperation), annotations); p != nil || len(problems) != 0 {
			t.Errorf("%v has a publisher, or problems %v", annotations, problems)
		}
	}
}

func TestSPYTConfig(t *testing.T) {
	t.Parallel()
	for _, cfg := range []SPYTConfig{{RESTPermission: "write"}, {Ports: PortRanges{{0, 5}}}, {Ports: PortRanges{{5, 4}}}} {
		if _, err := New(Config{Source: &source{}, SPYT: cfg}); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}

func TestDiscoveryPaths(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"//home/spark/cluster-1", "//tmp/a.b_c~d+e=f:g", "//home/пользователь"} {
		if reason := badPath(path); reason != "" {
			t.Errorf("%q: %s", path, reason)
		}
	}
	for _, path := range []string{"", "/", "//", "home/x", "/home/x", "//home/", "//home//x", "//home/x/", "///x", "//home/@attr", "//home/x/@", "//home/&x", "//home/*",
		"//home/x[1:2]", "//home/x{a}", `//home/\x41`, "#1-2-3-4", "//home/ x", "//home/x\x00", "//home/x\n", "//home/x\"", "//home/\xff", "<a=b>//home/x", "//home/x;y",
		"//" + strings.Repeat("x", maxPath)} {
		if badPath(path) == "" {
			t.Errorf("%q is accepted", path)
		}
	}
}

// spark makes a town with a standalone cluster of alice's: master a on node-1, history h on node-2, addresses in //home/c.
func spark(t *testing.T, change ...func(*Config)) *town {
	w := newTown(t, change...)
	delete(w.operations, "one")
	delete(w.tasks, "one")
	w.operation("one", map[string]any{
		"is_spark":    true,
		"description": map[string]any{"Spark over YT": map[string]any{"discovery_path": "//home/c", "job_types": []any{"master", "history", "worker"}}},
		"task_proxy": map[string]any{"enabled": true, "tasks_info": map[string]any{
			"master":  map[string]any{"rest": map[string]any{"protocol": "http", "port_index": int64(2)}, "ui": map[string]any{"protocol": "http", "port_index": int64(1)}},
			"history": map[string]any{"ui": map[string]any{"protocol": "http", "port_index": int64(0)}},
		}},
	})
	w.tasks["one"] = []ytclient.Task{{Name: "history", JobCount: 1, PortCount: 1}, {Name: "master", JobCount: 1, PortCount: 3}, {Name: "workers", JobCount: 1, PortCount: 2}}
	w.jobs["one"] = nil
	w.job("one", "a", "master", "node-1.local:9012", 20001, 20003, 20004)
	w.job("one", "h", "history", "node-2.local:9012", 20001)
	w.job("one", "k", "workers", "node-2.local:9012", 20005, 20006)
	w.names["node-1.local"], w.names["node-2.local"] = []string{"10.0.0.1"}, []string{"10.0.0.2"}
	return w
}

// register is what the master and the history server of a cluster leave in Cypress.
func (w *town) register(operation string) {
	w.plant(map[string]string{
		"operation": operation, "version": "2.9.0", "spark_address": "node-1:20001",
		"webui": "node-1:20003", "rest": "node-1.local:20004", "shs": "node-2.local:20001",
	})
}

// three are the endpoints of a cluster's master/ui, master/rest and history/ui.
func (w *town) three(what, ui, rest, history string, problems ...string) {
	w.t.Helper()
	w.cycle()
	for _, s := range [][3]string{{"master", "ui", ui}, {"master", "rest", rest}, {"history", "ui", history}} {
		if got := w.endpoints("one", s[0], s[1]); got != s[2] {
			w.t.Errorf("%s: %s/%s has %q, want %q; problems %v", what, s[0], s[1], got, s[2], w.d.Problems())
		}
	}
	if got := w.d.Snapshot().Len(); got != 3 {
		w.t.Errorf("%s: %d services:\n%s", what, got, w.d.Snapshot())
	}
	w.problems(what, problems...)
}

const (
	masterUI   = "a=10.0.0.1:20003"
	masterREST = "a=10.0.0.1:20004"
	historyUI  = "h=10.0.0.2:20001"
)

func TestSparkCluster(t *testing.T) {
	played(t, func(t *testing.T) {
		w := spark(t)
		w.three("nothing is registered: not ready, which is no problem", "", "", "")
		w.register("one")
		w.three("registered", masterUI, masterREST, historyUI)
		if got := w.cycle(); len(got) != 0 {
			t.Errorf("a cycle without change calls %q", got)
		}

		// An entry that goes takes its service's endpoint along, and only that.
		delete(w.children, "//home/c/discovery/rest")
		time.Sleep(2 * time.Minute)
		w.three("REST is gone", masterUI, "", historyUI)
	})
}

// A cluster that is started where another one was: until its master registers, the entries are the old one's.
func TestSparkClusterStaleEntries(t *testing.T) {
	played(t, func(t *testing.T) {
		w := spark(t)
		w.register("ended")
		w.three("an ended cluster's", "", "", "", "rejected_address one: its discovery directory says that it is another operation's")
		w.register("one")
		w.three("its own", masterUI, masterREST, historyUI)
	})
}

// The directory of somebody else's cluster: neither by its path nor by naming this operation in a directory of one's own.
func TestSparkClusterOfSomebodyElse(t *testing.T) {
	played(t, func(t *testing.T) {
		w := spark(t)
		w.operation("victim", map[string]any{}, "master")
		w.job("victim", "m", "master", "node-3.local:9012", 20001, 20002, 20003)
		w.plant(map[string]string{"operation": "victim", "webui": "node-3.local:20002", "rest": "node-3.local:20003", "shs": "node-3.local:20001"})
		w.three("the victim's directory", "", "", "", "says that it is another operation's")
		w.plant(map[string]string{"operation": "one", "webui": "node-3.local:20002", "rest": "node-1.local:20002", "shs": "node-1.local:20001"})
		w.three("the victim's addresses in a directory of one's own", "", "", "",
			`history" service "ui": its address is not used: its host is not the exec node`,
			`master" service "rest": its address is not used: the exec node gave its port to another job`,
			`master" service "ui": its address is not used: its host is not the exec node`)
	})
}

// An address is of the task that has it: not of another job of the operation.
func TestSparkClusterTasks(t *testing.T) {
	played(t, func(t *testing.T) {
		w := spark(t)
		w.register("one")
		w.plant(map[string]string{"webui": "node-2.local:27001", "rest": "node-2.local:20005", "shs": "node-1.local:27002"})
		w.three("on nodes of other tasks", "", "", "", "its host is not", "its host is not", "its host is not")

		// History that another cluster left there, on the node of this one's worker.
		w.endJob("h")
		w.tasks["one"] = w.tasks["one"][1:]
		w.plant(map[string]string{"webui": "node-1.local:20003", "rest": "node-1.local:20004", "shs": "node-2.local:20006"})
		w.d.tracked = map[string]*tracked{}
		w.cycle()
		if got := w.endpoints("one", "history", "ui"); got != "none" {
			t.Errorf("without a history task history/ui is %q", got)
		}
	})
}

func TestSparkClusterHistoryWithoutItsJob(t *testing.T) {
	played(t, func(t *testing.T) {
		w := spark(t)
		w.endJob("h")
		w.register("one")
		w.three("no history job", masterUI, masterREST, "")
		w.job("one", "h", "history", "node-2.local:9012", 20001)
		w.three("it runs", masterUI, masterREST, historyUI)
	})
}

// The entries of a master that has ended stay. They do not count for the next one, wherever it runs, until that one has
// registered anew, even if it says the same.
func TestSparkClusterMasterRestarts(t *testing.T) {
	played(t, func(t *testing.T) {
		w := spark(t)
		w.register("one")
		w.plant(map[string]string{"webui": "node-1.local:27001", "rest": "node-1.local:27002"})
		w.three("at first", "a=10.0.0.1:27001", "a=10.0.0.1:27002", historyUI)
		w.endJob("a")
		w.job("one", "b", "master", "node-1.local:9012", 20011, 20012, 20013)
		w.three("a new master at the same node", "", "", historyUI, lateJob, lateJob)
		w.say("one", "x", "y")
		w.three("that the author writes something else does not matter", "", "", historyUI, lateJob, lateJob)
		w.plant(map[string]string{"operation": "one", "webui": "node-1.local:27001", "rest": "node-1.local:20013"})
		w.stir("one")
		w.three("registered", "b=10.0.0.1:27001", "b=10.0.0.1:20013", historyUI)
	})
}

func TestSparkClusterOddDirectories(t *testing.T) {
	played(t, func(t *testing.T) {
		w := spark(t)
		w.register("one")
		w.children["//home/c/discovery/webui"] = []string{"node-1.local:20003", "node-1.local:20004"}
		w.plant(map[string]string{"rest": "secret name"})
		w.three("odd entries", "", "", historyUI,
			`master" service "rest": its address is not used: discovery/rest has a child that is no host:port`,
			`master" service "ui": its address is not used: discovery/webui has more than one child`)
		w.register("one")
		w.children["//home/c/discovery/operation"] = []string{"one", "two"}
		w.stir("one")
		w.three("two operations", "", "", "", "discovery/operation has more", "discovery/operation has more", "discovery/operation has more")
	})
}

// A directory that cannot be read takes nothing away.
func TestSparkClusterHoldsOnErrors(t *testing.T) {
	played(t, func(t *testing.T) {
		w := spark(t)
		w.pathErr["//home/c/discovery/operation"] = ytclient.ErrDenied
		w.three("it may not be read", "", "", "", "cluster_call one: its discovery directory cannot be read, what was known is kept: denied")
		w.register("one")
		w.pathErr = map[string]error{}
		w.three("it may", masterUI, masterREST, historyUI)
		w.pathErr["//home/c/discovery/operation"] = ytclient.ErrUnavailable
		w.pathErr["//home/c/discovery/webui"] = ytclient.ErrUnavailable
		time.Sleep(2 * time.Minute)
		w.three("it cannot be read", masterUI, masterREST, historyUI, "unavailable")
		w.pathErr = map[string]error{}
		w.three("it can", masterUI, masterREST, historyUI)

		fails := w.d.source.(*source)
		fails.listChildren = func([]string) ([]ytclient.ChildrenAnswer, error) { return nil, ytclient.ErrOverloaded }
		time.Sleep(2 * time.Minute)
		w.three("the call fails", masterUI, masterREST, historyUI, "overloaded")
		fails.listChildren = func([]string) ([]ytclient.ChildrenAnswer, error) { return nil, nil }
		w.three("too few answers", masterUI, masterREST, historyUI, "unavailable")
	})
}

// A directory in which nothing ever appears is not read in every cycle for ever.
func TestSparkClusterPatience(t *testing.T) {
	played(t, func(t *testing.T) {
		w := spark(t)
		reads := 0
		for range 10 * patience {
			if slices.Contains(w.cycle(), "list //home/c/discovery/operation") {
				reads++
			}
		}
		if reads != patience {
			t.Errorf("%d reads in %d cycles, want %d", reads, 10*patience, patience)
		}
		w.endJob("a")
		w.job("one", "b", "master", "node-1.local:9012", 20011, 20012, 20013)
		w.cycle()
		if !slices.Contains(w.cycle(), "list //home/c/discovery/operation") {
			t.Error("a new job does not renew the patience")
		}
		w.endJob("b")
		w.job("one", "a", "master", "node-1.local:9012", 20001, 20003, 20004)
		w.register("one")
		w.three("in the end", masterUI, masterREST, historyUI)
	})
}

// What the robot reads is told to nobody: neither in problems nor in logs.
func TestSparkClusterTellsNothingRead(t *testing.T) {
	played(t, func(t *testing.T) {
		const secret = "s3cret"
		var log bytes.Buffer
		w := spark(t, func(c *Config) {
			c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		})
		for _, entry := range []string{"operation", "webui", "rest", "shs"} {
			w.register("one")
			for _, name := range []string{secret, secret + ".local:27001", "10.0.0.1:1", "[" + secret + "]:1"} {
				w.plant(map[string]string{entry: name})
				w.stir("one")
				w.cycle()
				for _, p := range w.d.Problems() {
					if text := fmt.Sprint(p); strings.Contains(text, secret) || strings.Contains(text, "10.0.0.1") {
						t.Errorf("problem %q", text)
					}
				}
			}
		}
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log:\n%s", log.String())
		}
	})
}

// TestSPYTClient is what spark-submit-yt of SPYT 2.9 makes of the services table: the rows of its cluster, keyed by task and
// service, passed to a constructor that knows three names. Any other row is an error in its user's face.
func TestSPYTClient(t *testing.T) {
	played(t, func(t *testing.T) {
		w := spark(t)
		w.operation("child", w.operations["one"].Annotations) // its workers, with the same annotations and ports of their own
		w.tasks["child"] = []ytclient.Task{{Name: "workers", JobCount: 5, PortCount: 2}}
		w.register("one")
		w.three("", masterUI, masterREST, historyUI)
		rows := Rows(w.d.Snapshot(), "example.com")
		known := map[string]bool{"master_rest": true, "master_ui": true, "history_ui": true}
		arguments := map[string]string{}
		for _, row := range rows {
			if row.OperationID != "one" {
				t.Errorf("a row of operation %s", row.OperationID)
				continue
			}
			key := row.TaskName + "_" + row.Service
			if !known[key] {
				t.Errorf("TypeError: unexpected keyword argument %q", key)
			}
			if arguments[key] != "" {
				t.Errorf("two rows for %s", key)
			}
			arguments[key] = row.Domain
		}
		if len(arguments) != 3 || arguments["master_rest"] != ShortID("one", "master", "rest")+".example.com" {
			t.Errorf("arguments %v", arguments)
		}
	})
}

func TestParseWebUI(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"http://a-b_c.example:1":    "a-b_c.example:1",
		"http://h:65535/x":          "h:65535",
		"HTTP://H:1":                "h:1",
		"http://[fe80::1%25eth0]:1": "[fe80::1]:1",
		"http://[::ffff:1.2.3.4]:1": "1.2.3.4:1",
		"http://h":                  "h:80",
	} {
		if a, problem := parseWebUI(text); problem != "" || a.String() != want {
			t.Errorf("%q = %s, %q; want %s", text, a, problem, want)
		}
	}
	for _, text := range []string{"", "h:1", "//h:1", "http:h:1", "http:///x", "http://:1", "http://h:", "http://h:0", "http://h:65536", "http://h:-1", "http://h:+1", "http://u@h:1",
		"http://u:p@h:1", "http://h h:1", "http://h\x00:1", "http://[h]:1", "http://[::1:1", "http://::1:1", "http://127.1:1", "http://2130706433:1", "http://0x7f.1:1", "http://0x7f000001:1",
		"http://0177.0.0.1:1", "http://1.2.3:1", "http://..:1", "http://h..x:1", "http://h%2f:1", "http://" + strings.Repeat("x", 64) + ":1", "https://h:1", "ftp://h:1", "javascript:1", "http://h:1" + strings.Repeat("x", maxAddress)} {
		if a, problem := parseWebUI(text); problem == "" {
			t.Errorf("%q = %s", text, a)
		}
	}
}

func TestParseHostPort(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"h:1": "h:1", "[::1]:27001": "[::1]:27001", "[::ffff:1.2.3.4]:5": "1.2.3.4:5", "H.:80": "h:80"} {
		if a, ok := parseHostPort(text); !ok || a.String() != want {
			t.Errorf("%q = %s, %t; want %s", text, a, ok, want)
		}
	}
	for _, text := range []string{"", "h", ":1", "h:", "::1:1", "[h]:1", "[1.2.3.4]:1", "[::1]", "h:1:2", "h:01x", "http://h:1", "h:70000", "h:27001:27002", strings.Repeat("h", 2000) + ":1"} {
		if a, ok := parseHostPort(text); ok {
			t.Errorf("%q = %s", text, a)
		}
	}
}

func checkHostPort(t *testing.T, from string, a hostPort) {
	t.Helper()
	again, ok := parseHostPort(a.String())
	if !ok || again != a || a.port == 0 || a.host == "" || len(a.host) > 253 || strings.ContainsAny(a.host, "/%@ \x00") {
		t.Errorf("%q is read as %q", from, a)
	}
}

func FuzzWebUI(f *testing.F) {
	for _, s := range []string{"http://node:27001", "http://[::1%25eth0]:1/x?y", "https://h", "http://u@[::ffff:1.2.3.4]:65535", "h:1", "[::]:1", "http://h:99999", "HTTP://Ⅷ:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if a, problem := parseWebUI(s); problem == "" {
			checkHostPort(t, s, a)
		} else if a != (hostPort{}) {
			t.Errorf("%q is refused and read as %s", s, a)
		}
		if a, ok := parseHostPort(s); ok {
			checkHostPort(t, s, a)
		}
	})
}

func FuzzSPYTDescription(f *testing.F) {
	f.Add(`{"is_spark":true,"description":{"Spark over YT":{"discovery_path":"//home/x"}}}`, "master", 3)
	f.Add(`{"description":{"Web UI":"http://h:1"},"spark_connect_endpoint":"h:2","is_notebook":"true"}`, "jupyter", 1)
	f.Add(`{"is_spark":"True","description":{"Spark over YT":{"discovery_path":["//home"]},"Web UI":{}},"task_proxy":{"enabled":true}}`, "history", -1)
	f.Add(`{"is_spark":1,"is_clique":null,"description":[]}`, "driver", math.MaxInt)
	f.Fuzz(func(t *testing.T, text, task string, ports int) {
		var annotations map[string]any
		if json.Unmarshal([]byte(text), &annotations) != nil {
			return
		}
		tasks := []ytclient.Task{{Name: task, JobCount: 1, PortCount: ports}}
		p, problems := publisherOf(newPublishers(SPYTConfig{}, DefaultMaxServicesPerOperation), annotations)
		if p == nil {
			return
		}
		services, more := p.declare(annotations, tasks) // past the recover of declared
		for _, d := range services {
			if badName(d.task) != "" || badName(d.name) != "" || len(d.permissions) == 0 || d.permissions[0] != ytclient.Read {
				t.Errorf("declared %+v", d)
			}
			w := d.written
			switch {
			case w.directory != "":
				if badPath(strings.TrimSuffix(w.directory, "/discovery")) != "" || w.entry == "" || w.task == "" || w.at != (hostPort{}) {
					t.Errorf("declared %+v", d)
				}
			case !w.isZero():
				checkHostPort(t, text, w.at)
			}
		}
		if at(clusterInfoOf(annotations), discoveryPath) != nil && isTrue(annotations, isSpark) && at(descriptionOf(annotations), webUI) == nil && at(annotations, connectEndpoint) == nil {
			for _, d := range services {
				switch d.task + "_" + d.name {
				case "master_rest", "master_ui", "history_ui":
				default:
					t.Errorf("a standalone cluster has a service %s/%s", d.task, d.name)
				}
			}
		}
		for _, p := range append(problems, more...) {
			if strings.ContainsAny(p.String(), "\n\x00\x1b") || len(p.String()) > 4096 {
				t.Errorf("problem %q", p.String())
			}
		}
	})
}

// Only the publisher of standalone clusters says that a service is their REST server. An ordinary operation that calls its
// task and service the same is none, whatever else it writes.
func TestOnlyRealClustersHaveSparkREST(t *testing.T) {
	t.Parallel()
	w := spark(t)
	w.register("one")
	on := w.operations["one"].Annotations["task_proxy"]
	w.operation("forged", map[string]any{"task_proxy": on, "spark_rest": true, "SparkREST": true}, "master", "history")
	w.tasks["forged"] = w.tasks["one"]
	w.cycle()
	var got []string
	for _, s := range w.d.Snapshot().Services() {
		if s.SparkREST {
			got = append(got, s.OperationID+" "+s.Task+"/"+s.Name)
		}
	}
	if w.d.Snapshot().Lookup(LongID("forged", "master", "rest")) == nil {
		t.Fatal("there is no forged master/rest to look at")
	}
	if want := []string{"one master/rest"}; !slices.Equal(got, want) {
		t.Errorf("Spark's REST servers are %v, want %v", got, want)
	}
}
