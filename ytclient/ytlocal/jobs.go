package ytlocal

import (
	"cmp"
	"slices"
	"strings"

	"go.ytsaurus.tech/yt/go/yterrors"

	"taskproxy/ytclient/ytlocal/scheduler"
)

// defaultJobs is how many jobs list_jobs tells about when nobody says.
const defaultJobs = 1000

// jobAttributes are what list_jobs and get_job can tell.
var jobAttributes = map[string]func(j *scheduler.Job) any{
	"id":                func(j *scheduler.Job) any { return j.ID },
	"operation_id":      func(j *scheduler.Job) any { return j.OperationID },
	"type":              func(*scheduler.Job) any { return "vanilla" },
	"state":             func(j *scheduler.Job) any { return j.State },
	"controller_state":  func(j *scheduler.Job) any { return j.State },
	"archive_state":     func(*scheduler.Job) any { return nil },
	"address":           func(j *scheduler.Job) any { return j.Address },
	"addresses":         func(j *scheduler.Job) any { return map[string]any{"default": j.Address} },
	"task_name":         func(j *scheduler.Job) any { return j.Task },
	"start_time":        func(j *scheduler.Job) any { return timeText(j.StartTime) },
	"finish_time":       func(j *scheduler.Job) any { return optionalTime(j.FinishTime) },
	"has_spec":          func(*scheduler.Job) any { return false },
	"progress":          func(*scheduler.Job) any { return float64(0) },
	"stderr_size":       func(j *scheduler.Job) any { return j.StderrSize },
	"fail_context_size": func(*scheduler.Job) any { return int64(0) },
	"error":             jobError,
	"interruption_info": func(*scheduler.Job) any { return nil },
	"brief_statistics":  func(*scheduler.Job) any { return map[string]any{} },
	"statistics":        func(*scheduler.Job) any { return map[string]any{} },
	"events":            func(*scheduler.Job) any { return []any{} },
	"exec_attributes":   func(*scheduler.Job) any { return map[string]any{} },
	"job_competition_id": func(*scheduler.Job) any {
		return "0-0-0-0"
	},
	"has_competitors":       func(*scheduler.Job) any { return false },
	"is_stale":              func(j *scheduler.Job) any { return j.Stale },
	"pool":                  func(*scheduler.Job) any { return nil },
	"pool_tree":             func(*scheduler.Job) any { return "default" },
	"monitoring_descriptor": func(*scheduler.Job) any { return nil },
	"core_infos":            func(*scheduler.Job) any { return []any{} },
	"job_cookie":            func(j *scheduler.Job) any { return int64(j.Cookie) },
	"allocation_id":         func(*scheduler.Job) any { return nil },
	"operation_incarnation": func(*scheduler.Job) any { return nil },
	"gang_rank":             func(*scheduler.Job) any { return nil },
}

// listedJobAttributes are those that list_jobs leaves out unless asked: get_job has them.
var unlistedJobAttributes = []string{"operation_id", "statistics", "events"}

func jobError(j *scheduler.Job) any {
	if j.Error == "" {
		return nil
	}
	return errorMap(fail(yterrors.CodeGeneric, "%s", j.Error))
}

// describeJob makes the map of a job. Attributes that it does not have are left out.
func describeJob(j *scheduler.Job, names []string) (map[string]any, error) {
	m := map[string]any{}
	for _, name := range names {
		f := jobAttributes[name]
		if f == nil {
			return nil, with(fail(yterrors.CodeNoSuchAttribute, "Attribute %.64q is not allowed", name), "attribute_name", name)
		}
		if v := f(j); v != nil {
			m[name] = v
		}
	}
	return m, nil
}

// jobFilters reads the conditions of list_jobs. Some have an older name that clients still use.
func (k *call) jobFilters() ([]func(*scheduler.Job) bool, error) {
	var filters []func(*scheduler.Job) bool
	for name, get := range map[string]func(*scheduler.Job) string{
		"job_state": func(j *scheduler.Job) string { return j.State },
		"state":     func(j *scheduler.Job) string { return j.State },
		"job_type":  func(*scheduler.Job) string { return "vanilla" },
		"type":      func(*scheduler.Job) string { return "vanilla" },
		"task_name": func(j *scheduler.Job) string { return j.Task },
	} {
		want, ok, err := k.params.string(name)
		if err != nil {
			return nil, err
		}
		if ok {
			filters = append(filters, func(j *scheduler.Job) bool { return get(j) == want })
		}
	}
	address, ok, err := k.params.string("address")
	if err != nil {
		return nil, err
	}
	if ok {
		filters = append(filters, func(j *scheduler.Job) bool { return strings.HasPrefix(j.Address, address) })
	}
	stderr, ok, err := k.params.bool("with_stderr")
	if err != nil {
		return nil, err
	}
	if ok {
		filters = append(filters, func(j *scheduler.Job) bool { return (j.StderrSize > 0) == stderr })
	}
	return filters, nil
}

// jobOrders are what list_jobs can sort by.
var jobOrders = map[string]func(a, b scheduler.Job) int{
	"none":        func(a, b scheduler.Job) int { return 0 },
	"id":          func(a, b scheduler.Job) int { return cmp.Compare(a.ID, b.ID) },
	"type":        func(a, b scheduler.Job) int { return 0 },
	"state":       func(a, b scheduler.Job) int { return cmp.Compare(a.State, b.State) },
	"start_time":  func(a, b scheduler.Job) int { return a.StartTime.Compare(b.StartTime) },
	"finish_time": func(a, b scheduler.Job) int { return a.FinishTime.Compare(b.FinishTime) },
	"address":     func(a, b scheduler.Job) int { return cmp.Compare(a.Address, b.Address) },
	"task_name":   func(a, b scheduler.Job) int { return cmp.Compare(a.Task, b.Task) },
}

