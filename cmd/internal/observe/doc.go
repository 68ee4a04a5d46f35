// Package observe draws what the chart installs for those who watch the product: a Grafana dashboard, Prometheus alerts, and a
// page that explains them and every metric. The texts in chart/files are written by `make generate`; alerts.go, dashboard.go and
// page.go are where to change them.
//
// Queries are written without what a dashboard selects by, and are held against the metrics that the product really has: a
// name or a label that is not there fails the generation and the tests.
package observe

//go:generate go run generate.go
