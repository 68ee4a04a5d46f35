package proxy

import (
	"io"
	"slices"
	"strings"
	"testing"

	"taskproxy/discovery"
)

// Each line is alice's attempt to get to a service that is not hers, or to get to hers in two ways that disagree. What is
// answered is what the authorizer was asked for, and nobody reaches the other job (trap).
func TestAttackRouting(t *testing.T) {
	t.Parallel()
	a := newAttack(t)
	const (
		mine, denied, unknown    = "mine", "access_denied", "no_such_service"
		conflict, malformed, bad = "ambiguous_service", "malformed_service_id", "400"
		op, alias                = "\nX-Yt-Taskproxy-Operation-Id: ", "\nX-Yt-Taskproxy-Operation-Alias: "
		id, names                = "\nX-Yt-Taskproxy-Id: ", "\nX-Yt-Taskproxy-Task-Name: t\nX-Yt-Taskproxy-Service: ui"
		get                      = "GET / HTTP/1.1\nHost: "
	)
	for _, c := range []struct{ name, request, want string }{
		{"host of one, id of the other", get + "{mine}" + id + "{theirs.id}", conflict},
		{"id of one, host of the other", get + "{theirs}" + id + "{mine.id}", conflict},
		{"host of one, long id of the other", get + "{mine}" + id + "{theirs.long}", conflict},
		{"alias host of one, id of the other", get + "{mine.label}" + id + "{theirs.id}", conflict},
		{"id of one, alias host of the other", get + "{theirs.label}" + id + "{mine.id}", conflict},
		{"host of one, operation of the other", get + "{mine}" + op + "{theirs.op}" + names, conflict},
		{"operation of one, host of the other", get + "{theirs}" + op + "{mine.op}" + names, conflict},
		{"host of one, alias of the other", get + "{mine}" + alias + "{theirs.alias}" + names, conflict},
		{"alias of one, host of the other", get + "{theirs}" + alias + "{mine.alias}" + names, conflict},
		{"operation of one, alias of the other", get + "x" + op + "{mine.op}" + alias + "{theirs.alias}" + names, conflict},
		{"id of one, operation of the other", get + "x" + id + "{mine.id}" + op + "{theirs.op}" + names, conflict},
		{"all of the other", get + "{theirs}" + id + "{theirs.id}" + op + "{theirs.op}" + alias + "{theirs.alias}" + names, denied},
		{"all of one", get + "{mine}" + id + "{mine.id}" + op + "{mine.op}" + alias + "{mine.alias}" + names, mine},

		{"id twice, the same", get + "{mine}" + id + "{mine.id}" + id + "{mine.id}", malformed},
		{"id twice, one of each", get + "x" + id + "{mine.id}" + id + "{theirs.id}", malformed},
		{"id twice, in two cases of its name", get + "x" + id + "{mine.id}\nx-YT-taskproxy-ID: {theirs.id}", malformed},
		{"id twice in one line", get + "x" + id + "{mine.id}, {theirs.id}", malformed},
		{"id twice by a fold", get + "x" + id + "{mine.id}\n {theirs.id}", malformed},
		{"operation twice", get + "x" + op + "{mine.op}" + op + "{theirs.op}" + names, malformed},
		{"alias twice", get + "x" + alias + "{mine.alias}" + alias + "{theirs.alias}" + names, malformed},
		{"task twice", get + "{mine}" + op + "{mine.op}\nX-Yt-Taskproxy-Task-Name: t" + names, malformed},
		{"service twice", get + "{mine}" + op + "{mine.op}" + names + "\nX-Yt-Taskproxy-Service: ui", malformed},
		{"id empty and full", get + "x" + id + id + "{theirs.id}", malformed},
		{"id with a space before the colon", get + "{mine}\nX-Yt-Taskproxy-Id : {theirs.id}", bad},
		{"id with a NUL", get + "{mine}" + id + "{mine.id}\x00", bad},

		{"host in capitals", get + "MINE-T-UI.PROXY.TEST", mine},
		{"host of the other in capitals", get + "THEIRS-T-UI.PROXY.TEST" + id + "{mine.id}", conflict},
		{"host with a port", get + "{mine}:65535", mine},
		{"host with an empty port", get + "{mine}:", mine},
		{"host of the other with a port", get + "{theirs}:80" + id + "{mine.id}", conflict},
		{"host with a dot", get + "{mine}.:80", mine},
		{"host of the other with a dot", get + "{theirs}." + id + "{mine.id}", conflict},
		{"host with two dots", get + "{mine}..", unknown},
		{"host with two ports", get + "{mine}:80:80", unknown},
		{"host with userinfo", get + "u@{mine}", bad},
		{"host as userinfo of the other", get + "{mine}@{theirs}", bad},
		{"host with a path", get + "{mine}/.{theirs}", bad},
		{"host with an escape", get + "{mine}%2e", unknown},
		{"host below the other's", get + "{mine.id}.{theirs}", unknown},
		{"two hosts", get + "{mine}\nHost: {theirs}", bad},
		{"two hosts in one line", get + "{mine}, {theirs}", bad},
		{"host folded", get + "{mine}\n {theirs}", bad},
		{"IPv6", get + "[::1]:80", unknown},
		{"IPv6 and an id", get + "[::1]:80" + id + "{mine.id}", mine},
		{"IPv6 and the other's id", get + "[::1]" + id + "{theirs.id}", denied},
		{"IPv6 with a zone", get + "[fe80::1%25{theirs}]", unknown},
		{"host in brackets", get + "[{theirs}]" + id + "{mine.id}", mine}, // foreign: no name of anybody's

		{"absolute target, the other's host", "GET http://{mine}/ HTTP/1.1\nHost: {theirs}", mine},
		{"absolute target of the other", "GET http://{theirs}/ HTTP/1.1\nHost: {mine}", denied},
		{"absolute target of the other and an id", "GET http://{theirs}/ HTTP/1.1\nHost: {mine}" + id + "{mine.id}", conflict},
		{"absolute target with userinfo", "GET http://{mine}@{theirs}/ HTTP/1.1\nHost: {mine}", "bad_request_target"},
		{"absolute target without a host", "GET http:/// HTTP/1.1\nHost: {theirs}", denied},

		{"X-Forwarded-Host of the other", get + "{mine}\nX-Forwarded-Host: {theirs}", mine},
		{"X-Forwarded-Host beside the other's host", get + "{theirs}\nX-Forwarded-Host: {mine}", denied},
		{"X-Forwarded-Host alone", get + "x\nX-Forwarded-Host: {mine}", unknown},
		{"Forwarded alone", get + "x\nForwarded: host={mine}", unknown},
		{"X-Original-Host, X-Host, X-Rewrite-Url", get + "{mine}\nX-Original-Host: {theirs}\nX-Host: {theirs}\nX-Rewrite-Url: http://{theirs}/", mine},
		{"X_Yt_Taskproxy_Id of the other", get + "{mine}\nX_Yt_Taskproxy_Id: {theirs.id}", mine},
		{"X_Yt_Taskproxy_Id alone", get + "x\nX_Yt_Taskproxy_Id: {mine.id}", unknown},
		{"other signs for dashes", get + "{mine}\nX.Yt.Taskproxy.Id: {theirs.id}\nX-Yt~Taskproxy-Id: {theirs.id}", mine},
		{"Connection takes the id away", get + "{mine}\nConnection: X-Yt-Taskproxy-Id" + id + "{theirs.id}", conflict},
		{"Connection takes the host away", get + "{mine}\nConnection: Host", mine},
		{"id in the query", "GET /?x-yt-taskproxy-id={theirs.id}&host={theirs} HTTP/1.1\nHost: {mine}", mine},
		{"id in a cookie", get + "{mine}\nCookie: X-Yt-Taskproxy-Id={theirs.id}", mine},
	} {
		t.Run(c.name, func(t *testing.T) {
			a.asked.take()
			got := outcome(a.send(t, a.fill(c.request+"\nAuthorization: OAuth {token}\nConnection: close\n\n")))
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			var want []string
			switch c.want {
			case mine:
				want = []string{a.mine.OperationID}
			case denied:
				want = []string{a.theirs.OperationID}
			}
			if asked := a.asked.take(); !slices.Equal(asked, want) {
				t.Errorf("the authorizer was asked for %q, want %q", asked, want)
			}
		})
	}
	for _, request := range a.job.seen.take() {
		if lower := strings.ToLower(strings.NewReplacer("_", "-", ".", "-", "~", "-").Replace(request)); strings.Contains(lower, "\nx-yt-taskproxy-id:") {
			t.Errorf("a routing header reached the job: %q", request)
		}
	}
}

