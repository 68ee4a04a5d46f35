package serve

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
)

// The command line of the server that this one replaces means the same here.
func TestLegacyFlags(t *testing.T) {
	t.Parallel()
	c, err := ParseConfig([]string{"-namespace", "yt-test", "-yt-token-path", "/etc/yt/token", "-base-domain", "tp.example.net", "-dir-path", "//sys/tp",
		"-discovery-period-seconds", "60", "-auth-enabled=false", "-auth-cookie-name", "yc_session"}, env(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.YTProxy != "http-proxies-lb.yt-test.svc.cluster.local" || c.YTTokenPath != "/etc/yt/token" || c.Bases.Primary() != "tp.example.net" ||
		c.TablePath != "//sys/tp/services" || c.DiscoveryPeriod != time.Minute || c.AuthEnabled || c.AuthCookieName != "yc_session" {
		t.Errorf("%+v", c)
	}
}

func TestLegacyFlagsAgree(t *testing.T) {
	t.Parallel()
	const means = "http-proxies-lb.yt.svc.cluster.local"
	others := []string{"--yt-token-path=/t", "--base-domain=tp.example.net"}
	tests := []struct {
		args []string
		vars map[string]string
		want string // the problem; empty: none
	}{
		{[]string{"-namespace=yt", "--yt-proxy=" + means}, nil, ""},
		{[]string{"-namespace=yt", "--yt-proxy=other"}, nil, `-namespace yt means --yt-proxy=` + means + `, and --yt-proxy says "other": give only one of them`},
		{[]string{"-namespace=yt"}, map[string]string{"TASK_PROXY_YT_PROXY": means}, ""},
		{[]string{"-namespace=yt"}, map[string]string{"TASK_PROXY_YT_PROXY": "other"}, `and TASK_PROXY_YT_PROXY (--yt-proxy) says "other"`},
		{[]string{"-namespace="}, nil, `-namespace (--yt-proxy): "" is no name of a Kubernetes namespace`},
		{[]string{"-namespace=a.b"}, nil, `-namespace (--yt-proxy): "a.b" is no name`},
		{[]string{"-namespace=x@evil/"}, nil, `-namespace (--yt-proxy): "x@evil/" is no name`},
		{[]string{"-namespace=-a"}, nil, `-namespace (--yt-proxy): "-a" is no name`},
		{[]string{"-namespace=" + strings.Repeat("a", 64)}, nil, `is no name`},
		{[]string{"-namespace=" + strings.Repeat("a", 63)}, nil, ""},
		{[]string{"-namespace=yt", "-discovery-period-seconds=60", "--discovery-period=1m"}, nil, ""},
		{[]string{"-namespace=yt", "-discovery-period-seconds=60", "--discovery-period=10s"}, nil, `-discovery-period-seconds 60 means --discovery-period=1m0s, and --discovery-period says "10s"`},
		{[]string{"-namespace=yt", "-discovery-period-seconds=0"}, nil, `-discovery-period-seconds (--discovery-period): "0" is no number from 1 to 86400`},
		{[]string{"-namespace=yt", "-discovery-period-seconds=1m"}, nil, `"1m" is no number`},
		{[]string{"-namespace=yt", "-discovery-period-seconds=86401"}, nil, `"86401" is no number`},
	}
	for _, tt := range tests {
		_, err := ParseConfig(append(tt.args, others...), env(tt.vars), nil)
		var usage *UsageError
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%q %v: %v", tt.args, tt.vars, err)
		case tt.want != "" && (!errors.As(err, &usage) || len(usage.Problems) != 1 || !strings.Contains(usage.Problems[0], tt.want)):
			t.Errorf("%q %v: %v\nwant one problem with %q", tt.args, tt.vars, err, tt.want)
		}
	}
	// No variable stands for them: an environment has names like these for other reasons.
	if _, err := ParseConfig(others, env(map[string]string{"TASK_PROXY_NAMESPACE": "yt"}), nil); err == nil {
		t.Error("TASK_PROXY_NAMESPACE counts")
	}
	var help bytes.Buffer
	_, _ = ParseConfig([]string{"--help"}, env(nil), &help)
	if text := help.String(); !strings.Contains(text, "  -namespace namespace\n") || strings.Contains(text, "--namespace") {
		t.Errorf("the help on legacy flags:\n%s", text)
	}
}

// What all flags and variables come to is told with where it is from, in a form that can be given back, and without passwords.
func TestEffective(t *testing.T) {
	t.Parallel()
	c, err := ParseConfig([]string{"-namespace=yt", "--yt-token-path=/etc/yt token", "--dry-run", "--login-url=https://me:s3cret@yt.example.net/login?next={url}",
		"--base-domain=tp.example.net", "--log-format", "json"}, env(map[string]string{"TASK_PROXY_LISTEN": ":80", "TASK_PROXY_DIR_PATH": "//home/tp"}), nil)
	if err != nil || !c.DryRun {
		t.Fatal(err, c.DryRun)
	}
	got := make(map[string]string) // line -> source
	for line := range strings.Lines(c.Effective) {
		setting, source, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " # ")
		got[strings.TrimRight(setting, " ")] = source
	}
	for setting, source := range map[string]string{
		"--yt-proxy=http-proxies-lb.yt.svc.cluster.local":                     "-namespace",
		`--yt-token-path="/etc/yt token"`:                                     "flag",
		"--listen=:80":                                                        "TASK_PROXY_LISTEN",
		"--table-path=//home/tp/services":                                     "--dir-path",
		"--admin-listen=:9102":                                                "default",
		"--login-url=" + `"https://me:xxxxx@yt.example.net/login?next={url}"`: "flag",
		"--frame-ancestors=":                                                  "default",
		"--dry-run=true":                                                      "flag",
	} {
		if got[setting] != source {
			t.Errorf("%s is from %q, want %q", setting, got[setting], source)
		}
	}
	if strings.Contains(c.Effective, "s3cret") {
		t.Error("it shows a password")
	}
	if t.Failed() {
		t.Log("\n" + c.Effective)
	}
}
