package ytlocal

import (
	"net/http"
	"strings"
	"testing"

	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yt"
	"go.ytsaurus.tech/yt/go/yterrors"
)

func TestCypressNodes(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	ctx, yc := t.Context(), rootClient(t, c)
	create(t, yc, "//tmp/a/b", yt.NodeMap)
	set(t, yc, "//tmp/a/n", 5)
	set(t, yc, "//tmp/a/s", "text")
	set(t, yc, "//tmp/a/m", map[string]any{"x": 1, "l": []int{1, 2}})
	create(t, yc, "//tmp/a/doc", yt.NodeDocument)
	set(t, yc, "//tmp/a/doc", map[string]any{"k": []any{"v"}})
	must(t, yc.SetNode(ctx, ypath.Path("//tmp/a/doc/more/deep"), 1, &yt.SetNodeOptions{Recursive: true}))
	for path, want := range map[string]string{
		"//tmp/a":           `{b={};doc={k=[v;];more={deep=1;};};m={l=[1;2;];x=1;};n=5;s=text;}`,
		"//tmp/a/n":         `5`,
		"//tmp/a/m/x":       `1`,
		"//tmp/a/m/l/-1":    `2`,
		"//tmp/a/doc/k/0":   `v`,
		"//tmp/a/@type":     `"map_node"`,
		"//tmp/a/n/@type":   `"int64_node"`,
		"//tmp/a/@count":    `5`,
		"//tmp/a/b/@path":   `"//tmp/a/b"`,
		"//tmp/a/b/@key":    `b`,
		"//tmp/@account":    `tmp`,
		"//tmp/a/@account":  `tmp`,
		"//sys/@account":    `sys`,
		"//tmp/a/m&/@type":  `"map_node"`,
		"//@type":           `"map_node"`,
		"//tmp/a/@acl":      `[]`,
		"//tmp/a/m/l/@type": `"list_node"`,
	} {
		if got := get(t, yc, path); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
	for path, want := range map[string]bool{
		"//tmp/a/doc/k/0": true, "//tmp/a/doc/k/7": false, "//tmp/nope": false, "//tmp/a/@type": true, "//tmp/a/@nope": false,
		"//tmp/nope/@type": false, "#1-2-3-4": false, "#" + c.mustFind("//tmp").id: true,
	} {
		if got := exists(t, yc, path); got != want {
			t.Errorf("exists %s: got %v", path, got)
		}
	}

	var keys []yson.ValueWithAttrs
	must(t, yc.ListNode(ctx, ypath.Path("//tmp/a"), &keys, &yt.ListNodeOptions{Attributes: []string{"type", "nope"}}))
	if len(keys) != 5 || keys[0].Value != "b" || keys[0].Attrs["type"] != "map_node" || len(keys[0].Attrs) != 1 {
		t.Errorf("list with attributes: got %v", keys)
	}

	var v any
	wantCode(t, yc.GetNode(ctx, ypath.Path("//tmp/nope"), &v, nil), yterrors.CodeResolveError)
	wantCode(t, yc.GetNode(ctx, ypath.Path("//tmp/a/@nope"), &v, nil), yterrors.CodeResolveError)
	wantCode(t, yc.SetNode(ctx, ypath.Path("//tmp/x/y"), 1, nil), yterrors.CodeResolveError)
	must(t, yc.SetNode(ctx, ypath.Path("//tmp/x/y"), 1, &yt.SetNodeOptions{Recursive: true}))
	_, err := yc.CreateNode(ctx, ypath.Path("//tmp/a"), yt.NodeMap, nil)
	wantCode(t, err, yterrors.CodeAlreadyExists)
	_, err = yc.CreateNode(ctx, ypath.Path("//tmp/q/r"), yt.NodeMap, nil)
	wantCode(t, err, yterrors.CodeResolveError)
	id, err := yc.CreateNode(ctx, ypath.Path("//tmp/a"), yt.NodeMap, &yt.CreateNodeOptions{IgnoreExisting: true})
	must(t, err)
	if got := get(t, yc, "#"+id.String()+"/n"); got != "5" {
		t.Errorf("by id: got %s", got)
	}
	if err := yc.SetNode(ctx, ypath.Path("//tmp/a"), map[string]any{}, nil); err == nil {
		t.Error("a map node was replaced without force")
	}
	if err := yc.RemoveNode(ctx, ypath.Path("//tmp/a"), nil); err == nil {
		t.Error("a full map node was removed without recursive")
	}
	must(t, yc.RemoveNode(ctx, ypath.Path("//tmp/a/doc/k"), nil))
	must(t, yc.RemoveNode(ctx, ypath.Path("//tmp/a"), &yt.RemoveNodeOptions{Recursive: true}))
	wantCode(t, yc.RemoveNode(ctx, ypath.Path("//tmp/a"), nil), yterrors.CodeResolveError)
	must(t, yc.RemoveNode(ctx, ypath.Path("//tmp/a"), &yt.RemoveNodeOptions{Force: true}))
	must(t, yc.RemoveNode(ctx, ypath.Path("//tmp/*"), nil))
	if got := get(t, yc, "//tmp"); got != "{}" {
		t.Errorf("after removing all: %s", got)
	}
}

func TestAttributes(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	ctx, yc := t.Context(), rootClient(t, c)
	create(t, yc, "//tmp/n", yt.NodeMap)
	set(t, yc, "//tmp/n/@list", []int{1})
	set(t, yc, "//tmp/n/@list/end", 3)
	set(t, yc, "//tmp/n/@list/begin", 0)
	set(t, yc, "//tmp/n/@list/before:2", 2)
	set(t, yc, "//tmp/n/@list/0", 9)
	set(t, yc, "//tmp/n/@map", map[string]any{"a": 1})
	set(t, yc, "//tmp/n/@map/b", 2)
	if got, want := get(t, yc, "//tmp/n/@list"), "[9;1;2;3;]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	must(t, yc.MultisetAttributes(ctx, ypath.Path("//tmp/n/@"), map[string]any{"x": 1, "y": 2}, nil))
	must(t, yc.RemoveNode(ctx, ypath.Path("//tmp/n/@map/a"), nil))
	must(t, yc.RemoveNode(ctx, ypath.Path("//tmp/n/@x"), nil))
	if got, want := get(t, yc, "//tmp/n/@user_attribute_keys"), "[list;map;y;]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := get(t, yc, "//tmp/n/@map"), "{b=2;}"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, path := range []string{"//tmp/n/@id", "//tmp/n/@type", "//tmp/n/@row_count", "//tmp/n/@key", "//sys/users/root/@name"} {
		if err := yc.SetNode(ctx, ypath.Path(path), "x", nil); err == nil {
			t.Errorf("%s was set", path)
		}
	}
	var n struct {
		Type string `yson:"type,attr"`
		Y    int    `yson:"y,attr"`
	}
	must(t, yc.GetNode(ctx, ypath.Path("//tmp/n"), &n, &yt.GetNodeOptions{Attributes: []string{"type", "y"}}))
	if n.Type != "map_node" || n.Y != 2 {
		t.Errorf("got %+v", n)
	}
}

