package ytclient

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"go.ytsaurus.tech/yt/go/yson"
)

// One author nests an annotation deeper than the SDK reads: that operation is odd, and the others are listed.
func TestDeepAnnotationHarmsNobodyElse(t *testing.T) {
	t.Parallel()
	for _, depth := range []int{200, 300, 100_000} {
		deep := strings.Repeat("[", depth) + strings.Repeat("]", depth)
		body := listing(false, opItem("1-2-3e803e8-4", t0),
			`{id="5-2-3e803e8-4";start_time="`+t0+`";state=running;authenticated_user=eve;runtime_parameters={annotations={a=`+deep+`}}}`,
			opItem("9-2-3e803e8-4", t0))
		got, err := newClient(t, answer(200, body)).ListOperations(t.Context())
		if err != nil {
			t.Fatalf("depth %d: %v", depth, err)
		}
		wantOdd := depth > 250
		if wantOdd && (len(got.Operations) != 2 || len(got.Odd) != 1 || got.Odd[0].OperationID != "5-2-3e803e8-4") ||
			!wantOdd && (len(got.Operations) != 3 || len(got.Odd) != 0) {
			t.Errorf("depth %d: %d operations and odd ones %v", depth, len(got.Operations), got.Odd)
		}
	}
}

// Cutting agrees with the SDK on everything that the SDK reads, in both formats.
func TestSplitAgreesWithTheSDK(t *testing.T) {
	t.Parallel()
	values := []any{
		map[string]any{}, map[string]any{"a": int64(1), "b": map[string]any{"c": []any{"x;y=z}]>", 1.5, true, nil, uint64(7)}}},
		map[string]any{"": "", "quote\"d\\": "\x00\xff\n", "%true": "%true", "k": &yson.ValueWithAttrs{Attrs: map[string]any{"x": "}"}, Value: int64(-5)}},
		map[string]any{"big": strings.Repeat("\"", 1000), "n": int64(-1 << 63), "f": -1e300},
	}
	for _, v := range values {
		for _, format := range []yson.Format{yson.FormatText, yson.FormatPretty, yson.FormatBinary} {
			raw, err := yson.MarshalFormat(v, format)
			if err != nil {
				t.Fatal(err)
			}
			got, err := splitMap(raw)
			if err != nil {
				t.Errorf("%q: %v", raw, err)
				continue
			}
			var want map[string]any
			if err := yson.Unmarshal(raw, &want); err != nil {
				t.Fatal(err)
			}
			if len(got) != len(want) {
				t.Errorf("%q: %d keys, want %d", raw, len(got), len(want))
			}
			for key, part := range got {
				var value any
				if err := yson.Unmarshal(part, &value); err != nil || !reflect.DeepEqual(value, want[key]) {
					t.Errorf("%q: %q is %v (%v), want %v", raw, key, value, err, want[key])
				}
			}
		}
	}
}

// Wherever an answer is cut, what is whole before that is found, and nothing else.
func TestSplitStart(t *testing.T) {
	t.Parallel()
	items := []string{`{a=1}`, `<x=y>[b;"]"]`, `"text;"`, `word`, `{c={d=[]}}`}
	for _, before := range []string{`{`, `{incomplete=%true;`, `{other=[{a=1};[]];`} {
		whole := before + `operations=[` + strings.Join(items, ";") + `];last=1}`
		for n := range len(whole) + 1 {
			got := splitStart([]byte(whole[:n]), "operations")
			want, end := 0, len(before)+len(`operations=[`)
			for i, item := range items {
				if end += len(item) + 1; n >= end { // with the ; or ] after it
					want = i + 1
				}
			}
			if len(got) != want {
				t.Fatalf("%q has %d whole items: %q, want %d", whole[:n], len(got), got, want)
			}
			for i, raw := range got {
				if string(raw) != items[i] {
					t.Errorf("%q: item %d is %q", whole[:n], i, raw)
				}
			}
		}
	}
	for _, text := range []string{"", "#", "[1;2]", "{a=1}", "{operations={a=1}}", "{operations=#}", "{operations", "{operations=[}", "{[]=1;operations=[1;2"} {
		if got := splitStart([]byte(text), "operations"); len(got) != 0 {
			t.Errorf("%q has items %q", text, got)
		}
	}
}

func TestSplitRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "#", "[]", "{", "{a", "{a=", "{a=1", "{a=1 b=2}", "{a=1}x", "{a=[}]}", "{a=\"", "{a=\x01", "{a=\x01\x7f}", "{a=\x03}", "{[]=1}", "{a=1;;}", "<a=1"} {
		if m, err := splitMap([]byte(text)); err == nil {
			t.Errorf("%q is read as %v", text, m)
		}
	}
	if _, err := splitMap([]byte("{a=[")); !errors.Is(err, errCut) {
		t.Errorf("a cut map: %v", err)
	}
	if list, err := splitList([]byte("<x=1>[ 1 ; a;<y=2>{};]")); err != nil || len(list) != 3 || string(list[2]) != "<y=2>{}" {
		t.Errorf("list = %q, %v", list, err)
	}
}

// Whatever the bytes are, nothing panics, and the parts are parts.
func FuzzSplit(f *testing.F) {
	f.Add([]byte(`{a=1;"b"=<c=#>[{};"x"];}`))
	f.Add([]byte("{\x01\x02a=\x02\x04;b=\x03\x00\x00\x00\x00\x00\x00\x00\x00;c=\x06\x05;d=\x05}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, part := range splitStart(data, "a") {
			if !bytes.Contains(data, part) || len(part) == 0 {
				t.Errorf("%q is no part of %q", part, data)
			}
		}
		m, err := splitMap(data)
		if err == nil {
			for _, part := range m {
				if !bytes.Contains(data, part) || len(part) == 0 {
					t.Errorf("%q is no part of %q", part, data)
				}
			}
		}
		// What the SDK takes for a map, and nothing else, is cut.
		var want map[string]yson.RawValue
		if sdk := recovered(func() error { return yson.Unmarshal(data, &want) }); sdk == nil && want != nil && err != nil {
			t.Errorf("%q: the SDK reads %q; cutting: %v", data, want, err)
		}
	})
}
