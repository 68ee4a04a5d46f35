package serve

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// front is an address in front of a cluster at which it can be away: as a machine that refuses connections, or as one that takes them
// and says nothing.
type front struct {
	Addr string

	silent atomic.Bool
	asked  atomic.Int64 // while silent
	close  func()       // for good

	t       *testing.T
	handler http.Handler
	server  *http.Server
	served  sync.WaitGroup
}

// startFront serves in front of the cluster until the test ends.
func startFront(t *testing.T, cluster string) *front {
	t.Helper()
	target, err := url.Parse(cluster)
	must(t, err)
	// The port stays ours while nobody listens at it: it is bound by a socket that never listens, beside the one that does.
	port, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	must(t, unix.SetsockoptInt(port, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
	must(t, unix.Bind(port, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	name, err := unix.Getsockname(port)
	must(t, err)
	at := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: name.(*unix.SockaddrInet4).Port}

	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	forward := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		// Clients leave; that is all there is to say.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }}
	f := &front{Addr: at.String(), t: t}
	f.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.silent.Load() {
			f.asked.Add(1)
			_, _ = io.Copy(io.Discard, r.Body) // only then the server notices that a client leaves
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		}
		forward.ServeHTTP(w, r)
	})
	f.close = sync.OnceFunc(func() {
		f.refuse()
		transport.CloseIdleConnections()
		must(t, unix.Close(port))
	})
	f.listen()
	t.Cleanup(f.close)
	return f
}

// listen lets the cluster be there again.
func (f *front) listen() {
	f.t.Helper()
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		if failed != nil {
			return failed
		}
		return err
	}}
	listener, err := config.Listen(context.Background(), "tcp", f.Addr)
	must(f.t, err)
	f.server = &http.Server{Handler: f.handler}
	f.served.Go(func() { _ = f.server.Serve(listener) })
}

// refuse breaks all connections and takes no more.
func (f *front) refuse() {
	f.server.Close()
	f.served.Wait()
}
