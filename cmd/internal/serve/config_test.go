package serve

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func env(vars map[string]string) func(string) string {
	return func(k string) string { return vars[k] }
}

var good = []string{"--yt-proxy=localhost:80", "--yt-token-path=/t", "--base-domain=tp.example.net"}

func TestParseConfigDefaults(t *testing.T) {
	t.Parallel()
	c, err := ParseConfig(good, env(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != ":8080" || c.AdminListen != ":9102" || c.DebugListen != "127.0.0.1:9103" || c.MaxConnections != 0 || c.TLSCertFile != "" || c.DryRun || c.TablePath != "//sys/task_proxies/services" ||
		c.DiscoveryPeriod != 10*time.Second || c.Concurrency != 16 || !c.AuthEnabled || c.AuthCookieName != "YTCypressCookie" ||
		c.StaleLimit != 10*time.Minute || c.IdleTimeout != time.Hour || c.ConnectTimeout != 2*time.Second ||
		c.ShutdownDelay != 5*time.Second || c.ShutdownTimeout != 30*time.Second || c.Bases.Primary() != "tp.example.net" {
		t.Errorf("defaults = %+v", c)
	}
}

func TestParseConfigPrecedence(t *testing.T) {
	t.Parallel()
	vars := env(map[string]string{"TASK_PROXY_LISTEN": ":1", "TASK_PROXY_ADMIN_LISTEN": ":2", "TASK_PROXY_AUTH_ENABLED": "false", "TASK_PROXY_DIR_PATH": "//home/tp"})
	c, err := ParseConfig(append(slices.Clone(good), "--listen", ":3", "-auth-enabled"), vars, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != ":3" || c.AdminListen != ":2" || !c.AuthEnabled || c.TablePath != "//home/tp/services" {
		t.Errorf("listen %q, admin %q, auth %v, table %q", c.Listen, c.AdminListen, c.AuthEnabled, c.TablePath)
	}
}

// Addresses of one port stand beside each other where their hosts differ, and any free port is always another.
func TestParseConfigAddressesApart(t *testing.T) {
	t.Parallel()
	for _, listen := range []string{"10.0.0.1:80 10.0.0.2:80 [::1]:80", ":0 :0 :0", ":80 :81 ", "localhost:80 :81 127.0.0.1:80"} {
		a := strings.Split(listen, " ")
		if _, err := ParseConfig(append(slices.Clone(good), "--listen="+a[0], "--admin-listen="+a[1], "--debug-listen="+a[2]), env(nil), nil); err != nil {
			t.Errorf("%s: %v", listen, err)
		}
	}
}

// Each wrong value is named with its flag or variable and with what was given.
func TestParseConfigNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	tests := []struct {
		args []string
		vars map[string]string
		want []string // a part of each problem
	}{
		{nil, nil, []string{"--yt-proxy (or TASK_PROXY_YT_PROXY) is required", "--yt-token-path (or TASK_PROXY_YT_TOKEN_PATH) is required", "--base-domain (or TASK_PROXY_BASE_DOMAIN) is required"}},
		{append(slices.Clone(good), "--nonsense=1"), nil, []string{"unknown flag --nonsense"}},
		{append(slices.Clone(good), "--lissten=:1"), nil, []string{"unknown flag --lissten; is --listen meant?"}},
		{append(slices.Clone(good), "---listen=:1", "--=x", "--nonsense"), nil, []string{"bad flag syntax: ---listen=:1", "bad flag syntax: --=x", "unknown flag --nonsense"}},
		{append(slices.Clone(good), "--nonsense", "x", "--listen", "y"), nil, []string{"unknown flag --nonsense", `--listen: "y" is no address`}},
		{append(slices.Clone(good), "--tls-cert-file=/no-such-file"), nil, []string{"--tls-key-file (or TASK_PROXY_TLS_KEY_FILE) is required", "--tls-cert-file: cannot read /no-such-file"}},
		{append(slices.Clone(good), "--listen"), nil, []string{"--listen needs a value, as in --listen=:8080"}},
		{append(slices.Clone(good), "--listen=8080"), nil, []string{`--listen: "8080" is no address`}},
		{append(slices.Clone(good), "--listen=:99999"), nil, []string{`--listen: ":99999" has no port`}},
		{append(slices.Clone(good), "--listen=:9102"), nil, []string{`--admin-listen: ":9102" takes the port of --listen, ":9102"; want another`}},
		{append(slices.Clone(good), "--listen=10.1.2.3:80", "--admin-listen=[::]:http", "--debug-listen=10.1.2.3:80"), nil, []string{
			`--admin-listen: "[::]:http" takes the port of --listen`, `--debug-listen: "10.1.2.3:80" takes the port of --listen`, `--debug-listen: "10.1.2.3:80" takes the port of --admin-listen`}},
		{append(slices.Clone(good), "--discovery-period=10"), nil, []string{`--discovery-period: "10" is no duration`}},
		{append(slices.Clone(good), "--discovery-period=-1s"), nil, []string{`--discovery-period: "-1s" is less than`}},
		{append(slices.Clone(good), "--discovery-concurrency=0"), nil, []string{`--discovery-concurrency: "0" is no number from 1`}},
		{append(slices.Clone(good), "--auth-enabled=maybe"), nil, []string{`--auth-enabled: "maybe" is neither`}},
		{append(slices.Clone(good), "--auth-cookie-name=a b"), nil, []string{`--auth-cookie-name: "a b"`}},
		{append(slices.Clone(good), "--trusted-proxies=10.0.0.1"), nil, []string{`--trusted-proxies: "10.0.0.1" is no CIDR`}},
		{append(slices.Clone(good), "--login-url=javascript:alert(1)"), nil, []string{`--login-url: "javascript:alert(1)"`}},
		{append(slices.Clone(good), "--frame-ancestors=https://ui.example.net,ui.example.net"), nil, []string{`--frame-ancestors: "ui.example.net" `}},
		{append(slices.Clone(good), "--frame-ancestors=https://ui.example.net/x"), nil, []string{`--frame-ancestors: "https://ui.example.net/x" `}},
		{append(slices.Clone(good), "--public-scheme=ftp"), nil, []string{`--public-scheme: "ftp" is none of http, https`}},
		{append(slices.Clone(good), "--dir-path=sys/x"), nil, []string{`--dir-path: "sys/x" is no absolute Cypress path`}},
		{append(slices.Clone(good), "--table-path=//a/@b"), nil, []string{`--table-path: "//a/@b"`}},
		{append(slices.Clone(good), "--yt-ca-file=/does/not/exist"), nil, []string{"--yt-ca-file: open /does/not/exist"}},
		{append(slices.Clone(good), "--yt-ca-file=config_test.go"), nil, []string{"--yt-ca-file: config_test.go holds no certificate in PEM"}},
		{append(slices.Clone(good), "--tls-cert-file=/no/cert", "--tls-key-file=/no/key"), nil, []string{"--tls-cert-file: cannot read /no/cert", "--tls-key-file: cannot read /no/key"}},
		{append(slices.Clone(good), "--base-domain=http://x"), nil, []string{`--base-domain: `}},
		{append(slices.Clone(good), "--yt-proxy=ftp://x"), nil, []string{`--yt-proxy: "ftp://x" is no address of a cluster`}},
		{append(slices.Clone(good), "--spyt-rest=maybe"), nil, []string{`--spyt-rest: "maybe" is none of publish, hide`}},
		{append(slices.Clone(good), "--spyt-rest-permission=none"), nil, []string{`--spyt-rest-permission: "none" is none of`}},
		{append(slices.Clone(good), "--spyt-ports=x"), nil, []string{`--spyt-ports: `}},
		{append(slices.Clone(good), "--max-services=0"), nil, []string{`--max-services: "0" is no number from 1`}},
		{append(slices.Clone(good), "--max-connections=-1"), nil, []string{`--max-connections: "-1" is no number from 0`}},
		{append(slices.Clone(good), "--debug-listen=9103"), nil, []string{`--debug-listen: "9103" is no address`}},
		{append(slices.Clone(good), "--log-level=loud"), nil, []string{`--log-level: "loud" is none of`}},
		{append(slices.Clone(good), "extra"), nil, []string{`unexpected argument "extra"`}},
		{good, map[string]string{"TASK_PROXY_IDLE_TIMEOUT": "soon"}, []string{`TASK_PROXY_IDLE_TIMEOUT (--idle-timeout): "soon"`}},
		{[]string{"--wrong", "--listen=x", "--idle-timeout=y", "--other=1", "stray"}, nil, []string{
			"--wrong", "--listen", "--idle-timeout", "--other", `"stray"`, "--yt-proxy", "--yt-token-path", "--base-domain"}},
	}
	for _, tt := range tests {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			t.Parallel()
			_, err := ParseConfig(tt.args, env(tt.vars), nil)
			var usage *UsageError
			if !errors.As(err, &usage) {
				t.Fatalf("err = %v, want a UsageError", err)
			}
			if len(usage.Problems) != len(tt.want) {
				t.Errorf("%d problems, want %d: %q", len(usage.Problems), len(tt.want), usage.Problems)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("no problem says %q: %q", want, usage.Problems)
				}
			}
		})
	}
}

