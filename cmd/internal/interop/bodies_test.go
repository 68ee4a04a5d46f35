//go:build e2e

package interop_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"
)

// huge is the size of a body beyond what 32 bits count, in bytes.
const huge = 5 << 30

// TestE2EHugeBodies sends and fetches bodies of 5 GiB with Go's client. The proxy's memory hardly grows, also while callers break off.
func TestE2EHugeBodies(t *testing.T) {
	const most = 32 << 20 // of all that it may have more at any time, in bytes
	w, service := startFiles(t)
	for _, c := range []struct{ version, way string }{
		{"HTTP/1.1", "up"}, {"HTTP/1.1", "down"}, {"HTTP/2.0", "up"},
	} {
		t.Run(c.version+" "+c.way, func(t *testing.T) {
			client := newClient(t, c.version)
			before, began := w.memory(t, "VmRSS"), time.Now()
			if c.way == "up" {
				res := w.call(t, client, service, http.MethodPut, "/check", newPattern(huge), huge)
				answer, err := io.ReadAll(res.Body)
				if want := fmt.Sprintf("%d bytes, announced %d, <nil>", int64(huge), int64(huge)); string(answer) != want {
					t.Errorf("the job got %s (%v), want %s", answer, err, want)
				}
			} else {
				res := w.call(t, client, service, http.MethodGet, fmt.Sprintf("/file?size=%d", int64(huge)), nil, 0)
				if n, err := io.Copy(new(checker), res.Body); n != huge || res.ContentLength != huge || err != nil {
					t.Errorf("got %d bytes, %v, announced %d, want %d", n, err, res.ContentLength, int64(huge))
				}
			}
			took := time.Since(began)
			peak := w.memory(t, "VmHWM")
			t.Logf("%s, %.0f MB/s; the proxy had %d MiB before and %d MiB at most", took.Round(time.Millisecond), huge/1e6/took.Seconds(), before>>20, peak>>20)
			if peak-before > most {
				t.Errorf("the proxy had %d bytes before and %d at most: more than %d were added", before, peak, int64(most))
			}
		})
	}
}

// TestE2EBrokenOffBodies breaks off in the middle of bodies, of which nothing is left in the proxy afterwards, also not the connection
// to the job.
func TestE2EBrokenOffBodies(t *testing.T) {
	w, service := startFiles(t)
	for _, version := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(version, func(t *testing.T) {
			goroutines, files := w.settled(t, 0, 0)
			before := w.memory(t, "VmRSS")
			const most = 32 << 20
			for range 30 {
				client := newClient(t, version)
				_, err := w.send(t, client, service, http.MethodPut, "/check", io.MultiReader(newPattern(8<<20), brokenOff{}), huge)
				if !errors.Is(err, errBrokenOff) {
					t.Fatalf("got %v, want the caller's own error", err)
				}
				res := w.call(t, client, service, http.MethodGet, fmt.Sprintf("/file?size=%d", int64(huge)), nil, 0)
				if _, err := io.CopyN(new(checker), res.Body, 8<<20); err != nil {
					t.Fatal(err)
				}
				res.Body.Close()
				client.CloseIdleConnections()
			}
			w.settled(t, goroutines, files)
			if after := w.memory(t, "VmRSS"); after-before > most {
				t.Errorf("the proxy had %d bytes before and has %d: more than %d were added", before, after, int64(most))
			}
		})
	}
}

var errBrokenOff = errors.New("the caller broke off")

type brokenOff struct{}

func (brokenOff) Read([]byte) (int, error) { return 0, errBrokenOff }

func newClient(t *testing.T, version string) *http.Client {
	t.Helper()
	transport := &http.Transport{Protocols: new(http.Protocols), WriteBufferSize: 64 << 10, ReadBufferSize: 64 << 10}
	transport.Protocols.SetHTTP1(version == "HTTP/1.1")
	transport.Protocols.SetUnencryptedHTTP2(version == "HTTP/2.0")
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// call returns an answer of 200. length is that of the body.
func (w *world) call(t *testing.T, client *http.Client, service endpoint, method, path string, body io.Reader, length int64) *http.Response {
	t.Helper()
	res, err := w.send(t, client, service, method, path, body, length)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != http.StatusOK {
		t.Fatalf("got %s", res.Status)
	}
	return res
}

func (w *world) send(t *testing.T, client *http.Client, service endpoint, method, path string, body io.Reader, length int64) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+w.proxy+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = length
	req.Host = service.domain
	req.Header.Set("Authorization", "Bearer "+w.alice.Token)
	return client.Do(req)
}

// checker takes the pattern, and nothing else.
type checker struct{ at int64 }

func (c *checker) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		start := c.at % period
		n := min(len(rest), period)
		if !bytes.Equal(rest[:n], patternBytes[start:start+int64(n)]) {
			return 0, errors.New("not what was sent")
		}
		rest, c.at = rest[n:], c.at+int64(n)
	}
	return len(b), nil
}
