package observe

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// alert is one rule. for is Prometheus's: how long the expression must hold.
type alert struct {
	name, severity, expr, wait string
	summary                    string // a line; "{{ $labels.pod }}" and the like are the rule's
	description                string // what it means for callers and authors
	action                     string // what to do, for the page
}

const (
	critical = "critical" // somebody gets up
	warning  = "warning"  // in the morning
)

// alerts are what an admin wants to be told. Where Go's own metrics are asked for, "and on (job, instance)" keeps other programs
// out.
var alerts = []alert{
	{
		name: "TaskProxyDown", severity: critical, wait: "5m",
		expr:        `absent(yt_task_proxy_build_info)`,
		summary:     `No task proxy is there`,
		description: `Prometheus gets metrics from no task proxy at all: services in jobs have no addresses.`,
		action:      `See whether the pods run and why they ended (a wrong flag exits with 2 and names it), and whether Prometheus reaches the admin listener.`,
	},
	{
		name: "TaskProxyRestarts", severity: critical, wait: "0m",
		expr:        `changes(process_start_time_seconds[30m]) > 2 and on (job, instance) yt_task_proxy_build_info`,
		summary:     `{{ $labels.instance }} starts again and again`,
		description: `The process has started {{ $value }} times within half an hour. Each time all connections through it break.`,
		action:      `Look at the last lines of the previous container's log and at its exit code; 137 is the memory limit.`,
	},
	{
		name: "TaskProxyDiscoveryStuck", severity: critical, wait: "1m",
		expr:        `time() - yt_task_proxy_discovery_last_success_timestamp_seconds > yt_task_proxy_discovery_stale_limit_seconds / 3`,
		summary:     `{{ $labels.instance }} does not learn of operations`,
		description: `The cluster has answered no discovery cycle for {{ $value | humanizeDuration }}. New services are not found, and after --stale-limit endpoints that cannot be asked about are dropped.`,
		action:      `The log says "discovery cycle failed" with a reason; yt_task_proxy_discovery_failed_total counts by it. Run "task-proxy check" with the same flags: it names missing rights.`,
	},
	{
		name: "TaskProxyDiscoveryFailing", severity: warning, wait: "5m",
		expr:        `sum by (namespace, job, pod, instance) (increase(yt_task_proxy_discovery_failed_total[15m])) > 3`,
		summary:     `Discovery cycles of {{ $labels.instance }} fail`,
		description: `{{ $value | humanize }} cycles failed within a quarter of an hour; what was known stays.`,
		action:      `As for TaskProxyDiscoveryStuck.`,
	},
	{
		name: "TaskProxyDiscoverySlow", severity: warning, wait: "15m",
		expr: `histogram_quantile(0.9, sum by (namespace, job, pod, instance, le) (rate(yt_task_proxy_discovery_cycle_duration_seconds_bucket[10m]))) > 30`,

		summary:     `Discovery cycles of {{ $labels.instance }} take long`,
		description: `One cycle in ten takes more than {{ $value | humanizeDuration }}: new services are found that much later.`,
		action:      `See which calls are slow in yt_task_proxy_ytsaurus_request_duration_seconds; raise --discovery-concurrency if the cluster can take it.`,
	},
	{
		name: "TaskProxyAuthorizationClusterUnreachable", severity: critical, wait: "2m",
		expr: `sum by (namespace, job, pod, instance) (increase(yt_task_proxy_auth_errors_total[5m])) > 0
or
sum by (namespace, job, pod, instance) (increase(yt_task_proxy_auth_stale_grants_total[5m])) > 0`,
		summary:     `{{ $labels.instance }} cannot ask the cluster about callers`,
		description: `Callers who are known pass by what the cluster said before, for --auth-stale-limit; all others get 503 cluster_unavailable.`,
		action:      `See whether the cluster's HTTP proxies answer from the pod; yt_task_proxy_ytsaurus_request_errors_total counts by call and kind.`,
	},
	{
		name: "TaskProxyAuthorizationClusterAuthOff", severity: critical, wait: "0m",
		expr:        `yt_task_proxy_auth_cluster_auth_off == 1`,
		summary:     `The cluster has no authentication`,
		description: `The cluster takes credentials that nobody has, so that everybody could be anybody. Nobody is let in until it refuses them again (503 cluster_auth_off).`,
		action:      `Look at the authentication of the cluster's HTTP proxies: it is open to everybody, not only for this proxy.`,
	},
	{
		name: "TaskProxyAuthorizationLimited", severity: warning, wait: "10m",
		expr:        `sum by (namespace, job, pod, instance, limit) (rate(yt_task_proxy_auth_limited_total[5m])) > 1`,
		summary:     `{{ $labels.instance }} turns look-ups away`,
		description: `{{ $value | humanize }} requests a second were answered 429 by the limit "{{ $labels.limit }}": somebody tries credentials, or all callers seem to come from one address.`,
		action:      `The access log has the remote addresses with reason too_many_attempts. Behind an ingress set --trusted-proxies.`,
	},
	{
		name: "TaskProxyRobotRefused", severity: critical, wait: "5m",
		expr:        `sum by (namespace, job, pod, instance) (increase(yt_task_proxy_ytsaurus_request_errors_total{request!="whoami",kind="unauthenticated"}[10m])) > 0`,
		summary:     `The cluster refuses the robot's token`,
		description: `Calls of {{ $labels.instance }} with the robot's token are not accepted: no discovery, and nobody new is let in.`,
		action:      `Issue a token ("yt issue-token") and put it into the secret; the file is read again by itself.`,
	},
	{
		name: "TaskProxyTokenReloadFailed", severity: warning, wait: "5m",
		expr:        `yt_task_proxy_token_last_reload_successful == 0`,
		summary:     `{{ $labels.instance }} cannot read its token file`,
		description: `The file of --yt-token-path is missing, empty or malformed; the last token is used, until the process starts again.`,
		action:      `The log names the file and what is wrong with it.`,
	},
	{
		name: "TaskProxyTableNotWritten", severity: warning, wait: "5m",
		expr:        `(yt_task_proxy_discovery_table_lease == 1 and time() - yt_task_proxy_discovery_table_last_success_timestamp_seconds > 600) unless yt_task_proxy_discovery_table_yielding == 1`,
		summary:     `The services table is out of date`,
		description: `{{ $labels.instance }} is to write the table and has not been able to for ten minutes. Services are served, but nobody can look their addresses up.`,
		action:      `The log says "services table not written" with a reason; yt_task_proxy_discovery_table_writes_total counts by result. Run "task-proxy check".`,
	},
	{
		name: "TaskProxyTableRival", severity: warning, wait: "0m",
		expr:        `yt_task_proxy_discovery_table_yielding == 1`,
		summary:     `Somebody else writes the services table`,
		description: `The table was rewritten by somebody else three times within ten minutes, so {{ $labels.instance }} has stopped writing it.`,
		action:      `Find the other writer, the product that was replaced for example, and stop it. Ten minutes later the table is written again.`,
	},
	{
		name: "TaskProxyTableNoWriter", severity: warning, wait: "10m",
		expr:        `max by (namespace, job) (yt_task_proxy_discovery_table_lease) == 0`,
		summary:     `No replica writes the services table`,
		description: `None of the replicas has the lease on the table's directory: addresses of new services are not in it.`,
		action:      `The log says "no lease on its directory" with a reason, or who holds it. A replica whose discovery is stuck gives it up.`,
	},
	{
		name: "TaskProxyErrors", severity: critical, wait: "5m",
		expr: `sum by (namespace, job) (rate(yt_task_proxy_request_errors_total{fault=~"proxy|cluster",reason!="shutting_down"}[5m]))
/
sum by (namespace, job) (rate(yt_task_proxy_requests_total[5m]))
> 0.05`,
		summary:     `The task proxy fails requests`,
		description: `{{ $value | humanizePercentage }} of all requests failed because of the proxy itself or because the cluster could not be asked.`,
		action:      `yt_task_proxy_request_errors_total counts by reason; "internal" has a line "request failed" in the log with a request id.`,
	},
	{
		name: "TaskProxyJobErrors", severity: warning, wait: "15m",
		expr: `sum by (namespace, job) (rate(yt_task_proxy_request_errors_total{fault="job"}[10m]))
/
sum by (namespace, job) (rate(yt_task_proxy_requests_total[10m]))
> 0.2`,
		summary:     `Many jobs do not answer`,
		description: `{{ $value | humanizePercentage }} of all requests failed because jobs refused connections, broke them or took too long.`,
		action:      `The access log names operations and endpoints. All of them: see whether the pods reach exec nodes (network policies). One: tell its author.`,
	},
	{
		name: "TaskProxyEndpointsSetAside", severity: warning, wait: "10m",
		expr:        `yt_task_proxy_endpoints_set_aside > 5 and yt_task_proxy_endpoints_set_aside / yt_task_proxy_endpoints > 0.2`,
		summary:     `{{ $labels.instance }} cannot connect to many jobs`,
		description: `{{ $value | humanize }} endpoints, more than a fifth of all, did not take connections.`,
		action:      `/routes of the debug listener tells which. Those of one exec node: the node. All: the network between the pod and the nodes.`,
	},
	{
		name: "TaskProxyConnectionsNearLimit", severity: warning, wait: "5m",
		expr:        `yt_task_proxy_connections / (yt_task_proxy_connections_limit > 0) > 0.8`,
		summary:     `{{ $labels.instance }} has almost as many connections as it may`,
		description: `{{ $value | humanizePercentage }} of --max-connections are open. Further ones wait until one ends.`,
		action:      `Raise --max-connections and the memory that goes with it, or add replicas.`,
	},
	{
		name: "TaskProxyCertificateExpires", severity: warning, wait: "1h",
		expr:        `yt_task_proxy_tls_certificate_expiry_timestamp_seconds - time() < 14 * 86400`,
		summary:     `The certificate of {{ $labels.instance }} expires`,
		description: `It expires in {{ $value | humanizeDuration }}; from then on no browser connects.`,
		action:      `Renew it. The files of --tls-cert-file and --tls-key-file are read again by themselves.`,
	},
	{
		name: "TaskProxyCertificateReloadFailed", severity: warning, wait: "15m",
		expr:        `yt_task_proxy_tls_certificate_last_reload_successful == 0`,
		summary:     `{{ $labels.instance }} cannot use its new certificate`,
		description: `The files hold something that cannot be used; the last certificate stays until it expires or the process starts again.`,
		action:      `The log says "certificate cannot be used" and why.`,
	},
	{
		name: "TaskProxyFileDescriptors", severity: warning, wait: "5m",
		expr:        `process_open_fds / process_max_fds > 0.8 and on (job, instance) yt_task_proxy_build_info`,
		summary:     `{{ $labels.instance }} runs out of file descriptors`,
		description: `{{ $value | humanizePercentage }} are in use. Without any it accepts and makes no connections.`,
		action:      `Raise the container's limit, set --max-connections, or add replicas. If connections and streams are few, it is a leak: report it.`,
	},
	{
		name: "TaskProxyGoroutines", severity: warning, wait: "30m",
		expr: `go_goroutines
> on (job, instance)
2000 + 4 * sum by (job, instance) (yt_task_proxy_connections) + 12 * sum by (job, instance) (yt_task_proxy_streams)`,
		summary:     `{{ $labels.instance }} has more goroutines than its connections explain`,
		description: `{{ $value | humanize }} goroutines: something may not end.`,
		action:      `Keep /debug/pprof/goroutine?debug=2 of the debug listener, report it, restart the pod.`,
	},
	{
		name: "TaskProxyMemory", severity: warning, wait: "15m",
		expr:        `process_resident_memory_bytes / go_gc_gomemlimit_bytes > 1 and on (job, instance) yt_task_proxy_build_info`,
		summary:     `{{ $labels.instance }} uses almost all of its memory`,
		description: `It is beyond the nine tenths of its limit that the garbage collector keeps within when it can.`,
		action:      `Raise the limit. /debug/pprof/heap of the debug listener tells what the memory is for.`,
	},
}

// runbook is where the page says what to do.
func (a *alert) runbook() string { return Dir + "/README.md#" + strings.ToLower(a.name) }

// alertsYAML is a file of rules as Prometheus reads it. A quoted string of YAML may be one of JSON.
func alertsYAML() []byte {
	var b bytes.Buffer
	b.WriteString("# Written by `make generate`; see cmd/internal/observe.\ngroups:\n  - name: task-proxy\n    rules:\n")
	for _, a := range alerts {
		fmt.Fprintf(&b, "      - alert: %s\n        expr: |-\n", a.name)
		for line := range strings.Lines(a.expr) {
			b.WriteString("          " + strings.TrimSuffix(line, "\n") + "\n")
		}
		fmt.Fprintf(&b, "        for: %s\n        labels:\n          severity: %s\n        annotations:\n", a.wait, a.severity)
		fmt.Fprintf(&b, "          summary: %s\n          description: %s\n          runbook: %s\n",
			strconv.Quote(a.summary), strconv.Quote(a.description), strconv.Quote(a.runbook()))
	}
	return b.Bytes()
}
