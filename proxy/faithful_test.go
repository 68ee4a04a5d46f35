package proxy

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"testing"
	"time"

	"taskproxy/discovery"
)

// The property of this file: a service that is called through the proxy answers as it does without. The same handler is asked
// both ways, in each version of HTTP that callers speak, and all that a client can tell must be the same.

// versions are the two ways to speak to the public listener without TLS.
var versions = map[string]func(*http.Protocols){
	"HTTP/1.1": func(p *http.Protocols) { p.SetHTTP1(true) },
	"HTTP/2.0": func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
}

// newCaller is a client that speaks one version, and closes its connections with the test.
func newCaller(tb testing.TB, version string) *http.Client {
	tb.Helper()
	transport := &http.Transport{DisableCompression: true, Protocols: new(http.Protocols), ExpectContinueTimeout: time.Minute}
	versions[version](transport.Protocols)
	tb.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// heard is what a client can tell of an answer.
type heard struct {
	status    int
	header    http.Header
	body      string
	length    int64
	trailer   http.Header
	hints     []string // the 1xx answers
	truncated bool
	reused    bool // the next request went out on the same connection
}

// ask makes a request and reads all of the answer, and asks once more to see whether the connection is still good.
func ask(tb testing.TB, client *http.Client, make func() *http.Request, next *http.Request) heard {
	tb.Helper()
	var o heard
	r := make()
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(status int, h textproto.MIMEHeader) error {
			if status != http.StatusContinue { // the transport of HTTP/1.1 keeps that one to itself
				o.hints = append(o.hints, fmt.Sprint(status, " ", h["Link"]))
			}
			return nil
		},
	})
	res, err := client.Do(r.WithContext(ctx))
	if err != nil {
		tb.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	res.Body.Close()
	o.truncated = err != nil
	o.status, o.header, o.body, o.length, o.trailer = res.StatusCode, res.Header, string(body), res.ContentLength, res.Trailer
	ctx = httptrace.WithClientTrace(next.Context(), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { o.reused = info.Reused },
	})
	res, err = client.Do(next.WithContext(ctx))
	if err != nil {
		tb.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		tb.Errorf("the next request: status %d", res.StatusCode)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	return o
}

// ours are the headers of answers that are the proxy's to set, besides the policy of frames; Date is the moment's.
var ours = []string{"X-Request-Id", "Date"}

