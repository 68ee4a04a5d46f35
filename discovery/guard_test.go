package discovery

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"taskproxy/ytclient"
)

func TestGuardDecides(t *testing.T) {
	t.Parallel()
	const notNode = "its host is not the exec node of a running job of the operation"
	tests := []struct {
		name      string
		url       string
		endpoints string
		problem   string
	}{
		{"the node's name", "http://node-1.local:27001", "a=10.0.0.1:27001", ""},
		{"in capitals and with a dot", "http://NODE-1.local.:27001/", "a=10.0.0.1:27001", ""},
		{"the first part of the name", "http://node-1:27001", "a=10.0.0.1:27001", ""},
		{"the node's address", "http://10.0.0.1:27999", "a=10.0.0.1:27999", ""},
		{"the address in IPv6", "http://[::ffff:10.0.0.1]:27001", "a=10.0.0.1:27001", ""},
		{"with a zone", "http://[::ffff:10.0.0.1%25eth0]:27001", "a=10.0.0.1:27001", ""},
		{"a port that the node gave", "http://node-1.local:20001", "a=10.0.0.1:20001", ""},

		{"loopback", "http://127.0.0.1:27001", "", notNode},
		{"loopback by name", "http://localhost:27001", "", notNode},
		{"loopback in IPv6", "http://[::1]:27001", "", notNode},
		{"loopback in IPv4 in IPv6", "http://[::ffff:127.0.0.1]:27001", "", notNode},
		{"any address", "http://0.0.0.0:27001", "", notNode},
		{"the metadata service", "http://169.254.169.254/", "", notNode},
		{"the metadata service on a port of Spark's", "http://169.254.169.254:27001", "", notNode},
		{"the cluster's own proxy", "http://http-proxies.local:80", "", notNode},
		{"the cluster's own proxy without a port", "http://http-proxies.local/api", "", notNode},
		{"a node where others run", "http://node-2.local:27001", "", notNode},
		{"a name that nobody has", "http://nowhere.local:27001", "", "its host has no address"},
		{"a port of another job", "http://node-1.local:20002", "", "the exec node gave its port to another job"},
		{"a port of another job among Spark's", "http://node-1.local:27500", "", "the exec node gave its port to another job"},
		{"the node's own port", "http://node-1.local:9012", "", "its port is neither"},
		{"no port", "http://node-1.local", "", "its port is neither"},
		{"below the range", "http://node-1.local:26999", "", "its port is neither"},
		{"above the range", "http://node-1.local:28000", "", "its port is neither"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			played(t, func(t *testing.T) {
				w := newTown(t)
				w.sayWebUI("one", tt.url)
				w.cycle()
				if tt.problem == "" {
					w.check("", tt.endpoints)
				} else {
					w.check("", tt.endpoints, `rejected_address one task "driver" service "ui": its address "`)
					w.check("", tt.endpoints, tt.problem)
				}
			})
		})
	}
}

// A name whose addresses are a node's and something else's leads to the node, in whichever order they come.
func TestGuardNameWithTwoAddresses(t *testing.T) {
	for _, ips := range [][]string{{"10.0.0.1", "169.254.169.254"}, {"169.254.169.254", "10.0.0.1"}, {"127.0.0.1", "::ffff:10.0.0.1"}} {
		t.Run(strings.Join(ips, " "), func(t *testing.T) {
			played(t, func(t *testing.T) {
				w := newTown(t)
				w.names["both.example.com"] = ips
				w.sayWebUI("one", "http://both.example.com:27001")
				w.want("two addresses", "a=10.0.0.1:27001")
			})
		})
	}
}

// What was resolved is what is dialled: a name that means something else a moment later changes nothing.
func TestGuardNameThatChanges(t *testing.T) {
	played(t, func(t *testing.T) {
		w := newTown(t)
		w.names["rebind.example.com"] = []string{"10.0.0.1"}
		w.sayWebUI("one", "http://rebind.example.com:27001")
		w.want("at first", "a=10.0.0.1:27001")
		w.names["rebind.example.com"] = []string{"169.254.169.254"}
		for range 3 {
			time.Sleep(2 * time.Minute)
			w.want("later", "a=10.0.0.1:27001")
		}
	})
	t.Run("the other way round", func(t *testing.T) {
		played(t, func(t *testing.T) {
			w := newTown(t)
			w.names["rebind.example.com"] = []string{"169.254.169.254"}
			w.sayWebUI("one", "http://rebind.example.com:27001")
			w.want("at first", "", "rejected_address")
			w.names["rebind.example.com"] = []string{"10.0.0.1"}
			time.Sleep(2 * time.Minute)
			w.want("later", "a=10.0.0.1:27001")
		})
	})
}

