//go:build e2e

package interop_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// versions are curl's ways to speak to the proxy. Who offers h2c is served as HTTP/1.1.
var versions = map[string]string{"HTTP/1.1": "--http1.1", "HTTP/2": "--http2-prior-knowledge", "HTTP/1.1, h2c offered": "--http2"}

// large is the size of a body that the proxy cannot keep without being seen to, in bytes.
const large = 200 << 20

// caller calls one service by curl, in one version.
type caller struct {
	dir   string
	env   []string
	alone func() string // $URL of the same service by net/http alone
}

// newCaller is for a service that it finds at $URL. There are files to send: small (1,000 bytes), medium (1 MB), empty.
func newCaller(t *testing.T, w *world, service endpoint, version string) *caller {
	t.Helper()
	c := &caller{dir: t.TempDir(), alone: sync.OnceValue(func() string { return "http://" + startBare(t, files()) })}
	_, port, _ := strings.Cut(w.proxy, ":")
	c.env = []string{"URL=http://" + service.domain + ":" + port}
	for name, size := range map[string]int64{"small": 1000, "medium": 1 << 20, "empty": 0} {
		c.file(t, name, size)
	}
	// What all calls have in common. The names under localhost lead to this machine without asking anybody.
	settings := fmt.Sprintf("silent\nshow-error\n%s\nresolve = \"%s:%s:127.0.0.1\"\nheader = \"Authorization: Bearer %s\"\n",
		strings.TrimLeft(version, "-"), service.domain, port, w.alice.Token)
	if err := os.WriteFile(filepath.Join(c.dir, "settings"), []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// file writes the first bytes of the pattern to a file.
func (c *caller) file(t *testing.T, name string, size int64) {
	t.Helper()
	f, err := os.Create(filepath.Join(c.dir, name))
	if err == nil {
		_, err = io.Copy(f, newPattern(size))
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// call runs curl as somebody who pastes the arguments into a shell.
func (c *caller) call(t *testing.T, arguments string) result {
	t.Helper()
	return run(t, c.dir, c.env, "sh", "-c", "curl --config settings "+arguments)
}

// ok is call, and fails the test unless curl is content.
func (c *caller) ok(t *testing.T, arguments string) string {
	t.Helper()
	r := c.call(t, arguments)
	if r.code != 0 {
		t.Fatalf("curl %s\nexit code %d, want 0\n%s%s", arguments, r.code, tail(r.stdout), tail(r.stderr))
	}
	return r.stdout
}

// mustBeAble says that curl can make the call without the proxy, too, or skips the test. Debian 12's curl 7.88.1 has trouble with some
// that are right in HTTP/2: the answer that comes before the body's end, and the second request on a connection.
func (c *caller) mustBeAble(t *testing.T, arguments string) {
	t.Helper()
	for range 10 {
		c.mustEndWell(t, arguments)
	}
}

// mustEndWell is mustBeAble for one try.
func (c *caller) mustEndWell(t *testing.T, arguments string) {
	t.Helper()
	if r := run(t, c.dir, []string{"URL=" + c.alone()}, "sh", "-c", "curl --config settings "+arguments); r.code != 0 {
		t.Skipf("this curl cannot do it with net/http alone either: exit code %d, %s", r.code, r.stderr)
	}
}

// okIfAble is ok for a call that fails now and then without the proxy, too: then it skips the test.
func (c *caller) okIfAble(t *testing.T, arguments string) string {
	t.Helper()
	c.mustBeAble(t, arguments)
	r := c.call(t, arguments)
	for range 500 {
		if r.code == 0 {
			return r.stdout
		}
		c.mustEndWell(t, arguments)
	}
	t.Fatalf("curl %s\nexit code %d, want 0, as always without the proxy\n%s%s", arguments, r.code, tail(r.stdout), tail(r.stderr))
	return ""
}

// TestE2ECurl sends and fetches with curl in the ways that people have.
func TestE2ECurl(t *testing.T) {
	w, service := startFiles(t)
	for name, option := range versions {
		t.Run(name, func(t *testing.T) {
			c := newCaller(t, w, service, option)
			spoken := c.ok(t, `-o /dev/null -w '%{http_version}' "$URL/file?size=1"`)
			if want := strings.TrimPrefix(strings.TrimSuffix(name, ", h2c offered"), "HTTP/"); spoken != want {
				t.Errorf("curl speaks HTTP/%s, want %s", spoken, want)
			}
			t.Run("upload", func(t *testing.T) { testUploads(t, c, name) })
			t.Run("continue", func(t *testing.T) { testContinue(t, c, name) })
			t.Run("download", func(t *testing.T) { testDownloads(t, c) })
		})
	}
}

func startFiles(t *testing.T) (*world, endpoint) {
	t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Fatal("curl is not on the PATH: install it")
	}
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	return w, w.launch(t, "files", "http", "'"+executable+"' "+httpJob)
}

// testUploads: the job gets the bytes that were sent, in the framing that they were sent in.
func testUploads(t *testing.T, c *caller, version string) {
	// In HTTP/2 a length is a header like any other, so that what has none is chunked on the way to the job.
	for _, u := range []struct {
		arguments, method string
		size              int64
		length            int64 // that the job is told; -1 is none
	}{
		{"--data-binary @small", "POST", 1000, 1000},
		{"--data-binary @medium", "POST", 1 << 20, 1 << 20},
		{"--data-binary @empty", "POST", 0, 0},
		{"-X PATCH --data-binary @medium", "PATCH", 1 << 20, 1 << 20},
		{"-T small", "PUT", 1000, 1000},
		{"-T medium", "PUT", 1 << 20, 1 << 20},
		{"-T empty", "PUT", 0, 0},
		{"-T - < medium", "PUT", 1 << 20, -1},
		{"-T - < empty", "PUT", 0, -1},
		{"-X POST -T - < small", "POST", 1000, -1},
		{`-H "Transfer-Encoding: chunked" -T medium`, "PUT", 1 << 20, -1},
		{`-H "Transfer-Encoding: chunked" --data-binary @small`, "POST", 1000, -1},
		{`-H "Expect:" -T medium`, "PUT", 1 << 20, 1 << 20},
		{"-X DELETE", "DELETE", 0, 0},
		{"-X POST", "POST", 0, 0},
		{"-X DELETE --data-binary @small", "DELETE", 1000, 1000},
		{"-X GET --data-binary @small", "GET", 1000, 1000},
	} {
		t.Run(u.arguments, func(t *testing.T) {
			// The address comes first, so that a redirection may be last.
			printed := c.ok(t, `--fail-with-body "$URL/upload" `+u.arguments)
			var got upload
			if err := json.Unmarshal([]byte(printed), &got); err != nil {
				t.Fatalf("%v in %q", err, printed)
			}
			want := upload{Method: u.method, Bytes: u.size, SHA256: sum(t, newPattern(u.size)), Length: u.length, Chunked: u.length < 0}
			if version == "HTTP/2" && u.length < 0 && u.size == 0 {
				want.Length, want.Chunked = got.Length, got.Chunked // a stream without data may say either
			}
			if strings.Contains(u.arguments, "Transfer-Encoding") && version == "HTTP/2" {
				want.Length, want.Chunked = got.Length, got.Chunked // curl drops the header, which HTTP/2 forbids, and what it does instead is its own
			}
			if got != want {
				t.Errorf("the job got %+v, want %+v", got, want)
			}
		})
	}
	t.Run("several parts", func(t *testing.T) {
		got := c.ok(t, `--fail-with-body "$URL/form" -F name=value -F file=@medium -F empty=@empty`)
		want := fmt.Sprintf("empty=0 %s\nfile=%d %s\nname=5 %s\n", sum(t, newPattern(0)), 1<<20, sum(t, newPattern(1<<20)), sum(t, strings.NewReader("value")))
		if got != want {
			t.Errorf("the job got\n%swant\n%s", got, want)
		}
	})
}

// testContinue: the job decides whether a body is sent at all.
func testContinue(t *testing.T, c *caller, version string) {
	const expect = `-H "Expect: 100-continue" --expect100-timeout 20 `
	t.Run("sent when the job asks for it", func(t *testing.T) {
		r := c.call(t, expect+`-v --fail-with-body "$URL/upload" -T medium`)
		if r.code != 0 || !strings.Contains(r.stdout, sum(t, newPattern(1<<20))) {
			t.Fatalf("exit code %d\n%s%s", r.code, r.stdout, tail(r.stderr))
		}
		if version != "HTTP/2" && !strings.Contains(r.stderr, " 100 Continue") {
			t.Errorf("no 100 Continue in\n%s", tail(r.stderr))
		}
	})
	for _, r := range []struct{ name, arguments, want string }{
		{"not sent when the job refuses", expect + `-w '%{http_code} %{size_upload}' `, "413 0"},
		{"the job refuses while it comes", `-H "Expect:" -w '%{http_code}' `, "413"},
	} {
		t.Run(r.name, func(t *testing.T) {
			arguments := r.arguments + `-o /dev/null "$URL/refuse" -T medium`
			if got := c.okIfAble(t, arguments); got != r.want {
				t.Errorf("status (and bytes sent): got %s, want %s", got, r.want)
			}
		})
	}
}

// testDownloads: what curl gets is what the job gives.
func testDownloads(t *testing.T, c *caller) {
	// For files of 1,000 bytes.
	for _, d := range []struct{ arguments, want string }{
		{"", "200 1000 "},
		{"-I", "200 0 "},
		{"--range 0-0", "206 1 bytes 0-0/1000"},
		{"--range 100-199", "206 100 bytes 100-199/1000"},
		{"--range 990-", "206 10 bytes 990-999/1000"},
		{"--range -5", "206 5 bytes 995-999/1000"},
		{"--range 0-4999", "206 1000 bytes 0-999/1000"},
		{"--range 1000-", "416 "},
		{"-I --range 0-9", "206 0 bytes 0-9/1000"},
		{`-H 'If-None-Match: "pattern"'`, "304 0 "},
		{`-H 'If-None-Match: "another"'`, "200 1000 "},
		{`-H 'If-Match: "another"'`, "412 "},
		{`-H 'If-Range: "pattern"' --range 0-9`, "206 10 bytes 0-9/1000"},
		{`-H 'If-Range: "another"' --range 0-9`, "200 1000 "},
		{`-z "Fri, 01 Jan 2100 00:00:00 GMT"`, "304 0 "},
		{`-z "Fri, 01 Jan 2010 00:00:00 GMT"`, "200 1000 "},
	} {
		t.Run(strings.TrimSpace("GET "+d.arguments), func(t *testing.T) {
			got := c.ok(t, `-o got -D headers -w '%{http_code} %{size_download}' "$URL/file?size=1000" `+d.arguments)
			headers, err := os.ReadFile(filepath.Join(c.dir, "headers"))
			if err != nil {
				t.Fatal(err)
			}
			got += " " + header(string(headers), "content-range")
			if !strings.HasPrefix(got, d.want) {
				t.Errorf("got %q, want %q\n%s", got, d.want, headers)
			}
			if length := header(string(headers), "content-length"); d.arguments == "-I" && length != "1000" {
				t.Errorf("Content-Length for HEAD: got %q, want 1000", length)
			}
		})
	}
	t.Run("several ranges", func(t *testing.T) {
		got := c.ok(t, `--range 0-9,500-509 -D - "$URL/file?size=1000"`)
		if !strings.Contains(got, "multipart/byteranges") || strings.Count(strings.ToLower(got), "content-range: bytes ") != 2 {
			t.Errorf("got\n%q, want two parts", got)
		}
	})
	t.Run("resumed", func(t *testing.T) {
		c.file(t, "part", 300_000)
		c.ok(t, `--fail -C - -o part "$URL/file?size=1048576"`)
		c.same(t, "part", 1<<20)
	})
	t.Run("compressed", func(t *testing.T) {
		got := c.ok(t, `--fail --compressed -o got -D - -w '%{size_download}' "$URL/zip?size=1048576"`)
		c.same(t, "got", 1<<20)
		if header(got, "content-encoding") != "gzip" {
			t.Errorf("got no gzip: %s", got)
		}
	})
	t.Run("not compressed unless asked for", func(t *testing.T) {
		got := c.ok(t, `--fail -o got -D - "$URL/zip?size=1048576"`)
		c.same(t, "got", 1<<20)
		if coding := header(got, "content-encoding"); coding != "" {
			t.Errorf("got %s", coding)
		}
	})
	t.Run("of unknown length", func(t *testing.T) {
		c.ok(t, `--fail -o got "$URL/stream?size=1048576"`)
		c.same(t, "got", 1<<20)
	})
	t.Run("cut off by the job", func(t *testing.T) {
		if r := c.call(t, `-o got "$URL/cut?size=1048576"`); r.code == 0 {
			t.Error("curl takes half an answer for a whole one")
		}
	})
	t.Run("eight at once", func(t *testing.T) {
		c.ok(t, `--fail --parallel --parallel-immediate -o 'got#1' "$URL/file?size=1048576&n=[1-8]"`)
		for i := range 8 {
			c.same(t, "got"+strconv.Itoa(i+1), 1<<20)
		}
	})
	t.Run("two on one connection", func(t *testing.T) {
		const two = `--fail -o got1 -o got2 -w '%{num_connects} ' "$URL/file?size=1000" "$URL/file?size=2000"`
		got := c.okIfAble(t, two)
		if got != "1 0 " {
			t.Errorf("connections opened: got %q, want 1 and then none", got)
		}
		c.same(t, "got2", 2000)
	})
}

// same fails the test unless the file has the first size bytes of the pattern, and removes it.
func (c *caller) same(t *testing.T, name string, size int64) {
	t.Helper()
	path := filepath.Join(c.dir, name)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(path)
	defer f.Close()
	if got, want := sum(t, f), sum(t, newPattern(size)); got != want {
		info, _ := f.Stat()
		t.Errorf("%s has %d bytes with the sum %s, want %d with %s", name, info.Size(), got, size, want)
	}
}

// TestE2ELargeBodies sends and fetches what is much larger than the proxy's memory may grow.
func TestE2ELargeBodies(t *testing.T) {
	const most = 48 << 20 // of all that it may have more at any time, in bytes
	w, service := startFiles(t)
	for _, name := range []string{"HTTP/1.1", "HTTP/2"} {
		t.Run(name, func(t *testing.T) {
			c := newCaller(t, w, service, versions[name])
			c.file(t, "large", large)
			want := sum(t, newPattern(large))
			before := w.memory(t, "VmRSS")
			for _, arguments := range []string{"-T large", "-T - < large"} {
				if got := c.ok(t, `--fail-with-body "$URL/upload" `+arguments); !strings.Contains(got, want) {
					t.Errorf("curl %s: the job got %s, want the sum %s", arguments, got, want)
				}
			}
			for _, path := range []string{"file", "stream"} {
				c.ok(t, fmt.Sprintf(`--fail -o got "$URL/%s?size=%d"`, path, large))
				c.same(t, "got", large)
			}
			peak := w.memory(t, "VmHWM")
			t.Logf("the proxy had %d MiB before and %d MiB at most", before>>20, peak>>20)
			if peak-before > most {
				t.Errorf("the proxy had %d bytes before and %d at most: more than %d were added", before, peak, int64(most))
			}
		})
	}
}

// memory is a value of the proxy's process, in bytes: VmRSS is what it has, VmHWM the most that it has had.
func (w *world) memory(t *testing.T, name string) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "\n"+name+":")
	text, _, _ := strings.Cut(rest, "kB")
	kb, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		t.Fatalf("%s in %s: %v", name, status, err)
	}
	return kb << 10
}

// header is the value of a header in what curl printed of an answer, "" if it has none. name is in lower case.
func header(printed, name string) string {
	for line := range strings.Lines(printed) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.ToLower(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func sum(t *testing.T, r io.Reader) string {
	t.Helper()
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}
