package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"taskproxy/examples/grpc-service/greeter"
	"taskproxy/examples/http-service/httpservice"
	"taskproxy/examples/job"
	"taskproxy/examples/websocket-service/livepage"
)

// jobCommand is the hidden first argument with which the demo's executable is a job of a sample.
const jobCommand = "job"

// pollPeriod is the pause between two looks at something that is about to become true.
const pollPeriod = 50 * time.Millisecond

// sample is a service that the demo launches.
type sample struct {
	name       string // the argument after jobCommand
	title      string
	task       string
	service    string
	jobs       int
	annotation map[string]any // task_proxy
	serve      job.Service
}

// samples in the order in which they are shown. Each is launched as its README says.
var samples = []sample{
	{
		name: "http-service", title: "HTTP sample", task: "example_http_server", service: "port_0", jobs: 2,
		annotation: map[string]any{"enabled": true}, // publishes every port
		serve:      httpservice.Serve,
	},
	{
		name: "grpc-service", title: "gRPC sample", task: "example_grpc_server", service: "server", jobs: 2,
		annotation: named("example_grpc_server", "server", "grpc"),
		serve:      greeter.Serve,
	},
	{
		name: "websocket-service", title: "WebSocket sample", task: "example_page", service: "ui", jobs: 1,
		annotation: named("example_page", "ui", "http"),
		serve:      livepage.Serve,
	},
}

// named is the extended form of the annotation: port 0 of the task is the service.
func named(task, service, protocol string) map[string]any {
	return map[string]any{
		"enabled": true,
		"tasks_info": map[string]any{
			task: map[string]any{service: map[string]any{"protocol": protocol, "port_index": 0}},
		},
	}
}

// service is a launched sample.
type service struct {
	sample
	operation string
	row       serviceRow // once it is discovered
}

// serviceRow is a row of the services table. The tags are the ready file's too.
type serviceRow struct {
	Domain      string `json:"domain"`
	OperationID string `json:"operation_id"`
	TaskName    string `json:"task_name"`
	Service     string `json:"service"`
	Protocol    string `json:"protocol"`
}

// id is the service's name in the routing header: the first label of its domain.
func (s *service) id() string {
	id, _, _ := strings.Cut(s.row.Domain, ".")
	return id
}

// runJob is the process of one sample's job.
func runJob(ctx context.Context, args []string, getenv func(string) string, stderr io.Writer) int {
	for _, sample := range samples {
		if len(args) == 1 && args[0] == sample.name {
			if err := job.Run(ctx, getenv, stderr, sample.serve); err != nil {
				fmt.Fprintf(stderr, "%s: %v\n", sample.name, err)
				return 1
			}
			return 0
		}
	}
	fmt.Fprintf(stderr, "demo: no sample %q\n", args)
	return 2
}

// startSamples launches the samples as alice and returns when each runs.
func startSamples(ctx context.Context, cluster *cluster) ([]*service, error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the demo's executable: %w", err)
	}
	alice := cluster.as("alice")
	var services []*service
	for _, sample := range samples {
		operation, err := startOperation(ctx, alice, sample, executable)
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", sample.name, err)
		}
		services = append(services, &service{sample: sample, operation: operation})
	}
	for _, service := range services {
		if err := service.awaitJobs(ctx, alice); err != nil {
			return nil, fmt.Errorf("start %s: %w", service.name, err)
		}
	}
	return services, nil
}

func startOperation(ctx context.Context, client *client, sample sample, executable string) (string, error) {
	answer, err := client.change(ctx, "start_operation", map[string]any{
		"operation_type": "vanilla",
		"spec": map[string]any{
			"title": sample.title,
			"tasks": map[string]any{
				sample.task: map[string]any{
					"job_count":  sample.jobs,
					"port_count": 1,
					"command":    "exec " + shellQuote(executable) + " " + jobCommand + " " + sample.name,
				},
			},
			"annotations": map[string]any{"task_proxy": sample.annotation},
		},
	})
	if err != nil {
		return "", err
	}
	var started struct {
		OperationID string `json:"operation_id"`
	}
	if err := json.Unmarshal(answer, &started); err != nil || started.OperationID == "" {
		return "", fmt.Errorf("start_operation answered %q", answer)
	}
	return started.OperationID, nil
}

// awaitJobs returns when the operation runs with all its jobs.
func (s *service) awaitJobs(ctx context.Context, client *client) error {
	return await(ctx, func(ctx context.Context) error {
		answer, err := client.query(ctx, "list_jobs", map[string]any{"operation_id": s.operation, "job_state": "running"})
		if err != nil {
			return err
		}
		var running struct {
			Jobs []struct{} `json:"jobs"`
		}
		if err := json.Unmarshal(answer, &running); err != nil {
			return fmt.Errorf("list_jobs: %w", err)
		}
		if len(running.Jobs) < s.jobs {
			return fmt.Errorf("%d of %d jobs run", len(running.Jobs), s.jobs)
		}
		return nil
	})
}

// await looks again and again until condition returns nil. After stepTimeout it gives up with the last answer.
func await(ctx context.Context, condition func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	ticker := time.NewTicker(pollPeriod)
	defer ticker.Stop()
	for {
		err := condition(limited)
		if err == nil {
			return nil
		}
		select {
		case <-limited.Done():
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("not after %s: %w", stepTimeout, err)
		case <-ticker.C:
		}
	}
}

func countJobs(services []*service) (count int) {
	for _, service := range services {
		count += service.jobs
	}
	return count
}

// shellWord is the text itself if the shell leaves it alone, and quoted otherwise.
func shellWord(text string) string {
	if strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-") == "" && text != "" {
		return text
	}
	return shellQuote(text)
}

// shellQuote makes one word of any text.
func shellQuote(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
