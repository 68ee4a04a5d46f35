package proxy

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"taskproxy/auth"
	"taskproxy/discovery"
	"taskproxy/ytclient"
)

// The property of the two targets below: whatever a caller sends, a job is called only after its very service was authorized
// for that very login, once for each call; and what the job reads names no other service, holds no credential, and can be read
// in one way.

// referee hears of each decision and of each call of a job, and compares them.
type referee struct {
	table    *Table
	bases    discovery.Bases
	addr     string
	services []*discovery.Service
	events   journal
	faults   journal      // what was wrong; a fuzz target's goroutines may not say so themselves
	busy     atomic.Int64 // connections and handlers that are not done
	answered atomic.Int64 // by jobs
}

// The permission that a service requires says which one it is, since that is what the authorizer is told.
func permissionOf(name string) ytclient.Permission { return ytclient.Permission("for " + name) }

func newReferee(tb testing.TB) *referee {
	tb.Helper()
	r := &referee{table: NewTable()}
	var services []discovery.Service
	for _, s := range []struct{ name, operation, alias string }{
		{"one", "1f-2e-3e803e8-a", "*notes"}, {"two", "1f-2e-3e803e8-a", "*notes"}, {"three", "2f-2e-3e803e8-b", "*other"}, {"four", "3f-2e-3e803e8-c", ""},
	} {
		job := newStrictJob(tb, s.name)
		job.bodies, job.errorf = true, r.faultf
		service := discovery.Service{OperationID: s.operation, Alias: s.alias, Task: "t", Name: s.name, Protocol: discovery.HTTP, User: "alice",
			Permissions: []ytclient.Permission{permissionOf(s.name)}, Endpoints: []discovery.Endpoint{{JobID: s.name, Addr: job.addr}}}
		job.calls = func(request string) { r.answered.Add(1); r.called(service, request) }
		services = append(services, service)
	}
	snapshot, problems := discovery.NewSnapshot(nil, nil, services)
	if len(problems) > 0 {
		tb.Fatal(problems)
	}
	r.table.Store(snapshot)
	r.services = snapshot.Services()
	var err error
	if r.bases, err = discovery.NewBases(base); err != nil {
		tb.Fatal(err)
	}
	authorizer := people()
	authorizer.authorize = func(_ context.Context, login, operation string, permissions []ytclient.Permission) (auth.Decision, error) {
		// alice may have all but four, bob may have four.
		name := strings.TrimPrefix(string(permissions[0]), "for ")
		if (login == "alice") == (name == "four") {
			return auth.Decision{}, auth.ErrDenied
		}
		r.events.add(login + " may have " + operation + " " + name)
		return auth.Decision{}, nil
	}
	p, err := New(Config{Bases: r.bases, Table: r.table, Authorizer: authorizer, AuthCookieName: cookieName})
	if err != nil {
		tb.Fatal(err)
	}
	server := NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.busy.Add(1)
		defer r.busy.Add(-1)
		p.ServeHTTP(w, req)
	}), nil)
	server.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			r.busy.Add(1)
		case http.StateClosed, http.StateHijacked:
			r.busy.Add(-1)
		}
	}
	l := listen(tb)
	r.addr = l.Addr().String()
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	tb.Cleanup(func() { server.Close(); <-done; p.Close() })
	return r
}

func (r *referee) faultf(format string, args ...any) { r.faults.add(fmt.Sprintf(format, args...)) }

// called judges a call of a service's job by the last decision, which must have come since the last call. (No call need
// follow a decision: a caller may break a request in the middle.)
func (r *referee) called(s discovery.Service, request string) {
	decided := r.events.take()
	if len(decided) == 0 {
		r.faultf("no decision for a call of %s:\n%s", s.Name, request)
		return
	}
	login, what, _ := strings.Cut(decided[len(decided)-1], " may have ")
	if what != s.OperationID+" "+s.Name {
		r.faultf("the caller may have %s, and %s was called:\n%s", what, s.Name, request)
	}
	head, _, _ := strings.Cut(request, "\r\n\r\n")
	_, head, _ = strings.Cut(head, "\r\n")
	for line := range strings.SplitSeq(head, "\r\n") {
		name, value, _ := strings.Cut(line, ": ")
		switch {
		case name == UserHeader:
			if value != login {
				r.faultf("%s reads the login %q of %s", s.Name, value, login)
			}
			login = "" // once
		case hasFoldedPrefix(name, "x-yt-taskproxy-"):
			r.faultf("%s reads %q", s.Name, line)
		case name == "Host":
			// A reader of its own: the first label, if the rest is the base domain.
			label, rest, _ := strings.Cut(strings.ToLower(value), ".")
			rest, _, _ = strings.Cut(rest, ":")
			if other := r.table.Load().Lookup(label); strings.TrimSuffix(rest, ".") == base && other != nil && other.Name != s.Name {
				r.faultf("%s reads the host of %s:\n%s", s.Name, other.Name, request)
			}
		}
	}
}

