package auth_test

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.ytsaurus.tech/yt/go/guid"
	"go.ytsaurus.tech/yt/go/yt"
	"go.ytsaurus.tech/yt/go/yt/ythttp"
	"go.ytsaurus.tech/yt/go/yterrors"

	"taskproxy/auth"
	"taskproxy/ytclient"
	"taskproxy/ytclient/ytlocal"
)

// town is a local cluster with an operation that alice and bob may read and carol may not.
type town struct {
	cluster           *ytlocal.Cluster
	operation         string
	alice, bob, carol ytlocal.User
}

func newTown(t *testing.T) *town {
	t.Helper()
	cluster, err := ytlocal.Start(ytlocal.Config{StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cluster.Faults().Clear()
		if err := cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &town{cluster: cluster}
	for login, user := range map[string]*ytlocal.User{"alice": &w.alice, "bob": &w.bob, "carol": &w.carol} {
		if *user, err = cluster.AddUser(login); err != nil {
			t.Fatal(err)
		}
	}
	admin, err := ythttp.NewClient(&yt.Config{
		Proxy: cluster.Addr(), Token: cluster.RootToken(), CompressionCodec: yt.ClientCodecNone, DisableProxyDiscovery: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Stop()
	id, err := admin.StartOperation(t.Context(), yt.OperationVanilla, map[string]any{
		"ytlocal": map[string]any{"pretend": true},
		"tasks":   map[string]any{"t": map[string]any{"job_count": 1, "command": "true"}},
		"acl": []any{map[string]any{
			"action": "allow", "subjects": []string{"alice", "bob"}, "permissions": []string{"read"},
		}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.operation = guid.GUID(id).String()
	return w
}

// hurry is a cluster that may take only so long for an answer, once that is set. It is set when an answer cannot come, or the
// client would ask again and again; a slow machine must not look like a slow cluster otherwise.
type hurry struct {
	auth.Cluster
	limit atomic.Int64 // time.Duration; zero: none
}

func (h *hurry) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if limit := h.limit.Load(); limit != 0 {
		return context.WithTimeout(ctx, time.Duration(limit))
	}
	return ctx, func() {}
}

func (h *hurry) WhoAmI(ctx context.Context, cr ytclient.Credentials) (string, error) {
	ctx, cancel := h.bound(ctx)
	defer cancel()
	return h.Cluster.WhoAmI(ctx, cr)
}

func (h *hurry) CheckOperationPermission(ctx context.Context, login, operationID string, p ytclient.Permission) (bool, error) {
	ctx, cancel := h.bound(ctx)
	defer cancel()
	return h.Cluster.CheckOperationPermission(ctx, login, operationID, p)
}

// authorizer asks the town through the real client. Every yes expires at once, so that each request asks; a no that is
// remembered is remembered for the rest of the test.
func (w *town) authorizer(t *testing.T) (*auth.Authorizer, *hurry) {
	t.Helper()
	client, err := ytclient.New(ytclient.Config{
		Proxy: w.cluster.URL(), Token: func() (string, error) { return w.cluster.RootToken(), nil }, CallTimeout: 30 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	h := &hurry{Cluster: client}
	a, err := auth.New(auth.Config{Cluster: h, GrantTTL: time.Nanosecond, DenyTTL: time.Hour, CallTimeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a, h
}

// question is one of the two that the gate asks, about one of the town's people.
type question func(*testing.T, *auth.Authorizer, ytlocal.User) error

func (w *town) who(t *testing.T, a *auth.Authorizer, u ytlocal.User) error {
	who, err := a.Authenticate(t.Context(), netip.Addr{}, ytclient.Credentials{Kind: ytclient.OAuth, Secret: u.Token})
	if (err == nil) != (who.Login != "") || err == nil && who.Login != u.Login {
		t.Errorf("%s's token is %q's, %v", u.Login, who.Login, err)
	}
	return err
}

func (w *town) may(t *testing.T, a *auth.Authorizer, u ytlocal.User) error {
	_, err := a.Authorize(t.Context(), u.Login, w.operation, []ytclient.Permission{ytclient.Read})
	return err
}

// What a cluster's bad day does to those who were let in before.
const (
	kept   = iota // they stay: it cannot be reached, or answers 5xx
	asked         // they have to wait for an answer: it is there and gave none
	judged        // they go: it said no
)

// TestBadDaysOfTheCluster makes each of the two calls fail in every way that the cluster, or what stands in front of it, is
// known to fail. Nobody gets in who could not before; who was in stays in only if the cluster was away; and no failure is
// remembered as a no: when the day is over, everybody is let in at once who may.
func TestBadDaysOfTheCluster(t *testing.T) {
	t.Parallel()
	code := func(c yterrors.ErrorCode) *yterrors.Error { return &yterrors.Error{Code: c, Message: "bad day"} }
	nested := &yterrors.Error{Code: 1, Message: "bad day", InnerErrors: []*yterrors.Error{code(900)}}
	body := func(s string) *string { return &s }
	const brief, long = 300 * time.Millisecond, 600 * time.Millisecond
	days := []struct {
		name  string
		fault ytlocal.Fault
		limit time.Duration // how long an answer is waited for; zero: until it comes
		// For whoami, where the error is the caller's, and for check_operation_permission, where it is our robot's.
		who, may int
	}{
		{"hang", ytlocal.Fault{Hang: true}, brief, kept, kept},
		{"slower than a call may be", ytlocal.Fault{Delay: time.Minute}, brief, kept, kept},
		{"cut before the answer", ytlocal.Fault{Cut: ytlocal.CutBefore}, brief, kept, kept},
		{"cut after the headers", ytlocal.Fault{Cut: ytlocal.CutHeaders}, brief, kept, kept},
		{"500", ytlocal.Fault{Status: 500}, 0, kept, kept},
		{"502 of a load balancer", ytlocal.Fault{Status: 502, Body: body("<html>Bad Gateway</html>")}, 0, kept, kept},
		{"503", ytlocal.Fault{Status: 503}, 0, kept, kept},
		{"504", ytlocal.Fault{Status: 504}, 0, kept, kept},
		{"503 with code 1: the authenticator is down", ytlocal.Fault{Status: 503, Error: code(1)}, 0, kept, kept},
		{"503 with code 900 inside", ytlocal.Fault{Status: 503, Error: nested}, 0, kept, kept},
		{"503 with code 901", ytlocal.Fault{Status: 503, Error: code(901)}, 0, kept, kept},
		{"3: a timeout inside", ytlocal.Fault{Error: code(3)}, brief, kept, kept},
		{"100: no transport inside", ytlocal.Fault{Error: code(100)}, brief, kept, kept},
		{"105: a part is unavailable", ytlocal.Fault{Error: code(105)}, brief, kept, kept},

		{"108: a queue is full", ytlocal.Fault{Status: 503, Error: code(108)}, long, asked, asked},
		{"904: the robot asks too much", ytlocal.Fault{Error: code(904)}, long, asked, asked},
		{"429", ytlocal.Fault{Status: 429}, 0, asked, asked},
		{"empty", ytlocal.Fault{Body: body("")}, 0, asked, asked},
		{"an empty map", ytlocal.Fault{Body: body("{}")}, 0, asked, asked},
		{"no map", ytlocal.Fault{Body: body("#")}, 0, asked, asked},
		{"a list", ytlocal.Fault{Body: body("[]")}, 0, asked, asked},
		{"an empty login or action", ytlocal.Fault{Body: body(`{"login"="";"action"=""}`)}, 0, asked, asked},
		{"another action", ytlocal.Fault{Body: body(`{"action"="maybe"}`)}, 0, asked, asked},
		{"a login page", ytlocal.Fault{Body: body("<html>log in</html>")}, 0, asked, asked},
		{"a redirect to one", ytlocal.Fault{Status: 302, Header: http.Header{"Location": {"/login"}}}, 0, asked, asked},
		{"404 of something else", ytlocal.Fault{Status: 404, Body: body("nothing here")}, 0, asked, asked},
		{"1: an error of no kind", ytlocal.Fault{Error: code(1)}, 0, asked, asked},
		{"500: no such user", ytlocal.Fault{Error: code(500)}, 0, asked, asked},
		{"902: an account is full", ytlocal.Fault{Error: code(902)}, 0, asked, asked},
		{"907: no such subject", ytlocal.Fault{Error: code(907)}, 0, asked, asked},

		{"401", ytlocal.Fault{Status: 401}, 0, judged, asked},
		{"110", ytlocal.Fault{Status: 401, Error: code(110)}, 0, judged, asked},
		{"111", ytlocal.Fault{Status: 401, Error: code(111)}, 0, judged, asked},
		{"900", ytlocal.Fault{Status: 401, Error: code(900)}, 0, judged, asked},
		{"401 with code 900 inside", ytlocal.Fault{Status: 401, Error: nested}, 0, judged, asked},
		{"403", ytlocal.Fault{Status: 403}, 0, judged, asked},
		{"903", ytlocal.Fault{Status: 403, Error: code(903)}, 0, judged, asked},
		{"901", ytlocal.Fault{Error: code(901)}, 0, judged, asked},
		{"1915", ytlocal.Fault{Error: code(1915)}, 0, asked, judged},
		{"200", ytlocal.Fault{Error: code(200)}, 0, asked, judged},
	}
	for _, half := range []string{"whoami", "check_operation_permission"} {
		t.Run(half, func(t *testing.T) {
			t.Parallel()
			for _, day := range days {
				t.Run(day.name, func(t *testing.T) {
					t.Parallel()
					w := newTown(t)
					a, h := w.authorizer(t)
					fault := day.fault
					fault.Command = half
					if half == "whoami" {
						badDay(t, w, a, h, w.who, fault, day.limit, day.who, auth.ErrUnauthenticated)
					} else {
						no := auth.ErrDenied
						if day.may == judged {
							no = auth.ErrNoSuchOperation
						}
						badDay(t, w, a, h, w.may, fault, day.limit, day.may, no)
					}
				})
			}
		})
	}
}

// badDay is one of them. no is the answer that a judgement of the cluster becomes.
func badDay(t *testing.T, w *town, a *auth.Authorizer, h *hurry, ask question, fault ytlocal.Fault, limit time.Duration, effect int, no error) {
	t.Helper()
	stranger := w.carol
	stranger.Token = "nobody's"
	want := func(when string, u ytlocal.User, want error) {
		t.Helper()
		if err := ask(t, a, u); !errors.Is(err, want) {
			t.Errorf("%s, %s: %v, want %v", when, u.Login, err, want)
		}
	}
	want("before", w.alice, nil)

	lift := w.cluster.Faults().Add(fault)
	h.limit.Store(int64(limit))
	wantNew, wantOld := auth.ErrUnavailable, auth.ErrUnavailable
	switch effect {
	case kept:
		wantOld = nil
	case judged:
		wantNew, wantOld = no, no
	}
	var group sync.WaitGroup
	group.Go(func() { want("bad day, new", w.bob, wantNew) })
	group.Go(func() { want("bad day, not allowed", stranger, wantNew) })
	group.Go(func() { want("bad day, in before", w.alice, wantOld) })
	group.Wait()
	want("bad day, in before and again", w.alice, wantOld)
	lift()
	h.limit.Store(0)

	if effect == judged {
		return // as it should be: that was the cluster's no, and is remembered
	}
	want("after", w.bob, nil)
	want("after", w.alice, nil)
	if err := ask(t, a, stranger); !errors.Is(err, auth.ErrUnauthenticated) && !errors.Is(err, auth.ErrDenied) {
		t.Errorf("after, not allowed: %v, want a no", err)
	}
}

// TestWhoIsWhoOnACluster goes the whole way without any fault: each kind of credential, and rights as they come and go.
func TestWhoIsWhoOnACluster(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	a, _ := w.authorizer(t)
	for name, cr := range map[string]ytclient.Credentials{
		"token":  {Kind: ytclient.OAuth, Secret: w.alice.Token},
		"bearer": {Kind: ytclient.Bearer, Secret: w.alice.Token},
		"cookie": {Kind: ytclient.Cookie, CookieName: w.alice.CookieName, Secret: w.alice.Cookie},
	} {
		if who, err := a.Authenticate(t.Context(), netip.Addr{}, cr); err != nil || who.Login != "alice" {
			t.Errorf("%s: %q, %v", name, who.Login, err)
		}
	}
	for name, cr := range map[string]ytclient.Credentials{
		"cookie as token":        {Kind: ytclient.OAuth, Secret: w.alice.Cookie},
		"token as cookie":        {Kind: ytclient.Cookie, CookieName: w.alice.CookieName, Secret: w.alice.Token},
		"cookie of another name": {Kind: ytclient.Cookie, CookieName: "Session_id", Secret: w.alice.Cookie},
		"nobody's":               {Kind: ytclient.OAuth, Secret: "0123456789abcdef"},
	} {
		if who, err := a.Authenticate(t.Context(), netip.Addr{}, cr); !errors.Is(err, auth.ErrUnauthenticated) {
			t.Errorf("%s: %q, %v", name, who.Login, err)
		}
	}
	for _, tc := range []struct {
		login string
		perms []ytclient.Permission
		want  error
	}{
		{"alice", []ytclient.Permission{ytclient.Read}, nil},
		{"alice", []ytclient.Permission{ytclient.Read, ytclient.Manage}, auth.ErrDenied},
		{"carol", []ytclient.Permission{ytclient.Read}, auth.ErrDenied},
		{"root", []ytclient.Permission{ytclient.Read, ytclient.Manage}, nil},
		{"nobody", []ytclient.Permission{ytclient.Read}, auth.ErrUnavailable},
	} {
		if _, err := a.Authorize(t.Context(), tc.login, w.operation, tc.perms); !errors.Is(err, tc.want) {
			t.Errorf("%s, %v: %v, want %v", tc.login, tc.perms, err, tc.want)
		}
	}
}

// TestClusterWithoutAuthentication is the real thing: everybody is root there, and nobody is let in.
func TestClusterWithoutAuthentication(t *testing.T) {
	t.Parallel()
	cluster, err := ytlocal.Start(ytlocal.Config{StateDir: t.TempDir(), AuthOff: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &town{cluster: cluster}
	a, _ := w.authorizer(t)
	if who, err := a.Authenticate(t.Context(), netip.Addr{}, ytclient.Credentials{Kind: ytclient.OAuth, Secret: "anything"}); !errors.Is(err, auth.ErrAuthOff) {
		t.Errorf("%q, %v, want %v", who.Login, err, auth.ErrAuthOff)
	}
}
