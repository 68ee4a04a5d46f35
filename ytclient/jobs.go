package ytclient

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"go.ytsaurus.tech/yt/go/yson"
)

// How many jobs an operation has, and how long their tasks' names are, is up to its author, and a cycle waits for the answers.
const (
	// maxJobsPages bounds the calls for one list of jobs.
	maxJobsPages = 20
	// maxJobsAnswer bounds the answer of one. A page of 1,000 jobs is a quarter of a MiB as a rule.
	maxJobsAnswer = 4 << 20
	// maxTaskCalls is how many tasks at most are asked for each on its own, tasksAtOnce how many of them at the same time.
	maxTaskCalls = 16
	tasksAtOnce  = 4
)

// errLongJobs is known, not asked again, for heavyFor.
var errLongJobs = fmt.Errorf("list_jobs: %w: what the cluster tells about the jobs is too long", ErrUnavailable)

// ListJobs lists all the running jobs of an operation.
//
// Errors: ErrNoSuchOperation, ErrDenied, ErrOverloaded, ErrUnavailable.
func (c *Client) ListJobs(ctx context.Context, operationID string) (JobListing, error) {
	return c.ListTaskJobs(ctx, operationID, nil)
}

// ListTaskJobs lists the running jobs of some tasks of an operation; nil: of all. There may be jobs of other tasks among them.
// It costs as many calls as the jobs of these tasks need, and hardly more, however many jobs the others have. More than 20,000
// jobs, and answers that are too long, are an ErrUnavailable of this operation.
//
// Errors: ErrNoSuchOperation, ErrDenied, ErrOverloaded, ErrUnavailable.
func (c *Client) ListTaskJobs(ctx context.Context, operationID string, tasks []string) (JobListing, error) {
	if _, err := parseID(operationID); err != nil {
		return JobListing{}, fmt.Errorf("list_jobs: %w: %w", ErrNoSuchOperation, err)
	}
	switch {
	case len(tasks) == 0 || len(tasks) > maxTaskCalls:
		return c.listJobs(ctx, operationID, "", c.bounds.jobsPages)
	case len(tasks) == 1:
		return c.listJobs(ctx, operationID, tasks[0], c.bounds.jobsPages)
	}
	// As a rule one answer has the jobs of all tasks.
	listing, err := c.listJobs(ctx, operationID, "", 1)
	if !errors.Is(err, errManyJobs) && !errors.Is(err, errLongJobs) {
		return listing, err
	}
	return c.listJobsByTask(ctx, operationID, tasks)
}

// listJobsByTask asks for a few tasks at the same time.
func (c *Client) listJobsByTask(ctx context.Context, operationID string, tasks []string) (JobListing, error) {
	listings, errs := make([]JobListing, len(tasks)), make([]error, len(tasks))
	var wg sync.WaitGroup
	for worker := range tasksAtOnce {
		wg.Go(func() {
			for i := worker; i < len(tasks); i += tasksAtOnce {
				listings[i], errs[i] = c.listJobs(ctx, operationID, tasks[i], c.bounds.jobsPages)
			}
		})
	}
	wg.Wait()
	var all JobListing
	for i, l := range listings {
		if errs[i] != nil {
			return JobListing{}, errs[i]
		}
		all.Jobs = append(all.Jobs, l.Jobs...)
		all.Partial = errors.Join(all.Partial, l.Partial)
	}
	return all, nil
}

var errManyJobs = fmt.Errorf("list_jobs: %w: more running jobs than are listed", ErrUnavailable)

// listJobs lists the jobs of one task, or of all for "", page by page. errManyJobs: there are more pages.
func (c *Client) listJobs(ctx context.Context, operationID, task string, pages int) (listing JobListing, err error) {
	key := operationID + "/" + task
	if c.long.has(key) {
		return JobListing{}, errLongJobs
	}
	seen := make(map[string]bool)
	for page := range pages {
		items, partial, err := c.jobsPage(ctx, operationID, task, page*pageSize)
		if errors.Is(err, errLongAnswer) {
			c.long.note(key)
			return JobListing{}, errLongJobs
		}
		if err != nil {
			return JobListing{}, err
		}
		if listing.Partial == nil {
			listing.Partial = partial
		}
		for _, raw := range items {
			j, err := decodeJob(raw)
			if err != nil {
				// Whoever this is, we cannot tell that it is not the job we would miss.
				listing.Partial = fmt.Errorf("a job of operation %s: %w", operationID, err)
				continue
			}
			// A cluster so old that it does not know the filter tells of all tasks each time.
			if !seen[j.ID] && (task == "" || j.Task == task) {
				seen[j.ID] = true
				listing.Jobs = append(listing.Jobs, j)
			}
		}
		if len(items) < pageSize {
			return listing, nil
		}
	}
	return JobListing{}, fmt.Errorf("%w: operation %s has %d or more", errManyJobs, operationID, pages*pageSize)
}

func (c *Client) jobsPage(ctx context.Context, operationID, task string, offset int) (items []yson.RawValue, partial error, err error) {
	params := map[string]any{
		"operation_id": operationID, "job_state": "running", "limit": pageSize, "offset": offset,
		// Without an order of its own, a page is a sample.
		"sort_field": "id", "sort_order": "ascending",
		"attributes": []string{"id", "state", "address", "task_name", "is_stale"},
	}
	if task != "" {
		params["task_name"] = task
	}
	err = c.do(ctx, "list_jobs", func(ctx context.Context) error {
		answer, err := c.get(ctx, "list_jobs", params, min(c.bounds.jobs, c.bounds.answer))
		if err != nil {
			return err
		}
		if items, err = field[[]yson.RawValue](answer, "jobs"); err != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		// The answer is a 200 even when the archive or the controller agent did not take part in it.
		failures, err := optional[[]yson.RawValue](answer, "errors")
		switch {
		case err != nil:
			partial = err
		case len(failures) > 0:
			partial = fmt.Errorf("%d sources of list_jobs failed, the first with %.256q", len(failures), failures[0])
		}
		return nil
	})
	return items, partial, err
}

func decodeJob(raw yson.RawValue) (j Job, err error) {
	var m map[string]yson.RawValue
	if err := item(raw, &m); err != nil {
		return j, fmt.Errorf("it is no map: %w", err)
	}
	id, err := field[string](m, "id")
	if err != nil {
		return j, err
	}
	if j.ID, err = reprint(id); err != nil {
		return j, err
	}
	var errs [4]error
	j.State, errs[0] = field[string](m, "state")
	j.Address, errs[1] = optional[string](m, "address")
	j.Task, errs[2] = optional[string](m, "task_name")
	j.Stale, errs[3] = optional[bool](m, "is_stale")
	return j, errors.Join(errs[:]...)
}

// heavyFor is how long what was too long is not asked for again.
const heavyFor = 5 * time.Minute

// heavy remembers what was too long, until when it is not asked for. Safe for concurrent use.
type heavy struct {
	mu    sync.Mutex
	until map[string]time.Time
}

func (h *heavy) note(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(h.until, func(_ string, until time.Time) bool { return !now.Before(until) })
	if h.until == nil {
		h.until = make(map[string]time.Time)
	}
	h.until[id] = now.Add(heavyFor)
}

func (h *heavy) has(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	until, ok := h.until[id]
	return ok && time.Now().Before(until)
}
