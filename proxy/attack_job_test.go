package proxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"taskproxy/discovery"
)

// endlessJob answers everything with a body that does not end.
func endlessJob(tb testing.TB) string {
	tb.Helper()
	return rawJob(tb, func(conn net.Conn, _ *http.Request, _ *bufio.Reader) {
		_, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
		for part := strings.Repeat("x", 64<<10); err == nil; {
			_, err = io.WriteString(conn, part)
		}
	})
}

// Each line is what a job would plant with its callers: on siblings, on the cluster's login, in the proxy's name. It says so
// in its headers, in a 103, in its trailers, and in the 101 of a WebSocket; none of the four passes it on.
func TestAttackAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, line, want string }{ // want: what the caller reads instead, with its name
		{"Set-Cookie with the parent's Domain", "Set-Cookie: a=1; Domain=proxy.test; Secure", "Set-Cookie: a=1; Secure"},
		{"Set-Cookie with the parent's Domain in odd spelling", "Set-Cookie: a=1;\tdOmAiN\t= .proxy.test ; Secure", "Set-Cookie: a=1; Secure"},
		{"Set-Cookie with two Domains", "Set-Cookie: a=1; Domain=x; Secure; Domain=proxy.test", "Set-Cookie: a=1; Secure"},
		{"Set-Cookie of the cluster cookie", "Set-Cookie: YTCypressCookie=evil; Path=/x", ""},
		{"Set-Cookie of the cluster cookie in odd case", "Set-Cookie: ytCYPRESScookie=evil", ""},
		{"Set-Cookie of the cluster cookie, spaces around", "Set-Cookie: \tYTCypressCookie = evil", ""},
		{"Set-Cookie of the cluster cookie, without a name", "Set-Cookie: =YTCypressCookie=evil", ""},
		{"Set-Cookie without a name", "Set-Cookie: YTCypressCookie", ""},
		{"forged x-yt-taskproxy-error", "X-Yt-Taskproxy-Error: access_denied", ""},
		{"forged x-yt-taskproxy-user", "x-yt-taskproxy-user: root", ""},
		{"forged x_yt_taskproxy_error", "X_Yt_Taskproxy_Error: access_denied", ""},
		{"forged request id", "X-Request-Id: forged", ""},
		{"Clear-Site-Data", `Clear-Site-Data: "*"`, ""},
		{"Alt-Svc", `Alt-Svc: h2="evil.test:443"`, ""},
		{"HSTS for siblings", "Strict-Transport-Security: max-age=1; includeSubDomains", "Strict-Transport-Security: max-age=1"},
		{"Negotiate", "WWW-Authenticate: Negotiate", ""},
		{"NTLM", "WWW-Authenticate: NTLM", ""},
		{"a header of its own", "X-Own: yes", "X-Own: yes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			name, _, _ := strings.Cut(c.line, ":")
			for place, answer := range map[string]string{
				"header":            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + c.line + "\r\n\r\n",
				"hint":              "HTTP/1.1 103 Early Hints\r\n" + c.line + "\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
				"trailer":           "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + c.line + "\r\n\r\n",
				"announced trailer": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: " + name + "\r\n\r\n0\r\n" + c.line + "\r\n\r\n",
				"101":               strings.TrimSuffix(accepted, "\r\n") + c.line + "\r\n\r\n",
			} {
				w := newWorld(t)
				s := w.publish(discovery.Service{}, rawAnswer(t, answer))
				conn := dial(t, w)
				if place == "101" {
					send(t, conn, handshakeBytes(host(s)))
				} else {
					send(t, conn, "GET / HTTP/1.1\r\n"+asAlice(s)+"Connection: close\r\n\r\n")
				}
				all, _ := io.ReadAll(conn)
				var got []string
				for line := range strings.SplitSeq(string(all), "\r\n") {
					if n, _, ok := strings.Cut(line, ":"); ok && strings.EqualFold(n, name) && (n != "X-Request-Id" || strings.Contains(line, "forged")) {
						got = append(got, line)
					}
				}
				if c.want == "" && len(got) > 0 || c.want != "" && !slices.Equal(got, []string{c.want}) {
					t.Errorf("%s: the caller reads %q, want %q", place, got, c.want)
				}
			}
		})
	}
}

