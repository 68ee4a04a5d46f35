package ytlocal

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yt"
)

func TestFaults(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	text := func(s string) *string { return &s }
	for _, tt := range []struct {
		name  string
		fault Fault
		want  func(answer) bool
	}{
		{"code", Fault{Error: fail(904, "busy")}, func(a answer) bool {
			return a.status == 400 && a.header.Get("X-YT-Response-Code") == "904" && strings.Contains(a.header.Get("X-YT-Error"), "busy")
		}},
		{"code with a status", Fault{Error: fail(108, "busy"), Status: 503}, func(a answer) bool { return a.status == 503 && a.header.Get("X-YT-Response-Code") == "108" }},
		{"bare status", Fault{Status: 503}, func(a answer) bool { return a.status == 503 && a.body == "" && a.header.Get("X-YT-Error") == "" }},
		{"empty map", Fault{Body: text("{}")}, func(a answer) bool { return a.status == 200 && a.body == "{}" }},
		{"page", Fault{Body: text("<html>"), Header: http.Header{"Content-Type": {"text/html"}}}, func(a answer) bool { return a.header.Get("Content-Type") == "text/html" }},
		{"redirect", Fault{Status: 307, Header: http.Header{"Location": {"http://127.0.0.1:1/"}}}, func(a answer) bool { return a.status == 307 && a.header.Get("Location") != "" }},
		{"cut before", Fault{Cut: CutBefore}, func(a answer) bool { return a.err != nil && a.status == 0 }},
		{"cut after headers", Fault{Cut: CutHeaders}, func(a answer) bool { return a.err != nil && a.status == 200 && a.body == "" }},
		{"cut in the body", Fault{Cut: CutBody}, func(a answer) bool { return a.err != nil && a.status == 200 && a.body != "" }},
		{"edit", Fault{Edit: func(any) any { return map[string]any{"value": "other"} }}, func(a answer) bool { return a.body == `{"value":"other"}` }},
		{"not this one", Fault{Status: 503, Match: func(c Call) bool { return c.User != "root" }}, func(a answer) bool { return a.status == 200 }},
		{"not this command", Fault{Status: 503, Command: "list"}, func(a answer) bool { return a.status == 200 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			remove := c.Faults().Add(tt.fault)
			if got := request(t, c, "GET", "/api/v4/get?path=//tmp/@type", "", nil); !tt.want(got) {
				t.Errorf("got %d %q, headers %v, error %v", got.status, got.body, got.header, got.err)
			}
			remove()
			remove()
			if got := request(t, c, "GET", "/api/v4/get?path=//tmp/@type", "", nil); got.status != 200 || got.body != `{"value":"map_node"}` {
				t.Errorf("after removal: got %d %q", got.status, got.body)
			}
		})
	}
}

func TestFaultTimes(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	yc := rootClient(t, c)
	// The SDK retries 904 by itself, so two of them only cost time.
	c.Faults().Add(Fault{Command: "get", Times: 2, Error: fail(904, "busy")})
	before := c.Faults().Calls()["get"]
	if got := get(t, yc, "//tmp/@type"); got != `"map_node"` {
		t.Errorf("got %s", got)
	}
	if got := c.Faults().Calls()["get"] - before; got != 3 {
		t.Errorf("%d calls, want 3", got)
	}
	c.Faults().Add(Fault{Command: "whoami", Body: new(string)})
	if _, err := yc.WhoAmI(t.Context(), nil); err == nil {
		t.Error("an empty whoami was understood")
	}
	c.Faults().Clear()
	_, err := yc.WhoAmI(t.Context(), nil)
	must(t, err)
}

func TestFaultsTakeTime(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	yc := rootClient(t, c)
	remove := c.Faults().Add(Fault{Command: "get", Hang: true})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var v any
	if err := yc.GetNode(ctx, ypath.Path("//tmp"), &v, nil); err == nil || ctx.Err() == nil {
		t.Errorf("a hanging call returned %v", err)
	}
	remove()
	c.Faults().Add(Fault{Command: "get", Delay: 30 * time.Millisecond})
	begin := time.Now()
	must(t, yc.GetNode(t.Context(), ypath.Path("//tmp"), &v, nil))
	if took := time.Since(begin); took < 30*time.Millisecond {
		t.Errorf("a delayed call took %v", took)
	}
}

// A cluster that closes lets nobody hang.
func TestCloseEndsHangingCalls(t *testing.T) {
	t.Parallel()
	c, err := Start(Config{StateDir: t.TempDir()})
	must(t, err)
	c.Faults().Add(Fault{Command: "get", Hang: true})
	done := make(chan answer)
	go func() { done <- request(t, c, "GET", "/api/v4/get?path=//tmp", "", nil) }()
	eventually(t, "the call arrived", func() bool { return c.Faults().Calls()["get"] == 1 })
	must(t, c.Close())
	if got := <-done; got.err == nil {
		t.Errorf("the hanging call was answered: %d", got.status)
	}
}

// One bad item among many: what a batch of orchid requests looks like when one node does not answer.
func TestFaultsInBatches(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	ctx, yc := t.Context(), rootClient(t, c)
	c.Faults().Add(Fault{Command: "get", Error: fail(100, "node is away"), Match: func(call Call) bool {
		return strings.Contains(fmt.Sprint(call.Params["path"]), "home")
	}})
	b, err := yc.NewBatchRequest()
	must(t, err)
	var typ string
	good, err := b.GetNode(ctx, ypath.Path("//tmp/@type"), &typ, nil)
	must(t, err)
	bad, err := b.GetNode(ctx, ypath.Path("//home/@type"), &typ, nil)
	must(t, err)
	must(t, b.ExecuteBatch(ctx, nil))
	must(t, good.Error())
	wantCode(t, bad.Error(), 100)
}

// A client that cannot be told from the answer that something is missing must be told by the fault: the states that a
// scheduler restart shows.
func TestEditedStates(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	yc := rootClient(t, c)
	id := start(t, yc, vanilla(1, "sleep 600", nil))
	c.Faults().Add(Fault{Command: "get_operation", Edit: func(v any) any {
		v.(map[string]any)["state"] = "reviving"
		return v
	}})
	op, err := yc.GetOperation(t.Context(), id, nil)
	must(t, err)
	if op.State != yt.StateReviving {
		t.Errorf("got %s, want reviving", op.State)
	}
}