func TestGuardWithoutSparkPorts(t *testing.T) {
	played(t, func(t *testing.T) {
		w := newTown(t, func(c *Config) { c.SPYT.Ports = PortRanges{} })
		w.sayWebUI("one", "http://node-1.local:27001")
		w.want("a port that nobody gave", "", "its port is neither")
		w.sayWebUI("one", "http://node-1.local:20001")
		w.want("a port that the node gave", "a=10.0.0.1:20001")
	})
}

// There may be several exec nodes at one host, and a port of it is one port.
func TestGuardSeveralNodesAtAHost(t *testing.T) {
	played(t, func(t *testing.T) {
		w := newTown(t)
		w.operation("two", map[string]any{"task_proxy": map[string]any{"enabled": true}})
		w.tasks["two"] = []ytclient.Task{{Name: "server", JobCount: 1, PortCount: 1}}
		w.job("two", "b", "server", "node-1.local:9013", 27100)
		w.sayWebUI("one", "http://node-1.local:27100")
		w.want("a port of a job at the other node", "", "gave its port to another job")

		// They may even give one port twice. Who answers there nobody knows.
		w.job("other", "u", "server", "node-1.local:9013", 20001)
		w.sayWebUI("one", "http://node-1.local:20001")
		w.want("a port that both nodes gave", "", "gave its port to another job")
	})
}

func TestGuardIPv6Node(t *testing.T) {
	played(t, func(t *testing.T) {
		w := newTown(t)
		w.operation("two", map[string]any{"spark_connect_endpoint": "[2001:DB8:0::3]:27080", "description": map[string]any{"Web UI": "http://[2001:db8::3]:27001"}}, "driver")
		w.job("two", "b", "driver", "[2001:db8::3]:9012")
		w.operation("four", map[string]any{"spark_connect_endpoint": "10.0.0.7:27080"}, "driver")
		w.job("four", "d", "driver", "[::ffff:10.0.0.7]:9012")
		w.operation("three", map[string]any{"spark_connect_endpoint": "node-3:27090"}, "driver")
		w.job("three", "c", "driver", "node-3.local:9012")
		w.cycle()
		w.problems("")
		if got := w.endpoints("two", "driver", "ui") + " " + w.endpoints("two", "driver", "connect"); got != "b=[2001:db8::3]:27001 b=[2001:db8::3]:27080" {
			t.Errorf("two has %q", got)
		}
		if got := w.endpoints("three", "driver", "connect"); got != "c=10.0.0.3:27090" {
			t.Errorf("three has %q", got)
		}
		if got := w.endpoints("four", "driver", "connect"); got != "d=10.0.0.7:27080" {
			t.Errorf("four has %q", got)
		}
	})
}

// Two operations on one node claim one port: the one that has it keeps it for as long as it lives, and of two that come
// together the older has it.
func TestGuardTwoClaimsToOnePort(t *testing.T) {
	played(t, func(t *testing.T) {
		w := newTown(t)
		w.operation("two", nil, "driver")
		w.operations["two"].Annotations = map[string]any{}
		w.job("two", "b", "driver", "node-1.local:9012")
		w.sayWebUI("one", "http://node-1.local:27001")
		w.sayWebUI("two", "http://10.0.0.1:27001")
		check := func(what, one, two string) {
			t.Helper()
			w.cycle()
			if got := w.endpoints("one", "driver", "ui"); got != one {
				t.Errorf("%s: one has %q, want %q; %v", what, got, one, w.d.Problems())
			}
			if got := w.endpoints("two", "driver", "ui"); got != two {
				t.Errorf("%s: two has %q, want %q; %v", what, got, two, w.d.Problems())
			}
		}
		check("together", "a=10.0.0.1:27001", "")
		w.problems("together", "two task \"driver\" service \"ui\": its address \"10.0.0.1:27001\" is not used: another operation has its port")
		w.operation("zero", nil, "driver").StartTime = start.Add(-time.Hour)
		w.operations["zero"].Annotations = map[string]any{}
		w.job("zero", "z", "driver", "node-1.local:9012")
		w.sayWebUI("zero", "http://node-1.local:27001")
		check("an older one comes later", "a=10.0.0.1:27001", "")
		if got := w.endpoints("zero", "driver", "ui"); got != "" {
			t.Errorf("the older one that came later has %q", got)
		}
		delete(w.operations, "zero")
		delete(w.operations, "one")
		w.jobs["one"], w.jobs["zero"] = nil, nil
		w.stir("two")
		check("the first has ended", "none", "b=10.0.0.1:27001")
	})
}