func (k *call) sortJobs(jobs []scheduler.Job) error {
	field, ok, err := k.params.string("sort_field")
	if err != nil || !ok {
		return err
	}
	order := jobOrders[field]
	if order == nil {
		return fail(yterrors.CodeGeneric, "sort_field %.64q is none of %v", field, sortedKeys(jobOrders))
	}
	direction, _, err := k.params.string("sort_order")
	if err != nil {
		return err
	}
	slices.SortStableFunc(jobs, func(a, b scheduler.Job) int {
		if direction == "descending" {
			a, b = b, a
		}
		return order(a, b)
	})
	return nil
}

func runListJobs(k *call) (any, error) {
	op, err := k.readable()
	if err != nil {
		return nil, err
	}
	names, given, err := k.params.strings("attributes")
	if err != nil {
		return nil, err
	}
	if !given {
		names = slices.DeleteFunc(sortedKeys(jobAttributes), func(name string) bool { return slices.Contains(unlistedJobAttributes, name) })
	}
	limit, ok, err := k.params.int("limit")
	if err != nil {
		return nil, err
	}
	if !ok {
		limit = defaultJobs
	}
	offset, _, err := k.params.int("offset")
	if err != nil {
		return nil, err
	}
	if limit < 0 || offset < 0 {
		return nil, fail(yterrors.CodeGeneric, "limit and offset must not be negative")
	}
	filters, err := k.jobFilters()
	if err != nil {
		return nil, err
	}
	jobs, err := k.c.scheduler.Jobs(op.ID)
	if err != nil {
		return nil, err
	}
	states, total := map[string]any{}, int64(len(jobs))
	for _, j := range jobs {
		n, _ := states[j.State].(int64)
		states[j.State] = n + 1
	}
	jobs = slices.DeleteFunc(jobs, func(j scheduler.Job) bool {
		return slices.ContainsFunc(filters, func(match func(*scheduler.Job) bool) bool { return !match(&j) })
	})
	if err := k.sortJobs(jobs); err != nil {
		return nil, err
	}
	jobs = jobs[min(offset, int64(len(jobs))):]
	jobs = jobs[:min(limit, int64(len(jobs)))]
	items := make([]any, 0, len(jobs))
	for i := range jobs {
		item, err := describeJob(&jobs[i], append([]string{"id"}, names...))
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return map[string]any{
		"jobs": items, "errors": []any{}, "state_counts": states, "type_counts": map[string]any{"vanilla": total},
		"cypress_job_count": nil, "archive_job_count": nil, "scheduler_job_count": total, "controller_agent_job_count": total,
	}, nil
}

// job finds the job that a command is about.
func (k *call) job() (scheduler.Operation, scheduler.Job, error) {
	op, err := k.readable()
	if err != nil {
		return op, scheduler.Job{}, err
	}
	id, err := k.params.need("job_id")
	if err != nil {
		return op, scheduler.Job{}, err
	}
	j, err := k.c.scheduler.Job(op.ID, id)
	return op, j, err
}

func runGetJob(k *call) (any, error) {
	_, j, err := k.job()
	if err != nil {
		return nil, err
	}
	names, given, err := k.params.strings("attributes")
	if err != nil {
		return nil, err
	}
	if !given {
		names = sortedKeys(jobAttributes)
	}
	m, err := describeJob(&j, names)
	if err != nil {
		return nil, err
	}
	delete(m, "id")
	m["job_id"] = j.ID // the one key that list_jobs spells differently
	return m, nil
}

// runGetJobStderr shows what a job wrote, to those who may read the operation.
func runGetJobStderr(k *call) (any, error) {
	op, j, err := k.job()
	if err != nil {
		return nil, err
	}
	b, err := k.c.scheduler.Stderr(op.ID, j.ID)
	if err != nil {
		return nil, err
	}
	return bytesStream(b), nil
}

// orchid is what an exec node tells about itself. If steps lead to one job it tells of that one only: clients ask a node
// of thousands of jobs for one after the other.
func (c *Cluster) orchid(address string, steps []string) map[string]any {
	var jobs []scheduler.Job
	if one, ok := cutSteps(steps, "exec_node", "job_controller", "active_jobs"); ok && len(one) > 0 {
		if j, ok := c.scheduler.NodeJob(address, one[0]); ok {
			jobs = append(jobs, j)
		}
	} else {
		jobs = c.scheduler.NodeJobs(address)
	}
	active := map[string]any{}
	for _, j := range jobs {
		ports := make([]any, len(j.Ports))
		for i, p := range j.Ports {
			ports[i] = int64(p)
		}
		active[j.ID] = map[string]any{
			"operation_id": j.OperationID, "job_state": j.State, "job_phase": "running", "job_type": "vanilla",
			"stored": false, "interrupted": false, "start_time": timeText(j.StartTime), "job_ports": ports,
			"task_name": j.Task, "events": []any{}, "core_infos": []any{}, "statistics": map[string]any{},
			"exec_attributes": map[string]any{},
		}
	}
	return map[string]any{"exec_node": map[string]any{"job_controller": map[string]any{
		"active_jobs": active, "active_job_count": int64(len(active)), "jobs_waiting_for_cleanup": map[string]any{},
	}}}
}

// cutSteps takes the prefix off a list of steps, if it is one.
func cutSteps(steps []string, prefix ...string) (rest []string, ok bool) {
	if len(steps) < len(prefix) || !slices.Equal(steps[:len(prefix)], prefix) {
		return steps, false
	}
	return steps[len(prefix):], true
}
