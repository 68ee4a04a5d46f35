package proxy

import (
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the proxy's collectors. No label holds anything that callers or job authors can invent.
type metrics struct {
	requests   *prometheus.CounterVec
	errors     *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	streams    *prometheus.GaugeVec
	retries    prometheus.Counter
	authOK     *prometheus.CounterVec
	authFailed *prometheus.CounterVec
}

// newMetrics registers the collectors with r; a nil r keeps them unread. setAside counts the endpoints that are set aside.
func newMetrics(r prometheus.Registerer, setAside func() int) (*metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "yt_task_proxy_" + name, Help: help}, labels)
	}
	m := &metrics{
		requests: counter("requests_total", "Total number of requests by protocol and answer (HTTP status; for gRPC the gRPC status code).", "protocol", "code"),
		errors:   counter("request_errors_total", "Total number of requests that the proxy answered with an error of its own, by reason.", "reason"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "yt_task_proxy_request_duration_seconds",
			Help:    "Time from a request's headers to the end of its answer. Tunnels are not in it.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"protocol"}),
		streams: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "yt_task_proxy_streams",
			Help: "Current number of requests and tunnels that are open towards jobs.",
		}, []string{"protocol"}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "yt_task_proxy_upstream_retries_total",
			Help: "Total number of times that a request moved on to another endpoint.",
		}),
		authOK:     counter("auth_success_total", "Total number of requests whose caller was identified and authorized.", "reason"),
		authFailed: counter("auth_failed_total", "Total number of requests whose caller was not identified or not authorized, by reason.", "reason"),
	}
	if r == nil {
		return m, nil
	}
	aside := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "yt_task_proxy_endpoints_set_aside",
		Help: "Current number of endpoints that take no requests because they did not accept connections.",
	}, func() float64 { return float64(setAside()) })
	var errs []error
	for _, c := range []prometheus.Collector{m.requests, m.errors, m.duration, m.streams, m.retries, m.authOK, m.authFailed, aside} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

// record counts a finished request.
func (m *metrics) record(x *exchange, took time.Duration) {
	protocol, code := x.protocol(), statusLabel(x.status())
	if x.grpc && x.grpcStatus != "" {
		code = x.grpcStatus
	}
	m.requests.WithLabelValues(protocol, code).Inc()
	if x.upgraded == nil {
		m.duration.WithLabelValues(protocol).Observe(took.Seconds())
	}
	if x.failure != nil {
		m.errors.WithLabelValues(x.failure.reason).Inc()
	}
	switch {
	case x.peer:
		m.authOK.WithLabelValues("peer").Inc()
	case x.authorized:
		m.authOK.WithLabelValues("authorized").Inc()
	case x.failure == nil:
	case x.failure.status == 401, x.failure == causeDenied, x.failure == causeNoOperation, x.failure == causeNoCluster:
		m.authFailed.WithLabelValues(x.failure.reason).Inc()
	}
}

// statusLabel bounds what a job can write into a label to the codes that HTTP has room for.
func statusLabel(status int) string {
	if status < 100 || status > 599 {
		return "other"
	}
	return statusLabels[status-100]
}

// statusLabels are the labels of 100 and the following.
var statusLabels = func() (labels [500]string) {
	for i := range labels {
		labels[i] = strconv.Itoa(100 + i)
	}
	return labels
}()
