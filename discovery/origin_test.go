package discovery

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"taskproxy/ytclient"
)

func TestCheckOrigin(t *testing.T) {
	t.Parallel()
	for _, good := range []string{
		"https://app.example.com", "http://localhost:3000", "https://10.0.0.1:8443", "http://a:443", "https://a:80", "https://xn--e1aybc.example", "https://a_b-c.test:65535",
	} {
		if err := CheckOrigin(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", "*", "null", "app.example.com", "//app.example.com", "ftp://app.example.com", "HTTPS://app.example.com", "https:app.example.com", "https://",
		"https://*", "https://*.example.com", "https://App.example.com", "https://app.example.com/", "https://app.example.com/x", "https://app.example.com?x",
		"https://app.example.com#x", "https://u@app.example.com", "https://app.example.com:", "https://app.example.com:443", "http://app.example.com:80",
		"https://app.example.com:0", "https://app.example.com:065", "https://app.example.com:65536", "https://app.example.com:+1", "https://app.example.com:x",
		"https://app.example.com:1:2", "https://app.example.com.", "https://.example.com", "https://a..b", "https://[::1]", "https://[::1]:8080", "https://app.example.com ",
		" https://app.example.com", "https://app.example.com\n", "https://a b", "https://a;script-src", "https://a,b", "https://'self'", "https://\u00e9.test", `https://a\b`,
		"https://" + strings.Repeat("a.", 200) + "test", "https://https://a",
	} {
		if err := CheckOrigin(bad); err == nil {
			t.Errorf("%q passes", bad)
		}
	}
}

// What passes is one word without anything that headers give a meaning to, and means to a URL parser exactly what it says.
func FuzzCheckOrigin(f *testing.F) {
	f.Add("https://app.example.com")
	f.Add("http://10.0.0.1:8080")
	f.Add("https://*.a;b")
	f.Fuzz(func(t *testing.T, in string) {
		err := CheckOrigin(in)
		if err != nil {
			if err.Error() == "" {
				t.Error("no reason")
			}
			return
		}
		if strings.ContainsFunc(in, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`;,*'"\<>`, r) }) {
			t.Fatalf("%q passes", in)
		}
		u, err := url.Parse(in)
		if err != nil || u.Scheme+"://"+u.Host != in {
			t.Fatalf("%q is %v, %v", in, u, err)
		}
	})
}

func TestAnnotationOrigins(t *testing.T) {
	t.Parallel()
	type m = map[string]any
	app, other := "https://app.example.com", "http://localhost:3000"
	sites := func(origins ...any) m { return m{"origins": origins} }
	many, first := make([]any, 20), make([]string, 20)
	for i := range many {
		first[i] = fmt.Sprintf("https://app%02d.example.com", i)
		many[i] = first[i]
	}
	first = first[:16]
	for _, c := range []struct {
		name     string
		all, one any // cross_site of the operation and of the service ui
		// What ui and the task's other port are opened to, and the problems.
		ui, port []string
		problems []string
	}{
		{name: "nothing"},
		{name: "of the operation", all: sites(app, other), ui: []string{app, other}, port: []string{app, other}},
		{name: "of a service", one: sites(app), ui: []string{app}},
		{name: "of both", all: sites(app), one: sites(other), ui: []string{other}, port: []string{app}},
		{name: "closed for one", all: sites(app), one: sites(), port: []string{app}},
		{name: "twice the same", one: sites(app, other, app), ui: []string{app, other}},
		{name: "bad ones are left out", one: sites("*", "null", app, int64(1), "https://a.test/", "https://A.test"), ui: []string{app}, problems: []string{
			`cross_site/origins has "*", which has no scheme http or https; it must be as browsers send it, such as https://app.example.com`,
			`cross_site/origins has "null", which has no scheme http or https; it must be as browsers send it, such as https://app.example.com`,
			`cross_site/origins has the integer 1; it must be a string such as "https://app.example.com"`,
			`cross_site/origins has "https://a.test/", which has more than a scheme, a host and a port; it must be as browsers send it, such as https://app.example.com`,
			`cross_site/origins has "https://A.test", which has capital letters; it must be as browsers send it, such as https://app.example.com`,
		}},
		{name: "no map", all: sites(app), one: []any{app}, port: []string{app}, problems: []string{`cross_site is a list; it must be a map such as {origins=["https://app.example.com"]}`}},
		{name: "no list", all: m{"origins": app}, problems: []string{`task_proxy/cross_site/origins is the string "https://app.example.com"; it must be a list such as ["https://app.example.com"]`}},
		{name: "mistyped", one: m{"origin": []any{app}}, problems: []string{`cross_site/origins is missing; it must be a list such as ["https://app.example.com"]`}},
		{name: "too many", one: m{"origins": many}, ui: first, problems: []string{`cross_site/origins has 20; the first 16 count`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			annotations := m{"task_proxy": m{"enabled": true, "cross_site": c.all, "tasks_info": m{"server": m{"ui": m{"port_index": int64(0), "cross_site": c.one}}}}}
			p, _ := publisherOf(newPublishers(SPYTConfig{}, DefaultMaxServicesPerOperation), annotations)
			services, problems := declared(p, annotations, []ytclient.Task{{Name: "server", PortCount: 2}})
			if len(services) != 2 || !slices.Equal(services[0].origins, c.ui) || !slices.Equal(services[1].origins, c.port) {
				t.Errorf("services %+v; want ui opened to %q and the other port to %q", services, c.ui, c.port)
			}
			var reasons []string
			for _, p := range problems {
				reasons = append(reasons, p.Reason)
			}
			if !slices.Equal(reasons, c.problems) {
				t.Errorf("problems:\n%s\nwant\n%s", strings.Join(reasons, "\n"), strings.Join(c.problems, "\n"))
			}
		})
	}
}
