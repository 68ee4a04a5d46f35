package observe

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// Dir is where the files are, from the root of the repository.
const Dir = "chart/files"

// Files are the contents of the files by name. It fails if something asks for what the product does not tell.
func Files() (map[string][]byte, error) {
	metrics, err := product()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, expr := range Queries() {
		errs = append(errs, metrics.Check(expr))
	}
	dashboard, err := dashboardJSON(metrics)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	return map[string][]byte{"alerts.yaml": alertsYAML(), "dashboard.json": dashboard, "README.md": page(metrics)}, nil
}

// Queries are the expressions of all alerts and panels.
func Queries() (all []string) {
	for _, a := range alerts {
		all = append(all, a.expr)
	}
	for _, r := range rows {
		for _, p := range r.panels {
			for _, t := range p.queries {
				all = append(all, t.expr)
			}
		}
	}
	return all
}

// page explains the metrics and the alerts.
func page(metrics Metrics) []byte {
	var b bytes.Buffer
	b.WriteString(`<!-- Written by ` + "`make generate`" + `; see cmd/internal/observe. -->
# Metrics, dashboard and alerts

` + "`/metrics` of the admin listener (`--admin-listen`), also at `/metrics/prometheus`, tells what is below and what every Go process tells (`go_…`, `process_…`)." + `
No label has an operation, a login, or anything else that callers or job authors write. ` + "`dashboard.json`" + ` is for Grafana, ` + "`alerts.yaml`" + ` for Prometheus.

## Metrics

| metric | type | labels | meaning |
|---|---|---|---|
`)
	for _, m := range metrics {
		if !strings.HasPrefix(m.Name, "yt_task_proxy_") {
			continue
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Type, strings.Join(m.Labels(), ", "), m.Help)
	}
	b.WriteString("\nThe metrics of the certificate are there with TLS only.\n\n## Alerts\n")
	for _, a := range alerts {
		fmt.Fprintf(&b, "\n### %s\n\n%s. %s\n\n%s\n", a.name, strings.ToUpper(a.severity[:1])+a.severity[1:], plain(a.description), a.action)
	}
	return b.Bytes()
}

// plain is a description without a rule's value.
func plain(description string) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(description, "{{")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		inside, after, _ := strings.Cut(rest, "}}")
		word := "…"
		if _, label, ok := strings.Cut(inside, "$labels."); ok {
			word = "*" + strings.TrimSpace(label) + "*"
		}
		b.WriteString(word)
		description = after
	}
}
