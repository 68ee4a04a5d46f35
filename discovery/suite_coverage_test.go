package discovery

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// faultCases says where it is played what discovery makes of each thing that a cluster does on a bad day: in a file of
// testdata/suite, or, where time must pass while somebody waits, in a test. Every entry is a text of that file.
var faultCases = []struct{ fault, file, text string }{
	{"answers late", "realtime_test.go", "func TestSlowCalls("},
	{"never answers: the listing", "realtime_test.go", `hang("list_operations"`},
	{"never answers: jobs", "realtime_test.go", `hang("list_jobs"`},
	{"never answers: an operation", "realtime_test.go", "func TestHangingGetOperation("},
	{"never answers: an exec node", "realtime_test.go", `hang("execute_batch"`},
	{"breaks before the headers", "faults-listing.txtar", "fault list_operations cut before\n"},
	{"breaks after the headers", "faults-listing.txtar", "fault list_operations cut headers\n"},
	{"breaks in the body", "faults-listing.txtar", "fault list_operations cut body\n"},
	{"503 of a balancer", "faults-listing.txtar", "fault list_operations status 503\n"},
	{"503 with 108", "faults-listing.txtar", "fault list_operations code 108 503\n"},
	{"400 with 904", "faults-listing.txtar", "fault list_operations code 904\n"},
	{"503 with 2100", "faults-listing.txtar", "fault list_operations code 2100 503\n"},
	{"307", "faults-listing.txtar", "fault list_operations status 307\n"},
	{"302", "faults-proxy.txtar", "fault any status 302\n"},
	{"a page with 200", "faults-listing.txtar", "<html>"},
	{"cut YSON", "faults-listing.txtar", `body "{operations=[{id=`},
	{"an empty map: the listing", "faults-listing.txtar", `fault list_operations body "{}"`},
	{"an empty map: jobs", "faults-jobs.txtar", `body "{}"`},
	{"an empty map: an operation", "faults-operation.txtar", `body "{}"`},
	{"annotations that are no map", "odd-items.txtar", "annotations=[a;b]"},
	{"annotations with attributes", "odd-sizes.txtar", "task_proxy=<c=#>"},
	{"annotations that are deep", "odd-sizes.txtar", `[\"*100000`},
	{"annotations that are long", "odd-sizes.txtar", `long="x"*300000`},
	{"start times that are the same", "realtime_test.go", "func TestSameStartTimes("},
	{"operations that are revived", "scheduler-restart.txtar", "fault scheduler restarts\n"},
	{"operations that are revived, at a start", "restart-reviving.txtar", "fault scheduler restarts\n"},
	{"operations that are not listed", "absent.txtar", "fault list_operations without"},
	{"an archive that is down", "faults-jobs.txtar", "partial 1910"},
	{"a controller agent that is down", "faults-jobs.txtar", "partial 1917"},
	{"jobs that nobody stands up for", "faults-jobs.txtar", " stale b-0-384-1\n"},
	{"no jobs, all of a sudden", "sudden-emptiness.txtar", "fault list_jobs without"},
	{"500 of an exec node for one job", "faults-ports.txtar", "code 500\n"},
	{"fewer ports than promised", "short-ports.txtar", "job 1-0-3e8-1 a-0-384-1 server node-1:9012 ports=20001,20002\n"},
	{"an exec node at an IPv6 address", "jobs-change.txtar", "server [fd00::1]:9012"},
	{"a job that is told at another address", "jobs-change.txtar", "b-0-384-1 server node-3:9012"},
	{"a job that is run again elsewhere", "moved-job.txtar", "state=aborted"},
	{"a token that is revoked", "robot-token.txtar", "token revoked\n"},
	{"a right that is taken away", "robot-rights.txtar", "rights none\n"},
	{"a robot that is banned", "faults-listing.txtar", "fault list_operations code 903\n"},
}

func TestFaultCases(t *testing.T) {
	t.Parallel()
	for _, c := range faultCases {
		file := c.file
		if strings.HasSuffix(file, ".txtar") {
			file = filepath.Join("testdata", "suite", file)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Errorf("%s: %v", c.fault, err)
		} else if !strings.Contains(string(b), c.text) {
			t.Errorf("%s: %s has no %q", c.fault, c.file, c.text)
		}
	}
}
