package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"taskproxy/discovery"
	"taskproxy/ytclient/ytlocal"
	"taskproxy/ytclient/ytlocal/scheduler"
)

// What the cluster of swaps is: operations with two jobs, each with 10 ports, publish 10,000 services.
const (
	crowdOperations = 1_000
	crowdServices   = 10 // of each operation
	crowdUsers      = 20 // who share the operations: none of them is over a limit
)

// crowd is a local cluster with many operations, in a process of its own that gives way to all others: elsewhere it would have
// machines of its own.
type crowd struct {
	crowdHello
	process *exec.Cmd
	orders  io.WriteCloser
	answers *bufio.Reader
}

// crowdHello is what the process says first.
type crowdHello struct {
	URL       string
	RootToken string
	Token     string // what a caller sends as Authorization
	Host      string // of the service that is called
}

// startBackend starts the job that answers, like that of the town, but as a process of ours.
func (l loader) startBackend() (*proxy, error) {
	var ports [2]string
	for i := range ports {
		addr, err := freeAddr()
		if err != nil {
			return nil, err
		}
		_, ports[i], _ = net.SplitHostPort(addr)
	}
	p := &proxy{http: "127.0.0.1:" + ports[0]}
	var err error
	words := append([]string{"env", "YT_PORT_0=" + ports[0], "YT_PORT_1=" + ports[1]}, l.urgent(2, l.self, "backend")...)
	if p.process, err = spawn(filepath.Join(l.scratch, "backend.log"), words...); err != nil {
		return nil, err
	}
	if err := eventually("the backend listens", func() error { return listens(p.http) }); err != nil {
		end(p.process)
		return nil, err
	}
	return p, nil
}

// startCrowd starts it. The backend is where the service is that is called; the others have addresses where nobody is.
func startCrowd(self, scratch, backend string) (*crowd, error) {
	c := &crowd{process: exec.Command("nice", "-n", "19", self, "crowd", "-state", filepath.Join(scratch, "crowd"), "-backend", backend)}
	c.process.Stderr = os.Stderr
	c.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	var err error
	if c.orders, err = c.process.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.process.Start(); err != nil {
		return nil, err
	}
	c.answers = bufio.NewReader(out)
	hello, err := c.answers.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(hello, &c.crowdHello)
	}
	if err != nil {
		end(c.process)
		return nil, fmt.Errorf("crowd: %w", err)
	}
	return c, nil
}

// change has so many operations lose a job and get another.
func (c *crowd) change(operations int) error {
	if _, err := fmt.Fprintln(c.orders, operations); err != nil {
		return err
	}
	answer, err := c.answers.ReadString('\n')
	if err == nil && answer != "changed\n" {
		err = errors.New(answer)
	}
	return err
}

// multitude is the process: its operations are words only.
type multitude struct {
	cluster *ytlocal.Cluster
	nodes   []string
	jobs    [][]scheduler.Job // by operation
	made    int               // jobs
	next    int               // the operation to change
}

func crowdProcess(args []string) error {
	fs := flags("crowd")
	state := fs.String("state", "", "where the cluster keeps what it has")
	backend := fs.String("backend", "", "host:port of the service that is called")
	if err := fs.Parse(args); err != nil {
		return err
	}
	host, text, err := net.SplitHostPort(*backend)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	m := &multitude{jobs: make([][]scheduler.Job, crowdOperations)}
	for i := range 100 {
		m.nodes = append(m.nodes, fmt.Sprintf("node-%d:9012", i))
	}
	here := net.JoinHostPort(host, "9012")
	if err := os.MkdirAll(*state, 0o700); err != nil {
		return err
	}
	if m.cluster, err = ytlocal.Start(ytlocal.Config{StateDir: *state, Nodes: append(m.nodes[:len(m.nodes):len(m.nodes)], here)}); err != nil {
		return err
	}
	defer m.cluster.Close()
	caller, err := m.cluster.AddUser(crowdUser(0))
	if err != nil {
		return err
	}
	for i := range m.jobs {
		m.jobs[i] = []scheduler.Job{m.job(), m.job()}
		if i == 0 {
			m.jobs[0] = m.jobs[0][:1] // the others change, this stays
			m.jobs[0][0].Address, m.jobs[0][0].Ports[0] = here, port
		}
		if err := m.tell(i); err != nil {
			return err
		}
	}
	err = json.NewEncoder(os.Stdout).Encode(crowdHello{
		URL: m.cluster.URL(), RootToken: m.cluster.RootToken(), Token: "OAuth " + caller.Token,
		Host: discovery.ShortID(crowdID(0), "server", "s0") + "." + baseDomain,
	})
	if err != nil {
		return err
	}
	for orders := bufio.NewScanner(os.Stdin); orders.Scan(); {
		n, err := strconv.Atoi(strings.TrimSpace(orders.Text()))
		if err != nil {
			return err
		}
		for range n {
			m.next = m.next%(crowdOperations-1) + 1
			m.jobs[m.next] = []scheduler.Job{m.jobs[m.next][1], m.job()}
			if err := m.tell(m.next); err != nil {
				return err
			}
		}
		fmt.Println("changed")
	}
	return nil
}

func crowdID(i int) string   { return fmt.Sprintf("%x-1-3fe03e8-1", i+1) }
func crowdUser(i int) string { return fmt.Sprintf("user%d", i%crowdUsers) }

// job is a new one. Its ports come again at the same node long after it has ended.
func (m *multitude) job() scheduler.Job {
	m.made++
	j := scheduler.Job{ID: fmt.Sprintf("%x-1-3fe0384-1", m.made), Task: "server", Address: m.nodes[m.made%len(m.nodes)]}
	first := 30_000 + m.made/len(m.nodes)*crowdServices%30_000
	for i := range crowdServices {
		j.Ports = append(j.Ports, first+i)
	}
	return j
}

// tell lets the cluster know the jobs of an operation.
func (m *multitude) tell(i int) error {
	services := make(map[string]any, crowdServices)
	for s := range crowdServices {
		services["s"+strconv.Itoa(s)] = map[string]any{"protocol": "http", "port_index": int64(s)}
	}
	return m.cluster.Scheduler().Pretend(scheduler.Operation{
		ID: crowdID(i), User: crowdUser(i), StartTime: time.Date(2025, 1, 1, 0, 0, i, 0, time.UTC),
		Annotations: map[string]any{"task_proxy": map[string]any{"enabled": true, "tasks_info": map[string]any{"server": services}}},
		Spec: map[string]any{"tasks": map[string]any{
			"server": map[string]any{"job_count": int64(len(m.jobs[i])), "port_count": int64(crowdServices), "command": "serve"},
		}},
		ACL: []any{map[string]any{"action": "allow", "subjects": []any{crowdUser(i)}, "permissions": []any{"read", "manage"}}},
	}, m.jobs[i])
}
