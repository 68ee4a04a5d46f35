package ytlocal

import (
	"bytes"
	"context"
	"io"
	"slices"

	"go.ytsaurus.tech/yt/go/yterrors"
)

// Kinds of data that go into a command or come out of it, by the names that clients read in GET /api/v4.
const (
	noData     = "null"
	structured = "structured"
	binary     = "binary"
	tabular    = "tabular"
)

// command is one row of the table of commands.
type command struct {
	name     string
	input    string
	output   string
	volatile bool // changes something
	heavy    bool // moves data
	// alone commands lock Cluster.mu themselves where they need it: they read bodies or ask the scheduler.
	alone bool
	run   func(k *call) (any, error)
}

// commands is everything that the cluster understands. Kinds and flags are those of the real cluster: the Python client
// chooses HTTP methods by them.
func commands() map[string]*command {
	list := []*command{
		{name: "get", output: structured, run: runGet},
		{name: "list", output: structured, run: runList},
		{name: "exists", output: structured, run: runExists},
		{name: "set", input: structured, volatile: true, run: runSet},
		{name: "multiset_attributes", input: structured, volatile: true, run: runMultisetAttributes},
		{name: "remove", volatile: true, run: runRemove},
		{name: "create", output: structured, volatile: true, run: runCreate},
		{name: "copy", output: structured, volatile: true, run: runCopy},
		{name: "move", output: structured, volatile: true, run: runMove},
		{name: "link", output: structured, volatile: true, run: runLink},
		{name: "lock", output: structured, volatile: true, run: runLock},
		{name: "unlock", output: structured, volatile: true, run: runUnlock},

		{name: "start_transaction", output: structured, volatile: true, run: runStartTransaction},
		{name: "ping_transaction", volatile: true, run: runPingTransaction},
		{name: "commit_transaction", volatile: true, run: runCommitTransaction},
		{name: "abort_transaction", volatile: true, run: runAbortTransaction},

		{name: "write_table", input: tabular, volatile: true, heavy: true, alone: true, run: runWriteTable},
		{name: "read_table", output: tabular, heavy: true, run: runReadTable},
		{name: "write_file", input: binary, volatile: true, heavy: true, alone: true, run: runWriteFile},
		{name: "read_file", output: binary, heavy: true, run: runReadFile},

		{name: "start_operation", output: structured, volatile: true, alone: true, run: runStartOperation},
		{name: "abort_operation", volatile: true, alone: true, run: runAbortOperation},
		{name: "complete_operation", volatile: true, alone: true, run: runCompleteOperation},
		{name: "suspend_operation", volatile: true, alone: true, run: runSuspendOperation},
		{name: "resume_operation", volatile: true, alone: true, run: runResumeOperation},
		{name: "update_operation_parameters", volatile: true, alone: true, run: runUpdateOperationParameters},
		{name: "list_operations", output: structured, alone: true, run: runListOperations},
		{name: "get_operation", output: structured, alone: true, run: runGetOperation},
		{name: "list_jobs", output: structured, alone: true, run: runListJobs},
		{name: "get_job", output: structured, alone: true, run: runGetJob},
		{name: "get_job_stderr", output: binary, heavy: true, alone: true, run: runGetJobStderr},
		{name: "check_operation_permission", output: structured, alone: true, run: runCheckOperationPermission},
		{name: "check_permission", output: structured, run: runCheckPermission},

		{name: "add_member", volatile: true, run: runAddMember},
		{name: "remove_member", volatile: true, run: runRemoveMember},
		{name: "issue_token", output: structured, volatile: true, run: runIssueToken},
		{name: "revoke_token", volatile: true, run: runRevokeToken},
		{name: "list_user_tokens", output: structured, run: runListUserTokens},
		{name: "get_current_user", output: structured, run: runGetCurrentUser},

		{name: "execute_batch", output: structured, volatile: true, alone: true, run: runExecuteBatch},
	}
	byName := make(map[string]*command, len(list))
	for _, cmd := range list {
		if cmd.input == "" {
			cmd.input = noData
		}
		if cmd.output == "" {
			cmd.output = noData
		}
		byName[cmd.name] = cmd
	}
	return byName
}

// call is one call of one command.
type call struct {
	c      *Cluster
	ctx    context.Context
	cmd    *command
	user   string
	params params
	in     format    // of the body
	out    format    // of the answer
	body   io.Reader // data behind the parameters, inflated
	given  *any      // structured input that came decoded, inside a batch
	value  any       // structured input, read before Cluster.mu is taken

	// Set under Cluster.mu.
	tx            *transaction
	prerequisites []*transaction
}

// lock takes Cluster.mu and finds the transactions of the call, which must be alive now. On an error nothing is locked.
func (k *call) lock() error {
	k.c.mu.Lock()
	if err := k.bindTransactions(); err != nil {
		k.c.mu.Unlock()
		return err
	}
	return nil
}

func (k *call) unlock() { k.c.mu.Unlock() }

// bindTransactions finds the transaction that the call runs in and those that it depends on.
func (k *call) bindTransactions() error {
	k.c.reap()
	k.tx, k.prerequisites = nil, nil
	id, ok, err := k.params.string("transaction_id")
	if err != nil {
		return err
	}
	if ok && id != "" && id != "0-0-0-0" {
		if k.tx, err = k.c.transactionByID(id); err != nil {
			return err
		}
		ping, _, err := k.params.bool("ping")
		if err != nil {
			return err
		}
		if ping {
			k.c.ping(k.tx, true)
		}
	}
	ids, _, err := k.params.strings("prerequisite_transaction_ids")
	if err != nil {
		return err
	}
	for _, id := range ids {
		t := k.c.txs[id]
		if t == nil {
			return failPrerequisite(id)
		}
		k.prerequisites = append(k.prerequisites, t)
	}
	return nil
}

