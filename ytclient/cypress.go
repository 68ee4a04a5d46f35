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

// maxChildren is how many children ListChildren tells of: who asks wants to know whether there is one, not how many.
const maxChildren = 100

// ChildrenAnswer is what one directory holds, or why that is not known. ErrNotFound: there is no such node.
type ChildrenAnswer struct {
	// Names of the children in their order, as they are and not escaped; a hundred at most, however many there are.
	Names []string
	// IDs of the children, in the order of Names: a child that was removed and made anew has another one. Empty where the
	// cluster does not tell.
	IDs []string
	Err error
}

// ListChildren asks what directories hold; the answers are in the order of paths. A path is written to the call as it is, so
// it must be one that the caller has made or checked. The error is for the call as a whole: no answer is known then.
//
// Errors: ErrDenied, ErrOverloaded, ErrUnavailable.
func (c *Client) ListChildren(ctx context.Context, paths []string) ([]ChildrenAnswer, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	answers := make([]ChildrenAnswer, len(paths))
	err := c.do(ctx, "list_children", func(ctx context.Context) error {
		batch, err := c.yc.NewBatchRequest()
		if err != nil {
			return err
		}
		limit := int64(maxChildren)
		options := &yt.ListNodeOptions{Attributes: []string{"id"}, MaxSize: &limit}
		values := make([]yson.RawValue, len(paths))
		responses := make([]yt.VoidBatchResponse, len(paths))
		for i, path := range paths {
			if responses[i], err = batch.ListNode(ctx, ypath.Path(path), &values[i], options); err != nil {
				return err
			}
		}
		if err := batch.ExecuteBatch(ctx, nil); err != nil {
			return err
		}
		s, _ := ctx.Value(seenKey{}).(*seen)
		for i, r := range responses {
			if err := r.Error(); err != nil {
				answers[i].Err = fmt.Errorf("list a directory: %w", classify(err, s))
			} else if answers[i], err = decodeChildren(values[i]); err != nil {
				answers[i] = ChildrenAnswer{Err: fmt.Errorf("list a directory: %w: %w", ErrUnavailable, err)}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return answers, nil
}

// decodeChildren reads [a;<id="1-2-3-4">b]. Errors do not quote it: whoever named the path may not be allowed to read it.
func decodeChildren(raw yson.RawValue) (a ChildrenAnswer, err error) {
	var v any
	if err := item(raw, &v); err != nil {
		return a, errors.New("its answer is no YSON")
	}
	list, ok := Plain(v).([]any)
	if !ok {
		return a, errors.New("its answer is no list")
	}
	for _, child := range list {
		name, ok := Plain(child).(string)
		if !ok {
			return a, errors.New("its answer has something that is no name")
		}
		var id string
		if w, ok := child.(*yson.ValueWithAttrs); ok {
			id, _ = Plain(w.Attrs["id"]).(string)
		}
		a.Names, a.IDs = append(a.Names, name), append(a.IDs, id)
	}
	return a, nil
}

// NodeJob is a job that an exec node knows, whosever it is.
type NodeJob struct {
	ID          string // canonical text form; empty when it cannot be read
	OperationID string // likewise
	Ports       []int  // that the node gave to it, in port-index order
	// Err says that the node's entry cannot be read, wholly or in part: its ports are not known.
	Err error
}

// NodeJobs asks an exec node for all the jobs that run on it. An entry that cannot be read has Err and harms no other.
//
// Errors: ErrNotFound (no such node), ErrDenied, ErrOverloaded, ErrUnavailable.
func (c *Client) NodeJobs(ctx context.Context, address string) (jobs []NodeJob, err error) {
	params := map[string]any{"path": activeJobsPath(address)}
	err = c.do(ctx, "get_node_jobs", func(ctx context.Context) error {
		// By a GET of our own as the listings: one odd entry must not cost the others.
		answer, err := c.get(ctx, "get", params, c.bounds.answer)
		if err != nil {
			return err
		}
		entries, err := field[map[string]yson.RawValue](answer, "value")
		if err != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		jobs = make([]NodeJob, 0, len(entries))
		for id, raw := range entries {
			jobs = append(jobs, decodeNodeJob(id, raw))
		}
		slices.SortFunc(jobs, func(a, b NodeJob) int { return strings.Compare(a.ID, b.ID) })
		return nil
	})
	return jobs, err
}

func decodeNodeJob(id string, raw yson.RawValue) (j NodeJob) {
	var errs [3]error
	j.ID, errs[0] = reprint(id)
	var m map[string]yson.RawValue
	if err := item(raw, &m); err != nil {
		j.Err = errors.Join(errs[0], fmt.Errorf("job %.64q is no map", id))
		return j
	}
	operation, err := field[string](m, "operation_id")
	if err != nil {
		errs[1] = err
	} else {
		j.OperationID, errs[1] = reprint(operation)
	}
	if ports, ok := m["job_ports"]; ok { // a job that has none may not have the key
		if j.Ports, errs[2] = decodePorts(ports); errs[2] != nil {
			j.Ports = nil
		}
	}
	if err := errors.Join(errs[:]...); err != nil {
		j.Err = fmt.Errorf("job %.64q: %w", id, err)
	}
	return j
}

// activeJobsPath is where an exec node's orchid shows its jobs.
func activeJobsPath(address string) string {
	return "//sys/exec_nodes/" + escapeComponent(address) + "/orchid/exec_node/job_controller/active_jobs"
}
