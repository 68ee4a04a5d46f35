package proxy

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"taskproxy/discovery"
)

func TestResolve(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := w.publish(discovery.Service{Name: "one"}, serve(t, echoJob("one")))
	two := w.publish(discovery.Service{Name: "two"}, serve(t, echoJob("two")))
	id := func(s string) string { return "X-Yt-Taskproxy-Id: " + s }
	for _, c := range []struct {
		name, host string
		header     []string
		want       string // the job, or the reason
	}{
		{"host", host(one), nil, "one"},
		{"host with case, port and dot", strings.ToUpper(host(one)) + ".:99", nil, "one"},
		{"long id", discovery.Domain(one.LongID, base), nil, "one"},
		{"header on a foreign host", "10.0.0.1:8080", []string{id(two.ID)}, "two"},
		{"header on the own host", base, []string{id(two.LongID)}, "two"},
		{"both agree", host(one), []string{id(one.ID)}, "one"},
		{"both agree, long and short", host(one), []string{id(one.LongID)}, "one"},
		{"conflict", host(one), []string{id(two.ID)}, "ambiguous_service"},
		{"unknown label beside a header", "zz." + base, []string{id(two.ID)}, "ambiguous_service"},
		{"unknown header beside a label", host(one), []string{id("00000000")}, "ambiguous_service"},
		{"unknown both", "00000000." + base, []string{id("00000000")}, "ambiguous_service"},
		{"unknown label", "zz." + base, nil, "no_such_service"},
		{"unknown header", base, []string{id("00000000")}, "no_such_service"},
		{"foreign", "elsewhere.test", nil, "no_such_service"},
		{"suffix without a dot", "x" + base, nil, "no_such_service"},
		{"two labels", "a." + host(one), nil, "no_such_service"},
		{"twice", host(one), []string{id(one.ID), id(one.ID)}, "malformed_service_id"},
		{"two in one", base, []string{id(one.ID + ", " + two.ID)}, "malformed_service_id"},
		{"upper case", base, []string{id("ABCDEF01")}, "malformed_service_id"},
		{"too short", base, []string{id("abc")}, "malformed_service_id"},
		{"empty", host(one), []string{"X-Yt-Taskproxy-Id: "}, "malformed_service_id"},
		{"other routing header", host(one), []string{"X-Yt-Taskproxy-Operation-Id: 1-2-3e8-1"}, "malformed_service_id"},
		{"X-Forwarded-Host does not route", host(one), []string{"X-Forwarded-Host: " + host(two)}, "one"},
		{"Forwarded does not route", "elsewhere.test", []string{"Forwarded: host=" + host(two)}, "no_such_service"},
		{"X-Forwarded-Host alone does not route", "elsewhere.test", []string{"X-Forwarded-Host: " + host(two)}, "no_such_service"},
		{"underscores do not route", host(one), []string{"X_Yt_Taskproxy_Id: " + two.ID}, "one"},
		{"underscores alone do not route", "elsewhere.test", []string{"X_Yt_Taskproxy_Id: " + two.ID}, "no_such_service"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := w.request("GET", c.host, "/", nil, c.header...)
			res := w.do(r)
			got := res.Header.Get("X-Yt-Taskproxy-Error")
			if got == "" {
				got = res.echo(t).Job
			}
			if got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// Of an absolute-form target and a Host header, the target is the one name that decides, at us and at the job.
func TestAbsoluteFormDecides(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := w.publish(discovery.Service{Name: "one"}, serve(t, echoJob("one")))
	two := w.publish(discovery.Service{Name: "two"}, serve(t, echoJob("two")))
	a := w.raw(fmt.Sprintf("GET http://%s/p?q HTTP/1.1\r\nHost: %s\r\nAuthorization: %s\r\nConnection: close\r\n\r\n", host(one), host(two), aliceOAuth))
	if e := a.echo(t); e.Job != "one" || e.Host != host(one) || e.Target != "/p?q" {
		t.Errorf("the job saw %+v", e)
	}
	a = w.raw(fmt.Sprintf("GET http://%s/ HTTP/1.1\r\nHost: %s\r\nX-Yt-Taskproxy-Id: %s\r\nAuthorization: %s\r\nConnection: close\r\n\r\n", host(one), host(two), two.ID, aliceOAuth))
	a.check(t, 400, "ambiguous_service")
	a = w.raw(fmt.Sprintf("GET http://%s?q HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\nConnection: close\r\n\r\n", host(one), aliceOAuth))
	if e := a.echo(t); e.Target != "/?q" {
		t.Errorf("empty path became %q", e.Target)
	}
}

// Targets that net/http lets through and that are ours to refuse.
func TestRefusedTargets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("reached the job: %s %s", r.Method, r.RequestURI)
	}))
	for _, c := range []struct{ name, line, reason string }{
		{"fragment", "GET /a#b HTTP/1.1", "bad_request_target"},
		{"fragment in the query", "GET /a?x#b HTTP/1.1", "bad_request_target"},
		{"opaque", "GET foo:bar HTTP/1.1", "bad_request_target"},
		{"CONNECT", "CONNECT example.com:443 HTTP/1.1", "bad_request_target"},
		{"CONNECT with a path", "CONNECT /x HTTP/1.1", "bad_request_target"},
		{"asterisk", "OPTIONS * HTTP/1.1", "bad_request_target"},
		{"userinfo", "GET http://u:p@" + host(s) + "/ HTTP/1.1", "bad_request_target"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.raw(c.line+"\r\nHost: "+host(s)+"\r\nAuthorization: "+aliceOAuth+"\r\nConnection: close\r\n\r\n").check(t, 400, c.reason)
		})
	}
	t.Run("no host", func(t *testing.T) {
		w.raw("GET / HTTP/1.0\r\nAuthorization: "+aliceOAuth+"\r\n\r\n").check(t, 400, "bad_host")
	})
	for _, c := range []struct{ name, text string }{
		{"no leading slash", "GET a HTTP/1.1\r\nHost: x\r\n\r\n"},
		{"two hosts", "GET / HTTP/1.1\r\nHost: " + host(s) + "\r\nHost: x\r\n\r\n"},
		{"userinfo in Host", "GET / HTTP/1.1\r\nHost: u@" + host(s) + "\r\n\r\n"},
		{"bad escape", "GET /%zz HTTP/1.1\r\nHost: " + host(s) + "\r\n\r\n"},
		{"NUL", "GET /\x00 HTTP/1.1\r\nHost: " + host(s) + "\r\n\r\n"},
		{"unequal lengths", "POST / HTTP/1.1\r\nHost: " + host(s) + "\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"},
		{"space before the colon", "GET / HTTP/1.1\r\nHost : " + host(s) + "\r\n\r\n"},
		{"leading fold", "GET / HTTP/1.1\r\n X: y\r\nHost: " + host(s) + "\r\n\r\n"},
	} {
		t.Run("by net/http: "+c.name, func(t *testing.T) {
			if a := w.raw(strings.Replace(c.text, "\r\n\r\n", "\r\nAuthorization: "+aliceOAuth+"\r\n\r\n", 1)); a.StatusCode != 400 {
				t.Errorf("got %d", a.StatusCode)
			}
		})
	}
}

