package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strings"

	"taskproxy/cmd/internal/serve"
)

// options is what the flags say.
type options struct {
	clusterListen string
	baseDomain    string
	clusterOnly   bool
	stateDir      string // empty: a temporary one
	readyFile     string // empty: none
	// proxy is the proxy's own configuration. It lacks the cluster's address and the token until both exist.
	proxy serve.Config
}

const usage = `Usage: demo [flags]

Starts a local cluster, sample services in its jobs, and the task proxy, and prints how to call them. Ctrl-C ends it.

Flags:
`

// parseOptions reads the flags. Help goes to out, with flag.ErrHelp; an error is one line and names the flag.
func parseOptions(args []string, out io.Writer) (options, error) {
	var o options
	var listen, adminListen string
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&listen, "listen", "127.0.0.1:8080", "the proxy's `address`; port 0: any free one")
	flags.StringVar(&adminListen, "admin-listen", "127.0.0.1:0", "the `address` of the proxy's /healthz, /readyz and /metrics; port 0: any free one")
	flags.StringVar(&o.clusterListen, "cluster-listen", "127.0.0.1:0", "the local cluster's `address`, on loopback; port 0: any free one")
	flags.StringVar(&o.baseDomain, "base-domain", "task-proxy.localhost", "the `domain` under which services get their addresses; names under localhost need no DNS")
	flags.BoolVar(&o.clusterOnly, "cluster-only", false, "start a fresh cluster and nothing else")
	flags.StringVar(&o.stateDir, "state-dir", "", "the `directory` for the jobs' files, for this user only; empty: a temporary one, removed at the end")
	flags.StringVar(&o.readyFile, "ready-file", "", "a `file` to write once everything answers: addresses, users with their tokens and services, as JSON; empty: none")

	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(out, usage)
		flags.SetOutput(out)
		flags.PrintDefaults()
		return options{}, err
	}
	if err != nil {
		return options{}, fmt.Errorf("%w; see demo --help", err)
	}
	if flags.NArg() > 0 {
		return options{}, fmt.Errorf("unexpected argument %q: values follow their flag, as in --listen=127.0.0.1:8080", flags.Arg(0))
	}
	for name, value := range map[string]string{"listen": listen, "admin-listen": adminListen, "cluster-listen": o.clusterListen, "base-domain": o.baseDomain} {
		if value == "" {
			return options{}, fmt.Errorf("--%s is empty: leave it out for its default, %s", name, flags.Lookup(name).DefValue)
		}
	}
	if err := checkLoopback(o.clusterListen); err != nil {
		return options{}, fmt.Errorf("--cluster-listen: %w", err)
	}
	o.proxy, err = proxyConfig(listen, adminListen, o.baseDomain)
	return o, err
}

// checkLoopback refuses any address but loopback's: the cluster starts processes for whoever has a token.
func checkLoopback(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is no address like 127.0.0.1:0", address)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return fmt.Errorf("%q has no port between 0 and 65535", address)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("%q is not on loopback: the cluster runs what it is told to, so want 127.0.0.1, [::1] or localhost", address)
	}
	return nil
}

// proxyConfig goes through the flags of the real command, so that the demo's proxy is configured as any other.
func proxyConfig(listen, adminListen, baseDomain string) (serve.Config, error) {
	noVariables := func(string) string { return "" }
	config, err := serve.ParseConfig([]string{
		"--yt-proxy=http://127.0.0.1:1", "--yt-token-path=token", // both are set once the cluster is up
		"--listen=" + listen, "--admin-listen=" + adminListen, "--base-domain=" + baseDomain,
		"--discovery-period=1s",
		"--debug-listen=",       // nobody could tell where it is
		"--shutdown-delay=0s",   // no balancer is in front
		"--shutdown-timeout=1s", // an open event stream would never finish
	}, noVariables, io.Discard)
	var wrong *serve.UsageError
	if errors.As(err, &wrong) {
		return serve.Config{}, errors.New(strings.Join(wrong.Problems, "; "))
	}
	return config, err
}
