package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"taskproxy/auth"
	"taskproxy/discovery"
	"taskproxy/ytclient"
)

// grpcJob is a real gRPC server: it tells its name, echoes streams, and fails when it is asked to.
type grpcJob struct {
	testpb.UnimplementedTestServiceServer
	tb   testing.TB
	name string
}

func (j *grpcJob) UnaryCall(ctx context.Context, r *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	checkNoSecret(j.tb, "metadata", http.Header(md))
	if s := r.GetResponseStatus(); s.GetCode() != 0 {
		return nil, status.Error(codes.Code(s.GetCode()), s.GetMessage())
	}
	_ = grpc.SetTrailer(ctx, metadata.Pairs("x-sum", "42", "x-yt-taskproxy-error", "forged"))
	user := ""
	if v := md.Get(UserHeader); len(v) == 1 {
		user = v[0]
	}
	return &testpb.SimpleResponse{ServerId: j.name, Username: user, Payload: r.GetPayload()}, nil
}

func (j *grpcJob) FullDuplexCall(stream grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(&testpb.StreamingOutputCallResponse{Payload: r.GetPayload()}); err != nil {
			return err
		}
	}
}

func serveGRPC(tb testing.TB, name string) string {
	tb.Helper()
	l := listen(tb)
	server := grpc.NewServer()
	testpb.RegisterTestServiceServer(server, &grpcJob{tb: tb, name: name})
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	tb.Cleanup(func() { server.Stop(); <-done })
	return l.Addr().String()
}

// dialGRPC returns a client that reaches a service by its host, with alice's token or other metadata.
func (w *world) dialGRPC(host string, md ...string) testpb.TestServiceClient {
	w.tb.Helper()
	if md == nil {
		md = []string{"authorization", aliceOAuth}
	}
	with := func(ctx context.Context) context.Context { return metadata.AppendToOutgoingContext(ctx, md...) }
	conn, err := grpc.NewClient("passthrough:///"+w.addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(host),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return invoke(with(ctx), method, req, reply, cc, opts...)
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return stream(with(ctx), desc, cc, method, opts...)
		}))
	if err != nil {
		w.tb.Fatal(err)
	}
	w.tb.Cleanup(func() { conn.Close() })
	return testpb.NewTestServiceClient(conn)
}

func TestGRPC(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{Protocol: discovery.GRPC}, serveGRPC(t, "one"), serveGRPC(t, "two"))
	client := w.dialGRPC(host(s))

	t.Run("unary, in turn, with trailers", func(t *testing.T) {
		var last string
		for range 6 {
			var trailer metadata.MD
			res, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: &testpb.Payload{Body: []byte("hi")}}, grpc.Trailer(&trailer))
			if err != nil {
				t.Fatal(err)
			}
			if string(res.GetPayload().GetBody()) != "hi" || res.GetUsername() != "alice" || res.GetServerId() == last {
				t.Errorf("got %v after %s", res, last)
			}
			if got := trailer.Get("x-sum"); len(got) != 1 || got[0] != "42" {
				t.Errorf("trailers %v", trailer)
			}
			if len(trailer.Get("x-yt-taskproxy-error")) > 0 {
				t.Errorf("a job spoke in our name: %v", trailer)
			}
			last = res.GetServerId()
		}
	})
	// The job's own failures come as headers without a body; many times, since it is a race that would break them.
	t.Run("status of the job", func(t *testing.T) {
		for range 200 {
			_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{ResponseStatus: &testpb.EchoStatus{Code: 9, Message: "not now: ü"}})
			if status.Code(err) != codes.FailedPrecondition || status.Convert(err).Message() != "not now: ü" {
				t.Fatalf("got %v", err)
			}
		}
	})
	t.Run("stream", func(t *testing.T) {
		stream, err := client.FullDuplexCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			want := strconv.Itoa(i)
			if err := stream.Send(&testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: []byte(want)}}); err != nil {
				t.Fatal(err)
			}
			res, err := stream.Recv()
			if err != nil || string(res.GetPayload().GetBody()) != want {
				t.Fatalf("got %v, %v, want %s", res, err, want)
			}
		}
		_ = stream.CloseSend()
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("got %v, want EOF", err)
		}
	})
	t.Run("bytes that are no multiple of a buffer", func(t *testing.T) {
		body := make([]byte, 1<<20+7)
		res, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: &testpb.Payload{Body: body}})
		if err != nil || len(res.GetPayload().GetBody()) != len(body) {
			t.Fatalf("got %d bytes, %v", len(res.GetPayload().GetBody()), err)
		}
	})
}