// What a node gave to a job is the job's, whoever claimed it before.
func TestGuardGivenPortTakesPrecedence(t *testing.T) {
	played(t, func(t *testing.T) {
		w := newTown(t)
		w.operation("two", map[string]any{}, "driver")
		w.sayWebUI("one", "http://node-1.local:27001")
		w.want("a port that nobody else has", "a=10.0.0.1:27001")
		w.job("two", "b", "driver", "node-1.local:9012", 27001)
		w.sayWebUI("two", "http://node-1.local:27001")
		w.want("now given to two", "", "gave its port to another job")
		if got := w.endpoints("two", "driver", "ui"); got != "b=10.0.0.1:27001" {
			t.Errorf("two has %q", got)
		}
	})
}

// Also where the host has two names, so that only its address tells that it is one port.
func TestGuardGivenPortAtAHostOfTwoNames(t *testing.T) {
	played(t, func(t *testing.T) {
		w := newTown(t)
		w.names["node-1b.local"] = []string{"10.0.0.1"}
		w.sayWebUI("one", "http://node-1.local:27001")
		w.want("a port that nobody else has", "a=10.0.0.1:27001")
		w.operation("two", map[string]any{}, "driver")
		w.job("two", "b", "driver", "node-1b.local:9013", 27001)
		w.sayWebUI("two", "http://node-1b.local:27001")
		for _, what := range []string{"now given to two", "a minute later"} {
			w.cycle()
			if got := w.endpoints("one", "driver", "ui"); got != "" {
				t.Errorf("%s: one has %q; %v", what, got, w.d.Problems())
			}
			if got := w.endpoints("two", "driver", "ui"); got != "b=10.0.0.1:27001" {
				t.Errorf("%s: two has %q; %v", what, got, w.d.Problems())
			}
			time.Sleep(2 * time.Minute)
		}
	})
}

// A process may close its port while its job goes on, and the node gives the port to another job. Whoever waited for that
// gets nothing for longer than the list of jobs is believed.
func TestGuardPortGivenLater(t *testing.T) {
	played(t, func(t *testing.T) {
		w := newTown(t)
		w.sayWebUI("one", "http://node-1.local:27001")
		w.want("a port that nobody else has", "a=10.0.0.1:27001")
		w.job("victim", "x", "instances", "node-1.local:9012", 27001)
		time.Sleep(2 * time.Minute)
		w.want("given to another", "", "gave its port to another job")
	})
}

// An address counts for the jobs that ran when it was first seen. The next job has to write it again.
func TestGuardClaimDiesWithItsJob(t *testing.T) {
	played(t, func(t *testing.T) {
		w := newTown(t)
		w.sayWebUI("one", "http://node-1.local:27001")
		w.want("written by a", "a=10.0.0.1:27001")
		w.say("one", "x", "y")
		w.want("a goes on, and writes something else", "a=10.0.0.1:27001")
		w.endJob("a")
		w.job("one", "b", "driver", "node-1.local:9012")
		for range 3 {
			w.want("b came to the same node", "", "the job that ran when it was written has ended")
			time.Sleep(2 * time.Minute)
		}
		w.say("one", "description", map[string]any{"Web UI": "http://node-1.local:27001", "Executors operation ID": "1-2-3-4"})
		w.want("b has written", "b=10.0.0.1:27001")
		w.endJob("b")
		w.job("one", "c", "driver", "node-2.local:9012")
		w.want("c came to another node", "", "its host is not the exec node")
		w.sayWebUI("one", "http://node-2.local:27001")
		w.want("c has written", "c=10.0.0.2:27001")
	})
}

// Nor does it pass to another job that ran then.
func TestGuardClaimDoesNotPassOn(t *testing.T) {
	played(t, func(t *testing.T) {
		w := newTown(t)
		w.job("one", "b", "driver", "node-1.local:9012")
		w.sayWebUI("one", "http://node-1.local:27001")
		w.want("written by a", "a=10.0.0.1:27001")
		w.endJob("a")
		w.want("b goes on", "", "the job that ran when it was written has ended")
	})
}

