package livepage_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"taskproxy/examples/job"
	"taskproxy/examples/websocket-service/livepage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var info = job.Info{OperationID: "1-2-3-4", Task: "page", JobID: "5-6-7-8", Index: "0", Port: 20001}

// start serves the page on a real socket until the test or the returned function ends it.
func start(t *testing.T) (address string, end func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- livepage.Serve(ctx, info, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("got %v, want a clean end", err)
		}
	})
	return listener.Addr().String(), cancel
}

// get leaves the answer's body open for the test's length, so that streams can be read.
func get(t *testing.T, url string, login string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if login != "" {
		request.Header.Set(livepage.UserHeader, login)
	}
	transport := &http.Transport{}
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		response.Body.Close()
		transport.CloseIdleConnections()
	})
	return response
}

func TestPage(t *testing.T) {
	t.Parallel()
	address, _ := start(t)
	response := get(t, "http://"+address+"/", "")
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := response.Header.Get("Content-Type"), "text/html; charset=utf-8"; got != want {
		t.Errorf("got content type %q, want %q", got, want)
	}
	for _, want := range []string{`here("echo?greet")`, `here("events")`} {
		if !strings.Contains(string(body), want) {
			t.Errorf("the page does not use %s", want)
		}
	}
	if got, want := get(t, "http://"+address+"/elsewhere", "").StatusCode, http.StatusNotFound; got != want {
		t.Errorf("got status %d for an unknown path, want %d", got, want)
	}
}

func TestEcho(t *testing.T) {
	t.Parallel()
	address, end := start(t)
	connection, _, err := websocket.Dial(t.Context(), "ws://"+address+"/echo?greet", &websocket.DialOptions{
		HTTPHeader: http.Header{livepage.UserHeader: {"alice"}, "Origin": {"http://" + address}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer connection.CloseNow()
	receive := func(wantKind websocket.MessageType, want string) {
		t.Helper()
		kind, got, err := connection.Read(t.Context())
		if err != nil || kind != wantKind || string(got) != want {
			t.Fatalf("got %v %q, %v, want %v %q", kind, got, err, wantKind, want)
		}
	}
	receive(websocket.MessageText, "Hello, alice! This is job 5-6-7-8 (task page, index 0).")
	for _, message := range []struct {
		kind websocket.MessageType
		text string
	}{{websocket.MessageText, "hello"}, {websocket.MessageBinary, "\x00\xff"}, {websocket.MessageText, ""}} {
		if err := connection.Write(t.Context(), message.kind, []byte(message.text)); err != nil {
			t.Fatal(err)
		}
		receive(message.kind, message.text)
	}

	end()
	if _, _, err := connection.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Errorf("got %v at the job's end, want the status going away", err)
	}
}

func TestEchoRefusesPagesOfOtherHosts(t *testing.T) {
	t.Parallel()
	address, _ := start(t)
	connection, response, err := websocket.Dial(t.Context(), "ws://"+address+"/echo", &websocket.DialOptions{
		HTTPHeader: http.Header{"Origin": {"http://other.example"}},
	})
	if err == nil {
		connection.CloseNow()
		t.Fatal("a foreign page was let in")
	}
	if got, want := response.StatusCode, http.StatusForbidden; got != want {
		t.Errorf("got status %d, want %d", got, want)
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	address, end := start(t)
	response := get(t, "http://"+address+"/events", "alice")
	if got, want := response.Header.Get("Content-Type"), "text/event-stream"; got != want {
		t.Fatalf("got content type %q, want %q", got, want)
	}
	lines := bufio.NewScanner(response.Body)
	for n := 1; n <= 2; {
		if !lines.Scan() {
			t.Fatalf("the stream ended before tick %d: %v", n, lines.Err())
		}
		data, found := strings.CutPrefix(lines.Text(), "data: ")
		if !found {
			continue
		}
		var got livepage.Tick
		if err := json.Unmarshal([]byte(data), &got); err != nil {
			t.Fatal(err)
		}
		if got.N != n || got.Job != info || got.User != "alice" || got.Time.IsZero() {
			t.Fatalf("got %+v, want tick %d of the job for alice", got, n)
		}
		n++
	}
	end()
	for lines.Scan() {
	}
	if err := lines.Err(); err != nil {
		t.Errorf("got %v, want the stream to end well with the job", err)
	}
}
