package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"taskproxy/examples/grpc-service/helloworld"
	"taskproxy/examples/http-service/httpservice"
)

// callTimeout bounds one trial call.
const callTimeout = 5 * time.Second

// discover returns when the services table has a row for every service.
func discover(ctx context.Context, cluster *cluster, services []*service) error {
	robot := cluster.as(robot)
	return await(ctx, func(ctx context.Context) error {
		answer, err := robot.query(ctx, "read_table", map[string]any{"path": servicesTable})
		if err != nil {
			return fmt.Errorf("the services table: %w", err)
		}
		rows := map[[3]string]serviceRow{}
		for decoder := json.NewDecoder(bytes.NewReader(answer)); ; {
			var row serviceRow
			if err := decoder.Decode(&row); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return fmt.Errorf("the services table: %w", err)
			}
			rows[[3]string{row.OperationID, row.TaskName, row.Service}] = row
		}
		for _, service := range services {
			row, found := rows[[3]string{service.operation, service.task, service.service}]
			if !found {
				return fmt.Errorf("the services table has no row for %s", service.name)
			}
			service.row = row
		}
		return nil
	})
}

// reach returns when every job of every service has answered the user through the proxy.
func reach(ctx context.Context, address string, user user, services []*service) error {
	for _, service := range services {
		if err := service.reach(ctx, address, user); err != nil {
			return fmt.Errorf("reach %s through the proxy: %w", service.name, err)
		}
	}
	return nil
}

func (s *service) reach(ctx context.Context, address string, user user) error {
	call := callHTTP
	switch {
	case s.row.Protocol == "grpc":
		healthy := func(ctx context.Context) error { return checkHealth(ctx, address, s.row.Domain, user) }
		if err := await(ctx, healthy); err != nil {
			return err
		}
		call = callGRPC
	case s.name == pageService:
		call = callWebSocket
	}
	answered := map[string]bool{}
	return await(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		// As many calls as jobs: round robin asks each once.
		for range s.jobs {
			job, err := call(ctx, address, s.row.Domain, user)
			if err != nil {
				return err
			}
			answered[job] = true
		}
		if len(answered) < s.jobs {
			return fmt.Errorf("%d of %d jobs have answered", len(answered), s.jobs)
		}
		return nil
	})
}

// callHTTP returns the job that answered.
func callHTTP(ctx context.Context, address, domain string, user user) (job string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return "", err
	}
	request.Host = domain
	request.Header.Set("Authorization", "OAuth "+user.Token)
	request.Header.Set("Accept", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %.256s", response.Status, bytes.TrimSpace(body))
	}
	var answer httpservice.Answer
	if err := json.Unmarshal(body, &answer); err != nil {
		return "", fmt.Errorf("the answer is not the sample's: %w", err)
	}
	return answer.Job.JobID, nil
}

// callGRPC returns the job that greeted.
func callGRPC(ctx context.Context, address, domain string, user user) (job string, err error) {
	connection, err := dialGRPC(address, domain)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "OAuth "+user.Token)
	reply, err := helloworld.NewGreeterClient(connection).SayHello(ctx, &helloworld.HelloRequest{})
	return reply.GetJobId(), err
}

// checkHealth asks with gRPC's own health service.
func checkHealth(ctx context.Context, address, domain string, user user) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	connection, err := dialGRPC(address, domain)
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "OAuth "+user.Token)
	health, err := healthpb.NewHealthClient(connection).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		return err
	}
	if health.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("its health is %s", health.GetStatus())
	}
	return nil
}

// dialGRPC connects to the proxy in the name of a service.
func dialGRPC(address, domain string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(domain))
}

// callWebSocket sends a message and waits for its echo.
func callWebSocket(ctx context.Context, address, domain string, user user) (job string, err error) {
	connection, response, err := websocket.Dial( //nolint:bodyclose // the library closes it, its documentation says
		ctx, "ws://"+address+"/echo", &websocket.DialOptions{
			Host:       domain,
			HTTPHeader: http.Header{"Authorization": {"OAuth " + user.Token}},
		})
	if err != nil {
		if response != nil {
			return "", fmt.Errorf("%s: %w", response.Status, err)
		}
		return "", err
	}
	defer connection.CloseNow()
	const message = "hello"
	if err := connection.Write(ctx, websocket.MessageText, []byte(message)); err != nil {
		return "", err
	}
	if _, echo, err := connection.Read(ctx); err != nil {
		return "", err
	} else if string(echo) != message {
		return "", fmt.Errorf("got %q back, want %q", echo, message)
	}
	return "", connection.Close(websocket.StatusNormalClosure, "")
}

// dialable is the address to call for a listener's own, which may stand for all interfaces.
func dialable(address string) string {
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return address
}
