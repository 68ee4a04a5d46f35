package proxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"taskproxy/discovery"
)

// What a job may not say, in each of the three places where it can say it: headers, a 1xx answer, trailers.
func TestWhatAJobMayNotSay(t *testing.T) {
	t.Parallel()
	const (
		forbidden = "X-Yt-Taskproxy-Error: forged\r\nX-Yt-Taskproxy-User: root\r\nAlt-Svc: h2=\"evil.test:443\"\r\nClear-Site-Data: \"*\"\r\n" +
			"Set-Cookie: YTCypressCookie=evil; Path=/\r\nSet-Cookie: ytcypresscookie=evil\r\nSet-Cookie: =YTCypressCookie=evil\r\nSet-Cookie: evil\r\n" +
			"Set-Cookie: alpha_YTCypressCookie=evil; Path=/\r\nSet-Cookie: yt_oauth_access_token=evil\r\nSet-Cookie: x YTCypressCookie=evil\r\n" +
			"X-Request-Id: evil\r\nX-Accel-Redirect: /evil\r\nX_Accel_Redirect: /evil\r\nx.accel.expires: evil\r\n" +
			"X-Sendfile: /evil\r\nX-SendFile2: /evil\r\nX_Sendfile: /evil\r\nX-Lighttpd-Send-File: /evil\r\nX-Reproxy-Url: evil\r\nX-REPROXY-FILE: evil\r\n" +
			"X-Envoy-Immediate-Health-Check-Fail: evil\r\nx_envoy_degraded: evil\r\nX-Envoy-Upstream-Alt-Stat-Name: evil\r\n" +
			"Www-Authenticate: Negotiate evil\r\nStrict-Transport-Security: includeSubDomains\r\n"
		allowed = "Set-Cookie: a=1; Domain=.proxy.test; Path=/\r\nX-Fine: yes\r\nX-Accel-Buffering: no\r\nX-Sender: me\r\n"
	)
	w := newWorld(t)
	s := w.publish(discovery.Service{}, rawAnswer(t, "HTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\n"+forbidden+allowed+"\r\n"+
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\nTrailer: X-Sum, Alt-Svc\r\n"+forbidden+allowed+"\r\n"+
		"2\r\nok\r\n0\r\nX-Sum: 42\r\n"+forbidden+allowed+"\r\n"))

	var early http.Header
	r := w.request("GET", host(s), "/", nil, "X-Request-Id: mine")
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(_ int, h textproto.MIMEHeader) error { early = http.Header(h).Clone(); return nil },
	}))
	a := w.do(r)
	for part, h := range map[string]http.Header{"1xx": early, "header": a.Header, "trailer": a.Trailer} {
		if got := h["Set-Cookie"]; !slices.Equal(got, []string{"a=1; Path=/"}) {
			t.Errorf("%s: cookies %q", part, got)
		}
		if part != "1xx" && (h.Get("X-Sender") != "me" || part == "header" && h.Get("X-Accel-Buffering") != "no") {
			t.Errorf("%s: what is fine did not come through: %v", part, h)
		}
		for name, values := range h {
			if strings.HasPrefix(name, "X-Yt-") || slices.Contains([]string{"Alt-Svc", "Clear-Site-Data", "Strict-Transport-Security", "Www-Authenticate"}, name) || strings.Contains(strings.Join(values, " "), "evil") {
				t.Errorf("%s: %s %q came through", part, name, values)
			}
		}
	}
	if early.Get("Link") == "" {
		t.Errorf("the 103 lost its Link: %v", early)
	}
	if got := a.Header["X-Request-Id"]; !slices.Equal(got, []string{"mine"}) {
		t.Errorf("request id %q", got)
	}
	if a.Trailer.Get("X-Sum") != "42" || a.Trailer.Get("X-Fine") != "yes" {
		t.Errorf("trailers %v", a.Trailer)
	}
}

// On a host that services share, a job speaks for none of what belongs to the host.
func TestWhatAJobMayNotSayOfASharedHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, func(rw http.ResponseWriter, _ *http.Request) {
		for _, name := range []string{"Set-Cookie", "Service-Worker-Allowed", "Report-To", "Reporting-Endpoints", "Nel", "Strict-Transport-Security", "X-Fine"} {
			rw.Header().Set(name, "a=1")
		}
	}))
	for h, want := range map[string]int{host(s): 7, base: 1, "127.0.0.1": 1} {
		a := w.get(h, "/", "X-Yt-Taskproxy-Id: "+s.ID)
		n := 0
		for _, values := range a.Header {
			if slices.Equal(values, []string{"a=1"}) {
				n++
			}
		}
		if n != want || a.Header.Get("X-Fine") == "" {
			t.Errorf("%s: %d headers came through, want %d: %v", h, n, want, a.Header)
		}
	}
}

