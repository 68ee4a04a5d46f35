//go:build e2e

package main_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// example is a folder of examples/, whose README says how to launch and call it.
type example struct {
	dir, task, service, protocol string
	// calls is what each documented call prints, in their order: regular expressions that all must be found.
	calls [][]string
	// endless is the part of a call's line by which one is known that goes on until it is stopped.
	endless string
	more    func(t *testing.T, s *stage, row service)
}

// secrets of the cluster that no job may be shown.
var secret = regexp.MustCompile(`(?i)authorization: |ytcypresscookie`)

// TestE2EExamples pastes all that the README of each example says, letter by letter: its launch and its calls.
func TestE2EExamples(t *testing.T) {
	s := newStage(t)
	for _, e := range []example{
		{
			dir: "http-service", task: "example_http_server", service: "port_0", protocol: "http",
			calls: [][]string{
				{`alice`, `job \S+ \(task example_http_server`},
				{`^GET /headers\n`, `X-Yt-Taskproxy-User: alice`},
				{`"user": "alice"`, `"path": "/any/path"`},
			},
		},
		{
			dir: "grpc-service", task: "example_grpc_server", service: "server", protocol: "grpc",
			calls: [][]string{
				{`(?m)^helloworld\.Greeter$`},
				{`"message": "Hello, you! This is job`, `"user": "alice"`},
				{`(?s)"message".*"message".*"message"`},
				{`"status": "SERVING"`},
				{`"message": "Hello, alice!`},
				{`"message": "Hello, alice!`},
				{`"message": "Hello, alice!`},
			},
		},
		{
			dir: "websocket-service", task: "example_page", service: "ui", protocol: "http",
			calls: [][]string{{`(?s)id: 1\nevent: tick\n.*"user":"alice".*id: 2\nevent: tick\n`}}, endless: "/events",
			more: echoes,
		},
		{
			dir: "inference-service", task: "example_model", service: "api", protocol: "http",
			calls: [][]string{
				{`^ok\n$`},
				{`"id":"parrot"`},
				{`"content":"job \S+ \(task example_model, index \d\) heard: hello there"`, `"finish_reason":"stop"`},
				{`(?s)^data: .*"delta":{"role":"assistant","content":"job"}.*"content":" there"}.*\ndata: \[DONE\]\n\n$`},
			},
			more: streams,
		},
	} {
		t.Run(e.dir, func(t *testing.T) { e.run(t, s) })
	}
}

// readme returns the commands of the sections Launch and Call.
func (e example) readme(t *testing.T, s *stage) (launch, call []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.root, "examples", e.dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var section string
	fenced := false
	for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", "")) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "## "):
			section = line[3:]
		case strings.HasPrefix(line, "```"):
			fenced = line == "```sh"
		case fenced && line != "" && section == "Launch":
			launch = append(launch, line)
		case fenced && line != "" && section == "Call":
			call = append(call, line)
		}
	}
	if len(launch) < 3 || !strings.HasPrefix(launch[len(launch)-1], "yt vanilla ") {
		t.Fatalf("the README launches by %q, want a build, an upload and yt vanilla", launch)
	}
	if len(call) == 0 || call[0] != readTable {
		t.Fatalf("the README calls by %q, want %s first", call, readTable)
	}
	return launch, call[1:]
}

func (e example) run(t *testing.T, s *stage) {
	launch, calls := e.readme(t, s)
	last := launch[len(launch)-1]
	for _, command := range launch[:len(launch)-1] {
		// Built for the machine that the jobs run on, which here is this one.
		command = strings.Replace(command, "GOARCH=amd64", "GOARCH="+runtime.GOARCH, 1)
		if output := regexp.MustCompile(` -o (\S+)`).FindStringSubmatch(command); output != nil {
			t.Cleanup(func() { os.Remove(filepath.Join(s.root, output[1])) })
		}
		if r := s.shell(t.Context(), t, s.root, append(goSettings(t), s.env("alice")...), command); r.code != 0 {
			t.Fatalf("%s\nexit code %d\n%s%s", command, r.code, tail(r.stdout), tail(r.stderr))
		}
	}
	vanilla := start(t, s.root, s.environment(s.dir, s.env("alice")...), "sh", "-c", "exec "+last)
	var row service
	eventually(t, "it is in the table", tableWritten, func() error {
		if err := vanilla.running(); err != nil {
			t.Fatal(err)
		}
		rows, err := s.table(t)
		if row = rows[e.task]; err == nil && row.Domain == "" {
			err = fmt.Errorf("it has %v", rows)
		}
		return err
	})
	t.Cleanup(func() { s.abort(t, row.OperationID) })
	if got, want := row.Service+" "+row.Protocol, e.service+" "+e.protocol; got != want {
		t.Errorf("service and protocol: got %q, want %q", got, want)
	}
	if len(calls) != len(e.calls) {
		t.Fatalf("the README has %d calls, the test knows %d: %q", len(calls), len(e.calls), calls)
	}
	for i, line := range calls {
		t.Run(line, func(t *testing.T) { e.call(t, s, row, line, e.calls[i]) })
	}
	if e.more != nil {
		e.more(t, s, row)
	}
}

