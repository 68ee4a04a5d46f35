package ytlocal

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"go.ytsaurus.tech/yt/go/schema"
	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yt"
	"go.ytsaurus.tech/yt/go/yterrors"
)

type pair struct {
	Domain string `yson:"domain"`
	Task   string `yson:"task_name"`
}

// writeTable writes as the SDK's users do.
func writeTable(t *testing.T, yc yt.Client, path string, rows ...any) error {
	t.Helper()
	w, err := yt.WriteTable(t.Context(), yc, ypath.Path(path), yt.WithExistingTable())
	if err != nil {
		return err
	}
	for _, r := range rows {
		if err := w.Write(r); err != nil {
			return err
		}
	}
	return w.Commit()
}

// readPairs reads a table as the SDK does.
func readPairs(t *testing.T, yc yt.TableClient, path string) []pair {
	t.Helper()
	r, err := yc.ReadTable(t.Context(), ypath.Path(path), nil)
	must(t, err)
	defer r.Close()
	out := []pair{}
	for r.Next() {
		var p pair
		must(t, r.Scan(&p))
		out = append(out, p)
	}
	must(t, r.Err())
	return out
}

func TestTables(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	ctx, yc := t.Context(), rootClient(t, c)
	wantCode(t, writeTable(t, yc, "//tmp/t", pair{"a", "b"}), yterrors.CodeResolveError)
	create(t, yc, "//tmp/t", yt.NodeTable)
	f := func(want ...pair) {
		t.Helper()
		if got := readPairs(t, yc, "//tmp/t"); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if got := get(t, yc, "//tmp/t/@row_count"); got != fmt.Sprint(len(want)) {
			t.Errorf("row_count: got %s, want %d", got, len(want))
		}
	}
	f()
	must(t, writeTable(t, yc, "//tmp/t", pair{"a", "x"}, pair{"b", "y"}))
	f(pair{"a", "x"}, pair{"b", "y"})
	must(t, writeTable(t, yc, "<append=%true>//tmp/t", pair{"c", "z"}))
	f(pair{"a", "x"}, pair{"b", "y"}, pair{"c", "z"})
	must(t, writeTable(t, yc, "//tmp/t"))
	f()
	must(t, writeTable(t, yc, "//tmp/t", pair{"a", "x"}, pair{"b", "y"}))
	if got := readPairs(t, yc, "//tmp/t{domain}[#1:#2]"); fmt.Sprint(got) != fmt.Sprint([]pair{{"b", ""}}) {
		t.Errorf("selection: got %v", got)
	}

	// The low-level way, binary and unbuffered.
	w, err := yc.WriteTable(ctx, ypath.NewRich("//tmp/t").SetAppend(), nil)
	must(t, err)
	must(t, w.Write(map[string]any{"domain": "m", "extra": 1}))
	must(t, w.Commit())
	f(pair{"a", "x"}, pair{"b", "y"}, pair{"m", ""})
	w, err = yc.WriteTable(ctx, ypath.Path("//tmp"), nil)
	must(t, err)
	_ = w.Write(pair{"a", "b"})
	if err := w.Commit(); err == nil {
		t.Error("a map node was written like a table")
	}

	bob := client(t, c, addUser(t, c, "bob").Token)
	create(t, yc, "//sys/t", yt.NodeTable)
	wantCode(t, writeTable(t, bob, "//sys/t", pair{"a", "b"}), yterrors.CodeAuthorizationError)
}

func TestStrictSchema(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	yc := rootClient(t, c)
	s := schema.MustInfer(pair{})
	_, err := yc.CreateNode(t.Context(), ypath.Path("//tmp/t"), yt.NodeTable, &yt.CreateNodeOptions{Attributes: map[string]any{"schema": s}})
	must(t, err)
	must(t, writeTable(t, yc, "//tmp/t", pair{"a", "x"}))
	for name, bad := range map[string]map[string]any{
		"unknown column": {"domain": "a", "task_name": "x", "more": 1},
		"missing column": {"domain": "a"},
		"wrong type":     {"domain": 1, "task_name": "x"},
	} {
		if err := writeTable(t, yc, "//tmp/t", pair{"b", "y"}, bad); !yterrors.ContainsErrorCode(err, yterrors.CodeSchemaViolation) {
			t.Errorf("%s: got %v, want code 307", name, err)
		}
	}
	if got := readPairs(t, yc, "//tmp/t"); len(got) != 1 || got[0].Domain != "a" {
		t.Errorf("after failed writes: %v", got)
	}
}