// services answer in the manners that HTTP has. Each is a path.
func services() map[string]http.HandlerFunc {
	zipped := new(bytes.Buffer)
	z := gzip.NewWriter(zipped)
	_, _ = io.WriteString(z, strings.Repeat("hello ", 1000))
	z.Close()
	content := strings.Repeat("0123456789", 1000)
	file := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"v1"`)
		w.Header().Set("Content-Type", "application/x-file")
		http.ServeContent(w, r, "", time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), strings.NewReader(content))
	}
	flush := func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	return map[string]http.HandlerFunc{
		"/ok":    func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") },
		"/empty": func(http.ResponseWriter, *http.Request) {},
		"/file":  file,
		"/201":   func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Location", "/x"); w.WriteHeader(201) },
		"/204":   status(204),
		"/205":   status(205),
		"/304": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("ETag", `"v1"`)
			w.Header().Set("Cache-Control", "max-age=5")
			w.WriteHeader(304)
		},
		"/404": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", 404) },
		"/500": status(500),
		"/599": status(599),
		"/stream": func(w http.ResponseWriter, _ *http.Request) {
			for range 5 {
				_, _ = io.WriteString(w, "part ")
				flush(w)
			}
		},
		"/zip": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("Vary", "Accept-Encoding")
			if r.Header.Get("Accept-Encoding") != "gzip" {
				_, _ = io.WriteString(w, "asked for "+r.Header.Get("Accept-Encoding"))
				return
			}
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(zipped.Bytes())
		},
		"/cookies": func(w http.ResponseWriter, r *http.Request) {
			for i := range 50 {
				http.SetCookie(w, &http.Cookie{Name: fmt.Sprint("c", i), Value: strings.Repeat("v", i), Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode})
			}
			_, _ = io.WriteString(w, r.Header.Get("Cookie"))
		},
		"/headers": func(w http.ResponseWriter, r *http.Request) {
			w.Header()["X-Many"] = []string{"1", "2, 3", "", "4"}
			w.Header()["X-Large"] = []string{strings.Repeat("h", 100<<10)}
			w.Header()["Server"] = []string{"job/1"}
			w.Header()["Warning"] = []string{`199 - "ü"`}
			_, _ = fmt.Fprint(w, len(r.Header.Get("X-Large")), r.Header["X-Many"], r.Header["User-Agent"], r.Header["Accept-Encoding"])
		},
		"/hints": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</style.css>")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Set("Link", "</script.js>")
			w.WriteHeader(http.StatusEarlyHints)
			_, _ = io.WriteString(w, "ok")
		},
		"/trailers": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Trailer", "X-Sum, X-None")
			body, _ := io.ReadAll(r.Body)
			_, _ = w.Write(body)
			w.Header().Set("X-Sum", fmt.Sprint(len(body), r.Trailer))
			w.Header().Set(http.TrailerPrefix+"X-Late", "1")
		},
		"/close": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close")
			_, _ = io.WriteString(w, "bye")
		},
		"/close/stream": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close")
			flush(w)
			_, _ = io.WriteString(w, "bye")
		},
		"/cut": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, strings.Repeat("x", 500))
			flush(w)
			panic(http.ErrAbortHandler)
		},
		"/echo": func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			_, _ = fmt.Fprint(w, r.Method, r.ContentLength, len(body), err)
		},
		"/refuse": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusExpectationFailed) },
	}
}

// TestFaithful asks for each of the services' answers with and without the proxy.
func TestFaithful(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	for path, h := range services() {
		mux.HandleFunc(path, h)
	}
	job := serveUnguarded(t, mux)
	w := newWorld(t)
	s := w.publish(discovery.Service{}, job)

	unknown := func(n int) func() io.Reader {
		return func() io.Reader { return io.MultiReader(strings.NewReader(strings.Repeat("b", n))) }
	}
	known := func(n int) func() io.Reader {
		return func() io.Reader { return strings.NewReader(strings.Repeat("b", n)) }
	}
	for _, c := range []struct {
		method, path string
		header       []string
		body         func() io.Reader
		trailer      bool
	}{
		{method: "GET", path: "/ok"}, {method: "HEAD", path: "/ok"}, {method: "OPTIONS", path: "/ok"}, {method: "PURGE", path: "/ok"},
		{method: "GET", path: "/empty"}, {method: "HEAD", path: "/empty"},
		{method: "GET", path: "/file"}, {method: "HEAD", path: "/file"},
		{method: "GET", path: "/file", header: []string{"Range: bytes=0-9"}},
		{method: "HEAD", path: "/file", header: []string{"Range: bytes=0-9"}},
		{method: "GET", path: "/file", header: []string{"Range: bytes=-5"}},
		{method: "GET", path: "/file", header: []string{"Range: bytes=99999-"}},
		{method: "GET", path: "/file", header: []string{"Range: bytes=0-9", `If-Range: "v1"`}},
		{method: "GET", path: "/file", header: []string{"Range: bytes=0-9", `If-Range: "v2"`}},
		{method: "GET", path: "/file", header: []string{`If-None-Match: "v1"`}},
		{method: "HEAD", path: "/file", header: []string{`If-None-Match: "v1"`}},
		{method: "PUT", path: "/file", header: []string{`If-Match: "v2"`}},
		{method: "GET", path: "/file", header: []string{"If-Modified-Since: Wed, 01 Jan 2020 00:00:00 GMT"}},
		{method: "GET", path: "/201"}, {method: "GET", path: "/204"}, {method: "HEAD", path: "/204"}, {method: "POST", path: "/204", body: known(5)},
		{method: "GET", path: "/205"}, {method: "GET", path: "/304"}, {method: "HEAD", path: "/304"},
		{method: "GET", path: "/404"}, {method: "GET", path: "/500"}, {method: "GET", path: "/599"},
		{method: "GET", path: "/stream"}, {method: "HEAD", path: "/stream"},
		{method: "GET", path: "/zip"}, {method: "GET", path: "/zip", header: []string{"Accept-Encoding: gzip"}},
		{method: "HEAD", path: "/zip", header: []string{"Accept-Encoding: gzip"}},
		{method: "GET", path: "/cookies", header: []string{"-: -", "Cookie: a=1; b=2"}},
		{method: "GET", path: "/headers", header: []string{"User-Agent: caller/2", "X-Many: 1", "X-Many: 2, 3", "X-Many: ", "X-Large: " + strings.Repeat("x", 50<<10)}},
		{method: "GET", path: "/headers", header: []string{"User-Agent: "}},
		{method: "GET", path: "/headers", header: []string{"User-Agent: caller/1"}},
		{method: "GET", path: "/hints"},
		{method: "POST", path: "/trailers", body: unknown(100000)},
		{method: "POST", path: "/trailers", body: unknown(100000), trailer: true},
		{method: "POST", path: "/trailers", body: unknown(0), trailer: true},
		{method: "GET", path: "/trailers"},
		{method: "GET", path: "/close"}, {method: "GET", path: "/close/stream"}, {method: "POST", path: "/close", body: known(1000)},
		{method: "GET", path: "/cut"},
		{method: "POST", path: "/echo", body: known(0)}, {method: "POST", path: "/echo", body: known(1)}, {method: "POST", path: "/echo", body: known(1 << 20)},
		{method: "POST", path: "/echo", body: unknown(0)}, {method: "PUT", path: "/echo", body: unknown(1 << 20)},
		{method: "GET", path: "/echo", body: known(7)}, {method: "DELETE", path: "/echo", body: known(7)}, {method: "DELETE", path: "/echo"}, {method: "PATCH", path: "/echo", body: unknown(7)},
		{method: "PROPFIND", path: "/echo", body: known(7)}, {method: "PROPFIND", path: "/echo"},
		{method: "POST", path: "/echo", body: known(1000), header: []string{"Expect: 100-continue"}},
		{method: "POST", path: "/echo", body: unknown(100000), header: []string{"Expect: 100-continue"}},
	} {
		for version := range versions {
			t.Run(fmt.Sprint(version, " ", c.method, " ", c.path, " ", cut(fmt.Sprint(c.header), 60)), func(t *testing.T) {
				t.Parallel()
				request := func(address string) func() *http.Request {
					return func() *http.Request {
						var body io.Reader
						if c.body != nil {
							body = c.body()
						}
						r := w.request(c.method, host(s), c.path, body, c.header...)
						r.Header.Set("X-Yt-Taskproxy-Authorization", aliceOAuth)
						r.URL.Host = address
						if c.trailer {
							r.Trailer = http.Header{"X-End": {"1", "2"}}
						}
						return r
					}
				}
				next := func(address string) *http.Request {
					r := w.request("GET", host(s), "/ok", nil)
					r.URL.Host = address
					return r
				}
				// The job is called by HTTP/1.1 either way.
				want := ask(t, newCaller(t, "HTTP/1.1"), request(job), next(job))
				if want.status != http.StatusNotModified {
					want.header["Content-Security-Policy"] = []string{"frame-ancestors 'self'"}
				}
				if version == "HTTP/2.0" {
					want.hints = nil // see TestEarlyHintsPassOverHTTP1Only
				}
				delete(want.header, "Connection")                       // that is between the proxy and the job
				want.reused = c.path != "/cut" || version == "HTTP/2.0" // where only the stream ends
				got := ask(t, newCaller(t, version), request(w.addr), next(w.addr))
				for range 5 { // a client may be a little late to notice that a connection is free again
					if got.reused == want.reused {
						break
					}
					got = ask(t, newCaller(t, version), request(w.addr), next(w.addr))
				}
				compare(t, got, want)
			})
		}
	}
}

func cut(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}

func compare(t *testing.T, got, want heard) {
	t.Helper()
	for _, name := range ours {
		delete(got.header, name)
		delete(want.header, name)
	}
	names := slices.Sorted(maps.Keys(want.header))
	for name := range got.header {
		if _, ok := want.header[name]; !ok {
			names = append(names, name)
		}
	}
	for _, name := range names {
		if !slices.Equal(got.header[name], want.header[name]) {
			t.Errorf("%s: got %q, want %q", name, cut(fmt.Sprint(got.header[name]), 100), cut(fmt.Sprint(want.header[name]), 100))
		}
	}
	if got.status != want.status || got.body != want.body || got.length != want.length || got.truncated != want.truncated || got.reused != want.reused {
		t.Errorf("got  status %d, length %d, truncated %t, reused %t, body %q;\nwant status %d, length %d, truncated %t, reused %t, body %q",
			got.status, got.length, got.truncated, got.reused, cut(got.body, 100), want.status, want.length, want.truncated, want.reused, cut(want.body, 100))
	}
	if fmt.Sprint(got.trailer) != fmt.Sprint(want.trailer) {
		t.Errorf("trailers: got %v, want %v", got.trailer, want.trailer)
	}
	if !slices.Equal(got.hints, want.hints) {
		t.Errorf("1xx: got %q, want %q", got.hints, want.hints)
	}
}
