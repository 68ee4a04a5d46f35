package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"testing"
	"time"

	"taskproxy/discovery"
)

// The tests of this file are callers and jobs that keep to no rule. Each failed before what it is about was mended.

func dial(tb testing.TB, w *world) net.Conn {
	tb.Helper()
	conn, err := net.Dial("tcp", w.addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		tb.Fatal(err)
	}
	return conn
}

func send(tb testing.TB, conn net.Conn, text string) {
	tb.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		tb.Fatal(err)
	}
}

// asAlice are the header lines of a request of alice's to a service.
func asAlice(s *discovery.Service) string {
	return "Host: " + host(s) + "\r\nX-Yt-Taskproxy-Authorization: " + aliceOAuth + "\r\n"
}

// A 1xx over HTTP/2 is encoded by net/http from the handler's own header map, which goes on changing: a job and its caller
// could end the process. Over HTTP/1.1 it passes.
func TestEarlyHintsPassOverHTTP1Only(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Link", "</style.css>")
		rw.WriteHeader(http.StatusEarlyHints)
		rw.WriteHeader(http.StatusOK)
	}))
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetHTTP1(protocol == "HTTP/1.1")
		transport.Protocols.SetUnencryptedHTTP2(protocol == "HTTP/2.0")
		hints := 0
		r := w.request(http.MethodGet, host(s), "/", nil)
		res, err := transport.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(int, textproto.MIMEHeader) error { hints++; return nil },
		})))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		transport.CloseIdleConnections()
		want := 0
		if protocol == "HTTP/1.1" {
			want = 1
		}
		if res.Proto != protocol || res.StatusCode != http.StatusOK || hints != want {
			t.Errorf("%s: status %d over %s after %d hints, want 200 after %d", protocol, res.StatusCode, res.Proto, hints, want)
		}
	}
}

// What follows a body that is broken, or that nobody has read, is not another request: the connection ends.
func TestNothingFollowsAnUnreadBody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var mu sync.Mutex
	var paths []string
	job := serve(t, func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		paths = append(paths, r.URL.Path)
		mu.Unlock()
		if r.URL.Path == "/early" {
			rw.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(rw).Flush()
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
	})
	s := w.publish(discovery.Service{}, job)
	none := w.publish(discovery.Service{})
	for _, c := range []struct {
		name    string
		service *discovery.Service
		path    string
		broken  string
	}{
		{"no chunk size", s, "/", "ZZZ\r\n"},
		{"too long a chunk", s, "/", "5\r\nhelloXX"},
		{"bad trailer", s, "/", "0\r\nBad Trailer\r\n\r\n"},
		{"answered early", s, "/early", "5\r\nhello\r\nZZZ\r\n"},
		{"nobody to send it to", none, "/", "5\r\nhello\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := dial(t, w)
			send(t, conn, "POST "+c.path+" HTTP/1.1\r\n"+asAlice(c.service)+"Transfer-Encoding: chunked\r\n\r\n"+
				c.broken+"GET /smuggled HTTP/1.1\r\n"+asAlice(s)+"\r\n")
			all, _ := io.ReadAll(conn)
			if n := strings.Count(string(all), "HTTP/1.1 "); n != 1 {
				t.Errorf("%d answers, want one and the end of the connection:\n%s", n, all)
			}
		})
	}
	mu.Lock()
	defer mu.Unlock()
	for _, path := range paths {
		if path == "/smuggled" {
			t.Error("a part of a body reached the job as a request")
		}
	}
}

// A body that was sent whole and then not forwarded must not break the connection's next request in net/http.
func TestBodyForNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, s := range map[string]*discovery.Service{
		"no endpoint": w.publish(discovery.Service{}), "dead endpoint": w.publish(discovery.Service{}, deadAddr(t)),
	} {
		conn := dial(t, w)
		reader := bufio.NewReader(conn)
		send(t, conn, "POST / HTTP/1.1\r\n"+asAlice(s)+"Content-Length: 5\r\n\r\nhello")
		res, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		res.Body.Close()
		if !res.Close {
			t.Errorf("%s: status %d keeps a connection alive whose body nobody has read", name, res.StatusCode)
		}
	}
}

// Somebody who says that a body comes, and sends none, gets the answer at once and does not hold the connection.
func TestMissingBodyHoldsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, request := range map[string]string{
		"401":          "POST / HTTP/1.1\r\nHost: 00000000.proxy.test\r\nContent-Length: 10\r\n\r\n",
		"the own page": "GET / HTTP/1.1\r\nHost: proxy.test\r\nTransfer-Encoding: chunked\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := dial(t, w)
			send(t, conn, request)
			if _, err := io.ReadAll(conn); err != nil { // until the proxy closes
				t.Errorf("the connection is held open: %v", err)
			}
		})
	}
}

// The idle timeout also ends those who make us wait in writing: a caller that reads nothing of endless hints, or of the
// endless answer to a handshake that was declined.
func TestIdleTimeoutEndsBlockedWriters(t *testing.T) {
	t.Parallel()
	endless := func(first, rest string) func(net.Conn, *http.Request, *bufio.Reader) {
		return func(conn net.Conn, _ *http.Request, _ *bufio.Reader) {
			_, err := io.WriteString(conn, first)
			for err == nil {
				_, err = io.WriteString(conn, rest)
			}
		}
	}
	hint := "HTTP/1.1 103 Early Hints\r\nLink: </" + strings.Repeat("x", 8000) + ">\r\n\r\n"
	for _, c := range []struct {
		name, header string
		job          func(net.Conn, *http.Request, *bufio.Reader)
	}{
		{"hints", "", func(conn net.Conn, _ *http.Request, r *bufio.Reader) {
			_, _ = io.WriteString(conn, hint) // what follows is limited (TestHintsAreBounded)
			_, _ = r.ReadByte()
		}},
		{"body", "", endless("HTTP/1.1 200 OK\r\n\r\n", strings.Repeat("x", 65536))},
		{"declined handshake", "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n",
			endless("HTTP/1.1 200 OK\r\n\r\n", strings.Repeat("x", 65536))},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(cfg *Config) { cfg.IdleTimeout = 200 * time.Millisecond })
			s := w.publish(discovery.Service{}, rawJob(t, c.job))
			conn := unbuffered(t, w)
			send(t, conn, "GET / HTTP/1.1\r\n"+asAlice(s)+c.header+"\r\n")
			eventually(t, "the exchange has ended", func() bool { return strings.Contains(w.log.text(), `"idle_timeout"`) })
		})
	}
}

// unbuffered is a connection to the proxy without a kernel in between: what is not read cannot be written.
func unbuffered(tb testing.TB, w *world) net.Conn {
	tb.Helper()
	ours, theirs := net.Pipe()
	conns := make(pipes, 1)
	conns <- theirs
	server := NewServer(w.proxy, slog.New(slog.DiscardHandler))
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(conns) }()
	tb.Cleanup(func() {
		ours.Close()
		close(conns)
		server.Close()
		<-served
	})
	return ours
}

// A job cannot go on for ever with what comes before its answer.
func TestHintsAreBounded(t *testing.T) {
	t.Parallel()
	hint := []byte("HTTP/1.1 103 Early Hints\r\nLink: </" + strings.Repeat("x", 8000) + ">\r\n\r\n")
	w := newWorld(t)
	s := w.publish(discovery.Service{}, rawJob(t, func(conn net.Conn, _ *http.Request, _ *bufio.Reader) {
		for {
			if _, err := conn.Write(hint); err != nil {
				return
			}
		}
	}))
	conn := dial(t, w)
	send(t, conn, "GET / HTTP/1.1\r\n"+asAlice(s)+"Connection: close\r\n\r\n")
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Contains(got, []byte("HTTP/1.1 502 ")) {
		t.Errorf("%d bytes without a 502, %v", len(got), err)
	}
	if log := w.log.text(); !strings.Contains(log, "response headers exceeded") {
		t.Errorf("the access log does not say why: %s", log)
	}
}

// Services that are reached by an IP address or a name inside of Kubernetes share that origin.
func TestForeignHostIsShared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Set-Cookie", "session=evil; Path=/")
		rw.Header().Set("Cache-Control", "public")
	}))
	for _, host := range []string{"10.0.0.1", "task-proxy.yt.svc.cluster.local", base, "task-proxy." + base} {
		a := w.get(host, "/", "X-Yt-Taskproxy-Id: "+s.ID)
		if a.StatusCode != 200 || a.Header.Get("Set-Cookie") != "" || a.Header.Get("Cache-Control") != "no-store" || a.Header.Get("Vary") == "" {
			t.Errorf("%s: status %d, headers %v", host, a.StatusCode, a.Header)
		}
	}
}

func TestAnnouncedTrailersStayAnnounced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, rawAnswer(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"+
		"Trailer: X-Checksum, X-Request-Id, Set-Cookie\r\n\r\n0\r\nX-Checksum: 1\r\nX-Request-Id: forged\r\nSet-Cookie: YTCypressCookie=evil\r\n\r\n"))
	conn := dial(t, w)
	send(t, conn, "GET / HTTP/1.1\r\n"+asAlice(s)+"Connection: close\r\n\r\n")
	all, _ := io.ReadAll(conn)
	if got := string(all); !strings.Contains(got, "Trailer: X-Checksum\r\n") && !strings.Contains(got, "Trailer: Set-Cookie,X-Checksum\r\n") ||
		!strings.Contains(got, "\r\nX-Checksum: 1\r\n") || strings.Contains(got, "forged") || strings.Contains(got, "evil") {
		t.Errorf("the answer is\n%s", got)
	}
}

func TestMethodIsOneWord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, echoJob("a")))
	r := w.request(http.MethodGet, host(s), "/", nil)
	x := w.proxy.begin(nil, r)
	for _, method := range []string{"GET / HTTP/1.1", "", "G\tET", "G:T"} {
		r.Method = method
		if err := refuse(x.in); err == nil {
			t.Errorf("method %q passes", method)
		}
	}
}

func TestHopByHopOfHintsStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, rawAnswer(t, "HTTP/1.1 103 Early Hints\r\nConnection: X-Hop\r\nX-Hop: 1\r\nUpgrade: websocket\r\nLink: </a>\r\n\r\n"+
		"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
	conn := dial(t, w)
	send(t, conn, "GET / HTTP/1.1\r\n"+asAlice(s)+"Connection: close\r\n\r\n")
	all, _ := io.ReadAll(conn)
	hint, _, _ := strings.Cut(string(all), "\r\n\r\n")
	if !strings.Contains(hint, "Link: </a>") || strings.Contains(hint, "X-Hop") || strings.Contains(hint, "Upgrade") {
		t.Errorf("the hint is\n%s", hint)
	}
}

// A job that does not say what its body is gets nothing guessed for it.
func TestNoContentTypeIsInvented(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	body := "<html><script>alert(1)</script></html>"
	s := w.publish(discovery.Service{}, rawAnswer(t, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)))
	a := w.get(host(s), "/")
	if got, ok := a.Header["Content-Type"]; ok || a.body != body {
		t.Errorf("Content-Type %q, body %q", got, a.body)
	}
}
