package ytlocal

import (
	"fmt"
	"slices"

	"go.ytsaurus.tech/yt/go/yterrors"
)

// Ready-made values of Fault.Edit: what a real cluster answers on its bad days. Each belongs to one command. An answer that
// does not have the shape of that command's is a mistake of the test, and panics.

// InState makes get_operation say that the operation is in another state than it is, such as "reviving".
func InState(state string) func(any) any {
	return edit("get_operation", func(answer map[string]any) { answer["state"] = state })
}

// WithoutOperations takes operations out of the answer of list_operations, all of them if none is named: a cache that is
// not up to date, or a scheduler that revives them.
func WithoutOperations(ids ...string) func(any) any {
	return edit("list_operations", func(answer map[string]any) { drop(answer, "operations", ids) })
}

// OddOperation puts something else into the answer of list_operations, in the place of one operation.
func OddOperation(id string, item any) func(any) any {
	return edit("list_operations", func(answer map[string]any) {
		each(answer, "operations", func(m map[string]any) any {
			if m["id"] == id {
				return item
			}
			return m
		})
	})
}

// WithoutJobs takes jobs out of the answer of list_jobs, all of them if none is named.
func WithoutJobs(ids ...string) func(any) any {
	return edit("list_jobs", func(answer map[string]any) { drop(answer, "jobs", ids) })
}

// PartialJobs makes list_jobs say that it could not ask everybody, as it does when the archive (1910) or the controller agent
// (1917) is down: it answers all the same. The named jobs are missing, because only the one that is down knows them.
func PartialJobs(code yterrors.ErrorCode, missing ...string) func(any) any {
	return edit("list_jobs", func(answer map[string]any) {
		if len(missing) > 0 {
			drop(answer, "jobs", missing)
		}
		answer["errors"] = []any{errorMap(fail(code, "a source of list_jobs does not answer"))}
	})
}

// StaleJobs makes list_jobs withdraw its word for jobs that it still tells of.
func StaleJobs(ids ...string) func(any) any {
	return edit("list_jobs", func(answer map[string]any) {
		each(answer, "jobs", func(m map[string]any) any {
			if id, _ := m["id"].(string); slices.Contains(ids, id) {
				m["is_stale"] = true
			}
			return m
		})
	})
}

// MovedJobs makes list_jobs tell another address for every job that has one in the map.
func MovedJobs(addresses map[string]string) func(any) any {
	return edit("list_jobs", func(answer map[string]any) {
		each(answer, "jobs", func(m map[string]any) any {
			if id, _ := m["id"].(string); addresses[id] != "" {
				m["address"] = addresses[id]
			}
			return m
		})
	})
}

// Ports makes the answer of get, asked for a job's ports, be these.
func Ports(ports ...int) func(any) any {
	return edit("get", func(answer map[string]any) {
		list := make([]any, len(ports))
		for i, p := range ports {
			list[i] = int64(p)
		}
		answer["value"] = list
	})
}

// RestartScheduler makes the cluster answer as while its scheduler restarts: no operation is running, each is in state
// reviving, none has jobs; jobs and nodes go on. It lasts until over is called.
func (f *Faults) RestartScheduler() (over func()) {
	removes := []func(){
		f.Add(Fault{Command: "list_operations", Edit: WithoutOperations()}),
		f.Add(Fault{Command: "get_operation", Edit: func(v any) any {
			if state, _ := v.(map[string]any)["state"].(string); state == "running" {
				return InState("reviving")(v)
			}
			return v
		}}),
		f.Add(Fault{Command: "list_jobs", Edit: WithoutJobs()}),
	}
	return func() {
		for _, remove := range removes {
			remove()
		}
	}
}

// edit makes an Edit of a change of a command's answer.
func edit(command string, change func(answer map[string]any)) func(any) any {
	return func(v any) any {
		answer, ok := v.(map[string]any)
		if !ok {
			panic(fmt.Sprintf("ytlocal: an edit for %s got an answer of type %T", command, v))
		}
		change(answer)
		return answer
	}
}

// drop takes the items with the given ids, or all, out of a list of an answer.
func drop(answer map[string]any, list string, ids []string) {
	answer[list] = slices.DeleteFunc(answer[list].([]any), func(item any) bool {
		m, ok := item.(map[string]any)
		id, _ := m["id"].(string)
		return len(ids) == 0 || ok && slices.Contains(ids, id)
	})
}

// each changes the items of a list of an answer.
func each(answer map[string]any, list string, change func(map[string]any) any) {
	items := answer[list].([]any)
	for i, item := range items {
		if m, ok := item.(map[string]any); ok {
			items[i] = change(m)
		}
	}
}
