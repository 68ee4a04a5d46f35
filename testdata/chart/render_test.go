// Package charttest renders the chart with Helm's own engine and looks at what comes out.
package charttest

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
)

var update = flag.Bool("update", false, "write the goldens anew: go test . -update, in testdata/chart")

const (
	chartDir  = "../../chart"
	release   = "task-proxy"
	namespace = "yt"
)

// short stands for the dashboard and the alert rules, which have tests of their own and would fill the goldens.
var short = map[string]string{
	"files/dashboard.json": `{"title": "Task proxy"}` + "\n",
	"files/alerts.yaml":    "groups:\n  - name: task-proxy\n    rules:\n      - alert: TaskProxyDown\n        expr: up == 0\n",
}

// loaded is the chart as it is, or with the contents of the files in place.
func loaded(t *testing.T, files map[string]string) *chart.Chart {
	t.Helper()
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range c.Files {
		if content, ok := files[f.Name]; ok {
			f.Data = []byte(content)
		}
	}
	return c
}

// render is `helm template`: templates' names and what they come to. The values are checked against the schema.
func render(c *chart.Chart, values map[string]any) (map[string]string, error) {
	options := chartutil.ReleaseOptions{Name: release, Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(c, values, options, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	rendered, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	short := map[string]string{}
	for name, text := range rendered {
		if strings.TrimSpace(text) != "" {
			short[strings.TrimPrefix(name, c.Name()+"/")] = text
		}
	}
	return short, nil
}

func readValues(t *testing.T, path string) map[string]any {
	t.Helper()
	values, err := chartutil.ReadValuesFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return values
}

// each runs f for every values file.
func each(t *testing.T, f func(t *testing.T, name string, rendered map[string]string)) {
	t.Helper()
	paths, err := filepath.Glob("values/*.yaml")
	if err != nil || len(paths) < 10 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".yaml")
		t.Run(name, func(t *testing.T) {
			rendered, err := render(loaded(t, short), readValues(t, path))
			if err != nil {
				t.Fatal(err)
			}
			f(t, name, rendered)
		})
	}
}

func TestGoldens(t *testing.T) {
	var known []string
	each(t, func(t *testing.T, name string, rendered map[string]string) {
		var b bytes.Buffer
		for _, template := range slices.Sorted(mapKeys(rendered)) {
			b.WriteString("# " + template + "\n" + strings.Trim(rendered[template], "\n") + "\n---\n")
		}
		golden := filepath.Join("golden", name+".yaml")
		known = append(known, golden)
		if *update {
			if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := firstDiff(string(want), b.String()); diff != "" {
			t.Errorf("%s is another one now (go test . -update writes it):\n%s", golden, diff)
		}
	})
	there, err := filepath.Glob("golden/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, golden := range there {
		if !slices.Contains(known, golden) {
			t.Errorf("%s belongs to no values file", golden)
		}
	}
}

// firstDiff is the first line in which two texts differ, with what is around it; empty if they do not.
func firstDiff(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := 0; i < max(len(w), len(g)); i++ {
		if i >= len(w) || i >= len(g) || w[i] != g[i] {
			around := func(lines []string) string {
				return strings.Join(lines[min(max(i-3, 0), len(lines)):min(i+4, len(lines))], "\n    ")
			}
			return "  want\n    " + around(w) + "\n  got\n    " + around(g)
		}
	}
	return ""
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// A wrong value fails, and what Helm prints has each of the file's lines "# want: ".
func TestWrongValues(t *testing.T) {
	paths, err := filepath.Glob("wrong/*.yaml")
	if err != nil || len(paths) < 10 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".yaml"), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			_, err = render(loaded(t, short), readValues(t, path))
			if err == nil {
				t.Fatal("accepted")
			}
			wants := 0
			for line := range strings.Lines(string(text)) {
				if want, ok := strings.CutPrefix(strings.TrimSpace(line), "# want: "); ok {
					wants++
					if !strings.Contains(err.Error(), want) {
						t.Errorf("the message does not say %q:\n%v", want, err)
					}
				}
			}
			if wants == 0 {
				t.Error("the file has no line # want:")
			}
		})
	}
}

