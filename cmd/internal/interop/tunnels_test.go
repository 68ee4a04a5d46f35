//go:build e2e

package interop_test

import (
	"bufio"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// manyTunnels are opened where the process may have so many files: each is two of the proxy's.
	manyTunnels = 10_000
	// tunnelMemory is what each may cost the proxy's process, in bytes, with what the garbage collector leaves lying around.
	tunnelMemory = 20 << 10
)

// TestE2EIdleTunnels opens many WebSockets on which nothing moves, after a message each, and looks at what the process of the proxy has
// for them, and that it has nothing of them left in the end.
func TestE2EIdleTunnels(t *testing.T) {
	count := min(manyTunnels, int(fileLimit(t)-100)/2)
	if count < manyTunnels/10 {
		t.Fatalf("the limit of open files leaves room for %d tunnels: raise it (ulimit -Hn 20100 for %d)", count, manyTunnels)
	}
	w, service := startFiles(t)
	warm, err := w.openTunnel(service)
	if err != nil {
		t.Fatal(err)
	}
	warm.Close()
	goroutines, files := w.settled(t, 0, 0)
	before := w.memory(t, "VmRSS")
	tunnels := make([]net.Conn, count)
	defer func() {
		for _, conn := range tunnels {
			if conn != nil {
				conn.Close()
			}
		}
	}()
	const at = 8 // a time
	var opening errgroup.Group
	for first := range at {
		opening.Go(func() (err error) {
			for i := first; i < count && err == nil; i += at {
				tunnels[i], err = w.openTunnel(service)
			}
			return err
		})
	}
	if err := opening.Wait(); err != nil {
		t.Fatal(err)
	}
	after := w.memory(t, "VmRSS")
	each := (after - before) / int64(count)
	t.Logf("%d tunnels: the proxy had %d MiB before and has %d MiB, %.1f KiB each", count, before>>20, after>>20, float64(each)/1024)
	if each > tunnelMemory {
		t.Errorf("a tunnel costs %d bytes, want %d at most", each, tunnelMemory)
	}
	for i, conn := range tunnels {
		if i%100 == 0 { // they are alive
			if err := echo(conn); err != nil {
				t.Fatalf("tunnel %d: %v", i, err)
			}
		}
	}
	for _, conn := range tunnels {
		conn.Close()
	}
	w.settled(t, goroutines, files)
}

// fileLimit raises the limit of open files of this process and those that it starts, as far as it may, and returns it.
func fileLimit(t *testing.T) uint64 {
	t.Helper()
	const want = 2*manyTunnels + 1000
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if limit.Max < want {
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: want, Max: want}) // a privilege
		if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
	}
	return limit.Max // Go programs have all of it
}

// settled waits until the proxy has no more goroutines and open files than these, with a few of its own in between; 0: whatever.
// It returns what it has.
func (w *world) settled(t *testing.T, goroutines, files float64) (float64, float64) {
	t.Helper()
	const own = 20 // discovery's, which come and go
	var g, f float64
	eventually(t, "the proxy has nothing left of what it carried", func() error {
		g, f = w.metric(t, "go_goroutines"), w.metric(t, "process_open_fds")
		if goroutines > 0 && (g > goroutines+own || f > files+own) {
			return fmt.Errorf("%v goroutines and %v open files, want about %v and %v", g, f, goroutines, files)
		}
		return nil
	})
	return g, f
}

// metric is the value of a metric of the proxy's without labels.
func (w *world) metric(t *testing.T, name string) float64 {
	t.Helper()
	res, err := http.Get("http://" + w.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				t.Fatal(err)
			}
			return value
		}
	}
	t.Fatalf("no metric %s: %v", name, lines.Err())
	return 0
}

// openTunnel opens a WebSocket and sends a message on it.
func (w *world) openTunnel(service endpoint) (net.Conn, error) {
	conn, err := net.DialTimeout("tcp", w.proxy, patience)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(conn, "GET /tunnel HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", service.domain, w.alice.Token)
	res, err := http.ReadResponse(bufio.NewReaderSize(conn, 1<<10), nil)
	if err == nil && res.StatusCode != http.StatusSwitchingProtocols {
		err = fmt.Errorf("got %s, want 101", res.Status)
	}
	if err == nil {
		err = echo(conn)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, conn.SetDeadline(time.Time{})
}

// echo sends a frame and waits for it.
func echo(conn net.Conn) error {
	const frame = "\x81\x85mask\x05\x04\x1f\x07\x02"
	got := make([]byte, len(frame))
	if _, err := io.WriteString(conn, frame); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, got)
	if err == nil && string(got) != frame {
		err = fmt.Errorf("got % x, want % x", got, frame)
	}
	return err
}

// serveTunnel is the job's end: it sends back what comes.
func serveTunnel(w http.ResponseWriter, r *http.Request) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer conn.Close()
	key := sha1.Sum([]byte(r.Header.Get("Sec-Websocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n",
		base64.StdEncoding.EncodeToString(key[:]))
	_, _ = io.Copy(conn, buffered)
}
