//go:build e2e

package main_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// testHTTP calls the http.server of the documentation with curl, in every way a caller may name it and say who calls.
func (s *stage) testHTTP(t *testing.T) {
	s.withCookies(t)
	for _, c := range []struct{ name, login, arguments, want string }{
		{"by domain, OAuth", "alice", `-H "Authorization: OAuth $TOKEN" http://$DOMAIN:$PROXY_PORT/`, "200"},
		{"by domain, Bearer", "alice", `-H "Authorization: Bearer $TOKEN" http://$DOMAIN:$PROXY_PORT/`, "200"},
		{"by Host", "alice", `-H "Host: $DOMAIN" -H "Authorization: OAuth $TOKEN" http://$PROXY/`, "200"},
		{"by Host, schemes in any case", "alice", `-H "Host: $DOMAIN" -H "Authorization: oauth $TOKEN" http://$PROXY/`, "200"},
		{"by header", "alice", `-H "x-yt-taskproxy-id: $ID" -H "Authorization: OAuth $TOKEN" http://$PROXY/`, "200"},
		{"by header, Bearer", "alice", `-H "x-yt-taskproxy-id: $ID" -H "Authorization: Bearer $TOKEN" http://$PROXY/`, "200"},
		{"by both, agreeing", "alice", `-H "Host: $DOMAIN" -H "x-yt-taskproxy-id: $ID" -H "Authorization: OAuth $TOKEN" http://$PROXY/`, "200"},
		{"by both, at odds", "alice", `-H "Host: $DOMAIN" -H "x-yt-taskproxy-id: $GRPC_ID" -H "Authorization: OAuth $TOKEN" http://$PROXY/`, "400"},
		{"cookie", "alice", `-H "Cookie: $COOKIE_NAME=$COOKIE" http://$DOMAIN:$PROXY_PORT/`, "200"},
		{"cookie by curl's own option", "alice", `-b "$COOKIE_NAME=$COOKIE" http://$DOMAIN:$PROXY_PORT/`, "200"},
		{"cookie as documented, without =", "alice", `-H "Cookie: $COOKIE_NAME $COOKIE" http://$DOMAIN:$PROXY_PORT/`, "200"},
		{"cookie by header", "alice", `-H "x-yt-taskproxy-id: $ID" -H "Cookie: $COOKIE_NAME=$COOKIE" http://$PROXY/`, "200"},
		{"HTTP/2 without TLS", "alice", `--http2-prior-knowledge -H "Authorization: OAuth $TOKEN" http://$DOMAIN:$PROXY_PORT/`, "200"},
		{"HEAD", "alice", `-I -H "Authorization: OAuth $TOKEN" http://$DOMAIN:$PROXY_PORT/`, "200"},
		{"the job's own 404", "alice", `-H "Authorization: OAuth $TOKEN" http://$DOMAIN:$PROXY_PORT/no-such-file`, "404"},
		{"bob may not", "bob", `-H "Authorization: OAuth $TOKEN" http://$DOMAIN:$PROXY_PORT/`, "403"},
		{"bob may not by header", "bob", `-H "x-yt-taskproxy-id: $ID" -H "Authorization: OAuth $TOKEN" http://$PROXY/`, "403"},
		{"bob's cookie may not", "bob", `-H "Cookie: $COOKIE_NAME=$COOKIE" http://$DOMAIN:$PROXY_PORT/`, "403"},
		{"carol, whose token yt issued, may not", "carol", `-H "Authorization: OAuth $TOKEN" http://$DOMAIN:$PROXY_PORT/`, "403"},
		{"nobody", "", `http://$DOMAIN:$PROXY_PORT/`, "401"},
		{"nobody by header", "", `-H "x-yt-taskproxy-id: $ID" http://$PROXY/`, "401"},
		{"a wrong token", "", `-H "Authorization: OAuth wrong" http://$DOMAIN:$PROXY_PORT/`, "401"},
		{"an unknown id", "alice", `-H "Authorization: OAuth $TOKEN" http://00000000.task-proxy.localhost:$PROXY_PORT/`, "404"},
		{"an unknown id by header", "alice", `-H "x-yt-taskproxy-id: 00000000" -H "Authorization: OAuth $TOKEN" http://$PROXY/`, "404"},
		{"an unknown id, nobody", "", `http://00000000.task-proxy.localhost:$PROXY_PORT/`, "401"},
	} {
		t.Run(c.name, func(t *testing.T) {
			// A job is listed as running a moment before its server listens.
			var got string
			eventually(t, "answer", 15*time.Second, func() error {
				if got = s.curl(t, c.login, c.arguments); got == "503" || got == "502" {
					return errNotYet
				}
				return nil
			})
			if got != c.want {
				t.Errorf("as %q: curl %s\ngot %s, want %s", c.login, c.arguments, got, c.want)
			}
		})
	}
	t.Run("the sandbox is what it serves", func(t *testing.T) {
		page := s.ok(t, "alice", `curl -sS --fail-with-body -H "Authorization: OAuth $TOKEN" http://$DOMAIN:$PROXY_PORT/`)
		if !strings.Contains(page, "Directory listing for /") {
			t.Errorf("got no listing of a directory by Python: %s", tail(page))
		}
	})
}

// withCookies fails when the cluster came without cookies for those who call.
func (s *stage) withCookies(t *testing.T) {
	t.Helper()
	for _, login := range []string{"alice", "bob"} {
		if p := s.people[login]; p.cookie == "" || p.cookieName == "" {
			t.Errorf("the ready file has no cookie for %s", login)
		}
	}
}

