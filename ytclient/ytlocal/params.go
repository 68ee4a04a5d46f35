package ytlocal

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yterrors"
)

// maxStructured bounds the bodies that we hold decoded: parameters and structured inputs.
const maxStructured = 64 << 20

// maxData bounds what one call may write to a table or a file; all of it lives in memory.
const maxData = 1 << 30

// params are the parameters of a command. Parameters that a command does not know are ignored, as the cluster does.
type params map[string]any

// parseParams gathers the parameters of a request. Later places win: query, header, body of a POST.
func parseParams(r *http.Request, cmd *command) (params, error) {
	p := params{}
	if err := p.addQuery(r.URL.RawQuery); err != nil {
		return nil, err
	}
	format, err := parseFormatHeader(r.Header, "X-YT-Header-Format")
	if err != nil {
		return nil, err
	}
	text, err := joinedHeader(r.Header, "X-YT-Parameters")
	if err != nil {
		return nil, err
	}
	if text != "" {
		if err := p.addEncoded(format, []byte(text), "header X-YT-Parameters"); err != nil {
			return nil, err
		}
	}
	if r.Method != http.MethodPost || cmd.input != noData {
		return p, nil
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return nil, failStatus(http.StatusUnsupportedMediaType, yterrors.CodeGeneric, "Content-Encoding %.64q is not supported for parameters", enc)
	}
	body, err := readAll(r.Body, maxStructured)
	if err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return p, nil
	}
	if in, err := parseFormatHeader(r.Header, "X-YT-Input-Format"); err != nil {
		return nil, err
	} else if in.name != "" {
		format = in
	} else if in := acceptFormat(r.Header.Get("Content-Type")); in.name != "" {
		format = in
	} else if format.name == "" {
		format.name = "json"
	}
	return p, p.addEncoded(format, body, "body")
}

// addEncoded merges a map of parameters.
func (p params) addEncoded(f format, data []byte, where string) error {
	v, err := f.decode(data)
	if err != nil {
		return fail(yterrors.CodeGeneric, "parameters in the %s: %s", where, cause(err))
	}
	m, ok := plain(v).(map[string]any)
	if !ok {
		return fail(yterrors.CodeGeneric, "parameters in the %s must be a map, not %T", where, plain(v))
	}
	for name, value := range m {
		p[name] = value
	}
	return nil
}

// addQuery reads "a=1&b[c]=d": integers are guessed, brackets nest.
func (p params) addQuery(raw string) error {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return fail(yterrors.CodeGeneric, "bad query: %v", err)
	}
	for _, name := range sortedKeys(query) {
		text := query[name][len(query[name])-1]
		var value any = text
		if i, err := strconv.ParseInt(text, 10, 64); err == nil {
			value = i
		}
		key, rest, nested := strings.Cut(name, "[")
		if !nested {
			p[key] = value
			continue
		}
		steps := strings.Split(strings.TrimSuffix(rest, "]"), "][")
		if len(steps) > maxNesting {
			return fail(yterrors.CodeGeneric, "query parameter %.64q is nested deeper than %d", name, maxNesting)
		}
		base, ok := p[key].(map[string]any)
		if !ok {
			base = map[string]any{}
		}
		set, err := valueSet(base, steps, value, true)
		if err != nil {
			return fail(yterrors.CodeGeneric, "query parameter %.64q: %s", name, cause(err))
		}
		p[key] = set
	}
	for name, value := range p {
		p[name] = withQueryAttributes(value)
	}
	return nil
}

// withQueryAttributes understands $value and $attributes, which is how a query spells attributes.
func withQueryAttributes(v any) any {
	m, ok := v.(map[string]any)
	if !ok {
		return v
	}
	value, ok := m["$value"]
	if !ok {
		return v
	}
	attrs, _ := m["$attributes"].(map[string]any)
	return &yson.ValueWithAttrs{Attrs: attrs, Value: value}
}

// readAll reads a body that must not be longer than limit.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, fail(yterrors.CodeGeneric, "reading the body: %v", err)
	}
	if int64(len(b)) > limit {
		return nil, failStatus(http.StatusRequestEntityTooLarge, yterrors.CodeGeneric, "the body is longer than %d bytes", limit)
	}
	return b, nil
}

