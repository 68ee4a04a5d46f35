package proxy

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"taskproxy/discovery"
)

// Each kind of caller is answered in its own manner; status, reason and request id are the same for all.
func TestManners(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.LoginURL = "https://cluster.test/login?a=b&c=d" })
	s := w.publish(discovery.Service{}) // no endpoints: 503
	for _, c := range []struct {
		name, want string
		header     []string
	}{
		{"navigation", "text/html", []string{"Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document", "Accept: text/html,*/*;q=0.8"}},
		{"old browser", "text/html", []string{"Accept: text/html,application/json;q=0.9"}},
		{"script in a page", "text/plain", []string{"Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty", "Accept: text/html"}},
		{"JSON", "application/json", []string{"Accept: application/json, text/plain"}},
		{"JSON from a script in a page", "application/json", []string{"Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty", "Accept: application/json"}},
		{"no JSON", "text/plain", []string{"Accept: application/json;q=0"}},
		{"curl", "text/plain", []string{"Accept: */*"}},
		{"nothing", "text/plain", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := w.get(host(s), "/", append(c.header, "X-Request-Id: id-1")...)
			a.check(t, 503, "no_endpoints")
			if got := a.Header.Get("Content-Type"); !strings.HasPrefix(got, c.want) {
				t.Fatalf("got %s, want %s", got, c.want)
			}
			if !strings.Contains(a.body, "id-1") || a.Header.Get("Retry-After") == "" || a.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("header %v, body %q", a.Header, a.body)
			}
			switch c.want {
			case "text/plain":
				if strings.Count(a.body, "\n") != 1 {
					t.Errorf("more than a line: %q", a.body)
				}
			case "application/json":
				var e map[string]string
				if err := json.Unmarshal([]byte(a.body), &e); err != nil || e["error"] != "no_endpoints" || e["message"] == "" || e["request_id"] != "id-1" {
					t.Errorf("got %v, %v", e, err)
				}
			case "text/html":
				checkPage(t, a)
				if !strings.Contains(a.body, `http-equiv="refresh"`) || strings.Contains(a.body, "cluster.test") {
					t.Errorf("page of a 503: %s", a.body)
				}
			}
		})
	}
	a := w.get(host(s), "/", "-", "Accept: text/html")
	checkPage(t, a)
	if !strings.Contains(a.body, `href="https://cluster.test/login?a=b&amp;c=d"`) || strings.Contains(a.body, "refresh") {
		t.Errorf("page of a 401: %s", a.body)
	}
	a = w.get(base, "/", "-", "Accept: text/html")
	checkPage(t, a)
}

// checkPage: nothing but the page's own style is allowed to load or run, and that by its very hash.
func checkPage(t *testing.T, a answer) {
	t.Helper()
	m := regexp.MustCompile(`(?s)<style>(.*)</style>`).FindStringSubmatch(a.body)
	if m == nil {
		t.Fatalf("no style in %q", a.body)
	}
	sum := sha256.Sum256([]byte(m[1]))
	policy := a.Header.Get("Content-Security-Policy")
	for _, part := range []string{"default-src 'none'", "frame-ancestors 'none'", "style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"} {
		if !strings.Contains(policy, part) {
			t.Errorf("policy %q lacks %q", policy, part)
		}
	}
	for _, part := range []string{`<html lang="en">`, "<title>", "<main>", "<h1>", `<meta name="viewport"`} {
		if !strings.Contains(a.body, part) {
			t.Errorf("no %s in %s", part, a.body)
		}
	}
	if strings.Contains(a.body, "<script") || a.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("page: %v %s", a.Header, a.body)
	}
}

// What a caller writes comes back quoted and cut, in no manner as markup or as a second line.
func TestAnswersRepeatNothingDangerous(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, accept := range []string{"text/html", "application/json", "*/*"} {
		a := w.get(base, "/", "X-Yt-Taskproxy-Id: <script>alert(1)</script>"+strings.Repeat("x", 1000), "Accept: "+accept)
		a.check(t, 400, "malformed_service_id")
		if strings.Contains(a.body, "<script>") && accept == "text/html" || strings.Contains(a.body, strings.Repeat("x", 300)) {
			t.Errorf("%s: %s", accept, a.body)
		}
	}
}

