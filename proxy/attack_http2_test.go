package proxy

import (
	"bytes"
	"context"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"taskproxy/auth"
	"taskproxy/discovery"
	"taskproxy/ytclient"
)

// Each line is a request that HTTP/2 can write and no library would. What cannot be one request in HTTP/1.1 is refused, by
// net/http (PROTOCOL_ERROR, 400) or by us (a reason), and the job gets nothing of it.
func TestAttackHTTP2(t *testing.T) {
	t.Parallel()
	a := newAttack(t)
	const protocolError, target = "PROTOCOL_ERROR", "bad_request_target"
	with := func(more ...string) field {
		return append(field{":method", "GET", ":scheme", "http", ":authority", "{mine}", ":path", "/", "authorization", aliceOAuth}, more...)
	}
	set := func(name, value string) field {
		f := with()
		f[slices.Index(f, name)+1] = value
		return f
	}
	without := func(name string) field {
		f := with()
		at := slices.Index(f, name)
		return slices.Delete(f, at, at+2)
	}
	for _, c := range []struct {
		name   string
		fields field
		raw    string // a block that no encoder of ours writes, instead
		want   string
	}{
		{"as it should be", with(), "", "mine"},
		{"no method", without(":method"), "", protocolError},
		{"no path", without(":path"), "", protocolError},
		{"no scheme", without(":scheme"), "", protocolError},
		{"no authority", without(":authority"), "", "bad_host"},
		{"two methods", with(":method", "POST"), "", protocolError},
		{"two authorities", slices.Concat(field{":authority", "{theirs}"}, with()), "", protocolError},
		{"two paths", slices.Concat(field{":path", "/a"}, with()), "", protocolError},
		{"unknown pseudo-header", slices.Concat(field{":protocol2", "x"}, with()), "", protocolError},
		{"status in a request", slices.Concat(field{":status", "200"}, with()), "", protocolError},
		{"pseudo-header behind a header", append(without(":path"), ":path", "/"), "", protocolError},
		{"authority behind a header", append(without(":authority"), ":authority", "{mine}"), "", protocolError},
		{"empty path", set(":path", ""), "", protocolError},
		{"upper-case name", nil, "X-Upper", protocolError},
		{"a space in a name", with("x a", "b"), "", protocolError},
		{"a colon in a name", with("x:a", "b"), "", protocolError},
		{"an empty name", with("", "b"), "", protocolError},
		{"CR LF in a name", with("x\r\nhost", "b"), "", protocolError},
		{"CR LF in a value", with("x", "b\r\nX-Yt-Taskproxy-Id: {theirs.id}"), "", protocolError},
		{"LF in a value", with("x", "b\nc"), "", protocolError},
		{"NUL in a value", with("x", "b\x00c"), "", protocolError},
		{"CR LF in the path", set(":path", "/ HTTP/1.1\r\nHost: {theirs}\r\n\r\n"), "", protocolError},
		{"CR LF in the method", set(":method", "GET / HTTP/1.1\r\nHost: {theirs}\r\n\r\nGET"), "", protocolError},
		{"CR LF in the authority", set(":authority", "{mine}\r\nX: y"), "", protocolError},
		{"a space in the method", set(":method", "GET /smuggled HTTP/1.1"), "", target},
		{"a tab in the path", set(":path", "/a\tb"), "", protocolError},
		{"fragment", set(":path", "/a#b"), "", target},
		{"gRPC path without a slash", append(set(":path", "grpc.testing.TestService/UnaryCall"), "content-type", "application/grpc", "te", "trailers"), "", protocolError},
		{"path without a slash", set(":path", "a"), "", protocolError},
		{"absolute path", set(":path", "http://{theirs}/"), "", target},
		{"path with the other's host", set(":path", "//{theirs}/"), "", "mine"},
		{"userinfo in the authority", set(":authority", "{mine}@{theirs}"), "", protocolError},
		{"authority that IDNA would map to the other's", append(set(":authority", "theirs-t-ui\u3002proxy.test"), "x-yt-taskproxy-id", "{mine.id}"), "", "bad_host"},
		{"authority with a space", append(set(":authority", "{theirs} x"), "x-yt-taskproxy-id", "{mine.id}"), "", "bad_host"},
		{"authority with a slash", append(set(":authority", "{theirs}/x"), "x-yt-taskproxy-id", "{mine.id}"), "", "bad_host"},
		{"host beside the authority", with("host", "{theirs}"), "", "bad_host"},
		{"two hosts beside the authority", with("host", "{mine}", "host", "{theirs}"), "", "bad_host"},
		{"host instead of the authority", append(without(":authority"), "host", "{theirs}"), "", "access_denied"},
		{"two hosts instead of the authority", append(without(":authority"), "host", "{mine}", "host", "{theirs}"), "", "bad_host"},
		{"id twice", with("x-yt-taskproxy-id", "{mine.id}", "x-yt-taskproxy-id", "{mine.id}"), "", "malformed_service_id"},
		{"id of the other", with("x-yt-taskproxy-id", "{theirs.id}"), "", "ambiguous_service"},
		{"X-Forwarded-Host of the other", with("x-forwarded-host", "{theirs}"), "", "mine"},
		{"connection", with("connection", "x-yt-taskproxy-id"), "", "400"},
		{"keep-alive", with("keep-alive", "1"), "", "400"},
		{"proxy-connection", with("proxy-connection", "close"), "", "400"},
		{"transfer-encoding", with("transfer-encoding", "chunked"), "", "400"},
		{"upgrade", with("upgrade", "websocket"), "", "400"},
		{"te that is not trailers", with("te", "gzip"), "", "400"},
		{"CONNECT", field{":method", "CONNECT", ":authority", "{theirs}:80", "authorization", aliceOAuth}, "", target},
		{"CONNECT with a path", set(":method", "CONNECT"), "", protocolError},
		{"extended CONNECT", slices.Concat(field{":protocol", "websocket"}, set(":method", "CONNECT")), "", protocolError},
		{"length that the stream does not have", with("content-length", "5"), "", "mine"}, // which gets none
		{"length that is no number", with("content-length", "0, 0"), "", "mine"},
		{"a field of more than 64 KiB", with("x", strings.Repeat("a", 100<<10)), "", "COMPRESSION_ERROR"},
		{"fields of more than 64 KiB", with(slices.Repeat(field{"x", strings.Repeat("a", 1000)}, 70)...), "", "431"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a.asked.take()
			conn := dialHTTP2(t, a.world)
			fields := slices.Clone(c.fields)
			for i := range fields {
				fields[i] = strings.ReplaceAll(a.fill(strings.ReplaceAll(fields[i], "\n", "<LF>")), "<LF>", "\n")
			}
			if c.raw == "" {
				conn.headers(1, true, fields...)
			} else {
				block := conn.encode(slices.Concat(field{":method", "GET", ":scheme", "http", ":authority", host(a.mine), ":path", "/", "authorization", aliceOAuth})...)
				block = append(append(append(block, 0, byte(len(c.raw))), c.raw...), 1, 'v') // a literal, not indexed, new name
				_ = conn.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndStream: true, EndHeaders: true})
			}
			answer := conn.answer(t, 1)
			got := answer.status
			if reason := answer.header["X-Yt-Taskproxy-Error"]; reason != "" {
				got = reason
			}
			requests := a.job.seen.take()
			if got == "200" && len(requests) == 1 {
				got = "mine"
			}
			if got != c.want && !strings.HasPrefix(got, "GOAWAY "+c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if got != "mine" && len(requests) > 0 {
				t.Errorf("the job got %q", requests)
			}
		})
	}
}

