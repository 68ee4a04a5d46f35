package serve

import (
	"encoding/json"
	"net/http"
	"testing"

	"taskproxy/discovery"
	"taskproxy/examples/http-service/httpservice"
)

// A browser stays with its job whichever replica it comes to, also one that starts later, and until the annotation does not
// ask for it any more.
func TestAffinityOfReplicas(t *testing.T) {
	t.Parallel()
	c := startTestCluster(t)
	id := c.start(t, c.alice, "server", 2, map[string]any{"enabled": true, "affinity": "cookie"})
	c.jobs(t, id, 2)
	const period = "--discovery-period=200ms"
	visit := func(r *replica, cookie *http.Cookie) (job string, set *http.Cookie) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.Public+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = discovery.ShortID(id, "server", "port_0") + "." + base
		req.Header.Set("Authorization", "OAuth "+c.alice.Token)
		req.Header.Set("Accept", "application/json")
		if cookie != nil {
			req.AddCookie(cookie)
		}
		res, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var answer httpservice.Answer
		if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || answer.Job.JobID == "" {
			t.Fatalf("%s: %v", res.Status, err)
		}
		for _, c := range res.Cookies() {
			set = c
		}
		return answer.Job.JobID, set
	}
	first := c.startReplica(t, period)
	until(t, "both jobs are endpoints", func() bool { return first.metric(t, "endpoints") == 2 })
	pinned, cookie := visit(first, nil)
	if cookie == nil {
		t.Fatal("no cookie")
	}
	second := c.startReplica(t, period)
	until(t, "both jobs are endpoints", func() bool { return second.metric(t, "endpoints") == 2 })
	for range 3 {
		for _, r := range []*replica{first, second} {
			if job, set := visit(r, cookie); job != pinned || set != nil {
				t.Errorf("got job %s and cookie %v, want %s", job, set, pinned)
			}
		}
	}
	// The cluster patches annotations: what is left out stays.
	err := c.Scheduler().UpdateParameters(id, map[string]any{"annotations": map[string]any{"task_proxy": map[string]any{"affinity": "none"}}})
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the browser comes to the other job", func() bool {
		job, set := visit(second, cookie)
		return job != pinned && set == nil
	})
}