// Whoever has made several mistakes hears of all at once: flags, files, variables that nobody reads.
func TestParseEnvironNamesAllThatIsWrong(t *testing.T) {
	t.Parallel()
	environ := []string{
		"TASK_PROXY_BASE_DOMIAN=tp.example.net", "TASK_PROXY_IDLE_TIMEOUT=soon", "TASK_PROXY_COLOUR=red", "TASK_PROXY_EMPTY=", "HOME=/",
		"TASK_PROXY_YT_PROXY=cluster", "TASK_PROXY_NAMESPACE=yt",
		// What Kubernetes says about services called task-proxy and task-proxy-admin.
		"TASK_PROXY_SERVICE_HOST=10.0.0.1", "TASK_PROXY_SERVICE_PORT=80", "TASK_PROXY_SERVICE_PORT_HTTP=80", "TASK_PROXY_PORT=tcp://10.0.0.1:80",
		"TASK_PROXY_PORT_80_TCP=tcp://10.0.0.1:80", "TASK_PROXY_PORT_80_TCP_PROTO=tcp", "TASK_PROXY_ADMIN_SERVICE_HOST=10.0.0.2",
		"TASK_PROXY_ADMIN_PORT_9102_TCP_ADDR=10.0.0.2",
	}
	_, err := ParseEnviron([]string{"--lissten=:1", "--admin-listen=9102", "--yt-token-path=/does/not/exist", "--yt-ca-file=/nor/does/this"}, environ, nil)
	var usage *UsageError
	if !errors.As(err, &usage) {
		t.Fatalf("err = %v, want a UsageError", err)
	}
	want := []string{
		"unknown flag --lissten; is --listen meant?",
		"--yt-ca-file: open /nor/does/this: no such file or directory",
		`--admin-listen: "9102" is no address like :8080 or 127.0.0.1:8080`,
		`TASK_PROXY_IDLE_TIMEOUT (--idle-timeout): "soon" is no duration like 10s or 1m30s`,
		"TASK_PROXY_BASE_DOMIAN: no flag has this variable; is TASK_PROXY_BASE_DOMAIN meant?",
		"TASK_PROXY_COLOUR: no flag has this variable",
		"TASK_PROXY_NAMESPACE: no flag has this variable",
		"--base-domain (or TASK_PROXY_BASE_DOMAIN) is required",
		"--yt-token-path: the robot's token: cannot read /does/not/exist: no such file or directory",
	}
	if !slices.Equal(usage.Problems, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(usage.Problems, "\n"), strings.Join(want, "\n"))
	}
}

