package ytlocal

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"go.ytsaurus.tech/yt/go/yson"
)

// Every place that parameters may come from, and which of them wins.
func TestWhereParametersComeFrom(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	yc := rootClient(t, c)
	for _, name := range []string{"q", "h", "b"} {
		set(t, yc, "//tmp/"+name, name)
	}
	set(t, yc, "//tmp/b/@x", 1)
	header := func(name, value string) func(http.Header) { return func(h http.Header) { h.Set(name, value) } }
	all := func(edits ...func(http.Header)) func(http.Header) {
		return func(h http.Header) {
			for _, e := range edits {
				e(h)
			}
		}
	}
	long := base64.StdEncoding.EncodeToString([]byte(`{path="//tmp/h"}`))
	for _, tt := range []struct {
		name, method, query, body string
		header                    func(http.Header)
		want                      string
	}{
		{"query", "GET", "path=//tmp/q", "", nil, `{"value":"q"}`},
		{"query with brackets", "GET", "path[$value]=//tmp/b&path[$attributes][a]=1", "", nil, `{"value":"b"}`},
		{"header", "GET", "", "", header("X-YT-Parameters", `{path="//tmp/h"}`), `{"value":"h"}`},
		{"header over query", "GET", "path=//tmp/q", "", header("X-YT-Parameters", `{path="//tmp/h"}`), `{"value":"h"}`},
		{"JSON header", "GET", "", "", all(header("X-YT-Header-Format", "json"), header("X-YT-Parameters", `{"path":"//tmp/h"}`)), `{"value":"h"}`},
		{"long header", "GET", "", "", all(header("X-YT-Parameters0", long[:7]), header("X-YT-Parameters1", long[7:])), `{"value":"h"}`},
		{"long header, dashes", "GET", "", "", all(header("X-YT-Parameters-0", long[:9]), header("X-YT-Parameters-1", long[9:])), `{"value":"h"}`},
		{"body over header", "POST", "path=//tmp/q", `{path="//tmp/b"}`, all(header("X-YT-Parameters", `{path="//tmp/h"}`), header("X-YT-Input-Format", "yson")), `{"value":"b"}`},
		{"JSON body", "POST", "", `{"path":"//tmp/b"}`, header("Content-Type", "application/json; charset=utf-8"), `{"value":"b"}`},
		{"body with attributes", "POST", "", `{path="//tmp/b";attributes=[x]}`, header("X-YT-Input-Format", "<a=1>yson"), `{"value":{"$attributes":{"x":1},"$value":"b"}}`},
		{"bare value", "GET", "path=//tmp/q&return_only_value=true", "", nil, `"q"`},
		{"format by parameter", "GET", "path=//tmp/q&output_format=yson", "", nil, `{value=q;}`},
		{"format by header", "GET", "path=//tmp/q", "", header("X-YT-Output-Format", "<format=binary>yson"), "{\x01\x0avalue=\x01\x02q;}"},
		{"format by Accept", "GET", "path=//tmp/q", "", header("Accept", "text/html, application/x-yt-yson-text"), `{value=q;}`},
	} {
		got := request(t, c, tt.method, "/api/v4/get?"+tt.query, tt.body, func(r *http.Request) {
			if tt.header != nil {
				tt.header(r.Header)
			}
		})
		if got.status != 200 || got.body != tt.want {
			t.Errorf("%s: got %d %q, want %q", tt.name, got.status, got.body, tt.want)
		}
	}
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	for _, tt := range []struct {
		name, method, path, body string
		header                   map[string]string
		status                   int
		says                     string
	}{
		{"no path", "GET", "get", "", nil, 400, "path"},
		{"path of a wrong type", "GET", "get", "", map[string]string{"X-YT-Parameters": "{path=[]}"}, 400, "path"},
		{"parameters that are no map", "GET", "get", "", map[string]string{"X-YT-Parameters": "[]"}, 400, "X-YT-Parameters"},
		{"broken YSON", "GET", "get", "", map[string]string{"X-YT-Parameters": "{a="}, 400, "X-YT-Parameters"},
		{"deep YSON", "GET", "get", "", map[string]string{"X-YT-Parameters": "{a=" + strings.Repeat("[", 10_000)}, 400, "nested"},
		{"deep JSON", "POST", "get", strings.Repeat("[", 100_000), map[string]string{"Content-Type": "application/json"}, 400, "JSON"},
		{"broken base64", "GET", "get", "", map[string]string{"X-YT-Parameters0": "!"}, 400, "base64"},
		{"unknown format", "GET", "get?path=//tmp&output_format=dsv", "", nil, 400, "dsv"},
		{"unknown command", "GET", "fly", "", nil, 404, "fly"},
		{"compressed parameters", "POST", "get", "x", map[string]string{"Content-Encoding": "gzip"}, 415, "gzip"},
		{"no value to set", "PUT", "set?path=//tmp/x", "", nil, 400, "value"},
		{"wrong flag", "POST", "remove?path=//tmp/x&force=maybe", "", nil, 400, "force"},
		{"unknown transaction", "GET", "get?path=//tmp&transaction_id=1-2-3-4", "", nil, 400, "1-2-3-4"},
		{"transaction timeout", "POST", "start_transaction?timeout=-5", "", nil, 400, "timeout"},
	} {
		got := request(t, c, tt.method, "/api/v4/"+tt.path, tt.body, func(r *http.Request) {
			for name, value := range tt.header {
				r.Header.Set(name, value)
			}
		})
		var e struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		}
		if err := json.Unmarshal([]byte(got.body), &e); err != nil || got.status != tt.status || !strings.Contains(e.Message, tt.says) || e.Code == 0 {
			t.Errorf("%s: got %d %q, want %d and a message with %q", tt.name, got.status, got.body, tt.status, tt.says)
		}
		if got.header.Get("X-YT-Error") != got.body || got.header.Get("X-YT-Response-Code") == "" {
			t.Errorf("%s: header %q differs from body %q", tt.name, got.header.Get("X-YT-Error"), got.body)
		}
	}
}

