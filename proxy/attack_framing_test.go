package proxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskproxy/discovery"
)

// Each line is a request that two readers could end at two places. Behind it comes another one without credentials, so that
// it is answered 401 if it is read as a request, and reaches the job only if it was smuggled. What the job gets has one
// framing and one reading (strictJob), or it gets nothing.
func TestAttackSmuggling(t *testing.T) {
	t.Parallel()
	a := newAttack(t)
	const (
		post    = "POST /1 HTTP/1.1\r\nHost: {mine}\r\nAuthorization: OAuth {token}\r\n"
		chunked = "Transfer-Encoding: chunked\r\n"
		hello   = "5\r\nhello\r\n0\r\n\r\n"
	)
	for _, c := range []struct {
		name, request string
		want          string // what the answer to the first request is, or "mine or" a refusal
		body          string // how it looks at the job
	}{
		{"length, then chunked", post + "Content-Length: 4\r\n" + chunked + "\r\n" + hello, "mine", hello},
		{"chunked, then length", post + chunked + "Content-Length: 4\r\n\r\n" + hello, "mine", hello},
		{"lengths differ", post + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "400", ""},
		{"lengths differ in one line", post + "Content-Length: 5, 6\r\n\r\nhello", "400", ""},
		{"lengths agree in one line", post + "Content-Length: 5, 5\r\n\r\nhello", "400", ""},
		{"lengths agree", post + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", "mine", "\r\n\r\nhello"},
		{"length with a sign", post + "Content-Length: +5\r\n\r\nhello", "400", ""},
		{"length below zero", post + "Content-Length: -5\r\n\r\nhello", "400", ""},
		{"length in hex", post + "Content-Length: 0x5\r\n\r\nhello", "400", ""},
		{"length in two words", post + "Content-Length: 5 5\r\n\r\nhello", "400", ""},
		{"length above all", post + "Content-Length: 18446744073709551621\r\n\r\nhello", "400", ""},
		{"length with an underscore", post + "Content_Length: 500\r\nContent-Length: 5\r\n\r\nhello", "mine", "\r\n\r\nhello"},
		{"chunked twice", post + chunked + chunked + "\r\n" + hello, "501", ""},
		{"chunked twice in one line", post + "Transfer-Encoding: chunked, chunked\r\n\r\n" + hello, "501", ""},
		{"chunked after identity", post + "Transfer-Encoding: identity, chunked\r\n\r\n" + hello, "501", ""},
		{"chunked under gzip", post + "Transfer-Encoding: gzip, chunked\r\n\r\n" + hello, "501", ""},
		{"chunked in odd case", post + "tRANSFER-eNCODING: cHUNKED\r\n\r\n" + hello, "mine", hello},
		{"chunked behind a vertical tab", post + "Transfer-Encoding: \x0bchunked\r\n\r\n" + hello, "400", ""},
		{"chunked by a fold", post + "Transfer-Encoding:\r\n chunked\r\n\r\n" + hello, "mine", hello},
		{"chunked with a space before the colon", post + "Transfer-Encoding : chunked\r\n\r\n" + hello, "400", ""},
		{"chunked with an underscore", post + "Transfer_Encoding: chunked\r\nContent-Length: 5\r\n\r\nhello", "mine", "\r\n\r\nhello"},
		{"chunked in HTTP/1.0", strings.Replace(post, "1.1", "1.0", 1) + chunked + "\r\n" + hello, "mine", "\r\n\r\n"}, // it has none there, and the connection ends,
		{"xchunked", post + "Transfer-Encoding: xchunked\r\nContent-Length: 5\r\n\r\nhello", "501", ""},
		{"Connection lists Transfer-Encoding", post + "Connection: Transfer-Encoding\r\n" + chunked + "\r\n" + hello, "mine", hello},
		{"Connection lists Content-Length", post + "Connection: Content-Length\r\nContent-Length: 5\r\n\r\nhello", "mine", "\r\n\r\nhello"},
		{"chunk extension", post + chunked + "\r\n5;a=b;\"c\"\r\nhello\r\n0;d\r\n\r\n", "mine", hello},
		{"chunk extension with a bare CR", post + chunked + "\r\n5;a\rb\r\nhello\r\n0\r\n\r\n", "refused", ""},
		{"chunk sizes end in LF", post + chunked + "\r\n5\nhello\r\n0\n\r\n", "refused", ""},
		{"chunk size in 0x", post + chunked + "\r\n0x5\r\nhello\r\n0\r\n\r\n", "refused", ""},
		{"chunk size above all", post + chunked + "\r\n10000000000000005\r\nhello\r\n0\r\n\r\n", "refused", ""},
		{"chunk size with a sign", post + chunked + "\r\n+5\r\nhello\r\n0\r\n\r\n", "refused", ""},
		{"chunk longer than it says", post + chunked + "\r\n4\r\nhello\r\n0\r\n\r\n", "refused", ""},
		{"no last chunk", post + chunked + "\r\n5\r\nhello\r\n", "refused", ""},
		{"trailers that frame", post + chunked + "\r\n5\r\nhello\r\n0\r\nContent-Length: 100\r\nTransfer-Encoding: chunked\r\n\r\n", "mine", hello},
		{"a fold in a header", post + "X-A: b\r\n\tContent-Length: 100\r\nContent-Length: 5\r\n\r\nhello", "mine", "\r\n\r\nhello"},
		{"a fold before all headers", strings.Replace(post, "\r\nHost", "\r\n Host", 1) + "\r\n", "400", ""},
		{"bare CR in a header", post + "X-A: b\rContent-Length: 100\r\n\r\n", "400", ""},
		{"bare CR in the target", strings.Replace(post, "/1", "/1\rx", 1) + "\r\n", "400", ""},
		{"bare LF between headers", strings.ReplaceAll(post, "\r\n", "\n") + "Content-Length: 5\n\nhello", "mine", "\r\n\r\nhello"},
		{"NUL in a header", post + "X-A: b\x00c\r\n\r\n", "400", ""},
		{"a colon alone", post + ": x\r\n\r\n", "400", ""},
		{"no colon", post + "X-A\r\n\r\n", "400", ""},
		{"a body with GET", strings.Replace(post, "POST", "GET", 1) + "Content-Length: 5\r\n\r\nhello", "mine", "\r\n\r\nhello"},
		{"HTTP/0.9", "GET /1\r\n", "400", ""},
		{"HTTP/1.2", strings.Replace(post, "1.1", "1.2", 1) + "Content-Length: 5\r\n\r\nhello", "mine or 505", "\r\n\r\nhello"},
		{"HTTP/2's preface where a request was", post + "Content-Length: 0\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "mine", "\r\n\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a.asked.take()
			all := a.send(t, strings.NewReplacer("{mine}", host(a.mine), "{token}", aliceToken).Replace(c.request)+
				"GET /smuggled HTTP/1.1\r\nHost: "+host(a.mine)+"\r\nConnection: close\r\n\r\n")
			got := outcome(all)
			if before, _, ok := strings.Cut(got, "HTTP/1.1"); ok {
				got = before // of two answers the first
			}
			requests := a.job.seen.take()
			for _, r := range requests {
				if strings.HasPrefix(r, "GET /smuggled") {
					t.Errorf("smuggled: %q", requests)
				}
			}
			if asked := a.asked.take(); len(requests) > len(asked) {
				t.Errorf("%d requests at the job, of which %d were judged: %q", len(requests), len(asked), requests)
			}
			switch {
			case c.want == "refused" && got != "mine" && got != "":
			case !strings.Contains(c.want, got) || got == "":
				t.Errorf("got %q, want %q", got, c.want)
			case got == "mine" && (len(requests) != 1 || !strings.HasSuffix(requests[0], c.body)):
				t.Errorf("the job got %q, want one that ends in %q", requests, c.body)
			}
		})
	}
}

