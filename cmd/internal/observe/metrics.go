package observe

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"taskproxy/cmd/internal/serve"
)

// Metric is a metric as /metrics tells it.
type Metric struct {
	Name, Type, Help string
	Series           []map[string]string // by labels; of a histogram those of its buckets, with "le"
}

// Labels are the names of its labels, sorted, but for "le".
func (m Metric) Labels() []string {
	var labels []string
	for _, s := range m.Series {
		for name := range s {
			if name != "le" && !slices.Contains(labels, name) {
				labels = append(labels, name)
			}
		}
	}
	slices.Sort(labels)
	return labels
}

// Metrics are all that a process has, sorted by name.
type Metrics []Metric

var (
	header = regexp.MustCompile(`^# (HELP|TYPE) (\S+) (.*)$`)
	sample = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? \S+$`)
	label  = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
)

// Parse reads the text of /metrics.
func Parse(r io.Reader) (Metrics, error) {
	var all Metrics
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		if h := header.FindStringSubmatch(line); h != nil {
			if h[1] == "HELP" {
				all = append(all, Metric{Name: h[2], Help: h[3]})
			} else if last := &all[len(all)-1]; last.Name == h[2] {
				last.Type = h[3]
			}
			continue
		}
		s := sample.FindStringSubmatch(line)
		if s == nil || len(all) == 0 {
			return nil, fmt.Errorf("%q is no line of metrics", line)
		}
		last := &all[len(all)-1]
		if last.Type == "histogram" && s[1] != last.Name+"_bucket" {
			continue
		}
		labels := make(map[string]string)
		for _, l := range label.FindAllStringSubmatch(s[2], -1) {
			labels[l[1]] = l[2]
		}
		last.Series = append(last.Series, labels)
	}
	return all, lines.Err()
}

// series are those of a name as queries use it.
func (m Metrics) series(name string) []map[string]string {
	for _, one := range m {
		switch {
		case one.Type != "histogram" && one.Name == name, one.Type == "histogram" && one.Name+"_bucket" == name:
			return one.Series
		case one.Type == "histogram" && (one.Name+"_sum" == name || one.Name+"_count" == name):
			series := make([]map[string]string, len(one.Series))
			for i, s := range one.Series {
				series[i] = make(map[string]string)
				for k, v := range s {
					if k != "le" {
						series[i][k] = v
					}
				}
			}
			return series
		}
	}
	return nil
}

// Find is the metric of a name, also by the names that a histogram has in queries; nil: there is none.
func (m Metrics) Find(name string) *Metric {
	for i, one := range m {
		if one.Name == name || one.Type == "histogram" && slices.Contains([]string{"_bucket", "_sum", "_count"}, strings.TrimPrefix(name, one.Name)) {
			return &m[i]
		}
	}
	return nil
}

// product are the metrics of the product before anything has happened.
func product() (Metrics, error) {
	gatherer, err := serve.Metrics()
	if err != nil {
		return nil, err
	}
	w := httptest.NewRecorder()
	promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/metrics", http.NoBody))
	return Parse(bytes.NewReader(w.Body.Bytes()))
}
