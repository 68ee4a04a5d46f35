package ytlocal

import (
	"testing"

	"go.ytsaurus.tech/yt/go/yt"
	"go.ytsaurus.tech/yt/go/yterrors"
)

// Who may not read an operation does not see it, until the base ACL says otherwise, as for a robot that is installed.
func TestOperationsAreForTheirReaders(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	admin := rootClient(t, c)
	alice := client(t, c, addUser(t, c, "alice").Token)
	robot := client(t, c, addUser(t, c, "robot").Token)
	id := start(t, alice, vanilla(1, "exec sleep 1000", nil))
	job := running(t, alice, id, 1)[0].ID

	listed := func(yc yt.Client) bool {
		t.Helper()
		res, err := yc.ListOperations(t.Context(), nil)
		must(t, err)
		return len(res.Operations) == 1
	}
	ask := map[string]func(yt.Client) error{
		"get_operation":  func(yc yt.Client) error { _, err := yc.GetOperation(t.Context(), id, nil); return err },
		"list_jobs":      func(yc yt.Client) error { _, err := yc.ListJobs(t.Context(), id, nil); return err },
		"get_job":        func(yc yt.Client) error { _, err := yc.GetJob(t.Context(), id, job, nil); return err },
		"get_job_stderr": func(yc yt.Client) error { _, err := yc.GetJobStderr(t.Context(), id, job, nil); return err },
	}
	if !listed(alice) || listed(robot) {
		t.Errorf("listed for its owner: %t, for a stranger: %t", listed(alice), listed(robot))
	}
	for name, f := range ask {
		must(t, f(alice))
		if err := f(robot); !yterrors.ContainsErrorCode(err, yterrors.CodeAuthorizationError) {
			t.Errorf("%s of a stranger: %v, want code 901", name, err)
		}
	}
	set(t, admin, "//sys/operations/@acl/end", map[string]any{
		"action": "allow", "subjects": []string{"robot"}, "permissions": []string{"read"},
	})
	if !listed(robot) {
		t.Error("not listed for whom the base ACL lets read")
	}
	for name, f := range ask {
		if err := f(robot); err != nil {
			t.Errorf("%s of whom the base ACL lets read: %v", name, err)
		}
	}
}
