package ytclient

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts what is asked of the cluster. A nil *Metrics counts nothing.
type Metrics struct {
	duration *prometheus.HistogramVec
	errors   *prometheus.CounterVec
}

// NewMetrics registers the collectors; the error is the registerer's.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "yt_task_proxy_ytsaurus_request_duration_seconds",
			Help:    "Duration of calls to the cluster, retries included.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 11), // 1 ms to 9.5 s
		}, []string{"request"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "yt_task_proxy_ytsaurus_request_errors_total",
			Help: "Total number of calls to the cluster that failed.",
		}, []string{"request", "kind"}),
	}
	for _, request := range requests {
		m.duration.WithLabelValues(request)
		m.errors.WithLabelValues(request, otherKind)
		for _, k := range kinds {
			m.errors.WithLabelValues(request, k.kind)
		}
	}
	for _, c := range []prometheus.Collector{m.duration, m.errors} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// requests are the calls that a serving process makes, counted from the start; the rights that task-proxy check asks about are not
// among them.
var requests = []string{
	"whoami", "check_operation_permission", "list_operations", "get_operation", "list_jobs", "get_job_ports", "get_node_jobs", "list_children",
	"acquire_lease", "read_services", "services_revision", "sync_services",
}

// otherKind is what a failure is that no sentinel names.
const otherKind = "other"

// kinds names the sentinels for the label of failed calls.
var kinds = []struct {
	err  error
	kind string
}{
	{ErrUnauthenticated, "unauthenticated"}, {ErrDenied, "denied"}, {ErrNotFound, "not_found"},
	{ErrNoSuchOperation, "no_such_operation"}, {ErrConflict, "conflict"}, {ErrLeaseLost, "lease_lost"},
	{ErrOverloaded, "overloaded"}, {ErrOddAnswer, "odd_answer"}, {ErrUnavailable, "unavailable"}, {ErrRejected, "rejected"},
}

func (m *Metrics) observe(request string, d time.Duration, err error) {
	if m == nil {
		return
	}
	m.duration.WithLabelValues(request).Observe(d.Seconds())
	if err == nil {
		return
	}
	kind := otherKind
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			kind = k.kind
			break
		}
	}
	m.errors.WithLabelValues(request, kind).Inc()
}
