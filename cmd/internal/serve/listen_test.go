package serve

import (
	"encoding/pem"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskproxy/ytclient/ytlocal"
	"taskproxy/ytclient/ytlocal/scheduler"
)

// The listeners are at [::1], or at both families; what they say of themselves, and whom they serve by Host, is so too. The job is at an
// address of IPv6.
func TestListenersOfIPv6(t *testing.T) {
	t.Parallel()
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Logf("nothing is tried: this machine has no IPv6: %v", err)
		return
	} else {
		l.Close()
	}
	cluster, err := ytlocal.Start(ytlocal.Config{StateDir: t.TempDir(), Nodes: []string{"[::1]:9012"}})
	must(t, err)
	t.Cleanup(func() { must(t, cluster.Close()) })
	alice, err := cluster.AddUser("alice")
	must(t, err)
	job := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RemoteAddr) }))
	job.Listener.Close()
	job.Listener, err = net.Listen("tcp", "[::1]:0")
	must(t, err)
	job.Start()
	t.Cleanup(job.Close)
	const id = "1-2-3e803e8-4"
	must(t, cluster.Scheduler().Pretend(scheduler.Operation{
		ID: id, User: "alice", Annotations: map[string]any{"task_proxy": map[string]any{"enabled": true}},
		ACL:  []any{map[string]any{"action": "allow", "subjects": []any{"alice"}, "permissions": []any{"read"}}},
		Spec: map[string]any{"tasks": map[string]any{"server": map[string]any{"job_count": int64(1), "port_count": int64(1)}}},
	}, []scheduler.Job{{ID: "1-2-3840384-5", Task: "server", Address: "[::1]:9012", Ports: []int{job.Listener.Addr().(*net.TCPAddr).Port}}}))
	names := []func(*http.Request){header("x-yt-taskproxy-operation-id", id), header("x-yt-taskproxy-task-name", "server"),
		header("x-yt-taskproxy-service", "port_0"), header("Authorization", "OAuth "+alice.Token)}

	for _, tt := range []struct {
		listen string
		hosts  []string
	}{
		{"[::1]:0", []string{"[::1]"}},
		{":0", []string{"[::1]", "127.0.0.1"}},
		{"[::]:0", []string{"[::1]", "127.0.0.1"}},
	} {
		t.Run(tt.listen, func(t *testing.T) {
			t.Parallel()
			p := startProcess(t, cluster, cluster.RootToken(), "--listen="+tt.listen, "--admin-listen="+tt.listen, "--debug-listen="+tt.listen)
			at := func(host, address string) string {
				_, port, err := net.SplitHostPort(address)
				must(t, err)
				return "http://" + host + ":" + port
			}
			for _, host := range tt.hosts {
				var a answer
				until(t, "the job answers at "+host, func() bool { a = get(t, at(host, p.Public)+"/", names...); return a.status == http.StatusOK })
				if !strings.HasPrefix(a.body, "[::1]:") {
					t.Errorf("the job was called from %s", a.body)
				}
				for url, want := range map[string]string{
					at(host, p.Admin) + "/healthz": "ok", at(host, p.Admin) + "/readyz": "ok", at(host, p.Debug) + "/routes": `"[::1]:`,
				} {
					if a := get(t, url); a.status != http.StatusOK || !strings.Contains(a.body, want) {
						t.Errorf("%s: %d %s", url, a.status, a.body)
					}
					// A page that bent its own name to this address.
					if a := get(t, url, func(r *http.Request) { r.Host = "evil.test" }); a.status != http.StatusMisdirectedRequest {
						t.Errorf("%s by another name: %d", url, a.status)
					}
				}
			}
		})
	}
}

// A cluster whose certificate is of a private authority is trusted with --yt-ca-file, and not without.
func TestPrivateAuthorityOfTheCluster(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	target, err := url.Parse(cluster.URL())
	must(t, err)
	transport := new(http.Transport)
	t.Cleanup(transport.CloseIdleConnections)
	front := httptest.NewUnstartedServer(&httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }})
	front.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	front.StartTLS()
	t.Cleanup(front.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	must(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw}), 0o600))

	p := startProcess(t, cluster, cluster.RootToken(), "--yt-proxy="+front.URL, "--yt-ca-file="+ca)
	until(t, "it is ready", func() bool { return get(t, "http://"+p.Admin+"/readyz").status == http.StatusOK })

	token := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(token, []byte(cluster.RootToken()), 0o600))
	flags := []string{"--yt-proxy=" + front.URL, "--yt-token-path=" + token, "--base-domain=" + base, "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0",
		"--debug-listen=", "--startup-timeout=0s"}
	cfg, err := ParseConfig(flags, env(nil), nil)
	must(t, err)
	if err := Run(t.Context(), cfg, slog.New(slog.DiscardHandler), nil); err == nil || !strings.Contains(err.Error(), "certificate signed by unknown authority") {
		t.Errorf("without it: %v", err)
	}
	empty := filepath.Join(t.TempDir(), "empty.pem")
	must(t, os.WriteFile(empty, []byte("no certificate\n"), 0o600))
	cfg, err = ParseConfig(append(flags, "--yt-ca-file="+empty), env(nil), nil)
	if err == nil {
		err = Run(t.Context(), cfg, slog.New(slog.DiscardHandler), nil)
	}
	if err == nil || !strings.Contains(err.Error(), "yt-ca-file") {
		t.Errorf("a file without a certificate: %v", err)
	}
}
