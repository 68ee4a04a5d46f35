package ytclient

import (
	"errors"
	"fmt"
	"time"

	"go.ytsaurus.tech/yt/go/guid"
	"go.ytsaurus.tech/yt/go/yson"
)

// Plain removes the attributes that YSON allows around any value: it returns what v wraps, or v itself.
func Plain(v any) any {
	for {
		w, ok := v.(*yson.ValueWithAttrs)
		if !ok {
			return v
		}
		if w == nil {
			return nil
		}
		v = w.Value
	}
}

// parseID reads an id and refuses every form but the canonical one. The SDK's own parser accepts upper case, leading
// zeros and trailing garbage.
func parseID(s string) (guid.GUID, error) {
	g, err := guid.ParseString(s)
	if err != nil || g.String() != s {
		return guid.GUID{}, fmt.Errorf("%.64q is not an id in canonical form, like 1f-2e-3e803e8-4d", s)
	}
	return g, nil
}

// reprint returns an id that the cluster answered in canonical form, whatever form it came in.
func reprint(s string) (string, error) {
	g, err := guid.ParseString(s)
	if err != nil {
		return "", fmt.Errorf("%.64q is not an id", s)
	}
	return g.String(), nil
}

// item decodes one YSON value, and returns what the SDK's decoder panics with as an error. Into a map or list of raw values it
// cuts, whatever the parts look like.
func item(raw []byte, v any) (err error) {
	switch v := v.(type) {
	case *map[string]yson.RawValue:
		*v, err = splitMap(raw)
		return err
	case *[]yson.RawValue:
		*v, err = splitList(raw)
		return err
	}
	return recovered(func() error { return yson.Unmarshal(raw, v) })
}

var errMissing = errors.New("is missing")

// field decodes one value of a map that was read as raw values; a missing one and an entity are errMissing.
func field[T any](m map[string]yson.RawValue, key string) (v T, err error) {
	raw, ok := m[key]
	if !ok || string(raw) == "#" {
		return v, fmt.Errorf("%q %w", key, errMissing)
	}
	if err := item(raw, &v); err != nil {
		return v, fmt.Errorf("%q is no %T", key, v)
	}
	return v, nil
}

// optional is field, but a value that is missing is the zero value.
func optional[T any](m map[string]yson.RawValue, key string) (T, error) {
	v, err := field[T](m, key)
	if errors.Is(err, errMissing) {
		err = nil
	}
	return v, err
}

func timeField(m map[string]yson.RawValue, key string) (time.Time, error) {
	s, err := field[string](m, key)
	if err != nil {
		return time.Time{}, err
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}, fmt.Errorf("%q is no time: %.64q", key, s)
	}
	return t, nil
}

// stamp prints a time as the cluster does: UTC with six digits of the second.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z") }
