package greeter_test

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"taskproxy/examples/grpc-service/greeter"
	"taskproxy/examples/grpc-service/helloworld"
	"taskproxy/examples/job"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start serves the greeter on a real socket until the test or the returned function ends it.
func start(t *testing.T) (connection *grpc.ClientConn, end func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	info := job.Info{OperationID: "1-2-3-4", Task: "server", JobID: "5-6-7-8", Index: "1", Port: 20001}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- greeter.Serve(ctx, info, listener) }()
	connection, err = grpc.NewClient("passthrough:///"+listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		connection.Close()
		cancel()
		if err := <-served; err != nil {
			t.Errorf("got %v, want a clean end", err)
		}
	})
	return connection, cancel
}

func TestSayHello(t *testing.T) {
	t.Parallel()
	connection, _ := start(t)
	client := helloworld.NewGreeterClient(connection)
	tests := []struct {
		name        string
		login       string
		request     string
		wantMessage string
	}{
		{name: "nobody", wantMessage: "Hello, stranger! This is job 5-6-7-8 (task server, index 1)."},
		{name: "by login", login: "alice", wantMessage: "Hello, alice! This is job 5-6-7-8 (task server, index 1)."},
		{name: "by name", login: "alice", request: "you", wantMessage: "Hello, you! This is job 5-6-7-8 (task server, index 1)."},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			if test.login != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, "x-yt-taskproxy-user", test.login)
			}
			reply, err := client.SayHello(ctx, &helloworld.HelloRequest{Name: test.request})
			if err != nil {
				t.Fatal(err)
			}
			if got := reply.GetMessage(); got != test.wantMessage {
				t.Errorf("got %q, want %q", got, test.wantMessage)
			}
			if got := reply.GetUser(); got != test.login {
				t.Errorf("got user %q, want %q", got, test.login)
			}
			if got := reply.GetJobId(); got != "5-6-7-8" {
				t.Errorf("got job %q, want the one of the environment", got)
			}
			if got, want := slices.Contains(reply.GetMetadata(), "x-yt-taskproxy-user"), test.login != ""; got != want {
				t.Errorf("got metadata %q, want the login's key: %t", reply.GetMetadata(), want)
			}
		})
	}
}

func TestSayHelloRefusesLongNames(t *testing.T) {
	t.Parallel()
	connection, _ := start(t)
	request := &helloworld.HelloRequest{Name: strings.Repeat("x", 257)}
	_, err := helloworld.NewGreeterClient(connection).SayHello(t.Context(), request)
	if got, want := status.Code(err), codes.InvalidArgument; got != want {
		t.Fatalf("got %v, want %v", err, want)
	}
}

func TestSayHelloStream(t *testing.T) {
	t.Parallel()
	connection, _ := start(t)
	tests := []struct {
		name    string
		request *helloworld.HelloStreamRequest
		want    int
		code    codes.Code
	}{
		{name: "three", request: &helloworld.HelloStreamRequest{Count: 3, PauseMs: 1}, want: 3},
		{name: "default count", request: &helloworld.HelloStreamRequest{PauseMs: 1}, want: 5},
		{name: "too many", request: &helloworld.HelloStreamRequest{Count: 1001}, code: codes.InvalidArgument},
		{name: "too slow", request: &helloworld.HelloStreamRequest{PauseMs: 60_001}, code: codes.InvalidArgument},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			stream, err := helloworld.NewGreeterClient(connection).SayHelloStream(t.Context(), test.request)
			if err != nil {
				t.Fatal(err)
			}
			got := 0
			for {
				reply, err := stream.Recv()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					if status.Code(err) != test.code {
						t.Fatalf("got %v, want code %v", err, test.code)
					}
					break
				}
				if reply.GetJobId() != "5-6-7-8" {
					t.Fatalf("got job %q, want the one of the environment", reply.GetJobId())
				}
				got++
			}
			if got != test.want {
				t.Errorf("got %d replies, want %d", got, test.want)
			}
		})
	}
}

// A job that is told to end must not wait for streams that go on for long.
func TestEndOfJobEndsStreams(t *testing.T) {
	t.Parallel()
	connection, end := start(t)
	request := &helloworld.HelloStreamRequest{Count: 1000, PauseMs: 60_000}
	stream, err := helloworld.NewGreeterClient(connection).SayHelloStream(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	end()
	// The server's own end would break the connection some seconds later, with the same code and other words.
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable || status.Convert(err).Message() != "the job ends" {
		t.Fatalf("got %v, want UNAVAILABLE because the job ends", err)
	}
}

func TestHealthAndReflection(t *testing.T) {
	t.Parallel()
	connection, _ := start(t)
	for _, service := range []string{"", "helloworld.Greeter"} {
		health, err := healthpb.NewHealthClient(connection).Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil || health.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("service %q: got %v, %v, want SERVING", service, health, err)
		}
	}

	stream, err := reflectionpb.NewServerReflectionClient(connection).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
	}); err != nil {
		t.Fatal(err)
	}
	response, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, service := range response.GetListServicesResponse().GetService() {
		got = append(got, service.GetName())
	}
	if !slices.Contains(got, "helloworld.Greeter") {
		t.Errorf("got services %q, want helloworld.Greeter among them", got)
	}
}
