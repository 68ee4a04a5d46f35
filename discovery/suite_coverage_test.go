package discovery

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// What services look like in the suite's files.
const (
	kept      = `0f3b4cfd 1-0-3e8-1 "server" "port_0" http read node-1:20001` + "\n"
	neighbour = `4def6509 2-0-3e8-1 "server" "port_0" http read node-2:20002` + "\n"
	threeJobs = `0f3b4cfd 1-0-3e8-1 "server" "port_0" http read node-1:20001,node-2:20002,node-3:20004` + "\n"
)

// faultCases says where it is played what discovery makes of each thing that a cluster does on a bad day: in a test, where time
// must pass while somebody waits, or else in a part of a file of testdata/suite. That part has the text, and what must come of
// it has each of the outcomes.
var faultCases = []struct {
	fault      string
	test       func(*testing.T)
	file, text string
	outcomes   []string
}{
	{fault: "answers late", test: TestSlowCalls},
	{fault: "never answers: the listing, jobs, an exec node", test: TestHangingCalls},
	{fault: "never answers: an operation", test: TestHangingGetOperation},
	{fault: "never answers: a discovery directory", test: TestDirectoryThatHangs},
	{fault: "start times that are the same", test: TestSameStartTimes},

	{"breaks before the headers", nil, "faults-listing", "fault list_operations cut before\n", []string{"failed: unavailable\n" + kept}},
	{"breaks after the headers", nil, "faults-listing", "fault list_operations cut headers\n", []string{"failed: unavailable\n" + kept}},
	{"breaks in the body", nil, "faults-listing", "fault list_operations cut body\n", []string{"failed: unavailable\n" + kept}},
	{"503 of a balancer", nil, "faults-listing", "fault list_operations status 503\n", []string{"failed: unavailable\n" + kept}},
	{"503 with 108", nil, "faults-listing", "fault list_operations code 108 503\n", []string{"failed: overloaded\n" + kept}},
	{"400 with 904", nil, "faults-listing", "fault list_operations code 904\n", []string{"failed: overloaded\n" + kept}},
	{"503 with 2100", nil, "faults-listing", "fault list_operations code 2100 503\n", []string{"failed: unavailable\n" + kept}},
	{"307", nil, "faults-listing", "fault list_operations status 307\n", []string{"failed: unavailable\n" + kept}},
	{"302", nil, "faults-proxy", "fault any status 302\n", []string{"failed: unavailable\n" + kept}},
	{"a page with 200", nil, "faults-listing", "<html>", []string{"failed: unavailable\n" + kept}},
	{"cut YSON", nil, "faults-listing", `body "{operations=[{id=`, []string{"failed: unavailable\n" + kept}},
	{"an empty map: the listing", nil, "faults-listing", `fault list_operations body "{}"`, []string{"failed: unavailable\n" + kept}},
	{"an empty map: jobs", nil, "faults-jobs", `body "{}"`, []string{threeJobs, "! cluster_call 1-0-3e8-1: list_jobs failed, what was known is kept: unavailable\n"}},
	{"an empty map: an operation", nil, "faults-operation", `if=2-0-3e8-1 body "{}"`, []string{
		"63889287 5-0-3e8-1", "! cluster_call 2-0-3e8-1: get_operation failed, what was known is kept: unavailable\n",
	}},
	{"annotations that are no map", nil, "odd-items", "annotations=[a;b]", []string{kept + neighbour, "! odd_answer 3-0-3e8-1"}},
	{"annotations with attributes", nil, "odd-sizes", "task_proxy=<c=#>", []string{kept + neighbour, `679a743c 3-0-3e8-1 "server" "api" grpc read node-3:20003`}},
	{"annotations that are deep", nil, "odd-sizes", `[\"*100000`, []string{kept + neighbour, `e142f874 4-0-3e8-1 "server" "port_0"`, "! odd_answer 4-0-3e8-1"}},
	{"annotations that are long", nil, "odd-sizes", `operation 3-0-3e8-1 start=2 user=eve {task_proxy={enabled=%true};long="x"*300000}`, []string{
		kept + neighbour, `679a743c 3-0-3e8-1 "server" "api" grpc read node-3:20003`, "! odd_answer 3-0-3e8-1",
	}},
	{"operations that are revived", nil, "scheduler-restart", "fault scheduler restarts\n", []string{kept, `"jupyter" "ui" http read+manage node-2:20002`}},
	{"operations that are revived, at a start", nil, "restart-reviving", "restart\nfault scheduler restarts\n", []string{`0f3b4cfd 1-0-3e8-1 "server" "port_0" http read - mine-server-port_0`}},
	{"operations that are not listed", nil, "absent", "fault list_operations without 1-0-3e8-1 5-0-3e8-1\n", []string{kept, `63889287 5-0-3e8-1 "server" "port_0" http read node-1:20005`}},
	{"an archive that is down", nil, "faults-jobs", "partial 1910", []string{threeJobs, "! cluster_call 1-0-3e8-1: list_jobs failed, what was known is kept: other\n"}},
	{"a controller agent that is down", nil, "faults-jobs", "partial 1917", []string{threeJobs, "! cluster_call 1-0-3e8-1: list_jobs failed, what was known is kept: other\n"}},
	{"jobs that nobody stands up for", nil, "faults-jobs", " stale b-0-384-1\n", []string{`http read node-1:20001,node-3:20004` + "\n"}},
	{"no jobs, all of a sudden", nil, "sudden-emptiness", "fault list_jobs without", []string{kept}},
	{"500 of an exec node for one job", nil, "faults-ports", "code 500\n", []string{`"port_0" http read node-1:20001,node-2:20005` + "\n"}},
	{"fewer ports than promised", nil, "short-ports", "job 1-0-3e8-1 a-0-384-1 server node-1:9012 ports=20001,20002\n", []string{`"port_1" http read node-1:20002`}},
	{"an exec node at an IPv6 address", nil, "jobs-change", "server [fd00::1]:9012", []string{"node-2:20002,[fd00::1]:20001\n"}},
	{"a job that is told at another address", nil, "jobs-change", "b-0-384-1 server node-3:9012", []string{"node-3:20005,[fd00::1]:20001\n"}},
	{"a job that is run again elsewhere", nil, "moved-job", "c-0-384-1 server node-3:9012 ports=20004,20005", []string{
		`"port_0" http read node-3:20004` + "\n", `"port_1" http read node-3:20005` + "\n",
	}},
	{"a token that is revoked", nil, "robot-token", "token revoked\n", []string{"failed: unauthenticated\n" + kept}},
	{"a right that is taken away", nil, "robot-rights", "rights none\n", []string{kept + neighbour, "! cluster_call 2-0-3e8-1: get_operation failed, what was known is kept: denied\n"}},
	{"a robot that is banned", nil, "faults-listing", "fault list_operations code 903\n", []string{"failed: denied\n" + kept}},
}

func TestFaultCases(t *testing.T) {
	t.Parallel()
	for _, c := range faultCases {
		if c.test != nil {
			continue // it is there, or this would not compile
		}
		archive, err := txtar.ParseFile(filepath.Join("testdata", "suite", c.file+".txtar"))
		if err != nil {
			t.Errorf("%s: %v", c.fault, err)
			continue
		}
		played, wants := false, []string{}
		for i := 0; i+1 < len(archive.Files); i += 2 {
			if !strings.Contains(string(archive.Files[i].Data), c.text) {
				continue
			}
			want := string(archive.Files[i+1].Data)
			wants = append(wants, want)
			played = played || !slices.ContainsFunc(c.outcomes, func(outcome string) bool { return !strings.Contains(want, outcome) })
		}
		if !played || len(c.outcomes) == 0 {
			t.Errorf("%s: %s has no part with %q of which comes %q, but\n%s", c.fault, c.file, c.text, c.outcomes, strings.Join(wants, "\n"))
		}
	}
}