// Targets with which readers disagree about what is asked for. The first half is refused; of the second each byte arrives.
func TestAttackTargets(t *testing.T) {
	t.Parallel()
	a := newAttack(t)
	const refused = "bad_request_target"
	for _, c := range []struct{ name, line, want string }{
		{"fragment", "GET /a#b HTTP/1.1", refused},
		{"fragment in the query", "GET /a?b#c HTTP/1.1", refused},
		{"fragment in an absolute target", "GET http://{mine}/#/../b HTTP/1.1", refused},
		{"opaque", "GET mailto:x HTTP/1.1", refused},
		{"opaque with the host", "GET http:{mine}/ HTTP/1.1", refused},
		{"no leading slash", "GET a HTTP/1.1", "400"},
		{"no leading slash, dots", "GET ../a HTTP/1.1", "400"},
		{"no leading slash, a host", "GET {theirs}/ HTTP/1.1", "400"},
		{"asterisk", "OPTIONS * HTTP/1.1", refused},
		{"asterisk with GET", "GET * HTTP/1.1", refused},
		{"CONNECT", "CONNECT {theirs}:80 HTTP/1.1", refused},
		{"CONNECT to a path", "CONNECT / HTTP/1.1", refused},
		{"CONNECT to a URL", "CONNECT http://{theirs}/ HTTP/1.1", refused},
		{"NUL", "GET /a\x00b HTTP/1.1", "400"},
		{"tab", "GET /a\tb HTTP/1.1", "400"},
		{"DEL", "GET /a\x7fb HTTP/1.1", "400"},
		{"a space", "GET /a b HTTP/1.1", "400"},
		{"bad escape", "GET /%zz HTTP/1.1", "400"},
		{"half an escape", "GET /% HTTP/1.1", "400"},
		{"a whole URL of another host", "GET http://{theirs}/ HTTP/1.1", "access_denied"},
		{"no target", "GET HTTP/1.1", "400"},
		{"HTTP/2's preface", "PRI * HTTP/2.0", refused},

		{"slashes", "GET //{theirs}//a HTTP/1.1", "//{theirs}//a"},
		{"dots", "GET /../.././a/..;x/ HTTP/1.1", "/../.././a/..;x/"},
		{"dots in escapes", "GET /%2e%2e/%2E%2e%2fa HTTP/1.1", "/%2e%2e/%2E%2e%2fa"},
		{"slashes in escapes", "GET /a%2fb%5cc%252f HTTP/1.1", "/a%2fb%5cc%252f"},
		{"CR LF in escapes", "GET /a%0d%0aHost:%20{theirs}?%0d%0a HTTP/1.1", "/a%0d%0aHost:%20{theirs}?%0d%0a"},
		{"NUL in escapes", "GET /%00?%00 HTTP/1.1", "/%00?%00"},
		{"fragment in escapes", "GET /%23?%23 HTTP/1.1", "/%23?%23"},
		{"backslash", `GET /\{theirs}/ HTTP/1.1`, "/%5C{theirs}/"},
		{"bytes of no URI", "GET /%2F{}|\"<>^`\xff HTTP/1.1", "/%2F%7B%7D%7C%22%3C%3E%5E%60%FF"},
		{"a query that no form has", "GET /?;&%zz=%&&= HTTP/1.1", "/?;&%zz=%&&="},
		{"an empty query", "GET /? HTTP/1.1", "/?"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := outcome(a.send(t, a.fill(c.line)+a.fill("\nHost: {mine}\nAuthorization: OAuth {token}\nConnection: close\n\n")))
			requests := a.job.seen.take()
			if strings.HasPrefix(c.want, "/") {
				if want := a.fill("GET " + c.want + " HTTP/1.1\n"); len(requests) != 1 || !strings.HasPrefix(requests[0], want) {
					t.Errorf("answer %q, the job got %q, want %q", got, requests, want)
				}
			} else if got == "" || !strings.Contains(c.want, got) || len(requests) > 0 {
				t.Errorf("got %q, want %q; the job got %q", got, c.want, requests)
			}
		})
	}
}