// inflate undoes a request's Content-Encoding.
func inflate(r *http.Request) (io.Reader, error) {
	switch enc := r.Header.Get("Content-Encoding"); enc {
	case "", "identity":
		return r.Body, nil
	case "gzip":
		body := bufio.NewReader(r.Body)
		magic, err := body.Peek(2)
		if errors.Is(err, io.EOF) && len(magic) == 0 {
			return http.NoBody, nil
		}
		var z io.Reader
		if string(magic) == "\x1f\x8b" {
			z, err = gzip.NewReader(body)
		} else {
			// The Python client says gzip and sends zlib; the cluster takes both.
			z, err = zlib.NewReader(body)
		}
		if err != nil {
			return nil, fail(yterrors.CodeGeneric, "the body is neither gzip nor zlib: %v", err)
		}
		return z, nil
	default:
		return nil, failStatus(http.StatusUnsupportedMediaType, yterrors.CodeGeneric,
			"Content-Encoding %.64q is not supported here; use identity or gzip (Go SDK: CompressionCodec: yt.ClientCodecNone)", enc)
	}
}

// wrong is the answer to a parameter of the wrong type.
func (p params) wrong(name, want string) error {
	return fail(yterrors.CodeGeneric, "parameter %s must be %s, not %T", name, want, plain(p[name]))
}

// has reports whether the parameter is there and no entity.
func (p params) has(name string) bool { return plain(p[name]) != nil }

// string reads an optional string.
func (p params) string(name string) (value string, ok bool, err error) {
	if !p.has(name) {
		return "", false, nil
	}
	switch v := plain(p[name]).(type) {
	case string:
		return v, true, nil
	case int64: // a query guesses integers
		return strconv.FormatInt(v, 10), true, nil
	}
	return "", false, p.wrong(name, "a string")
}

// need reads a string that must be there.
func (p params) need(name string) (string, error) {
	value, ok, err := p.string(name)
	if err == nil && (!ok || value == "") {
		err = fail(yterrors.CodeGeneric, "parameter %s is missing", name)
	}
	return value, err
}

// int reads an optional integer.
func (p params) int(name string) (value int64, ok bool, err error) {
	if !p.has(name) {
		return 0, false, nil
	}
	if value, ok = toInt(p[name]); !ok {
		return 0, false, p.wrong(name, "an integer")
	}
	return value, true, nil
}

// bool reads an optional boolean.
func (p params) bool(name string) (value, ok bool, err error) {
	if !p.has(name) {
		return false, false, nil
	}
	if value, ok = toBool(p[name]); !ok {
		return false, false, p.wrong(name, "a boolean")
	}
	return value, true, nil
}

// strings reads an optional list of strings.
func (p params) strings(name string) (value []string, ok bool, err error) {
	if !p.has(name) {
		return nil, false, nil
	}
	if value, ok = toStrings(p[name]); !ok {
		return nil, false, p.wrong(name, "a list of strings")
	}
	return value, true, nil
}

// path reads a path that must be there.
func (p params) path(name string) (path, error) {
	if !p.has(name) {
		return path{}, fail(yterrors.CodeGeneric, "parameter %s is missing", name)
	}
	return parsePath(p[name])
}

// attributes reads the map of attributes that create and start_transaction take.
func (p params) attributes() (map[string]any, error) {
	if !p.has("attributes") {
		return map[string]any{}, nil
	}
	m, ok := plain(p["attributes"]).(map[string]any)
	if !ok {
		return nil, p.wrong("attributes", "a map")
	}
	return m, nil
}

// attributeNames reads the list of attributes that get and list take: a plain list, or {keys=[…]}.
func (p params) attributeNames() ([]string, error) {
	if m, ok := plain(p["attributes"]).(map[string]any); ok {
		if len(m) == 0 {
			return nil, nil
		}
		keys, ok := toStrings(m["keys"])
		if !ok {
			return nil, p.wrong("attributes", "a list of strings or {keys=[…]}")
		}
		return keys, nil
	}
	names, _, err := p.strings("attributes")
	return names, err
}
