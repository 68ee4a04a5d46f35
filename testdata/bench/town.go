package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"taskproxy/discovery"
	"taskproxy/ytclient/ytlocal"
)

// town is a local cluster with one operation, whose job is the backend of every proxy. The task proxy finds it as it finds
// any service; the others are told where it is.
type town struct {
	*ytlocal.Cluster
	pid           int    // of the job
	http, grpc    string // where the job listens, host:port
	token         string // what a caller sends as Authorization
	host, calls   string // Host of HTTP requests and :authority of calls
	rootTokenFile string
}

const baseDomain = "task-proxy.localhost"

// patience is how long anything that is started may take to answer.
const patience = 20 * time.Second

func startTown(scratch string) (*town, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	state := filepath.Join(scratch, "cluster")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, err
	}
	cluster, err := ytlocal.Start(ytlocal.Config{StateDir: state, JobEnviron: []string{"PATH=" + os.Getenv("PATH")}})
	if err != nil {
		return nil, err
	}
	t := &town{Cluster: cluster, rootTokenFile: filepath.Join(scratch, "token")}
	if err := t.launch(self); err != nil {
		cluster.Close()
		return nil, err
	}
	if err := os.WriteFile(t.rootTokenFile, []byte(cluster.RootToken()), 0o600); err != nil {
		cluster.Close()
		return nil, err
	}
	return t, nil
}

func (t *town) launch(self string) error {
	alice, err := t.AddUser("alice")
	if err != nil {
		return err
	}
	t.token = "OAuth " + alice.Token
	service := func(protocol string, port int64) map[string]any {
		return map[string]any{"protocol": protocol, "port_index": port}
	}
	operation, err := t.Scheduler().Start(alice.Login, map[string]any{
		"tasks": map[string]any{"backend": map[string]any{"job_count": int64(1), "port_count": int64(2), "command": fmt.Sprintf("exec '%s' backend", self)}},
		"annotations": map[string]any{"task_proxy": map[string]any{"enabled": true, "tasks_info": map[string]any{
			"backend": map[string]any{"http": service("http", 0), "grpc": service("grpc", 1)},
		}}},
	})
	if err != nil {
		return err
	}
	t.host = discovery.ShortID(operation, "backend", "http") + "." + baseDomain
	t.calls = discovery.ShortID(operation, "backend", "grpc") + "." + baseDomain
	return eventually("the job listens", func() error {
		jobs, err := t.Scheduler().Jobs(operation)
		if err != nil {
			return err
		}
		if len(jobs) != 1 || jobs[0].State != "running" {
			return fmt.Errorf("its jobs: %+v", jobs)
		}
		host, _, err := net.SplitHostPort(jobs[0].Address)
		if err != nil {
			return err
		}
		t.http = net.JoinHostPort(host, strconv.Itoa(jobs[0].Ports[0]))
		t.grpc = net.JoinHostPort(host, strconv.Itoa(jobs[0].Ports[1]))
		return listens(t.grpc)
	})
}

// listens says whether somebody accepts connections there.
func listens(addr string) error {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}

// eventually asks until the answer is nil or patience ends.
func eventually(what string, ask func() error) error {
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) { // between two questions
		err := ask()
		if err == nil {
			return nil
		}
		if time.Since(began) > patience {
			return fmt.Errorf("%s: not within %s; at last: %w", what, patience, err)
		}
	}
}