// An address of a node where the operation has no job yet does not become one when a job gets there.
func TestGuardAddressWrittenInAdvance(t *testing.T) {
	played(t, func(t *testing.T) {
		w := newTown(t)
		w.sayWebUI("one", "http://node-2.local:27001")
		w.want("a runs elsewhere", "", "its host is not the exec node")
		w.endJob("a")
		w.job("one", "b", "driver", "node-2.local:9012")
		w.want("b came there", "", "the job that ran when it was written has ended")
	})
}

// A list of jobs that leaves one out for once costs its endpoint no longer than that.
func TestGuardJobComesBack(t *testing.T) {
	played(t, func(t *testing.T) {
		w := newTown(t)
		w.job("one", "b", "driver", "node-2.local:9012")
		w.sayWebUI("one", "http://node-1.local:27001")
		w.want("at first", "a=10.0.0.1:27001")
		w.endJob("a")
		w.want("left out", "", "its host is not the exec node")
		w.job("one", "a", "driver", "node-1.local:9012")
		w.want("back", "a=10.0.0.1:27001")
	})
}

// What is not answered takes nothing away.
func TestGuardHoldsOnErrors(t *testing.T) {
	played(t, func(t *testing.T) {
		w := newTown(t)
		w.nodeErr["node-1.local:9012"] = ytclient.ErrUnavailable
		w.sayWebUI("one", "http://node-1.local:27001")
		w.want("the node is silent", "", "cluster_call one task \"driver\" service \"ui\": its address \"node-1.local:27001\" is not used: an exec node does not tell its jobs: unavailable")
		delete(w.nodeErr, "node-1.local:9012")
		w.want("it answers", "a=10.0.0.1:27001")

		w.nodeErr["node-1.local:9012"] = fmt.Errorf("secret: %w", ytclient.ErrUnavailable)
		w.names["node-1.local"] = nil
		time.Sleep(2 * time.Minute)
		w.want("silent again", "a=10.0.0.1:27001", "unavailable")
		w.nodeErr = map[string]error{}
		w.odd["v"] = errors.New("odd")
		w.want("a job of the node's cannot be read", "a=10.0.0.1:27001", "odd_answer")
		w.odd = map[string]error{}
		w.want("all is well", "a=10.0.0.1:27001")
	})
}

// While the jobs of the operation cannot be listed, its node must confirm from time to time that the job still runs.
func TestGuardHeldJob(t *testing.T) {
	for _, ports := range [][]int{nil, {20001}} {
		t.Run(fmt.Sprint(ports), func(t *testing.T) {
			played(t, func(t *testing.T) {
				w := newTown(t)
				w.ports["a"] = ports
				w.sayWebUI("one", "http://node-1.local:27001")
				w.want("at first", "a=10.0.0.1:27001")
				w.listErr = ytclient.ErrUnavailable
				for range 3 {
					time.Sleep(2 * time.Minute)
					w.want("its jobs cannot be listed", "a=10.0.0.1:27001", "unavailable")
				}
				w.jobs["one"] = nil
				time.Sleep(2 * time.Minute)
				w.want("its node does not know it any more", "", "unavailable")
			})
		})
	}
}

// Whose ports cannot be read may be whose port it is.
func TestGuardUnreadableNeighbour(t *testing.T) {
	played(t, func(t *testing.T) {
		w := newTown(t)
		w.odd["v"] = errors.New("odd")
		w.sayWebUI("one", "http://node-1.local:27001")
		w.want("a neighbour that cannot be read", "", "odd_answer")
		w.sayWebUI("one", "http://node-1.local:20001")
		w.want("a port that the node gave", "a=10.0.0.1:20001")
	})
}

// The node decides whose job it is, not the operation's author.
func TestGuardNodeDoesNotKnowTheJob(t *testing.T) {
	played(t, func(t *testing.T) {
		w := newTown(t)
		w.sayWebUI("one", "http://node-1.local:27001")
		w.d.source.(*source).nodeJobs = func(string) ([]ytclient.NodeJob, error) {
			return []ytclient.NodeJob{{ID: "a", OperationID: "other"}}, nil
		}
		w.want("once", "")
		w.want("twice", "")
		w.want("three times", "", "the exec node does not know the operation's job")
		w.d.source.(*source).nodeJobs = w.source().nodeJobs
		w.want("known", "a=10.0.0.1:27001")

		// The cluster still lists the job, but its node does not: believed the second time.
		w.d.source.(*source).nodeJobs = func(string) ([]ytclient.NodeJob, error) { return nil, nil }
		time.Sleep(2 * time.Minute)
		w.want("unknown once", "a=10.0.0.1:27001")
		w.want("unknown twice", "")
	})
}

// Names are looked up for strangers: however many of them do not answer, a cycle is not held up.
func TestGuardSlowNames(t *testing.T) {
	played(t, func(t *testing.T) {
		w := newTown(t)
		for i := range 200 {
			host, id := fmt.Sprintf("slow-%d.example.com", i), fmt.Sprintf("slow-%03d", i)
			w.names[host] = nil
			w.operation(id, map[string]any{"spark_connect_endpoint": host + ":27080"}, "driver")
			w.job(id, "j"+id, "driver", "node-2.local:9012")
		}
		w.sayWebUI("one", "http://node-1.local:27001")
		for range 3 {
			began := time.Now()
			w.cycle()
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("a cycle took %s", took)
			}
		}
		if got := w.endpoints("one", "driver", "ui"); got != "a=10.0.0.1:27001" {
			t.Errorf("one has %q", got)
		}
		if n := len(w.asked); n > 16+3 {
			t.Errorf("%d names were looked up", n)
		}

		// Who comes anew does not wait until all of them have been tried again.
		w.names["gateway.example.com"] = []string{"10.0.0.3"}
		w.operation("two", map[string]any{"spark_connect_endpoint": "gateway.example.com:27080"}, "driver")
		w.job("two", "b", "driver", "node-3.local:9012")
		w.cycle()
		if got := w.endpoints("two", "driver", "connect"); got != "b=10.0.0.3:27080" {
			t.Errorf("two has %q", got)
		}
	})
}

// Names that are always new and never answer take no time from other users' names.
func TestGuardNamesOfEachUser(t *testing.T) {
	played(t, func(t *testing.T) {
		w := newTown(t)
		const flood = 40 // many times what is looked up at once
		for i := range flood {
			id := fmt.Sprintf("flood-%02d", i)
			w.operation(id, map[string]any{}, "driver").User = "mallory"
			w.job(id, "j"+id, "driver", "node-2.local:9012")
		}
		round := 0
		rename := func() {
			round++
			for i := range flood {
				host := fmt.Sprintf("h%d-%d.example.com", round, i)
				w.names[host] = nil
				w.sayWebUI(fmt.Sprintf("flood-%02d", i), "http://"+host+":27001")
			}
		}
		w.names["late.example.com"] = nil
		w.sayWebUI("one", "http://late.example.com:27001")
		for range 3 {
			rename()
			w.cycle()
			time.Sleep(10 * time.Second)
		}
		w.names["late.example.com"] = []string{"10.0.0.1"}
		rename()
		w.cycle()
		if got := w.endpoints("one", "driver", "ui"); got != "a=10.0.0.1:27001" {
			t.Errorf("one has %q", got)
		}
	})
}

// A settled address costs nothing in a warm cycle, and a refused one no more than a settled one.
func TestGuardCost(t *testing.T) {
	for _, url := range []string{"http://node-1.local:27001", "http://node-2.local:27001"} {
		t.Run(url, func(t *testing.T) {
			played(t, func(t *testing.T) {
				w := newTown(t)
				w.ports["a"] = nil // as drivers are: no port is asked for
				w.sayWebUI("one", url)
				w.cycle()
				for range 3 {
					if got := w.cycle(); len(got) != 0 {
						t.Errorf("a cycle without change calls %q", got)
					}
				}
				time.Sleep(2 * time.Minute)
				if got := w.cycle(); !slices.Contains(got, "list_jobs one") || slices.Contains(got, "job_ports a") {
					t.Errorf("a refresh calls %q", got)
				}
			})
		})
	}
}

func TestParsePortRanges(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"": "", " ": "", "27000-27999": "27000-27999", "1, 5-7": "1,5-7", "65535": "65535"} {
		got, err := ParsePortRanges(text)
		if err != nil || got == nil || got.String() != want {
			t.Errorf("%q = %v, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"0", "a", "5-4", "1-65536", "-", "1-2-3", ",", "+1"} {
		if got, err := ParsePortRanges(text); err == nil {
			t.Errorf("%q = %v", text, got)
		}
	}
}

// Orchids and other places under //sys may never answer, and are nobody's discovery path.
func TestDiscoveryPathIsNotInSys(t *testing.T) {
	t.Parallel()
	for path, bad := range map[string]bool{
		"//sys": true, "//sys/exec_nodes/dead-node:9012/orchid": true, "//sys/task_proxies": true,
		"//system/spark": false, "//home/sys/spark": false, "//home/spark": false,
	} {
		if got := badPath(path); (got != "") != bad {
			t.Errorf("badPath(%q) = %q", path, got)
		}
	}
}
