package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskproxy/ytclient/ytlocal/scheduler"
)

// The static binary serves where nothing else is: its root holds it, the authorities' certificates and the mounted token, none of
// which it can write; there is no /proc, no /tmp, no environment, and its user has no name, no home and no rights.
func TestNothingButTheBinary(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "root")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	cluster := startCluster(t, false)
	for _, dir := range []string{"etc/ssl/certs", "etc/yt"} {
		must(os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	must(os.WriteFile(filepath.Join(root, "etc/yt/token"), []byte(cluster.RootToken()), 0o444))
	authorities, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	if err != nil {
		t.Logf("the image's authorities are left out: %v", err)
	}
	must(os.WriteFile(filepath.Join(root, "etc/ssl/certs/ca-certificates.crt"), authorities, 0o444))
	binary := filepath.Join(root, "task-proxy")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	info, err := os.Stat(binary)
	must(err)
	t.Logf("the binary has %.1f MB", float64(info.Size())/(1<<20))

	job := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }))
	t.Cleanup(job.Close)
	const id = "1-2-3e803e8-4"
	must(cluster.Scheduler().Pretend(scheduler.Operation{
		ID: id, User: "root", Annotations: map[string]any{"task_proxy": map[string]any{"enabled": true}},
		Spec: map[string]any{"tasks": map[string]any{"server": map[string]any{"job_count": int64(1), "port_count": int64(1)}}},
	}, []scheduler.Job{{ID: "1-2-3840384-5", Task: "server", Address: "127.0.0.1:9012", Ports: []int{job.Listener.Addr().(*net.TCPAddr).Port}}}))

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var output buffer
	p := exec.CommandContext(ctx, "/task-proxy", "--yt-proxy="+cluster.URL(), "--yt-token-path=/etc/yt/token", "--base-domain=tp.example.net",
		"--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--debug-listen=", "--discovery-period=100ms", "--shutdown-delay=0s")
	p.Dir, p.Env, p.Stdout, p.Stderr = "/", []string{}, &output, &output
	if os.Geteuid() == 0 {
		must(os.Chmod(filepath.Dir(root), 0o755))
		must(os.Chmod(root, 0o555))
		// OpenShift gives a container any number as its user, and the group 0.
		p.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 1_000_670_000, Gid: 0}}
	} else {
		t.Log("only root can change the root directory and the user: the binary runs here, as this user, without an environment")
		p.Path, p.Dir = binary, root
		p.Args[2] = "--yt-token-path=" + filepath.Join(root, "etc/yt/token")
	}
	must(p.Start())
	ended := make(chan error, 1)
	go func() { ended <- p.Wait() }()
	logged := func(key string) string {
		_, rest, _ := strings.Cut(output.String(), `"`+key+`":"`)
		value, _, _ := strings.Cut(rest, `"`)
		return value
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for !ok() {
			select {
			case err := <-ended:
				t.Fatalf("it ended before %s: %v\n%s", what, err, &output)
			case <-ctx.Done():
				t.Fatalf("waited in vain until %s\n%s", what, &output)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	until("it serves", func() bool { return logged("listen") != "" })
	transport := &http.Transport{DisableKeepAlives: true}
	ask := func(url string) (status int, body string) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		must(err)
		req.Header = http.Header{"Authorization": {"OAuth " + cluster.RootToken()}, "X-Yt-Taskproxy-Operation-Id": {id},
			"X-Yt-Taskproxy-Task-Name": {"server"}, "X-Yt-Taskproxy-Service": {"port_0"}}
		res, err := transport.RoundTrip(req)
		if err != nil {
			return 0, err.Error()
		}
		defer res.Body.Close()
		content, err := io.ReadAll(res.Body)
		must(err)
		return res.StatusCode, string(content)
	}
	until("the job answers through it", func() bool {
		status, body := ask("http://" + logged("listen") + "/")
		return status == http.StatusOK && body == "here"
	})
	if status, body := ask("http://" + logged("admin_listen") + "/metrics"); status != http.StatusOK || !strings.Contains(body, "\nyt_task_proxy_endpoints 1\n") {
		t.Errorf("its metrics: %d", status)
	}
	must(p.Process.Signal(syscall.SIGTERM))
	if err := <-ended; err != nil {
		t.Errorf("its end: %v", err)
	}
	if text := output.String(); strings.Contains(text, `"level":"WARN"`) || strings.Contains(text, `"level":"ERROR"`) {
		t.Errorf("it complains:\n%s", text)
	}
}