// Upgrades to h2c are what Java's and curl's clients offer: the request is served as HTTP/1.1, and the job sees neither the
// offer nor the settings. What follows on the connection is HTTP/1.1 as before.
func TestAttackUpgradeH2C(t *testing.T) {
	t.Parallel()
	a := newAttack(t)
	all := a.send(t, a.fill("GET /1 HTTP/1.1\nHost: {mine}\nAuthorization: OAuth {token}\nConnection: Upgrade, HTTP2-Settings\nUpgrade: h2c\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\nHTTP2_Settings: AAMA\n\n"+
		"GET /1 HTTP/1.1\nHost: {mine}\nAuthorization: OAuth {token}\nConnection: Upgrade\nUpgrade: h2c, websocket/1\nHTTP2-Settings: AAMA\n\n"+
		"GET /2 HTTP/1.1\nHost: {theirs}\nAuthorization: OAuth {token}\nConnection: Upgrade, HTTP2-Settings, close\nUpgrade: h2c\nHTTP2_Settings: AAMAAABkAARAAAAAAAIAAAAA\n\n"))
	if strings.Contains(all, " 101 ") || strings.Count(all, "HTTP/1.1 200 ") != 2 || !strings.Contains(all, "access_denied") {
		t.Errorf("got %q", all)
	}
	for _, r := range a.job.seen.take() {
		if lower := strings.ToLower(r); strings.Contains(lower, "upgrade") || strings.Contains(lower, "settings") {
			t.Errorf("the job got %q", r)
		}
	}
}

