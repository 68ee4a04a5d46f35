package ytclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.ytsaurus.tech/yt/go/yson"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const robotToken = "robot-token"

// newClient returns a client of a cluster that is one handler: what a real cluster answers only on a bad day.
func newClient(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	return newClientWithin(t, time.Minute, h)
}

// newClientWithin is newClient with a deadline for calls that somebody waits for.
func newClientWithin(t *testing.T, timeout time.Duration, h http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	c, err := New(Config{Proxy: srv.URL, Token: func() (string, error) { return robotToken, nil }, CallTimeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// answer is a handler that always answers the same.
func answer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

// ytError is a handler that fails as the cluster's HTTP proxy does.
func ytError(status, code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		body := fmt.Sprintf(`{"code":%d,"message":"no","attributes":{},"inner_errors":[]}`, code)
		w.Header().Set("X-YT-Error", body)
		w.Header().Set("X-YT-Response-Code", fmt.Sprint(code))
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

func params(t *testing.T, r *http.Request) map[string]any {
	t.Helper()
	raw := []byte(r.Header.Get("X-YT-Parameters"))
	if len(raw) == 0 {
		raw, _ = io.ReadAll(r.Body)
	}
	var m map[string]any
	if err := yson.Unmarshal(raw, &m); err != nil {
		t.Errorf("parameters %q: %v", raw, err)
	}
	return m
}

func TestWhoAmIAnswers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		h     http.HandlerFunc
		login string
		err   error
	}{
		{"login", answer(200, `{"login":"alice","realm":"r","csrf_token":"x"}`), "alice", nil},
		{"empty map", answer(200, `{}`), "", ErrOddAnswer},
		{"empty login", answer(200, `{"login":""}`), "", ErrOddAnswer},
		{"nothing", answer(200, ``), "", ErrOddAnswer},
		{"login page", answer(200, `<html>log in</html>`), "", ErrOddAnswer},
		{"no object", answer(200, `null`), "", ErrOddAnswer},
		{"401 without code", answer(401, `who?`), "", ErrUnauthenticated},
		{"401", answer(401, `{"code":900,"message":"no"}`), "", ErrUnauthenticated},
		{"403 banned", answer(403, `{"code":1,"message":"b","inner_errors":[{"code":903,"message":"banned"}]}`), "", ErrDenied},
		{"backend down", answer(503, `{"code":1,"message":"b","inner_errors":[{"code":900,"message":"blackbox"}]}`), "", ErrUnavailable},
		{"503", answer(503, `bad gateway`), "", ErrUnavailable},
		{"503 on the way to denying", ytError(503, 901), "", ErrUnavailable},
		{"overloaded", ytError(503, 108), "", ErrOverloaded},
		{"too many requests", answer(429, "slow down"), "", ErrOverloaded},
		{"redirect", answer(302, ""), "", ErrOddAnswer},
		{"not the cluster", answer(404, "nothing here"), "", ErrOddAnswer},
		{"cut", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, `{"login":`)
		}, "", ErrUnavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			login, err := newClientWithin(t, 2*time.Second, tt.h).WhoAmI(t.Context(), Credentials{Kind: OAuth, Secret: "s"})
			if login != tt.login || !errors.Is(err, tt.err) || errors.Is(err, ErrOddAnswer) != errors.Is(tt.err, ErrOddAnswer) {
				t.Errorf("WhoAmI = %q, %v; want %q, %v", login, err, tt.login, tt.err)
			}
		})
	}
}

func TestWhoAmISendsTheCallersCredentialsAndNoOthers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		cr            Credentials
		authorization string
		cookie        string
	}{
		{Credentials{Kind: OAuth, Secret: "tok"}, "OAuth tok", ""},
		{Credentials{Kind: Bearer, Secret: "iam"}, "Bearer iam", ""},
		// net/http's cookie writer would drop the quotes and quote the comma.
		{Credentials{Kind: Cookie, CookieName: "YTCypressCookie", Secret: `a"b,c\d`}, "", `YTCypressCookie=a"b,c\d`},
	}
	for _, tt := range tests {
		t.Run(string(tt.cr.Kind), func(t *testing.T) {
			t.Parallel()
			c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
				if got := strings.Join(r.Header.Values("Authorization"), "|"); got != tt.authorization {
					t.Errorf("Authorization = %q, want %q", got, tt.authorization)
				}
				if got := strings.Join(r.Header.Values("Cookie"), "|"); got != tt.cookie {
					t.Errorf("Cookie = %q, want %q", got, tt.cookie)
				}
				if r.Header.Get("X-Csrf-Token") != "" {
					t.Error("X-Csrf-Token was sent; the cluster answers 503 to an empty one")
				}
				io.WriteString(w, `{"login":"alice"}`)
			})
			if _, err := c.WhoAmI(t.Context(), tt.cr); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	var reached atomic.Bool
	portal := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached.Store(true)
		io.WriteString(w, `{"login":"portal"}`)
	}))
	defer portal.Close()
	for _, status := range []int{302, 307} {
		c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, portal.URL, status)
		})
		if login, err := c.WhoAmI(t.Context(), Credentials{Kind: OAuth, Secret: "s"}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%d: WhoAmI = %q, %v; want ErrUnavailable", status, login, err)
		}
		if _, err := c.ListOperations(t.Context()); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%d: ListOperations: %v; want ErrUnavailable", status, err)
		}
	}
	if reached.Load() {
		t.Error("the redirect was followed")
	}
}

