package ytclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yt"
)

// maxOperation bounds the answer about one operation, most of which is its spec.
const maxOperation = 8 << 20

// errLongOperation is known, not asked again, for heavyFor.
var errLongOperation = fmt.Errorf("%w: what the cluster tells about the operation is too long", ErrUnavailable)

// GetOperation tells the state, the tasks and the annotations of one operation, running or not. A spec and annotations of more
// than 8 MiB are an ErrUnavailable.
//
// Errors: ErrNoSuchOperation, ErrDenied, ErrOverloaded, ErrUnavailable.
func (c *Client) GetOperation(ctx context.Context, operationID string) (info OperationInfo, err error) {
	if _, err := parseID(operationID); err != nil {
		return info, fmt.Errorf("get_operation: %w: %w", ErrNoSuchOperation, err)
	}
	if c.long.has(operationID) {
		return info, fmt.Errorf("get_operation: %w", errLongOperation)
	}
	params := map[string]any{"operation_id": operationID, "attributes": []string{
		"id", "state", "spec", "authenticated_user", "start_time", "brief_spec", "runtime_parameters",
	}}
	err = c.do(ctx, "get_operation", func(ctx context.Context) error {
		// Decoded by hand for the same reason as the listings: the spec is its author's.
		answer, err := c.get(ctx, "get_operation", params, min(c.bounds.operation, c.bounds.answer))
		if errors.Is(err, errLongAnswer) {
			c.long.note(operationID)
			return fmt.Errorf("%w: %w", errLongOperation, err)
		}
		if err != nil {
			return err
		}
		info = OperationInfo{ID: operationID}
		if info.State, err = field[string](answer, "state"); err != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		if info.Tasks, err = decodeTasks(answer); err != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		if o, err := identifyFields(listedItem{fields: answer}).decode(); err == nil && o.ID == operationID {
			info.Operation = &o
		}
		return nil
	})
	return info, err
}

func decodeTasks(operation map[string]yson.RawValue) ([]Task, error) {
	spec, err := optional[map[string]yson.RawValue](operation, "spec")
	if err != nil {
		return nil, err
	}
	tasks, err := optional[map[string]yson.RawValue](spec, "tasks")
	if err != nil {
		return nil, err
	}
	var out []Task
	for name, raw := range tasks {
		var m map[string]yson.RawValue
		if err := item(raw, &m); err != nil {
			return nil, fmt.Errorf("task %.64q is no map", name)
		}
		t := Task{Name: name}
		for key, v := range map[string]*int{"job_count": &t.JobCount, "port_count": &t.PortCount} {
			if *v, err = decodeCount(m, key); err != nil {
				return nil, fmt.Errorf("task %.64q: %w", name, err)
			}
		}
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b Task) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// decodeCount reads an integer that specs write as int64, uint64 or, through JSON, as a whole double.
func decodeCount(m map[string]yson.RawValue, key string) (int, error) {
	v, err := optional[any](m, key)
	if err != nil {
		return 0, err
	}
	if v == nil {
		return 0, nil
	}
	n, ok := Integer(v)
	if !ok || n < 0 || n > 1<<31-1 {
		return 0, fmt.Errorf("%q is no count", key)
	}
	return int(n), nil
}

// Integer reads an integer in any of the forms in which YSON and JSON writers leave one: int64, uint64, or a double
// without a fraction, with or without attributes.
func Integer(v any) (int64, bool) {
	switch n := Plain(v).(type) {
	case int64:
		return n, true
	case uint64:
		return int64(n), n <= 1<<63-1
	case float64:
		// 2^53: beyond it a double does not say which integer was meant.
		if n != float64(int64(n)) || n > 1<<53 || n < -(1<<53) {
			return 0, false
		}
		return int64(n), true
	}
	return 0, false
}

// JobPorts asks the exec nodes for the ports of jobs; the answers are in the order of refs. The error is for the call as a
// whole: no answer is known then.
//
// Errors: ErrDenied, ErrOverloaded, ErrUnavailable.
func (c *Client) JobPorts(ctx context.Context, refs []JobRef) ([]PortsAnswer, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	answers := make([]PortsAnswer, len(refs))
	err := c.do(ctx, "get_job_ports", func(ctx context.Context) error {
		batch, err := c.yc.NewBatchRequest()
		if err != nil {
			return err
		}
		values := make([]yson.RawValue, len(refs))
		responses := make([]yt.VoidBatchResponse, len(refs))
		for i, ref := range refs {
			if responses[i], err = batch.GetNode(ctx, portsPath(ref), &values[i], nil); err != nil {
				return err
			}
		}
		if err := batch.ExecuteBatch(ctx, nil); err != nil {
			return err
		}
		s, _ := ctx.Value(seenKey{}).(*seen)
		for i, r := range responses {
			if err := r.Error(); err != nil {
				answers[i].Err = fmt.Errorf("ports of job %s: %w", refs[i].ID, classify(err, s))
				continue
			}
			if answers[i].Ports, err = decodePorts(values[i]); err != nil {
				answers[i].Err = fmt.Errorf("ports of job %s: %w: %w", refs[i].ID, ErrUnavailable, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return answers, nil
}

// portsPath is where an exec node's orchid shows the ports of a job. No newer interface tells them.
func portsPath(ref JobRef) ypath.Path {
	return ypath.Path(activeJobsPath(ref.Address) + "/" + escapeComponent(ref.ID) + "/job_ports")
}

// escapeComponent writes a name as one component of a Cypress path, where / @ & * [ { and \ would mean something else.
func escapeComponent(name string) string {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		if strings.IndexByte(`/@&*[{\`, name[i]) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(name[i])
	}
	return b.String()
}

func decodePorts(raw yson.RawValue) ([]int, error) {
	var v any
	if err := item(raw, &v); err != nil {
		return nil, err
	}
	list, ok := Plain(v).([]any)
	if !ok && v != nil {
		return nil, fmt.Errorf("%.64q is no list of ports", raw)
	}
	ports := make([]int, len(list))
	for i, p := range list {
		n, ok := Integer(p)
		if !ok || n < 1 || n > 65535 {
			return nil, fmt.Errorf("%.64q has something at index %d that is no port", raw, i)
		}
		ports[i] = int(n)
	}
	return ports, nil
}
