//go:build e2e

package interop_test

import (
	"encoding/xml"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// TestE2EH2Spec runs h2spec against the public listener and against net/http alone. What fails must be the same, and must
// be explained in h2spec_failures.txt.
func TestE2EH2Spec(t *testing.T) {
	h2spec := program(t, "H2SPEC")
	explained := readExplained(t)
	w := newWorld(t)

	bare := startBare(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }))

	// Most of its time h2spec waits for what must not come: both at once take half as long.
	var ours, theirs report
	var both sync.WaitGroup
	for address, into := range map[string]*report{w.proxy: &ours, bare: &theirs} {
		both.Go(func() { *into = runH2Spec(t, h2spec, address) })
	}
	both.Wait()
	if ours.ran < 100 || ours.ran != theirs.ran {
		t.Fatalf("h2spec ran %d cases against the proxy and %d against net/http, want the same number, 100 or more", ours.ran, theirs.ran)
	}
	t.Logf("%d cases, of which %d fail, and %d against net/http alone", ours.ran, len(ours.failed), len(theirs.failed))
	for name, how := range ours.failed {
		switch {
		case explained[name] == sometimes:
		case theirs.failed[name] == "":
			t.Errorf("%s: fails against the proxy only:\n%s", name, how)
		case explained[name] == "":
			t.Errorf("%s: fails, against net/http too: explain it in h2spec_failures.txt\n%s", name, how)
		}
	}
	for name, how := range theirs.failed {
		if ours.failed[name] == "" && explained[name] != sometimes {
			t.Errorf("%s: fails against net/http and passes against the proxy: why?\n%s", name, how)
		}
	}
	for name, when := range explained {
		if ours.failed[name] == "" && when == always {
			t.Errorf("%s: passes: strike it from h2spec_failures.txt", name)
		}
	}
}

// When an explained case fails.
const (
	always    = "always"
	sometimes = "sometimes" // which of two things comes first is not ours to say
)

// readExplained returns the cases of h2spec_failures.txt, and when they fail. Each must have an explanation.
func readExplained(t *testing.T) map[string]string {
	t.Helper()
	content, err := os.ReadFile("h2spec_failures.txt")
	if err != nil {
		t.Fatal(err)
	}
	explained := map[string]string{}
	var name, when string
	for line := range strings.Lines(string(content)) {
		switch line = strings.TrimRight(line, "\n"); {
		case line == "", strings.HasPrefix(line, "#"):
		case !strings.HasPrefix(line, "\t"):
			if name != "" && explained[name] == "" {
				t.Errorf("h2spec_failures.txt does not explain %q", name)
			}
			if name, when = line, always; strings.HasPrefix(line, sometimes+" ") {
				name, when = line[len(sometimes)+1:], sometimes
			}
		case name == "":
			t.Errorf("h2spec_failures.txt explains no case by %q", line)
		default:
			explained[name] = when
		}
	}
	if name != "" && explained[name] == "" {
		t.Errorf("h2spec_failures.txt does not explain %q", name)
	}
	return explained
}

// report is what became of a run of h2spec: how many cases it ran, and how the failed ones failed.
type report struct {
	ran    int
	failed map[string]string
}

func runH2Spec(t *testing.T, h2spec, address string) report {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "junit.xml")
	// Its exit code says only whether all passed. A case that waits in vain waits for this many seconds.
	r := run(t, t.TempDir(), nil, h2spec, "--host", host, "--port", port, "--strict", "--timeout", "3", "--junit-report", file)
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("h2spec wrote no report: %v\n%s%s", err, tail(r.stdout), tail(r.stderr))
	}
	var suites struct {
		Suites []struct {
			Cases []struct {
				Section string    `xml:"package,attr"`
				Title   string    `xml:"classname,attr"`
				Skipped *struct{} `xml:"skipped"`
				Error   *string   `xml:"error"`
				Failure *string   `xml:"failure"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(content, &suites); err != nil {
		t.Fatal(err)
	}
	ran := report{failed: map[string]string{}}
	for _, suite := range suites.Suites {
		for _, c := range suite.Cases {
			name := c.Section + ": " + c.Title
			if c.Skipped != nil {
				t.Errorf("%s: skipped", name)
			}
			ran.ran++
			for _, how := range []*string{c.Error, c.Failure} {
				if how != nil {
					ran.failed[name] = *how + "\n" // never ""
				}
			}
		}
	}
	return ran
}
