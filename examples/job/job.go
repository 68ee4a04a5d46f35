// Package job is what the examples share: a job learns from its environment who it is and where to listen, serves, and
// ends when it is told to. It has nothing to do with the task proxy itself; a service needs no library to be reached
// through one.
package job

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
)

// Info is what a job knows about itself, from the YT_* variables of its environment. It marshals to JSON, so that a
// service can show it.
type Info struct {
	OperationID string `json:"operation_id"`
	Task        string `json:"task"`
	JobID       string `json:"job_id"`
	// Index tells the jobs of a task apart; a job that is restarted keeps it.
	Index string `json:"index"`
	// Port is where the cluster wants the task's first service.
	Port int `json:"port"`
}

// FromEnv reads the variables that YTsaurus sets for a job of a task with port_count=1. Only the port is required: without
// the others, as when the program is started by hand, the names are "unknown".
func FromEnv(getenv func(string) string) (Info, error) {
	text := getenv("YT_PORT_0")
	if text == "" {
		return Info{}, fmt.Errorf("YT_PORT_0 is not set: give the task port_count=1 (by hand: YT_PORT_0=8000)")
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return Info{}, fmt.Errorf("YT_PORT_0=%q is no port: want a number from 0 to 65535", text)
	}
	name := func(variable string) string {
		if value := getenv(variable); value != "" {
			return value
		}
		return "unknown"
	}
	return Info{
		OperationID: name("YT_OPERATION_ID"),
		Task:        name("YT_TASK_NAME"),
		JobID:       name("YT_JOB_ID"),
		Index:       name("YT_JOB_COOKIE"),
		Port:        int(port),
	}, nil
}

// String names the job in one short phrase.
func (i Info) String() string {
	return fmt.Sprintf("job %s (task %s, index %s)", i.JobID, i.Task, i.Index)
}

// Service serves on the listener until the context ends, closes the listener, and returns nil after a clean end.
type Service func(ctx context.Context, info Info, listener net.Listener) error

// Run serves as a job: on all interfaces, because the proxy calls from another machine, at the port that the cluster
// assigned. LISTEN_HOST names one interface instead, which is of use where everything is on one machine. It returns when
// the context ends.
func Run(ctx context.Context, getenv func(string) string, stderr io.Writer, service Service) error {
	info, err := FromEnv(getenv)
	if err != nil {
		return err
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(getenv("LISTEN_HOST"), strconv.Itoa(info.Port)))
	if err != nil {
		return fmt.Errorf("listen at YT_PORT_0: %w", err)
	}
	fmt.Fprintf(stderr, "%s listens at %s\n", info, listener.Addr())
	return service(ctx, info, listener)
}

// Main is the body of an example's main function. SIGTERM and Ctrl-C end it well; any failure is one line and exit code 1.
func Main(service Service) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	err := Run(ctx, os.Getenv, os.Stderr, service)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
