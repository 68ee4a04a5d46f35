package ytlocal

import (
	"slices"
	"strings"

	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yterrors"
)

// tableSchema is what we enforce of a table's schema. Sort order and uniqueness are remembered, not checked.
type tableSchema struct {
	strict   bool
	columns  []column
	sortedBy []string
}

type column struct {
	name     string
	typ      string // int64, uint64, double, boolean, string, utf8, any
	required bool
}

// weakSchema is the schema of a table that was made without one.
func weakSchema() any {
	return &yson.ValueWithAttrs{Attrs: map[string]any{"strict": false, "unique_keys": false}, Value: []any{}}
}

// columnTypes maps the names of simple types, old and new, to those that we check.
var columnTypes = map[string]string{
	"int8": "int64", "int16": "int64", "int32": "int64", "int64": "int64", "interval": "int64", "interval64": "int64",
	"uint8": "uint64", "uint16": "uint64", "uint32": "uint64", "uint64": "uint64", "date": "uint64", "datetime": "uint64",
	"timestamp": "uint64", "float": "double", "double": "double", "boolean": "boolean", "bool": "boolean",
	"string": "string", "utf8": "utf8", "json": "utf8", "uuid": "string", "any": "any", "yson": "any", "null": "any", "void": "any",
}

// parseSchema reads a schema attribute; nil is the weak schema.
func parseSchema(v any) (tableSchema, error) {
	s := tableSchema{strict: true}
	if v == nil {
		return tableSchema{}, nil
	}
	if va, ok := v.(*yson.ValueWithAttrs); ok {
		if strict, ok := va.Attrs["strict"].(bool); ok {
			s.strict = strict
		}
		v = va.Value
	}
	list, ok := v.([]any)
	if !ok {
		return s, fail(yterrors.CodeGeneric, "a schema must be a list of columns, not %T", v)
	}
	for _, item := range list {
		m, ok := plain(item).(map[string]any)
		if !ok {
			return s, fail(yterrors.CodeGeneric, "a column of a schema must be a map, not %T", plain(item))
		}
		c, err := parseColumn(m)
		if err != nil {
			return s, err
		}
		if slices.ContainsFunc(s.columns, func(other column) bool { return other.name == c.name }) {
			return s, fail(yterrors.CodeGeneric, "column %.64q is in the schema twice", c.name)
		}
		s.columns = append(s.columns, c)
		if order, ok := m["sort_order"].(string); ok && order != "" {
			s.sortedBy = append(s.sortedBy, c.name)
		}
	}
	return s, nil
}

// parseColumn understands both generations of type names. Composite types are not checked.
func parseColumn(m map[string]any) (column, error) {
	c := column{typ: "any"}
	var ok bool
	if c.name, ok = m["name"].(string); !ok || c.name == "" {
		return c, fail(yterrors.CodeGeneric, "a column of a schema has no name")
	}
	c.required, _ = m["required"].(bool)
	typ, ok := m["type"].(string)
	if v3, has := m["type_v3"]; has && !ok {
		c.required = true
		if opt, isMap := plain(v3).(map[string]any); isMap {
			c.required = opt["type_name"] != "optional"
			v3 = plain(opt["item"])
		}
		if typ, ok = v3.(string); !ok {
			return c, nil
		}
	}
	if typ == "" {
		return c, fail(yterrors.CodeGeneric, "column %.64q has no type", c.name)
	}
	if c.typ, ok = columnTypes[strings.TrimSpace(typ)]; !ok {
		return c, fail(yterrors.CodeGeneric, "column %.64q has the unknown type %.64q", c.name, typ)
	}
	return c, nil
}

// names of the columns in their order.
func (s tableSchema) names() []string {
	out := make([]string, len(s.columns))
	for i, c := range s.columns {
		out[i] = c.name
	}
	return out
}

// check makes a row fit: numbers take the column's type where nothing is lost.
func (s tableSchema) check(r row) error {
	known := 0
	for _, c := range s.columns {
		v, ok := r[c.name]
		if ok {
			known++
		}
		if v == nil {
			if c.required {
				return fail(yterrors.CodeSchemaViolation, "Required column %.64q cannot have null value", c.name)
			}
			continue
		}
		fit, ok := c.fit(v)
		if !ok {
			return fail(yterrors.CodeSchemaViolation, "Invalid type of column %.64q: expected %s, got %T", c.name, c.typ, v)
		}
		r[c.name] = fit
	}
	if s.strict && known < len(r) {
		for _, name := range sortedKeys(r) {
			if !slices.Contains(s.names(), name) {
				return fail(yterrors.CodeSchemaViolation, "Unknown column %.64q: the schema is strict", name)
			}
		}
	}
	return nil
}

func (c column) fit(v any) (any, bool) {
	switch c.typ {
	case "any":
		return v, true
	case "string", "utf8":
		_, ok := v.(string)
		return v, ok
	case "boolean":
		_, ok := v.(bool)
		return v, ok
	case "double":
		switch n := v.(type) {
		case float64:
			return n, true
		case int64:
			return float64(n), true
		}
		return nil, false
	case "int64":
		switch n := v.(type) {
		case int64:
			return n, true
		case uint64:
			return int64(n), n < 1<<63
		}
		return nil, false
	default: // uint64
		switch n := v.(type) {
		case uint64:
			return n, true
		case int64:
			return uint64(n), n >= 0
		}
		return nil, false
	}
}
