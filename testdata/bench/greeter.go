package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// raw carries messages as bytes: what the load sends is written down below, and no generated code is needed.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error { *v.(*[]byte) = data; return nil }
func (raw) Name() string                       { return "proto" }

// A request and its answer, as protobuf: field 1 is a string.
var (
	world = []byte("\x0a\x05world")
	hello = append([]byte{0x0a, 11}, "Hello world"...)
)

const (
	sayHello = "/bench.Greeter/SayHello" // unary; an empty request is an error
	stream   = "/bench.Greeter/Stream"   // answers with 100 messages of 1 KiB
	streamed = 100
)

func newGreeter() *grpc.Server {
	s := grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.MaxConcurrentStreams(10_000))
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "bench.Greeter",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "SayHello", Handler: handleHello}},
		Streams:     []grpc.StreamDesc{{StreamName: "Stream", ServerStreams: true, Handler: handleStream}},
	}, struct{}{})
	return s
}

func handleHello(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	var in []byte
	if err := decode(&in); err != nil {
		return nil, err
	}
	if len(in) == 0 {
		return nil, status.Error(codes.InvalidArgument, "no name")
	}
	return &hello, nil
}

func handleStream(_ any, s grpc.ServerStream) error {
	var in []byte
	if err := s.RecvMsg(&in); err != nil {
		return err
	}
	for range streamed {
		if err := s.SendMsg(&kibibyte); err != nil {
			return err
		}
	}
	return nil
}

func dialGRPC(addr, host string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(host),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
}

// grpcCheck says whether a unary call, an error's status and a stream come through: h2load sees nothing but HTTP 200.
func grpcCheck(args []string) error {
	fs := flags("grpc-check")
	addr, host, token := target(fs)
	if err := fs.Parse(args); err != nil {
		return err
	}
	conn, err := dialGRPC(*addr, *host)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), "authorization", *token), 5*time.Second)
	defer cancel()

	var out []byte
	if err := conn.Invoke(ctx, sayHello, &world, &out, grpc.WaitForReady(true)); err != nil {
		return fmt.Errorf("unary: %w", err)
	}
	if err := conn.Invoke(ctx, sayHello, new([]byte), &out); status.Code(err) != codes.InvalidArgument {
		return fmt.Errorf("a call that must fail with InvalidArgument: %w", err)
	}
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, stream)
	if err != nil {
		return err
	}
	if err := errors.Join(s.SendMsg(&world), s.CloseSend()); err != nil {
		return err
	}
	for n := 0; ; n++ {
		switch err := s.RecvMsg(&out); {
		case err == io.EOF && n == streamed:
			return nil
		case err != nil:
			return fmt.Errorf("stream, after %d messages: %w", n, err)
		}
	}
}
