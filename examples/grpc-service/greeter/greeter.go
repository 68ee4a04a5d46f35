// Package greeter is a small gRPC service that tells which job answered, with reflection and health, so that grpcurl can
// call it without the proto file and the proxy's users can see it working.
package greeter

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"taskproxy/examples/grpc-service/helloworld"
	"taskproxy/examples/job"
)

// userKey is where the task proxy tells the caller's login. It informs: whoever reaches the job's port without the proxy
// can write it too, so nothing may be decided by it.
const userKey = "x-yt-taskproxy-user"

const (
	defaultReplies = 5
	maxReplies     = 1000
	defaultPause   = time.Second
	maxPause       = time.Minute
	maxName        = 256 // bytes

	stopTimeout = 5 * time.Second
)

// Serve is the job's work: it answers on the listener until the context ends, gives running calls a few seconds, and ends
// the others.
func Serve(ctx context.Context, info job.Info, listener net.Listener) error {
	server := grpc.NewServer()
	helloworld.RegisterGreeterServer(server, &greeter{info: info, ending: ctx.Done()})
	reflection.Register(server)
	healthy := health.NewServer()
	healthy.SetServingStatus(helloworld.Greeter_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(server, healthy)

	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve gRPC: %w", err)
	case <-ctx.Done():
	}
	healthy.Shutdown() // watchers learn it; their streams end with Stop
	late := time.AfterFunc(stopTimeout, server.Stop)
	defer late.Stop()
	server.GracefulStop()
	if err := <-served; err != nil {
		return fmt.Errorf("serve gRPC: %w", err)
	}
	return nil
}

// greeter implements helloworld.Greeter.
type greeter struct {
	helloworld.UnimplementedGreeterServer
	info   job.Info
	ending <-chan struct{} // closed when the job is told to end
}

func (g *greeter) SayHello(ctx context.Context, request *helloworld.HelloRequest) (*helloworld.HelloReply, error) {
	return g.reply(ctx, request.GetName())
}

func (g *greeter) SayHelloStream(request *helloworld.HelloStreamRequest, stream grpc.ServerStreamingServer[helloworld.HelloReply]) error {
	replies := request.GetCount()
	if replies == 0 {
		replies = defaultReplies
	}
	if replies > maxReplies {
		return status.Errorf(codes.InvalidArgument, "count=%d: want at most %d", replies, maxReplies)
	}
	pause := time.Duration(request.GetPauseMs()) * time.Millisecond
	if pause == 0 {
		pause = defaultPause
	}
	if pause > maxPause {
		return status.Errorf(codes.InvalidArgument, "pause_ms=%d: want at most %d", request.GetPauseMs(), maxPause.Milliseconds())
	}
	reply, err := g.reply(stream.Context(), request.GetName())
	if err != nil {
		return err
	}

	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for sent := uint32(0); ; {
		if err := stream.Send(reply); err != nil {
			return err
		}
		if sent++; sent == replies {
			return nil
		}
		select {
		case <-ticker.C:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-g.ending:
			return status.Error(codes.Unavailable, "the job ends")
		}
	}
}

// reply greets and tells which job does, who called, and what metadata arrived.
func (g *greeter) reply(ctx context.Context, name string) (*helloworld.HelloReply, error) {
	if len(name) > maxName {
		return nil, status.Errorf(codes.InvalidArgument, "name has %d bytes: want at most %d", len(name), maxName)
	}
	arrived, _ := metadata.FromIncomingContext(ctx)
	user := ""
	if logins := arrived.Get(userKey); len(logins) > 0 {
		user = logins[0]
	}
	for _, fallback := range []string{user, "stranger"} {
		if name == "" {
			name = fallback
		}
	}
	return &helloworld.HelloReply{
		Message:  fmt.Sprintf("Hello, %s! This is %s.", name, g.info),
		JobId:    g.info.JobID,
		Task:     g.info.Task,
		Index:    g.info.Index,
		User:     user,
		Metadata: slices.Sorted(maps.Keys(arrived)),
	}, nil
}
