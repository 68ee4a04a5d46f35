package discovery

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"taskproxy/ytclient"
)

// ProblemKind groups problems for metrics. Its values are few and fixed.
type ProblemKind string

// The kinds of problems.
const (
	BadAnnotation ProblemKind = "bad_annotation" // a value of a type or content that the annotation does not allow
	BadName       ProblemKind = "bad_name"       // a task or service name that cannot be published
	UnknownTask   ProblemKind = "unknown_task"   // the annotation names a task that the operation does not have
	BadPortIndex  ProblemKind = "bad_port_index" // no such port, or none at all
	BadAddress    ProblemKind = "bad_address"    // a job at an address that cannot be read

	// RejectedAddress: an address that somebody wrote is not one of the operation's own jobs, as far as the cluster tells.
	RejectedAddress ProblemKind = "rejected_address"

	Collision    ProblemKind = "collision"      // the label belongs to another service
	BadLabel     ProblemKind = "bad_label"      // the operation's alias and the names make no DNS label
	LabelTooLong ProblemKind = "label_too_long" // the operation's alias and the names are too long for a DNS label
	OverLimit    ProblemKind = "over_limit"     // more services than an operation may publish
	ClusterCall  ProblemKind = "cluster_call"   // the cluster did not answer about this operation; what was known is held
	OddAnswer    ProblemKind = "odd_answer"     // the cluster answered in a shape that cannot be read
)

// problemKinds is every kind, so that each has its metric from the start.
var problemKinds = []ProblemKind{
	BadAnnotation, BadName, UnknownTask, BadPortIndex, BadAddress, RejectedAddress, Collision, BadLabel, LabelTooLong, OverLimit, ClusterCall, OddAnswer,
}

// Problem is why something that an operation asked for is not as it asked. It concerns that operation only. Problems are
// values: two equal ones are the same problem, told once.
type Problem struct {
	Kind        ProblemKind
	OperationID string // empty when the cluster's answer did not even tell that
	Task        string // as its author wrote it, whatever that is; empty when no task is meant
	Service     string // likewise
	Reason      string // for people; author-written words in it are quoted and cut
}

// String is one line, safe for terminals: what authors wrote is quoted and cut.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(string(p.Kind))
	if p.OperationID != "" {
		b.WriteString(" " + p.OperationID)
	}
	if p.Task != "" {
		b.WriteString(" task " + quote(p.Task))
	}
	if p.Service != "" {
		b.WriteString(" service " + quote(p.Service))
	}
	return b.String() + ": " + p.Reason
}

// LogValue groups the fields by the names that all our logs use.
func (p Problem) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("kind", string(p.Kind))}
	if p.OperationID != "" {
		attrs = append(attrs, slog.String("operation_id", p.OperationID))
	}
	if p.Task != "" {
		attrs = append(attrs, slog.String("task", quote(p.Task)))
	}
	if p.Service != "" {
		attrs = append(attrs, slog.String("service", quote(p.Service)))
	}
	return slog.GroupValue(append(attrs, slog.String("reason", p.Reason))...)
}

func compareProblems(a, b Problem) int {
	return cmp.Or(cmp.Compare(a.OperationID, b.OperationID), cmp.Compare(a.Task, b.Task), cmp.Compare(a.Service, b.Service),
		cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Reason, b.Reason))
}

// newProblems sorts what a cycle found and removes what it found twice.
func newProblems(found []Problem) []Problem {
	slices.SortFunc(found, compareProblems)
	return slices.Compact(found)
}

// diffProblems tells what is in next and not in prev, and the other way round. Both are sorted.
func diffProblems(prev, next []Problem) (added, removed []Problem) {
	for len(prev) > 0 || len(next) > 0 {
		switch {
		case len(prev) == 0:
			return append(added, next...), removed
		case len(next) == 0:
			return added, append(removed, prev...)
		}
		switch c := compareProblems(prev[0], next[0]); {
		case c < 0:
			removed, prev = append(removed, prev[0]), prev[1:]
		case c > 0:
			added, next = append(added, next[0]), next[1:]
		default:
			prev, next = prev[1:], next[1:]
		}
	}
	return added, removed
}

// maxQuoted is how much of a text that somebody else wrote goes into a log or a reason.
const maxQuoted = 256

// quote makes somebody else's words safe to print: quoted, controls and invisible characters escaped, cut.
func quote(s string) string {
	if len(s) > maxQuoted {
		return strconv.Quote(s[:maxQuoted]) + "…"
	}
	return strconv.Quote(s)
}

// errPanicked is what a call became that panicked on data it did not expect.
var errPanicked = errors.New("the answer could not be read")

// causes are the words for what a call to the cluster failed with. Problems and metric labels use them instead of error
// texts: these carry request ids and times, and would make every failure a new one.
var causes = []struct {
	err    error
	reason string
}{
	{ytclient.ErrUnauthenticated, "unauthenticated"},
	{ytclient.ErrDenied, "denied"},
	{ytclient.ErrNotFound, "not_found"},
	{ytclient.ErrNoSuchOperation, "no_such_operation"},
	{ytclient.ErrConflict, "conflict"},
	{ytclient.ErrLeaseLost, "lease_lost"},
	{ytclient.ErrOverloaded, "overloaded"},
	{ytclient.ErrUnavailable, "unavailable"},
	{ytclient.ErrRejected, "rejected"},
	{context.DeadlineExceeded, "timeout"},
	{errPanicked, "unreadable"},
}

func cause(err error) string {
	for _, c := range causes {
		if errors.Is(err, c.err) {
			return c.reason
		}
	}
	return otherCause
}

// otherCause is the word for all that has none of its own.
const otherCause = "other"
