package scheduler

import (
	"maps"
	"math"

	"go.ytsaurus.tech/yt/go/yson"
)

// plain takes the attributes off a value: an author may put them anywhere, and they mean nothing to us.
func plain(v any) any {
	for {
		switch w := v.(type) {
		case *yson.ValueWithAttrs:
			if w == nil {
				return nil
			}
			v = w.Value
		case yson.ValueWithAttrs:
			v = w.Value
		default:
			return v
		}
	}
}

// attributes of a value; nil when it has none.
func attributes(v any) map[string]any {
	switch w := v.(type) {
	case *yson.ValueWithAttrs:
		if w != nil {
			return w.Attrs
		}
	case yson.ValueWithAttrs:
		return w.Attrs
	}
	return nil
}

// clone copies a decoded value so deep that nothing in the copy can be changed through the original.
func clone(v any) any {
	switch w := v.(type) {
	case map[string]any:
		return cloneMap(w)
	case []any:
		return cloneList(w)
	case []byte:
		return append([]byte(nil), w...)
	case *yson.ValueWithAttrs:
		if w == nil {
			return nil
		}
		return &yson.ValueWithAttrs{Attrs: cloneMap(w.Attrs), Value: clone(w.Value)}
	case yson.ValueWithAttrs:
		return &yson.ValueWithAttrs{Attrs: cloneMap(w.Attrs), Value: clone(w.Value)}
	default:
		return v
	}
}

func cloneMap(m map[string]any) map[string]any {
	if m == nil {
		return nil
	}
	c := make(map[string]any, len(m))
	for k, v := range m {
		c[k] = clone(v)
	}
	return c
}

func cloneList(l []any) []any {
	if l == nil {
		return nil
	}
	c := make([]any, len(l))
	for i, v := range l {
		c[i] = clone(v)
	}
	return c
}

// patch returns base with the keys of change laid over it; maps are merged at any depth, all else replaced. Neither
// argument is changed, so a snapshot that holds base stays what it was.
func patch(base, change map[string]any) map[string]any {
	merged := maps.Clone(base)
	if merged == nil {
		merged = make(map[string]any, len(change))
	}
	for k, v := range change {
		under, isMap := plain(merged[k]).(map[string]any)
		over, overMap := plain(v).(map[string]any)
		if isMap && overMap {
			merged[k] = patch(under, over)
		} else {
			merged[k] = clone(v)
		}
	}
	return merged
}

// integer reads a whole number in any of the shapes in which clients write one.
func integer(v any) (int64, bool) {
	switch n := plain(v).(type) {
	case int64:
		return n, true
	case uint64:
		return int64(n), n <= math.MaxInt64
	case int:
		return int64(n), true
	case float64:
		return int64(n), n == math.Trunc(n) && math.Abs(n) < 1<<53
	default:
		return 0, false
	}
}

// text reads a string.
func text(v any) (string, bool) {
	switch s := plain(v).(type) {
	case string:
		return s, true
	case []byte:
		return string(s), true
	default:
		return "", false
	}
}

// boolean reads %true and %false, also spelt as strings, as the real scheduler does.
func boolean(v any) (value, ok bool) {
	switch b := plain(v).(type) {
	case bool:
		return b, true
	case string:
		return b == "true", b == "true" || b == "false"
	default:
		return false, false
	}
}