func TestCleanValues(t *testing.T) {
	t.Parallel()
	bases, _ := discovery.NewBases(base)
	ru := &rules{cookie: cookieName, bases: bases}
	x := &exchange{in: &http.Request{Host: "abcd1234." + base}}
	f := func(name, in, want string) {
		t.Helper()
		if got := strings.Join(ru.cleanValues(name, []string{in}, x), "|"); got != want {
			t.Errorf("%s: %q became %q, want %q", name, in, got, want)
		}
	}
	f("Set-Cookie", "a=1", "a=1")
	f("Set-Cookie", "a=1; Domain=proxy.test", "a=1")
	f("Set-Cookie", "a=1;\tdOMAIN = .proxy.test ;Secure; HttpOnly", "a=1;Secure; HttpOnly")
	f("Set-Cookie", "a=1; domain", "a=1")
	f("Set-Cookie", `a="x; Domain=proxy.test"; Secure`, `a="x; Secure`)
	f("Set-Cookie", " YTCypressCookie =x", "")
	f("Set-Cookie", "; Domain=x", "")

	f("Www-Authenticate", `Basic realm="a, Negotiate"`, `Basic realm="a, Negotiate"`)
	f("Www-Authenticate", "Negotiate", "")
	f("Www-Authenticate", "Negotiate =abc", "")
	f("Www-Authenticate", "NTLM TlRMTVNTUAAC", "")
	f("Www-Authenticate", `negotiate, Basic realm="x", charset="UTF-8"`, `Basic realm="x", charset="UTF-8"`)
	f("Www-Authenticate", `Basic realm="x", charset = "UTF-8", NTLM`, `Basic realm="x", charset = "UTF-8"`)
	f("Www-Authenticate", `Negotiate abc==, Bearer error="x"`, `Bearer error="x"`)

	f("Strict-Transport-Security", "max-age=1; includeSubDomains; preload", "max-age=1; preload")
	f("Strict-Transport-Security", " INCLUDESUBDOMAINS ;max-age=1", "max-age=1")
	f("Strict-Transport-Security", "includeSubDomains", "")

	f("Location", "/x", "/x")
	f("Location", "http://abcd1234.proxy.test/x?y#z", "/x?y#z")
	f("Location", "HTTPS://ABCD1234.proxy.test:4040/x", "/x")
	f("Location", "http://abcd1234.proxy.test.", "/")
	f("Location", "http://abcd1234.proxy.test?a", "/?a")
	f("Location", "http://other.proxy.test/x", "http://other.proxy.test/x")
	f("Location", "http://abcd1234.proxy.test//evil.test", "http://abcd1234.proxy.test//evil.test")
	f("Location", "http://abcd1234.proxy.test/\\evil.test", "http://abcd1234.proxy.test/\\evil.test")
	f("Location", "http://abcd1234.proxy.test/\t/evil.test", "http://abcd1234.proxy.test/\t/evil.test")
	f("Location", "http://u@abcd1234.proxy.test/x", "http://u@abcd1234.proxy.test/x")
	f("Location", "ftp://abcd1234.proxy.test/x", "ftp://abcd1234.proxy.test/x")

	x.in.Host = "127.0.0.1:8080"
	f("Location", "http://127.0.0.1:8080/x", "/x")
	f("Location", "http://127.0.0.1:9999/x", "http://127.0.0.1:9999/x")
}

// However a job writes it, a redirect that we made relative leads back to the host that the caller used, and one that we left
// alone is the job's own words.
func FuzzLocation(f *testing.F) {
	bases, _ := discovery.NewBases(base)
	ru := &rules{bases: bases}
	const h = "abcd1234." + base
	f.Add("http://" + h + "/x")
	f.Add("https://" + h + "//evil.test/")
	f.Add("http://" + h + `/\evil.test`)
	f.Add("http://" + h + ":1/?#")
	f.Add("http://evil.test/@" + h)
	from := &url.URL{Scheme: "https", Host: h, Path: "/dir/page"}
	f.Fuzz(func(t *testing.T, in string) {
		got := ru.relativeLocation(in, h)
		if got == in {
			return
		}
		// A browser removes tabs and line breaks and takes "\" for "/".
		seen := strings.NewReplacer("\t", "", "\r", "", "\n", "", `\`, "/").Replace(got)
		if !strings.HasPrefix(seen, "/") || strings.HasPrefix(seen, "//") {
			t.Fatalf("%q became %q", in, got)
		}
		u, err := url.Parse(got)
		if err != nil {
			return
		}
		if u = from.ResolveReference(u); u.Host != h || u.Scheme != "https" {
			t.Fatalf("%q became %q, which leads to %s", in, got, u)
		}
	})
}

func FuzzSetCookie(f *testing.F) {
	ru := &rules{cookie: cookieName}
	f.Add("a=1; Domain=x")
	f.Add("YTCypressCookie=x")
	f.Add("alpha_YTCypressCookie=x")
	f.Add("=YTCypressCookie=x")
	f.Add("yt_taskproxy_affinity=x")
	f.Fuzz(func(t *testing.T, in string) {
		got, ok := ru.cleanSetCookie(in)
		if !ok {
			return
		}
		c, err := http.ParseSetCookie(got)
		if err != nil {
			return
		}
		name := "_" + strings.ToLower(c.Name)
		if strings.HasSuffix(name, "_"+strings.ToLower(cookieName)) || strings.HasSuffix(name, "_"+affinityCookie) || c.Domain != "" {
			t.Fatalf("%q became %q: %+v", in, got, c)
		}
	})
}

// A job that changes protocols although nobody asked, or answers with a status that net/http cannot write.
func TestAnswersThatAreNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, text := range map[string]string{
		"unasked 101":  "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		"bare 101":     "HTTP/1.1 101 Switching Protocols\r\n\r\n",
		"status 099":   "HTTP/1.1 099 Odd\r\nContent-Length: 0\r\n\r\n",
		"no HTTP":      "SSH-2.0-OpenSSH\r\n",
		"two lengths":  "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"huge headers": "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 2<<20) + "\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := w.publish(discovery.Service{}, rawAnswer(t, text))
			a := w.get(host(s), "/")
			if reason := a.Header.Get("X-Yt-Taskproxy-Error"); a.StatusCode != 502 || reason != "bad_answer" && reason != "upstream_broken" {
				t.Errorf("got %d %q", a.StatusCode, reason)
			}
		})
	}
}

// Over HTTP/2 a 101 looks like any other 1xx to net/http, which would pass it on.
func TestUnasked101OverHTTP2(t *testing.T) {
	t.Parallel()
	l := listen(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.CopyN(io.Discard, conn, int64(len(http2.ClientPreface)))
		framer := http2.NewFramer(conn, conn)
		_ = framer.WriteSettings()
		for {
			frame, err := framer.ReadFrame()
			if err != nil {
				return
			}
			if _, ok := frame.(*http2.HeadersFrame); ok {
				var block strings.Builder
				_ = hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: ":status", Value: "101"})
				_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte(block.String()), EndHeaders: true})
			}
		}
	}()
	w := newWorld(t)
	s := w.publish(discovery.Service{Protocol: discovery.GRPC}, l.Addr().String())
	w.get(host(s), "/").check(t, 502, "bad_answer")
	w.proxy.Close()
	l.Close()
	<-done
}

// A body of unknown length reaches the caller as it is written, and an answer may begin while the request's body is
// still coming.
func TestStreamsBothWays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, func(rw http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(rw)
		_ = rc.EnableFullDuplex()
		rw.WriteHeader(200)
		_ = rc.Flush()
		buf := make([]byte, 16)
		for {
			n, err := r.Body.Read(buf)
			if n > 0 {
				_, _ = rw.Write(buf[:n])
				_ = rc.Flush()
			}
			if err != nil {
				return
			}
		}
	}))
	body, send := io.Pipe()
	res, err := w.client.Do(w.request("POST", host(s), "/", body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	buf := make([]byte, 16)
	for i := range 3 {
		word := fmt.Sprintf("word %d", i)
		if _, err := io.WriteString(send, word); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(res.Body, buf[:len(word)]); err != nil || string(buf[:len(word)]) != word {
			t.Fatalf("got %q, %v", buf[:len(word)], err)
		}
	}
	send.Close()
	if rest, err := io.ReadAll(res.Body); err != nil || len(rest) > 0 {
		t.Errorf("rest %q, %v", rest, err)
	}
}

func TestHead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, func(rw http.ResponseWriter, _ *http.Request) { rw.Header().Set("Content-Length", "1234") }))
	a := w.do(w.request("HEAD", host(s), "/", nil))
	if a.StatusCode != 200 || a.ContentLength != 1234 || a.body != "" {
		t.Errorf("got %d, length %d, %q", a.StatusCode, a.ContentLength, a.body)
	}
	a = w.do(w.request("HEAD", "zz."+base, "/", nil))
	a.check(t, 404, "no_such_service")
	if a.body != "" || a.ContentLength <= 0 {
		t.Errorf("got length %d, %q", a.ContentLength, a.body)
	}
}

// Expect: 100-continue is the job's to answer.
func TestExpectContinue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// The guard reads bodies to their end, and reading is what says 100.
	s := w.publish(discovery.Service{}, serveUnguarded(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			rw.WriteHeader(http.StatusForbidden)
			return
		}
		echoJob("a")(rw, r)
	})))
	ask := func(path string) (net.Conn, string) {
		conn, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: %s\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", path, host(s), aliceOAuth)
		line := make([]byte, len("HTTP/1.1 100"))
		if _, err := io.ReadFull(conn, line); err != nil {
			t.Fatal(err)
		}
		return conn, string(line)
	}
	conn, line := ask("/no")
	conn.Close()
	if line != "HTTP/1.1 403" {
		t.Errorf("got %q", line)
	}
	conn, line = ask("/yes")
	defer conn.Close()
	if line != "HTTP/1.1 100" {
		t.Fatalf("got %q", line)
	}
	fmt.Fprint(conn, "hello")
	buf := make([]byte, 4096)
	var got strings.Builder
	for !strings.Contains(got.String(), `"Body":"hello"`) {
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatalf("%v after %q", err, got.String())
		}
		got.Write(buf[:n])
	}
}