func TestCheckOperationPermissionAnswers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		h       http.HandlerFunc
		allowed bool
		err     error
	}{
		{"allow", answer(200, `{action=allow}`), true, nil},
		{"deny", answer(200, `{action=deny}`), false, nil},
		{"empty map", answer(200, `{}`), false, ErrOddAnswer},
		{"entity", answer(200, `#`), false, ErrOddAnswer},
		{"nothing", answer(200, ``), false, ErrOddAnswer},
		{"another action", answer(200, `{action=Allow}`), false, ErrOddAnswer},
		{"html", answer(200, `<html>`), false, ErrOddAnswer},
		{"no such operation", ytError(400, 1915), false, ErrNoSuchOperation},
		{"unknown user", ytError(400, 907), false, ErrRejected},
		{"503 on the way to not finding it", ytError(503, 1915), false, ErrUnavailable},
		{"robot refused", ytError(401, 900), false, ErrUnauthenticated},
		{"bare 500", answer(500, `oops`), false, ErrUnavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			allowed, err := newClient(t, tt.h).CheckOperationPermission(t.Context(), "alice", "1-2-3e803e8-4", Read)
			if allowed != tt.allowed || !errors.Is(err, tt.err) || errors.Is(err, ErrOddAnswer) != errors.Is(tt.err, ErrOddAnswer) {
				t.Errorf("= %v, %v; want %v, %v", allowed, err, tt.allowed, tt.err)
			}
		})
	}
}

func TestCheckOperationPermissionAsksAsTheRobot(t *testing.T) {
	t.Parallel()
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "OAuth "+robotToken {
			t.Errorf("Authorization = %q", got)
		}
		p := params(t, r)
		if p["user"] != "alice" || p["operation_id"] != "1-2-3e803e8-4" || p["permission"] != "manage" {
			t.Errorf("parameters = %v", p)
		}
		io.WriteString(w, `{action=allow}`)
	})
	if ok, err := c.CheckOperationPermission(t.Context(), "alice", "1-2-3e803e8-4", Manage); !ok || err != nil {
		t.Errorf("= %v, %v", ok, err)
	}
	for _, id := range []string{"1-2-3e803e8-4junk", "01-2-3e803e8-4", "A-2-3e803e8-4", "", "x"} {
		if ok, err := c.CheckOperationPermission(t.Context(), "alice", id, Read); ok || !errors.Is(err, ErrNoSuchOperation) {
			t.Errorf("id %q: = %v, %v; want ErrNoSuchOperation", id, ok, err)
		}
	}
}

// The cluster closes a connection that we thought was alive: the SDK would give up on this call.
func TestBrokenConnectionIsTriedOnceMore(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(*Client) error{
		"check_operation_permission": func(c *Client) error {
			_, err := c.CheckOperationPermission(context.Background(), "alice", "1-2-3e803e8-4", Read)
			return err
		},
		"list_jobs": func(c *Client) error {
			_, err := c.ListJobs(context.Background(), "1-2-3e803e8-4")
			return err
		},
	} {
		for _, breaks := range []int32{1, 2} {
			t.Run(fmt.Sprintf("%s breaks %d times", name, breaks), func(t *testing.T) {
				t.Parallel()
				var tries atomic.Int32
				c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
					if tries.Add(1) <= breaks {
						conn, _, err := w.(http.Hijacker).Hijack()
						if err != nil {
							t.Error(err)
							return
						}
						conn.Close()
						return
					}
					io.WriteString(w, `{action=allow;jobs=[]}`)
				})
				err := call(c)
				if want := min(breaks+1, 2); tries.Load() != want {
					t.Errorf("%d tries, want %d", tries.Load(), want)
				}
				if breaks == 1 && err != nil || breaks == 2 && !errors.Is(err, ErrUnavailable) {
					t.Errorf("err = %v", err)
				}
			})
		}
	}
}

