//go:build e2e

package interop_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"taskproxy/discovery"
	"taskproxy/ytclient/ytlocal"
)

// Applications that people run in jobs, in a real browser: testdata/e2e/apps/browser.py has what the person does.

// appPatience is how long an application may take to start, and a person's work with it may last.
const appPatience = 2 * time.Minute

// To a browser, names under localhost are as good as https: it tells who asks for what (Sec-Fetch-Site). Under other names
// plain http gets no such word, and the proxy has to make do with Origin.
var appDomains = []string{baseDomain, plainDomain}

// plainDomain is the second of the product's base domains; the browser is told where it leads.
const plainDomain = "tp.example.net"

// everyPort is the annotation that publishes port 0 as the service "port_0".
var everyPort = map[string]any{"task_proxy": map[string]any{"enabled": true}}

// app is an operation whose one service is for browsers.
type app struct {
	annotations map[string]any
	task        string
	service     string
	command     string // its one job, by the shell
	path        string // that is answered when it has started
}

// appWorld is a local cluster, the product, and what people need.
type appWorld struct {
	*world
	mallory     ytlocal.User
	python      string // with the applications and the browser's driver
	apps        string // the directory of what they run
	screenshots string
}

func newAppWorld(t *testing.T) *appWorld {
	t.Helper()
	w := &appWorld{python: program(t, "APPS_PYTHON"), screenshots: os.Getenv("SCREENSHOTS")}
	program(t, "CHROMIUM")
	if w.screenshots == "" {
		w.screenshots = t.TempDir()
	}
	var err error
	if w.apps, err = filepath.Abs("../../../testdata/e2e/apps"); err != nil {
		t.Fatal(err)
	}
	w.world = newWorld(t)
	if w.mallory, err = w.cluster.AddUser("mallory"); err != nil {
		t.Fatal(err)
	}
	return w
}

// tool is the path of a program that is installed beside python.
func (w *appWorld) tool(name string) string { return filepath.Join(filepath.Dir(w.python), name) }

// start starts an application of a user's, and returns its label and its job's address when it answers through the proxy.
func (w *appWorld) start(t *testing.T, user ytlocal.User, a app, more map[string]any) (label, operation string) {
	t.Helper()
	spec := map[string]any{
		"tasks": map[string]any{a.task: map[string]any{
			"job_count": int64(1), "port_count": int64(1), "command": a.command,
			"environment": map[string]any{"YT_PROXY": w.cluster.URL(), "SPARK_LOCAL_IP": "127.0.0.1"},
		}},
		"annotations":  a.annotations,
		"secure_vault": map[string]any{"YT_TOKEN": user.Token},
	}
	for key, value := range more {
		spec[key] = value
	}
	operation, err := w.cluster.Scheduler().Start(user.Login, spec)
	if err != nil {
		t.Fatal(err)
	}
	label = discovery.ShortID(operation, a.task, a.service)
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) { // between two questions
		if err = w.answers(t, user, label, a.path); err == nil {
			return label, operation
		}
		if time.Since(began) > appPatience {
			t.Fatalf("%s does not answer: %v\n%s", a.task, err, w.stderr(operation))
		}
	}
}

// answers asks for a page of a service by the user's token.
func (w *appWorld) answers(t *testing.T, user ytlocal.User, label, path string) error {
	t.Helper()
	res, err := w.ask(t, user, label, path)
	switch {
	case err != nil:
		return err
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("%s %s", res.Status, res.Header.Get("X-Yt-Taskproxy-Error"))
	}
	return nil
}

// ask asks once, and follows nothing.
func (w *appWorld) ask(t *testing.T, user ytlocal.User, label, path string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+w.proxy+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = label + "." + baseDomain
	req.Header.Set("Authorization", "OAuth "+user.Token)
	res, err := http.DefaultTransport.RoundTrip(req)
	if err == nil {
		res.Body.Close()
	}
	return res, err
}

