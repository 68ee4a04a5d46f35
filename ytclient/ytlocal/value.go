package ytlocal

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yterrors"
)

// Values are what the SDK's yson decodes into any: map[string]any, []any, string, int64, uint64, float64, bool, nil, and
// *yson.ValueWithAttrs. They are never changed in place: the functions below copy every container on the way down, so
// a value that was handed out stays what it was.

// plain removes the attributes around a value.
func plain(v any) any {
	if va, ok := v.(*yson.ValueWithAttrs); ok {
		return va.Value
	}
	return v
}

// noStep is the answer for a step that leads nowhere.
func noStep(step string) *yterrors.Error {
	return fail(yterrors.CodeResolveError, "Node has no child with key %.256q", step)
}

// valueGet follows steps into v.
func valueGet(v any, steps []string) (any, error) {
	for _, step := range steps {
		switch c := plain(v).(type) {
		case map[string]any:
			next, ok := c[step]
			if !ok {
				return nil, noStep(step)
			}
			v = next
		case []any:
			i, err := listIndex(c, step)
			if err != nil {
				return nil, err
			}
			v = c[i]
		default:
			return nil, noStep(step)
		}
	}
	return v, nil
}

// listIndex reads an index into an existing element; negative ones count from the end.
func listIndex(list []any, step string) (int, error) {
	i, err := strconv.Atoi(step)
	if err != nil {
		switch step {
		case "begin":
			i = 0
		case "end":
			i = -1
		default:
			return 0, fail(yterrors.CodeResolveError, "List index expected, got %.256q", step)
		}
	}
	if i < 0 {
		i += len(list)
	}
	if i < 0 || i >= len(list) {
		return 0, fail(yterrors.CodeResolveError, "List has no element %.256q", step)
	}
	return i, nil
}

// valueSet returns v with the place that steps name set to value. With recursive, missing maps are made on the way.
func valueSet(v any, steps []string, value any, recursive bool) (any, error) {
	if len(steps) == 0 {
		return value, nil
	}
	step, rest := steps[0], steps[1:]
	switch c := plain(v).(type) {
	case map[string]any:
		next, ok := c[step]
		if !ok && len(rest) > 0 {
			if !recursive {
				return nil, noStep(step)
			}
			next = map[string]any{}
		}
		next, err := valueSet(next, rest, value, recursive)
		if err != nil {
			return nil, err
		}
		c = maps.Clone(c)
		if c == nil {
			c = map[string]any{}
		}
		c[step] = next
		return rewrap(v, c), nil
	case []any:
		if len(rest) == 0 {
			if at, ok, err := insertIndex(c, step); err != nil {
				return nil, err
			} else if ok {
				return rewrap(v, slices.Insert(slices.Clone(c), at, value)), nil
			}
		}
		i, err := listIndex(c, step)
		if err != nil {
			return nil, err
		}
		next, err := valueSet(c[i], rest, value, recursive)
		if err != nil {
			return nil, err
		}
		c = slices.Clone(c)
		c[i] = next
		return rewrap(v, c), nil
	default:
		return nil, noStep(step)
	}
}

// insertIndex understands the steps that name a place between elements.
func insertIndex(list []any, step string) (at int, ok bool, err error) {
	switch where, index, found := strings.Cut(step, ":"); {
	case step == "begin":
		return 0, true, nil
	case step == "end":
		return len(list), true, nil
	case found && (where == "before" || where == "after"):
		at, err := listIndex(list, index)
		if where == "after" {
			at++
		}
		return at, err == nil, err
	}
	return 0, false, nil
}

// valueRemove returns v without the place that steps name; there must be at least one step.
func valueRemove(v any, steps []string) (any, error) {
	step, rest := steps[0], steps[1:]
	switch c := plain(v).(type) {
	case map[string]any:
		next, ok := c[step]
		if !ok {
			return nil, noStep(step)
		}
		c = maps.Clone(c)
		if len(rest) == 0 {
			delete(c, step)
			return rewrap(v, c), nil
		}
		next, err := valueRemove(next, rest)
		if err != nil {
			return nil, err
		}
		c[step] = next
		return rewrap(v, c), nil
	case []any:
		i, err := listIndex(c, step)
		if err != nil {
			return nil, err
		}
		c = slices.Clone(c)
		if len(rest) == 0 {
			return rewrap(v, slices.Delete(c, i, i+1)), nil
		}
		if c[i], err = valueRemove(c[i], rest); err != nil {
			return nil, err
		}
		return rewrap(v, c), nil
	default:
		return nil, noStep(step)
	}
}

// rewrap puts the attributes that old had around value.
func rewrap(old, value any) any {
	if va, ok := old.(*yson.ValueWithAttrs); ok {
		return &yson.ValueWithAttrs{Attrs: va.Attrs, Value: value}
	}
	return value
}

// sortedKeys of a map, for answers that must not change from call to call.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// toInt reads an integer of any of the forms that clients send.
func toInt(v any) (int64, bool) {
	switch n := plain(v).(type) {
	case int64:
		return n, true
	case uint64:
		return int64(n), n <= 1<<62
	case float64:
		return int64(n), n == float64(int64(n))
	case string:
		i, err := strconv.ParseInt(n, 10, 64)
		return i, err == nil
	}
	return 0, false
}

// toBool reads a boolean; query strings can only send it as text.
func toBool(v any) (value, ok bool) {
	switch b := plain(v).(type) {
	case bool:
		return b, true
	case string:
		switch b {
		case "true", "%true", "1":
			return true, true
		case "false", "%false", "0":
			return false, true
		}
	}
	return false, false
}

// toStrings reads a list of strings.
func toStrings(v any) ([]string, bool) {
	list, ok := plain(v).([]any)
	if !ok {
		return nil, false
	}
	out := make([]string, 0, len(list))
	for _, item := range list {
		s, ok := plain(item).(string)
		if !ok {
			return nil, false
		}
		out = append(out, s)
	}
	return out, true
}

// anyList turns strings into a list value.
func anyList(items []string) []any {
	out := make([]any, len(items))
	for i, s := range items {
		out[i] = s
	}
	return out
}