func TestOverloadIsNotMistakenForAnOutage(t *testing.T) {
	t.Parallel()
	// The SDK retries 904 until its time is up and then says only that.
	c := newClientWithin(t, 2*time.Second, ytError(400, 904))
	if _, err := c.CheckOperationPermission(t.Context(), "alice", "1-2-3e803e8-4", Read); !errors.Is(err, ErrOverloaded) {
		t.Errorf("err = %v, want ErrOverloaded", err)
	}
}

// whoami is tried again by the SDK itself, a few times with pauses.
func TestBrokenConnectionOfWhoAmI(t *testing.T) {
	t.Parallel()
	for _, breaks := range []int32{1, 2} {
		var tries atomic.Int32
		c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
			if tries.Add(1) <= breaks {
				panic(http.ErrAbortHandler)
			}
			io.WriteString(w, `{"login":"alice"}`)
		})
		if login, err := c.WhoAmI(t.Context(), Credentials{Kind: OAuth, Secret: "s"}); login != "alice" || err != nil {
			t.Errorf("broken %d times: %q, %v", breaks, login, err)
		}
	}
}

// TestClientsShareNoConnections: what fills up one client of a cluster (callers to be identified, say) leaves another one its
// own way there.
func TestClientsShareNoConnections(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}, 2*maxConns), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "whoami") {
			arrived <- struct{}{}
			<-release
			io.WriteString(w, `{"login":"alice"}`)
			return
		}
		io.WriteString(w, `{action=allow}`)
	}))
	defer srv.Close()
	var clients [2]*Client
	for i := range clients {
		c, err := New(Config{Proxy: srv.URL, Token: func() (string, error) { return robotToken, nil }})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		clients[i] = c
	}
	var flood sync.WaitGroup
	for range 2 * maxConns {
		flood.Go(func() {
			if _, err := clients[0].WhoAmI(t.Context(), Credentials{Kind: OAuth, Secret: "s"}); err != nil {
				t.Error(err)
			}
		})
	}
	for range maxConns {
		<-arrived
	}
	if ok, err := clients[1].CheckOperationPermission(t.Context(), "alice", "1-2-3e803e8-4", Read); !ok || err != nil {
		t.Errorf("the other client: %t, %v", ok, err)
	}
	if n := len(arrived); n != 0 {
		t.Errorf("%d calls more than there are connections", n)
	}
	close(release)
	flood.Wait()
}

// TestOverloadIsSeenToTheEnd: the SDK tries again what is limited, wherever in the error that stands, until time runs out. Then
// the call has failed for that and not because the cluster is away, unless it went away in between.
func TestOverloadIsSeenToTheEnd(t *testing.T) {
	t.Parallel()
	nested := `{"code":1,"message":"o","inner_errors":[{"code":2,"message":"i","inner_errors":[{"code":904,"message":"limit"}]}]}`
	header := func(w http.ResponseWriter) {
		w.Header().Set("X-YT-Error", nested)
		w.Header().Set("X-YT-Response-Code", "1")
		w.WriteHeader(400)
	}
	body := func(w http.ResponseWriter) {
		w.WriteHeader(503)
		io.WriteString(w, nested)
	}
	hang := func(r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}
	for name, tc := range map[string]struct {
		limit func(http.ResponseWriter)
		then  func(*http.Request) // nil: the same again
		want  error
	}{
		"in the header":                     {header, nil, ErrOverloaded},
		"in the body":                       {body, nil, ErrOverloaded},
		"in the header, then time runs out": {header, hang, ErrOverloaded},
		"in the body, then time runs out":   {body, hang, ErrOverloaded},
		"in the header, then away":          {header, func(*http.Request) { panic(http.ErrAbortHandler) }, ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var whoAmIs, checks atomic.Int32
			c := newClientWithin(t, 2*time.Second, func(w http.ResponseWriter, r *http.Request) {
				tries := &checks
				if strings.HasSuffix(r.URL.Path, "whoami") {
					tries = &whoAmIs
				}
				if tries.Add(1) == 1 || tc.then == nil {
					tc.limit(w)
					return
				}
				tc.then(r)
			})
			if _, err := c.WhoAmI(t.Context(), Credentials{Kind: OAuth, Secret: "s"}); !errors.Is(err, tc.want) {
				t.Errorf("whoami: %v, want %v", err, tc.want)
			}
			if _, err := c.CheckOperationPermission(t.Context(), "alice", "1-2-3e803e8-4", Read); !errors.Is(err, tc.want) {
				t.Errorf("check_operation_permission: %v, want %v", err, tc.want)
			}
			if whoAmIs.Load() < 2 || checks.Load() < 2 {
				t.Errorf("%d and %d tries, want more than one", whoAmIs.Load(), checks.Load())
			}
		})
	}
}