func TestHeaderInsteadOfHostOverHTTP10(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, echoJob("a")))
	a := w.raw("GET / HTTP/1.0\r\nX-Yt-Taskproxy-Id: " + s.ID + "\r\nAuthorization: " + aliceOAuth + "\r\n\r\n")
	if a.StatusCode != 200 || a.echo(t).Job != "a" {
		t.Errorf("got %d %s", a.StatusCode, a.body)
	}
}

// HTTP/2 can say things that no HTTP library sends: a Host beside :authority, an absolute :path.
func TestHTTP2Names(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := w.publish(discovery.Service{Name: "one"}, serve(t, echoJob("one")))
	two := w.publish(discovery.Service{Name: "two"}, serve(t, func(http.ResponseWriter, *http.Request) { t.Error("reached the other job") }))
	for _, c := range []struct {
		name   string
		fields [][2]string
		status string
	}{
		{"authority", [][2]string{{":authority", host(one)}, {":path", "/"}}, "200"},
		{"host alone", [][2]string{{":path", "/"}, {"host", host(one)}}, "200"},
		{"host agrees", [][2]string{{":authority", host(one)}, {":path", "/"}, {"host", host(one)}}, "200"},
		{"host differs", [][2]string{{":authority", host(one)}, {":path", "/"}, {"host", host(two)}}, "400"},
		{"two hosts", [][2]string{{":path", "/"}, {"host", host(one)}, {"host", host(two)}}, "400"},
		{"absolute path", [][2]string{{":authority", host(one)}, {":path", "http://" + host(two) + "/"}}, "400"},
		{"asterisk", [][2]string{{":authority", host(one)}, {":path", "*"}}, "400"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := rawHTTP2(t, w.addr, c.fields); got != c.status {
				t.Errorf("got %s, want %s", got, c.status)
			}
		})
	}
}

// A space in an HTTP/2 :path must not end the target in an HTTP/1.1 request line.
func TestHTTP2PathCannotSplitTheRequestLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	targets := make(chan string, 1)
	s := w.publish(discovery.Service{}, serve(t, func(_ http.ResponseWriter, r *http.Request) { targets <- r.RequestURI }))
	fields := [][2]string{{":authority", host(s)}, {":path", "/a b?c HTTP/1.1 d"}}
	if got := rawHTTP2(t, w.addr, fields); got != "200" {
		t.Fatalf("got %s", got)
	}
	if got, want := <-targets, "/a%20b?c%20HTTP/1.1%20d"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// rawHTTP2 sends one GET as alice with the given fields and returns the answer's :status.
func rawHTTP2(t *testing.T, addr string, fields [][2]string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_ = framer.WriteSettings()
	var block strings.Builder
	encoder := hpack.NewEncoder(&block)
	all := [][2]string{{":method", "GET"}, {":scheme", "http"}}
	for _, f := range append(append(all, fields...), [2]string{"authorization", aliceOAuth}) {
		_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte(block.String()), EndStream: true, EndHeaders: true})
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			return f.PseudoValue("status")
		case *http2.RSTStreamFrame:
			return f.ErrCode.String()
		}
	}
}

func BenchmarkResolve(b *testing.B) {
	bases, _ := discovery.NewBases(base)
	services := make([]discovery.Service, 10_000)
	for i := range services {
		services[i] = discovery.Service{OperationID: fmt.Sprintf("1-2-3e8-%x", i), Task: "t", Name: "ui", Protocol: discovery.HTTP}
	}
	snapshot, _ := discovery.NewSnapshot(nil, services)
	s := snapshot.Services()[5000]
	r := &http.Request{Host: host(s), Header: http.Header{"X-Yt-Taskproxy-Id": {s.ID}}}
	b.ReportAllocs()
	for b.Loop() {
		name := readName(bases, r)
		if got, err := name.resolve(snapshot); got != s || err != nil {
			b.Fatal(err)
		}
	}
}