// A length that an HTTP/2 request claims and does not keep must not become the length of an HTTP/1.1 body, whose rest would
// be another request.
func TestAttackHTTP2Length(t *testing.T) {
	t.Parallel()
	a := newAttack(t)
	for _, c := range []struct{ name, length, body string }{
		{"body is longer", "5", "helloGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"},
		{"body is shorter", "50", "hello"},
		{"length is zero", "0", "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"},
		{"length below zero", "-1", "hello"},
		{"two lengths", "5\x005", "hello"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := dialHTTP2(t, a.world)
			fields := field{":method", "POST", ":scheme", "http", ":authority", host(a.mine), ":path", "/", "authorization", aliceOAuth}
			for length := range strings.SplitSeq(c.length, "\x00") {
				fields = append(fields, "content-length", length)
			}
			conn.headers(1, false, fields...)
			_ = conn.WriteData(1, true, []byte(c.body))
			got := conn.status(t, 1)
			// What the proxy's own view of the next request is, the job's is too.
			next := dialHTTP2(t, a.world)
			next.headers(1, true, ":method", "GET", ":scheme", "http", ":authority", host(a.mine), ":path", "/next", "authorization", aliceOAuth)
			if status := next.status(t, 1); status != "200" {
				t.Errorf("the next request: %s", status)
			}
			for _, r := range a.job.seen.take() {
				if strings.HasPrefix(r, "GET /smuggled") {
					t.Errorf("the first was answered %s, the job got %q", got, r)
				}
			}
		})
	}
}