// A handshake that the job declines leaves no tunnel behind: what the caller sends next is a request that is judged like any
// other, and the job's connection ends.
func TestAttackFailedUpgradeReuse(t *testing.T) {
	t.Parallel()
	a := newAttack(t)
	rest := make(chan string, 1)
	declines := a.publish(discovery.Service{OperationID: a.mine.OperationID, Name: "ws"}, rawJob(t, func(conn net.Conn, _ *http.Request, r *bufio.Reader) {
		_, _ = io.WriteString(conn, "HTTP/1.1 426 Upgrade Required\r\nSec-WebSocket-Version: 13\r\nContent-Length: 4\r\n\r\nnope")
		b, _ := io.ReadAll(r)
		rest <- string(b)
	}))
	all := a.send(t, strings.Replace(handshakeBytes(host(declines)), "Version: 13", "Version: 777", 1)+
		a.fill("GET /smuggled HTTP/1.1\nHost: {theirs}\nAuthorization: OAuth {token}\n\n")+
		a.fill("GET /again HTTP/1.1\nHost: {mine}\nAuthorization: OAuth {token}\nConnection: close\n\n"))
	var got []string
	for part := range strings.SplitSeq(all, "HTTP/1.1 ") {
		if part != "" {
			got = append(got, part[:3])
		}
	}
	if want := []string{"426", "403", "200"}; !slices.Equal(got, want) {
		t.Errorf("answers %q, want %q", got, want)
	}
	if b := <-rest; b != "" {
		t.Errorf("the job that declined got %q afterwards", b)
	}
	if requests := a.job.seen.take(); len(requests) != 1 || !strings.HasPrefix(requests[0], "GET /again ") {
		t.Errorf("the job got %q", requests)
	}
}

// A body that breaks is its caller's failure and never the job's: it is not answered in the job's name, it brings no endpoint
// into disrepute (callers could have it dropped), and the log does not repeat what stood there instead.
func TestAttackBrokenBodies(t *testing.T) {
	t.Parallel()
	const chunked = "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
	for _, c := range []struct {
		name, rest string
		reset      bool
		want       string
	}{
		{"no chunk size", chunked + "s3cret\r\n", false, "bad_request_body"},
		{"a trailer without a colon", chunked + "0\r\nAuthorization OAuth s3cret\r\n\r\n", false, "bad_request_body"},
		{"a trailer of more than 4 KiB", chunked + "0\r\nX-A: " + strings.Repeat("s3cret", 1000) + "\r\n\r\n", false, "bad_request_body"},
		{"the end, too early", "Content-Length: 100\r\n\r\nhello", false, "bad_request_body"},
		{"the end, in a chunk", chunked + "64\r\nhello", false, "bad_request_body"},
		{"a reset", "Content-Length: 100\r\n\r\nhello", true, "client_gone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			failed := new(journal)
			a := newAttack(t, func(cfg *Config) {
				cfg.OnConnectFailure = func(_ *discovery.Service, e discovery.Endpoint) { failed.add(e.Addr) }
			})
			conn := dial(t, a.world)
			send(t, conn, "POST / HTTP/1.1\r\n"+asAlice(a.mine)+c.rest)
			if c.reset {
				eventually(t, "the job is called", func() bool { return a.job.conns.Load() > 0 })
				_ = conn.(*net.TCPConn).SetLinger(0)
			} else {
				_ = conn.(*net.TCPConn).CloseWrite()
				if got := outcome(string(readAll(conn))); got != c.want && got != "" { // "": it was gone before it could read
					t.Errorf("got %q, want %q", got, c.want)
				}
			}
			conn.Close()
			eventually(t, "the request is logged", func() bool { return a.log.text() != "" })
			text := a.log.text()
			if !strings.Contains(text, c.want) && !strings.Contains(text, "client_gone") || strings.Contains(text, "s3cret") {
				t.Errorf("logged %s", text)
			}
			if addrs := failed.take(); len(addrs) > 0 {
				t.Errorf("the job's endpoint is said to have failed")
			}
		})
	}
}