// call pastes a line of the README, with the values that it writes as <…> filled in.
func (e example) call(t *testing.T, s *stage, row service, line string, wants []string) {
	id, _, _ := strings.Cut(row.Domain, ".")
	_, port, _ := strings.Cut(s.proxy, ":")
	if strings.HasPrefix(line, "grpcurl ") {
		// Go's resolver knows no names under localhost. The README has this form too.
		line = strings.Replace(line, "<domain>:80", "-authority <domain> <proxy>:80", 1)
	}
	line = strings.NewReplacer("http://<domain>/", "http://<domain>:"+port+"/", "<proxy>:80", s.proxy).Replace(line)
	line = strings.NewReplacer("<domain>", row.Domain, "<id>", id).Replace(line)
	if strings.HasPrefix(line, "curl ") {
		line = strings.Replace(line, "curl ", "curl -sS --fail-with-body ", 1)
	}
	if e.endless != "" && strings.Contains(line, e.endless) {
		p := start(t, s.root, s.environment(s.dir, s.env("alice")...), "sh", "-c", "exec "+line)
		eventually(t, "it prints what it should", 15*time.Second, func() error {
			if err := p.running(); err != nil {
				t.Fatal(err)
			}
			return prints(p.stdout.String(), wants)
		})
		return
	}
	// A job is listed as running a moment before its server listens.
	eventually(t, "it prints what it should", 15*time.Second, func() error {
		r := s.shell(t.Context(), t, s.root, s.env("alice"), line)
		if r.code != 0 {
			return fmt.Errorf("exit code %d: %s%s", r.code, tail(r.stdout), tail(r.stderr))
		}
		if found := secret.FindString(r.stdout); found != "" {
			t.Errorf("%q reached the job: %s", found, r.stdout)
		}
		return prints(r.stdout, wants)
	})
}

func prints(text string, wants []string) error {
	for _, want := range wants {
		if !regexp.MustCompile(want).MatchString(text) {
			return fmt.Errorf("no %s in %s", want, tail(text))
		}
	}
	return nil
}

// abort ends an operation, so that the next example finds the machine's processes gone.
func (s *stage) abort(t *testing.T, operation string) {
	t.Helper()
	// The test's own context has ended where cleanups run.
	r := s.shell(context.WithoutCancel(t.Context()), t, s.dir, s.env("alice"), "yt abort-op "+operation)
	if r.code != 0 {
		t.Errorf("yt abort-op %s: %s", operation, tail(r.stderr))
	}
	eventually(t, "its processes are gone", 10*time.Second, func() error {
		if left := jobProcesses(t, operation); len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
}

// echoes opens the WebSocket of the page, which its README only describes.
func echoes(t *testing.T, s *stage, row service) {
	t.Run("the echo", func(t *testing.T) {
		connection, _, err := websocket.Dial(t.Context(), "ws://"+s.proxy+"/echo?greet", &websocket.DialOptions{
			Host: row.Domain, HTTPHeader: http.Header{"Authorization": {"OAuth " + s.people["alice"].token}},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer connection.CloseNow()
		for _, want := range []string{"Hello, alice! This is job ", "one more"} {
			if want == "one more" {
				if err := connection.Write(t.Context(), websocket.MessageText, []byte(want)); err != nil {
					t.Fatal(err)
				}
			}
			_, got, err := connection.Read(t.Context())
			if err != nil || !strings.HasPrefix(string(got), want) {
				t.Errorf("got %q, %v, want %q", got, err, want)
			}
		}
	})
}

// streams shows that tokens arrive one by one and not all at the end: a long answer has begun to be printed while the job
// still thinks.
func streams(t *testing.T, s *stage, row service) {
	t.Run("tokens arrive one by one", func(t *testing.T) {
		prompt := strings.Repeat("word ", 900)
		_, port, _ := strings.Cut(s.proxy, ":")
		p := start(t, s.dir, s.environment(s.dir, s.env("alice")...), "curl", "-sSN", "-H", "Authorization: Bearer "+s.people["alice"].token,
			"http://"+row.Domain+":"+port+"/v1/chat/completions", "-d", `{"stream":true,"messages":[{"content":"`+prompt+`"}]}`)
		eventually(t, "the first tokens", 15*time.Second, func() error {
			if err := p.running(); err != nil {
				t.Fatal(err)
			}
			if strings.Count(p.stdout.String(), "data: ") < 3 {
				return errNotYet
			}
			return nil
		})
		if strings.Contains(p.stdout.String(), "[DONE]") {
			t.Error("the answer was whole before its first tokens were seen")
		}
		if p.running() != nil {
			t.Error(errors.New("the stream has ended"))
		}
	})
}
