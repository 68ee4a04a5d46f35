// Package observe has Prometheus itself read the chart's alerts and dashboard: its parser every query, its engine every
// alert, against series for which it must fire and series for which it must not.
package observe

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

const files = "../../chart/files/"

var read = parser.NewParser(parser.Options{})

func alerts(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	text, err := os.ReadFile(files + "alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	groups, errs := rulefmt.Parse(text, false, model.UTF8Validation, read, slog.New(slog.DiscardHandler)) // templates in annotations, too
	for _, err := range errs {
		t.Error(err)
	}
	rules := make(map[string]rulefmt.Rule)
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			rules[r.Alert] = r
		}
	}
	return rules
}

func TestDashboardIsPromQL(t *testing.T) {
	text, err := os.ReadFile(files + "dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	queries := 0
	for _, p := range dashboard.Panels {
		for _, q := range p.Targets {
			queries++
			if _, err := read.ParseExpr(strings.ReplaceAll(q.Expr, "$__rate_interval", "5m")); err != nil {
				t.Errorf("%s: %v", q.Expr, err)
			}
		}
	}
	if queries < 50 {
		t.Errorf("%d queries", queries)
	}
}

// at is when the alerts are asked, after so many minutes of series with a value each minute.
const at = 60 * time.Minute

// cases are series in Prometheus's notation: start+step×times. "@" stands for the labels of a target.
var cases = []struct {
	alert string
	fires []string
	quiet []string
}{
	{"TaskProxyDown", nil, []string{`yt_task_proxy_build_info{@} 1x60`}},
	{"TaskProxyRestarts",
		[]string{`yt_task_proxy_build_info{@} 1x60`, `process_start_time_seconds{@} 0x45 100x5 200x5 300x10`},
		[]string{`yt_task_proxy_build_info{@} 1x60`, `process_start_time_seconds{@} 0x50 100x10`, `process_start_time_seconds{job="other",instance="x"} 0+1x60`}},
	{"TaskProxyDiscoveryStuck",
		[]string{`yt_task_proxy_discovery_last_success_timestamp_seconds{@} 3300x60`, `yt_task_proxy_discovery_stale_limit_seconds{@} 600x60`},
		[]string{`yt_task_proxy_discovery_last_success_timestamp_seconds{@} 3580x60`, `yt_task_proxy_discovery_stale_limit_seconds{@} 600x60`}},
	{"TaskProxyDiscoveryFailing",
		[]string{`yt_task_proxy_discovery_failed_total{@,reason="unavailable"} 0x50 1+1x10`},
		[]string{`yt_task_proxy_discovery_failed_total{@,reason="unavailable"} 0x50 1x10`, `yt_task_proxy_discovery_failed_total{@,reason="denied"} 0x60`}},
	{"TaskProxyDiscoverySlow",
		[]string{`yt_task_proxy_discovery_cycle_duration_seconds_bucket{@,le="24"} 0x60`, `yt_task_proxy_discovery_cycle_duration_seconds_bucket{@,le="61"} 0+6x60`, `yt_task_proxy_discovery_cycle_duration_seconds_bucket{@,le="+Inf"} 0+6x60`},
		[]string{`yt_task_proxy_discovery_cycle_duration_seconds_bucket{@,le="24"} 0+6x60`, `yt_task_proxy_discovery_cycle_duration_seconds_bucket{@,le="61"} 0+6x60`, `yt_task_proxy_discovery_cycle_duration_seconds_bucket{@,le="+Inf"} 0+6x60`}},
	{"TaskProxyAuthorizationClusterUnreachable",
		[]string{`yt_task_proxy_auth_errors_total{@,stage="authenticate"} 0x60`, `yt_task_proxy_auth_stale_grants_total{@} 0x57 5x3`},
		[]string{`yt_task_proxy_auth_errors_total{@,stage="authenticate"} 7x60`, `yt_task_proxy_auth_stale_grants_total{@} 5x60`}},
	{"TaskProxyAuthorizationClusterAuthOff", []string{`yt_task_proxy_auth_cluster_auth_off{@} 1x60`}, []string{`yt_task_proxy_auth_cluster_auth_off{@} 0x60`}},
	{"TaskProxyAuthorizationLimited",
		[]string{`yt_task_proxy_auth_limited_total{@,limit="failures"} 0+120x60`},
		[]string{`yt_task_proxy_auth_limited_total{@,limit="failures"} 0+6x60`}},
	{"TaskProxyRobotRefused",
		[]string{`yt_task_proxy_ytsaurus_request_errors_total{@,request="list_operations",kind="unauthenticated"} 0x55 1+1x5`},
		[]string{`yt_task_proxy_ytsaurus_request_errors_total{@,request="whoami",kind="unauthenticated"} 0+9x60`, `yt_task_proxy_ytsaurus_request_errors_total{@,request="list_children",kind="denied"} 0+9x60`,
			`yt_task_proxy_ytsaurus_request_errors_total{@,request="list_operations",kind="unauthenticated"} 0x60`}},
	{"TaskProxyTokenReloadFailed", []string{`yt_task_proxy_token_last_reload_successful{@} 0x60`}, []string{`yt_task_proxy_token_last_reload_successful{@} 1x60`}},
	{"TaskProxyTableNotWritten",
		[]string{`yt_task_proxy_discovery_table_lease{@} 1x60`, `yt_task_proxy_discovery_table_last_success_timestamp_seconds{@} 2000x60`, `yt_task_proxy_discovery_table_yielding{@} 0x60`},
		[]string{`yt_task_proxy_discovery_table_lease{@} 0x60`, `yt_task_proxy_discovery_table_last_success_timestamp_seconds{@} 0x60`, `yt_task_proxy_discovery_table_yielding{@} 0x60`}},
	{"TaskProxyTableNotWritten", // again: left to a rival, which is an alert of its own
		[]string{`yt_task_proxy_discovery_table_lease{@} 1x60`, `yt_task_proxy_discovery_table_last_success_timestamp_seconds{@} 0x60`, `yt_task_proxy_discovery_table_yielding{@} 0x60`},
		[]string{`yt_task_proxy_discovery_table_lease{@} 1x60`, `yt_task_proxy_discovery_table_last_success_timestamp_seconds{@} 0x60`, `yt_task_proxy_discovery_table_yielding{@} 1x60`}},
	{"TaskProxyTableRival", []string{`yt_task_proxy_discovery_table_yielding{@} 1x60`}, []string{`yt_task_proxy_discovery_table_yielding{@} 0x60`}},
	{"TaskProxyTableNoWriter",
		[]string{`yt_task_proxy_discovery_table_lease{@} 0x60`, `yt_task_proxy_discovery_table_lease{namespace="yt",job="task-proxy",pod="b",instance="b"} 0x60`},
		[]string{`yt_task_proxy_discovery_table_lease{@} 0x60`, `yt_task_proxy_discovery_table_lease{namespace="yt",job="task-proxy",pod="b",instance="b"} 1x60`}},
	{"TaskProxyErrors",
		[]string{`yt_task_proxy_request_errors_total{@,fault="cluster",reason="cluster_unavailable"} 0+10x60`, `yt_task_proxy_requests_total{@,code="200",protocol="http"} 0+100x60`},
		[]string{`yt_task_proxy_request_errors_total{@,fault="proxy",reason="shutting_down"} 0+50x60`, `yt_task_proxy_request_errors_total{@,fault="job",reason="connect_failed"} 0+50x60`,
			`yt_task_proxy_request_errors_total{@,fault="proxy",reason="internal"} 0+1x60`, `yt_task_proxy_requests_total{@,code="200",protocol="http"} 0+100x60`}},
	{"TaskProxyJobErrors",
		[]string{`yt_task_proxy_request_errors_total{@,fault="job",reason="connect_failed"} 0+30x60`, `yt_task_proxy_requests_total{@,code="502",protocol="http"} 0+100x60`},
		[]string{`yt_task_proxy_request_errors_total{@,fault="caller",reason="no_credentials"} 0+90x60`, `yt_task_proxy_request_errors_total{@,fault="job",reason="connect_failed"} 0x60`, `yt_task_proxy_requests_total{@,code="401",protocol="http"} 0+100x60`}},
	{"TaskProxyEndpointsSetAside",
		[]string{`yt_task_proxy_endpoints_set_aside{@} 10x60`, `yt_task_proxy_endpoints{@} 40x60`},
		[]string{`yt_task_proxy_endpoints_set_aside{@} 2x60`, `yt_task_proxy_endpoints{@} 3x60`}},
	{"TaskProxyConnectionsNearLimit",
		[]string{`yt_task_proxy_connections{@} 90x60`, `yt_task_proxy_connections_limit{@} 100x60`},
		[]string{`yt_task_proxy_connections{@} 90x60`, `yt_task_proxy_connections_limit{@} 0x60`}},
	{"TaskProxyCertificateExpires",
		[]string{`yt_task_proxy_tls_certificate_expiry_timestamp_seconds{@} 1000000x60`},
		[]string{`yt_task_proxy_tls_certificate_expiry_timestamp_seconds{@} 1300000x60`}},
	{"TaskProxyCertificateReloadFailed", []string{`yt_task_proxy_tls_certificate_last_reload_successful{@} 0x60`}, []string{`yt_task_proxy_tls_certificate_last_reload_successful{@} 1x60`}},
	{"TaskProxyFileDescriptors",
		[]string{`process_open_fds{@} 900x60`, `process_max_fds{@} 1000x60`, `yt_task_proxy_build_info{@} 1x60`},
		[]string{`process_open_fds{job="other",instance="x"} 900x60`, `process_max_fds{job="other",instance="x"} 1000x60`, `yt_task_proxy_build_info{@} 1x60`}},
	{"TaskProxyGoroutines",
		[]string{`go_goroutines{@} 9000x60`, `yt_task_proxy_connections{@} 100x60`, `yt_task_proxy_streams{@,protocol="http"} 10x60`, `yt_task_proxy_streams{@,protocol="websocket"} 10x60`},
		[]string{`go_goroutines{@} 9000x60`, `go_goroutines{job="other",instance="x"} 90000x60`, `yt_task_proxy_connections{@} 1000x60`, `yt_task_proxy_streams{@,protocol="http"} 400x60`, `yt_task_proxy_streams{@,protocol="websocket"} 100x60`}},
	{"TaskProxyMemory",
		[]string{`process_resident_memory_bytes{@} 950x60`, `go_gc_gomemlimit_bytes{@} 900x60`, `yt_task_proxy_build_info{@} 1x60`},
		[]string{`process_resident_memory_bytes{@} 800x60`, `go_gc_gomemlimit_bytes{@} 900x60`, `yt_task_proxy_build_info{@} 1x60`}},
}

func TestAlertsFire(t *testing.T) {
	rules := alerts(t)
	tested := make(map[string]bool)
	for _, c := range cases {
		tested[c.alert] = true
		rule, ok := rules[c.alert]
		if !ok {
			t.Errorf("there is no alert %s", c.alert)
			continue
		}
		if n := ask(t, rule.Expr, c.fires); n != 1 {
			t.Errorf("%s: %d of it where it should fire once", c.alert, n)
		}
		if n := ask(t, rule.Expr, c.quiet); n != 0 {
			t.Errorf("%s: %d of it where it should not fire", c.alert, n)
		}
	}
	for name := range rules {
		if !tested[name] {
			t.Errorf("nobody knows when %s fires", name)
		}
	}
}

// ask is how many results an expression has.
func ask(t *testing.T, expr string, series []string) int {
	t.Helper()
	store := make(memory, 0, len(series))
	for _, text := range series {
		text = strings.Replace(text, "@", `namespace="yt",job="task-proxy",pod="a",instance="a"`, 1)
		set, values, err := read.ParseSeriesDesc(text)
		if err != nil {
			t.Fatal(err)
		}
		var samples []chunks.Sample
		for i, v := range values {
			samples = append(samples, sample{int64(i) * time.Minute.Milliseconds(), v.Value})
		}
		store = append(store, storage.NewListSeries(set, samples))
	}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, Parser: read})
	defer engine.Close()
	query, err := engine.NewInstantQuery(t.Context(), store, nil, expr, time.UnixMilli(at.Milliseconds()))
	if err != nil {
		t.Fatal(fmt.Errorf("%s: %w", expr, err))
	}
	defer query.Close()
	vector, err := query.Exec(t.Context()).Vector()
	if err != nil {
		t.Fatal(fmt.Errorf("%s: %w", expr, err))
	}
	return len(vector)
}

// memory is a storage that holds a few series.
type memory []*storage.SeriesEntry

func (m memory) Querier(int64, int64) (storage.Querier, error) { return m, nil }
func (m memory) Close() error                                  { return nil }
func (m memory) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}
func (m memory) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (m memory) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	found := &result{at: -1}
	for _, s := range m {
		matches := true
		for _, one := range matchers {
			matches = matches && one.Matches(s.Lset.Get(one.Name))
		}
		if matches {
			found.series = append(found.series, s)
		}
	}
	return found
}

type result struct {
	series memory
	at     int
}

func (r *result) Next() bool                        { r.at++; return r.at < len(r.series) }
func (r *result) At() storage.Series                { return r.series[r.at] }
func (r *result) Err() error                        { return nil }
func (r *result) Warnings() annotations.Annotations { return nil }

type sample struct {
	t int64
	v float64
}

func (s sample) T() int64                      { return s.t }
func (s sample) ST() int64                     { return 0 }
func (s sample) F() float64                    { return s.v }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }
