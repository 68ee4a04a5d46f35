package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"taskproxy/discovery"
)

// serveBytes is a job that answers whatever comes with the same bytes, and is done.
func serveBytes(tb testing.TB, text string) string {
	l := listen(tb)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = bufio.NewReader(conn).ReadString('\n')
			_, _ = io.WriteString(conn, text)
			_ = conn.(*net.TCPConn).CloseWrite()
			discardAll(conn)
		}
	}()
	tb.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

func discardAll(conn net.Conn) { _, _ = io.Copy(io.Discard, conn); conn.Close() }

func checkHint(tb testing.TB, what, text string, want ...string) {
	tb.Helper()
	for _, part := range append(want, `service "ui" is declared`) {
		if !strings.Contains(text, part) {
			tb.Errorf("%s: %q does not say %s", what, text, part)
		}
	}
	if strings.Contains(text, "hunter2") {
		tb.Errorf("%s: the job's own words are repeated: %q", what, text)
	}
}

// A gRPC call to a service that is declared http is carried in HTTP/1.1. Who cannot answer that in gRPC is told of.
func TestGRPCCallOfAnHTTPService(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, c := range map[string]struct {
		addr string
		code codes.Code
		want string
	}{
		"a gRPC server":     {serveGRPC(t, "one"), codes.Unavailable, "speaks HTTP/2 alone"},
		"a web server":      {serve(t, http.NotFound), codes.Unimplemented, "HTTP status 404"},
		"a page":            {serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hunter2") }), codes.Unimplemented, "HTTP status 200"},
		"no answer":         {serveBytes(t, ""), codes.Unavailable, "did not answer a gRPC call"},
		"who knows":         {serveBytes(t, "hunter2\r\n\r\n"), codes.Unavailable, "did not answer a gRPC call"},
		"something like h2": {serveBytes(t, "\x00\x00\x00\x04\x00\x00\x00\x00\x00hunter2"), codes.Unavailable, "speaks HTTP/2 alone"},
	} {
		s := w.publish(discovery.Service{}, c.addr)
		var err error
		for range 20 { // a server that resets the connection may do so before its first words are read, and then nobody knows them
			_, err = w.dialGRPC(host(s)).UnaryCall(t.Context(), &testpb.SimpleRequest{})
			if status.Code(err) != c.code {
				t.Errorf("%s: got %v, want %v", name, err, c.code)
			}
			if strings.Contains(status.Convert(err).Message(), c.want) {
				break
			}
		}
		checkHint(t, name, status.Convert(err).Message(), c.want, "declared http", `protocol="grpc"`)
	}
	if strings.Contains(w.log.text(), "hunter2") {
		t.Error("the job's own words are in the log")
	}
}

// It works where it can: a job that answers gRPC in HTTP/1.1, and gRPC-Web and other callers whatever they are answered.
func TestWhatIsNoMismatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	over1 := w.publish(discovery.Service{}, serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		b, _ := proto.Marshal(&testpb.SimpleResponse{ServerId: "over " + r.Proto})
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = w.Write(append([]byte{0, 0, 0, 0, byte(len(b))}, b...))
		w.Header().Set("Grpc-Status", "0")
	}))
	res, err := w.dialGRPC(host(over1)).UnaryCall(t.Context(), &testpb.SimpleRequest{})
	if err != nil || res.GetServerId() != "over HTTP/1.1" {
		t.Errorf("gRPC in HTTP/1.1: %v, %v", res, err)
	}
	plain := w.publish(discovery.Service{}, serve(t, echoJob("plain")))
	for _, contentType := range []string{"application/grpc-web+proto", "application/grpc", "application/connect+proto"} { // in HTTP/1.1
		if a := w.get(host(plain), "/", "Content-Type: "+contentType); a.StatusCode != 200 || a.echo(t).Job != "plain" {
			t.Errorf("%s: got %d %s", contentType, a.StatusCode, a.body)
		}
	}
	h2c := newCountingJob(t, "", echoJob("h2c"))
	s := w.publish(discovery.Service{Protocol: discovery.GRPC}, h2c.addr())
	if a := w.get(host(s), "/"); a.StatusCode != 200 || a.echo(t).Proto != "HTTP/2.0" {
		t.Errorf("plain HTTP in HTTP/2: got %d %s", a.StatusCode, a.body)
	}
}

