// Package scheduler runs vanilla operations as real local processes, the way a YTsaurus scheduler and its exec nodes
// would: job_count processes per task, ports of their own, a sandbox directory each, restarted under a new job id when
// they fail. It knows no HTTP and no Cypress; package ytlocal puts both around it.
//
// It promises that no process of a job outlives its job: the whole process group is killed when the job ends, when the
// operation ends, when Close is called, and, by a small shim, also when this process dies without a word. A process that
// leaves its group on purpose (setsid) is beyond its reach.
//
// It isolates nothing: a job runs with the rights of this process. Whoever may call Start may run any command, so it is
// for the caller to decide who that is.
//
//	s, err := scheduler.New(scheduler.Config{Dir: dir, Nodes: []string{"localhost:9012"}})
//	id, err := s.Start("alice", map[string]any{"tasks": map[string]any{
//		"web": map[string]any{"job_count": int64(2), "command": "serve $YT_PORT_0", "port_count": int64(1)},
//	}})
package scheduler

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Config of a Scheduler.
type Config struct {
	// Dir holds the sandboxes and outputs of the jobs; it must exist and be private (0700).
	Dir string
	// Nodes are the addresses of the pretended exec nodes, host:rpc_port. Jobs are spread over them. At least one.
	Nodes []string
	// Fetch opens a Cypress file for a job's sandbox (file_paths). Errors abort the job's start, which counts as a failed
	// job. It is called from many goroutines and must not block for ever. nil: operations with file_paths are refused.
	Fetch func(path string) (File, error)
	// Environ is the base environment of every job ("K=V"); the task's own and the YT_* variables come on top. nil: a
	// minimal one (PATH, LANG). HOME and TMPDIR are added unless they are in it. The environment of this process is never
	// handed on, except for PATH.
	Environ []string
	// Logger may be nil: nothing is logged.
	Logger *slog.Logger
}

// File is a Cypress file on its way into a sandbox.
type File struct {
	Name       string // the name it gets in the sandbox
	Executable bool
	Content    io.ReadCloser // closed by the scheduler
}

// Operation is the state of one operation at one moment. It is a copy; maps in it are not shared with the scheduler.
type Operation struct {
	ID         string
	Type       string // "vanilla"
	State      string // starting, running, completing, completed, failing, failed, aborting, aborted
	User       string
	Alias      string // with its leading "*"; empty when none
	Title      string
	StartTime  time.Time // in whole microseconds, as it travels on the wire
	FinishTime time.Time // zero while it runs
	Suspended  bool
	Spec       map[string]any // as given to Start, without secure_vault, which is for the jobs only
	// Annotations at run time: the spec's, with "description" added as the real scheduler does, and patched since.
	Annotations map[string]any
	// ACL of the operation beyond the base ACL, as a YSON list of ACEs, including the starting user's own.
	ACL []any
	// Error of a failed or aborted operation; empty otherwise.
	Error string
	// Progress counts jobs by state over all tasks, as brief_progress does: total, running, completed, failed, aborted,
	// lost, pending (int64 each); and "build_time" (string), which moves with any change of any job.
	Progress map[string]any
}

// Job is the state of one job at one moment.
type Job struct {
	ID          string
	OperationID string
	Task        string
	State       string // running, completed, failed, aborted
	Address     string // its node
	Ports       []int  // in port-index order; they never change
	Cookie      int    // its place in the task, the same for a job and those that replace it
	StartTime   time.Time
	FinishTime  time.Time // zero while it runs
	Error       string
	PID         int // of the process, which leads a process group; for tests that kill or pause it. 0 when there is none
	StderrSize  int64

	// What only pretended jobs are (see Pretend).
	Stale bool // list_jobs tells of it but does not vouch for it
	Away  bool // its node does not know it
}

// Scheduler runs operations. Its methods are safe for concurrent use. Close it to end every job.
type Scheduler struct {
	cfg   Config
	log   *slog.Logger
	ports portPool

	running sync.WaitGroup // one for each operation that has not ended

	// mu is held for looks at memory only, never across I/O or the start of a process.
	mu         sync.Mutex
	closed     bool
	operations map[string]*operation
	aliases    map[string]*operation      // of operations that have not ended
	nodeJobs   map[string]map[string]*job // running jobs by node and job id
	nextNode   int
	pretended  pretendedPorts
	told       map[string]*told          // operations of Pretend
	toldOn     map[string]map[string]Job // their jobs that nodes know, by node and job id
}

// New checks the configuration. It starts nothing.
func New(cfg Config) (*Scheduler, error) {
	dir, err := privateDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	cfg.Dir = dir
	if len(cfg.Nodes) == 0 {
		return nil, errors.New("scheduler: Nodes is empty; at least one host:port is needed")
	}
	for _, node := range cfg.Nodes {
		if host, port, err := net.SplitHostPort(node); err != nil || host == "" || port == "" {
			return nil, fmt.Errorf("scheduler: Nodes has %q; it must be host:port", node)
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Scheduler{
		cfg:        cfg,
		log:        cfg.Logger,
		operations: map[string]*operation{},
		aliases:    map[string]*operation{},
		nodeJobs:   map[string]map[string]*job{},
		pretended:  pretendedPorts{},
		told:       map[string]*told{},
		toldOn:     map[string]map[string]Job{},
	}, nil
}

// privateDir returns dir as an absolute path, once it is sure that nobody else can put anything into a sandbox.
func privateDir(dir string) (string, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return "", fmt.Errorf("scheduler: Dir: %w", err)
	}
	if !info.IsDir() {
		return "", fmt.Errorf("scheduler: Dir %q is no directory", dir)
	}
	if perm := info.Mode().Perm(); perm&0o077 != 0 {
		return "", fmt.Errorf("scheduler: Dir %q has mode %#o; it must be private (0700)", dir, perm)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("scheduler: Dir %q: %w", dir, err)
	}
	return abs, nil
}

// Start begins a vanilla operation and returns its id at once; the operation is then "starting", soon "running". The
// spec is copied. A spec that cannot be run is refused with a *yterrors.Error that names the field.
func (s *Scheduler) Start(user string, spec map[string]any) (string, error) {
	p, err := parseSpec(user, spec)
	if err != nil {
		return "", err
	}
	if p.hasFiles() && s.cfg.Fetch == nil {
		return "", badField("file_paths", "this scheduler has nowhere to get files from")
	}
	op := newOperation(user, p)

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return "", errClosed()
	}
	if p.alias != "" {
		if other := s.aliases[p.alias]; other != nil {
			return "", specError("alias", p.alias, fmt.Sprintf("running operation %s has it already", other.id))
		}
		s.aliases[p.alias] = op
	}
	s.operations[op.id] = op
	s.running.Go(func() { s.run(op) })
	return op.id, nil
}

// Close aborts every operation, waits until no process of any job is left, and gives the ports back. Further calls of
// Start fail; what has ended can still be looked at. It may be called again, then it waits as well.
func (s *Scheduler) Close() error {
	s.mu.Lock()
	s.closed = true
	for _, op := range s.operations {
		op.end(aborted, "the scheduler was closed")
	}
	s.mu.Unlock()
	s.running.Wait()
	s.ports.close()
	return nil
}
