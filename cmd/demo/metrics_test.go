package main

import (
	"bytes"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"taskproxy/cmd/internal/observe"
)

// testMetrics holds the chart's alerts and dashboard against what a proxy tells that has served requests: each metric, label and
// value that they ask for is there.
func testMetrics(t *testing.T, r *running) {
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.ready.Admin+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	live, err := observe.Parse(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, query := range observe.Queries() {
		switch {
		case strings.Contains(query, "yt_task_proxy_tls_certificate_"): // the demo has no TLS
		case strings.Contains(query, "process_") && runtime.GOOS != "linux": // other systems tell less
		default:
			checked++
			if err := live.Check(query); err != nil {
				t.Error(err)
			}
		}
	}
	if checked < 50 {
		t.Errorf("only %d queries were checked", checked)
	}
	for _, row := range r.ready.Services {
		id, _, _ := strings.Cut(row.Domain, ".")
		for _, secret := range []string{id, row.OperationID, row.TaskName} {
			if bytes.Contains(text, []byte(secret)) {
				t.Errorf("the metrics name %q", secret)
			}
		}
	}
	// What the calls have left.
	for _, name := range []string{"requests_total", "sent_bytes_total", "received_bytes_total", "request_duration_seconds_count"} {
		if !grew(text, "yt_task_proxy_"+name) {
			t.Errorf("%s has not grown", name)
		}
	}
}

// grew reports whether a series of a name is not 0.
func grew(text []byte, name string) bool {
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte(name+"{")) && !bytes.HasSuffix(bytes.TrimSpace(line), []byte(" 0")) {
			return true
		}
	}
	return false
}
