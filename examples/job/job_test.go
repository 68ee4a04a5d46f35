package job_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"taskproxy/examples/job"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFromEnv(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		env     map[string]string
		want    job.Info
		wantErr string
	}{
		{
			name: "a job",
			env: map[string]string{
				"YT_PORT_0": "20001", "YT_OPERATION_ID": "1-2-3-4", "YT_JOB_ID": "5-6-7-8",
				"YT_TASK_NAME": "server", "YT_JOB_COOKIE": "1",
			},
			want: job.Info{OperationID: "1-2-3-4", Task: "server", JobID: "5-6-7-8", Index: "1", Port: 20001},
		},
		{
			name: "by hand",
			env:  map[string]string{"YT_PORT_0": "8000"},
			want: job.Info{OperationID: "unknown", Task: "unknown", JobID: "unknown", Index: "unknown", Port: 8000},
		},
		{name: "no port", wantErr: "YT_PORT_0 is not set"},
		{name: "no number", env: map[string]string{"YT_PORT_0": "http"}, wantErr: `YT_PORT_0="http"`},
		{name: "too large", env: map[string]string{"YT_PORT_0": "65536"}, wantErr: `YT_PORT_0="65536"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := job.FromEnv(func(name string) string { return test.env[name] })
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Fatalf("got error %v, want one with %q", err, test.wantErr)
				}
				return
			}
			if err != nil || got != test.want {
				t.Fatalf("got %+v, %v, want %+v", got, err, test.want)
			}
		})
	}
}

func TestRunNamesTheTakenPort(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())

	getenv := func(name string) string {
		if name == "YT_PORT_0" {
			return port
		}
		return ""
	}
	err = job.Run(t.Context(), getenv, io.Discard, func(context.Context, job.Info, net.Listener) error {
		return errors.New("was started")
	})
	if err == nil || !strings.Contains(err.Error(), ":"+port) {
		t.Fatalf("got %v, want an error that names the port %s", err, port)
	}
}

// A stream that never ends by itself must not keep a job alive that was told to end.
func TestServeHTTPEndsRunningStreams(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	served := make(chan error, 1)
	go func() {
		served <- job.ServeHTTP(ctx, listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}))
	}()

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String()+"/", nil)
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
	cancel()
	if err := <-served; err != nil {
		t.Fatalf("got %v, want a clean end", err)
	}
	if _, err := io.ReadAll(response.Body); err != nil {
		t.Fatalf("got %v, want the stream to end well", err)
	}
}
