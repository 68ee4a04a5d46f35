package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"taskproxy/discovery"
)

// carriers are the ways by which a caller's headers reach a job. Each sends fields and trailers to a service whose job tells
// what it saw, and returns that.
var carriers = map[string]func(*testing.T, field, field) seen{
	"HTTP/1.1":                    overHTTP1,
	"WebSocket":                   overWebSocket,
	"HTTP/2 to HTTP/1.1":          func(t *testing.T, h, tr field) seen { return overHTTP2(t, discovery.HTTP, h, tr) },
	"HTTP/2 to HTTP/2 (for gRPC)": func(t *testing.T, h, tr field) seen { return overHTTP2(t, discovery.GRPC, h, tr) },
}

// field is a list of header lines: names and values in turn.
type field []string

// seen is what reached a job.
type seen struct{ header, trailer http.Header }

// Each line is an attempt to get a credential of the cluster's to a job. No byte of it arrives (every one of them contains
// "s3cret"), and what is the service's own does.
func TestAttackCredentials(t *testing.T) {
	t.Parallel()
	const cookie, explicit = "YTCypressCookie=" + aliceToken, "X-Yt-Taskproxy-Authorization"
	for _, c := range []struct {
		name   string
		fields field
		want   map[string][]string // what remains of the headers that are named
	}{
		{"Authorization: OAuth", field{"Authorization", aliceOAuth}, map[string][]string{"Authorization": nil}},
		{"Authorization: Bearer", field{"Authorization", "Bearer " + aliceToken}, map[string][]string{"Authorization": nil}},
		{"Authorization: Bearer in odd case", field{"aUTHORIZATION", "bEARER " + aliceToken}, map[string][]string{"Authorization": nil}},
		{"explicit header", field{explicit, aliceOAuth}, map[string][]string{explicit: nil}},
		{"explicit header, in every spelling", slices.Concat(field{explicit, aliceOAuth}, spellings("X-Yt-Taskproxy-Authorization", "OAuth s3cret")), nil},
		{"OAuth beside the explicit header", field{explicit, aliceOAuth, "Authorization", "OAuth s3cret-other"}, map[string][]string{"Authorization": nil}},
		{"cookie", field{"Cookie", cookie}, map[string][]string{"Cookie": nil}},
		{"cookie among others", field{"Cookie", "a=1; " + cookie + "; b=\"2\""}, map[string][]string{"Cookie": {`a=1; b="2"`}}},
		{"cookie in the first of several headers", field{"Cookie", cookie, "Cookie", "a=1", "Cookie", "b=2"}, map[string][]string{"Cookie": {"a=1; b=2"}}},
		{"cookie in the last of several headers", field{"Cookie", "a=1", "cOOKIE", "b=2", "COOKIE", cookie}, map[string][]string{"Cookie": {"a=1; b=2"}}},
		{"cookie in each of several headers", field{"Cookie", cookie + "; a=1", "Cookie", "b=2; " + cookie, "Cookie", cookie}, map[string][]string{"Cookie": {"a=1; b=2"}}},
		{"cookie, in another's shadow", field{"Cookie", "XYTCypressCookie=1; " + cookie + "; YTCypressCookie2=2"}, map[string][]string{"Cookie": {"XYTCypressCookie=1; YTCypressCookie2=2"}}},
		{"cookie of the cluster's web interface", field{"Cookie", "alpha_" + cookie + "; a=1; " + cookie, "Cookie", "x.y-" + cookie}, map[string][]string{"Cookie": {"a=1"}}},
		{"cookie under any name", field{"Cookie", cookie + "; access_token=\"" + aliceToken + "\"; a=1"}, map[string][]string{"Cookie": {"a=1"}}},
		{"tokens of the cluster's web interface", field{explicit, aliceOAuth, "Cookie", "yt_oauth_access_token=s3cret; a=1; yt_oauth_refresh_token=s3cret"}, map[string][]string{"Cookie": {"a=1"}}},
		{"cookie, documented spelling", field{"Cookie", "YTCypressCookie " + aliceToken}, map[string][]string{"Cookie": nil}},
		{"CSRF token", slices.Concat(field{"Cookie", cookie, "X-CSRF-Token", "s3cret"}, spellings("X-Csrf-Token", "s3cret")), nil},
		{"what clients of the cluster send", slices.Concat(field{"Cookie", cookie, "X-YT-User-Tag", "s3cret", "X-Ya-User-Ticket", "s3cret"}, spellings("X-Yt-User-Tag", "s3cret"), spellings("X-Ya-User-Ticket", "s3cret")), nil},
		{"Basic stays", field{explicit, aliceOAuth, "Authorization", "Basic YTpi"}, map[string][]string{"Authorization": {"Basic YTpi"}}},
		{"a page's own Bearer beside the cookie stays", field{"Cookie", cookie, "Sec-Fetch-Site", "same-origin", "Authorization", "Bearer of-the-page"},
			map[string][]string{"Authorization": {"Bearer of-the-page"}}},
		{"a page's own Bearer beside the explicit header stays", field{explicit, aliceOAuth, "Authorization", "Bearer of-the-page"},
			map[string][]string{"Authorization": {"Bearer of-the-page"}}},
		{"Connection lists credentials", field{"Connection", "Authorization, Cookie, X-Yt-Taskproxy-Authorization", "Authorization", aliceOAuth, "Cookie", "a=1; " + cookie}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for name, carry := range carriers {
				if strings.HasPrefix(name, "HTTP/2") && slices.Contains(c.fields, "Connection") {
					continue // HTTP/2 has none
				}
				got := carry(t, c.fields, nil)
				if text := fmt.Sprint(got); strings.Contains(text, "s3cret") {
					t.Errorf("%s: a credential reached the job: %s", name, text)
				}
				for h, want := range c.want {
					if have := got.header[h]; h == "Cookie" && strings.Join(have, "; ") == strings.Join(want, "; ") {
						continue // HTTP/2 divides them as it likes
					} else if !slices.Equal(have, want) {
						t.Errorf("%s: the job sees %s %q, want %q", name, h, have, want)
					}
				}
			}
		})
	}
}

// Credentials and identities in trailers stay here too; a harmless trailer arrives. (Each goes alone with it: net/http takes
// 4 KiB of trailers.)
func TestAttackTrailers(t *testing.T) {
	t.Parallel()
	forged := slices.Concat(field{"Authorization", "OAuth s3cret", "Proxy-Authorization", "OAuth s3cret", "Cookie", "YTCypressCookie=s3cret", "X-Request-Id", "s3cret"},
		field{"X-Yt-Taskproxy-Authorization", "OAuth s3cret", "X_YT_TASKPROXY_AUTHORIZATION", "OAuth s3cret", "X-Yt-Taskproxy-User", "root", "x_yt_taskproxy_user", "root"},
		field{"X-Csrf-Token", "s3cret", "X.csrf.token", "s3cret", "X-Yt-User-Tag", "s3cret", "X-Ya-User-Ticket", "s3cret", "X-Forwarded-For", "6.6.6.6"})
	for name, carry := range carriers {
		if name == "WebSocket" {
			continue // a handshake has no body
		}
		for i := 0; i < len(forged); i += 2 {
			trailer, value := forged[i], forged[i+1]
			if strings.HasPrefix(name, "HTTP/2") && (trailer == "Authorization" || trailer == "Proxy-Authorization") {
				continue // net/http ends the stream: TestAttackHTTP2
			}
			t.Run(name+", "+trailer, func(t *testing.T) {
				t.Parallel()
				fields := field{"Authorization", aliceOAuth, "Trailer", "X-Sum, " + trailer}
				got := carry(t, fields, field{"X-Sum", "42", trailer, value})
				if len(got.trailer) != 1 || got.trailer.Get("X-Sum") != "42" {
					t.Errorf("trailers at the job: %v", got.trailer)
				}
				if want := []string{"alice"}; !slices.Equal(got.header[UserHeader], want) {
					t.Errorf("the job sees %s %q, want %q", UserHeader, got.header[UserHeader], want)
				}
			})
		}
	}
}

// Whatever a caller says about who is calling, the job reads one login: the one that the cluster gave.
func TestAttackForgedUser(t *testing.T) {
	t.Parallel()
	forged := slices.Concat(spellings(UserHeader, "root"), field{UserHeader, "root", strings.ToUpper(UserHeader), "", strings.ToLower(UserHeader), "root, root"})
	for name, carry := range carriers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := carry(t, slices.Concat(field{"Authorization", aliceOAuth}, forged), nil)
			for h, values := range got.header {
				if letters(h) == letters(UserHeader) && (h != UserHeader || !slices.Equal(values, []string{"alice"})) {
					t.Errorf("the job sees %s %q", h, values)
				}
			}
			if got.header[UserHeader] == nil {
				t.Errorf("the job sees no %s", UserHeader)
			}
		})
	}
}

// No caller can have a header of ours removed by naming it in Connection.
func TestAttackConnectionListsOurHeaders(t *testing.T) {
	t.Parallel()
	ours := []string{UserHeader, "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Request-Id"}
	list := strings.Join(ours, ",") + ", host, content-length"
	got := overHTTP1(t, field{"Authorization", aliceOAuth, "Connection", list, "connection", strings.ToLower(list), "X-Forwarded-For", "6.6.6.6"}, nil)
	for _, name := range ours {
		if len(got.header[name]) != 1 || strings.Contains(got.header[name][0], "6.6.6.6") {
			t.Errorf("the job sees %s %q", name, got.header[name])
		}
	}
}

// Two values of the cookie are nobody's, however they are spread.
func TestAttackTwoCookies(t *testing.T) {
	t.Parallel()
	a := newAttack(t)
	for name, cookies := range map[string]string{
		"in one header":      "Cookie: YTCypressCookie={token}; YTCypressCookie=s3cret-bob",
		"in two headers":     "Cookie: YTCypressCookie={token}\nCookie: YTCypressCookie=s3cret-bob",
		"the first is empty": "Cookie: YTCypressCookie=; YTCypressCookie={token}",
		"the last is empty":  "Cookie: YTCypressCookie={token}; YTCypressCookie",
		"spaces around":      "Cookie: YTCypressCookie=s3cret-bob; YTCypressCookie = {token}",
	} {
		t.Run(name, func(t *testing.T) {
			got := outcome(a.send(t, a.fill("GET / HTTP/1.1\nHost: {mine}\nConnection: close\n"+cookies+"\n\n")))
			if got != "ambiguous_cookie" {
				t.Errorf("got %q, want ambiguous_cookie", got)
			}
		})
	}
	if requests := a.job.seen.take(); len(requests) > 0 {
		t.Errorf("reached the job: %q", requests)
	}
}

// spellings are header lines whose names some reader takes for name: in any case, with another sign for "-".
func spellings(name, value string) field {
	f := field{strings.Replace(name, "-", "_", 1), value}
	for _, sign := range "_!#$%&'*+.^`|~" {
		spelled := strings.ReplaceAll(name, "-", string(sign))
		f = append(f, spelled, value, strings.ToLower(spelled), value, strings.ToUpper(spelled), value)
	}
	return f
}

// letters is a name as a reader sees it that cares for letters only.
func letters(name string) string {
	return strings.Map(func(r rune) rune {
		if r < 'a' || r > 'z' {
			return -1
		}
		return r
	}, strings.ToLower(name))
}

// tellingJob is a job that tells what it saw, over HTTP/1.1 and HTTP/2.
func tellingJob(t *testing.T) (string, <-chan seen) {
	t.Helper()
	told := make(chan seen, 1)
	server := &http.Server{Protocols: new(http.Protocols), MaxHeaderBytes: 1 << 20, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		told <- seen{r.Header, r.Trailer}
	})}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	l := listen(t)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close(); <-done })
	return l.Addr().String(), told
}

func wire(f field) string {
	var b strings.Builder
	for i := 0; i < len(f); i += 2 {
		b.WriteString(f[i] + ": " + f[i+1] + "\r\n")
	}
	return b.String()
}

func overHTTP1(t *testing.T, fields, trailers field) seen {
	t.Helper()
	w := newWorld(t)
	addr, told := tellingJob(t)
	s := w.publish(discovery.Service{}, addr)
	text := "POST / HTTP/1.1\r\nHost: " + host(s) + "\r\n" + wire(fields)
	if trailers == nil {
		text += "Content-Length: 2\r\n\r\nok"
	} else {
		text += "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n" + wire(trailers) + "\r\n"
	}
	conn := dial(t, w)
	send(t, conn, text)
	if res, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || res.StatusCode != 200 {
		t.Fatalf("got %v, %v", res, err)
	}
	return <-told
}

