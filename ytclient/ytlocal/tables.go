package ytlocal

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"slices"

	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yterrors"
)

// decodeRows reads a stream of rows: a YSON list fragment, or JSON maps one after another.
func decodeRows(r io.Reader, f format) ([]row, error) {
	data, err := readAll(r, maxData)
	if err != nil {
		return nil, err
	}
	var rows []row
	add := func(v any) error {
		if v == nil {
			return nil // control records such as <table_index=0>#
		}
		m, ok := plain(v).(map[string]any)
		if !ok {
			return fail(yterrors.CodeGeneric, "row %d must be a map, not %T", len(rows), plain(v))
		}
		rows = append(rows, m)
		return nil
	}
	if f.name == "json" {
		return rows, eachJSON(data, f.jsonOptions(), add)
	}
	reader := yson.NewReaderKindFromBytes(data, yson.StreamListFragment)
	for {
		ok, err := reader.NextListItem()
		if err != nil {
			return nil, fail(yterrors.CodeGeneric, "row %d: bad YSON: %s", len(rows), cause(err))
		}
		if !ok {
			return rows, nil
		}
		raw, err := reader.NextRawValue()
		if err != nil {
			return nil, fail(yterrors.CodeGeneric, "row %d: bad YSON: %s", len(rows), cause(err))
		}
		var v any
		if err := decodeYSON(raw, &v); err != nil {
			return nil, fail(yterrors.CodeGeneric, "row %d: bad YSON: %s", len(rows), cause(err))
		}
		if err := add(plain(v)); err != nil {
			return nil, err
		}
	}
}

// eachJSON reads JSON values that follow one another.
func eachJSON(data []byte, o jsonOptions, add func(any) error) error {
	d := json.NewDecoder(bytes.NewReader(data))
	for n := 0; ; n++ {
		var raw json.RawMessage
		if err := d.Decode(&raw); err == io.EOF {
			return nil
		} else if err != nil {
			return fail(yterrors.CodeGeneric, "row %d: bad JSON: %v", n, err)
		}
		v, err := decodeJSON(raw, o)
		if err != nil {
			return fail(yterrors.CodeGeneric, "row %d: %s", n, cause(err))
		}
		if err := add(v); err != nil {
			return err
		}
	}
}

// encodeRows writes rows, the columns of the schema first and in its order.
func encodeRows(rows []row, order []string, f format) ([]byte, error) {
	var b bytes.Buffer
	w := bufio.NewWriter(&b)
	if err := writeRows(w, rows, order, f); err != nil {
		return nil, err
	}
	return b.Bytes(), w.Flush()
}

func writeRows(w io.Writer, rows []row, order []string, f format) error {
	if f.name == "json" {
		for _, r := range rows {
			if err := writeJSONRow(w, r, order, f.jsonOptions()); err != nil {
				return err
			}
		}
		return nil
	}
	kind := f.ysonKind()
	if kind == yson.FormatPretty {
		kind = yson.FormatText // a row a line is what people want to see
	}
	end := ";\n"
	if kind == yson.FormatBinary {
		end = ";"
	}
	for _, r := range rows {
		line := yson.NewWriterConfig(w, yson.WriterConfig{Format: kind, Kind: yson.StreamNode})
		line.BeginMap()
		for _, name := range columnOrder(r, order) {
			line.MapKeyString(name)
			line.Any(r[name])
		}
		line.EndMap()
		if err := line.Finish(); err != nil {
			return err
		}
		if _, err := io.WriteString(w, end); err != nil {
			return err
		}
	}
	return nil
}

// writeJSONRow keeps the order of columns, which encoding/json would not.
func writeJSONRow(w io.Writer, r row, order []string, o jsonOptions) error {
	sep := "{"
	for _, name := range columnOrder(r, order) {
		key, err := encodeJSON(o.out(name))
		if err != nil {
			return err
		}
		value, err := encodeJSON(toJSON(r[name], o))
		if err != nil {
			return err
		}
		for _, part := range []string{sep, string(key), ":", string(value)} {
			if _, err := io.WriteString(w, part); err != nil {
				return err
			}
		}
		sep = ","
	}
	if sep == "{" {
		sep = "{}"
	} else {
		sep = "}"
	}
	_, err := io.WriteString(w, sep+"\n")
	return err
}

// columnOrder is the columns of a row: those of order first, the others by name.
func columnOrder(r row, order []string) []string {
	out := make([]string, 0, len(r))
	for _, name := range order {
		if _, ok := r[name]; ok {
			out = append(out, name)
		}
	}
	if len(out) == len(r) {
		return out
	}
	for _, name := range sortedKeys(r) {
		if !slices.Contains(order, name) {
			out = append(out, name)
		}
	}
	return out
}

// runWriteTable replaces a table's rows, or with <append=%true> puts rows behind them: all of them or none.
func runWriteTable(k *call) (any, error) {
	p, err := k.params.path("path")
	if err != nil {
		return nil, err
	}
	rows, err := decodeRows(k.body, k.in)
	if err != nil {
		return nil, err
	}
	if err := k.lock(); err != nil {
		return nil, err
	}
	defer k.unlock()
	n, err := k.writable(p, "table")
	if err != nil {
		return nil, err
	}
	attr, _ := n.attrIn(k.tx, "schema")
	schema, err := parseSchema(attr)
	if err != nil {
		return nil, err
	}
	for i, r := range rows {
		if err := schema.check(r); err != nil {
			_, e := asYT(err)
			return nil, with(e, "row_index", int64(i))
		}
	}
	return nil, k.store(n, p.flag("append"), rows)
}

