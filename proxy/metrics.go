package proxy

import (
	"errors"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// protocol is what a caller speaks; metrics keep their counters by it.
type protocol uint8

const (
	protocolHTTP protocol = iota
	protocolGRPC
	protocolWebSocket
	protocols // how many there are
)

// String is the word for labels and logs.
func (p protocol) String() string { return [protocols]string{"http", "grpc", "websocket"}[p] }

// metrics are the proxy's collectors. No label holds anything that callers or job authors can invent: its values are fixed,
// and counted from 0, so that an alert sees the first event too. What a request needs is looked up at the start.
type metrics struct {
	of         [protocols]protocolMetrics
	retries    prometheus.Counter
	errors     map[*cause]prometheus.Counter // not written after the start
	authFailed map[*cause]prometheus.Counter // likewise
	authorized prometheus.Counter
	peers      prometheus.Counter
	unanswered [2]prometheus.Counter // by stage
}

// protocolMetrics are those of one protocol.
type protocolMetrics struct {
	requests requestCounters
	duration prometheus.Observer
	streams  prometheus.Gauge
	in, out  atomic.Int64 // bytes, as far as they were taken over from exchanges
}

// Stages at which the cluster can leave a caller without an answer.
const (
	stageAuthenticate = iota
	stageAuthorize
)

// causes is every cause, so that each has its metric from the start.
var causes = []*cause{
	causeBadTarget, causeBadHost, causeBadUpgrade, causeBadBody, causeNoCredentials, causeAmbiguous, causeBadCredentials, causeRefused, causeBadRouting,
	causeConflict, causeNoService, causeMisdirected, causeCrossSite, causeDenied, causeNoOperation, causeNoCluster, causeTooMany, causeAuthOff, causeNoEndpoint,
	causeConnect, causeConnectTimeout, causeBroken, causeBadAnswer, causeRouteTimeout, causeIdle, causeMismatch, causeRevoked, causeEnded, causeJobEnded, causeClosing, causeGone, causeInternal,
}

// fault is whose it is, in a word: an admin is woken by some of them only.
func (c *cause) fault() string {
	switch c {
	case causeNoEndpoint, causeConnect, causeConnectTimeout, causeBroken, causeBadAnswer, causeRouteTimeout, causeIdle, causeJobEnded:
		return "job"
	case causeNoCluster, causeAuthOff:
		return "cluster"
	case causeClosing, causeInternal:
		return "proxy"
	}
	return "caller"
}

// isAuth reports a cause that keeps a caller out.
func (c *cause) isAuth() bool {
	return c.status == http.StatusUnauthorized || c == causeDenied || c == causeNoOperation || c == causeNoCluster || c == causeAuthOff || c == causeTooMany
}

// gauges are what is counted only when somebody asks.
type gauges struct {
	setAside func() int // endpoints
	flush    func()     // takes over the bytes of streams that go on
}

// newMetrics registers the collectors with r; a nil r keeps them unread.
func newMetrics(r prometheus.Registerer, g gauges) (*metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "yt_task_proxy_" + name, Help: help}, labels)
	}
	requests := counter("requests_total", "Total number of requests by protocol and answer (HTTP status; for gRPC the gRPC status code).", "protocol", "code")
	failures := counter("request_errors_total", "Total number of requests that the proxy answered with an error of its own, by reason and whose fault it is: the caller's, the job's, the cluster's or the proxy's.", "reason", "fault")
	duration := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "yt_task_proxy_request_duration_seconds",
		Help:    "Time from a request's headers to the end of its answer. Tunnels are not in it.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
	}, []string{"protocol"})
	streams := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "yt_task_proxy_streams",
		Help: "Current number of requests and tunnels that are open towards jobs.",
	}, []string{"protocol"})
	succeeded := counter("auth_success_total", "Total number of requests whose caller was identified and authorized, or passed as a host that an admin has named (peer).", "reason")
	failed := counter("auth_failed_total", "Total number of requests whose caller was not identified or not authorized, by reason.", "reason")
	unanswered := counter("auth_errors_total", "Total number of requests that were not decided because the cluster could not be asked, by stage.", "stage")
	m := &metrics{
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "yt_task_proxy_upstream_retries_total",
			Help: "Total number of times that a request was tried again: at another endpoint, or at the same on a new connection.",
		}),
		errors:     make(map[*cause]prometheus.Counter, len(causes)),
		authFailed: make(map[*cause]prometheus.Counter),
		authorized: succeeded.WithLabelValues("authorized"),
		peers:      succeeded.WithLabelValues("peer"),
		unanswered: [2]prometheus.Counter{unanswered.WithLabelValues("authenticate"), unanswered.WithLabelValues("authorize")},
	}
	for p := range protocols {
		one := &m.of[p]
		one.requests.init(requests.MustCurryWith(prometheus.Labels{"protocol": p.String()}), p)
		one.streams = streams.WithLabelValues(p.String())
		if p != protocolWebSocket {
			one.duration = duration.WithLabelValues(p.String())
		}
	}
	for _, c := range causes {
		m.errors[c] = failures.WithLabelValues(c.reason, c.fault())
		if c.isAuth() {
			m.authFailed[c] = failed.WithLabelValues(c.reason)
		}
	}
	if r == nil {
		return m, nil
	}
	aside := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "yt_task_proxy_endpoints_set_aside",
		Help: "Current number of endpoints that take no requests because they did not accept connections.",
	}, func() float64 { return float64(g.setAside()) })
	var errs []error
	for _, c := range []prometheus.Collector{requests, failures, duration, streams, m.retries, succeeded, failed, unanswered, aside, &traffic{m: m, flush: g.flush}} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

