package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"

	"taskproxy/examples/http-service/httpservice"
	"taskproxy/examples/job"
)

// The Spark samples have no Spark in them. They do what SPYT's processes do to be found, and answer as the HTTP sample does.

// sparkPath is where the sample cluster's processes leave their addresses.
const sparkPath = "//home/spark-sample"

// sparkDriver is a driver of an application that was submitted directly: it listens where it likes, and writes its page's
// address into the annotations of its operation.
var sparkDriver = sample{
	title: "Spark driver for sample",
	tasks: []task{{
		name: "driver", process: "spark-driver", jobs: 1, run: runDriver,
		services: []published{{"spark-driver", "ui"}},
	}},
	annotations: map[string]any{"is_spark": true},
	asks:        true,
}

// sparkCluster is a standalone cluster as SPYT 2.9 starts it: ports from the operation, and their addresses in Cypress.
var sparkCluster = sample{
	title: "Spark cluster sample",
	tasks: []task{
		{
			name: "master", process: "spark-master", jobs: 1, ports: 3, run: runMaster,
			services: []published{{"spark-master", "ui"}, {"spark-rest", "rest"}},
		},
		{
			name: "history", process: "spark-history", jobs: 1, ports: 1, run: runHistory,
			services: []published{{"spark-history", "ui"}},
		},
	},
	annotations: map[string]any{
		"is_spark": true,
		"description": map[string]any{"Spark over YT": map[string]any{
			"discovery_path": sparkPath, "cluster_version": "2.9.0", "job_types": []string{"master", "history"},
		}},
		"task_proxy": map[string]any{"enabled": true, "tasks_info": map[string]any{
			"master": map[string]any{
				"ui":   map[string]any{"protocol": "http", "port_index": 1},
				"rest": map[string]any{"protocol": "http", "port_index": 2},
			},
			"history": map[string]any{"ui": map[string]any{"protocol": "http", "port_index": 0}},
		}},
	},
	asks: true,
}

// sparkJob is a job of a Spark sample, and the cluster as it asks it.
type sparkJob struct {
	*client
	info   job.Info
	getenv func(string) string
	stderr io.Writer
}

func newSparkJob(getenv func(string) string, stderr io.Writer) *sparkJob {
	return &sparkJob{
		client: &client{url: getenv("YT_PROXY"), token: getenv("YT_SECURE_VAULT_YT_TOKEN")},
		info: job.Info{
			OperationID: getenv("YT_OPERATION_ID"), Task: getenv("YT_TASK_NAME"), JobID: getenv("YT_JOB_ID"), Index: getenv("YT_JOB_COOKIE"),
		},
		getenv: getenv, stderr: stderr,
	}
}

// port is one that the cluster gave to the job.
func (j *sparkJob) port(index int) (int, error) {
	text := j.getenv(fmt.Sprintf("YT_PORT_%d", index))
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("YT_PORT_%d=%q is no port", index, text)
	}
	return int(port), nil
}

// listen opens a port on all interfaces, because the proxy calls from another machine.
func (j *sparkJob) listen(ctx context.Context, port int) (net.Listener, error) {
	var config net.ListenConfig
	return config.Listen(ctx, "tcp", ":"+strconv.Itoa(port))
}

// address is a port of this job's as others reach it: at the exec node.
func (j *sparkJob) address(l net.Listener) (string, error) {
	node, _, err := net.SplitHostPort(j.getenv("YT_NODE_ADDRESS"))
	if err != nil {
		return "", fmt.Errorf("YT_NODE_ADDRESS: %w", err)
	}
	return net.JoinHostPort(node, strconv.Itoa(l.Addr().(*net.TCPAddr).Port)), nil
}

// serve answers on the listeners until the context ends, each as a page of its own.
func (j *sparkJob) serve(ctx context.Context, listeners ...net.Listener) error {
	var (
		group sync.WaitGroup
		errs  = make([]error, len(listeners))
	)
	ctx, end := context.WithCancel(ctx)
	defer end()
	for i, l := range listeners {
		fmt.Fprintf(j.stderr, "%s listens at %s\n", j.info, l.Addr())
		group.Go(func() {
			defer end() // one that is gone ends the job
			info := j.info
			info.Port = l.Addr().(*net.TCPAddr).Port
			errs[i] = job.ServeHTTP(ctx, l, httpservice.Handler(info))
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// Spark's processes try ports one after the other, from the first one up.
const (
	firstSparkPort = 27001
	sparkPortTries = 200
)

// runDriver is the process of the driver.
func runDriver(ctx context.Context, getenv func(string) string, stderr io.Writer) error {
	j := newSparkJob(getenv, stderr)
	var l net.Listener
	for port := firstSparkPort; l == nil; port++ {
		var err error
		if l, err = j.listen(ctx, port); err != nil && port == firstSparkPort+sparkPortTries {
			return fmt.Errorf("no free port from %d to %d: %w", firstSparkPort, port, err)
		}
	}
	address, err := j.address(l)
	if err == nil {
		_, err = j.change(ctx, "update_operation_parameters", map[string]any{
			"operation_id": j.info.OperationID,
			"parameters": map[string]any{"annotations": map[string]any{
				"description": map[string]any{"Web UI": "http://" + address},
			}},
		})
	}
	if err != nil {
		l.Close()
		return err
	}
	return j.serve(ctx, l)
}

// runMaster is the process of the master: the first of its ports is for the workers, which this cluster does not have.
func runMaster(ctx context.Context, getenv func(string) string, stderr io.Writer) error {
	return runRegistered(ctx, newSparkJob(getenv, stderr), map[string]int{"webui": 1, "rest": 2}, true)
}

// runHistory is the process of the history server.
func runHistory(ctx context.Context, getenv func(string) string, stderr io.Writer) error {
	return runRegistered(ctx, newSparkJob(getenv, stderr), map[string]int{"shs": 0}, false)
}

// runRegistered serves at ports of the job and leaves their addresses in Cypress, by the names of their entries. Whoever is
// the master says whose the directory is.
func runRegistered(ctx context.Context, j *sparkJob, entries map[string]int, master bool) (err error) {
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			l.Close() // closed already after a clean end
		}
	}()
	nodes := map[string]string{}
	if master {
		nodes["operation"] = j.info.OperationID
	}
	for entry, index := range entries {
		port, err := j.port(index)
		if err != nil {
			return err
		}
		l, err := j.listen(ctx, port)
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
		if nodes[entry], err = j.address(l); err != nil {
			return err
		}
	}
	for entry, name := range nodes {
		if err := j.register(ctx, entry, name); err != nil {
			return err
		}
	}
	return j.serve(ctx, listeners...)
}

// register makes name the only child of an entry, whatever a process before this one has left there.
func (j *sparkJob) register(ctx context.Context, entry, name string) error {
	path := sparkPath + "/discovery/" + entry
	if _, err := j.change(ctx, "remove", map[string]any{"path": path, "recursive": true, "force": true}); err != nil {
		return err
	}
	_, err := j.change(ctx, "create", map[string]any{"path": path + "/" + name, "type": "map_node", "recursive": true})
	return err
}
