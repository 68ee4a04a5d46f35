package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"taskproxy/ytclient"
)

// Source is what discovery asks a cluster. Its methods must be safe for concurrent use and return when their context ends.
type Source interface {
	// ListOperations returns every running operation, or fails as a whole.
	ListOperations(ctx context.Context) (ytclient.Listing, error)
	// GetOperation returns ytclient.ErrNoSuchOperation if the operation does not exist.
	GetOperation(ctx context.Context, id string) (ytclient.OperationInfo, error)
	// ListTaskJobs lists at least the running jobs of these tasks; of all for nil. It returns ytclient.ErrNoSuchOperation if the
	// operation does not exist.
	ListTaskJobs(ctx context.Context, operationID string, tasks []string) (ytclient.JobListing, error)
	// JobPorts answers for each ref, in their order. It fails only when the call as a whole did.
	JobPorts(ctx context.Context, refs []ytclient.JobRef) ([]ytclient.PortsAnswer, error)
	// NodeJobs tells all the jobs of one exec node, whosever they are.
	NodeJobs(ctx context.Context, address string) ([]ytclient.NodeJob, error)
	// ListChildren answers for each path, in their order. It fails only when the call as a whole did.
	ListChildren(ctx context.Context, paths []string) ([]ytclient.ChildrenAnswer, error)
}

var _ Source = (*ytclient.Client)(nil)

// Config of a Discovery.
type Config struct {
	// Source is the cluster. Required.
	Source Source
	// Store is the services table; nil: nothing is published.
	Store Store
	// Bases are the base domains; the primary one is what the services table shows. Required with a Store.
	Bases Bases

	// Period between the starts of two cycles, varied by a tenth; zero: 10s.
	Period time.Duration
	// Concurrency bounds the calls in flight; zero: 16.
	Concurrency int
	// CallTimeout is the deadline of one call to the cluster; zero: 10s.
	CallTimeout time.Duration
	// JobsRefreshPeriod is how old the list of jobs of an operation that seems unchanged may be, varied by a tenth; zero: 60s.
	JobsRefreshPeriod time.Duration
	// StaleLimit is how long something is held that the cluster cannot be asked about; zero: 10m.
	StaleLimit time.Duration

	// MaxServicesPerOperation, MaxServicesPerUser and MaxServices bound what is published. What is over a limit is a problem and
	// takes no place from others. Zero: 64, 1000 and 20000.
	MaxServicesPerOperation int
	MaxServicesPerUser      int
	MaxServices             int

	// SPYT is how Spark's operations are published; the zero value is ready.
	SPYT SPYTConfig
	// Resolver looks up the hosts that authors write, and exec nodes where it must be known whether these mean them. nil:
	// net.DefaultResolver.
	Resolver Resolver

	// OnSnapshot is called by Run, one call at a time: with the snapshot of the first answered cycle, then with each one that
	// is not the same as the one before. It must not block. nil: nobody is told.
	OnSnapshot func(*Snapshot)
	// Logger; nil: nothing is logged.
	Logger *slog.Logger
	// Registerer for metrics; nil: none are registered.
	Registerer prometheus.Registerer
}

// maxBackoff is the longest pause after failed cycles, unless the period itself is longer.
const maxBackoff = time.Minute

// Discovery keeps a snapshot of the services of a cluster's running operations. Its methods are safe for concurrent use, but
// Run may be called only once.
type Discovery struct {
	source      Source
	bases       Bases
	period      time.Duration
	concurrency int
	callTimeout time.Duration
	refresh     time.Duration
	staleLimit  time.Duration
	limits      limits
	publishers  []*publisher
	guard       guard
	onSnapshot  func(*Snapshot)
	log         *slog.Logger
	metrics     *metrics
	table       *table // nil: nothing is published

	ready    atomic.Bool
	snapshot atomic.Pointer[Snapshot] // never nil
	problems atomic.Pointer[[]Problem]
	calls    atomic.Int64 // of the running cycle

	early *early // what requests ask of Run

	// What cycles know about operations that publish services, and the problems of those that publish none. Only Run
	// touches them.
	tracked map[string]*tracked
	labels  *Labels
	strays  []Problem
	seeds   *seeds // nil: there are none, or they have been sown
	missing missing
	silent  *silences // safe for concurrent use

	vouches     atomic.Uint32   // how often the cluster has vouched for any job; it only grows
	doubtful    map[string]bool // ids of operations with jobs in doubt
	interrupted bool            // the last slow part of a cycle had to make room
	turn        int             // of the slow parts
}

