package discovery

import "taskproxy/ytclient"

// notebookTask is the task of a JupYT operation.
const notebookTask = "jupyter"

// claimsNotebook finds JupYT's operations, which carry is_notebook.
func claimsNotebook(annotations map[string]any) (verdict, []Problem) {
	if isTrue(annotations, "is_notebook") {
		return mine, nil
	}
	return notMine, nil
}

// declareNotebook publishes the notebook's page on its task's only port. Whoever gets in runs code as the operation's user.
func declareNotebook(_ map[string]any, tasks []ytclient.Task) ([]declaration, []Problem) {
	var r reading
	task, ok := taskNamed(tasks, notebookTask)
	switch {
	case !ok:
		r.problem(UnknownTask, notebookTask, "", "the operation is a notebook by its annotations, but does not have this task")
	case task.PortCount < 1:
		r.problem(BadPortIndex, notebookTask, "", "the notebook's task has no port; set its port_count to 1")
	default:
		return []declaration{{task: notebookTask, name: "ui", protocol: HTTP, permissions: readAndManage}}, nil
	}
	return nil, r.problems
}

// claimsClique finds CHYT's operations, whose ports speak protocols of their own and are reached through the cluster's
// HTTP proxies: none of them is published, also when the operation carries a task_proxy.
func claimsClique(annotations map[string]any) (verdict, []Problem) {
	if isTrue(annotations, "is_clique") {
		return nothing, nil
	}
	return notMine, nil
}

// isTrue reads a mark that other products set on their operations. Some write it as a string.
func isTrue(annotations map[string]any, key string) bool {
	switch v := at(annotations, key).(type) {
	case bool:
		return v
	case string:
		return v == "true" || v == "True"
	}
	return false
}

func taskNamed(tasks []ytclient.Task, name string) (ytclient.Task, bool) {
	for _, t := range tasks {
		if t.Name == name {
			return t, true
		}
	}
	return ytclient.Task{}, false
}