// silence is how long a proxy that does not close a connection must have waited for more to be told that there is no more. None of the
// seeds comes to that, so that it is long for them, and a busy machine's pause is not taken for it.
var silence = sync.OnceValue(func() time.Duration {
	if fuzz := flag.Lookup("test.fuzz"); fuzz != nil && fuzz.Value.String() != "" {
		return 30 * time.Millisecond
	}
	return time.Minute
})

// exchange sends bytes on a connection and waits until the proxy closes it. When it goes on waiting for more, there is no more.
func (r *referee) exchange(t *testing.T, text string) {
	t.Helper()
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(silence()))
	_, _ = io.WriteString(conn, text)
	if _, err := io.Copy(io.Discard, conn); os.IsTimeout(err) {
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		_ = conn.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, conn)
		time.Sleep(10 * time.Millisecond) // a job may still read a request whose caller is gone
	}
	conn.Close()
	r.wait(t)
}

// wait returns when everything about the connections so far is over.
func (r *referee) wait(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); r.busy.Load() > 0; time.Sleep(50 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Fatal("an exchange does not end")
		}
	}
	r.events.take() // a decision that no call followed: the job's connection or the caller's had ended
	for _, fault := range r.faults.take() {
		t.Error(fault)
	}
}

// script reads choices from a fuzzer's bytes.
type script struct {
	bytes []byte
	raw   string
}

func (s *script) next() int {
	if len(s.bytes) == 0 {
		return 0
	}
	b := s.bytes[0]
	s.bytes = s.bytes[1:]
	return int(b)
}

// one chooses of a list; "raw" stands for the fuzzer's own text.
func (s *script) one(list []string) string {
	item := list[s.next()%len(list)]
	if item == "raw" {
		return s.raw
	}
	return item
}

// vocabulary is what requests are made of. The first choice of each list is what a good request has.
type vocabulary struct {
	methods, targets, hosts, names, values, credentials, bodies []string
}

func (r *referee) vocabulary() vocabulary {
	v := vocabulary{
		methods: []string{"GET", "POST", "HEAD", "PUT", "OPTIONS", "CONNECT", "PRI", "raw"},
		targets: []string{"/", "/a%2fb?c=d", "*", "/a#b", "a", "foo:bar", "raw", "/raw"},
		names: []string{"X-Yt-Taskproxy-Id", "x-yt-taskproxy-operation-id", "X-YT-TASKPROXY-OPERATION-ALIAS", "X-Yt-Taskproxy-Task-Name", "X-Yt-Taskproxy-Service",
			"X_Yt_Taskproxy_Id", "X-Yt.Taskproxy-Id", "Host", "X-Forwarded-Host", "Forwarded", "X-Original-Url", "Connection", "Upgrade", "HTTP2-Settings", "Te", "Trailer",
			"Content-Length", "Transfer-Encoding", "Content_Length", "Expect", "X-Yt-Taskproxy-User", "X_Yt_Taskproxy_User", "Sec-Fetch-Site", "Origin", "Content-Type", "raw"},
		values: []string{"", "t", "one", "three", "four", "close", "keep-alive, Upgrade", "Upgrade, HTTP2-Settings", "X-Yt-Taskproxy-User, Host", "websocket", "h2c", "trailers",
			"chunked", "gzip, chunked", "0", "5", "100", "100-continue", "same-origin", "application/grpc", "alice", "root", "raw"},
		credentials: []string{"Authorization: " + aliceOAuth, "authorization: bearer of-the-page", "Authorization: OAuth " + bobToken, "Authorization: OAuth\t" + aliceToken,
			"Authorization: Basic YTpi", "X-Yt-Taskproxy-Authorization: " + aliceOAuth, "X-YT-Taskproxy-Authorization: Bearer " + bobToken, "X_Yt_Taskproxy_Authorization: " + aliceOAuth,
			"Cookie: " + cookieName + "=" + aliceToken, "cookie: a=1; " + cookieName + "=" + bobToken, "Cookie: " + cookieName + " " + aliceToken, "X-Csrf-Token: s3cret",
			"Proxy-Authorization: " + aliceOAuth},
		bodies: []string{"", "hello", "5\r\nhello\r\n0\r\n\r\n", "5\r\nhello\r\n0\r\nX-Yt-Taskproxy-Id: 0\r\nX-Sum: 1\r\n\r\n", "0\r\n\r\n", "raw"},
	}
	for _, s := range r.services {
		hosts := []string{host(s), discovery.Domain(s.LongID, base), strings.ToUpper(host(s)), host(s) + ".:80", "x." + host(s), host(s) + "%00"}
		if s.AliasLabel != "" {
			hosts = append(hosts, discovery.Domain(s.AliasLabel, base))
		}
		v.hosts = append(v.hosts, hosts...)
		v.targets = append(v.targets, "http://"+host(s)+"/", "//"+host(s)+"/", host(s)+":80", "http://"+host(s)+"@"+base+"/")
		v.values = append(v.values, s.ID, s.LongID, s.OperationID, s.Alias, strings.TrimPrefix(s.Alias, "*"), host(s), "host="+host(s), s.ID+", "+s.LongID)
	}
	v.hosts = append(v.hosts, base, "task-proxy."+base, "elsewhere.test", "[::1]:80", "", "raw")
	return v
}

