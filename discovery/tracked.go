package discovery

import (
	"slices"
	"time"

	"taskproxy/ytclient"
)

// tracked is an operation that publishes services, and what cycles learn about it. What a call does not answer is kept:
// only answers remove anything.
type tracked struct {
	op    ytclient.Operation // as last listed
	state string             // the last one told, by whichever call

	publisher     *publisher
	claimProblems []Problem

	// What the operation declares. It follows from its annotations and its tasks and changes only with them.
	resolved     bool // tasks are known; they never change
	tasks        []ytclient.Task
	declarations []declaration
	declProblems []Problem // its own and those of finding its publisher

	jobs         map[string]*job
	expired      map[string]*job // were held too long to be called, and nobody has said that they ended; nil as a rule
	addresses    addresses       // where its author says that services answer
	jobsDue      bool            // something happened since the last full list of jobs
	jobsListed   time.Time       // when that was
	refreshAfter time.Duration
	relistAt     time.Time // from when on it is a reason for another list that jobs are missing
	relistPause  time.Duration
	unlisted     error     // why the last list of jobs failed; nil: it did not
	untold       error     // why the last get_operation failed; nil: it did not
	failedAt     time.Time // the cycle in which one of the two failed last
	emptyOnce    bool      // the last list of jobs was empty for no reason, and not believed

	present     bool      // in the listing of this cycle
	absentSince time.Time // since when it is absent and nobody answers why; zero: nothing is open
	gone        bool      // the cluster answered that it has ended

	trouble []Problem // of this cycle's calls
}

func (t *tracked) problem(p Problem) {
	p.OperationID = t.op.ID
	t.trouble = append(t.trouble, p)
}

// callProblems tells which calls about the operation have failed. Their reasons are of few words: error texts differ each time and
// may hold what only the robot may read.
func (t *tracked) callProblems() (problems []Problem) {
	told := func(call string, err error) {
		problems = append(problems, Problem{Kind: ClusterCall, OperationID: t.op.ID,
			Reason: call + " failed, what was known is kept: " + cause(err)})
	}
	if t.untold != nil && (!t.present || !t.resolved) {
		told("get_operation", t.untold)
	}
	if t.unlisted != nil && t.jobsKnowable() {
		told("list_jobs", t.unlisted)
	}
	return problems
}

// declare works out what the operation publishes.
func (t *tracked) declare() {
	t.addresses.generation++
	t.declarations, t.declProblems = nil, slices.Clone(t.claimProblems)
	if t.resolved {
		declarations, problems := declared(t.publisher, t.op.Annotations, t.tasks)
		t.declarations, t.declProblems = declarations, append(t.declProblems, problems...)
	}
	t.jobsDue = true
}
