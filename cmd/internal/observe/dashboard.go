package observe

import (
	"bytes"
	"encoding/json"
)

// panel is one diagram. Its queries are of all replicas that are selected; the selection is added when it is drawn.
type panel struct {
	title, text string // text is for whoever points at the title; empty: the help of the queries' metrics says it
	kind        string // empty: timeseries
	unit        string // Grafana's word; empty: a plain number
	stack       bool
	max         float64 // of the axis; 0: what the values need
	queries     []target
}

// target is a query with the name of its lines.
type target struct{ expr, legend string }

// row is a heading with its panels.
type row struct {
	title  string
	panels []panel
}

// rate is the window of rates: Grafana knows how often Prometheus scrapes.
const rate = "[$__rate_interval]"

// one is a panel with one query.
func one(title, unit, expr, legend string) panel {
	return panel{title: title, unit: unit, queries: []target{{expr, legend}}}
}

// quantiles of a histogram, summed over replicas.
func quantiles(title, histogram, by string) panel {
	p := panel{title: title, unit: "s"}
	for _, q := range []struct{ of, name string }{{"0.5", "median"}, {"0.9", "90 %"}, {"0.99", "99 %"}} {
		grouping, legend := "le", q.name
		if by != "" {
			grouping, legend = "le, "+by, "{{"+by+"}} "+q.name
		}
		p.queries = append(p.queries, target{"histogram_quantile(" + q.of + ", sum by (" + grouping + ") (rate(" + histogram + "_bucket" + rate + ")))", legend})
	}
	return p
}

func (p panel) stacked() panel { p.stack = true; return p }

// rows is the dashboard, from what callers notice down to the process.
var rows = []row{
	{"Overview", []panel{
		{title: "Replicas", kind: "stat", text: "Task proxies that tell their metrics.", queries: []target{{`count(yt_task_proxy_build_info)`, ""}}},
		{title: "Services", kind: "stat", queries: []target{{`max(yt_task_proxy_routes)`, ""}}},
		{title: "Endpoints", kind: "stat", queries: []target{{`max(yt_task_proxy_endpoints)`, ""}}},
		{title: "Age of what is known", kind: "stat", unit: "s", text: "Time since the oldest replica's last answered cycle.", queries: []target{{`max(time() - yt_task_proxy_discovery_last_success_timestamp_seconds)`, ""}}},
		{title: "Requests", kind: "stat", unit: "reqps", queries: []target{{`sum(rate(yt_task_proxy_requests_total` + rate + `))`, ""}}},
		{title: "Versions", kind: "stat", text: "What the replicas run.", queries: []target{{`count by (version) (yt_task_proxy_build_info)`, "{{version}}"}}},
	}},
	{"Traffic", []panel{
		one("Requests by protocol", "reqps", `sum by (protocol) (rate(yt_task_proxy_requests_total`+rate+`))`, "{{protocol}}").stacked(),
		one("Requests by answer", "reqps", `sum by (protocol, code) (rate(yt_task_proxy_requests_total`+rate+`)) > 0`, "{{protocol}} {{code}}"),
		{title: "Bytes", unit: "Bps", text: "To jobs, and to callers.", queries: []target{
			{`sum by (protocol) (rate(yt_task_proxy_received_bytes_total` + rate + `))`, "{{protocol}} to jobs"},
			{`sum by (protocol) (rate(yt_task_proxy_sent_bytes_total` + rate + `))`, "{{protocol}} to callers"},
		}},
	}},
	{"Errors", []panel{
		one("Whose fault errors are", "reqps", `sum by (fault) (rate(yt_task_proxy_request_errors_total`+rate+`))`, "{{fault}}").stacked(),
		one("Errors by reason", "reqps", `sum by (reason) (rate(yt_task_proxy_request_errors_total`+rate+`)) > 0`, "{{reason}}"),
		{title: "Failed requests", unit: "percentunit", text: "Of all requests, those that failed because of jobs, the cluster and the proxy.", queries: []target{
			{`sum by (fault) (rate(yt_task_proxy_request_errors_total{fault!="caller"}` + rate + `)) / ignoring (fault) group_left sum(rate(yt_task_proxy_requests_total` + rate + `))`, "{{fault}}"},
		}},
	}},
	{"Latency", []panel{
		quantiles("Requests", "yt_task_proxy_request_duration_seconds", ""),
		quantiles("Requests by protocol", "yt_task_proxy_request_duration_seconds", "protocol"),
	}},
	{"Streams and connections", []panel{
		one("Open towards jobs", "", `sum by (protocol) (yt_task_proxy_streams)`, "{{protocol}}").stacked(),
		{title: "Callers' connections", queries: []target{
			{`sum by (pod, instance) (yt_task_proxy_connections)`, "{{instance}}"},
			{`max(yt_task_proxy_connections_limit) > 0`, "limit"},
		}},
		one("Connections that had to wait", "cps", `sum by (pod, instance) (rate(yt_task_proxy_connections_delayed_total`+rate+`))`, "{{instance}}"),
	}},
	{"Balancing", []panel{
		one("Tried again, at another endpoint as a rule", "ops", `sum by (pod, instance) (rate(yt_task_proxy_upstream_retries_total`+rate+`))`, "{{instance}}"),
		one("Endpoints set aside", "", `yt_task_proxy_endpoints_set_aside`, "{{instance}}"),
		one("Operations asked about because of failures", "ops", `sum by (pod, instance) (rate(yt_task_proxy_discovery_refreshes_total`+rate+`))`, "{{instance}}"),
	}},
	{"Authentication and authorization", []panel{
		{title: "Decisions", unit: "reqps", text: "Requests that were let in, and that were not, by reason.", queries: []target{
			{`sum by (reason) (rate(yt_task_proxy_auth_success_total` + rate + `)) > 0`, "{{reason}}"},
			{`sum by (reason) (rate(yt_task_proxy_auth_failed_total` + rate + `)) > 0`, "{{reason}}"},
		}},
		{title: "Answered from memory", unit: "percentunit", max: 1, text: "Of all look-ups, those that did not wait for the cluster.", queries: []target{
			{`sum(rate(yt_task_proxy_auth_cache_hits_total` + rate + `)) / (sum(rate(yt_task_proxy_auth_cache_hits_total` + rate + `)) + sum(rate(yt_task_proxy_auth_cache_misses_total` + rate + `)))`, "hits"},
		}},
		one("Remembered answers", "", `sum by (cache) (yt_task_proxy_auth_cache_entries)`, "{{cache}}"),
		one("Pushed out of memory", "ops", `sum by (cache) (rate(yt_task_proxy_auth_cache_evictions_total`+rate+`))`, "{{cache}}"),
		{title: "Waiting for the cluster", text: "Calls under way, and requests that wait for one.", queries: []target{
			{`sum by (cache) (yt_task_proxy_auth_cache_inflight_backend_requests)`, "{{cache}} calls"},
			{`sum by (cache) (yt_task_proxy_auth_cache_waiting_requests)`, "{{cache}} requests"},
		}},
		one("Renewals in the background", "ops", `sum by (result) (rate(yt_task_proxy_auth_refreshes_total`+rate+`))`, "{{result}}"),
		one("Turned away by a limit", "reqps", `sum by (limit) (rate(yt_task_proxy_auth_limited_total`+rate+`))`, "{{limit}}"),
		{title: "While the cluster is away", unit: "reqps", text: "Requests that passed by what the cluster said before, and that could not be decided.", queries: []target{
			{`sum(rate(yt_task_proxy_auth_stale_grants_total` + rate + `))`, "passed by an old yes"},
			{`sum by (stage) (rate(yt_task_proxy_auth_errors_total` + rate + `))`, "not decided: {{stage}}"},
		}},
		{title: "State of the cluster", max: 1, text: "1 while the cluster could not be reached the last time, or takes any credentials.", queries: []target{
			{`max(yt_task_proxy_auth_cluster_unreachable)`, "unreachable"},
			{`max(yt_task_proxy_auth_cluster_auth_off)`, "no authentication"},
		}},
	}},
	{"Discovery", []panel{
		{title: "Age of the last answered cycle", unit: "s", queries: []target{
			{`time() - yt_task_proxy_discovery_last_success_timestamp_seconds`, "{{instance}}"},
			{`max(yt_task_proxy_discovery_stale_limit_seconds)`, "stale limit"},
		}},
		quantiles("Duration of cycles", "yt_task_proxy_discovery_cycle_duration_seconds", ""),
		{title: "Cycles", unit: "ops", text: "Cycles that were answered, and that failed, by reason.", queries: []target{
			{`sum(rate(yt_task_proxy_discovery_success_total` + rate + `))`, "answered"},
			{`sum by (reason) (rate(yt_task_proxy_discovery_failed_total` + rate + `)) > 0`, "{{reason}}"},
		}},
		{title: "Published", text: "Operations, services and endpoints, by replica.", queries: []target{
			{`yt_task_proxy_discovery_operations`, "{{instance}} operations"},
			{`yt_task_proxy_routes`, "{{instance}} services"},
			{`yt_task_proxy_endpoints`, "{{instance}} endpoints"},
		}},
		one("Problems of operations", "", `max by (kind) (yt_task_proxy_discovery_problems) > 0`, "{{kind}}"),
		one("Calls in a cycle", "", `yt_task_proxy_discovery_last_cycle_calls`, "{{instance}}"),
		one("Requests for unknown services", "reqps", `sum by (result) (rate(yt_task_proxy_discovery_early_requests_total`+rate+`))`, "{{result}}"),
		{title: "Writer of the services table", text: "1 at the replica that has the lease; and whether it leaves the table to somebody else.", queries: []target{
			{`yt_task_proxy_discovery_table_lease`, "{{instance}}"},
			{`max(yt_task_proxy_discovery_table_yielding)`, "left to somebody else"},
		}},
		{title: "Writes of the services table", unit: "ops", queries: []target{
			{`sum by (result) (rate(yt_task_proxy_discovery_table_writes_total` + rate + `))`, "{{result}}"},
			{`sum(rate(yt_task_proxy_discovery_table_foreign_rewrites_total` + rate + `))`, "by somebody else"},
		}},
	}},
	{"Calls to the cluster", []panel{
		one("Calls", "ops", `sum by (request) (rate(yt_task_proxy_ytsaurus_request_duration_seconds_count`+rate+`)) > 0`, "{{request}}"),
		one("Duration, 90 %", "s", `histogram_quantile(0.9, sum by (le, request) (rate(yt_task_proxy_ytsaurus_request_duration_seconds_bucket`+rate+`)))`, "{{request}}"),
		one("Failed calls", "ops", `sum by (request, kind) (rate(yt_task_proxy_ytsaurus_request_errors_total`+rate+`)) > 0`, "{{request}}: {{kind}}"),
	}},
	{"Process", []panel{
		one("CPU", "short", `rate(process_cpu_seconds_total`+rate+`)`, "{{instance}}"),
		{title: "Memory", unit: "bytes", text: "Resident memory, and the Go heap in use.", queries: []target{
			{`process_resident_memory_bytes`, "{{instance}}"},
			{`go_memstats_heap_inuse_bytes`, "{{instance}} heap"},
		}},
		one("Goroutines", "", `go_goroutines`, "{{instance}}"),
		one("File descriptors", "percentunit", `process_open_fds / process_max_fds`, "{{instance}}"),
		one("Up for", "s", `time() - process_start_time_seconds`, "{{instance}}"),
		{title: "Certificate and token", text: "Days until the certificate expires, and 1 while the files can be read.", queries: []target{
			{`(yt_task_proxy_tls_certificate_expiry_timestamp_seconds - time()) / 86400`, "{{instance}} days"},
			{`yt_task_proxy_tls_certificate_last_reload_successful`, "{{instance}} certificate"},
			{`yt_task_proxy_token_last_reload_successful`, "{{instance}} token"},
		}},
	}},
}

