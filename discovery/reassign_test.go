package discovery

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"taskproxy/ytclient"
)

// sharedHost is a town where two exec nodes at one host have each given port 20500 to a job of their own: x of operation x, y of
// operation y. bystander has another port there.
func sharedHost(t *testing.T) *town {
	t.Helper()
	w := newTown(t)
	for _, id := range []string{"x", "y", "bystander"} {
		w.operation(id, map[string]any{"task_proxy": map[string]any{"enabled": true}})
		w.tasks[id] = []ytclient.Task{{Name: "server", JobCount: 1, PortCount: 1}}
	}
	w.job("bystander", "z", "server", "node-1.local:9012", 20501)
	return w
}

func (w *town) share(who string) {
	nodes := map[string]string{"x": "node-1.local:9012", "y": "node-1.local:9013"}
	w.job(who, who, "server", nodes[who], 20500)
}

// sharing cycles and checks who has port 20500: "x", "y", or nobody.
func (w *town) sharing(what, owner string) {
	w.t.Helper()
	w.cycle()
	for _, id := range []string{"x", "y"} {
		want := ""
		if id == owner {
			want = id + "=node-1.local:20500"
		}
		if got := w.endpoints(id, "server", "port_0"); got != want && got != "none" {
			w.t.Errorf("%s: %s has %q, want %q; %v", what, id, got, want, w.d.Problems())
		}
		if s := w.d.Snapshot().Lookup(LongID(id, "server", "port_0")); s != nil && len(s.Held) != 1 && owner == "" {
			w.t.Errorf("%s: %s holds %v, want its one job, which runs as far as anybody knows", what, id, s.Held)
		}
	}
	if got := w.endpoints("bystander", "server", "port_0"); got != "z=node-1.local:20501" {
		w.t.Errorf("%s: bystander has %q", what, got)
	}
	problems := slices.DeleteFunc(slices.Clone(w.d.Problems()), func(p Problem) bool {
		return !strings.Contains(p.Reason, "two exec nodes at one host gave one port to two jobs")
	})
	if want := map[bool]int{true: 0, false: 2}[owner != ""]; len(problems) != want {
		w.t.Errorf("%s: problems %v, want %d", what, problems, want)
	}
}

// Where one port of a host was given to two jobs, nobody can tell which of them answers. Neither is an endpoint, whoever came
// first, and the nodes are asked less and less often.
func TestContestedPort(t *testing.T) {
	for name, come := range map[string]func(w *town){
		"together": func(w *town) { w.share("x"); w.share("y") },
		"one later": func(w *town) {
			w.share("x")
			w.sharing("x alone", "x")
			time.Sleep(10 * time.Second)
			w.share("y")
		},
	} {
		t.Run(name, func(t *testing.T) {
			played(t, func(t *testing.T) {
				w := sharedHost(t)
				var seen []string
				w.d.onSnapshot = func(s *Snapshot) { seen = append(seen, s.String()) }
				come(w)
				seen = nil
				asked := 0
				for i := range 360 {
					w.sharing(fmt.Sprintf("cycle %d", i), "")
					for _, c := range w.called {
						if c == "job_ports x" {
							asked++
						}
					}
					time.Sleep(10 * time.Second)
				}
				if asked < 10 || asked > 70 {
					t.Errorf("the node was asked %d times in an hour", asked)
				}
				for _, s := range seen {
					if strings.Contains(s, ":20500") {
						t.Errorf("meanwhile there was\n%s", s)
					}
				}
			})
		})
	}
}

// When one of the jobs ends, or its node does not know it any more, the other has the port.
func TestContestEnds(t *testing.T) {
	for name, end := range map[string]func(w *town){
		"completed": func(w *town) {
			w.jobs["y"] = []ytclient.Job{{ID: "y", Task: "server", State: "completed", Address: "node-1.local:9013"}}
			w.stir("y")
		},
		"operation ended": func(w *town) {
			delete(w.operations, "y")
		},
	} {
		t.Run(name, func(t *testing.T) {
			played(t, func(t *testing.T) {
				w := sharedHost(t)
				w.share("x")
				w.share("y")
				w.sharing("both", "")
				time.Sleep(10 * time.Second)
				w.sharing("still both", "")
				end(w)
				w.sharing("y has ended", "x")
				time.Sleep(10 * time.Second)
				w.sharing("later", "x")
			})
		})
	}
	t.Run("its node does not know it", func(t *testing.T) {
		played(t, func(t *testing.T) {
			w := sharedHost(t)
			w.share("x")
			w.share("y")
			w.sharing("both", "")
			src := w.d.source.(*source)
			answer := src.jobPorts
			src.jobPorts = func(refs []ytclient.JobRef) ([]ytclient.PortsAnswer, error) {
				answers, err := answer(refs)
				for i, r := range refs {
					if r.ID == "y" {
						answers[i] = ytclient.PortsAnswer{Err: ytclient.ErrNotFound}
					}
				}
				return answers, err
			}
			time.Sleep(time.Minute)
			w.sharing("y is listed, but has ended", "x")
			src.jobPorts = answer
			time.Sleep(time.Minute)
			w.sharing("it is there again", "")
		})
	})
}

// A node that is silent takes nothing back: who may be at the port is not there because it is not said again.
func TestContestWithASilentNode(t *testing.T) {
	played(t, func(t *testing.T) {
		w := sharedHost(t)
		w.share("x")
		w.share("y")
		w.sharing("both", "")
		src := w.d.source.(*source)
		answer := src.jobPorts
		src.jobPorts = func(refs []ytclient.JobRef) ([]ytclient.PortsAnswer, error) {
			answers, err := answer(refs)
			for i, r := range refs {
				if r.ID == "y" {
					answers[i] = ytclient.PortsAnswer{Err: ytclient.ErrUnavailable}
				}
			}
			return answers, err
		}
		for range 30 {
			time.Sleep(10 * time.Second)
			w.sharing("y's node is silent", "")
		}
	})
}

// An address that somebody wrote is no better than one that the node told.
func TestContestedWrittenPort(t *testing.T) {
	played(t, func(t *testing.T) {
		w := sharedHost(t)
		w.sayWebUI("one", "http://node-1.local:20001")
		w.want("the driver's own port", "a=10.0.0.1:20001")
		w.operation("y", map[string]any{"task_proxy": map[string]any{"enabled": true}})
		w.job("y", "y", "server", "node-1.local:9013", 20001)
		for range 10 {
			time.Sleep(10 * time.Second)
			w.cycle()
			if got := w.endpoints("one", "driver", "ui"); got != "" {
				t.Fatalf("the driver has %q; %v", got, w.d.Problems())
			}
		}
		w.jobs["y"] = nil
		w.stir("y")
		time.Sleep(2 * time.Minute)
		w.cycle()
		w.cycle()
		if got := w.endpoints("one", "driver", "ui"); got != "a=10.0.0.1:20001" {
			t.Errorf("y has ended: the driver has %q; %v", got, w.d.Problems())
		}
	})
}