// grpcurl exits with 64 and the status of the call.
const (
	grpcOK               = 0
	grpcInvalidArgument  = 64 + 3
	grpcNotFound         = 64 + 5
	grpcPermissionDenied = 64 + 7
	grpcUnauthenticated  = 64 + 16
)

// testGRPC calls the example with grpcurl, by reflection and with the proto file.
func (s *stage) testGRPC(t *testing.T) {
	s.withCookies(t)
	// Without reflection, so that what fails is the call itself.
	const proto, hello = `-import-path $PROTO -proto helloworld.proto -d '{"name":"you"}' `, ` helloworld.Greeter/SayHello`
	for _, c := range []struct {
		name, login, arguments string
		want                   int
	}{
		{"by authority, reflection", "alice", `-authority $GRPC_DOMAIN -H "Authorization: OAuth $TOKEN" -d '{"name":"you"}' $PROXY helloworld.Greeter/SayHello`, grpcOK},
		{"by authority", "alice", proto + `-authority $GRPC_DOMAIN -H "Authorization: OAuth $TOKEN" $PROXY` + hello, grpcOK},
		{"by authority, Bearer", "alice", proto + `-authority $GRPC_DOMAIN -H "Authorization: Bearer $TOKEN" $PROXY` + hello, grpcOK},
		{"by header", "alice", proto + `-H "x-yt-taskproxy-id: $GRPC_ID" -H "Authorization: OAuth $TOKEN" $PROXY` + hello, grpcOK},
		{"by both, at odds", "alice", proto + `-authority $GRPC_DOMAIN -H "x-yt-taskproxy-id: $ID" -H "Authorization: OAuth $TOKEN" $PROXY` + hello, grpcInvalidArgument},
		{"cookie", "alice", proto + `-authority $GRPC_DOMAIN -H "Cookie: $COOKIE_NAME=$COOKIE" $PROXY` + hello, grpcOK},
		{"cookie as documented, without =", "alice", proto + `-authority $GRPC_DOMAIN -H "Cookie: $COOKIE_NAME $COOKIE" $PROXY` + hello, grpcOK},
		{"health", "alice", `-authority $GRPC_DOMAIN -H "Authorization: OAuth $TOKEN" $PROXY grpc.health.v1.Health/Check`, grpcOK},
		{"bob may not", "bob", proto + `-authority $GRPC_DOMAIN -H "Authorization: OAuth $TOKEN" $PROXY` + hello, grpcPermissionDenied},
		{"nobody", "", proto + `-authority $GRPC_DOMAIN $PROXY` + hello, grpcUnauthenticated},
		{"a wrong token", "", proto + `-authority $GRPC_DOMAIN -H "Authorization: OAuth wrong" $PROXY` + hello, grpcUnauthenticated},
		{"an unknown id", "alice", proto + `-authority 00000000.task-proxy.localhost -H "Authorization: OAuth $TOKEN" $PROXY` + hello, grpcNotFound},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r result
			eventually(t, "answer", 15*time.Second, func() error {
				r = s.shell(t.Context(), t, s.dir, s.env(c.login), "grpcurl -plaintext "+c.arguments)
				if r.code == 64+14 {
					return errNotYet
				}
				return nil
			})
			if r.code != c.want {
				t.Errorf("as %q: grpcurl -plaintext %s\ngot exit code %d, want %d\n%s%s", c.login, c.arguments, r.code, c.want, r.stdout, r.stderr)
			}
		})
	}
	t.Run("list by reflection", func(t *testing.T) {
		got := s.ok(t, "alice", `grpcurl -plaintext -authority $GRPC_DOMAIN -H "Authorization: OAuth $TOKEN" $PROXY list`)
		if !strings.Contains(got, "helloworld.Greeter\n") {
			t.Errorf("got %q, want helloworld.Greeter in it", got)
		}
	})
	t.Run("jobs answer in turn", func(t *testing.T) {
		var jobs [4]string
		for i := range jobs {
			reply := s.hello(t, proto+`-authority $GRPC_DOMAIN -H "Authorization: OAuth $TOKEN" $PROXY`+hello)
			jobs[i] = reply.JobID
			if reply.User != "alice" {
				t.Errorf("the job was told that %q calls, want alice", reply.User)
			}
			for _, name := range reply.Metadata {
				if name == "authorization" || name == "cookie" {
					t.Errorf("%s reached the job", name)
				}
			}
		}
		if jobs[0] == jobs[1] || jobs[0] != jobs[2] || jobs[1] != jobs[3] {
			t.Errorf("got answers by jobs %q, want two in turn", jobs)
		}
	})
	t.Run("a stream", func(t *testing.T) {
		got := s.ok(t, "alice", `grpcurl -plaintext -authority $GRPC_DOMAIN -H "Authorization: OAuth $TOKEN" -d '{"count":3,"pause_ms":10}' $PROXY helloworld.Greeter/SayHelloStream`)
		if n := strings.Count(got, `"message"`); n != 3 {
			t.Errorf("got %d messages, want 3: %s", n, got)
		}
	})
}

type reply struct {
	Message  string   `json:"message"`
	JobID    string   `json:"jobId"`
	User     string   `json:"user"`
	Metadata []string `json:"metadata"`
}

func (s *stage) hello(t *testing.T, arguments string) (r reply) {
	t.Helper()
	printed := s.ok(t, "alice", "grpcurl -plaintext "+arguments)
	if err := json.Unmarshal([]byte(printed), &r); err != nil {
		t.Fatalf("%v in %s", err, printed)
	}
	return r
}
