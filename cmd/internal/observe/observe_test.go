package observe

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFilesAreUpToDate(t *testing.T) {
	t.Parallel()
	files, err := Files() // it checks every name, label and value that is asked for
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		path := filepath.Join("..", "..", "..", Dir, name)
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("%s is not what would be written now: run make generate", path)
		}
	}
}

// What is not there is found, whatever it is.
func TestCheck(t *testing.T) {
	t.Parallel()
	metrics, err := Parse(strings.NewReader(`# HELP a_total Help with # and {braces}.
# TYPE a_total counter
a_total{reason="x, \"y\"}",fault="job"} 0
a_total{reason="z",fault="cluster"} 3e+06
# HELP d_seconds d
# TYPE d_seconds histogram
d_seconds_bucket{protocol="http",le="0.1"} 0
d_seconds_bucket{protocol="http",le="+Inf"} 0
d_seconds_sum{protocol="http"} 0
d_seconds_count{protocol="http"} 0
# HELP g g
# TYPE g gauge
g NaN
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, good := range []string{
		`a_total`,
		`sum by (fault, pod) (rate(a_total{fault="job"}[5m])) > 0.5`,
		`sum(rate(a_total{fault=~"job|proxy",reason!="z"}[$__rate_interval])) by (reason)`,
		`histogram_quantile(0.9, sum by (le, protocol) (rate(d_seconds_bucket[5m])))`,
		`rate(d_seconds_sum[5m]) / rate(d_seconds_count[5m])`,
		`time() - g > 14 * 86400 and on (job, instance) a_total{namespace="n"}`,
		`a_total / ignoring (reason) group_left sum by (fault) (a_total)`,
		`a_total * on (fault) group_left (reason) a_total`,
	} {
		if err := metrics.Check(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{
		`b_total`,
		`a_total + b_total`,
		`d_seconds`,
		`a_total_bucket`,
		`1 > 0`,
		`a_total{fault="jobs"}`,
		`a_total{fault=~"x|jo"}`,
		`a_total{faults="job"}`,
		`a_total{faults!="job"}`,
		`a_total{fault="job",reason="z"}`,
		`sum by (le) (a_total)`,
		`sum by (faults) (a_total)`,
		`g * on (reasons) a_total`,
		`d_seconds_sum{le="0.1"}`,
		`a_total{fault`,
		`sum by (fault`,
	} {
		if metrics.Check(bad) == nil {
			t.Errorf("%s passes", bad)
		}
	}
	for _, bad := range []string{"a b c", "a 1"} {
		if _, err := Parse(strings.NewReader(bad)); err == nil {
			t.Errorf("%q passes for metrics", bad)
		}
	}
}

func TestWithin(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want string }{
		{`a`, `a{X}`},
		{`a{b="c"}`, `a{X,b="c"}`},
		{`sum by (b) (rate(a[5m])) / on (b) group_left (c) d{e="f"} > 0`, `sum by (b) (rate(a{X}[5m])) / on (b) group_left (c) d{X,e="f"} > 0`},
	} {
		if got, err := within(c.in, "X"); err != nil || got != c.want {
			t.Errorf("%s: got %s, %v, want %s", c.in, got, err, c.want)
		}
	}
}

// Whoever is woken by an alert finds what it is, how bad, and what to do.
func TestAlertsSayWhatToDo(t *testing.T) {
	t.Parallel()
	files, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	headings := regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(files["README.md"]), -1)
	seen := make(map[string]bool)
	placeholder := regexp.MustCompile(`\{\{ \$(?:labels\.(\w+)|value(?: \| humanize\w*)?) \}\}`)
	for _, a := range alerts {
		if seen[a.name] || !regexp.MustCompile(`^TaskProxy[A-Za-z]+$`).MatchString(a.name) {
			t.Errorf("%s is there twice, or no name", a.name)
		}
		seen[a.name] = true
		if a.severity != critical && a.severity != warning || !regexp.MustCompile(`^\d+[mh]$`).MatchString(a.wait) {
			t.Errorf("%s: severity %q, for %q", a.name, a.severity, a.wait)
		}
		if len(a.summary) > 80 || len(a.description) < 40 || len(a.action) < 20 {
			t.Errorf("%s: a summary is short, and a description and what to do are there", a.name)
		}
		path, anchor, _ := strings.Cut(a.runbook(), "#")
		// A heading's anchor is made of its letters, in lower case.
		if path != Dir+"/README.md" || !slices.ContainsFunc(headings, func(h []string) bool { return strings.ToLower(h[1]) == anchor }) {
			t.Errorf("%s: nobody is at %s", a.name, a.runbook())
		}
		q, err := parseQuery(a.expr)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{a.summary, a.description} {
			if rest := placeholder.ReplaceAllString(text, ""); strings.Contains(rest, "{{") {
				t.Errorf("%s: %q has what no rule knows", a.name, text)
			}
			for _, p := range placeholder.FindAllStringSubmatch(text, -1) {
				// What is summed has only the labels that it is summed by.
				if summed := strings.HasPrefix(a.expr, "sum ") || strings.HasPrefix(a.expr, "max "); p[1] != "" && summed && !slices.Contains(q.grouping, p[1]) {
					t.Errorf("%s: its result has no label %s", a.name, p[1])
				}
			}
		}
	}
}

// What Grafana would not show, or show in a heap.
func TestDashboardIsWhole(t *testing.T) {
	t.Parallel()
	files, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		UID, Title    string
		SchemaVersion int
		Panels        []struct {
			ID                       int
			Type, Title, Description string
			GridPos                  struct{ X, Y, W, H int }
			Targets                  []struct{ RefID, Expr string }
		}
		Templating struct{ List []struct{ Name, Type string } }
	}
	if err := json.Unmarshal(files["dashboard.json"], &dashboard); err != nil {
		t.Fatal(err)
	}
	var variables []string
	for _, v := range dashboard.Templating.List {
		variables = append(variables, v.Name)
	}
	if want := []string{"datasource", "namespace", "job", "pod"}; !slices.Equal(variables, want) {
		t.Errorf("variables %v, want %v", variables, want)
	}
	ids := make(map[int]bool)
	cells := make(map[[2]int]string)
	for _, p := range dashboard.Panels {
		if ids[p.ID] || p.ID == 0 || p.Title == "" {
			t.Errorf("panel %q has id %d", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.Type != "row" && (len(p.Targets) == 0 || p.Description == "") {
			t.Errorf("panel %q shows nothing, or nobody knows what", p.Title)
		}
		for _, q := range p.Targets {
			if strings.Count(q.Expr, selection) == 0 {
				t.Errorf("panel %q: %s is of all namespaces", p.Title, q.Expr)
			}
		}
		if p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q is beyond the edge", p.Title)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" {
					t.Fatalf("panel %q lies over %q", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
	}
}

// A metric of ours that nobody looks at is one too many, or a panel is missing.
func TestEveryMetricIsShown(t *testing.T) {
	t.Parallel()
	metrics, err := product()
	if err != nil {
		t.Fatal(err)
	}
	shown := make(map[string]bool)
	for _, expr := range Queries() {
		q, err := parseQuery(expr)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range q.selectors {
			if m := metrics.Find(s.name); m != nil {
				shown[m.Name] = true
			}
		}
	}
	ours := 0
	for _, m := range metrics {
		if !strings.HasPrefix(m.Name, "yt_task_proxy_") {
			continue
		}
		ours++
		if !shown[m.Name] {
			t.Errorf("%s is in no panel and no alert", m.Name)
		}
		if len(m.Series) == 0 || m.Help == "" {
			t.Errorf("%s has no series before its first event, or no help", m.Name)
		}
	}
	if ours < 40 {
		t.Errorf("%d metrics of our own", ours)
	}
}
