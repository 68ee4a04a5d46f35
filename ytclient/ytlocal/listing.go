package ytlocal

import (
	"slices"
	"time"

	"go.ytsaurus.tech/yt/go/yterrors"

	"taskproxy/ytclient/ytlocal/scheduler"
)

// Limits of list_operations, as the cluster has them.
const (
	defaultOperations = 100
	maxOperations     = 1000
)

// time reads an optional moment.
func (p params) time(name string) (t time.Time, ok bool, err error) {
	text, ok, err := p.string(name)
	if err != nil || !ok {
		return t, false, err
	}
	if t, err = time.Parse(time.RFC3339Nano, text); err != nil {
		return t, false, fail(yterrors.CodeGeneric, "parameter %s must be a time like 2006-01-02T15:04:05.000000Z, not %.64q", name, text)
	}
	return t, true, nil
}

// readableBy leaves out the operations that user may not read: they are not listed, and not counted.
func (c *Cluster) readableBy(user string, operations []scheduler.Operation) []scheduler.Operation {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isSuperuser(user) {
		return operations
	}
	return slices.DeleteFunc(operations, func(op scheduler.Operation) bool { return !c.permittedOperation(user, op.ACL, "read") })
}

// operationFilter is one condition of list_operations. Counts by a property apply every condition but that property's.
type operationFilter struct {
	name  string
	match func(op *scheduler.Operation) bool
}

// operationFilters reads the conditions.
func (k *call) operationFilters() ([]operationFilter, error) {
	var filters []operationFilter
	equal := func(name string, get func(*scheduler.Operation) string) error {
		want, ok, err := k.params.string(name)
		if ok {
			filters = append(filters, operationFilter{name, func(op *scheduler.Operation) bool { return get(op) == want }})
		}
		return err
	}
	for _, name := range sortedKeys(operationCounts) {
		if err := equal(name, operationCounts[name]); err != nil {
			return nil, err
		}
	}
	text, ok, err := k.params.string("filter")
	if err != nil {
		return nil, err
	}
	if ok {
		filters = append(filters, operationFilter{"filter", func(op *scheduler.Operation) bool { return matches(op, text) }})
	}
	failed, ok, err := k.params.bool("with_failed_jobs")
	if err != nil {
		return nil, err
	}
	if ok {
		filters = append(filters, operationFilter{"with_failed_jobs", func(op *scheduler.Operation) bool { return hasFailedJobs(op) == failed }})
	}
	return filters, nil
}

// operationCounts are the properties that list_operations counts by, and filters by.
var operationCounts = map[string]func(*scheduler.Operation) string{
	"user":      func(op *scheduler.Operation) string { return op.User },
	"state":     func(op *scheduler.Operation) string { return op.State },
	"type":      func(op *scheduler.Operation) string { return op.Type },
	"pool":      pool,
	"pool_tree": func(*scheduler.Operation) string { return "default" },
}

func hasFailedJobs(op *scheduler.Operation) bool {
	n, _ := toInt(op.Progress["failed"])
	return n > 0
}

// window is the times that list_operations looks at.
type window struct {
	from, to, cursor time.Time // zero: open
	future           bool
}

// operationWindow reads the interval and the cursor.
func (k *call) operationWindow() (w window, err error) {
	for name, to := range map[string]*time.Time{"from_time": &w.from, "to_time": &w.to, "cursor_time": &w.cursor} {
		t, ok, err := k.params.time(name)
		if err != nil {
			return w, err
		}
		if ok {
			*to = t
		}
	}
	switch direction, ok, err := k.params.string("cursor_direction"); {
	case err != nil:
		return w, err
	case !ok || direction == "past":
	case direction == "future":
		w.future = true
	default:
		return w, fail(yterrors.CodeGeneric, "cursor_direction %.64q is neither past nor future", direction)
	}
	if !w.cursor.IsZero() && (!w.from.IsZero() && w.cursor.Before(w.from) || !w.to.IsZero() && w.cursor.After(w.to)) {
		return w, fail(yterrors.CodeGeneric, "Time cursor is out of range")
	}
	return w, nil
}

