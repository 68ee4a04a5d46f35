package ytlocal

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yt"
	"go.ytsaurus.tech/yt/go/yt/ythttp"
	"go.ytsaurus.tech/yt/go/yterrors"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startCluster starts a cluster that ends with the test.
func startCluster(t *testing.T, edit ...func(*Config)) *Cluster {
	t.Helper()
	cfg := Config{StateDir: filepath.Join(t.TempDir(), "state")}
	for _, e := range edit {
		e(&cfg)
	}
	c, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return c
}

// client is the real SDK with the given token.
func client(t *testing.T, c *Cluster, token string) yt.Client {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	yc, err := ythttp.NewClient(&yt.Config{
		Proxy: c.Addr(), Token: token, CompressionCodec: yt.ClientCodecNone, DisableProxyDiscovery: true,
		HTTPClient: &http.Client{Transport: transport},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(yc.Stop)
	return yc
}

// rootClient is the SDK as root.
func rootClient(t *testing.T, c *Cluster) yt.Client {
	t.Helper()
	return client(t, c, c.RootToken())
}

// addUser makes a user.
func addUser(t *testing.T, c *Cluster, login string) User {
	t.Helper()
	u, err := c.AddUser(login)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// wantCode fails the test unless err carries the cluster's error code.
func wantCode(t *testing.T, err error, code yterrors.ErrorCode) {
	t.Helper()
	if !yterrors.ContainsErrorCode(err, code) {
		t.Errorf("got error %v, want code %d", err, code)
	}
}

// must fails the test at an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// set stores a value as the SDK does.
func set(t *testing.T, yc yt.CypressClient, path string, value any) {
	t.Helper()
	must(t, yc.SetNode(t.Context(), ypath.Path(path), value, nil))
}

// create makes a node as the SDK does.
func create(t *testing.T, yc yt.CypressClient, path string, typ yt.NodeType) {
	t.Helper()
	_, err := yc.CreateNode(t.Context(), ypath.Path(path), typ, &yt.CreateNodeOptions{Recursive: true})
	must(t, err)
}

// get reads a value as text YSON.
func get(t *testing.T, yc yt.CypressClient, path string) string {
	t.Helper()
	var v any
	must(t, yc.GetNode(t.Context(), ypath.Path(path), &v, nil))
	b, err := yson.MarshalFormat(v, yson.FormatText)
	must(t, err)
	return string(b)
}

// exists asks the SDK's question.
func exists(t *testing.T, yc yt.CypressClient, path string) bool {
	t.Helper()
	ok, err := yc.NodeExists(t.Context(), ypath.Path(path), nil)
	must(t, err)
	return ok
}

// answer is what a raw request got.
type answer struct {
	status int
	header http.Header
	body   string
	err    error
}

// request sends a raw request as root unless edit takes the token away.
func request(t *testing.T, c *Cluster, method, path, body string, edit func(*http.Request)) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, c.URL()+path, strings.NewReader(body))
	must(t, err)
	r.Header.Set("Authorization", "OAuth "+c.RootToken())
	if edit != nil {
		edit(r)
	}
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	defer transport.CloseIdleConnections()
	hc := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := hc.Do(r)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, header: resp.Header, body: string(b), err: err}
}

// alive reports whether a process exists.
func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }
