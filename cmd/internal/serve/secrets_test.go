package serve

import (
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"

	"taskproxy/ytclient/ytlocal"
)

// A process that has seen every kind of credentials, good and bad, whole and broken, in all the places where callers put
// them, has not said any of them: in the log, with everything on, in the metrics, or in an answer to somebody.
func TestSecretsAreKept(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"json", "text"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			testSecrets(t, format)
		})
	}
}

func testSecrets(t *testing.T, format string) {
	cluster := startCluster(t)
	user := func(login string) ytlocal.User {
		u, err := cluster.AddUser(login)
		must(t, err)
		return u
	}
	alice, bob, robot := user("alice"), user("bob"), cluster.RootToken()
	const wrong, basic, query = "wrong-4b1d", "basic-77aa", "query-90ce"
	secrets := map[string]string{
		"the robot's token": robot, "alice's token": alice.Token, "alice's cookie": alice.Cookie, "bob's token": bob.Token, "bob's cookie": bob.Cookie,
		"a wrong token": wrong, "a service's password": basic, "that password, encoded": base64.StdEncoding.EncodeToString([]byte("alice:" + basic)),
		"a secret in a query": query,
	}

	// A job that says all that it was told wherever it can, also in what is no HTTP.
	job := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all := strings.NewReplacer("\r", " ", "\n", " ").Replace(fmt.Sprint(r.Header, r.URL, r.Host))
		switch r.URL.Path {
		case "/broken":
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				fmt.Fprintf(conn, "HTTP/1.1 %s\r\n\r\n", all)
				conn.Close()
			}
		case "/early":
			w.Header().Set("Link", all)
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Set("Location", "http://x/"+url.PathEscape(all))
			w.WriteHeader(http.StatusFound)
		default:
			_, _ = io.WriteString(w, all)
		}
	}))
	t.Cleanup(job.Close)
	service := publish(t, cluster, job)

	// Alice's service is one that an admin trusts with credentials, so that they go as far as they ever do.
	p := startProcess(t, cluster, robot, "--log-format="+format, "--forward-credentials-to=alice", "--login-url=https://yt.example.net/login")
	var said []string // answers to people, none of whom may learn another's secret
	call := func(path string, edit ...func(*http.Request)) answer {
		t.Helper()
		a := get(t, "http://"+p.Public+path, append(edit, service...)...)
		if a.status != http.StatusOK && a.status != http.StatusFound { // these are the job's, which tells callers what they sent
			said = append(said, fmt.Sprint(a))
		}
		return a
	}
	until(t, "the service is there", func() bool { return call("/", header("Authorization", "OAuth "+alice.Token)).status == http.StatusOK })

	good := map[string][]func(*http.Request){
		"token":          {header("Authorization", "OAuth "+alice.Token)},
		"bearer":         {header("Authorization", "Bearer "+alice.Token)},
		"our header":     {header("X-Yt-Taskproxy-Authorization", "OAuth "+alice.Token), header("Authorization", "Bearer "+basic)},
		"cookie":         {header("Cookie", "YTCypressCookie="+alice.Cookie)},
		"cookie, spaced": {header("Cookie", "YTCypressCookie "+alice.Cookie)},
		"with a page":    {header("Authorization", "OAuth "+alice.Token), header("Origin", "https://x"), header("Sec-Fetch-Site", "none"), header("X-Csrf-Token", wrong)},
	}
	for name, credentials := range good {
		for path, want := range map[string]int{"/?token=" + query: 200, "/early": 302, "/broken": 502} {
			if a := call(path, credentials...); a.status != want {
				t.Errorf("%s, %s: status %d, want %d: %s", name, path, a.status, want, a.body)
			}
		}
	}
	bad := map[string]struct {
		want        int
		credentials []func(*http.Request)
	}{
		"not allowed":         {403, []func(*http.Request){header("Authorization", "OAuth "+bob.Token)}},
		"cookie, not allowed": {403, []func(*http.Request){header("Cookie", "YTCypressCookie="+bob.Cookie)}},
		"wrong":               {401, []func(*http.Request){header("Authorization", "OAuth "+wrong)}},
		"wrong cookie":        {401, []func(*http.Request){header("Cookie", "YTCypressCookie="+wrong)}},
		"basic":               {401, []func(*http.Request){func(r *http.Request) { r.SetBasicAuth("alice", basic) }}},
		"two words":           {401, []func(*http.Request){header("Authorization", "OAuth "+alice.Token+" "+wrong)}},
		"odd bytes":           {401, []func(*http.Request){header("Authorization", "OAuth "+alice.Token+"\xff")}},
		"two cookies":         {401, []func(*http.Request){header("Cookie", "YTCypressCookie="+alice.Cookie+"; YTCypressCookie="+bob.Cookie)}},
		"a page's doing":      {403, []func(*http.Request){header("Cookie", "YTCypressCookie="+alice.Cookie), header("Sec-Fetch-Site", "same-site"), header("Origin", "https://y.tp.example.net")}},
		"another service": {400, []func(*http.Request){header("Authorization", "OAuth "+alice.Token),
			func(r *http.Request) { r.Host = "00000000.tp.example.net" }}},
		"a browser": {401, []func(*http.Request){header("Cookie", "YTCypressCookie="+wrong), header("Sec-Fetch-Mode", "navigate"), header("Sec-Fetch-Dest", "document"), header("Accept", "text/html")}},
		"gRPC":      {200, []func(*http.Request){header("Content-Type", "application/grpc"), header("Authorization", "Bearer "+wrong)}},
		"WebSocket": {401, []func(*http.Request){header("Connection", "Upgrade"), header("Upgrade", "websocket"), header("Authorization", "OAuth "+wrong)}},
	}
	for name, c := range bad {
		for _, path := range []string{"/", "/?token=" + query} {
			if a := call(path, c.credentials...); a.status != c.want {
				t.Errorf("%s: status %d, want %d: %s", name, a.status, c.want, a.body)
			}
		}
	}
	said = append(said, raw(t, p.Public, "GET / HTTP/1.1\r\nHost: a\r\nAuthorization : OAuth "+alice.Token+"\r\n\r\n"),
		raw(t, p.Public, "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: OAuth "+alice.Token+"\r\n folded: "+wrong+"\x00\r\n\r\n"),
		raw(t, p.Public, "OAuth "+alice.Token+" HTTP/1.1\r\n\r\n"))

	// The cluster's troubles, the robot's first of all, are told without secrets too.
	remove := cluster.Faults().Add(ytlocal.Fault{Status: 503})
	call("/", header("Authorization", "OAuth "+bob.Token), header("Cookie", "YTCypressCookie="+bob.Cookie))
	until(t, "a cycle fails", func() bool { return strings.Contains(p.log.String(), "503") })
	remove()
	must(t, os.WriteFile(p.token, []byte(wrong+"\n"), 0o600))
	until(t, "the robot is refused", func() bool {
		return strings.Contains(p.log.String(), "token changed") && strings.Contains(p.log.String(), "no such token")
	})
	must(t, os.WriteFile(p.token, []byte(robot+"\n\n"), 0o600))

	admin := ""
	for _, path := range []string{"/metrics", "/readyz", "/healthz", "/nonsense?token=" + query} {
		a := get(t, "http://"+p.Admin+path, header("Authorization", "OAuth "+robot))
		admin += fmt.Sprint(a)
	}
	p.stop()

	outputs := map[string]string{"the log": p.log.String(), "the admin listener": admin, "an answer": strings.Join(said, "\n")}
	for where, text := range outputs {
		for name, secret := range secrets {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%s is in %s: …%s…", name, where, strings.ReplaceAll(text[max(0, i-200):min(len(text), i+100)], secret, "<here>"))
			}
		}
	}
	// This would be worth nothing if the outputs were not what they are taken for.
	for where, want := range map[string][]string{
		"the log":            {"alice", "bob", "1-2-3e803e8-4", "shut down"},
		"the admin listener": {"yt_task_proxy_", "go_goroutines"},
		"an answer":          {"401", "403", "X-Yt-Taskproxy-Error"},
	} {
		for _, w := range want {
			if !strings.Contains(outputs[where], w) {
				t.Errorf("nothing of %q in %s:\n%.4000s", w, where, outputs[where])
			}
		}
	}
}