// A connection has no memory: what one request named, and was allowed, says nothing about the next.
func TestAttackEarlierRequests(t *testing.T) {
	t.Parallel()
	a := newAttack(t)
	conn := dial(t, a.world)
	send(t, conn, a.fill("GET /1 HTTP/1.1\nHost: {mine}\nX-Yt-Taskproxy-Id: {mine.id}\nAuthorization: OAuth {token}\n\n"+
		"GET /2 HTTP/1.1\nHost: {theirs}\nAuthorization: OAuth {token}\n\n"+
		"GET /3 HTTP/1.1\nHost: {mine}\n\n"+
		"GET /4 HTTP/1.1\nHost: x\nAuthorization: OAuth {token}\n\n"+
		"GET /5 HTTP/1.1\nHost: {mine}\nAuthorization: OAuth {token}\nConnection: close\n\n"))
	all, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for part := range strings.SplitSeq(string(all), "HTTP/1.1 ") {
		if part != "" {
			got = append(got, part[:3])
		}
	}
	if want := []string{"200", "403", "401", "404", "200"}; !slices.Equal(got, want) {
		t.Errorf("answers %q, want %q", got, want)
	}
	if n := len(a.job.seen.take()); n != 2 {
		t.Errorf("%d requests reached the job, want 2", n)
	}
}

