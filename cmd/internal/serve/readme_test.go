package serve

import (
	"bytes"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The README's table of flags is what the flags are: each once, none else, with its default.
func TestREADMEListsTheFlags(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	// A row may be of several flags, whose defaults are in the same order: | `--a`, `--b` | `1`, `2` | meaning |
	code := regexp.MustCompile("`([^`]*)`")
	documented := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`--.*?) \\| (.*?) ?\\| ").FindAllStringSubmatch(string(content), -1) {
		flags, defaults := code.FindAllStringSubmatch(row[1], -1), code.FindAllStringSubmatch(row[2], -1)
		for i, flag := range flags {
			name, value := strings.TrimPrefix(flag[1], "--"), row[2] // "required" or nothing
			if len(defaults) > 0 && len(defaults) != len(flags) {
				t.Errorf("%s: %d flags and %d defaults", row[1], len(flags), len(defaults))
				continue
			}
			if len(defaults) > 0 {
				value = defaults[i][1]
			}
			if _, twice := documented[name]; twice {
				t.Errorf("--%s is there twice", name)
			}
			documented[name] = value
		}
	}
	if len(documented) == 0 {
		t.Fatal("found no rows: has the table another form?")
	}

	var help bytes.Buffer
	if _, err := ParseConfig([]string{"--help"}, env(nil), &help); !errors.Is(err, ErrHelp) {
		t.Fatal(err)
	}
	flags, legacy, _ := strings.Cut(help.String(), "\nFlags of the server")
	for _, f := range regexp.MustCompile(`(?m)^  --(\S+).*\n        (.*)$`).FindAllStringSubmatch(flags, -1) {
		name, usage := f[1], f[2]
		value := ""
		if d := regexp.MustCompile(` \(default (.*)\)$`).FindStringSubmatch(usage); d != nil {
			value = d[1]
		}
		if strings.HasSuffix(usage, "; required") {
			value = "required"
		}
		got, ok := documented[name]
		delete(documented, name)
		switch {
		case !ok:
			t.Errorf("--%s is not in the table", name)
		case name == "table-path" && got == "<dir-path>/services": // empty means that
		case !sameValue(got, value):
			t.Errorf("--%s: the table says %q, the flag %q", name, got, value)
		}
	}
	for name := range documented {
		t.Errorf("--%s is in the table, and there is no such flag", name)
	}
	for _, f := range regexp.MustCompile(`(?m)^  -(\S+) `).FindAllStringSubmatch(legacy, -1) {
		if !strings.Contains(string(content), "`-"+f[1]+" ") {
			t.Errorf("-%s, of the server that this one replaces, is not mentioned", f[1])
		}
	}
}

// sameValue takes 1m and 1m0s for the same.
func sameValue(a, b string) bool {
	da, errA := time.ParseDuration(a)
	db, errB := time.ParseDuration(b)
	return a == b || errA == nil && errB == nil && da == db
}