func TestCopyMoveLink(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	ctx, yc := t.Context(), rootClient(t, c)
	set(t, yc, "//tmp/a", map[string]any{"x": map[string]any{"y": 1}})
	_, err := yc.CopyNode(ctx, ypath.Path("//tmp/a"), ypath.Path("//tmp/b"), nil)
	must(t, err)
	set(t, yc, "//tmp/b/x/y", 2)
	_, err = yc.MoveNode(ctx, ypath.Path("//tmp/b"), ypath.Path("//tmp/c"), nil)
	must(t, err)
	_, err = yc.LinkNode(ctx, ypath.Path("//tmp/c/x"), ypath.Path("//tmp/l"), nil)
	must(t, err)
	if got, want := get(t, yc, "//tmp"), "{a={x={y=1;};};c={x={y=2;};};l=#;}"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := get(t, yc, "//tmp/l/y"); got != "2" {
		t.Errorf("through the link: got %s", got)
	}
	if got := get(t, yc, "//tmp/l&/@type"); got != "link" {
		t.Errorf("the link itself: got %s", got)
	}
	_, err = yc.MoveNode(ctx, ypath.Path("//tmp/a"), ypath.Path("//tmp/a/x/z"), nil)
	if err == nil {
		t.Error("a node was moved into itself")
	}
	if _, err = yc.MoveNode(ctx, ypath.Path("//sys"), ypath.Path("//tmp/sys"), nil); err == nil && !exists(t, yc, "//sys/users/root") {
		t.Error("the system was moved away")
	}
	// Links that lead around in a circle end in an error, not in a loop.
	set(t, yc, "//tmp/p", map[string]any{})
	_, err = yc.LinkNode(ctx, ypath.Path("//tmp/p"), ypath.Path("//tmp/q"), nil)
	must(t, err)
	_, err = yc.LinkNode(ctx, ypath.Path("//tmp/q"), ypath.Path("//tmp/p"), &yt.LinkNodeOptions{Force: true})
	must(t, err)
	var v any
	wantCode(t, yc.GetNode(ctx, ypath.Path("//tmp/q"), &v, nil), yterrors.CodeResolveError)
}