// Our failures reach gRPC callers as statuses, in answers that are nothing but one block of headers.
func TestGRPCFailures(t *testing.T) {
	t.Parallel()
	authorizer := people()
	authorizer.authorize = func(_ context.Context, login, operation string, _ []ytclient.Permission) (auth.Decision, error) {
		switch {
		case operation == "1-2-3e8-ff":
			return auth.Decision{}, auth.ErrUnavailable
		case login != "alice":
			return auth.Decision{}, auth.ErrDenied
		}
		return auth.Decision{}, nil
	}
	w := newWorld(t, func(c *Config) { c.Authorizer = authorizer })
	up := w.publish(discovery.Service{Protocol: discovery.GRPC}, serveGRPC(t, "one"))
	down := w.publish(discovery.Service{Protocol: discovery.GRPC}, deadAddr(t))
	empty := w.publish(discovery.Service{Protocol: discovery.GRPC})
	undecided := w.publish(discovery.Service{Protocol: discovery.GRPC, OperationID: "1-2-3e8-ff"}, serveGRPC(t, "two"))
	broken := w.publish(discovery.Service{Protocol: discovery.GRPC}, rawAnswer(t, "HTTP/1.1 400 Bad Request\r\n\r\n"))
	for _, c := range []struct {
		name, host string
		md         []string
		code       codes.Code
		reason     string
	}{
		{"nobody", host(up), []string{"x", "y"}, codes.Unauthenticated, "no_credentials"},
		{"nobody, own host", base, []string{"x", "y"}, codes.Unauthenticated, "no_credentials"},
		{"bob", host(up), []string{"authorization", "OAuth " + bobToken}, codes.PermissionDenied, "access_denied"},
		{"unknown", "00000000." + base, nil, codes.NotFound, "no_such_service"},
		{"conflict", host(up), []string{"authorization", aliceOAuth, "x-yt-taskproxy-id", down.ID}, codes.InvalidArgument, "ambiguous_service"},
		{"refused", host(down), nil, codes.Unavailable, "connect_failed"},
		{"no endpoints", host(empty), nil, codes.Unavailable, "no_endpoints"},
		{"cluster away", host(undecided), nil, codes.Unavailable, "cluster_unavailable"},
		{"no HTTP/2", host(broken), nil, codes.Unavailable, "upstream_broken"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var header, trailer metadata.MD
			_, err := w.dialGRPC(c.host, c.md...).UnaryCall(t.Context(), &testpb.SimpleRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
			if status.Code(err) != c.code {
				t.Errorf("got %v, want %v", err, c.code)
			}
			// grpc-go shows the one block of a trailers-only answer as the trailer.
			if got := trailer.Get("x-yt-taskproxy-error"); len(got) != 1 || got[0] != c.reason || len(trailer.Get("x-request-id")) != 1 {
				t.Errorf("header %v, trailer %v, want %s", header, trailer, c.reason)
			}
		})
	}
}

func TestGRPCDeadlineOfAnIdleStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.IdleTimeout = 50 * time.Millisecond })
	silent := listen(t)
	defer silent.Close()
	s := w.publish(discovery.Service{Protocol: discovery.GRPC}, silent.Addr().String())
	_, err := w.dialGRPC(host(s)).UnaryCall(t.Context(), &testpb.SimpleRequest{})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("got %v", err)
	}
}

func TestGRPCContentTypes(t *testing.T) {
	t.Parallel()
	for ct, want := range map[string]bool{
		"application/grpc": true, "application/grpc+proto": true, "Application/GRPC; x": true, "application/grpc-web-text": true,
		"": false, "application/grpcx": false, "application/json": false, "text/plain; application/grpc": false,
	} {
		if got := isGRPC(http.Header{"Content-Type": {ct}}); got != want {
			t.Errorf("%q: got %t", ct, got)
		}
	}
	if got, want := grpcMessage("100% ü\n"), "100%25 %C3%BC%0A"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
