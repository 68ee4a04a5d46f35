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

// Services are named by their parts as well; whatever else is there must agree.
func TestResolveByParts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := w.publish(discovery.Service{Name: "one", OperationID: "1f-2e-3e803e8-4d", Alias: "*Notes"}, serve(t, echoJob("one")))
	two := w.publish(discovery.Service{Name: "two", OperationID: "2f-2e-3e803e8-4d"}, serve(t, echoJob("two")))
	w.publish(discovery.Service{Name: "пример/1", Task: "a task", OperationID: "2f-2e-3e803e8-4d"}, serve(t, echoJob("odd")))
	const (
		op, alias, task, service = "X-Yt-Taskproxy-Operation-Id: ", "X-Yt-Taskproxy-Operation-Alias: ", "X-Yt-Taskproxy-Task-Name: ", "X-Yt-Taskproxy-Service: "
		id                       = "X-Yt-Taskproxy-Id: "
		foreign                  = "10.0.0.1:8080"
		malformed                = "malformed_service_id"
	)
	for _, c := range []struct {
		name, host string
		header     []string
		want       string // the job, or the reason
	}{
		{"alias label", "notes-task-one." + base, nil, "one"},
		{"alias label in capitals", "NOTES-Task-one." + base + ".:1", nil, "one"},
		{"alias label of no service", "notes-task-two." + base, nil, "no_such_service"},
		{"alias alone", "notes." + base, nil, "no_such_service"},
		{"operation", foreign, []string{op + one.OperationID, task + "task", service + "one"}, "one"},
		{"operation on the own host", base, []string{op + two.OperationID, task + "task", service + "two"}, "two"},
		{"odd names", foreign, []string{op + two.OperationID, task + "a task", service + "пример/1"}, "odd"},
		{"alias in headers", foreign, []string{alias + "Notes", task + "task", service + "one"}, "one"},
		{"alias with its star", foreign, []string{alias + "*Notes", task + "task", service + "one"}, "one"},
		{"alias in other case", foreign, []string{alias + "notes", task + "task", service + "one"}, "no_such_service"},
		{"operation and alias", foreign, []string{op + one.OperationID, alias + "Notes", task + "task", service + "one"}, "one"},
		{"all ways", "notes-task-one." + base, []string{id + one.ID, op + one.OperationID, alias + "Notes", task + "task", service + "one"}, "one"},
		{"host and operation", host(two), []string{op + two.OperationID, task + "task", service + "two"}, "two"},

		{"no such operation", foreign, []string{op + "1-1-1-1", task + "task", service + "one"}, "no_such_service"},
		{"no such task", foreign, []string{op + one.OperationID, task + "tas", service + "kone"}, "no_such_service"},
		{"no such alias", foreign, []string{alias + "*x", task + "task", service + "one"}, "no_such_service"},

		{"another host", host(two), []string{op + one.OperationID, task + "task", service + "one"}, "ambiguous_service"},
		{"another alias host", "notes-task-one." + base, []string{op + two.OperationID, task + "task", service + "two"}, "ambiguous_service"},
		{"unknown host", "zz." + base, []string{op + one.OperationID, task + "task", service + "one"}, "ambiguous_service"},
		{"another id", foreign, []string{id + two.ID, op + one.OperationID, task + "task", service + "one"}, "ambiguous_service"},
		{"another alias", foreign, []string{op + two.OperationID, alias + "Notes", task + "task", service + "one"}, "ambiguous_service"},
		{"unknown alias", foreign, []string{op + one.OperationID, alias + "x", task + "task", service + "one"}, "ambiguous_service"},
		{"unknown operation", foreign, []string{op + "1-1-1-1", alias + "Notes", task + "task", service + "one"}, "ambiguous_service"},

		{"operation alone", host(one), []string{op + one.OperationID}, malformed},
		{"task alone", host(one), []string{task + "task"}, malformed},
		{"service alone on the own host", base, []string{service + "one"}, malformed},
		{"no operation", foreign, []string{task + "task", service + "one"}, malformed},
		{"no task", foreign, []string{op + one.OperationID, service + "one"}, malformed},
		{"no service", foreign, []string{alias + "Notes", task + "task"}, malformed},
		{"empty service", foreign, []string{op + one.OperationID, task + "task", service}, malformed},
		{"empty alias beside a good operation", foreign, []string{op + one.OperationID, alias, task + "task", service + "one"}, malformed},
		{"operation twice", foreign, []string{op + one.OperationID, op + one.OperationID, task + "task", service + "one"}, malformed},
		{"service twice", foreign, []string{op + one.OperationID, task + "task", service + "one", service + "one"}, malformed},
		{"operation in capitals", foreign, []string{op + "1F-2E-3E803E8-4D", task + "task", service + "one"}, malformed},
		{"operation with zeros", foreign, []string{op + "01f-2e-3e803e8-4d", task + "task", service + "one"}, malformed},
		{"operation with braces", foreign, []string{op + "{1f-2e-3e803e8-4d}", task + "task", service + "one"}, malformed},
		{"a star for an alias", foreign, []string{alias + "*", task + "task", service + "one"}, malformed},
		{"too long", foreign, []string{op + one.OperationID, task + "task", service + strings.Repeat("x", 257)}, malformed},
		{"as long as may be", foreign, []string{op + one.OperationID, task + "task", service + strings.Repeat("x", 256)}, "no_such_service"},
		{"underscores do not route", foreign, []string{"X_Yt_Taskproxy_Operation_Id: " + one.OperationID, "X_Yt_Taskproxy_Task_Name: task", "X_Yt_Taskproxy_Service: one"}, "no_such_service"},
	} {
		t.Run(c.name, func(t *testing.T) {
			res := w.do(w.request("GET", c.host, "/", nil, c.header...))
			got := res.Header.Get("X-Yt-Taskproxy-Error")
			if got == "" {
				got = res.echo(t).Job
			}
			if got != c.want {
				t.Errorf("got %s (%s), want %s", got, res.body, c.want)
			}
		})
	}
	t.Run("says what is missing", func(t *testing.T) {
		for missing, lines := range map[string][]string{
			"X-Yt-Taskproxy-Operation-Id": {task + "task", service + "one"},
			"X-Yt-Taskproxy-Task-Name":    {alias + "Notes", service + "one"},
			"X-Yt-Taskproxy-Service":      {op + one.OperationID, task + "task"},
		} {
			if res := w.get(base, "/", lines...); !strings.Contains(res.body, missing) {
				t.Errorf("without %s the answer is %q", missing, res.body)
			}
		}
	})
}