// Answers that are none, that do not end, or that end too early: the caller gets a 502 or a connection that breaks, never a
// whole answer, and never two.
func TestAttackBrokenAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, first, again, want string }{
		{"101 unasked", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", "", "502"},
		{"101 unasked, behind a hint", "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", "", "502"},
		{"endless header", "HTTP/1.1 200 OK\r\nX-A: ", strings.Repeat("a", 64<<10), "502"},
		{"endless headers", "HTTP/1.1 200 OK\r\n", strings.Repeat("X-A: a\r\n", 1000), "502"},
		{"endless status line", "HTTP/1.1 200 ", strings.Repeat("a", 64<<10), "502"},
		{"endless hints", "", "HTTP/1.1 103 Early Hints\r\nLink: </" + strings.Repeat("x", 8000) + ">\r\n\r\n", "103"},
		{"endless trailer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-A: ", strings.Repeat("a", 64<<10), "200"},
		{"endless trailers", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n", strings.Repeat("X-A: a\r\n", 1000), "200"},
		{"endless chunk extension", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;", strings.Repeat("a", 64<<10), "200"},
		{"early close, nothing said", "", "", "502"},
		{"early close in the headers", "HTTP/1.1 200 OK\r\nX-A", "", "502"},
		{"early close in the body", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nok", "", "200"},
		{"early close in a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nok", "", "200"},
		{"early close before the last chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", "", "200"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.publish(discovery.Service{}, rawJob(t, func(conn net.Conn, _ *http.Request, _ *bufio.Reader) {
				_, err := io.WriteString(conn, c.first)
				for sent := 0; err == nil && c.again != ""; sent += len(c.again) {
					if _, err = io.WriteString(conn, c.again); sent > 256<<20 {
						t.Errorf("%d bytes were taken", sent)
						return
					}
				}
			}))
			conn := dial(t, w)
			send(t, conn, "GET / HTTP/1.1\r\n"+asAlice(s)+"Connection: close\r\n\r\n")
			r := bufio.NewReader(conn)
			all, _ := io.ReadAll(io.LimitReader(r, 8<<20)) // until the proxy closes, or we have heard enough
			conn.Close()
			text := strings.TrimPrefix(string(all), "HTTP/1.1 103 Early Hints\r\n\r\n")
			_, status, _ := strings.Cut(text, " ")
			if !strings.HasPrefix(status, c.want) && (c.want != "200" || text != "") { // "": it broke before it was sent on
				t.Fatalf("got %.200q, want %s", text, c.want)
			}
			if c.want == "200" && (strings.HasSuffix(text, "\r\n0\r\n\r\n") || strings.Count(text, "HTTP/1.1") > 1) {
				t.Errorf("a whole answer: %q", text)
			}
		})
	}
}

// Two readers of an answer must not end it at two places: the caller gets one framing, and no answer of the job's making
// waits for the caller's next request.
func TestAttackAnswerFraming(t *testing.T) {
	t.Parallel()
	const next = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Evil: 1\r\n\r\nevil"
	for _, c := range []struct{ name, answer, want string }{
		{"length and chunked", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n" + next, "ok"},
		{"lengths differ", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok" + next, ""},
		{"answer behind the answer", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" + next, "ok"},
		{"body with 204", "HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok" + next, "204"},
		{"body with 304", "HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n" + next, "304"},
		{"chunked twice", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n" + next, ""},
		{"chunk size above all", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000002\r\nok\r\n0\r\n\r\n" + next, ""},
		{"space before the colon", "HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok" + next, "ok" + next}, // a body until the end,
		{"bare CR in a header", "HTTP/1.1 200 OK\r\nX-A: a\rSet-Cookie: YTCypressCookie=evil\r\nContent-Length: 2\r\n\r\nok", ""},
		{"Connection lists what is ours", "HTTP/1.1 200 OK\r\nConnection: X-Request-Id, Content-Security-Policy, Content-Length\r\nContent-Length: 2\r\n\r\nok", "ok"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.publish(discovery.Service{}, rawAnswer(t, c.answer))
			good := w.publish(discovery.Service{}, newStrictJob(t, "good").addr)
			conn := dial(t, w)
			send(t, conn, "GET / HTTP/1.1\r\n"+asAlice(s)+"\r\n"+"GET / HTTP/1.1\r\n"+asAlice(good)+"Connection: close\r\n\r\n")
			r := bufio.NewReader(conn)
			first, err := http.ReadResponse(r, nil)
			if err != nil && c.want == "" {
				return // the connection broke
			}
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(first.Body)
			got := string(body)
			if first.StatusCode == 204 || first.StatusCode == 304 {
				got = first.Status[:3]
			}
			if first.StatusCode == 200 && first.Header.Get("X-Request-Id") == "" {
				t.Error("no request id")
			}
			if first.Header["X-Evil"] != nil || first.Header["Set-Cookie"] != nil || c.want == "" && first.StatusCode != 502 || c.want != "" && got != c.want {
				t.Errorf("the first answer is %v %q, want %q", first, got, c.want)
			}
			if rest, _ := io.ReadAll(r); strings.Contains(string(rest), "evil") || len(rest) > 0 && !strings.HasSuffix(string(rest), "\r\n\r\ngood") {
				t.Errorf("the second answer is %q", rest)
			}
		})
	}
}

// The same over HTTP/2: headers and trailers without an end from a gRPC job.
func TestAttackHTTP2Answers(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"headers", "trailers"} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.publish(discovery.Service{Protocol: discovery.GRPC}, framesJob(t, func(f *http2.Framer, stream uint32) {
				var block strings.Builder
				e := hpack.NewEncoder(&block)
				fields := func(names ...string) []byte {
					block.Reset()
					for i := 0; i < len(names); i += 2 {
						_ = e.WriteField(hpack.HeaderField{Name: names[i], Value: names[i+1]})
					}
					return []byte(block.String())
				}
				ok := fields(":status", "200", "content-type", "application/grpc")
				if place == "trailers" {
					_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: ok, EndHeaders: true})
					ok = nil
				}
				err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: ok, EndStream: place == "trailers"})
				sent := 0
				for part := literal("x", strings.Repeat("a", 10_000)); err == nil && sent < 64<<20; sent += len(part) {
					err = f.WriteContinuation(stream, false, part)
				}
				if err == nil {
					t.Errorf("%d bytes of %s were taken", sent, place)
				}
			}))
			client := dialHTTP2(t, w)
			client.headers(1, true, ":method", "POST", ":scheme", "http", ":authority", host(s), ":path", "/a.B/C", "authorization", aliceOAuth,
				"content-type", "application/grpc", "te", "trailers")
			got := client.answer(t, 1)
			if place == "trailers" && got.status == "200" && got.header["Grpc-Status"] == "" {
				got = client.answer(t, 1)
			}
			if s := got.header["Grpc-Status"]; s != "14" && got.status != "INTERNAL_ERROR" {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// framesJob is a job that speaks HTTP/2 in frames: answer is called for the first request of each connection.
func framesJob(tb testing.TB, answer func(*http2.Framer, uint32)) string {
	tb.Helper()
	l := listen(tb)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.CopyN(io.Discard, conn, int64(len(http2.ClientPreface)))
			f := http2.NewFramer(conn, conn)
			_ = f.WriteSettings()
			for {
				frame, err := f.ReadFrame()
				if err != nil {
					break
				}
				if h, ok := frame.(*http2.HeadersFrame); ok {
					reading := make(chan struct{})
					go func() { defer close(reading); _, _ = io.Copy(io.Discard, conn) }() // or a reset would end us before the limit does
					answer(f, h.StreamID)
					conn.Close()
					<-reading
					break
				}
			}
			conn.Close()
		}
	}()
	tb.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}
