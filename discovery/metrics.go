package discovery

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// What became of a request that would wait for an early cycle.
const (
	earlyWaited   = "waited"
	earlyDeclined = "declined"
)

// metrics of discovery. No label carries an operation's id, a name from an annotation or a login.
type metrics struct {
	succeeded   prometheus.Counter
	failed      *prometheus.CounterVec
	duration    prometheus.Histogram
	lastSuccess prometheus.Gauge
	lastCalls   prometheus.Gauge
	refreshes   prometheus.Counter
	routes      prometheus.Gauge
	endpoints   prometheus.Gauge
	problems    *prometheus.GaugeVec
	writes      *prometheus.CounterVec
	lease       prometheus.Gauge
	rewrites    prometheus.Counter
	yielding    prometheus.Gauge
	operations  prometheus.Gauge
	upToDate    prometheus.Gauge
	awaited     *prometheus.CounterVec
}

// newMetrics makes the collectors and registers them; a nil Registerer leaves them unregistered.
// staleLimit is told too: an alert about old cycles depends on it.
func newMetrics(r prometheus.Registerer, staleLimit time.Duration) (*metrics, error) {
	m := &metrics{
		succeeded: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "yt_task_proxy_discovery_success_total",
			Help: "Total number of discovery cycles that the cluster answered.",
		}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "yt_task_proxy_discovery_failed_total",
			Help: "Total number of discovery cycles that failed and changed nothing, by reason.",
		}, []string{"reason"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "yt_task_proxy_discovery_cycle_duration_seconds",
			Help:    "Duration of a discovery cycle.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2.5, 10),
		}),
		lastSuccess: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "yt_task_proxy_discovery_last_success_timestamp_seconds",
			Help: "When the last discovery cycle that the cluster answered ended; 0 before the first.",
		}),
		lastCalls: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "yt_task_proxy_discovery_last_cycle_calls",
			Help: "Current number of calls to the cluster that a discovery cycle takes: that of the last one.",
		}),
		refreshes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "yt_task_proxy_discovery_refreshes_total",
			Help: "Total number of times that one operation was asked about between two cycles because an endpoint of it failed.",
		}),
		routes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "yt_task_proxy_routes",
			Help: "Current number of services that requests can be routed to.",
		}),
		endpoints: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "yt_task_proxy_endpoints",
			Help: "Current number of endpoints of all services.",
		}),
		problems: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "yt_task_proxy_discovery_problems",
			Help: "Current number of problems of operations that publish services, by kind.",
		}, []string{"kind"}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "yt_task_proxy_discovery_table_writes_total",
			Help: "Total number of times that the services table was to be brought up to date, by result.",
		}, []string{"result"}),
		lease: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "yt_task_proxy_discovery_table_lease",
			Help: "Whether this replica is the one that writes the services table: 1 or 0.",
		}),
		rewrites: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "yt_task_proxy_discovery_table_foreign_rewrites_total",
			Help: "Total number of times that somebody else was seen to have changed the services table.",
		}),
		operations: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "yt_task_proxy_discovery_operations",
			Help: "Current number of running operations that publish services or ask for it.",
		}),
		upToDate: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "yt_task_proxy_discovery_table_last_success_timestamp_seconds",
			Help: "When this replica last knew the services table to be what it should be; 0 if it never was the one to write it.",
		}),
		awaited: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "yt_task_proxy_discovery_early_requests_total",
			Help: "Total number of requests for unknown services that waited for an early cycle, or were declined one.",
		}, []string{"result"}),
		yielding: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "yt_task_proxy_discovery_table_yielding",
			Help: "Whether the services table is not written because somebody else keeps rewriting it: 1 or 0.",
		}),
	}
	for _, k := range problemKinds {
		m.problems.WithLabelValues(string(k))
	}
	for _, c := range causes {
		m.failed.WithLabelValues(c.reason)
	}
	m.failed.WithLabelValues(otherCause)
	for _, r := range []string{earlyWaited, earlyDeclined} {
		m.awaited.WithLabelValues(r)
	}
	for _, r := range writeResults {
		m.writes.WithLabelValues(string(r))
	}
	if r == nil {
		return m, nil
	}
	limit := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "yt_task_proxy_discovery_stale_limit_seconds",
		Help: "How long endpoints are kept while the cluster cannot be asked about them: --stale-limit.",
	})
	limit.Set(staleLimit.Seconds())
	for _, c := range []prometheus.Collector{
		m.succeeded, m.failed, m.duration, m.lastSuccess, m.lastCalls, m.refreshes, m.routes, m.endpoints, m.problems, m.writes, m.lease, m.rewrites, m.yielding,
		m.operations, m.upToDate, m.awaited, limit,
	} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register the metrics of discovery: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) observeSnapshot(s *Snapshot) {
	m.routes.Set(float64(s.Len()))
	m.endpoints.Set(float64(s.Endpoints()))
}

func (m *metrics) observeProblems(problems []Problem) {
	count := make(map[ProblemKind]int, len(problemKinds))
	for _, p := range problems {
		count[p.Kind]++
	}
	for _, k := range problemKinds {
		m.problems.WithLabelValues(string(k)).Set(float64(count[k]))
	}
}
