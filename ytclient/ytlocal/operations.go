package ytlocal

import (
	"maps"
	"slices"
	"strings"
	"time"

	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yterrors"

	"taskproxy/ytclient/ytlocal/scheduler"
)

// operationAttributes are what list_operations and get_operation can tell.
var operationAttributes = map[string]func(op *scheduler.Operation) any{
	"id":                 func(op *scheduler.Operation) any { return op.ID },
	"type":               func(op *scheduler.Operation) any { return op.Type },
	"operation_type":     func(op *scheduler.Operation) any { return op.Type },
	"state":              func(op *scheduler.Operation) any { return op.State },
	"authenticated_user": func(op *scheduler.Operation) any { return op.User },
	"start_time":         func(op *scheduler.Operation) any { return timeText(op.StartTime) },
	"finish_time":        func(op *scheduler.Operation) any { return optionalTime(op.FinishTime) },
	"suspended":          func(op *scheduler.Operation) any { return op.Suspended },
	"brief_spec":         briefSpec,
	"spec":               func(op *scheduler.Operation) any { return op.Spec },
	"full_spec":          func(op *scheduler.Operation) any { return op.Spec },
	"provided_spec":      func(op *scheduler.Operation) any { return op.Spec },
	"unrecognized_spec":  func(*scheduler.Operation) any { return map[string]any{} },
	"runtime_parameters": runtimeParameters,
	"brief_progress":     func(op *scheduler.Operation) any { return progress(op) },
	"progress":           func(op *scheduler.Operation) any { return progress(op) },
	"result":             result,
	"task_names":         func(op *scheduler.Operation) any { return anyList(taskNames(op)) },
	"events":             func(*scheduler.Operation) any { return []any{} },
	"alerts":             func(*scheduler.Operation) any { return map[string]any{} },
	"alert_events":       func(*scheduler.Operation) any { return []any{} },
	"controller_features": func(*scheduler.Operation) any {
		return map[string]any{}
	},
	"experiment_assignment_names": func(*scheduler.Operation) any { return []any{} },
	"slot_index_per_pool_tree":    func(*scheduler.Operation) any { return map[string]any{"default": int64(0)} },
}

// briefAttributes are what list_operations tells when nobody says what to tell.
var briefAttributes = []string{
	"authenticated_user", "brief_progress", "brief_spec", "experiment_assignment_names", "finish_time", "id", "type",
	"operation_type", "runtime_parameters", "start_time", "state", "suspended",
}

// describeOperation makes the map of an operation. Attributes that it does not have yet are left out.
func describeOperation(op *scheduler.Operation, names []string) (map[string]any, error) {
	m := map[string]any{}
	for _, name := range names {
		f := operationAttributes[name]
		if f == nil {
			return nil, with(fail(yterrors.CodeNoSuchAttribute, "Attribute %.64q is not allowed", name), "attribute_name", name)
		}
		if v := f(op); v != nil {
			m[name] = v
		}
	}
	return m, nil
}

func optionalTime(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return timeText(t)
}

func briefSpec(op *scheduler.Operation) any {
	m := map[string]any{}
	if op.Title != "" {
		m["title"] = op.Title
	}
	if op.Alias != "" {
		m["alias"] = op.Alias
	}
	return m
}

func runtimeParameters(op *scheduler.Operation) any {
	acl := op.ACL
	if acl == nil {
		acl = []any{}
	}
	m := map[string]any{
		"acl":                              acl,
		"scheduling_options_per_pool_tree": map[string]any{"default": map[string]any{"pool": pool(op)}},
		"owners":                           []any{op.User},
	}
	if op.Annotations != nil {
		m["annotations"] = op.Annotations
	}
	return m
}

// pool of an operation: that of its spec, or one named like its user.
func pool(op *scheduler.Operation) string {
	if p, ok := op.Spec["pool"].(string); ok {
		return p
	}
	return op.User
}

func progress(op *scheduler.Operation) any {
	jobs := maps.Clone(op.Progress)
	m := map[string]any{"jobs": jobs, "state": op.State}
	if t, ok := jobs["build_time"]; ok {
		m["build_time"] = t
		delete(jobs, "build_time")
	}
	return m
}

func result(op *scheduler.Operation) any {
	switch op.State {
	case "completed":
		return map[string]any{"error": errorMap(&yterrors.Error{})}
	case "failed", "aborted":
		message := op.Error
		if message == "" {
			message = "Operation " + op.State
		}
		return map[string]any{"error": errorMap(fail(yterrors.CodeGeneric, "%s", message))}
	}
	return nil
}

func taskNames(op *scheduler.Operation) []string {
	tasks, _ := plain(op.Spec["tasks"]).(map[string]any)
	return sortedKeys(tasks)
}

// operationID reads which operation a command is about.
func (k *call) operationID() (string, error) {
	id, ok, err := k.params.string("operation_id")
	if err != nil || ok && id != "" {
		return id, err
	}
	alias, ok, err := k.params.string("operation_alias")
	if err != nil {
		return "", err
	}
	if !ok || !strings.HasPrefix(alias, "*") {
		return "", fail(yterrors.CodeGeneric, "operation_id, or operation_alias with its leading *, is missing")
	}
	return alias, nil
}

func (k *call) operation() (scheduler.Operation, error) {
	id, err := k.operationID()
	if err != nil {
		return scheduler.Operation{}, err
	}
	return k.c.scheduler.Operation(id)
}

