package proxy

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	testpb "google.golang.org/grpc/interop/grpc_testing"

	"taskproxy/discovery"
)

// The whole way over real sockets: client, proxy and job are in this one process, and so are their allocations. The case
// "direct" is the same without the proxy.

func BenchmarkHTTP(b *testing.B) {
	w := newWorld(b, func(c *Config) { c.AccessLog = nil })
	job := serveUnguarded(b, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "hello") }))
	s := w.publish(discovery.Service{}, job)
	w.client.Transport.(*http.Transport).MaxIdleConnsPerHost = 64
	run := func(b *testing.B, addr string) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			r, _ := http.NewRequestWithContext(context.Background(), "GET", "http://"+addr+"/x?y=z", nil)
			r.Host = host(s)
			r.Header = http.Header{"Cookie": {"a=1; YTCypressCookie=" + aliceToken}, "Accept": {"*/*"}}
			for pb.Next() {
				res, err := w.client.Do(r)
				if err != nil {
					b.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
				if res.StatusCode != 200 {
					b.Errorf("status %d", res.StatusCode)
					return
				}
			}
		})
	}
	b.Run("direct", func(b *testing.B) { run(b, job) })
	b.Run("proxy", func(b *testing.B) { run(b, w.addr) })
}

func BenchmarkGRPC(b *testing.B) {
	w := newWorld(b, func(c *Config) { c.AccessLog = nil })
	job := serveGRPC(b, "one")
	s := w.publish(discovery.Service{Protocol: discovery.GRPC}, job)
	direct := &world{tb: b, addr: job}
	run := func(b *testing.B, client testpb.TestServiceClient) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := client.UnaryCall(context.Background(), &testpb.SimpleRequest{}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	b.Run("direct", func(b *testing.B) { run(b, direct.dialGRPC("x", "a", "b")) })
	b.Run("proxy", func(b *testing.B) { run(b, w.dialGRPC(host(s))) })
}

// nullWriter is an http.ResponseWriter that keeps nothing.
type nullWriter struct{ h http.Header }

func (n nullWriter) Header() http.Header         { return n.h }
func (n nullWriter) Write(b []byte) (int, error) { return len(b), nil }
func (n nullWriter) WriteHeader(int)             {}

// BenchmarkRefusal is what it costs to turn somebody away.
func BenchmarkRefusal(b *testing.B) {
	w := newWorld(b, func(c *Config) { c.AccessLog = nil })
	r, _ := http.NewRequestWithContext(context.Background(), "GET", "/", strings.NewReader(""))
	r.RequestURI, r.Host = "/", "00000000."+base
	b.ReportAllocs()
	for b.Loop() {
		w.proxy.ServeHTTP(nullWriter{http.Header{}}, r)
	}
}
