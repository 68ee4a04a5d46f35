package ytlocal

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yterrors"
)

// format is how structured and tabular data travel. The zero value means that nobody named one.
type format struct {
	name  string // "yson" or "json"; "" until chosen
	attrs map[string]any
}

// maxNesting bounds the depth of what we decode, so that a value cannot exhaust the stack.
const maxNesting = 256

// parseFormat reads a format from a parameter: a name, with or without attributes around it.
func parseFormat(v any) (format, error) {
	var f format
	if va, ok := v.(*yson.ValueWithAttrs); ok {
		f.attrs, v = va.Attrs, va.Value
	}
	name, ok := v.(string)
	if !ok {
		return f, fail(yterrors.CodeGeneric, "a format must be a string, not %T", v)
	}
	switch name {
	case "yson", "json":
		f.name = name
		return f, nil
	}
	return f, fail(yterrors.CodeGeneric, "format %.64q is not supported here; use yson or json", name)
}

// parseFormatHeader reads a format header: YSON text, or base64 of it in numbered parts.
func parseFormatHeader(header http.Header, name string) (format, error) {
	text, err := joinedHeader(header, name)
	if err != nil || text == "" {
		return format{}, err
	}
	var v any
	if err := decodeYSON([]byte(text), &v); err != nil {
		return format{}, fail(yterrors.CodeGeneric, "bad %s header: %s", name, cause(err))
	}
	return parseFormat(v)
}

// acceptFormat reads the format that an Accept or Content-Type header asks for, if we have it.
func acceptFormat(mime string) format {
	for _, kind := range strings.Split(mime, ",") {
		kind, _, _ = strings.Cut(kind, ";")
		switch strings.TrimSpace(kind) {
		case "application/json":
			return format{name: "json"}
		case "application/x-yt-yson-binary":
			return format{name: "yson", attrs: map[string]any{"format": "binary"}}
		case "application/x-yt-yson-text":
			return format{name: "yson", attrs: map[string]any{"format": "text"}}
		case "application/x-yt-yson-pretty":
			return format{name: "yson", attrs: map[string]any{"format": "pretty"}}
		}
	}
	return format{}
}

// contentType of an answer in the format.
func (f format) contentType() string {
	if f.name == "json" {
		return "application/json"
	}
	switch f.ysonKind() {
	case yson.FormatBinary:
		return "application/x-yt-yson-binary"
	case yson.FormatPretty:
		return "application/x-yt-yson-pretty"
	}
	return "application/x-yt-yson-text"
}

// ysonKind is the flavour of YSON to write: text unless another one was asked for by name.
func (f format) ysonKind() yson.Format {
	switch f.attrs["format"] {
	case "binary":
		return yson.FormatBinary
	case "pretty":
		return yson.FormatPretty
	}
	return yson.FormatText
}

// jsonOptions as the format's attributes give them.
func (f format) jsonOptions() jsonOptions {
	o := jsonOptions{encodeUTF8: true}
	if b, ok := f.attrs["encode_utf8"].(bool); ok {
		o.encodeUTF8 = b
	}
	return o
}

// encode writes one structured value.
func (f format) encode(v any) ([]byte, error) {
	if f.name == "json" {
		return encodeJSON(toJSON(v, f.jsonOptions()))
	}
	return yson.MarshalFormat(v, f.ysonKind())
}

// decode reads one structured value.
func (f format) decode(data []byte) (any, error) {
	if f.name == "json" {
		return decodeJSON(data, f.jsonOptions())
	}
	var v any
	if err := decodeYSON(data, &v); err != nil {
		return nil, fail(yterrors.CodeGeneric, "bad YSON: %s", cause(err))
	}
	return v, nil
}

// decodeYSON is yson.Unmarshal with a bound on nesting.
func decodeYSON(data []byte, v *any) error {
	r := yson.NewReaderFromBytes(data)
	for depth := 0; ; {
		event, err := r.Next(false)
		if err != nil {
			return err
		}
		switch event {
		case yson.EventBeginList, yson.EventBeginMap, yson.EventBeginAttrs:
			depth++
		case yson.EventEndList, yson.EventEndMap, yson.EventEndAttrs:
			depth--
		}
		if depth > maxNesting {
			return fmt.Errorf("nested deeper than %d", maxNesting)
		}
		if event == yson.EventEOF {
			return yson.Unmarshal(data, v)
		}
	}
}