// stderr is what the operation's jobs wrote there.
func (w *appWorld) stderr(operation string) string {
	jobs, err := w.cluster.Scheduler().Jobs(operation)
	if err != nil {
		return err.Error()
	}
	var all strings.Builder
	for _, j := range jobs {
		text, _ := w.cluster.Scheduler().Stderr(operation, j.ID)
		fmt.Fprintf(&all, "job %s is %s; it wrote:\n%s\n", j.ID, j.State, tail(string(text)))
	}
	return all.String()
}

// url of a service, as a browser is given it.
func (w *appWorld) url(label, domain string) string {
	_, port, _ := net.SplitHostPort(w.proxy)
	return "http://" + label + "." + domain + ":" + port + "/"
}

// visit runs a scenario of browser.py, in the name of whom the cookie belongs to, and returns what it printed: whatever the
// pages asked for elsewhere, or in vain, or complained of.
func (w *appWorld) visit(t *testing.T, scenario, label, domain, cookie string, options ...string) string {
	t.Helper()
	arguments := append([]string{filepath.Join(w.apps, "browser.py"), scenario, w.url(label, domain), domain, w.screenshots}, options...)
	r := runFor(t, appPatience, t.TempDir(), []string{"CHROMIUM=" + os.Getenv("CHROMIUM"), "COOKIE=" + cookie}, w.python, arguments...)
	if r.code != 0 {
		t.Fatalf("%s under %s\n%s%s", scenario, domain, r.stdout, tail(r.stderr))
	}
	return r.stdout
}

// TestAppHTTPServer browses a directory that Python's own server lists.
func TestAppHTTPServer(t *testing.T) {
	w := newAppWorld(t)
	label, _ := w.start(t, w.alice, app{
		annotations: everyPort, task: "files", service: "port_0", path: "/",
		command: `mkdir -p www/sub && echo 'hello from a job' >'www/sub/hello, world.txt' &&
			exec '` + w.python + `' -m http.server "$YT_PORT_0" --bind 127.0.0.1 --directory www`,
	}, nil)
	for _, domain := range appDomains {
		t.Run(domain, func(t *testing.T) {
			if odd := w.visit(t, "http_server", label, domain, w.alice.Cookie, "ignore=/favicon.ico|status of 404"); odd != "" {
				t.Error(odd)
			}
			w.visit(t, "refused", label, domain, "", "status=401")
			w.visit(t, "refused", label, domain, w.mallory.Cookie, "status=403")
			w.visit(t, "refused", "00000000", domain, w.alice.Cookie, "status=404")
		})
	}
}

// TestAppJupyter runs cells in a notebook that is shaped like JupYT's.
func TestAppJupyter(t *testing.T) {
	w := newAppWorld(t)
	notebook := app{
		annotations: map[string]any{"is_notebook": true, "expose": true}, task: "jupyter", service: "ui", path: "/api",
		command: `exec '` + w.tool("jupyter-lab") + `' --no-browser --allow-root --ip=127.0.0.1 --port="$YT_PORT_0" --port-retries=0 \
			--ServerApp.allow_remote_access=True --IdentityProvider.token= --ServerApp.root_dir="$PWD"`,
	}
	// Mallory may read the operation, which is not enough: whoever gets in runs code as alice.
	label, _ := w.start(t, w.alice, notebook, map[string]any{"acl": []any{
		map[string]any{"action": "allow", "subjects": []any{"alice"}, "permissions": []any{"read", "manage"}},
		map[string]any{"action": "allow", "subjects": []any{"mallory"}, "permissions": []any{"read"}},
	}})
	for _, domain := range appDomains {
		t.Run(domain, func(t *testing.T) {
			if odd := w.visit(t, "jupyter", label, domain, w.alice.Cookie); odd != "" {
				t.Error(odd)
			}
			w.visit(t, "refused", label, domain, w.mallory.Cookie, "status=403")
		})
	}
}

