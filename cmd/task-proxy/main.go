// Command task-proxy gives web services in the jobs of a YTsaurus cluster stable addresses and carries requests to them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"taskproxy/cmd/internal/check"
	"taskproxy/cmd/internal/serve"
)

// version is stamped by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// From the first signal on the default action is back, so that a second one ends the process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// run is main without the process around it. It returns the exit code: 0, 1 when it could not start or broke, 2 for a
// wrong command line.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	command := "serve"
	if len(args) > 0 && (args[0] == "--version" || args[0] == "-version") {
		command = "version"
	} else if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		command, args = args[0], args[1:]
	}
	switch command {
	case "serve":
		return runServe(ctx, args, environ, stdout, stderr)
	case "check":
		return runCheck(ctx, args, environ, stdout, stderr)
	case "version":
		fmt.Fprintf(stdout, "task-proxy %s %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return 0
	case "help":
		return runServe(ctx, []string{"--help"}, environ, stdout, stderr)
	default:
		fmt.Fprintf(stderr, "task-proxy: unknown command %q; the commands are serve (also without naming it), check, version and help\n", command)
		return 2
	}
}

func runServe(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	cfg, code := configure(args, environ, stdout, stderr)
	if code >= 0 {
		return code
	}
	out := serve.NewLogWriter(stderr)
	defer out.Close()
	// A second signal ends the process at once; nothing that was logged may wait from the first one on.
	defer context.AfterFunc(ctx, out.Hurry)()
	logger := serve.NewLogger(out, cfg)
	log.SetFlags(0)
	log.SetOutput(serve.StandardLog(logger))
	serve.LimitMemory(os.DirFS("/"), serve.Getenv(environ), logger)
	if err := serve.Run(ctx, cfg, logger, nil); err != nil {
		fmt.Fprintf(out, "task-proxy: %v\n", err) // behind what was logged
		return 1
	}
	return 0
}

// runCheck ends with 0 when nothing is missing, and with 1 when something is or the cluster does not say.
func runCheck(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	cfg, code := configure(args, environ, stdout, stderr)
	if code >= 0 {
		return code
	}
	good, err := check.Run(ctx, cfg, stdout, serve.NewLogger(stderr, cfg))
	if err != nil {
		fmt.Fprintf(stderr, "task-proxy: %v\n", err)
	}
	if !good || err != nil {
		return 1
	}
	return 0
}

// configure reads the flags. A code that is not negative ends the process: only help or the configuration was asked for,
// or something is wrong.
func configure(args, environ []string, stdout, stderr io.Writer) (cfg serve.Config, code int) {
	cfg, err := serve.ParseEnviron(args, environ, stdout)
	cfg.Version = version
	var usage *serve.UsageError
	switch {
	case err == nil && cfg.DryRun:
		fmt.Fprint(stdout, cfg.Effective)
		return cfg, 0
	case err == nil:
		return cfg, -1
	case errors.Is(err, serve.ErrHelp):
		return cfg, 0
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "task-proxy: %v\nSee task-proxy serve --help.\n", err)
		return cfg, 2
	}
	fmt.Fprintf(stderr, "task-proxy: %v\n", err)
	return cfg, 1
}