func TestRoutesBesideCommands(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	if got := request(t, c, "GET", "/hosts", "", nil); got.body != `["`+c.Addr()+`"]` {
		t.Errorf("/hosts: %s", got.body)
	}
	if got := request(t, c, "GET", "/hosts", "", func(r *http.Request) { r.Header.Set("Accept", "text/plain") }); got.body != c.Addr()+"\n" {
		t.Errorf("/hosts as text: %q", got.body)
	}
	if got := request(t, c, "GET", "/api", "", nil); got.body != `["v3","v4"]` {
		t.Errorf("/api: %s", got.body)
	}
	var list []struct {
		Name   string `json:"name"`
		Input  string `json:"input_type"`
		Output string `json:"output_type"`
		Write  *bool  `json:"is_volatile"`
		Heavy  *bool  `json:"is_heavy"`
	}
	must(t, json.Unmarshal([]byte(request(t, c, "GET", "/api/v4", "", nil).body), &list))
	for _, d := range list {
		if d.Name == "" || d.Input == "" || d.Output == "" || d.Write == nil || d.Heavy == nil {
			t.Errorf("descriptor: %+v", d)
		}
		if got := d.Name == "write_table"; got && (d.Input != "tabular" || !*d.Write || !*d.Heavy) {
			t.Errorf("write_table: %+v", d)
		}
	}
	if len(list) != len(commands()) {
		t.Errorf("%d descriptors for %d commands", len(list), len(commands()))
	}
}

func TestValues(t *testing.T) {
	t.Parallel()
	// Values are shared between readers and transactions, so setting must not change what was read before.
	old := map[string]any{"l": []any{int64(1), map[string]any{"x": "y"}}, "a": &yson.ValueWithAttrs{Attrs: map[string]any{"k": 1}, Value: map[string]any{}}}
	before, err := yson.Marshal(old)
	must(t, err)
	for _, steps := range [][]string{{"l", "0"}, {"l", "1", "x"}, {"l", "end"}, {"l", "begin"}, {"l", "before:1"}, {"a", "n"}, {"new"}} {
		v, err := valueSet(old, steps, "set", false)
		must(t, err)
		after, err := yson.Marshal(v)
		must(t, err)
		if string(after) == string(before) {
			t.Errorf("%v: nothing was set", steps)
		}
		if now, _ := yson.Marshal(old); string(now) != string(before) {
			t.Fatalf("%v: the old value changed to %s", steps, now)
		}
	}
	for _, steps := range [][]string{{"l", "0"}, {"l", "1", "x"}, {"a"}} {
		if _, err := valueRemove(old, steps); err != nil {
			t.Errorf("%v: %v", steps, err)
		}
		if now, _ := yson.Marshal(old); string(now) != string(before) {
			t.Fatalf("%v: the old value changed to %s", steps, now)
		}
	}
	for _, steps := range [][]string{{"l", "7"}, {"l", "x"}, {"l", "-3"}, {"nope", "x"}, {"l", "0", "x"}, {"l", "before:9"}} {
		if _, err := valueSet(old, steps, "set", false); err == nil {
			t.Errorf("%v was set", steps)
		}
	}
}
