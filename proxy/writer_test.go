package proxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"taskproxy/discovery"
)

// Events leave when the job writes them, also when it has said how long all of them are.
func TestEventsOfKnownLengthAreNotHeldBack(t *testing.T) {
	t.Parallel()
	read := make(chan struct{})
	w := newWorld(t)
	s := w.publish(discovery.Service{}, rawJob(t, func(conn net.Conn, _ *http.Request, _ *bufio.Reader) {
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\nContent-Length: 20\r\n\r\ndata: one\n")
		<-read
		_, _ = io.WriteString(conn, "data: two\n")
	}))
	res, err := w.client.Do(w.request(http.MethodGet, host(s), "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewReader(res.Body)
	if line, err := lines.ReadString('\n'); line != "data: one\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	close(read)
	if rest, err := io.ReadAll(lines); string(rest) != "data: two\n" || err != nil {
		t.Errorf("got %q, %v", rest, err)
	}
}

// The headers of an answer to which nothing follows yet leave by themselves, and what follows is whole.
func TestHeadersWithoutABodyYet(t *testing.T) {
	t.Parallel()
	read := make(chan struct{})
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, func(rw http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(rw).Flush()
		<-read
		_, _ = io.WriteString(rw, "late")
	}))
	res, err := w.client.Do(w.request(http.MethodGet, host(s), "/", nil))
	close(read)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); string(body) != "late" || err != nil || res.Header.Get("Content-Security-Policy") == "" {
		t.Errorf("got %q, %v with %v", body, err, res.Header)
	}
}

// A header's value has no room behind it: who adds another one does not write into somebody else's.
func TestValuesOfOneExchangeDoNotMeet(t *testing.T) {
	t.Parallel()
	x := new(exchange)
	var all [][]string
	for i := range len(x.values) + 3 {
		all = append(all, x.one(strings.Repeat("v", i)))
	}
	for i, one := range all {
		_ = append(one, "intruder")
		if len(one) != 1 || one[0] != strings.Repeat("v", i) {
			t.Errorf("value %d is %q", i, one)
		}
	}
}

func TestRequestIDsAreDifferent(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := make(map[string]bool)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 * requestIDsEach {
				id := newRequestID()
				mu.Lock()
				if seen[id] || len(id) != requestIDSize || !validRequestID(id) {
					t.Errorf("id %q", id)
				}
				seen[id] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}