// A release can have a name that a Service cannot; the install would fail halfway.
func TestReleaseName(t *testing.T) {
	for name, ok := range map[string]bool{"task.proxy": false, "1proxy": false, "task-proxy2": true, strings.Repeat("x", 53): true} {
		options := chartutil.ReleaseOptions{Name: name, Namespace: namespace}
		c := loaded(t, short)
		all, err := chartutil.ToRenderValues(c, map[string]any{"baseDomain": "x.example.net"}, options, chartutil.DefaultCapabilities)
		if err != nil {
			t.Fatal(err)
		}
		_, err = engine.Render(c, all)
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "fullnameOverride") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A value left empty ("replicas:") takes the default away and puts nothing in its place. It is an error, unless empty is one
// of the things that it can be; never 0 pods, no policy or text like %!s(<nil>) instead.
func TestEmptyValues(t *testing.T) {
	want := fmt.Sprint(render(loaded(t, short), map[string]any{"baseDomain": "x.example.net"}))
	// What these come to without a value, values.yaml says; that of resources and of the security contexts is Kubernetes'.
	differ := []string{"spyt.ports", "networkPolicy.adminFrom", "resources", "podSecurityContext", "securityContext", "strategy.rollingUpdate"}
	seen := 0
	var walk func(path []string, values map[string]any)
	walk = func(path []string, values map[string]any) {
		for name, value := range values {
			path := append(slices.Clone(path), name)
			seen++
			given := map[string]any{"baseDomain": "x.example.net"}
			inner := given
			for _, table := range path[:len(path)-1] {
				next := map[string]any{}
				inner[table], inner = next, next
			}
			inner[name] = nil
			dotted := strings.Join(path, ".")
			rendered, err := render(loaded(t, short), given)
			switch {
			case err != nil:
				if !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "nil pointer") {
					t.Errorf("%s: the message does not name it: %v", dotted, err)
				}
			case strings.Contains(fmt.Sprint(rendered), "%!"):
				t.Errorf("%s: accepted, and text made of nothing", dotted)
			case fmt.Sprint(rendered, err) != want && !slices.ContainsFunc(differ, func(d string) bool { return strings.HasPrefix(dotted+".", d+".") }):
				t.Errorf("%s: accepted, and not the default", dotted)
			}
			if table, ok := value.(map[string]any); ok {
				walk(path, table)
			}
		}
	}
	walk(nil, loaded(t, short).Values)
	if seen < 100 {
		t.Errorf("%d values were tried", seen)
	}
}

// The schema knows every value (or the chart would not render by itself), and beyond those of values.yaml only older
// spellings, and what a chart that has this one as a part gives it.
func TestSchemaIsWhole(t *testing.T) {
	c := loaded(t, short)
	var schema struct {
		Properties map[string]any `json:"properties"`
	}
	if err := json.Unmarshal(c.Schema, &schema); err != nil {
		t.Fatal(err)
	}
	older := []string{"enabled", "global", "persistence", "proxy", "refreshPeriodSeconds", "replicaCount", "server"}
	var more []string
	for name := range schema.Properties {
		if _, ok := c.Values[name]; !ok {
			more = append(more, name)
		}
	}
	if slices.Sort(more); !slices.Equal(more, older) {
		t.Errorf("the schema has %v, which values.yaml does not explain; only older spellings may be so: %v", more, older)
	}
}

// The linter has nothing to say, also where required values are missing: it overlooks that.
func TestLint(t *testing.T) {
	for _, name := range []string{"", "minimal", "everything"} {
		var values map[string]any
		if name != "" {
			values = readValues(t, filepath.Join("values", name+".yaml"))
		}
		result := lint.All(chartDir, values, namespace, true)
		for _, m := range result.Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

// `helm package`: what is saved can be loaded and has all that is needed.
func TestPackage(t *testing.T) {
	path, err := chartutil.Save(loaded(t, nil), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := filepath.Base(path), "task-proxy-chart-0.1.0.tgz"; got != want {
		t.Errorf("the package is called %s, want %s", got, want)
	}
	packed, err := loader.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range packed.Raw {
		names = append(names, f.Name)
	}
	for _, want := range []string{"Chart.yaml", "README.md", "values.yaml", "values.schema.json", "files/alerts.yaml", "files/dashboard.json", "templates/NOTES.txt"} {
		if !slices.Contains(names, want) {
			t.Errorf("the package lacks %s", want)
		}
	}
}
