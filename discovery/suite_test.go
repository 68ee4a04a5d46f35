package discovery

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.ytsaurus.tech/yt/go/yt"
	"go.ytsaurus.tech/yt/go/yt/ythttp"
	"golang.org/x/tools/txtar"

	"taskproxy/ytclient"
	"taskproxy/ytclient/ytlocal"
)

// TestSuite plays each file of testdata/suite through everything that is ours and the real SDK: a local cluster is made to
// say what a part of the file says, a Discovery asks it over sockets, and the next part is what must come of it. What a part
// can say is told in suite_world_test.go.
//
//	-- cycle 1 --      the cluster, told anew in each part; then a cycle
//	-- want 1 --       calls, as the cluster has counted them; services; problems
//	-- round 2 --      likewise, but what follows is no cycle: only operations with a failed connection are refreshed
//
// Discovery lives in a bubble of testing/synctest, so that hours pass in no time; the cluster is outside. Time in a bubble
// stands still while somebody in it waits for a socket, so nothing here may hang and no connection may stay open.
//
// faultCases has, for each fault of a cluster, the file that plays it. Only a CSRF token is not asked for anywhere: the robot
// has no cookie.
func TestSuite(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/suite/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			stage := newStage(t)
			synctest.Test(t, func(t *testing.T) { newSuite(t, stage).play(archive) })
			if *update && !t.Failed() {
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// suiteNodes are the exec nodes of the suite's cluster; others exist in words only.
var suiteNodes = []string{"node-1:9012", "node-2:9012", "node-3:9012", "node-4.example.com:9012", "[fd00::1]:9012", "node-1:9013"}

// stage is the outside of the bubble: the cluster, and a goroutine that tells it what to say.
type stage struct {
	cluster *ytlocal.Cluster
	author  yt.Client
	robot   robot
	do      chan func()
	done    chan struct{}
}

func newStage(t *testing.T) *stage {
	t.Helper()
	cluster, err := ytlocal.Start(ytlocal.Config{StateDir: t.TempDir(), Nodes: suiteNodes, NoKeepAlive: true})
	if err != nil {
		t.Fatal(err)
	}
	author, err := ythttp.NewClient(&yt.Config{
		Proxy: cluster.Addr(), Token: cluster.RootToken(), CompressionCodec: yt.ClientCodecNone, DisableProxyDiscovery: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{cluster: cluster, author: author, do: make(chan func()), done: make(chan struct{})}
	if err := s.addRobot(t.Context()); err != nil {
		t.Fatal(err)
	}
	go func() {
		for f := range s.do {
			f()
			s.done <- struct{}{}
		}
	}()
	t.Cleanup(func() {
		close(s.do)
		author.Stop()
		if err := cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// outside runs f outside of the bubble: what it starts and the channels that it makes belong to the cluster.
func (s *stage) outside(f func()) {
	s.do <- f
	<-s.done
}

// suite is the inside: one process of the proxy after the other.
type suite struct {
	*testing.T
	*stage
	bases  Bases
	client *ytclient.Client
	d      *Discovery
	names  names
	told   map[string]bool // the operations that the cluster speaks of
	env    Config          // what the file says about the configuration
}

func newSuite(t *testing.T, stage *stage) *suite {
	t.Helper()
	s := &suite{T: t, stage: stage, told: map[string]bool{}, names: names{}}
	for i := range 3 {
		s.names[fmt.Sprintf("node-%d", i+1)] = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})}
	}
	s.names["node-4.example.com"] = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, 4})}
	var err error
	if s.bases, err = NewBases("task-proxy.example.com"); err != nil {
		t.Fatal(err)
	}
	s.client, err = ytclient.New(ytclient.Config{Proxy: s.cluster.URL(), Token: func() (string, error) { return s.robot.token, nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.client.Close)
	return s
}

// start begins a process. What an earlier one has left of itself is the services table, and it remembers nothing else.
func (s *suite) start() {
	s.Helper()
	var rows []ytclient.ServiceRow
	if s.d != nil {
		rows = Rows(s.d.Snapshot(), s.bases.Primary())
	}
	cfg := s.env
	cfg.Source, cfg.Bases, cfg.Resolver = s.client, s.bases, s.names
	d, err := New(cfg)
	if err != nil {
		s.Fatal(err)
	}
	d.labels.Seed(rows, s.bases)
	d.missing.remember(rows)
	s.d = d
}

func (s *suite) play(archive *txtar.Archive) {
	s.Helper()
	var w *suiteWorld
	for i := 0; i < len(archive.Files); i += 2 {
		part, want := archive.Files[i], &txtar.File{}
		if i+1 < len(archive.Files) {
			want = &archive.Files[i+1]
		}
		kind, number, _ := strings.Cut(part.Name, " ")
		if kind != "cycle" && kind != "round" || want.Name != "want "+number {
			s.Fatalf("part %q is followed by %q", part.Name, want.Name)
		}
		var err error
		if w, err = parseSuiteWorld(string(part.Data), w); err != nil {
			s.Fatalf("%s: %v", part.Name, err)
		}
		got := s.live(w, kind == "round")
		if *update {
			want.Data = []byte(got)
		} else if got != string(want.Data) {
			s.Errorf("%s: got\n%swant\n%s", part.Name, got, want.Data)
		}
	}
}

// live lets the cluster be as the part says, and discovery look at it.
func (s *suite) live(w *suiteWorld, round bool) string {
	s.Helper()
	time.Sleep(w.after)
	maps.Copy(s.names, w.names)
	if s.d == nil || w.restart {
		if w.configure != nil {
			w.configure(&s.env)
		}
		s.start()
	}
	s.refuse(w.refused)
	var remove func()
	var err error
	s.outside(func() { remove, err = s.tell(w) })
	if err != nil {
		s.Fatal(err)
	}
	before := s.cluster.Faults().Calls()
	if round {
		s.d.refreshRound(s.Context())
	} else {
		err = s.d.cycle(s.Context())
	}
	calls := s.cluster.Faults().Calls()
	s.outside(remove)

	var b strings.Builder
	b.WriteString("calls:")
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		if n := calls[name] - before[name]; n > 0 {
			fmt.Fprintf(&b, " %s=%d", name, n)
		}
	}
	b.WriteByte('\n')
	if err != nil {
		fmt.Fprintf(&b, "failed: %s\n", cause(err))
	}
	b.WriteString(s.d.Snapshot().String())
	for _, p := range s.d.Problems() {
		fmt.Fprintf(&b, "! %s\n", p)
	}
	s.spytClient(w)
	return b.String()
}

// refuse tells discovery that these jobs did not take a connection.
func (s *suite) refuse(jobs []string) {
	for _, svc := range s.d.Snapshot().Services() {
		for _, e := range svc.Endpoints {
			if slices.Contains(jobs, e.JobID) {
				s.d.EndpointFailed(svc, e)
			}
		}
	}
}

// tell lets the cluster know the world. remove takes its faults back.
func (s *suite) tell(w *suiteWorld) (remove func(), err error) {
	ctx := context.Background() // of no bubble
	now := map[string]bool{}
	for _, op := range w.operations {
		if err := s.cluster.Scheduler().Pretend(op.Operation, op.jobs); err != nil {
			return nil, err
		}
		now[op.ID] = true
	}
	for id := range s.told {
		if !now[id] {
			s.cluster.Scheduler().Forget(id)
		}
	}
	s.told = now
	for _, do := range w.cypress {
		if err := do(ctx, s.author); err != nil {
			return nil, err
		}
	}
	for _, do := range w.robot {
		if err := do(ctx, s.stage); err != nil {
			return nil, err
		}
	}
	var removes []func()
	if w.schedulerRestarts {
		removes = append(removes, s.cluster.Faults().RestartScheduler())
	}
	for _, f := range w.faults {
		removes = append(removes, s.cluster.Faults().Add(f))
	}
	return func() {
		for _, remove := range removes {
			remove()
		}
	}, nil
}

// spytClient is what SPYT's client does with the services table: it keeps the rows of its cluster's operation and hands
// each on by a name made of task and service, of which it knows three. It breaks on any other.
func (s *suite) spytClient(w *suiteWorld) {
	s.Helper()
	rows := Rows(s.d.Snapshot(), s.bases.Primary())
	for _, op := range w.operations {
		if !isTrue(op.Annotations, isSpark) || op.ID != w.cluster(op.ID) {
			continue
		}
		for _, r := range rows {
			known := []string{"master_rest", "master_ui", "history_ui"}
			if r.OperationID == op.ID && !slices.Contains(known, r.TaskName+"_"+r.Service) {
				s.Errorf("SPYT's client of cluster %s got an unexpected keyword argument %q", op.ID, r.TaskName+"_"+r.Service)
			}
		}
	}
}

// names is a resolver that knows what the file says, and nothing else.
type names map[string][]netip.Addr

func (n names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	ips, ok := n[host]
	switch {
	case !ok:
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	case len(ips) == 0:
		return nil, &net.DNSError{Err: "server misbehaving", Name: host, IsTemporary: true}
	}
	return ips, nil
}