// selection narrows every query of the dashboard to what its variables say.
const selection = `namespace=~"$namespace",job=~"$job",pod=~"$pod"`

// object is one of JSON.
type object = map[string]any

var source = object{"type": "prometheus", "uid": "${datasource}"}

// dashboardJSON is a dashboard as Grafana imports it.
func dashboardJSON(metrics Metrics) ([]byte, error) {
	const width, height, statHeight, perRow = 24, 8, 4, 3
	var panels []object
	id, y := 0, 0
	for _, r := range rows {
		id++
		panels = append(panels, object{"id": id, "type": "row", "title": r.title, "collapsed": false, "panels": []any{}, "gridPos": object{"h": 1, "w": width, "x": 0, "y": y}})
		y++
		x, tallest := 0, 0
		for _, p := range r.panels {
			w, h := width/perRow, height
			if p.kind == "stat" {
				w, h = width/6, statHeight
			}
			if x+w > width {
				x, y, tallest = 0, y+tallest, 0
			}
			id++
			drawn, err := p.draw(metrics)
			if err != nil {
				return nil, err
			}
			drawn["id"], drawn["gridPos"] = id, object{"h": h, "w": w, "x": x, "y": y}
			panels = append(panels, drawn)
			x, tallest = x+w, max(tallest, h)
		}
		y += tallest
	}
	variable := func(name, of string) object {
		return object{
			"name": name, "label": name, "type": "query", "datasource": source, "definition": of, "query": object{"query": of, "refId": name},
			"refresh": 2, "includeAll": true, "multi": true, "allValue": ".*", "current": object{"selected": true, "text": []string{"All"}, "value": []string{"$__all"}}, "sort": 1,
		}
	}
	dashboard := object{
		"uid": "yt-task-proxy", "title": "YTsaurus task proxy", "tags": []string{"ytsaurus", "task-proxy"}, "schemaVersion": 39, "version": 1,
		"editable": true, "graphTooltip": 1, "refresh": "30s", "timezone": "browser", "time": object{"from": "now-3h", "to": "now"},
		"annotations": object{"list": []any{}}, "links": []any{}, "panels": panels,
		"templating": object{"list": []object{
			{"name": "datasource", "label": "datasource", "type": "datasource", "query": "prometheus", "refresh": 1, "hide": 0, "current": object{}},
			variable("namespace", `label_values(yt_task_proxy_build_info, namespace)`),
			variable("job", `label_values(yt_task_proxy_build_info{namespace=~"$namespace"}, job)`),
			variable("pod", `label_values(yt_task_proxy_build_info{namespace=~"$namespace",job=~"$job"}, pod)`),
		}},
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(dashboard)
	return b.Bytes(), err
}

// draw is a panel without its place.
func (p panel) draw(metrics Metrics) (object, error) {
	text := p.text
	var targets []object
	for i, t := range p.queries {
		expr, err := within(t.expr, selection)
		if err != nil {
			return nil, err
		}
		q, err := parseQuery(t.expr)
		if err != nil {
			return nil, err
		}
		if m := metrics.Find(q.selectors[0].name); text == "" && m != nil {
			text = m.Help
		}
		targets = append(targets, object{
			"refId": string(rune('A' + i)), "datasource": source, "editorMode": "code", "expr": expr, "legendFormat": t.legend, "range": true, "instant": false,
		})
	}
	defaults := object{"min": 0}
	if p.unit != "" {
		defaults["unit"] = p.unit
	}
	if p.max != 0 {
		defaults["max"] = p.max
	}
	options := object{}
	kind := p.kind
	switch kind {
	case "stat":
		options = object{"reduceOptions": object{"calcs": []string{"lastNotNull"}, "fields": "", "values": false}, "colorMode": "none", "graphMode": "area", "textMode": "auto"}
	case "":
		kind = "timeseries"
		options = object{"legend": object{"displayMode": "list", "placement": "bottom", "showLegend": true}, "tooltip": object{"mode": "multi", "sort": "desc"}}
		custom := object{"lineWidth": 1, "fillOpacity": 0, "showPoints": "never", "stacking": object{"mode": "none"}}
		if p.stack {
			custom["fillOpacity"], custom["stacking"] = 20, object{"mode": "normal"}
		}
		defaults["custom"] = custom
	}
	return object{
		"type": kind, "title": p.title, "description": text, "datasource": source, "targets": targets, "options": options,
		"fieldConfig": object{"defaults": defaults, "overrides": []any{}},
	}, nil
}