// holds reports whether an operation started within the interval; beyond tells about the cursor, which is never part of
// its own page.
func (w window) holds(t time.Time) bool {
	return (w.from.IsZero() || !t.Before(w.from)) && (w.to.IsZero() || t.Before(w.to))
}

func (w window) beyond(t time.Time) bool {
	switch {
	case w.cursor.IsZero():
		return true
	case w.future:
		return t.After(w.cursor)
	}
	return t.Before(w.cursor)
}

func runListOperations(k *call) (any, error) {
	limit, ok, err := k.params.int("limit")
	if err != nil {
		return nil, err
	}
	if !ok {
		limit = defaultOperations
	}
	if limit < 1 || limit > maxOperations {
		return nil, fail(yterrors.CodeGeneric, "limit %d is out of range: 1 to %d", limit, maxOperations)
	}
	names, err := k.listedAttributes()
	if err != nil {
		return nil, err
	}
	filters, err := k.operationFilters()
	if err != nil {
		return nil, err
	}
	w, err := k.operationWindow()
	if err != nil {
		return nil, err
	}
	if archive, _, err := k.params.bool("include_archive"); err != nil {
		return nil, err
	} else if archive && (w.from.IsZero() || w.to.IsZero()) {
		return nil, fail(yterrors.CodeGeneric, "include_archive needs both from_time and to_time")
	}
	operations := k.c.readableBy(k.user, k.c.scheduler.Operations())
	for i := range operations {
		// The cluster's times have microseconds, and cursors are compared with them.
		operations[i].StartTime = operations[i].StartTime.Truncate(time.Microsecond)
	}
	operations = slices.DeleteFunc(operations, func(op scheduler.Operation) bool { return !w.holds(op.StartTime) })
	answer := countOperations(operations, filters)
	page := slices.DeleteFunc(operations, func(op scheduler.Operation) bool {
		return !w.beyond(op.StartTime) || !passes(&op, filters, "")
	})
	answer["incomplete"] = int64(len(page)) > limit
	if int64(len(page)) > limit {
		if w.future {
			page = page[int64(len(page))-limit:]
		} else {
			page = page[:limit]
		}
	}
	items := make([]any, 0, len(page))
	for i := range page {
		item, err := describeOperation(&page[i], names)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	answer["operations"] = items
	return answer, nil
}

// listedAttributes reads what to tell about each operation; id and start_time always are.
func (k *call) listedAttributes() ([]string, error) {
	names, given, err := k.params.strings("attributes")
	if err != nil {
		return nil, err
	}
	if !given {
		return briefAttributes, nil
	}
	for _, name := range names {
		if operationAttributes[name] == nil {
			return nil, with(fail(yterrors.CodeNoSuchAttribute, "Attribute %.64q is not allowed", name), "attribute_name", name)
		}
	}
	if slices.Contains(names, "type") {
		names = append(names, "operation_type")
	}
	return append(names, "id", "start_time"), nil
}

// passes reports whether an operation meets all conditions but the named one.
func passes(op *scheduler.Operation, filters []operationFilter, but string) bool {
	return !slices.ContainsFunc(filters, func(f operationFilter) bool { return f.name != but && !f.match(op) })
}

// countOperations makes the counters.
func countOperations(operations []scheduler.Operation, filters []operationFilter) map[string]any {
	answer := map[string]any{}
	for name, property := range operationCounts {
		counts := map[string]any{}
		for i := range operations {
			if op := &operations[i]; passes(op, filters, name) {
				n, _ := counts[property(op)].(int64)
				counts[property(op)] = n + 1
			}
		}
		answer[name+"_counts"] = counts
	}
	failed := int64(0)
	for i := range operations {
		if op := &operations[i]; passes(op, filters, "with_failed_jobs") && hasFailedJobs(op) {
			failed++
		}
	}
	answer["failed_jobs_count"] = failed
	return answer
}
