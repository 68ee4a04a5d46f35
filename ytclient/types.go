package ytclient

import (
	"log/slog"
	"time"
)

// Kind says how credentials travel.
type Kind string

// The kinds of credentials that a cluster's HTTP proxy understands.
const (
	OAuth  Kind = "oauth"  // Authorization: OAuth <token>
	Bearer Kind = "bearer" // Authorization: Bearer <token>, an IAM token as a rule
	Cookie Kind = "cookie" // Cookie: <name>=<value>
)

// Credentials prove to the cluster who a caller is. They print redacted.
type Credentials struct {
	Kind       Kind
	CookieName string // set for Cookie only
	Secret     string // token or cookie value; never empty in valid credentials
}

// String names the kind and hides the secret.
func (c Credentials) String() string { return string(c.Kind) + " [redacted]" }

// GoString is String, so that %#v hides the secret as well.
func (c Credentials) GoString() string { return c.String() }

// LogValue is String: a secret never reaches a log.
func (c Credentials) LogValue() slog.Value { return slog.StringValue(c.String()) }

// Permission is a right on an operation.
type Permission string

// Permissions that check_operation_permission knows. Manage does not imply Read.
const (
	Read   Permission = "read"
	Manage Permission = "manage"
)

// Operation is one item of the cluster's listing of running operations.
type Operation struct {
	ID        string // canonical text form
	User      string // who started it
	State     string // "running" as a rule
	StartTime time.Time
	Alias     string // with its leading "*"; empty when the operation has none
	// Annotations as the SDK's yson decodes them: map[string]any, []any, string, int64, uint64, float64, bool, nil, and
	// *yson.ValueWithAttrs around a nested value that carries attributes (Plain removes these). nil when the operation
	// has none.
	Annotations map[string]any
	// AnnotationsSum is the SumAnnotations of Annotations, to tell whether they have changed.
	AnnotationsSum Sum
	// BriefProgress is the raw YSON of the item's brief_progress. It is compared, never read: any change of a job changes it.
	BriefProgress string
}

// Listing is every running operation at one moment.
type Listing struct {
	Operations []Operation // newest first, no id twice
	// Odd holds the items that could not be read, an error each that names the operation where its id could be read.
	Odd []OddItem
}

// OddItem is an item of a listing that the cluster answered in a shape we do not understand.
type OddItem struct {
	OperationID string // empty when even the id is unreadable
	Err         error
}

// OperationInfo is what get_operation tells about one operation.
type OperationInfo struct {
	ID    string
	State string
	Tasks []Task // in the order of their names; empty for operations that are not vanilla
	// Operation is what a listing would tell, but for BriefProgress; nil if that could not be read.
	Operation *Operation
}

// Final reports whether the operation has ended and never runs again.
func (o OperationInfo) Final() bool {
	switch o.State {
	case "completed", "aborted", "failed":
		return true
	}
	return false
}

// Task is one task of a vanilla operation's spec.
type Task struct {
	Name      string
	JobCount  int
	PortCount int
}

// Job is one job of an operation as list_jobs tells it.
type Job struct {
	ID      string // canonical text form
	Task    string
	State   string // "running" as a rule
	Address string // the exec node, host:rpc_port; IPv6 hosts are bracketed
	Stale   bool   // the cluster itself does not vouch for it; must be ignored
}

// JobListing is the running jobs of one operation.
type JobListing struct {
	Jobs []Job
	// Partial is set when the cluster answered but said that some of its sources failed: jobs may be missing, and nothing
	// follows from a job's absence.
	Partial error
}

// JobRef names a job on its exec node.
type JobRef struct {
	Address string // Job.Address
	ID      string // Job.ID
}

// PortsAnswer is the exec node's answer for one job: its ports in port-index order, or why they are not known.
// ErrNotFound: the node does not know the job (any more). Ports may be empty: none assigned, or not prepared yet.
type PortsAnswer struct {
	Ports []int
	Err   error
}

// ServiceRow is one row of the services table. The field order is the column order.
type ServiceRow struct {
	Domain      string `yson:"domain"`
	OperationID string `yson:"operation_id"`
	TaskName    string `yson:"task_name"`
	Service     string `yson:"service"`
	Protocol    string `yson:"protocol"`
}