// jsonOptions are the attributes of the json format that we know.
type jsonOptions struct {
	// encodeUTF8: each byte of a string is written as the code point of its number, which is how YT carries binary
	// strings in JSON. Without it strings are written as they are.
	encodeUTF8 bool
}

// encodeJSON writes without the escapes that only HTML needs.
func encodeJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fail(yterrors.CodeGeneric, "cannot be written as JSON: %v", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// toJSON turns a YSON value into what encoding/json writes as the cluster would.
func toJSON(v any, o jsonOptions) any {
	switch v := v.(type) {
	case *yson.ValueWithAttrs:
		return map[string]any{"$value": toJSON(v.Value, o), "$attributes": toJSON(v.Attrs, o)}
	case map[string]any:
		m := make(map[string]any, len(v))
		for k, item := range v {
			if strings.HasPrefix(k, "$") {
				k = "$" + k
			}
			m[o.out(k)] = toJSON(item, o)
		}
		return m
	case []any:
		l := make([]any, len(v))
		for i, item := range v {
			l[i] = toJSON(item, o)
		}
		return l
	case string:
		return o.out(v)
	}
	return v
}

// out maps a string on its way out.
func (o jsonOptions) out(s string) string {
	if !o.encodeUTF8 {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		b.WriteRune(rune(s[i]))
	}
	return b.String()
}

// in maps a string on its way in.
func (o jsonOptions) in(s string) (string, error) {
	if !o.encodeUTF8 {
		return s, nil
	}
	b := make([]byte, 0, len(s))
	for _, r := range s {
		if r > 255 {
			return "", fail(yterrors.CodeGeneric, "JSON string %.64q has a code point above 255; use <encode_utf8=%%false>json", s)
		}
		b = append(b, byte(r))
	}
	return string(b), nil
}

// decodeJSON reads one JSON value into YSON terms.
func decodeJSON(data []byte, o jsonOptions) (any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fail(yterrors.CodeGeneric, "bad JSON: %v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fail(yterrors.CodeGeneric, "bad JSON: something follows the value")
	}
	return fromJSON(v, o)
}

// fromJSON is the inverse of toJSON.
func fromJSON(v any, o jsonOptions) (any, error) {
	switch v := v.(type) {
	case map[string]any:
		m := make(map[string]any, len(v))
		for k, item := range v {
			item, err := fromJSON(item, o)
			if err != nil {
				return nil, err
			}
			if k, err = o.in(k); err != nil {
				return nil, err
			}
			m[k] = item
		}
		if value, ok := m["$value"]; ok {
			attrs, _ := m["$attributes"].(map[string]any)
			if len(attrs) == 0 {
				return value, nil
			}
			return &yson.ValueWithAttrs{Attrs: attrs, Value: value}, nil
		}
		for k, item := range m {
			if strings.HasPrefix(k, "$$") {
				delete(m, k)
				m[k[1:]] = item
			}
		}
		return m, nil
	case []any:
		l := make([]any, len(v))
		for i, item := range v {
			item, err := fromJSON(item, o)
			if err != nil {
				return nil, err
			}
			l[i] = item
		}
		return l, nil
	case string:
		return o.in(v)
	case json.Number:
		return jsonNumber(v)
	}
	return v, nil
}

// jsonNumber keeps integers integers.
func jsonNumber(n json.Number) (any, error) {
	var v any
	if err := yson.Unmarshal([]byte(n.String()), &v); err == nil {
		return v, nil
	}
	if err := yson.Unmarshal([]byte(n.String()+"u"), &v); err == nil {
		return v, nil
	}
	f, err := n.Float64()
	if err != nil {
		return nil, fail(yterrors.CodeGeneric, "bad number %.64q", n.String())
	}
	return f, nil
}

// joinedHeader reads a header that may come whole or, too long for one line, as base64 in numbered parts ("Name0" or
// "Name-0", …).
func joinedHeader(header http.Header, name string) (string, error) {
	if v := header.Get(name); v != "" {
		return v, nil
	}
	for _, dash := range []string{"", "-"} {
		var parts strings.Builder
		for i := 0; ; i++ {
			v := header.Get(name + dash + strconv.Itoa(i))
			if v == "" {
				break
			}
			parts.WriteString(v)
		}
		if parts.Len() == 0 {
			continue
		}
		b, err := base64.StdEncoding.DecodeString(parts.String())
		if err != nil {
			return "", fail(yterrors.CodeGeneric, "the parts of header %s are not base64: %v", name, err)
		}
		return string(b), nil
	}
	return "", nil
}
