package check

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"
)

func TestJudgeCookie(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		domain, host, base string
		verdict            string
		what, how          string // parts
	}{
		{"example.net", "yt.example.net", "tp.example.net", fine, "as narrow as it can be", ""},
		{"tp.example.net", "yt.example.net", "tp.example.net", fine, "for tp.example.net, as narrow", ""},
		{"yt.example.net", "yt.example.net", "tp.yt.example.net", fine, "for yt.example.net, as narrow", ""},
		{"example.net", "yt.prod.example.net", "tp.prod.example.net", warning, "every web server under it gets it", "could be prod.example.net"},
		{"example.net", "", "tp.example.net", unknown, "every web server under it", "--login-url tells"},
		{"", "yt.example.net", "tp.example.net", warning, "has no Domain", "should be example.net"},
		{"yt.example.net", "yt.example.net", "tp.example.net", warning, "do not send it to tp.example.net", "should be example.net"},
		{"ample.net", "yt.example.net", "tp.example.net", warning, "do not send it to tp.example.net", "should be example.net"},
		{"co.uk", "yt.example.co.uk", "tp.example.co.uk", warning, "anybody can have a name", ""},
		{"example.co.uk", "yt.example.co.uk", "tp.other.co.uk", warning, "do not send it", "choose another --base-domain"},
	} {
		verdict, what, how := judgeCookie(tt.domain, tt.host, tt.base)
		if verdict != tt.verdict || !strings.Contains(what, tt.what) || !strings.Contains(how, tt.how) {
			t.Errorf("judgeCookie(%q, %q, %q) = %s, %q, %q; want %s, …%q…, …%q…", tt.domain, tt.host, tt.base, verdict, what, how, tt.verdict, tt.what, tt.how)
		}
	}
}

func TestPublicName(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"yt.example.net": "yt.example.net", "YT.Example.NET.": "yt.example.net",
		"http-proxies-lb.yt.svc.cluster.local": "", "http-proxies-lb.yt.svc": "", "localhost": "", "10.0.0.1": "", "::1": "", "": "",
	} {
		if got := publicName(in); got != want {
			t.Errorf("publicName(%q) = %q, want %q", in, got, want)
		}
	}
}

// Whatever a name is, a shell gives the command exactly the words that were meant.
func TestCommandsAreQuoted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ path, subject, value string }{
		{"//sys/a", "robot-x", `{action=allow; subjects=[robot-x]; permissions=[read]}`},
		{"//sys/$(id)/b c'd", `x"y'$z`, `{action=allow; subjects=["x\"y'$z"]; permissions=[read]}`},
		{"//sys/a;b", "1st", `{action=allow; subjects=["1st"]; permissions=[read]}`},
		{"//sys/a`b", "-v", `{action=allow; subjects=["-v"]; permissions=[read]}`},
	} {
		out, err := exec.CommandContext(t.Context(), "sh", "-c", `yt() { printf '%s\n' "$@"; }; `+grant(tt.path, tt.subject, "read")).Output()
		if want := "set\n" + tt.path + "/@acl/end\n" + tt.value + "\n"; err != nil || string(out) != want {
			t.Errorf("words %q, %v; want %q", out, err, want)
		}
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := &report{out: &out, counts: map[string]int{}}
	r.ok("one")
	r.line(missing, "two\nok       forged\x1b[2J", "do\rthis")
	r.unanswered("three", errors.New(strings.Repeat("é", 1000)))
	if r.sum() || r.err != nil {
		t.Errorf("content, err %v", r.err)
	}
	lines := strings.Split(out.String(), "\n")
	if len(lines) != 5 || lines[1] != "MISSING  two ok       forged [2J — do this" || lines[3] != "1 ok, 1 missing, 1 not known" || len(lines[2]) > 500 {
		t.Errorf("report %q", lines)
	}
	broken := &report{out: failing{}, counts: map[string]int{}}
	broken.ok("one")
	if broken.sum(); broken.err == nil {
		t.Error("a report that cannot be written is no error")
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("full") }