// A service that is declared grpc and called by something else, or whose job is something else, says so to each in his manner.
func TestPlainCallOfAGRPCService(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.publish(discovery.Service{Protocol: discovery.GRPC}, serveGRPC(t, "one"))
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hunter2") }))
	t.Cleanup(web.Close)
	type job struct{ addr, want string }
	jobs := map[string]job{
		"a web server":             {web.Listener.Addr().String(), "does not speak HTTP/2"},
		"HTTP/1.1 400":             {serveBytes(t, "HTTP/1.1 400 Bad Request\r\n\r\nhunter2"), "does not speak HTTP/2"},
		"Python's error in HTTP 0": {serveBytes(t, "<!DOCTYPE HTML>hunter2"), "does not speak HTTP/2"},
	}
	for _, accept := range []string{"text/html", "application/json", "*/*"} {
		for _, method := range []string{"GET", "POST"} {
			a := w.do(w.request(method, host(server), "/", nil, "Accept: "+accept))
			a.check(t, 415, "protocol_mismatch")
			unescaped := strings.NewReplacer("&#34;", `"`, `\"`, `"`).Replace(a.body)
			checkHint(t, method+" "+accept, unescaped, "gRPC client", `protocol="http"`)
		}
	}
	for name, j := range jobs {
		s := w.publish(discovery.Service{Protocol: discovery.GRPC}, j.addr)
		a := w.get(host(s), "/")
		a.check(t, 502, "upstream_broken")
		checkHint(t, name, a.body, j.want, "declared grpc", `protocol="http"`)
		_, err := w.dialGRPC(host(s)).UnaryCall(t.Context(), &testpb.SimpleRequest{})
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
		checkHint(t, name+", gRPC", status.Convert(err).Message(), j.want, "declared grpc", `protocol="http"`)
		// Nothing is sent here, and whoever waits for the caller's messages is the first to know.
		stream, err := w.dialGRPC(host(s)).FullDuplexCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		checkHint(t, name+", silent gRPC", status.Convert(err).Message(), j.want, "declared grpc", `protocol="http"`)
	}
	closes := w.publish(discovery.Service{Protocol: discovery.GRPC}, serveBytes(t, ""))
	checkHint(t, "who closes", w.get(host(closes), "/").body, "none of gRPC's", "declared grpc", `protocol="http"`)
	if strings.Contains(w.log.text(), "hunter2") {
		t.Error("the job's own words are in the log")
	}
}

// A browser that navigates to a service that is declared http and is a gRPC server, and a WebSocket's handshake.
func TestPlainCallOfAnUndeclaredGRPCServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serveGRPC(t, "one"))
	for _, header := range [][]string{{"Accept: */*"}, {"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="}} {
		a := w.get(host(s), "/", header...)
		a.check(t, 502, "upstream_broken")
		checkHint(t, fmt.Sprint(header), a.body, "speaks HTTP/2 alone", "declared http", `protocol="grpc"`)
	}
}

// While an operation runs and no job of the service answers yet, everybody is told to come again.
func TestNoJobYet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, protocol := range bothProtocols {
		s := w.publish(discovery.Service{Protocol: protocol})
		_, err := w.dialGRPC(host(s)).UnaryCall(t.Context(), &testpb.SimpleRequest{})
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", protocol, err)
		}
		for name, r := range map[string]*http.Request{
			"page":      w.request("GET", host(s), "/", nil, "Accept: text/html", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"),
			"head":      w.request("HEAD", host(s), "/", nil, "Accept: text/html"),
			"json":      w.request("POST", host(s), "/", strings.NewReader("{}"), "Accept: application/json"),
			"line":      w.request("PUT", host(s), "/", strings.NewReader("x")),
			"websocket": w.request("GET", host(s), "/", nil, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="),
		} {
			a := w.do(r)
			a.check(t, 503, "no_endpoints")
			if a.Header.Get("Retry-After") != retryAfter {
				t.Errorf("%s: Retry-After %q", name, a.Header.Get("Retry-After"))
			}
			if again := strings.Contains(a.body, `http-equiv="refresh"`); again != (name == "page") {
				t.Errorf("%s: tries again by itself: %t", name, again)
			}
			if (a.body == "") != (name == "head") {
				t.Errorf("%s: body %q", name, a.body)
			}
		}
	}
}
