package httpservice_test

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"taskproxy/examples/http-service/httpservice"
	"taskproxy/examples/job"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var info = job.Info{OperationID: "1-2-3-4", Task: "server", JobID: "5-6-7-8", Index: "1", Port: 20001}

// start serves the service on a real socket until the test ends.
func start(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- httpservice.Serve(ctx, info, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("got %v, want a clean end", err)
		}
	})
	return "http://" + listener.Addr().String()
}

func get(t *testing.T, url string, header http.Header) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(request.Header, header)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

func TestText(t *testing.T) {
	t.Parallel()
	url := start(t)
	tests := []struct {
		name   string
		path   string
		header http.Header
		want   string
	}{
		{
			name: "without the proxy",
			path: "/",
			want: "Hello, stranger! This is job 5-6-7-8 (task server, index 1) of operation 1-2-3-4.\n",
		},
		{
			name:   "with a login",
			path:   "/any/path?query",
			header: http.Header{httpservice.UserHeader: {"alice"}, "Accept": {"*/*"}},
			want:   "Hello, alice! This is job 5-6-7-8 (task server, index 1) of operation 1-2-3-4.\n",
		},
		{
			name: "headers",
			path: "/headers?query",
			header: http.Header{
				"X-B": {"1", "2"}, "X-A": {"<b>"}, "User-Agent": {"test"}, "Accept-Encoding": {"identity"},
			},
			want: "GET /headers?query\nHost: " + strings.TrimPrefix(url, "http://") +
				"\nAccept-Encoding: identity\nUser-Agent: test\nX-A: <b>\nX-B: 1\nX-B: 2\n",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			response, got := get(t, url+test.path, test.header)
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if got, want := response.Header.Get("Content-Type"), "text/plain; charset=utf-8"; got != want {
				t.Errorf("got content type %q, want %q", got, want)
			}
			if got, want := response.Header.Get("X-Content-Type-Options"), "nosniff"; got != want {
				t.Errorf("got %q, want %q: a header's value must not become a page", got, want)
			}
		})
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	url := start(t)
	header := http.Header{"Accept": {"text/html, Application/JSON;q=0.9"}, httpservice.UserHeader: {"alice"}}
	response, body := get(t, url+"/a%2Fb?c=d", header)
	if got, want := response.Header.Get("Content-Type"), "application/json"; got != want {
		t.Fatalf("got content type %q, want %q", got, want)
	}
	var got httpservice.Answer
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	if got.Job != info {
		t.Errorf("got job %+v, want %+v", got.Job, info)
	}
	if got.User != "alice" || got.Method != "GET" || got.Path != "/a%2Fb?c=d" {
		t.Errorf("got %+v, want alice's GET of /a%%2Fb?c=d", got)
	}
	if got, want := got.Headers.Get(httpservice.UserHeader), "alice"; got != want {
		t.Errorf("got login header %q, want %q", got, want)
	}
}
