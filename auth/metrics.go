package auth

import (
	"fmt"
	"sync/atomic"

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

// tally is what a cache counts by itself.
type tally struct {
	sizes                          func() (grants, refusals int) // how many answers of yes and of no are remembered
	evictedGrants, evictedRefusals *atomic.Int64
}

// newMetrics makes the collectors and registers them.
func newMetrics(r prometheus.Registerer, identities, decisions *tally) (*metrics, error) {
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
	evictions := func(label string, counts ...*atomic.Int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name:        "yt_task_proxy_auth_cache_evictions_total",
			Help:        "Total number of remembered answers that gave way to newer ones because the cache was full.",
			ConstLabels: prometheus.Labels{"cache": label},
		}, func() (sum float64) {
			for _, c := range counts {
				sum += float64(c.Load())
			}
			return sum
		})
	}
	return m, m.register(
		m.hits, m.misses, m.inflight, m.waiting, m.stale, m.refreshes, m.limited,
		entries(labelIdentity, func() int { n, _ := identities.sizes(); return n }),
		entries(labelDecision, func() int { n, _ := decisions.sizes(); return n }),
		entries(labelFailures, func() int {
			_, i := identities.sizes()
			_, d := decisions.sizes()
			return i + d
		}),
		evictions(labelIdentity, identities.evictedGrants),
		evictions(labelDecision, decisions.evictedGrants),
		evictions(labelFailures, identities.evictedRefusals, decisions.evictedRefusals),
	)
}

// registerStates registers what an authorizer knows about its cluster, each 1 or 0.
func (m *metrics) registerStates(open, away func() bool) error {
	state := func(name, help string, is func() bool) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "yt_task_proxy_auth_" + name, Help: help}, func() float64 {
			if is() {
				return 1
			}
			return 0
		})
	}
	return m.register(
		state("cluster_auth_off", "Whether the cluster takes credentials that nobody has, so that nobody is let in: 1 or 0.", open),
		state("cluster_unreachable", "Whether the last call that asked about a caller could not reach the cluster: 1 or 0.", away),
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