func overWebSocket(t *testing.T, fields, _ field) seen {
	t.Helper()
	w := newWorld(t)
	told := make(chan seen, 1)
	s := w.publish(discovery.Service{}, rawJob(t, func(conn net.Conn, r *http.Request, _ *bufio.Reader) {
		told <- seen{header: r.Header}
		_, _ = io.WriteString(conn, accepted)
	}))
	// A browser names the origin of the page that connects.
	text := "GET / HTTP/1.1\r\nHost: " + host(s) + "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + wire(fields) + "\r\n"
	conn := dial(t, w)
	send(t, conn, text)
	if res, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || res.StatusCode != 101 {
		t.Fatalf("got %v, %v", res, err)
	}
	return <-told
}

func overHTTP2(t *testing.T, protocol discovery.Protocol, fields, trailers field) seen {
	t.Helper()
	w := newWorld(t)
	addr, told := tellingJob(t)
	s := w.publish(discovery.Service{Protocol: protocol}, addr)
	c := dialHTTP2(t, w)
	c.headers(1, trailers == nil, slices.Concat(field{":method", "POST", ":scheme", "http", ":authority", host(s), ":path", "/"}, fields)...)
	if trailers != nil {
		_ = c.WriteData(1, false, []byte("ok"))
		c.headers(1, true, trailers...)
	}
	if status := c.status(t, 1); status != "200" {
		t.Fatalf("got %s", status)
	}
	return <-told
}

// http2Conn is a caller that writes frames.
type http2Conn struct {
	net.Conn
	*http2.Framer
	block   strings.Builder
	encoder *hpack.Encoder
	quiet   bool // acknowledges nothing: somebody else writes while we read
}

// dialHTTP2 opens a connection, says what has to be said first, and asks for nothing.
func dialHTTP2(tb testing.TB, w *world) *http2Conn {
	tb.Helper()
	return newHTTP2Conn(dial(tb, w))
}

func newHTTP2Conn(conn net.Conn) *http2Conn {
	c := &http2Conn{Conn: conn, Framer: http2.NewFramer(conn, conn)}
	c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.encoder = hpack.NewEncoder(&c.block)
	_, _ = io.WriteString(conn, http2.ClientPreface) // a failure shows when the answer is read
	_ = c.WriteSettings()
	return c
}

// encode is a block of fields, names in lower case.
func (c *http2Conn) encode(fields ...string) []byte {
	c.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = c.encoder.WriteField(hpack.HeaderField{Name: strings.ToLower(fields[i]), Value: fields[i+1]})
	}
	return []byte(c.block.String())
}

// headers writes a block of fields in as many frames as it takes. The proxy may have hung up: the answer tells.
func (c *http2Conn) headers(stream uint32, end bool, fields ...string) {
	const most = 16 << 10
	block := c.encode(fields...)
	n := min(len(block), most)
	_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block[:n], EndStream: end, EndHeaders: n == len(block)})
	for block = block[n:]; len(block) > 0; block = block[n:] {
		n = min(len(block), most)
		_ = c.WriteContinuation(stream, n == len(block), block[:n])
	}
}

// status is the answer to a stream: its :status, the code by which it was reset or the connection ended ("GOAWAY ..."), or
// "EOF".
func (c *http2Conn) status(tb testing.TB, stream uint32) string {
	tb.Helper()
	return c.answer(tb, stream).status
}

// http2Answer is the first block of an answer, or how there came to be none.
type http2Answer struct {
	status string
	header map[string]string
}

func (c *http2Conn) answer(tb testing.TB, stream uint32) http2Answer {
	tb.Helper()
	for {
		frame, err := c.ReadFrame()
		if err != nil {
			if os.IsTimeout(err) {
				tb.Errorf("no answer to stream %d: %v", stream, err)
			}
			return http2Answer{status: "EOF"}
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() && !c.quiet {
				_ = c.WriteSettingsAck()
			}
		case *http2.MetaHeadersFrame:
			if f.StreamID == stream {
				h := make(map[string]string)
				for _, hf := range f.RegularFields() {
					h[textproto.CanonicalMIMEHeaderKey(hf.Name)] = hf.Value
				}
				return http2Answer{f.PseudoValue("status"), h}
			}
		case *http2.RSTStreamFrame:
			if f.StreamID == stream {
				return http2Answer{status: f.ErrCode.String()}
			}
		case *http2.GoAwayFrame:
			return http2Answer{status: "GOAWAY " + f.ErrCode.String()}
		}
	}
}