// writable finds, or with <create=%true> makes, the table or file to write to. The caller holds Cluster.mu.
func (k *call) writable(p path, typ string) (*node, error) {
	at, err := k.c.walk(p, k.tx, 0)
	if err != nil {
		return nil, err
	}
	if p.isAttr {
		return nil, fail(yterrors.CodeGeneric, "path %.256q names an attribute, not a %s", p.text, typ)
	}
	n := at.node
	if len(at.rest) > 0 {
		if !p.flag("create") {
			return nil, missing(at)
		}
		parent, key, err := k.makeParents(at, false)
		if err != nil {
			return nil, err
		}
		if n, err = k.createNode(parent, key, typ, nil); err != nil {
			return nil, err
		}
	}
	if n.typ != typ {
		return nil, fail(yterrors.CodeGeneric, "Node %s is a %s, not a %s", n.path(), n.typ, typ)
	}
	return n, k.allowed(n, "write")
}

// store takes the lock that writing implies and writes. The caller holds Cluster.mu.
func (k *call) store(n *node, add bool, data any) error {
	if add {
		if err := k.c.change(n, k.tx, sharedLock()); err != nil {
			return err
		}
		k.c.addData(n, k.tx, data)
		return nil
	}
	if err := k.c.change(n, k.tx, exclusiveLock()); err != nil {
		return err
	}
	k.c.setData(n, k.tx, data)
	return nil
}

// stream is the answer of a command whose output is data: its length is not known and its format is its own.
type stream struct {
	contentType string
	// parameters go into X-YT-Response-Parameters.
	parameters map[string]any
	write      func(io.Writer) error
}

// runReadTable takes the rows as they are now; a slow reader holds nobody up and sees no later write.
func runReadTable(k *call) (any, error) {
	p, err := k.params.path("path")
	if err != nil {
		return nil, err
	}
	n, err := k.c.find(p, k.tx)
	if err != nil {
		return nil, err
	}
	if n.typ != "table" {
		return nil, fail(yterrors.CodeGeneric, "Node %s is a %s, not a table", n.path(), n.typ)
	}
	if err := k.allowed(n, "read"); err != nil {
		return nil, err
	}
	attr, _ := n.attrIn(k.tx, "schema")
	schema, err := parseSchema(attr)
	if err != nil {
		return nil, err
	}
	all, _ := n.dataIn(k.tx).([]row)
	rows, start, err := p.selectRows(all)
	if err != nil {
		return nil, err
	}
	columns, given, err := p.columns()
	if err != nil {
		return nil, err
	}
	order := schema.names()
	if given {
		rows, order = project(rows, columns), columns
	}
	out := k.out
	return stream{
		contentType: out.contentType(),
		parameters:  map[string]any{"start_row_index": start, "approximate_row_count": int64(len(rows))},
		write:       func(w io.Writer) error { return writeRows(w, rows, order, out) },
	}, nil
}

// columns that the path selects.
func (p path) columns() (names []string, given bool, err error) {
	if p.rich != nil && p.rich.Columns != nil {
		return p.rich.Columns, true, nil
	}
	raw, ok := p.attrs["columns"]
	if !ok || raw == nil {
		return nil, false, nil
	}
	if names, ok = toStrings(raw); !ok {
		return nil, false, fail(yterrors.CodeGeneric, "columns of a path must be a list of strings")
	}
	return names, true, nil
}

// project keeps some columns of every row.
func project(rows []row, columns []string) []row {
	out := make([]row, len(rows))
	for i, r := range rows {
		r = maps.Clone(r)
		maps.DeleteFunc(r, func(name string, _ any) bool { return !slices.Contains(columns, name) })
		out[i] = r
	}
	return out
}

// selectRows keeps the ranges that the path selects. Only row indices can select here.
func (p path) selectRows(all []row) (rows []row, start int64, err error) {
	ranges := []any{}
	if p.rich != nil {
		for _, r := range p.rich.Ranges {
			raw, err := yson.Marshal(r)
			if err != nil {
				return nil, 0, fail(yterrors.CodeGeneric, "bad range in path %.256q: %v", p.text, err)
			}
			var v any
			if err := yson.Unmarshal(raw, &v); err != nil {
				return nil, 0, fail(yterrors.CodeGeneric, "bad range in path %.256q: %v", p.text, err)
			}
			ranges = append(ranges, v)
		}
	}
	if given, ok := p.attrs["ranges"]; ok && given != nil {
		list, ok := plain(given).([]any)
		if !ok {
			return nil, 0, fail(yterrors.CodeGeneric, "ranges of a path must be a list")
		}
		ranges = append(ranges, list...)
	}
	if len(ranges) == 0 {
		return all, 0, nil
	}
	for i, r := range ranges {
		from, to, err := rowRange(r, int64(len(all)))
		if err != nil {
			return nil, 0, err
		}
		if i == 0 {
			start = from
		}
		rows = append(rows, all[from:to]...)
	}
	return rows, start, nil
}

// rowRange reads one range, cut to the rows that exist.
func rowRange(v any, count int64) (from, to int64, err error) {
	m, ok := plain(v).(map[string]any)
	if !ok {
		return 0, 0, fail(yterrors.CodeGeneric, "a range of a path must be a map, not %T", plain(v))
	}
	from, to = 0, count
	for name, limit := range m {
		lm, _ := plain(limit).(map[string]any)
		index, ok := toInt(lm["row_index"])
		if len(lm) == 0 {
			continue
		}
		if !ok || len(lm) > 1 {
			return 0, 0, fail(yterrors.CodeGeneric, "ranges by key are not supported here, only by row_index")
		}
		switch name {
		case "lower_limit":
			from = index
		case "upper_limit":
			to = index
		case "exact":
			from, to = index, index+1
		default:
			return 0, 0, fail(yterrors.CodeGeneric, "unknown part %.64q of a range", name)
		}
	}
	from = min(max(from, 0), count)
	return from, min(max(to, from), count), nil
}
