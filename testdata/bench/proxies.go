package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// entry is a line of the list of proxies.
type entry struct {
	name      string
	scenarios []string
	command   []string // its first words may be variables of the environment; empty: the backend itself
}

// program is what the command runs, behind env and its variables.
func (e entry) program() string {
	at := 0
	if e.command[0] == "env" {
		at = 1 + slices.IndexFunc(e.command[1:], func(word string) bool { return !strings.Contains(word, "=") })
	}
	return os.ExpandEnv(e.command[at])
}

// readList reads a list of proxies: a name, scenarios with commas between, a command. Lines that begin with # are comments.
func readList(path string) ([]entry, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var list []entry
	for number, line := range strings.Split(string(text), "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) < 3 {
			return nil, fmt.Errorf("%s:%d: %q is not a name, scenarios and a command", path, number+1, line)
		}
		e := entry{name: fields[0], scenarios: strings.Split(fields[1], ","), command: fields[2:]}
		for _, s := range e.scenarios {
			if _, ok := scenarios[s]; !ok {
				return nil, fmt.Errorf("%s:%d: there is no scenario %q", path, number+1, s)
			}
		}
		list = append(list, e)
	}
	return list, nil
}

// proxy is one that runs.
type proxy struct {
	entry
	dir        string // of its own
	http, grpc string // where it listens, host:port
	process    *exec.Cmd
}

func (p *proxy) pid() int { return p.process.Process.Pid }

func (p *proxy) in(scenario string) bool { return slices.Contains(p.scenarios, scenario) }

// placeholder is a name in a command or template that is replaced; proxies.txt says which there are.
var placeholder = regexp.MustCompile(`@[A-Z0-9_]+@`)

// start starts what an entry says, in a directory of its own, with the values of the town, and returns when it listens.
func (e entry) start(dir, peers string, values map[string]string) (*proxy, error) {
	p := &proxy{entry: e, dir: dir}
	var err error
	if p.http, err = freeAddr(); err != nil {
		return nil, err
	}
	if p.grpc, err = freeAddr(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	var unknown error
	separate := false
	fill := func(text string) string {
		return placeholder.ReplaceAllStringFunc(text, func(name string) string {
			switch name = strings.Trim(name, "@"); name {
			case "H1":
				return p.http
			case "GRPC":
				separate = true
				return p.grpc
			case "WORK":
				return dir
			}
			// _PORT and _HOST are the parts of an address.
			of, part, _ := strings.Cut(name, "__")
			value, ok := values[of]
			switch of {
			case "H1":
				value, ok = p.http, true
			case "GRPC":
				value, ok, separate = p.grpc, true, true
			}
			if !ok {
				unknown = errors.Join(unknown, fmt.Errorf("%s: there is no @%s@", e.name, name))
			}
			host, port, _ := strings.Cut(value, ":")
			switch part {
			case "HOST":
				return host
			case "PORT":
				return port
			}
			return value
		})
	}
	words := slices.Clone(e.command)
	for i, word := range words {
		if strings.HasSuffix(word, ".tmpl") {
			text, err := os.ReadFile(filepath.Join(peers, word))
			if err != nil {
				return nil, err
			}
			words[i] = filepath.Join(dir, strings.TrimSuffix(filepath.Base(word), ".tmpl"))
			if err := os.WriteFile(words[i], []byte(fill(string(text))), 0o644); err != nil {
				return nil, err
			}
			continue
		}
		words[i] = fill(os.ExpandEnv(word))
	}
	if unknown != nil {
		return nil, unknown
	}
	if !separate {
		p.grpc = p.http
	}
	if p.process, err = spawn(filepath.Join(dir, "log"), words...); err != nil {
		return nil, fmt.Errorf("%s: %w", e.name, err)
	}
	if err := eventually(e.name+" listens", func() error { return listens(p.http) }); err != nil {
		end(p.process)
		return nil, fmt.Errorf("%w; it wrote to %s", err, filepath.Join(dir, "log"))
	}
	return p, nil
}

// spawn starts a process that does not outlive this one.
func spawn(log string, words ...string) (*exec.Cmd, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	return cmd, cmd.Start()
}

// end ends a process, and what it started.
func end(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	late := time.AfterFunc(10*time.Second, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer late.Stop()
	_ = cmd.Wait() // by a signal
}

// freeAddr is an address that nobody listens on, at the moment.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