// A header block without an end (CVE-2023-45288) ends the connection, and costs memory only up to the limit.
func TestAttackContinuationFlood(t *testing.T) {
	t.Parallel()
	a := newAttack(t)
	for _, name := range []string{"big fields", "small fields"} {
		t.Run(name, func(t *testing.T) {
			conn := dialHTTP2(t, a.world)
			conn.quiet = true
			ended := make(chan string, 1)
			go func() { ended <- conn.status(t, 1) }()
			_ = conn.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: encodeGet(conn, a)})
			fragment := literal("x", strings.Repeat("a", 10_000))
			if name == "small fields" {
				fragment = bytes.Repeat(literal("x", ""), 1000)
			}
			const most = 16 << 20
			var err error
			sent := 0
			for err == nil && sent < most {
				err = conn.WriteContinuation(1, false, fragment)
				sent += 9 + len(fragment)
			}
			if err == nil {
				t.Errorf("%d bytes of headers were taken", sent)
				conn.Close()
			}
			if got := <-ended; got != "EOF" && !strings.HasPrefix(got, "GOAWAY") {
				t.Errorf("got %s", got)
			}
		})
	}
	if requests := a.job.seen.take(); len(requests) > 0 {
		t.Errorf("the job got %q", requests)
	}
}

func encodeGet(c *http2Conn, a *attack) []byte {
	return slices.Clone(c.encode(":method", "GET", ":scheme", "http", ":authority", host(a.mine), ":path", "/", "authorization", aliceOAuth))
}

// literal is a field as HPACK writes it without any table (RFC 7541, section 6.2.2). The value may have 127 bytes or more.
func literal(name, value string) []byte {
	b := append([]byte{0, byte(len(name))}, name...)
	n := len(value)
	if n < 127 {
		b = append(b, byte(n))
	} else {
		b = append(b, 127)
		for n -= 127; n >= 128; n >>= 7 {
			b = append(b, byte(n)|0x80)
		}
		b = append(b, byte(n))
	}
	return append(b, value...)
}

// Streams that are reset as soon as they are opened (CVE-2023-44487) run no more handlers than streams may be open, end the
// connection when too many wait, and keep nobody else from being served.
func TestAttackRapidReset(t *testing.T) { // alone: it counts goroutines
	var running, most atomic.Int64
	release := make(chan struct{})
	var a *attack
	a = newAttack(t, func(c *Config) {
		authorizer := people()
		authorizer.authorize = func(_ context.Context, _, operation string, _ []ytclient.Permission) (auth.Decision, error) {
			if operation != a.mine.OperationID {
				n := running.Add(1)
				defer running.Add(-1)
				for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
				}
				<-release // a cluster that is slow, and does not see that nobody waits any more
				return auth.Decision{}, auth.ErrDenied
			}
			return auth.Decision{}, nil
		}
		c.Authorizer = authorizer
	})
	before := runtime.NumGoroutine()
	conn := dialHTTP2(t, a.world)
	conn.quiet = true
	ended := make(chan string, 1)
	go func() { ended <- conn.status(t, 1<<30) }() // no such stream: what is waited for is the connection's end
	var err error
	for stream := uint32(1); err == nil && stream < 200_001; stream += 2 {
		block := conn.encode(":method", "GET", ":scheme", "http", ":authority", host(a.theirs), ":path", "/", "authorization", aliceOAuth)
		if err = conn.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block, EndStream: true, EndHeaders: true}); err == nil {
			err = conn.WriteRSTStream(stream, http2.ErrCodeCancel)
		}
	}
	select {
	case got := <-ended:
		if got != "GOAWAY ENHANCE_YOUR_CALM" && got != "EOF" { // EOF: the reason was lost with what nobody read
			t.Errorf("the connection ended in %s", got)
		}
	case <-time.After(time.Minute):
		t.Error("the connection goes on")
	}
	if got := outcome(a.send(t, a.fill("GET / HTTP/1.1\nHost: {mine}\nAuthorization: OAuth {token}\nConnection: close\n\n"))); got != "mine" {
		t.Errorf("somebody else got %q meanwhile", got)
	}
	if n := most.Load(); n > 250 {
		t.Errorf("%d requests of one connection ran at a time", n)
	}
	if n := runtime.NumGoroutine() - before; n > 1000 {
		t.Errorf("%d goroutines more than before", n)
	}
	close(release)
}

// Other floods that cost the sender little: each ends the connection or is read at the sender's own pace, and others are
// served meanwhile.
func TestAttackHTTP2Floods(t *testing.T) {
	t.Parallel()
	a := newAttack(t)
	for name, write := range map[string]func(*http2Conn, uint32) error{
		"settings": func(c *http2Conn, _ uint32) error {
			return c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 16})
		},
		"pings":         func(c *http2Conn, _ uint32) error { return c.WritePing(false, [8]byte{}) },
		"empty data":    func(c *http2Conn, _ uint32) error { return c.WriteData(1, false, nil) },
		"priorities":    func(c *http2Conn, n uint32) error { return c.WritePriority(n, http2.PriorityParam{StreamDep: 1}) },
		"windows":       func(c *http2Conn, _ uint32) error { return c.WriteWindowUpdate(0, 1) },
		"unknown frame": func(c *http2Conn, _ uint32) error { return c.WriteRawFrame(0xfa, 0, 0, make([]byte, 1000)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := dialHTTP2(t, a.world)
			conn.headers(1, false, ":method", "POST", ":scheme", "http", ":authority", host(a.mine), ":path", "/", "authorization", aliceOAuth)
			_ = conn.SetWriteDeadline(time.Now().Add(2 * time.Second)) // we read nothing: the proxy may stop reading too
			var err error
			for n := uint32(3); err == nil && n < 40_000; n += 2 {
				err = write(conn, n)
			}
			got := outcome(a.send(t, a.fill("GET / HTTP/1.1\nHost: {mine}\nAuthorization: OAuth {token}\nConnection: close\n\n")))
			if got != "mine" {
				t.Errorf("somebody else got %q meanwhile", got)
			}
		})
	}
}

// A window that never opens holds one stream's answer, in bounded memory, and no other stream's.
func TestAttackHTTP2Window(t *testing.T) {
	t.Parallel()
	a := newAttack(t, func(c *Config) { c.IdleTimeout = time.Second })
	endless := a.publish(discovery.Service{OperationID: a.mine.OperationID, Name: "endless"}, endlessJob(t))
	conn := dialHTTP2(t, a.world)
	_ = conn.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	fields := field{":method", "GET", ":scheme", "http", ":authority", host(endless), ":path", "/", "authorization", aliceOAuth}
	conn.headers(1, true, fields...)
	if got := conn.status(t, 1); got != "200" {
		t.Fatalf("got %s", got)
	}
	fields[5] = host(a.theirs)
	conn.headers(3, true, fields...)
	if got := conn.status(t, 3); got != "403" {
		t.Errorf("another stream got %s", got)
	}
	eventually(t, "the exchange has ended", func() bool { return strings.Contains(a.log.text(), `"idle_timeout"`) })
	if got := conn.status(t, 1); got == "200" {
		t.Errorf("got %s", got)
	}
}