// record counts a finished request.
func (m *metrics) record(x *exchange, took time.Duration) {
	of := &m.of[x.protocol()]
	if counter := of.requests.grpc[x.grpcStatus]; counter != nil {
		counter.Inc()
	} else {
		of.requests.http(x.status()).Inc()
	}
	if x.upgraded == nil {
		of.duration.Observe(took.Seconds())
	}
	m.flush(x)
	switch {
	case x.peer:
		m.peers.Inc()
	case x.authorized:
		m.authorized.Inc()
	}
	if x.failure == nil {
		return
	}
	m.errors[x.failure].Inc()
	if x.authorized || x.peer || !x.failure.isAuth() {
		return
	}
	m.authFailed[x.failure].Inc()
	if x.failure == causeNoCluster {
		stage := stageAuthorize
		if x.login == "" {
			stage = stageAuthenticate
		}
		m.unanswered[stage].Inc()
	}
}

// requestCounters are the counters of one protocol by code, without a look-up of labels for each request.
type requestCounters struct {
	vec   *prometheus.CounterVec
	codes [600]atomic.Pointer[prometheus.Counter] // by HTTP status; nil: not met yet
	grpc  map[string]prometheus.Counter           // by grpcStatusLabel; not written after the start
}

// init makes those that are met in any case.
func (c *requestCounters) init(vec *prometheus.CounterVec, p protocol) {
	c.vec = vec
	if p == protocolWebSocket {
		c.http(http.StatusSwitchingProtocols)
		return
	}
	c.http(http.StatusOK)
	if p == protocolGRPC {
		c.grpc = map[string]prometheus.Counter{"other": vec.WithLabelValues("other")}
		for code := range 17 {
			c.grpc[strconv.Itoa(code)] = vec.WithLabelValues(strconv.Itoa(code))
		}
		return
	}
	for _, cause := range causes {
		c.http(cause.status)
	}
}

// http is the counter of a status. Two that meet a new one at the same time get the same counter from the vector.
func (c *requestCounters) http(status int) prometheus.Counter {
	slot := &c.codes[0] // no status is below 100
	if status >= 100 && status <= 599 {
		slot = &c.codes[status]
	}
	if known := slot.Load(); known != nil {
		return *known
	}
	counter := c.vec.WithLabelValues(statusLabel(status))
	slot.Store(&counter)
	return counter
}

// statusLabel bounds what a job can write into a label: to the codes that have a name, and classes of the others.
func statusLabel(status int) string {
	switch {
	case status < 100 || status > 599:
		return "other"
	case http.StatusText(status) == "" && status != statusClientGone:
		return strconv.Itoa(status/100) + "xx"
	}
	return strconv.Itoa(status)
}

// flush takes over the bytes that an exchange has moved since the last time. Those of a stream that lasts for days count at
// each look at the metrics, not at its end.
func (m *metrics) flush(x *exchange) {
	of := &m.of[x.carried]
	takeOver(&of.in, &x.bytesIn, &x.countedIn)
	takeOver(&of.out, &x.bytesOut, &x.countedOut)
}

// takeOver adds to sum what moved has grown by since counted. The end of an exchange and a look at the metrics may call it at
// the same time; each byte counts once, and no sum shrinks.
func takeOver(sum, moved, counted *atomic.Int64) {
	for {
		before, now := counted.Load(), moved.Load()
		if now <= before {
			return
		}
		if counted.CompareAndSwap(before, now) {
			sum.Add(now - before)
			return
		}
	}
}

// traffic is the collector of what was carried.
type traffic struct {
	m     *metrics
	flush func()
}

var (
	receivedDesc = prometheus.NewDesc("yt_task_proxy_received_bytes_total",
		"Total number of bytes of requests' bodies, and from callers through tunnels, that were passed on to jobs.", []string{"protocol"}, nil)
	sentDesc = prometheus.NewDesc("yt_task_proxy_sent_bytes_total",
		"Total number of bytes of answers' bodies, and to callers through tunnels.", []string{"protocol"}, nil)
)

// Describe is prometheus.Collector's.
func (t *traffic) Describe(ch chan<- *prometheus.Desc) { ch <- receivedDesc; ch <- sentDesc }

// Collect is prometheus.Collector's.
func (t *traffic) Collect(ch chan<- prometheus.Metric) {
	t.flush()
	for p := range protocols {
		of := &t.m.of[p]
		ch <- prometheus.MustNewConstMetric(receivedDesc, prometheus.CounterValue, float64(of.in.Load()), p.String())
		ch <- prometheus.MustNewConstMetric(sentDesc, prometheus.CounterValue, float64(of.out.Load()), p.String())
	}
}