func TestParseEnvironReadsVariables(t *testing.T) {
	t.Parallel()
	environ := []string{"TASK_PROXY_YT_PROXY=first", "TASK_PROXY_YT_PROXY=second", "TASK_PROXY_YT_TOKEN_PATH=/t", "TASK_PROXY_BASE_DOMAIN=tp.example.net", "TASK_PROXY_PORT=tcp://10.0.0.1:80"}
	c, err := ParseEnviron(nil, environ, nil)
	if err != nil || c.YTProxy != "first" || c.YTTokenPath != "/t" {
		t.Errorf("got %q, %q, %v", c.YTProxy, c.YTTokenPath, err)
	}
}

func TestDistance(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "", 3}, {"", "ab", 2}, {"listen", "lissten", 1}, {"domian", "domain", 1}, {"kitten", "sitting", 3}, {"ca", "abc", 3}} {
		if got := distance(tt.a, tt.b); got != tt.want {
			t.Errorf("distance(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
		if got := distance(tt.b, tt.a); got != tt.want {
			t.Errorf("distance(%q, %q) = %d, want %d", tt.b, tt.a, got, tt.want)
		}
	}
}

func TestParseConfigHelp(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if _, err := ParseConfig([]string{"--help"}, env(nil), &out); !errors.Is(err, ErrHelp) {
		t.Fatalf("err = %v", err)
	}
	for _, want := range []string{"--base-domain domain", "--auth-enabled", "(default :8080)", "TASK_PROXY_YT_PROXY"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the help does not say %q:\n%s", want, out.String())
		}
	}
}