// A routing header in a trailer comes too late to route, and does not reach the job either.
func TestAttackRoutingByTrailer(t *testing.T) {
	t.Parallel()
	a := newAttack(t)
	got := outcome(a.send(t, a.fill("POST / HTTP/1.1\nHost: {mine}\nAuthorization: OAuth {token}\nConnection: close\nTrailer: X-Yt-Taskproxy-Id\n"+
		"Transfer-Encoding: chunked\n\n0\nX-Yt-Taskproxy-Id: {theirs.id}\nHost: {theirs}\n\n")))
	if got != "mine" {
		t.Errorf("got %q", got)
	}
	for _, request := range a.job.seen.take() {
		if strings.Contains(request, a.theirs.ID) {
			t.Errorf("a routing header reached the job: %q", request)
		}
	}
}

// A label that was mine and is somebody else's now is judged by who has it now.
func TestAttackLabelChangesHands(t *testing.T) {
	t.Parallel()
	a := newAttack(t)
	request := a.fill("GET / HTTP/1.1\nHost: {mine.label}\nAuthorization: OAuth {token}\nConnection: close\n\n")
	if got := outcome(a.send(t, request)); got != "mine" {
		t.Fatalf("got %q", got)
	}
	other := *a.theirs
	other.Alias = a.mine.Alias
	snapshot, problems := discovery.NewSnapshot(nil, nil, []discovery.Service{other})
	if len(problems) > 0 || snapshot.Lookup("mine-t-ui") == nil {
		t.Fatal(problems)
	}
	a.table.Store(snapshot)
	if got := outcome(a.send(t, request)); got != "access_denied" {
		t.Errorf("got %q, want access_denied", got)
	}
	a.asked.take()
	if got := outcome(a.send(t, a.fill("GET / HTTP/1.1\nHost: {mine}\nAuthorization: OAuth {token}\nConnection: close\n\n"))); got != "no_such_service" {
		t.Errorf("got %q, want no_such_service", got)
	}
}