func TestBatch(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	ctx, yc := t.Context(), rootClient(t, c)
	b, err := yc.NewBatchRequest()
	must(t, err)
	set(t, yc, "//tmp/a", 7)
	var got int
	one, err := b.GetNode(ctx, ypath.Path("//tmp/a"), &got, nil)
	must(t, err)
	two, err := b.GetNode(ctx, ypath.Path("//tmp/nope"), new(int), nil)
	must(t, err)
	three, err := b.SetNode(ctx, ypath.Path("//tmp/b"), "x", nil)
	must(t, err)
	must(t, b.ExecuteBatch(ctx, nil))
	if one.Error() != nil || got != 7 {
		t.Errorf("get: %d, %v", got, one.Error())
	}
	wantCode(t, two.Error(), yterrors.CodeResolveError)
	must(t, three.Error())
	if got := get(t, yc, "//tmp/b"); got != "x" {
		t.Errorf("set in the batch: got %s", got)
	}
	for name, requests := range map[string]string{
		"heavy":   `[{"command":"read_table","parameters":{"path":"//tmp/t"}}]`,
		"nested":  `[{"command":"execute_batch","parameters":{"requests":[]}}]`,
		"unknown": `[{"command":"fly"}]`,
		"no list": `{}`,
	} {
		got := request(t, c, "POST", "/api/v4/execute_batch", `{"requests":`+requests+`}`, func(r *http.Request) { r.Header.Set("Content-Type", "application/json") })
		if got.status != 400 || got.header.Get("X-YT-Error") == "" {
			t.Errorf("%s: got %d %s", name, got.status, got.body)
		}
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	f := func(text, object, steps, attr string) {
		t.Helper()
		p, err := parsePath(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			return
		}
		if got := strings.Join(p.steps, "|"); p.object != object || got != steps || strings.Join(p.attr, "|") != attr {
			t.Errorf("%s: got object %q, steps %q, attr %q", text, p.object, got, p.attr)
		}
	}
	f("/", "", "", "")
	f("//a", "", "a", "")
	f("//a/b", "", "a|b", "")
	f("//a/@b", "", "a", "b")
	f("//a/@", "", "a", "")
	f("//a/@acl/end", "", "a", "acl|end")
	f("//@x", "", "", "x")
	f("//l&/@x", "", "l", "x")
	f("#1-2-3-4", "1-2-3-4", "", "")
	f("#1-2-3-4/@state", "1-2-3-4", "", "state")
	f("#1-2-3-4/a", "1-2-3-4", "a", "")
	f(`//a\/b/c\@d`, "", "a/b|c@d", "")
	f(`//\[2001:db8::1]:9012/x`, "", "[2001:db8::1]:9012|x", "")
	f(`//\x41b`, "", "Ab", "")
	f("//127.0.0.1:9012", "", "127.0.0.1:9012", "")
	f("<append=%true>//a", "", "a", "")
	f("//t{a,b}[#1:#2]", "", "t", "")
	f("//l&", "", "l", "")
	f(" //a", "", "a", "")
	for _, bad := range []string{"", "a", "///", "//a/", "//a//b", `//a\`, `//\xzz`, "<a=b", "//a[", "//a&b", "//a&/b", "//a*b", "/@x"} {
		if p, err := parsePath(bad); err == nil {
			t.Errorf("%q was read as %+v", bad, p)
		}
	}
	if _, err := parsePath(5); err == nil {
		t.Error("a number was read as a path")
	}
	for _, key := range []string{"a", "a/b", "@x", "*", "[v6]:1", `back\slash`, "a&b", "{x}", "ü"} {
		p, err := parsePath("//" + escapeStep(key))
		if err != nil || len(p.steps) != 1 || p.steps[0] != key {
			t.Errorf("%q does not survive: %+v, %v", key, p, err)
		}
	}
}

// FuzzPath: nothing that is written where a path is expected may do more than fail.
func FuzzPath(f *testing.F) {
	for _, seed := range []string{"//a/b", "<append=%true>//a", `//\x41`, "#1-2-3-4/@x", "//t{a}[#1]", "<", "//a/@/b", "//*"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePath(text)
		if err != nil {
			return
		}
		for _, s := range p.steps {
			if s == "" {
				t.Errorf("%q has an empty step", text)
			}
		}
	})
}
