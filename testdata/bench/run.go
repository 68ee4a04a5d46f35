package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// run starts every proxy of the list several times over, loads them in turn, and writes what it saw as Markdown.
func run(args []string) (err error) {
	fs := flags("run")
	list := fs.String("proxies", "testdata/bench/proxies.txt", "the list of proxies; its templates are beside it")
	only := fs.String("only", ".", "regular expression: only proxies with such names")
	wanted := fs.String("scenarios", strings.Join(scenarioOrder, ","), "only these")
	starts := fs.Int("starts", 3, "how many times every proxy is started: two processes of one program differ by up to 20 %")
	rounds := fs.Int("rounds", 2, "measurements of each start")
	seconds := fs.Int("seconds", 2, "of one measurement")
	rps := fs.Int("rps", 1500, "requests per second of the scenarios with a fixed rate")
	idle := fs.Int("idle", 5000, "connections of mem")
	delay := fs.Duration("auth-delay", 2*time.Millisecond, "how long the cluster takes to answer one question about a caller")
	raw := fs.String("raw", "", "append samples to this file, a line of JSON each")
	limits := fs.Bool("limits", false, "fail when a limit of limits.go is missed")
	if err := fs.Parse(args); err != nil {
		return err
	}
	for _, program := range []string{"wrk", "h2load"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w: install it (Debian: apt-get install wrk nghttp2-client)", err)
		}
	}
	chosen, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only %q: %w", *only, err)
	}
	order := strings.Split(*wanted, ",")
	for _, name := range order {
		if _, ok := scenarios[name]; !ok {
			return fmt.Errorf("-scenarios %q: there is no %q", *wanted, name)
		}
	}
	entries, err := readList(*list)
	if err != nil {
		return err
	}
	entries = slices.DeleteFunc(entries, func(e entry) bool {
		return !chosen.MatchString(e.name) || !slices.ContainsFunc(e.scenarios, func(s string) bool { return slices.Contains(order, s) })
	})
	var samples io.Writer = io.Discard
	if *raw != "" {
		file, err := os.OpenFile(*raw, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		defer file.Close()
		samples = file
	}

	scratch, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = os.RemoveAll(scratch)
		} else {
			err = fmt.Errorf("%w\n(logs are in %s)", err, scratch)
		}
	}()
	if err := os.Chmod(scratch, 0o755); err != nil { // some proxies' workers are other users
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	town, err := startTown(scratch)
	if err != nil {
		return err
	}
	defer town.Close()
	l := loader{self: self, scratch: scratch, town: town, seconds: *seconds, rps: *rps, idle: *idle}
	if err := l.writeCall(); err != nil {
		return err
	}
	asked, err := freeAddr()
	if err != nil {
		return err
	}
	stub, err := spawn(filepath.Join(scratch, "authz.log"), self, "authz", "-listen", asked, "-delay", delay.String())
	if err != nil {
		return err
	}
	defer end(stub)
	values := map[string]string{
		"UP_H1": town.http, "UP_GRPC": town.grpc, "AUTHZ": asked,
		"YT": town.URL(), "TOKEN_FILE": town.rootTokenFile, "BASE": baseDomain,
	}

	var all []sample
	for start := range *starts {
		log.Printf("start %d of %d", start+1, *starts)
		seen, err := oneStart(l, entries, order, *rounds, filepath.Join(scratch, fmt.Sprint(start)), filepath.Dir(*list), values)
		for i := range seen {
			seen[i].Start = start
			line, err := json.Marshal(seen[i])
			if err != nil {
				return err
			}
			fmt.Fprintf(samples, "%s\n", line)
		}
		all = append(all, seen...)
		if err != nil {
			return err
		}
	}
	results := collect(all)
	results.write(os.Stdout, entries, order, l)
	if missed := results.writeLimits(os.Stdout); *limits && missed > 0 {
		return fmt.Errorf("%d limits were missed", missed)
	}
	return nil
}

// oneStart starts all proxies, runs all scenarios over all of them and ends them. Memory is read of processes of their own, since
// it is that of a fresh one.
func oneStart(l loader, entries []entry, order []string, rounds int, dir, peers string, values map[string]string) (all []sample, err error) {
	var proxies []*proxy
	defer func() {
		for _, p := range proxies {
			end(p.process)
		}
	}()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	loaded := slices.DeleteFunc(slices.Clone(order), func(s string) bool { return s == "mem" })
	for _, e := range entries {
		if !slices.ContainsFunc(e.scenarios, func(s string) bool { return slices.Contains(loaded, s) }) {
			continue
		}
		p, err := e.start(filepath.Join(dir, e.name), peers, values)
		if err != nil {
			return nil, err
		}
		proxies = append(proxies, p)
		if err := l.ready(p); err != nil {
			return nil, err
		}
	}
	for _, name := range loaded {
		in := slices.DeleteFunc(slices.Clone(proxies), func(p *proxy) bool { return !p.in(name) })
		for round := -1; round < rounds; round++ { // the first warms up
			rand.Shuffle(len(in), func(i, j int) { in[i], in[j] = in[j], in[i] })
			for _, p := range in {
				warm := l
				if round < 0 {
					warm.seconds = 1
				}
				s, err := warm.measure(name, p)
				if err != nil {
					return all, fmt.Errorf("%s, %s: %w", name, p.name, err)
				}
				if round < 0 {
					continue
				}
				s.Scenario, s.Proxy, s.Round = name, p.name, round
				all = append(all, s)
			}
		}
	}
	if !slices.Contains(order, "mem") {
		return all, nil
	}
	for _, e := range entries {
		if !slices.Contains(e.scenarios, "mem") {
			continue
		}
		p, err := e.start(filepath.Join(dir, e.name+"-mem"), peers, values)
		if err != nil {
			return all, err
		}
		time.Sleep(2 * time.Second) // what a process does at its start is over
		s, err := l.measure("mem", p)
		end(p.process)
		if err != nil {
			return all, fmt.Errorf("mem, %s: %w", e.name, err)
		}
		s.Scenario, s.Proxy = "mem", e.name
		all = append(all, s)
	}
	return all, nil
}

// ready waits until a proxy answers what it will be asked for.
func (l loader) ready(p *proxy) error {
	return eventually(p.name+" answers", func() error {
		c, err := newOverHTTP(p.http, l.town.host, l.town.token)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.do(); err != nil {
			return err
		}
		if !p.in("grpc") && !p.in("gstream") {
			return nil
		}
		out, err := exec.Command(l.self, "grpc-check", "-addr", p.grpc, "-host", l.town.calls, "-token", l.town.token).CombinedOutput()
		if err != nil {
			return errors.New(strings.TrimSpace(string(out)))
		}
		return nil
	})
}
