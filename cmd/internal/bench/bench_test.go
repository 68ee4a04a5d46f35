package bench

import (
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/coder/websocket"

	"taskproxy/examples/grpc-service/helloworld"
)

// The most that one request may allocate in the proxy's process: authorized from the cache, counted in the metrics and told in the
// access log. Most of it is net/http's server and transport, and httputil.ReverseProxy; ours are about ten.
const (
	mostHTTP = 47  // GET of 1 KiB on a kept HTTP/1.1 connection
	mostGRPC = 148 // unary call on a kept HTTP/2 connection
)

// enough requests are as many as make what is not theirs disappear.
const enough = 1000

// BenchmarkAllocations counts the objects that the proxy's process allocates per request. It fails when they are too many.
func BenchmarkAllocations(b *testing.B) {
	p := start(b)
	b.Run("http", func(b *testing.B) { p.count(b, "http", mostHTTP, p.httpCaller()) })
	b.Run("grpc", func(b *testing.B) { p.count(b, "grpc", mostGRPC, p.grpcCaller()) })
}

func (p *product) count(b *testing.B, name string, most float64, call func() error) {
	b.Helper()
	inParallel(b, 400, call) // connections, caches, pools
	p.profile(name + ".before")
	worked, before := p.cpu(), p.mallocs()
	inParallel(b, b.N, call)
	per := (p.mallocs() - before) / float64(b.N)
	worked = p.cpu() - worked
	p.profile(name + ".after")
	b.ReportMetric(per, "proxy-allocs/op")
	b.ReportMetric(float64(worked.Microseconds())/float64(b.N), "proxy-cpu-us/op") // to compare with, on one machine
	b.ReportMetric(0, "ns/op")                                                     // says nothing here
	if b.N >= enough && per > most {
		b.Errorf("a request costs %.1f allocations, want %.0f at most", per, most)
	}
}

// inParallel makes n calls, callers of them at a time.
func inParallel(tb testing.TB, n int, call func() error) {
	tb.Helper()
	const callers = 8
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := call(); err != nil {
					tb.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// httpCaller asks the web service for its page, on kept connections.
func (p *product) httpCaller() func() error {
	transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}
	p.tb.Cleanup(transport.CloseIdleConnections)
	call := func() error {
		res, err := transport.RoundTrip(p.request("/"))
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if n, err := io.Copy(io.Discard, res.Body); err != nil || n != 1024 || res.StatusCode != http.StatusOK {
			return &unexpected{res.Status, n, err}
		}
		return nil
	}
	p.until("the web service answers", func() bool { return call() == nil })
	return call
}

// grpcCaller calls the gRPC service, on one connection.
func (p *product) grpcCaller() func() error {
	conn, err := grpc.NewClient("passthrough:///"+p.public, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(p.rpc))
	if err != nil {
		p.tb.Fatal(err)
	}
	p.tb.Cleanup(func() { conn.Close() })
	client := helloworld.NewGreeterClient(conn)
	ctx := metadata.AppendToOutgoingContext(context.Background(), "authorization", "OAuth "+p.token)
	call := func() error {
		_, err := client.SayHello(ctx, &helloworld.HelloRequest{Name: "world"})
		return err
	}
	p.until("the gRPC service answers", func() bool { return call() == nil })
	return call
}

// BenchmarkLargeBody tells how many bytes of large answers a second of the process's work carries. It compares with itself on one
// machine only, and never fails.
func BenchmarkLargeBody(b *testing.B) {
	p := start(b)
	p.httpCaller()
	transport := &http.Transport{DisableCompression: true, ReadBufferSize: 256 << 10}
	b.Cleanup(transport.CloseIdleConnections)
	space := make([]byte, 1<<20)
	before := p.cpu()
	for b.Loop() {
		res, err := transport.RoundTrip(p.request("/large"))
		if err != nil {
			b.Fatal(err)
		}
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{res.Body}, space)
		res.Body.Close()
		if n != largeBody || err != nil {
			b.Fatalf("%d bytes, %v", n, err)
		}
	}
	b.SetBytes(largeBody)
	if took := p.cpu() - before; took > 0 {
		b.ReportMetric(float64(b.N)*largeBody/took.Seconds()/1e9, "GB/cpu-s")
	}
}

// The most memory that the process may have, in bytes as the system counts them.
const (
	mostFresh  = 40 << 20
	mostIdle   = 25 << 10 // per kept connection on which nothing is asked
	mostSocket = 30 << 10 // per WebSocket on which nothing is said
)

// BenchmarkMemory tells what the process takes when it has just started, and what it takes for connections on which nothing
// happens. It fails when that is too much.
func BenchmarkMemory(b *testing.B) {
	const connections = 5000
	p := start(b)
	call := p.httpCaller()
	if err := call(); err != nil {
		b.Fatal(err)
	}
	check := func(b *testing.B, value, most float64, unit string) {
		b.Helper()
		b.ReportMetric(value, unit)
		b.ReportMetric(0, "ns/op")
		if value > most {
			b.Errorf("it takes %.0f %s, want %.0f at most", value, unit, most)
		}
	}
	b.Run("fresh", func(b *testing.B) { check(b, p.memory(), mostFresh, "B") })
	b.Run("idle", func(b *testing.B) {
		before := p.memory()
		transports := make([]*http.Transport, 0, connections)
		for range connections {
			t := &http.Transport{DisableCompression: true}
			transports = append(transports, t)
			res, err := t.RoundTrip(p.request("/"))
			if err != nil {
				b.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		check(b, (p.memory()-before)/connections, mostIdle, "B/connection")
		for _, t := range transports {
			t.CloseIdleConnections()
		}
	})
	b.Run("websocket", func(b *testing.B) {
		before := p.memory()
		for range connections {
			header := p.request("/socket").Header
			c, _, err := websocket.Dial(b.Context(), "ws://"+p.public+"/socket", &websocket.DialOptions{HTTPHeader: header, Host: p.web})
			if err != nil {
				b.Fatal(err)
			}
			defer c.CloseNow()
		}
		check(b, (p.memory()-before)/connections, mostSocket, "B/websocket")
	})
}
