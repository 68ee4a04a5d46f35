package serve

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"taskproxy/discovery"
	"taskproxy/ytclient/ytlocal"
	"taskproxy/ytclient/ytlocal/scheduler"
)

// What the flags of the gate say is what the gate does.
func TestFlagsReachTheGate(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	alice, err := cluster.AddUser("alice")
	must(t, err)
	job := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("Cookie")+" "+r.Header.Get("X-Forwarded-Proto")+" "+r.Header.Get("X-Forwarded-For"))
	}))
	t.Cleanup(job.Close)
	publish(t, cluster, job)
	host := func(r *http.Request) {
		r.Host = discovery.Domain(discovery.ShortID("1-2-3e803e8-4", "server", "port_0"), "tp.example.net")
	}
	p := startProcess(t, cluster, cluster.RootToken(), "--frame-ancestors=https://ui.example.net,https://other.example.net:8443", "--auth-cookie-name=YTCypressCookie",
		"--forward-credentials-to=alice", "--public-scheme=https", "--trusted-proxies=127.0.0.0/8", "--login-url=https://yt.example.net/login")
	cookie := header("Cookie", "YTCypressCookie="+alice.Cookie)
	var a answer
	until(t, "the service is there", func() bool {
		a = get(t, "http://"+p.Public+"/", host, cookie, header("X-Forwarded-For", "192.0.2.7"))
		return a.status == http.StatusOK
	})
	if csp := a.header.Get("Content-Security-Policy"); !strings.Contains(csp, "'self' https://ui.example.net https://other.example.net:8443") {
		t.Errorf("Content-Security-Policy %q", csp)
	}
	if want := "YTCypressCookie=" + alice.Cookie + " https 192.0.2.7"; !strings.HasPrefix(a.body, want) {
		t.Errorf("the job got other headers than the flags say")
	}
	a = get(t, "http://"+p.Public+"/", host, header("Accept", "text/html"), header("Sec-Fetch-Mode", "navigate"), header("Sec-Fetch-Dest", "document"))
	if a.status != http.StatusUnauthorized || !strings.Contains(a.body, "https://yt.example.net/login") {
		t.Errorf("no link to the login: %d %s", a.status, a.body)
	}
}

// When the cluster has no authentication any more, nobody is let in as whoever it says they are.
func TestAuthenticationThatGoesAway(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	body := `{"login":"alice"}`
	// The first questions are asked before anything is served: who the robot is, and, four times, who nobody is.
	var asked atomic.Int32
	cluster.Faults().Add(ytlocal.Fault{Command: "whoami", Body: &body, Match: func(ytlocal.Call) bool { return asked.Add(1) > 5 }})
	p := startProcess(t, cluster, cluster.RootToken())
	until(t, "nobody is let in", func() bool {
		return get(t, "http://"+p.Public+"/", header("Authorization", "OAuth anybody's"), header("x-yt-taskproxy-id", "00000000")).header.Get("X-Yt-Taskproxy-Error") == "cluster_auth_off"
	})
}

// The debug listener shows what the process knows; no other one does, and without it there is none.
func TestDebugListener(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	job := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(job.Close)
	publish(t, cluster, job)
	must(t, cluster.Scheduler().Pretend(scheduler.Operation{ID: "1-2-3e803e8-6", User: "mallory", Annotations: map[string]any{"task_proxy": "yes"}}, nil))
	p := startProcess(t, cluster, cluster.RootToken(), "--admin-hosts=debug.example.com")
	want := `"domain":"` + discovery.Domain(discovery.ShortID("1-2-3e803e8-4", "server", "port_0"), "tp.example.net") + `"`
	until(t, "the service and the problem are there", func() bool {
		a := get(t, "http://"+p.Debug+"/routes")
		return strings.Contains(a.body, want) && strings.Contains(a.body, `"state":"usable"`) && strings.Contains(a.body, `"kind":"bad_annotation","operation_id":"1-2-3e803e8-6"`)
	})
	for _, address := range []string{p.Public, p.Admin} {
		for _, path := range []string{"/routes", "/debug/pprof/cmdline"} {
			if a := get(t, "http://"+address+path, header("x-yt-taskproxy-id", "00000000")); a.status == http.StatusOK {
				t.Errorf("%s is on another listener too", path)
			}
		}
	}
	for host, status := range map[string]int{"debug.example.com": http.StatusOK, "evil.test": http.StatusMisdirectedRequest} {
		if a := get(t, "http://"+p.Debug+"/routes", func(r *http.Request) { r.Host = host }); a.status != status {
			t.Errorf("%s: %d, want %d", host, a.status, status)
		}
	}
	if a := get(t, "http://"+p.Debug+"/routes"); strings.Contains(a.body, cluster.RootToken()) {
		t.Error("it shows the robot's token")
	}
	if p := startProcess(t, cluster, cluster.RootToken(), "--debug-listen="); p.Debug != "" {
		t.Errorf("there is one at %s", p.Debug)
	}
}