// raw writes bytes to a listener and returns what it answers.
func raw(t *testing.T, address, request string) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	must(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, request)
	must(t, err)
	answer, err := io.ReadAll(conn)
	must(t, err)
	return string(answer)
}

// A secret in a place where it does not belong is not repeated.
func TestConfigurationKeepsSecrets(t *testing.T) {
	t.Parallel()
	const secret = "y1_AQAD-5ecre7"
	with := func(args ...string) []string {
		return append([]string{"--yt-proxy=localhost", "--yt-token-path=/t", "--base-domain=tp.example.net"}, args...)
	}
	for _, args := range [][]string{
		with("--yt-token-path=" + secret), with("--yt-token-path="+secret, "--nonsense"), with("--token", secret), with("--token=" + secret),
		with("--yt-proxy=http://robot:" + secret + "@host"), with("--yt-proxy=robot:" + secret + "@host"), with("--yt-proxy=http://" + secret + "@host"),
		with("--frame-ancestors=https://robot:" + secret + "@a.example"), with("--login-url=https://robot:" + secret + "@a.example/"),
	} {
		said := ""
		cfg, err := ParseEnviron(args, []string{}, io.Discard)
		if err == nil {
			_, err = RobotToken(cfg, slog.New(slog.DiscardHandler))
		}
		if err != nil {
			said = err.Error()
		}
		if said += cfg.Effective; said == "" || strings.Contains(said, secret) {
			t.Errorf("%q: said %q", args, said)
		}
	}
}
