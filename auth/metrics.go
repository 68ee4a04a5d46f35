package auth

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Values of the label "cache". Answers of no are kept apart from the rest, and counted apart.
const (
	labelIdentity = "identity"
	labelDecision = "decision"
	labelFailures = "failures"
)

// metrics is what the caches tell. Every label has a fixed, small set of values.
type metrics struct {
	registerer prometheus.Registerer // nil: not exported
	registered []prometheus.Collector

	hits      *prometheus.CounterVec
	misses    *prometheus.CounterVec
	inflight  *prometheus.GaugeVec
	waiting   *prometheus.GaugeVec
	stale     prometheus.Counter
	refreshes *prometheus.CounterVec
	limited   *prometheus.CounterVec
}

// newMetrics makes the collectors and registers them. Each of the functions returns how many answers of yes and of no a
// cache remembers.
func newMetrics(r prometheus.Registerer, identities, decisions func() (grants, refusals int)) (*metrics, error) {
	perCache := []string{"cache"}
	m := &metrics{
		registerer: r,
		hits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "yt_task_proxy_auth_cache_hits_total",
			Help: "Total number of look-ups answered from memory; a remembered no counts as a hit of failures.",
		}, perCache),
		misses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "yt_task_proxy_auth_cache_misses_total",
			Help: "Total number of look-ups that had to wait for the cluster.",
		}, perCache),
		inflight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "yt_task_proxy_auth_cache_inflight_backend_requests",
			Help: "Current number of calls to the cluster.",
		}, perCache),
		waiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "yt_task_proxy_auth_cache_waiting_requests",
			Help: "Current number of requests that wait for a call to the cluster.",
		}, perCache),
		stale: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "yt_task_proxy_auth_stale_grants_total",
			Help: "Total number of look-ups answered by an expired yes because the cluster could not be asked.",
		}),
		refreshes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "yt_task_proxy_auth_refreshes_total",
			Help: "Total number of attempts to renew an answer in the background, by what came of them.",
		}, []string{"result"}),
		limited: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "yt_task_proxy_auth_limited_total",
			Help: "Total number of look-ups for which the cluster was not asked: one caller had too many under way or refused, or all together had.",
		}, []string{"limit"}),
	}
	entries := func(label string, count func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "yt_task_proxy_auth_cache_entries",
			Help:        "Current number of remembered answers, expired ones included.",
			ConstLabels: prometheus.Labels{"cache": label},
		}, func() float64 { return float64(count()) })
	}
	return m, m.register(
		m.hits, m.misses, m.inflight, m.waiting, m.stale, m.refreshes, m.limited,
		entries(labelIdentity, func() int { n, _ := identities(); return n }),
		entries(labelDecision, func() int { n, _ := decisions(); return n }),
		entries(labelFailures, func() int {
			_, i := identities()
			_, d := decisions()
			return i + d
		}),
	)
}

// register takes all collectors or, with an error, none.
func (m *metrics) register(collectors ...prometheus.Collector) error {
	if m.registerer == nil {
		return nil
	}
	for _, c := range collectors {
		if err := m.registerer.Register(c); err != nil {
			m.unregister()
			return fmt.Errorf("register the metrics of auth: %w", err)
		}
		m.registered = append(m.registered, c)
	}
	return nil
}

func (m *metrics) unregister() {
	for _, c := range m.registered {
		m.registerer.Unregister(c)
	}
}

// cacheMetrics is the part of the metrics that one cache needs, looked up once.
type cacheMetrics struct {
	hits, failureHits, misses           prometheus.Counter
	stale                               prometheus.Counter
	renewed, withdrawn, failed, skipped prometheus.Counter
	inflight, waiting                   prometheus.Gauge
}

func (m *metrics) of(label string) cacheMetrics {
	return cacheMetrics{
		hits:        m.hits.WithLabelValues(label),
		failureHits: m.hits.WithLabelValues(labelFailures),
		misses:      m.misses.WithLabelValues(label),
		stale:       m.stale,
		renewed:     m.refreshes.WithLabelValues("renewed"),
		withdrawn:   m.refreshes.WithLabelValues("withdrawn"),
		failed:      m.refreshes.WithLabelValues("failed"),
		skipped:     m.refreshes.WithLabelValues("skipped"),
		inflight:    m.inflight.WithLabelValues(label),
		waiting:     m.waiting.WithLabelValues(label),
	}
}

// count counts one look-up. cached says that it waited for nothing.
func (m *cacheMetrics) count(o outcome, cached bool) {
	if o == held {
		m.stale.Inc()
	}
	switch {
	case !cached:
		m.misses.Inc()
	case o == refused:
		m.failureHits.Inc()
	default:
		m.hits.Inc()
	}
}

// limitMetrics count, by the limit that was met.
type limitMetrics struct{ lookups, failures, busy prometheus.Counter }

func (m *metrics) limits() limitMetrics {
	return limitMetrics{
		lookups:  m.limited.WithLabelValues("lookups"),
		failures: m.limited.WithLabelValues("failures"),
		busy:     m.limited.WithLabelValues("busy"),
	}
}
