package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/lmittmann/tint"
	"golang.org/x/term"

	"taskproxy/examples/grpc-service/helloworld"
)

// stepTimeout is how long one step of the start may take before it has failed.
const stepTimeout = 30 * time.Second

// demo is one run.
type demo struct {
	options
	getenv func(string) string
	out    *printer
	logger *slog.Logger
	level  *slog.LevelVar
}

func newDemo(o options, getenv func(string) string, stdout, stderr io.Writer) *demo {
	// Until everything is up only warnings are of interest; afterwards the access log shows each call.
	level := new(slog.LevelVar)
	level.Set(slog.LevelWarn)
	var handler slog.Handler = slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level})
	if f, ok := stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		handler = tint.NewTextHandler(stderr, &tint.Options{Level: level, TimeFormat: time.TimeOnly})
	}
	return &demo{options: o, getenv: getenv, out: newPrinter(stdout, getenv), logger: slog.New(handler), level: level}
}

// run takes the steps, waits for the end of ctx, and takes them back. To be told to end is no error, at any time.
func (d *demo) run(ctx context.Context) (err error) {
	defer http.DefaultClient.CloseIdleConnections()
	ready, err := newReadyFile(d.readyFile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ready.remove()) }()
	dir, err := openStateDir(d.stateDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.close()) }()

	cluster, err := startCluster(d.clusterListen, dir.path, d.logger, d.getenv)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.close()) }()
	if d.clusterOnly {
		err = d.runCluster(ctx, cluster, ready)
	} else {
		err = d.runAll(ctx, cluster, dir, ready)
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // told to end before everything was up
	}
	return err
}

// runCluster leaves the cluster to the reader.
func (d *demo) runCluster(ctx context.Context, cluster *cluster, ready *readyFile) error {
	if err := cluster.addUsers("alice", "bob"); err != nil {
		return err
	}
	d.out.step("cluster up", "%s, users root, alice and bob", cluster.url)
	users := []user{{Login: "root", Token: cluster.rootToken}}
	d.out.clusterGuide(cluster, d.baseDomain)
	content := readiness{Cluster: cluster.url, BaseDomain: d.baseDomain, Users: append(users, cluster.users...)}
	if err := ready.write(content); err != nil {
		return err
	}
	<-ctx.Done()
	d.out.stopping()
	return nil
}

// runAll takes the steps from the cluster to the reader's first call, each when the one before has become true.
func (d *demo) runAll(ctx context.Context, cluster *cluster, dir *stateDir, ready *readyFile) (err error) {
	if err := cluster.addUsers("alice", "bob", robot); err != nil {
		return err
	}
	if err := cluster.install(ctx); err != nil {
		return fmt.Errorf("install the proxy's user: %w", err)
	}
	d.out.step("cluster up", "%s, users alice, bob and %s", cluster.url, robot)

	samples, err := startSamples(ctx, cluster)
	if err != nil {
		return err
	}
	services := samples.services
	d.out.step("services started", "%d operations of alice, %d jobs", samples.operations, samples.jobs)

	proxy, err := d.startProxy(ctx, cluster, dir)
	if err != nil {
		return err
	}
	defer func() { _ = proxy.stop() }() // for the ways out that have an error of their own
	running, cancel := proxy.watch(ctx)
	defer cancel()
	if err := discover(running, cluster, services); err != nil {
		return proxy.blame(err)
	}
	d.out.step("discovered", "%d services in %s", len(services), servicesTable)
	if err := reach(running, proxy.public, cluster.user("alice"), services); err != nil {
		return proxy.blame(err)
	}
	d.out.step("reachable", "every job has answered alice through http://%s", proxy.public)

	page := find(services, pageService).link(proxy.public)
	login, err := startLogin(ctx, d.baseDomain, page, cluster.user("alice"), cluster.user("bob"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, login.close()) }()
	proto, err := dir.write("helloworld.proto", helloworld.Proto)
	if err != nil {
		return err
	}
	d.out.guide(guide{
		address: proxy.public, admin: proxy.admin, cluster: cluster.url,
		alice: cluster.user("alice"), bob: cluster.user("bob"), login: login.link, proto: proto,
	}, services)
	if err := ready.write(newReadiness(d.baseDomain, cluster, proxy, services)); err != nil {
		return err
	}
	d.level.Set(slog.LevelInfo)
	<-running.Done()
	d.level.Set(slog.LevelError) // that streams are cut off now is what was asked for
	d.out.stopping()
	return proxy.stop()
}

// startProxy starts the real proxy with the robot's token in a file, as an installation would.
func (d *demo) startProxy(ctx context.Context, cluster *cluster, dir *stateDir) (*proxy, error) {
	token, err := dir.write("robot-token", cluster.user(robot).Token+"\n")
	if err != nil {
		return nil, err
	}
	config := d.options.proxy
	config.YTProxy = cluster.url
	config.YTTokenPath = token
	return startProxy(ctx, config, d.logger)
}