func TestIsOperationID(t *testing.T) {
	t.Parallel()
	f := func(s string, want bool) {
		t.Helper()
		if got := isOperationID(s); got != want {
			t.Errorf("isOperationID(%q) = %t", s, got)
		}
	}
	f("a6e04b98-bf982394-5103e8-55754a49", true)
	f("0-0-0-0", true)
	f("10-0-f00-1", true)
	f("", false)
	f("1-2-3", false)
	f("1-2-3-4-5", false)
	f("1-2-3-", false)
	f("-1-2-3", false)
	f("1--3-4", false)
	f("1-2-3-04", false)
	f("1-2-3-00", false)
	f("123456789-2-3-4", false)
	f("1-2-3-G", false)
	f("1-2-3-A", false)
	f("1-2-3-4 ", false)
}

// Whatever a request says: a service is resolved only if everything that names one names this one, and if all of it does
// it is.
func FuzzResolve(f *testing.F) {
	services := []discovery.Service{
		{OperationID: "1f-2e-3e803e8-4d", Task: "task", Name: "one", Alias: "*Notes"},
		{OperationID: "1f-2e-3e803e8-4d", Task: "task", Name: "two", Alias: "*Notes"},
		{OperationID: "2f-2e-3e803e8-4d", Task: "task", Name: "one"},
		{OperationID: "3f-2e-3e803e8-4d", Task: "task", Name: "one", Alias: "**Notes"},
	}
	snapshot, _ := discovery.NewSnapshot(nil, nil, services)
	bases, err := discovery.NewBases(base)
	if err != nil {
		f.Fatal(err)
	}
	names := []string{HeaderID, headerOperation, headerAlias, headerTask, headerService}
	for _, s := range snapshot.Services() {
		for present := range uint8(1 << len(names)) {
			f.Add(host(s), s.ID, s.OperationID, strings.TrimPrefix(s.Alias, "*"), s.Task, s.Name, present, uint8(0))
			f.Add("x.test", s.LongID, "1f-2e-3e803e8-4d", s.Alias, s.Task, "one", present, uint8(0))
			f.Add(s.AliasLabel+"."+base, s.ID, s.OperationID, "", "task", "", present, present>>1)
		}
	}
	f.Fuzz(func(t *testing.T, host, id, operation, alias, task, service string, present, twice uint8) {
		values := []string{id, operation, alias, task, service}
		r := &http.Request{Host: host, Header: http.Header{}}
		for i, name := range names {
			if present&(1<<i) != 0 {
				r.Header[name] = []string{values[i]}
				if twice&(1<<i) != 0 {
					r.Header[name] = append(r.Header[name], values[i])
				}
			}
		}
		has := func(name string) bool { return r.Header[name] != nil }
		name := readName(bases, r)
		got, err := name.resolve(snapshot)
		if (got == nil) != (err != nil) {
			t.Fatalf("resolved to %v, %v", got, err)
		}
		if name.home() && (got != nil || len(r.Header) > 0) {
			t.Errorf("the proxy's own page, beside %v", r.Header)
		}
		// named reports whether everything that is there names s, and something is.
		named := func(s *discovery.Service) bool {
			ok := len(r.Header) > 0
			if kind, label := bases.Classify(host); kind == discovery.HostService {
				ok = label != "" && (label == s.ID || label == s.LongID || label == s.AliasLabel)
			}
			for _, name := range names {
				ok = ok && len(r.Header[name]) < 2
			}
			if has(HeaderID) {
				ok = ok && (id == s.ID || id == s.LongID)
			}
			if has(headerOperation) {
				ok = ok && operation == s.OperationID
			}
			if has(headerAlias) {
				ok = ok && s.Alias != "" && (alias == s.Alias || "*"+alias == s.Alias && !strings.HasPrefix(alias, "*"))
			}
			if has(headerOperation) || has(headerAlias) || has(headerTask) || has(headerService) {
				ok = ok && (has(headerOperation) || has(headerAlias)) && has(headerTask) && has(headerService) && task == s.Task && service == s.Name
			}
			return ok
		}
		for _, s := range snapshot.Services() {
			if named(s) != (got == s) {
				t.Errorf("host %q, %q: resolved to %v, %v", host, r.Header, got, err)
			}
		}
	})
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
	for _, header := range []string{
		"X-Yt-Taskproxy-Id: " + s.ID,
		"X-Yt-Taskproxy-Operation-Id: " + s.OperationID + "\r\nX-Yt-Taskproxy-Task-Name: " + s.Task + "\r\nX-Yt-Taskproxy-Service: " + s.Name,
	} {
		a := w.raw("GET / HTTP/1.0\r\n" + header + "\r\nAuthorization: " + aliceOAuth + "\r\n\r\n")
		if a.StatusCode != 200 || a.echo(t).Job != "a" {
			t.Errorf("got %d %s", a.StatusCode, a.body)
		}
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

// ways are requests that name the same service, in the common ways.
func ways(s *discovery.Service) map[string]*http.Request {
	return map[string]*http.Request{
		"host":       {Host: host(s)},
		"alias host": {Host: s.AliasLabel + "." + base},
		"id":         {Host: "10.0.0.1:80", Header: http.Header{HeaderID: {s.ID}}},
		"both":       {Host: host(s), Header: http.Header{HeaderID: {s.ID}}},
		"operation":  {Host: "10.0.0.1:80", Header: http.Header{headerOperation: {s.OperationID}, headerTask: {s.Task}, headerService: {s.Name}}},
		"alias":      {Host: "10.0.0.1:80", Header: http.Header{headerAlias: {s.Alias}, headerTask: {s.Task}, headerService: {s.Name}}},
	}
}

func manyServices() *discovery.Snapshot {
	services := make([]discovery.Service, 10_000)
	for i := range services {
		services[i] = discovery.Service{OperationID: fmt.Sprintf("1-2-3e8-%x", i), Alias: fmt.Sprintf("*a%d", i), Task: "t", Name: "ui", Protocol: discovery.HTTP}
	}
	snapshot, _ := discovery.NewSnapshot(nil, nil, services)
	return snapshot
}

func TestResolveDoesNotAllocate(t *testing.T) {
	bases, _ := discovery.NewBases(base)
	snapshot := manyServices()
	for name, r := range ways(snapshot.Services()[5000]) {
		if n := testing.AllocsPerRun(100, func() { n := readName(bases, r); _, _ = n.resolve(snapshot) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkResolve(b *testing.B) {
	bases, _ := discovery.NewBases(base)
	snapshot := manyServices()
	s := snapshot.Services()[5000]
	for name, r := range ways(s) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				name := readName(bases, r)
				if got, err := name.resolve(snapshot); got != s || err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
