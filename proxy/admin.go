package proxy

import (
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// AdminConfig is what the admin handler shows.
type AdminConfig struct {
	// Ready reports whether the proxy should get requests. nil: always.
	Ready func() bool
	// Gatherer has the metrics; nil: there are none.
	Gatherer prometheus.Gatherer
	// Hosts are further host names that the listener is reached by, without ports. IP addresses, "localhost" and an absent
	// Host are always served.
	Hosts []string
	// Logger gets failures to gather metrics; nil: nothing is logged.
	Logger *slog.Logger
}

// NewAdmin returns the handler of the admin listener: /healthz, which depends on nothing; /readyz; /metrics and
// /metrics/prometheus. A request for another host name than the configured ones gets 421, so that a web page cannot read
// it by pointing a name of its own here.
func NewAdmin(cfg AdminConfig) http.Handler {
	r := chi.NewRouter()
	r.Use(checkHost(cfg.Hosts))
	r.Get("/healthz", say(http.StatusOK, "ok"))
	r.Head("/healthz", say(http.StatusOK, "ok"))
	ready := func(w http.ResponseWriter, req *http.Request) {
		if cfg.Ready != nil && !cfg.Ready() {
			say(http.StatusServiceUnavailable, "not ready")(w, req)
			return
		}
		say(http.StatusOK, "ok")(w, req)
	}
	r.Get("/readyz", ready)
	r.Head("/readyz", ready)
	if cfg.Gatherer != nil {
		opts := promhttp.HandlerOpts{}
		if cfg.Logger != nil {
			opts.ErrorLog = metricsLog{cfg.Logger}
		}
		metrics := promhttp.HandlerFor(cfg.Gatherer, opts)
		// The second path is where the product that this one replaces has them.
		for _, path := range []string{"/metrics", "/metrics/prometheus"} {
			r.Method(http.MethodGet, path, metrics)
			r.Method(http.MethodHead, path, metrics)
		}
	}
	return r
}

func say(status int, word string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(word + "\n"))
	}
}

// checkHost refuses host names that nobody configured.
func checkHost(hosts []string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !isAdminHost(r.Host, hosts) {
				say(http.StatusMisdirectedRequest, "this host is not served here")(w, r)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

func isAdminHost(host string, hosts []string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(name, "["), "]"), ".")
	if name == "" || strings.EqualFold(name, "localhost") {
		return true
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	for _, h := range hosts {
		if strings.EqualFold(name, strings.TrimSuffix(h, ".")) {
			return true
		}
	}
	return false
}

// metricsLog is promhttp's logger.
type metricsLog struct{ logger *slog.Logger }

func (l metricsLog) Println(v ...any) { l.logger.Warn("metrics failed", "err", v) }
