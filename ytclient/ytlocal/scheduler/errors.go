package scheduler

import (
	"fmt"
	"strconv"
	"strings"

	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yterrors"
)

// maxShown bounds what a message repeats of a value that somebody else wrote.
const maxShown = 256

// specError refuses a field of a spec or of an update: which one, what was in it, what would be right.
func specError(field string, value any, want string) error {
	return yterrors.Err(yterrors.CodeGeneric, fmt.Sprintf("%s is %s: %s", field, show(value), want))
}

// missing refuses a spec that lacks a required field.
func missing(field, want string) error {
	return badField(field, "it is missing; "+want)
}

// badField refuses a field whose value is not to be shown.
func badField(field, problem string) error {
	return yterrors.Err(yterrors.CodeGeneric, field+": "+problem)
}

// errNoOperation is the answer to a question about an operation that nobody knows.
func errNoOperation(idOrAlias string) error {
	return yterrors.Err(yterrors.CodeAPINoSuchOperation, "no such operation "+quote(idOrAlias))
}

// errNotRunning is the answer to an order for an operation that is unknown or has ended: the scheduler proper, unlike the
// API, knows only those that run, and has a code of its own for the rest.
func errNotRunning(idOrAlias string) error {
	return yterrors.Err(yterrors.CodeNoSuchOperation, "no such running operation "+quote(idOrAlias))
}

func errNoJob(operationID, jobID string) error {
	return yterrors.Err(yterrors.CodeAPINoSuchJob,
		fmt.Sprintf("no such job %s of operation %s", quote(jobID), quote(operationID)))
}

func errState(op *operation, order string) error {
	return yterrors.Err(yterrors.CodeInvalidOperationState,
		fmt.Sprintf("cannot %s operation %s in state %q", order, op.id, op.state))
}

func errClosed() error {
	return yterrors.Err(yterrors.CodeUnavailable, "the scheduler is closed")
}

// show prints a value as text YSON, cut.
func show(v any) string {
	if v == nil {
		return "#"
	}
	text, err := yson.MarshalFormat(v, yson.FormatText)
	if err != nil {
		return fmt.Sprintf("a %T", v)
	}
	return cut(string(text))
}

// quote makes text that somebody else wrote safe for one line.
func quote(text string) string { return strconv.Quote(cut(text)) }

func cut(text string) string {
	if len(text) > maxShown {
		text = text[:maxShown] + "…"
	}
	return strings.ToValidUTF8(text, "?")
}
