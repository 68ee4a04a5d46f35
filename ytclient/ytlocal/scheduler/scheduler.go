// Package scheduler runs vanilla operations as real local processes, the way a YTsaurus scheduler and its exec nodes
// would: job_count processes per task, ports of their own, a sandbox directory each, restarted under a new job id when
// they fail. It knows no HTTP and no Cypress; package ytlocal puts both around it.
package scheduler

import (
	"io"
	"log/slog"
	"time"
)

// Config of a Scheduler.
type Config struct {
	// Dir holds the sandboxes and outputs of the jobs; it must exist and be private (0700).
	Dir string
	// Nodes are the addresses of the pretended exec nodes, host:rpc_port. Jobs are spread over them.
	Nodes []string
	// Fetch opens a Cypress file for a job's sandbox (file_paths). Errors abort the job's start.
	Fetch func(path string) (File, error)
	// Environ is the base environment of every job ("K=V"); the YT_* variables come on top.
	Environ []string
	Logger  *slog.Logger
}

// File is a Cypress file on its way into a sandbox.
type File struct {
	Name       string // the name it gets in the sandbox
	Executable bool
	Content    io.ReadCloser
}

// Operation is the state of one operation at one moment. It is a copy; maps in it are not shared with the scheduler.
type Operation struct {
	ID         string
	Type       string // "vanilla"
	State      string // starting, running, completed, failed, aborted, …
	User       string
	Alias      string // with its leading "*"; empty when none
	Title      string
	StartTime  time.Time
	FinishTime time.Time // zero while it runs
	Suspended  bool
	Spec       map[string]any // as given to Start
	// Annotations at run time: the spec's, with "description" added as the real scheduler does, and patched since.
	Annotations map[string]any
	// ACL of the operation beyond the base ACL, as a YSON list of ACEs, including the starting user's own.
	ACL []any
	// Error of a failed or aborted operation; empty otherwise.
	Error string
	// Progress counts jobs by state over all tasks, as brief_progress does: total, running, completed, failed, aborted,
	// lost, pending; and "build_time", which moves with any change of any job.
	Progress map[string]any
}

// Job is the state of one job at one moment.
type Job struct {
	ID          string
	OperationID string
	Task        string
	State       string // running, completed, failed, aborted
	Address     string // its node
	Ports       []int
	Cookie      int
	StartTime   time.Time
	FinishTime  time.Time // zero while it runs
	Error       string
	PID         int // of the process; for tests that kill or pause it
	StderrSize  int64
}