// input is the structured value behind the parameters.
func (k *call) input() any {
	if k.given != nil {
		return *k.given
	}
	return k.value
}

// readInput reads and decodes structured input. It waits for the client, so it must not hold Cluster.mu.
func (k *call) readInput() error {
	if k.cmd.input != structured || k.given != nil {
		return nil
	}
	data, err := readAll(k.body, maxStructured)
	if err != nil {
		return err
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return fail(yterrors.CodeGeneric, "%s needs a value in its body", k.cmd.name)
	}
	k.value, err = k.in.decode(data)
	return err
}

// invoke runs the command of the call. The result is a value, a stream, or nil for an empty answer.
func (k *call) invoke() (any, error) {
	if err := k.readInput(); err != nil {
		return nil, err
	}
	if k.cmd.alone {
		if err := k.lock(); err != nil { // dead transactions fail every command
			return nil, err
		}
		k.unlock()
		return k.cmd.run(k)
	}
	result, err := k.runLocked()
	if later, ok := result.(deferred); ok && err == nil {
		return later()
	}
	return result, err
}

func (k *call) runLocked() (any, error) {
	if err := k.lock(); err != nil {
		return nil, err
	}
	defer k.unlock()
	return k.cmd.run(k)
}

// descriptors is the answer of GET /api/v4.
func (c *Cluster) descriptors() []map[string]any {
	list := []map[string]any{}
	for _, name := range sortedKeys(c.commands) {
		cmd := c.commands[name]
		list = append(list, map[string]any{
			"name": cmd.name, "input_type": cmd.input, "output_type": cmd.output,
			"is_volatile": cmd.volatile, "is_heavy": cmd.heavy,
		})
	}
	return list
}

// describe is the call as faults see it.
func (k *call) describe() Call { return Call{Command: k.cmd.name, User: k.user, Params: k.params} }

// maxBatch bounds the requests of one batch.
const maxBatch = 10_000

// defaultConcurrency is how many requests of a batch the cluster runs at once when nobody says.
const defaultConcurrency = 50

// runExecuteBatch runs light commands one after another; each has its own result or error.
func runExecuteBatch(k *call) (any, error) {
	requests, ok := plain(k.params["requests"]).([]any)
	if !ok {
		return nil, k.params.wrong("requests", "a list")
	}
	if len(requests) > maxBatch {
		return nil, fail(yterrors.CodeGeneric, "a batch of %d requests is too long: at most %d", len(requests), maxBatch)
	}
	concurrency, ok, err := k.params.int("concurrency")
	if err != nil {
		return nil, err
	}
	if !ok {
		concurrency = defaultConcurrency
	}
	if concurrency < 1 || concurrency > maxBatch {
		return nil, fail(yterrors.CodeGeneric, "concurrency %d is out of range: 1 to %d", concurrency, maxBatch)
	}
	// All at once, since timers are too coarse for a fraction of a call.
	if err := k.c.faults.charge(k.ctx, len(requests), int(concurrency)); err != nil {
		return nil, err
	}
	results := make([]any, 0, len(requests))
	for i, item := range requests {
		if err := k.ctx.Err(); err != nil {
			return nil, err
		}
		sub, err := k.batched(item)
		if err != nil {
			return nil, fail(yterrors.CodeGeneric, "request %d of the batch: %s", i, cause(err))
		}
		results = append(results, sub.batchResult())
	}
	return map[string]any{"results": results}, nil
}

// batched makes a call of one request of a batch.
func (k *call) batched(item any) (*call, error) {
	m, ok := plain(item).(map[string]any)
	if !ok {
		return nil, fail(yterrors.CodeGeneric, "must be a map, not %T", plain(item))
	}
	name, _ := plain(m["command"]).(string)
	cmd := k.c.commands[name]
	if cmd == nil {
		return nil, fail(yterrors.CodeGeneric, "unknown command %.64q", name)
	}
	light := []string{noData, structured}
	if cmd.heavy || cmd.name == k.cmd.name || !slices.Contains(light, cmd.input) || !slices.Contains(light, cmd.output) {
		return nil, fail(yterrors.CodeGeneric, "command %s cannot be part of a batch", name)
	}
	sub := &call{c: k.c, ctx: k.ctx, cmd: cmd, user: k.user, params: params{}, body: bytes.NewReader(nil)}
	if p, ok := plain(m["parameters"]).(map[string]any); ok {
		sub.params = p
	} else if m["parameters"] != nil {
		return nil, fail(yterrors.CodeGeneric, "parameters must be a map, not %T", plain(m["parameters"]))
	}
	if input, ok := m["input"]; ok {
		sub.given = &input
	} else if cmd.input == structured {
		return nil, fail(yterrors.CodeGeneric, "command %s needs an input", name)
	}
	return sub, nil
}

// batchResult runs a call of a batch.
func (k *call) batchResult() map[string]any {
	fault := k.c.faults.take(k.describe())
	result, err := any(nil), fault.wait(k.ctx)
	if err == nil && fault != nil && fault.Error != nil {
		err = fault.Error
	}
	if err == nil {
		result, err = k.invoke()
	}
	switch {
	case err != nil:
		_, e := asYT(err)
		return map[string]any{"error": errorMap(e)}
	case k.cmd.output == noData:
		return map[string]any{}
	}
	return map[string]any{"output": fault.edit(result)}
}
