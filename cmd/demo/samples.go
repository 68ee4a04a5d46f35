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

// sample is an operation that the demo launches.
type sample struct {
	title       string
	tasks       []task
	annotations map[string]any
	asks        bool // its jobs ask the cluster, in the name of the user who started them
}

// task of a sample.
type task struct {
	name     string
	process  string // the argument after jobCommand
	jobs     int
	ports    int
	run      func(ctx context.Context, getenv func(string) string, stderr io.Writer) error
	services []published
}

// published is a service of a task: what the demo calls it, and what the cluster does.
type published struct{ name, service string }

// samples in the order in which they are shown. The first three are launched as their READMEs say.
var samples = []sample{
	{
		title: "HTTP sample",
		tasks: []task{{
			name: "example_http_server", process: "http-service", jobs: 2, ports: 1, run: serving(httpservice.Serve),
			services: []published{{"http-service", "port_0"}},
		}},
		annotations: map[string]any{"task_proxy": map[string]any{"enabled": true}}, // publishes every port
	},
	{
		title: "gRPC sample",
		tasks: []task{{
			name: "example_grpc_server", process: "grpc-service", jobs: 2, ports: 1, run: serving(greeter.Serve),
			services: []published{{"grpc-service", "server"}},
		}},
		annotations: named("example_grpc_server", "server", "grpc"),
	},
	{
		title: "WebSocket sample",
		tasks: []task{{
			name: "example_page", process: pageService, jobs: 1, ports: 1, run: serving(livepage.Serve),
			services: []published{{pageService, "ui"}},
		}},
		annotations: named("example_page", "ui", "http"),
	},
	sparkDriver,
	sparkCluster,
}

// pageService is the sample that is made for browsers.
const pageService = "websocket-service"

// serving is a job that serves at its first port.
func serving(serve job.Service) func(context.Context, func(string) string, io.Writer) error {
	return func(ctx context.Context, getenv func(string) string, stderr io.Writer) error {
		return job.Run(ctx, getenv, stderr, serve)
	}
}

// named is the extended form of the annotation: port 0 of the task is the service.
func named(task, service, protocol string) map[string]any {
	return map[string]any{"task_proxy": map[string]any{
		"enabled": true,
		"tasks_info": map[string]any{
			task: map[string]any{service: map[string]any{"protocol": protocol, "port_index": 0}},
		},
	}}
}

// service is one of a launched sample.
type service struct {
	published
	task      string
	jobs      int
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

// find returns the service of the name that the demo gave it; it must be there.
func find(services []*service, name string) *service {
	for _, service := range services {
		if service.name == name {
			return service
		}
	}
	panic("no service " + name)
}

// runJob is the process of one sample's job.
func runJob(ctx context.Context, args []string, getenv func(string) string, stderr io.Writer) int {
	for _, sample := range samples {
		for _, task := range sample.tasks {
			if len(args) != 1 || args[0] != task.process {
				continue
			}
			if err := task.run(ctx, getenv, stderr); err != nil {
				fmt.Fprintf(stderr, "%s: %v\n", task.process, err)
				return 1
			}
			return 0
		}
	}
	fmt.Fprintf(stderr, "demo: no sample %q\n", args)
	return 2
}

// launched is what became of the samples.
type launched struct {
	operations, jobs int
	services         []*service
}

// startSamples launches the samples as alice and returns when each runs.
func startSamples(ctx context.Context, cluster *cluster) (launched, error) {
	executable, err := os.Executable()
	if err != nil {
		return launched{}, fmt.Errorf("find the demo's executable: %w", err)
	}
	alice := cluster.user("alice")
	client := cluster.as(alice.Login)
	var all launched
	operations := make([]string, len(samples))
	for i, sample := range samples {
		if operations[i], err = startOperation(ctx, client, sample.spec(executable, cluster.url, alice)); err != nil {
			return launched{}, fmt.Errorf("start %s: %w", sample.title, err)
		}
		for _, task := range sample.tasks {
			for _, published := range task.services {
				all.services = append(all.services, &service{published: published, task: task.name, jobs: task.jobs, operation: operations[i]})
			}
		}
	}
	for i, sample := range samples {
		if err := awaitJobs(ctx, client, operations[i], sample.jobs()); err != nil {
			return launched{}, fmt.Errorf("start %s: %w", sample.title, err)
		}
		all.operations, all.jobs = all.operations+1, all.jobs+sample.jobs()
	}
	return all, nil
}

// spec is the sample's operation, as one would write it.
func (s *sample) spec(executable, proxy string, owner user) map[string]any {
	tasks := map[string]any{}
	for _, task := range s.tasks {
		t := map[string]any{
			"job_count":  task.jobs,
			"port_count": task.ports,
			"command":    "exec " + shellQuote(executable) + " " + jobCommand + " " + task.process,
		}
		if s.asks {
			t["environment"] = map[string]any{"YT_PROXY": proxy}
		}
		tasks[task.name] = t
	}
	spec := map[string]any{"title": s.title, "tasks": tasks, "annotations": s.annotations}
	if s.asks {
		spec["secure_vault"] = map[string]any{"YT_TOKEN": owner.Token}
	}
	return spec
}

// jobs counts the jobs of all tasks.
func (s *sample) jobs() (count int) {
	for _, task := range s.tasks {
		count += task.jobs
	}
	return count
}

func startOperation(ctx context.Context, client *client, spec map[string]any) (string, error) {
	answer, err := client.change(ctx, "start_operation", map[string]any{"operation_type": "vanilla", "spec": spec})
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
func awaitJobs(ctx context.Context, client *client, operation string, jobs int) error {
	return await(ctx, func(ctx context.Context) error {
		answer, err := client.query(ctx, "list_jobs", map[string]any{"operation_id": operation, "job_state": "running"})
		if err != nil {
			return err
		}
		var running struct {
			Jobs []struct{} `json:"jobs"`
		}
		if err := json.Unmarshal(answer, &running); err != nil {
			return fmt.Errorf("list_jobs: %w", err)
		}
		if len(running.Jobs) < jobs {
			return fmt.Errorf("%d of %d jobs run", len(running.Jobs), jobs)
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