// FuzzAuthorizedIsServed writes requests as HTTP/1.1, several to a connection.
func FuzzAuthorizedIsServed(f *testing.F) {
	f.Add([]byte{}, "")
	for i := range 64 {
		// Count, method, target, host; a header; a credential; a body.
		f.Add([]byte{1, byte(i), 0, byte(3 * i), 2, byte(i), byte(i), byte(7 * i), 1, byte(i), byte(i), byte(i % 4), byte(5 * i), 0, 0, byte(i)}, "x")
		f.Add([]byte{0, 0, byte(i), byte(i), 1, byte(i), byte(i), byte(i), 0, 0, 0, 0, 1, byte(i), byte(i), byte(i)}, "\r\n X-Yt-Taskproxy-Id: four")
	}
	r := newReferee(f)
	v := r.vocabulary()
	for i := range v.values { // the host of one service, and every value in each header that might name another
		for name := range byte(11) {
			f.Add([]byte{0, 0, 0, 0, 0, 1, name, 0, byte(i)}, "")
		}
	}
	endings := []string{"\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r\n ", "\r"}
	colons := []string{": ", ": ", ": ", ":", " : ", ":\t", ": \x0b"}
	f.Fuzz(func(t *testing.T, program []byte, raw string) {
		s := &script{program, raw}
		before := r.answered.Load()
		var text strings.Builder
		for range 1 + s.next()%3 {
			version := []string{"HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/1.2"}[s.next()%5]
			fmt.Fprintf(&text, "%s %s %s\r\n", s.one(v.methods), s.one(v.targets), version)
			if h := s.one(v.hosts); h != "" {
				text.WriteString("Host: " + h + "\r\n")
			}
			for range s.next() % 4 {
				text.WriteString(s.one(v.names) + colons[s.next()%len(colons)] + s.one(v.values) + endings[s.next()%len(endings)])
			}
			// Behind a fold a credential would be a part of some other header, which is the service's own.
			text.WriteString("X-End: .\r\n")
			for range 1 + s.next()%2 {
				text.WriteString(s.one(v.credentials) + "\r\n")
			}
			text.WriteString("\r\n" + s.one(v.bodies))
		}
		text.WriteString("GET /end HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		r.exchange(t, text.String())
		if len(program) == 0 && r.answered.Load() == before {
			t.Errorf("no job was called for a good request: %q", text.String())
		}
	})
}

// FuzzAuthorizedIsServedHTTP2 writes them as HTTP/2, several streams to a connection, one after the other.
func FuzzAuthorizedIsServedHTTP2(f *testing.F) {
	f.Add([]byte{}, "")
	for i := range 64 {
		f.Add([]byte{1, 0, byte(i), byte(i), byte(3 * i), 2, byte(i), byte(7 * i), byte(i), byte(5 * i), 0, 0, byte(i)}, "x")
		f.Add([]byte{0, byte(i), 0, 0, byte(i), 1, byte(i), byte(i), 0, 0, 1, byte(i), byte(i)}, "\r\nx-yt-taskproxy-id: four")
	}
	r := newReferee(f)
	v := r.vocabulary()
	for i := range v.values {
		for name := range byte(11) {
			f.Add([]byte{0, 0, 0, 0, 1, name, byte(i)}, "")
		}
	}
	f.Fuzz(func(t *testing.T, program []byte, raw string) {
		s := &script{program, raw}
		before := r.answered.Load()
		conn, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		c := newHTTP2Conn(conn)
		for i := range uint32(1 + s.next()%3) {
			pseudo := field{":method", s.one(v.methods), ":scheme", "http", ":path", s.one(v.targets)}
			if h := s.one(v.hosts); h != "" {
				pseudo = append(pseudo, ":authority", h)
			}
			var fields field
			for range s.next() % 4 {
				fields = append(fields, s.one(v.names), s.one(v.values))
			}
			for range 1 + s.next()%2 {
				name, value, _ := strings.Cut(s.one(v.credentials), ": ")
				fields = append(fields, name, value)
			}
			if s.next()%16 == 15 { // pseudo-headers where they must not be
				pseudo, fields = fields, pseudo
			}
			body := s.one(v.bodies)
			c.headers(2*i+1, body == "", append(pseudo, fields...)...)
			if body != "" {
				_ = c.WriteData(2*i+1, true, []byte(body))
			}
			if got := c.status(t, 2*i+1); got == "EOF" || strings.HasPrefix(got, "GOAWAY") {
				break
			}
		}
		conn.Close()
		r.wait(t)
		if len(program) == 0 && r.answered.Load() == before {
			t.Error("no job was called for a good request")
		}
	})
}