// TestSeenIsTheLastWord follows what is kept of a call's answers from try to try.
func TestSeenIsTheLastWord(t *testing.T) {
	t.Parallel()
	ctx, s := withSeen(t.Context())
	over, cancel := context.WithCancel(ctx)
	cancel()
	limit := &http.Response{StatusCode: 400, Header: http.Header{"X-Yt-Error": {`{"code":904,"message":"limit"}`}}, Body: http.NoBody}
	other := &http.Response{StatusCode: 400, Header: http.Header{"X-Yt-Error": {`{"code":1,"message":"no"}`}}, Body: http.NoBody}
	for i, try := range []struct {
		ctx     context.Context
		resp    *http.Response
		err     error
		status  int
		limited bool
	}{
		{ctx, other, nil, 400, false},
		{ctx, limit, nil, 400, true},
		{ctx, nil, io.EOF, 0, false},
		{ctx, limit, nil, 400, true},
		{over, nil, context.Canceled, 0, true},
		{ctx, other, nil, 400, false},
	} {
		r := &recorder{next: tripper(func(*http.Request) (*http.Response, error) { return try.resp, try.err })}
		resp, err := r.RoundTrip(httptest.NewRequestWithContext(try.ctx, http.MethodPost, "/", nil))
		if resp != try.resp || !errors.Is(err, try.err) {
			t.Errorf("try %d: %v, %v", i, resp, err)
		}
		if resp != nil {
			resp.Body.Close()
		}
		if status, limited := s.last(); status != try.status || limited != try.limited {
			t.Errorf("try %d: status %d, limited %t, want %d, %t", i, status, limited, try.status, try.limited)
		}
	}
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestCallsEndAtTheirDeadline(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then does net/http notice that the caller is gone
		<-r.Context().Done()
	}))
	defer srv.Close()
	c, err := New(Config{Proxy: srv.URL, Token: func() (string, error) { return robotToken, nil }, CallTimeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for name, call := range map[string]func() error{
		"whoami":          func() error { _, err := c.WhoAmI(t.Context(), Credentials{Kind: OAuth, Secret: "s"}); return err },
		"list_operations": func() error { _, err := c.ListOperations(t.Context()); return err },
		"job_ports": func() error {
			_, err := c.JobPorts(t.Context(), []JobRef{{Address: "n:1", ID: "1-2-3-4"}})
			return err
		},
	} {
		if err := call(); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnavailable", name, err)
		}
	}
}

func TestAddressInUseByNobody(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	c, err := New(Config{Proxy: l.Addr().String(), Token: func() (string, error) { return robotToken, nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.WhoAmI(t.Context(), Credentials{Kind: OAuth, Secret: "s"}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("err = %v, want ErrUnavailable", err)
	}
}

func TestClusterURL(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"localhost:80":                         "http://localhost:80",
		"http-proxies":                         "http://http-proxies", // no vendor's domain is appended
		"https://yt.example.net":               "https://yt.example.net",
		"http://yt.example.net/":               "http://yt.example.net",
		"[::1]:80":                             "http://[::1]:80",
		"http-proxies-lb.yt.svc.cluster.local": "http://http-proxies-lb.yt.svc.cluster.local",
	} {
		if got, err := clusterURL(in); got != want || err != nil {
			t.Errorf("clusterURL(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"", "ftp://x", "http://", "http://u:p@h", "http://h/path", "http://h?q", "http://h#f", "://", "http://[::1"} {
		if got, err := clusterURL(in); err == nil {
			t.Errorf("clusterURL(%q) = %q, want an error", in, got)
		}
	}
}

func TestCredentialsPrintRedacted(t *testing.T) {
	t.Parallel()
	cr := Credentials{Kind: Bearer, Secret: "hunter2"}
	type holder struct{ C Credentials }
	j, _ := json.Marshal(fmt.Sprint(cr))
	for _, s := range []string{fmt.Sprint(cr), fmt.Sprintf("%v %+v %#v %s", cr, cr, cr, cr), fmt.Sprintf("%+v", holder{cr}), fmt.Sprintf("%v", &cr), cr.LogValue().String(), string(j)} {
		if strings.Contains(s, "hunter2") {
			t.Errorf("the secret is printed: %s", s)
		}
	}
}
