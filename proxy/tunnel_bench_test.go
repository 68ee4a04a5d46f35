package proxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"runtime"
	"testing"
	"time"

	"taskproxy/discovery"
)

// BenchmarkIdleTunnels tells what a WebSocket costs on which nothing moves, the two ends of this test included: a caller and a
// job without goroutines or buffers of their own, so that these are two sockets each.
func BenchmarkIdleTunnels(b *testing.B) {
	const tunnels = 1000
	w := newWorld(b, func(c *Config) { c.AccessLog = nil })
	l := listen(b)
	defer l.Close()
	s := w.publish(discovery.Service{}, l.Addr().String())
	used := func() uint64 {
		runtime.GC()
		runtime.GC() // the second empties the pools
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	open := func() (caller, job net.Conn) {
		caller, err := net.Dial("tcp", w.addr)
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.WriteString(caller, handshakeBytes(host(s)))
		if job, err = l.Accept(); err != nil {
			b.Fatal(err)
		}
		if _, err := http.ReadRequest(bufio.NewReader(job)); err != nil {
			b.Fatal(err)
		}
		_, _ = io.WriteString(job, accepted)
		if res, err := http.ReadResponse(bufio.NewReader(caller), nil); err != nil || res.StatusCode != 101 {
			b.Fatalf("got %v, %v", res, err)
		}
		return caller, job
	}
	var per float64
	for range b.N {
		before := used()
		conns := make([]net.Conn, 0, 2*tunnels)
		for range tunnels {
			caller, job := open()
			conns = append(conns, caller, job)
		}
		per = float64(used()-before) / tunnels
		for _, conn := range conns {
			conn.Close()
		}
		time.Sleep(time.Second)
	}
	b.ReportMetric(per, "B/tunnel")
}