func TestParseToken(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"abc": "abc", " abc\n": "abc", "\"abc\"\n": "abc", "\"abc": "\"abc", "\"\"abc\"\"": "\"abc\""} {
		if got, err := parseToken(in); got != want || err != nil {
			t.Errorf("parseToken(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"", "\n", `""`, "a b", "a\nb", "t\u00f6ken", "a\x00"} {
		if got, err := parseToken(in); err == nil {
			t.Errorf("parseToken(%q) = %q, want an error", in, got)
		}
	}
}

func TestTokenFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "token")
	write := func(content string, at time.Time) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now().Add(-time.Hour)
	write("one", start)
	var log bytes.Buffer
	logger := NewLogger(&log, Config{LogFormat: "json"})
	f, err := openToken(dir, logger) // a directory with one file, as a mounted secret is
	if err != nil {
		t.Fatal(err)
	}
	if f.reloaded, err = newTokenMetric(prometheus.NewRegistry()); err != nil {
		t.Fatal(err)
	}
	good := 1.0
	want := func(token string) {
		t.Helper()
		if got, err := f.Token(); got != token || err != nil {
			t.Errorf("Token = %q, %v; want %q", got, err, token)
		}
		if got := testutil.ToFloat64(f.reloaded); got != good {
			t.Errorf("the metric is %v after token %q, want %v", got, token, good)
		}
	}
	want("one")
	write("\"two\"\n", start.Add(time.Second))
	want("two")
	write("", start.Add(2*time.Second))
	good = 0
	want("two") // half-way through being replaced
	want("two")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	want("two")
	good = 1
	write("three", start.Add(3*time.Second))
	want("three")
	if err := os.WriteFile(filepath.Join(dir, "another-token"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	write("four", start.Add(4*time.Second))
	want("four") // a secret may have further keys
	if n := strings.Count(log.String(), "using the last token"); n != 2 {
		t.Errorf("%d warnings, want one for the empty file and one for the missing:\n%s", n, &log)
	}
	for _, secret := range []string{"one", "two", "three", "four"} {
		if strings.Contains(log.String(), `"`+secret) {
			t.Errorf("the log shows the token %q", secret)
		}
	}
}

func TestOpenTokenSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "second"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "missing"): "cannot read " + filepath.Join(dir, "missing") + ": no such file",
		empty:                         empty + " is empty",
		dir:                           "holds 2 files, none of them called token: want one",
	} {
		if _, err := openToken(path, nil); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("openToken(%s) = %v, want one line with %q", path, err, want)
		}
	}
}
