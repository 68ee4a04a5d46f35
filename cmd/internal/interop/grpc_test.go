//go:build e2e

package interop_test

import (
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// grpcCases are the interoperability client's cases that we run, with further flags of some.
var grpcCases = map[string][]string{
	"empty_unary":                 nil,
	"large_unary":                 nil,
	"client_streaming":            nil,
	"server_streaming":            nil,
	"ping_pong":                   nil,
	"empty_stream":                nil,
	"timeout_on_sleeping_server":  nil,
	"cancel_after_begin":          nil,
	"cancel_after_first_response": nil,
	"status_code_and_message":     nil,
	"special_status_message":      nil,
	"custom_metadata":             nil,
	"unimplemented_method":        nil,
	"unimplemented_service":       nil,
	// The metrics arrive in a trailer; the client's policy of this name hands them to the case.
	"orca_per_rpc": {`--service_config_json={"loadBalancingConfig":[{"test_backend_metrics_load_balancer":{}}]}`},
	// The client's help does not list these two. Their limits are for a machine that does nothing else; ours may.
	"rpc_soak":     soak,
	"channel_soak": soak,
}

var soak = []string{"--soak_iterations=20", "--soak_num_threads=2", "--soak_overall_timeout_seconds=50", "--soak_per_iteration_max_acceptable_latency_ms=10000"}

// grpcSkipped are the others.
var grpcSkipped = map[string]string{
	"compute_engine_creds":               "needs a machine in Google's cloud",
	"compute_engine_channel_credentials": "needs a machine in Google's cloud",
	"service_account_creds":              "needs a key of Google's cloud, and TLS",
	"jwt_token_creds":                    "needs a key of Google's cloud, and TLS",
	"per_rpc_creds":                      "needs a key of Google's cloud, and TLS",
	"oauth2_auth_token":                  "needs a key of Google's cloud, and TLS",
	"google_default_credentials":         "needs a key of Google's cloud",
	"pick_first_unary":                   "the server has no id to answer with, so the case fails without the proxy too",
	"orca_oob":                           "the library opens its stream of metrics below the client, where the flag for metadata does not reach: no caller can be identified",
}

// TestE2EGRPCInterop runs the gRPC project's interoperability client against its server, which is a job.
func TestE2EGRPCInterop(t *testing.T) {
	client, server := program(t, "GRPC_INTEROP_CLIENT"), program(t, "GRPC_INTEROP_SERVER")
	t.Run("no case is forgotten", func(t *testing.T) {
		help := run(t, t.TempDir(), nil, client, "--help")
		listed := regexp.MustCompile(`(?m)^\s+([a-z0-9_]+): .*[;.]`).FindAllStringSubmatch(help.stderr, -1)
		if len(listed) < 15 {
			t.Fatalf("found %d cases in its help:\n%s", len(listed), help.stderr)
		}
		for _, m := range listed {
			if _, ok := grpcCases[m[1]]; !ok && grpcSkipped[m[1]] == "" {
				t.Errorf("%s is neither run nor skipped for a reason", m[1])
			}
		}
	})
	w := newWorld(t)
	service := w.launch(t, "grpc", "grpc", server+" --port=${YT_PORT_0}")
	call := func(t *testing.T, address, name string, flags ...string) result {
		t.Helper()
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		flags = append(flags, "--server_host="+host, "--server_port="+port, "--test_case="+name)
		return run(t, t.TempDir(), []string{"GRPC_GO_LOG_SEVERITY_LEVEL=error"}, client, append(flags, grpcCases[name]...)...)
	}
	who := "authorization:Bearer " + w.alice.Token
	which := "x-yt-taskproxy-id:" + service.id
	for _, name := range slices.Sorted(maps.Keys(grpcCases)) {
		t.Run(name, func(t *testing.T) {
			if r := call(t, w.proxy, name, "--additional_metadata="+who+";"+which); r.code != 0 {
				direct := call(t, service.direct, name)
				t.Errorf("exit code %d\n%s%s\nwithout the proxy: exit code %d\n%s%s", r.code, tail(r.stdout), tail(r.stderr), direct.code, tail(direct.stdout), tail(direct.stderr))
			}
		})
	}
	// What passes above went through the proxy: it is the proxy that asks who is calling.
	t.Run("nobody", func(t *testing.T) {
		if r := call(t, w.proxy, "empty_unary", "--additional_metadata="+which); r.code == 0 || !strings.Contains(r.stderr, "Unauthenticated") {
			t.Errorf("got exit code %d and %s%s, want a failure, Unauthenticated", r.code, tail(r.stdout), tail(r.stderr))
		}
	})
}