// TestAppStreamlit clicks a button and sends a file.
func TestAppStreamlit(t *testing.T) {
	w := newAppWorld(t)
	label, _ := w.start(t, w.alice, app{
		annotations: everyPort, task: "app", service: "port_0", path: "/_stcore/health",
		command: `exec '` + w.tool("streamlit") + `' run '` + filepath.Join(w.apps, "streamlit_app.py") + `' --server.port="$YT_PORT_0" \
			--server.address=127.0.0.1 --server.headless=true --browser.gatherUsageStats=false --server.fileWatcherType=none`,
	}, nil)
	for _, domain := range appDomains {
		t.Run(domain, func(t *testing.T) {
			if odd := w.visit(t, "streamlit", label, domain, w.alice.Cookie); odd != "" {
				t.Error(odd)
			}
		})
	}
}

// TestAppSpark looks at the pages of a driver that SPYT would have submitted directly: the address of its page appears in the
// annotations while it runs, at a port that the cluster did not give to it.
func TestAppSpark(t *testing.T) {
	w := newAppWorld(t)
	label, operation := w.start(t, w.alice, app{
		annotations: map[string]any{"is_spark": true}, task: "driver", service: "ui", path: "/jobs/",
		command: `exec '` + w.python + `' '` + filepath.Join(w.apps, "spark_driver.py") + `'`,
	}, nil)
	res, err := w.ask(t, w.alice, label, "/")
	if err != nil {
		t.Fatal(err)
	}
	if got := res.Header.Get("Location"); res.StatusCode != http.StatusFound || got != "/jobs/" {
		t.Errorf("Spark's first page: got %s to %q, want 302 to /jobs/", res.Status, got)
	}
	if err := w.answers(t, w.alice, label, "/api/v1/applications"); err != nil {
		t.Errorf("%v\n%s", err, w.stderr(operation))
	}
	for _, domain := range appDomains {
		t.Run(domain, func(t *testing.T) {
			if odd := w.visit(t, "spark", label, domain, w.alice.Cookie); odd != "" {
				t.Error(odd)
			}
		})
	}
}

// TestAppHostilePage lets a stranger's page try what a page can with its visitor's cookie, at a service on a sibling host. Only
// where its visitor goes, window and all, is any of it to reach the job.
func TestAppHostilePage(t *testing.T) {
	w := newAppWorld(t)
	script := func(name string) string { return `exec '` + w.python + `' '` + filepath.Join(w.apps, name) + `'` }
	everyone := map[string]any{"acl": []any{map[string]any{"action": "allow", "subjects": []any{"everyone"}, "permissions": []any{"read"}}}}
	page, _ := w.start(t, w.mallory, app{annotations: everyPort, task: "page", service: "port_0", path: "/", command: script("recorder.py")}, everyone)
	for _, domain := range appDomains {
		t.Run(domain, func(t *testing.T) {
			victim, _ := w.start(t, w.alice, app{annotations: everyPort, task: "victim", service: "port_0", path: "/", command: script("recorder.py")}, nil)
			outcome := w.visit(t, "hostile", page, domain, w.alice.Cookie, "victim="+w.url(victim, domain))
			got := w.asked(t, victim)
			t.Logf("the page:\n%sthe job:\n%s", outcome, strings.Join(got, "\n"))
			want := []string{"GET /", "GET /favicon.ico", "GET /link"} // the first is this test's own question
			if domain == plainDomain {
				// Who asks for these the browser does not say under plain http, so that they look like a script's. The page
				// is shown nothing of the answers, but would run one that is a script.
				want = []string{"GET /", "GET /favicon.ico", "GET /frame", "GET /get", "GET /image", "GET /link", "GET /script"}
			}
			if !slices.Equal(got, want) {
				t.Errorf("the job was asked for %q, want %q", got, want)
			}
		})
	}
}

// asked is what recorder.py has been asked for.
func (w *appWorld) asked(t *testing.T, label string) []string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+w.proxy+"/asked", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = label + "." + baseDomain
	req.Header.Set("Authorization", "OAuth "+w.alice.Token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	list, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v", res.Status, err)
	}
	return strings.Split(string(list), "\n")
}