// Rows that stop in the middle leave the table as it was, and readers never see a half.
func TestWritesAreAtomic(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	yc := rootClient(t, c)
	create(t, yc, "//tmp/t", yt.NodeTable)
	must(t, writeTable(t, yc, "//tmp/t", pair{"old", ""}))
	for name, body := range map[string]string{"cut off": `{domain=new;};{domain=`, "no map": `{domain=new;};5;`, "too deep": strings.Repeat("[", 10_000)} {
		got := request(t, c, "PUT", "/api/v4/write_table", body, func(r *http.Request) { r.Header.Set("X-YT-Parameters", `{path="//tmp/t";input_format=yson}`) })
		if got.status != 400 {
			t.Errorf("%s: got %d %s, want 400", name, got.status, got.body)
		}
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			a, b := fmt.Sprint(i, "a"), fmt.Sprint(i, "b")
			if err := writeTable(t, yc, "//tmp/t", pair{a, a}, pair{b, b}); err != nil {
				t.Error(err)
			}
			if got := readPairs(t, yc, "//tmp/t"); len(got) != 2 || got[0].Domain[0] != got[1].Domain[0] {
				t.Errorf("a reader saw %v", got)
			}
		})
	}
	wg.Wait()
}

func TestRowFormats(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	yc := rootClient(t, c)
	create(t, yc, "//tmp/t", yt.NodeTable)
	squeeze := func(w func(io.Writer) io.WriteCloser, s string) string {
		var b bytes.Buffer
		z := w(&b)
		_, _ = io.WriteString(z, s)
		_ = z.Close()
		return b.String()
	}
	rows := "{\"s\":\"\\u00ff\",\"i\":1,\"f\":1.5,\"n\":null,\"m\":{\"$value\":1,\"$attributes\":{\"a\":true}}}\n"
	for encoding, body := range map[string]string{
		"":     rows,
		"gzip": squeeze(func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }, rows),
		// What the Python client calls gzip.
		"gzip ": squeeze(func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) }, rows),
	} {
		got := request(t, c, "PUT", "/api/v4/write_table", body, func(r *http.Request) {
			r.Header.Set("X-YT-Header-Format", "json")
			r.Header.Set("X-YT-Parameters", `{"path":"//tmp/t","input_format":"json"}`)
			if encoding != "" {
				r.Header.Set("Content-Encoding", strings.TrimSpace(encoding))
			}
		})
		if got.status != 200 || got.body != "" {
			t.Fatalf("%q: got %d %s", encoding, got.status, got.body)
		}
	}
	for format, want := range map[string]string{
		"json":                        `{"f":1.5,"i":1,"m":{"$attributes":{"a":true},"$value":1},"n":null,"s":"ÿ"}` + "\n",
		"<encode_utf8=%false>json":    `{"f":1.5,"i":1,"m":{"$attributes":{"a":true},"$value":1},"n":null,"s":"\ufffd"}` + "\n",
		"<format=text>yson":           "{f=1.500000;i=1;m=<a=%true;>1;n=#;s=\"\\xFF\";};\n",
		"<format=binary>yson":         "{\x01\x02f=\x03\x00\x00\x00\x00\x00\x00\xf8\x3f;\x01\x02i=\x02\x02;\x01\x02m=<\x01\x02a=\x05;>\x02\x02;\x01\x02n=#;\x01\x02s=\x01\x02\xff;};",
		"<encode_utf8=%true;x=1>json": `{"f":1.5,"i":1,"m":{"$attributes":{"a":true},"$value":1},"n":null,"s":"ÿ"}` + "\n",
	} {
		got := request(t, c, "GET", "/api/v4/read_table?path=//tmp/t", "", func(r *http.Request) { r.Header.Set("X-YT-Output-Format", format) })
		if got.status != 200 || got.body != want {
			t.Errorf("%s: got %d %q, want %q", format, got.status, got.body, want)
		}
	}
	got := request(t, c, "PUT", "/api/v4/write_table?path=//tmp/t", "x", func(r *http.Request) { r.Header.Set("Content-Encoding", "z-zstd_3") })
	if got.status != 415 || !strings.Contains(got.body, "ClientCodecNone") {
		t.Errorf("an unknown encoding: got %d %s", got.status, got.body)
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	ctx, yc := t.Context(), rootClient(t, c)
	create(t, yc, "//tmp/f", yt.NodeFile)
	write := func(path, text string) {
		t.Helper()
		w, err := yc.WriteFile(ctx, ypath.NewRich(path), nil)
		must(t, err)
		_, err = io.WriteString(w, text)
		must(t, err)
		must(t, w.Close())
	}
	read := func(o *yt.ReadFileOptions) string {
		t.Helper()
		r, err := yc.ReadFile(ctx, ypath.Path("//tmp/f"), o)
		must(t, err)
		defer r.Close()
		b, err := io.ReadAll(r)
		must(t, err)
		return string(b)
	}
	write("//tmp/f", "hello")
	write("<append=%true>//tmp/f", " world")
	if got := read(nil); got != "hello world" {
		t.Errorf("got %q", got)
	}
	offset, length := int64(6), int64(3)
	if got := read(&yt.ReadFileOptions{Offset: &offset, Length: &length}); got != "wor" {
		t.Errorf("got %q", got)
	}
	write("//tmp/f", "")
	if got := get(t, yc, "//tmp/f/@uncompressed_data_size"); got != "0" {
		t.Errorf("size after truncation: %s", got)
	}
}