// New checks the configuration; the error names every field that is wrong. It starts nothing and asks nothing.
func New(cfg Config) (*Discovery, error) {
	var errs []error
	if cfg.Source == nil {
		errs = append(errs, errors.New("discovery: Source is required"))
	}
	if cfg.Store != nil && cfg.Bases.Primary() == "" {
		errs = append(errs, errors.New("discovery: Bases are required with a Store: the table shows domains"))
	}
	positive := func(name string, v, zero time.Duration) time.Duration {
		if v < 0 {
			errs = append(errs, fmt.Errorf("discovery: %s is %s; it must be positive, or 0 for %s", name, v, zero))
		}
		if v == 0 {
			return zero
		}
		return v
	}
	count := func(name string, n, zero int) int {
		if n < 0 {
			errs = append(errs, fmt.Errorf("discovery: %s is %d; it must be positive, or 0 for %d", name, n, zero))
		}
		if n == 0 {
			return zero
		}
		return n
	}
	d := &Discovery{
		source:      cfg.Source,
		bases:       cfg.Bases,
		period:      positive("Period", cfg.Period, 10*time.Second),
		concurrency: count("Concurrency", cfg.Concurrency, 16),
		callTimeout: positive("CallTimeout", cfg.CallTimeout, 10*time.Second),
		refresh:     positive("JobsRefreshPeriod", cfg.JobsRefreshPeriod, time.Minute),
		staleLimit:  positive("StaleLimit", cfg.StaleLimit, 10*time.Minute),
		limits: limits{
			perOperation: count("MaxServicesPerOperation", cfg.MaxServicesPerOperation, DefaultMaxServicesPerOperation),
			perUser:      count("MaxServicesPerUser", cfg.MaxServicesPerUser, DefaultMaxServicesPerUser),
			all:          count("MaxServices", cfg.MaxServices, DefaultMaxServices),
		},
		guard:      newGuard(cfg.SPYT, cfg.Resolver),
		onSnapshot: cfg.OnSnapshot,
		log:        cfg.Logger,
		tracked:    make(map[string]*tracked),
		missing:    make(missing),
		doubtful:   make(map[string]bool),
		labels:     NewLabels(nil),
	}
	d.publishers = newPublishers(cfg.SPYT, d.limits.perOperation)
	d.silent = newSilences(d.callTimeout)
	if err := cfg.SPYT.check(); err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if d.onSnapshot == nil {
		d.onSnapshot = func(*Snapshot) {}
	}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	var err error
	if d.metrics, err = newMetrics(cfg.Registerer, d.staleLimit); err != nil {
		return nil, err
	}
	if cfg.Store != nil {
		d.table = newTable(cfg.Store, cfg.Bases.Primary(), d.period, d.log, d.metrics)
	}
	d.early = newEarly(d.period, d.limits.all)
	d.snapshot.Store(new(Snapshot))
	d.problems.Store(new([]Problem))
	return d, nil
}

// Ready reports whether a cycle has been answered, also by an empty cluster. It is never lost.
func (d *Discovery) Ready() bool { return d.ready.Load() }

// Snapshot is the one in use; empty before the first answered cycle, never nil.
func (d *Discovery) Snapshot() *Snapshot { return d.snapshot.Load() }

// Problems are those of the last answered cycle, sorted. The slice is shared: callers must not modify it.
func (d *Discovery) Problems() []Problem { return *d.problems.Load() }

// Run makes a cycle at once and then one every period, or sooner when Await asks for one, until ctx ends; then it returns
// nil. A failed cycle keeps what is known and is repeated after a pause that grows to a minute. The services table is
// written beside the cycles.
func (d *Discovery) Run(ctx context.Context) error {
	var writer sync.WaitGroup
	defer writer.Wait()
	defer func() { d.early.end(time.Now(), false) }() // nobody waits for a cycle that will not be
	if d.table != nil {
		d.seeds = newSeeds()
		writer.Go(func() { d.table.run(ctx) })
		writer.Go(func() { d.readSeeds(ctx, d.seeds) })
	}

	failures := 0
	for {
		start := time.Now()
		err := d.cycle(ctx)
		if ctx.Err() != nil {
			return nil // whatever the cycle says now is about our own end
		}
		d.metrics.duration.Observe(time.Since(start).Seconds())
		d.metrics.lastCalls.Set(float64(d.calls.Load()))
		if err != nil {
			failures++
			reason := cause(err)
			d.metrics.failed.WithLabelValues(reason).Inc()
			d.log.Warn("discovery cycle failed, the last services stay", "reason", reason, "failures", failures, "err", err)
		} else {
			if failures > 0 {
				d.log.Info("discovery cycles are answered again", "failures", failures)
			}
			failures = 0
			d.metrics.succeeded.Inc()
			d.metrics.lastSuccess.SetToCurrentTime()
		}
		d.rest(ctx, time.Now().Add(jitter(d.pause(failures, time.Since(start)))))
		if ctx.Err() != nil {
			return nil
		}
	}
}

// pause is how long to wait after a cycle that took some time, the given number of failures in a row behind us.
func (d *Discovery) pause(failures int, took time.Duration) time.Duration {
	if failures == 0 {
		// A cycle that outlasts the period must not make us ask without a break.
		return max(d.period-took, d.period/4)
	}
	first := d.period
	if !d.ready.Load() {
		// Nobody is served before the first answer, so it is worth asking a little sooner.
		first = min(first, time.Second)
	}
	delay := first
	for range failures - 1 {
		if delay >= maxBackoff {
			break
		}
		delay *= 2
	}
	return max(min(delay, maxBackoff), first)
}

// jitter varies a duration by up to a tenth either way, so that replicas and restarts do not fall into step.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}
