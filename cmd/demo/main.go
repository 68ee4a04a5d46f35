// Command demo shows the task proxy at work on one machine: a local cluster, sample services in its jobs, and the proxy
// itself, in one process. It needs nothing but its own executable, which it also runs as the samples' jobs.
//
// It prints how to call the services, and ends on Ctrl-C: jobs, cluster and state are gone then.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"taskproxy/cmd/internal/serve"
)

func main() {
	// SIGHUP is the terminal's window being closed.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	// From the first signal on the default action is back, so that a second one ends the process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}

// run is main without the process around it. It returns the exit code: 0 after a clean end, 1 when a step failed, 2 for a
// wrong command line.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == jobCommand {
		return runJob(ctx, args[1:], getenv, stderr)
	}
	o, err := parseOptions(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "demo: %v\n", err)
		return 2
	}
	d := newDemo(o, getenv, stdout, stderr)
	log.SetOutput(serve.StandardLog(d.logger))
	if err := d.run(ctx); err != nil {
		// Several failures are one line all the same.
		fmt.Fprintf(stderr, "demo: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
		return 1
	}
	return 0
}