// readable finds the operation that a question is about, and checks that the caller may read it: this cluster is one of the
// strict kind, so that a right that somebody lacks shows.
func (k *call) readable() (scheduler.Operation, error) {
	op, err := k.operation()
	if err != nil {
		return op, err
	}
	return op, k.mayOperate(op, "read")
}

// mayOperate checks a right of the caller on an operation.
func (k *call) mayOperate(op scheduler.Operation, permission string) error {
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	if k.c.permittedOperation(k.user, op.ACL, permission) {
		return nil
	}
	return denied(k.user, permission, "operation "+op.ID)
}

// managed finds the operation that an order is about, and checks that the caller may give it.
func (k *call) managed() (scheduler.Operation, error) {
	op, err := k.operation()
	if err != nil {
		if yterrors.ContainsErrorCode(err, yterrors.CodeAPINoSuchOperation) {
			_, e := asYT(err)
			err = fail(yterrors.CodeNoSuchOperation, "%s", e.Message) // orders go to the scheduler, which has its own code
		}
		return op, err
	}
	return op, k.mayOperate(op, "manage")
}

func runStartOperation(k *call) (any, error) {
	typ, ok, err := k.params.string("operation_type")
	if err != nil {
		return nil, err
	}
	if !ok {
		if typ, err = k.params.need("type"); err != nil {
			return nil, err
		}
	}
	if typ != "vanilla" {
		return nil, fail(yterrors.CodeGeneric, "operations of type %.64q are not supported here; vanilla ones are", typ)
	}
	spec, ok := plain(k.params["spec"]).(map[string]any)
	if !ok {
		return nil, k.params.wrong("spec", "a map")
	}
	if err := k.mayReadFiles(spec); err != nil {
		return nil, err
	}
	id, err := k.c.scheduler.Start(k.user, spec)
	if err != nil {
		return nil, err
	}
	return map[string]any{"operation_id": id}, nil
}

// mayReadFiles checks that the caller may read what the jobs will get into their sandboxes: jobs fetch without asking.
func (k *call) mayReadFiles(spec map[string]any) error {
	if err := k.lock(); err != nil {
		return err
	}
	defer k.unlock()
	tasks, _ := plain(spec["tasks"]).(map[string]any)
	for name, task := range tasks {
		m, _ := plain(task).(map[string]any)
		files, _ := plain(m["file_paths"]).([]any)
		for _, file := range files {
			p, err := parsePath(file)
			if err != nil {
				return err
			}
			n, err := k.c.find(p, nil)
			if err != nil {
				return with(fail(yterrors.CodeResolveError, "file_paths of task %.64q: %s", name, cause(err)), "path", p.text)
			}
			if err := k.allowed(n, "read"); err != nil {
				return err
			}
		}
	}
	return nil
}

func runAbortOperation(k *call) (any, error) {
	op, err := k.managed()
	if err != nil {
		return nil, err
	}
	message, _, err := k.params.string("abort_message")
	if err != nil {
		return nil, err
	}
	return map[string]any{}, k.c.scheduler.Abort(op.ID, message)
}

func runCompleteOperation(k *call) (any, error) { return k.order((*scheduler.Scheduler).Complete) }
func runSuspendOperation(k *call) (any, error)  { return k.order((*scheduler.Scheduler).Suspend) }
func runResumeOperation(k *call) (any, error)   { return k.order((*scheduler.Scheduler).Resume) }

// order gives a managed operation an order that needs nothing but its id.
func (k *call) order(do func(*scheduler.Scheduler, string) error) (any, error) {
	op, err := k.managed()
	if err != nil {
		return nil, err
	}
	return map[string]any{}, do(k.c.scheduler, op.ID)
}

func runUpdateOperationParameters(k *call) (any, error) {
	op, err := k.managed()
	if err != nil {
		return nil, err
	}
	parameters, ok := plain(k.params["parameters"]).(map[string]any)
	if !ok {
		return nil, k.params.wrong("parameters", "a map")
	}
	return nil, k.c.scheduler.UpdateParameters(op.ID, parameters)
}

func runGetOperation(k *call) (any, error) {
	op, err := k.readable()
	if err != nil {
		return nil, err
	}
	names, given, err := k.params.strings("attributes")
	if err != nil {
		return nil, err
	}
	if !given {
		names = sortedKeys(operationAttributes)
	}
	return describeOperation(&op, names)
}

func runCheckOperationPermission(k *call) (any, error) {
	op, err := k.operation()
	if err != nil {
		return nil, err
	}
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	user, permission, err := k.checkedSubject([]string{"read", "manage", "administer"})
	if err != nil {
		return nil, err
	}
	return decision(k.c.permittedOperation(user, op.ACL, permission)), nil
}

// matches reports whether text is in one of the fields that list_operations searches, whatever the case.
func matches(op *scheduler.Operation, text string) bool {
	fields := []string{op.ID, op.Type, op.State, op.User, op.Title, pool(op)}
	if op.Annotations != nil {
		if b, err := yson.MarshalFormat(op.Annotations, yson.FormatText); err == nil {
			fields = append(fields, string(b))
		}
	}
	text = strings.ToLower(text)
	return slices.ContainsFunc(fields, func(f string) bool { return strings.Contains(strings.ToLower(f), text) })
}