func readAll(r io.Reader) []byte {
	all, _ := io.ReadAll(r)
	return all
}

// Headers, targets and chunks without an end are cut off.
func TestAttackEndless(t *testing.T) {
	t.Parallel()
	a := newAttack(t)
	const (
		authorized = "POST / HTTP/1.1\nHost: {mine}\nAuthorization: OAuth {token}\n"
		chunked    = authorized + "Transfer-Encoding: chunked\n\n"
	)
	for _, c := range []struct{ name, first, again, want string }{
		{"target", "GET /", strings.Repeat("a", 1000), "431"},
		{"header line", authorized + "X-A: ", strings.Repeat("a", 1000), "431"},
		{"header name", authorized, strings.Repeat("a", 1000), "431"},
		{"headers", authorized, "X-A: " + strings.Repeat("a", 100) + "\n", "431"},
		{"folds", authorized + "X-A: a\n", " " + strings.Repeat("a", 100) + "\n", "431"},
		{"strangers' headers", "GET / HTTP/1.1\nHost: x\n", "X-A: " + strings.Repeat("a", 100) + "\n", "431"},
		{"chunk size", chunked, strings.Repeat("0", 1000), ""},
		{"chunk extension", chunked + "5;", strings.Repeat("a", 1000), ""},
		{"chunks with little in them", chunked, "1;" + strings.Repeat("a", 1000) + "\na\n", ""},
		{"trailer", chunked + "0\nX-A: ", strings.Repeat("a", 1000), ""},
		{"trailers", chunked + "0\n", "X-A: " + strings.Repeat("a", 100) + "\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			conn := dial(t, a.world)
			answer := make(chan string, 1)
			go func() {
				all, _ := io.ReadAll(conn)
				answer <- string(all)
			}()
			const most = 32 << 20 // kernels take some
			sent, again := 0, a.fill(c.again)
			_, err := io.WriteString(conn, a.fill(c.first))
			for ; err == nil && sent < most; sent += len(again) {
				_, err = io.WriteString(conn, again)
			}
			if err == nil {
				t.Errorf("%d bytes were taken", sent)
				conn.Close()
			}
			if got := outcome(<-answer); got == "mine" || c.want != "" && got != c.want && got != "" { // "": the refusal was lost with what nobody read
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// Callers that send a byte now and then, or none, do not hold a connection that nobody knows them on.
func TestAttackSlowCallers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, first, again string }{
		{"silence", "", ""},
		{"a header at a time", "GET / HTTP/1.1\r\n", "X-A: b\r\n"},
		{"a byte of the target at a time", "GET /", "a"},
		{"nothing after an answer", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", ""},
		{"a byte of a frame at a time", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x00"},
		{"a frame of a header block at a time", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x00\x00\x01\x00\x00\x00\x00\x01", "\x00\x00\x00\x09\x00\x00\x00\x00\x01"},
		{"a byte of the preface at a time", "PRI * HTTP/2.0\r\n\r\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p, err := New(Config{Table: NewTable(), Authorizer: people()})
				if err != nil {
					t.Fatal(err)
				}
				server := NewServer(p, nil)
				pipes := newPipeListener()
				done := make(chan struct{})
				go func() { defer close(done); _ = server.Serve(pipes) }()
				conn := pipes.dial()
				start := time.Now()
				var sender sync.WaitGroup
				sender.Go(func() {
					_, err := io.WriteString(conn, c.first)
					for ; err == nil && c.again != ""; time.Sleep(3 * time.Second) {
						_, err = io.WriteString(conn, c.again)
					}
				})
				_ = conn.SetReadDeadline(start.Add(time.Hour))
				if _, err := io.Copy(io.Discard, conn); os.IsTimeout(err) {
					t.Error("the connection is held for an hour")
				} else if held := time.Since(start); held > 5*time.Minute {
					t.Errorf("the connection is held for %s", held)
				}
				server.Close()
				conn.Close()
				sender.Wait()
				<-done
				p.Close()
			})
		})
	}
}

// pipeListener accepts connections that are not of this world: time in a synctest bubble stands still while a socket waits.
type pipeListener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *pipeListener) dial() net.Conn {
	here, there := net.Pipe()
	l.conns <- there
	return here
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }
