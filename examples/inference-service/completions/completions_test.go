package completions_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"taskproxy/examples/inference-service/completions"
	"taskproxy/examples/job"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var info = job.Info{OperationID: "1-2-3-4", Task: "model", JobID: "5-6-7-8", Index: "0", Port: 20001}

// start serves on a real socket until the test or the returned function ends it.
func start(t *testing.T) (url string, end func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- completions.Serve(ctx, info, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("got %v, want a clean end", err)
		}
	})
	return "http://" + listener.Addr().String(), cancel
}

// call leaves the answer's body open for the test's length, so that streams can be read.
func call(t *testing.T, method, url, body string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
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

const heard = "job 5-6-7-8 (task model, index 0) heard: hello there"

func TestWholeAnswers(t *testing.T) {
	t.Parallel()
	url, _ := start(t)
	tests := []struct {
		name, method, path, body string
		status                   int
		want                     []string // parts of the answer
	}{
		{"healthy", "GET", "/healthz", "", 200, []string{"ok\n"}},
		{"models", "GET", "/v1/models", "", 200, []string{`"id":"parrot"`}},
		{"a completion", "POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"hello there"}]}`, 200,
			[]string{`"object":"chat.completion"`, `"role":"assistant","content":"` + heard + `"`, `"finish_reason":"stop"`}},
		{"a cut one", "POST", "/v1/chat/completions", `{"max_tokens":2,"messages":[{"role":"user","content":"hello there"}]}`, 200,
			[]string{`"content":"job 5-6-7-8"`, `"finish_reason":"length"`}},
		{"no JSON", "POST", "/v1/chat/completions", `hello`, 400, []string{"no chat completion request", `"type":"invalid_request_error"`}},
		{"no messages", "POST", "/v1/chat/completions", `{}`, 400, []string{"messages is empty"}},
		{"another model", "POST", "/v1/chat/completions", `{"model":"owl","messages":[{}]}`, 400, []string{`model=\"owl\": there is only \"parrot\"`}},
		{"too many tokens", "POST", "/v1/chat/completions", `{"max_tokens":1001,"messages":[{}]}`, 400, []string{"max_tokens=1001: want 0 to 1000"}},
		{"too long", "POST", "/v1/chat/completions", `{"model":"` + strings.Repeat("x", 1<<20) + `"}`, 413, []string{"too large"}},
		{"no POST", "GET", "/v1/chat/completions", "", 405, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			response := call(t, test.method, url+test.path, test.body)
			body, err := io.ReadAll(response.Body)
			if err != nil || response.StatusCode != test.status {
				t.Fatalf("got %d, %v, want %d: %s", response.StatusCode, err, test.status, body)
			}
			for _, want := range test.want {
				if !strings.Contains(string(body), want) {
					t.Errorf("got %s, want %s in it", body, want)
				}
			}
		})
	}
}

// events reads the data of a stream's events until it ends.
func events(t *testing.T, stream io.Reader, each func(data string)) {
	t.Helper()
	lines := bufio.NewScanner(stream)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok && lines.Text() != "" {
			t.Fatalf("got line %q, want one that begins with data", lines.Text())
		}
		if ok {
			each(data)
		}
	}
	if err := lines.Err(); err != nil {
		t.Errorf("the stream broke: %v", err)
	}
}

// Each token is an event of its own; put together they are the whole answer.
func TestStream(t *testing.T) {
	t.Parallel()
	url, _ := start(t)
	response := call(t, "POST", url+"/v1/chat/completions", `{"stream":true,"messages":[{"role":"user","content":"hello there"}]}`)
	if got, want := response.Header.Get("Content-Type"), "text/event-stream"; got != want {
		t.Errorf("got content type %q, want %q", got, want)
	}
	text, last, reason, chunks := "", "", "", 0
	events(t, response.Body, func(data string) {
		if last = data; data == "[DONE]" {
			return
		}
		var chunk completions.Completion
		if err := json.Unmarshal([]byte(data), &chunk); err != nil || len(chunk.Choices) != 1 || chunk.Object != "chat.completion.chunk" {
			t.Fatalf("got event %q, %v, want a chunk with one choice", data, err)
		}
		chunks++
		text += chunk.Choices[0].Delta.Content
		if chunk.Choices[0].FinishReason != nil {
			reason = *chunk.Choices[0].FinishReason
		}
	})
	if text != heard || last != "[DONE]" || reason != "stop" {
		t.Errorf("got %q, reason %q, last event %q, want %q, stop and [DONE]", text, reason, last, heard)
	}
	if want := len(strings.Fields(heard)) + 1; chunks != want {
		t.Errorf("got %d events, want %d: one for each token and one for the end", chunks, want)
	}
}

// A job that is told to end cuts its streams: without [DONE] a client knows.
func TestEndOfJobCutsStreams(t *testing.T) {
	t.Parallel()
	url, end := start(t)
	prompt := strings.Repeat("word ", 900)
	response := call(t, "POST", url+"/v1/chat/completions", `{"stream":true,"messages":[{"role":"user","content":"`+prompt+`"}]}`)
	seen := 0
	events(t, response.Body, func(data string) {
		if seen++; seen == 1 {
			end()
		}
		if data == "[DONE]" {
			t.Error("the stream says that it is whole")
		}
	})
	if seen == 0 || seen > 800 {
		t.Errorf("got %d events, want the first ones only", seen)
	}
}
