//go:build e2e

package interop_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// TestE2EWebSocketConversations has the conversations of testdata/websocket_client.py with a job, through the proxy and
// without it. Each must come out well, and the same.
func TestE2EWebSocketConversations(t *testing.T) {
	python, client := program(t, "WEBSOCKET_PYTHON"), script(t, "websocket_client.py")
	w := newWorld(t)
	service := w.launchWebSocket(t)
	order, direct := converse(t, python, client, service.direct, service.domain)
	_, proxied := converse(t, python, client, w.proxy, service.domain, w.alice.Token)
	if len(order) < 100 || len(proxied) != len(direct) {
		t.Fatalf("%d conversations without the proxy, %d through it: want the same number, 100 or more", len(direct), len(proxied))
	}
	for _, name := range order {
		t.Run(name, func(t *testing.T) {
			if got, want := proxied[name], direct[name]; got != want || strings.HasPrefix(got, `"FAILED`) {
				t.Errorf("through the proxy: %s\nwithout it:        %s", got, want)
			}
		})
	}
	// They went through the proxy: it is the proxy that asks who is calling.
	_, nobody := converse(t, python, client, w.proxy, service.domain)
	for name, outcome := range nobody {
		if !strings.HasPrefix(outcome, `"FAILED`) || !strings.Contains(outcome, "401") {
			t.Errorf("%s, without credentials: got %s, want a refusal, 401", name, outcome)
		}
	}
}

// launchWebSocket launches testdata/websocket_server.py.
func (w *world) launchWebSocket(t *testing.T) endpoint {
	t.Helper()
	return w.launch(t, "websocket", "websocket", "'"+program(t, "WEBSOCKET_PYTHON")+"' '"+script(t, "websocket_server.py")+"'")
}

// script is the path of a file of testdata, for whoever runs in another directory.
func script(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// converse runs the client and returns what came of each conversation, and their order.
func converse(t *testing.T, python, client, address string, more ...string) (order []string, outcomes map[string]string) {
	t.Helper()
	r := run(t, t.TempDir(), nil, python, append([]string{client, address}, more...)...)
	if r.code != 0 {
		t.Fatalf("exit code %d\n%s", r.code, tail(r.stderr))
	}
	outcomes = map[string]string{}
	for line := range strings.Lines(r.stdout) {
		var pair [2]json.RawMessage
		var name string
		if err := json.Unmarshal([]byte(line), &pair); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		if err := json.Unmarshal(pair[0], &name); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		if _, twice := outcomes[name]; twice {
			t.Fatalf("two conversations are called %q", name)
		}
		order, outcomes[name] = append(order, name), string(pair[1])
	}
	return order, outcomes
}
