package serve

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"taskproxy/discovery"
)

// newRegistry has what is known of the process itself.
func newRegistry(version string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "yt_task_proxy_build_info",
		Help: "What runs, in the labels; always 1.",
	}, []string{"version", "go_version"})
	build.WithLabelValues(cmp.Or(version, "unknown"), runtime.Version()).Set(1)
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), build)
	return r
}

// connectionMetrics is what the public listener counts.
type connectionMetrics struct{ open, waited atomic.Int64 }

func (m *connectionMetrics) register(r prometheus.Registerer, limit int) error {
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "yt_task_proxy_" + name, Help: help}, value)
	}
	return errors.Join(
		r.Register(gauge("connections", "Current number of callers' connections, those of tunnels included.", func() float64 { return float64(m.open.Load()) })),
		r.Register(gauge("connections_limit", "How many connections callers may have at a time: --max-connections; 0: any number.", func() float64 { return float64(limit) })),
		r.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "yt_task_proxy_connections_delayed_total",
			Help: "Total number of times that a new connection had to wait because there were as many as --max-connections allows.",
		}, func() float64 { return float64(m.waited.Load()) })),
	)
}

// newTokenMetric is 1 as long as the robot's token could be read the last time, and 0 otherwise.
func newTokenMetric(r prometheus.Registerer) (prometheus.Gauge, error) {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "yt_task_proxy_token_last_reload_successful",
		Help: "1 when the file holds the robot's token, 0 when it cannot be read and the last one is used.",
	})
	g.Set(1)
	return g, r.Register(g)
}

// certificateMetrics are there with TLS only.
type certificateMetrics struct{ expiry, reloaded prometheus.Gauge }

func newCertificateMetrics(r prometheus.Registerer) (certificateMetrics, error) {
	m := certificateMetrics{
		expiry: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "yt_task_proxy_tls_certificate_expiry_timestamp_seconds",
			Help: "When the certificate in use expires, in seconds since 1970.",
		}),
		reloaded: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "yt_task_proxy_tls_certificate_last_reload_successful",
			Help: "1 when the files hold the certificate in use, 0 when they hold something that cannot be used.",
		}),
	}
	if err := errors.Join(r.Register(m.expiry), r.Register(m.reloaded)); err != nil {
		return m, fmt.Errorf("register the certificate's metrics: %w", err)
	}
	return m, nil
}

// Metrics is what a process with TLS tells at /metrics before anything has happened: every metric and, but for labels with a value
// that is still to come, every label. No cluster is asked and nothing is opened. It is for those who draw dashboards.
func Metrics() (prometheus.Gatherer, error) {
	bases, err := discovery.NewBases("example.net")
	if err != nil {
		return nil, err
	}
	cfg := Config{YTProxy: "localhost", Bases: bases, AuthEnabled: true, AuthCookieName: "YTCypressCookie", StaleLimit: 10 * time.Minute}
	registry := newRegistry("")
	cluster, err := connect(cfg, &tokenFile{}, registry)
	if err != nil {
		return nil, err
	}
	defer cluster.close()
	// The parts are not closed, which would take some of the metrics away: nothing of them runs.
	if _, err := assemble(cfg, cluster, registry, slog.New(slog.DiscardHandler)); err != nil {
		return nil, err
	}
	_, tokenErr := newTokenMetric(registry)
	_, certificateErr := newCertificateMetrics(registry)
	return registry, errors.Join(tokenErr, certificateErr, new(connectionMetrics).register(registry, 0))
}