// allCauses are the causes that are ever answered; TestCauses sees to it that none is missing.
var allCauses = slices.DeleteFunc(slices.Clone(causes), func(c *cause) bool { return c == causeGone })

// Every cause can be answered, and no two share a reason.
func TestCauses(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("errors.go")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{causeGone.reason: true} // never sent
	for _, c := range allCauses {
		want := map[int]int{400: 3, 401: 16, 403: 7, 404: 5, 415: 12, 421: 5, 429: 8, 500: 13, 502: 14, 503: 14, 504: 4}
		if seen[c.reason] || http.StatusText(c.status) == "" || want[c.status] != c.grpc || c.public == "" {
			t.Errorf("%+v", c)
		}
		seen[c.reason] = true
	}
	for _, m := range regexp.MustCompile(`= &cause\{"(\w+)"`).FindAllSubmatch(source, -1) {
		if !seen[string(m[1])] {
			t.Errorf("cause %s is not in allCauses", m[1])
		}
	}
}

// Whatever the cause and whoever asks: one status, one reason, the request's id, and nothing that is kept.
func TestEveryCauseInEveryManner(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.LoginURL = "https://cluster.test/login" })
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		i, _ := strconv.Atoi(r.URL.Path[1:])
		x := w.proxy.begin(rw, r)
		rw.Header().Set("Set-Cookie", "left=over") // of an answer that did not happen
		w.proxy.answer(x, allCauses[i])
	}))
	defer server.Close()
	for i, c := range allCauses {
		for _, manner := range []struct{ contentType, header string }{
			{"application/grpc", "Content-Type: application/grpc"},
			{"text/html; charset=utf-8", "Accept: text/html"},
			{"application/json", "Accept: application/json"},
			{"text/plain; charset=utf-8", "Accept: */*"},
		} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/"+strconv.Itoa(i), nil)
			if err != nil {
				t.Fatal(err)
			}
			name, value, _ := strings.Cut(manner.header, ": ")
			r.Header.Set(name, value)
			r.Header.Set("X-Request-Id", "id-1")
			a := w.do(r)
			h := a.Header
			want := c.status
			text := a.body
			if manner.contentType == "application/grpc" {
				want, text = 200, h.Get("Grpc-Message")
				if h.Get("Grpc-Status") != strconv.Itoa(c.grpc) || a.body != "" {
					t.Errorf("%s: grpc-status %q, body %q", c.reason, h.Get("Grpc-Status"), a.body)
				}
			}
			a.check(t, want, c.reason)
			if h.Get("Content-Type") != manner.contentType || h.Get("X-Request-Id") != "id-1" || h.Get("Cache-Control") != "no-store" || h["Set-Cookie"] != nil || !strings.Contains(text, "id-1") {
				t.Errorf("%s, %s: header %v, text %q", c.reason, manner.contentType, h, text)
			}
			if (h.Get("Www-Authenticate") != "") != (c.status == 401) || (h.Get("Retry-After") != "") != (c.status == 503 || c.status == 429) {
				t.Errorf("%s, %s: header %v", c.reason, manner.contentType, h)
			}
			if manner.contentType[:9] == "text/html" {
				checkPage(t, a)
				if strings.Contains(a.body, `href="https://cluster.test/login"`) != (c.status == 401) || strings.Contains(a.body, `http-equiv="refresh"`) != (h.Get("Retry-After") != "") {
					t.Errorf("page of %s: %s", c.reason, a.body)
				}
			}
		}
	}
}

// A page is loaded again by a GET, so what was none is not tried again by itself.
func TestOnlyAGETIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{})
	for method, want := range map[string]bool{"GET": true, "POST": false, "DELETE": false} {
		a := w.do(w.request(method, host(s), "/", nil, "Accept: text/html"))
		a.check(t, 503, "no_endpoints")
		if got := strings.Contains(a.body, `http-equiv="refresh"`); got != want {
			t.Errorf("%s: tries again %t, want %t", method, got, want)
		}
	}
}
