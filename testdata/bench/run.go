package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
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
	churn := fs.Int("churn", 10, "operations of 1,000 that have a new job every second, in a phase of swaps")
	realtime := fs.Bool("realtime", false, "swaps has real-time priority, for a machine that does other things too (needs chrt and the right to)")
	idle := fs.Int("idle", 5000, "connections of mem")
	delay := fs.Duration("auth-delay", 2*time.Millisecond, "how long the cluster takes to answer one question about a caller")
	raw := fs.String("raw", "", "append samples to this file as they are measured, a line of JSON each")
	limits := fs.Bool("limits", false, "fail when a limit of limits.go is missed")
	if err := fs.Parse(args); err != nil {
		return err
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
	if err := installed(entries); err != nil {
		return err
	}
	var samples io.Writer = io.Discard
	if *raw != "" {
		file, err := os.OpenFile(*raw, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		defer file.Close()
		samples = file
	}

	ctx, again := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer again()
	context.AfterFunc(ctx, again) // a second one ends the process at once
	began := time.Now().UTC().Format(time.RFC3339)
	scratch, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer func() {
		if err == nil || ctx.Err() != nil {
			err = errors.Join(err, os.RemoveAll(scratch))
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
	l := loader{self: self, scratch: scratch, town: town, seconds: *seconds, rps: *rps, idle: *idle, churn: *churn, realtime: *realtime}
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

	if slices.Contains(order, "swaps") {
		job, err := l.startBackend()
		if err != nil {
			return err
		}
		defer end(job.process)
		if l.crowd, err = startCrowd(self, scratch, job.http); err != nil {
			return err
		}
		defer end(l.crowd.process)
		values["CROWD"], values["CROWD_TOKEN_FILE"] = l.crowd.URL, filepath.Join(scratch, "crowd-token")
		if err := os.WriteFile(values["CROWD_TOKEN_FILE"], []byte(l.crowd.RootToken), 0o600); err != nil {
			return err
		}
	}

	var all []sample
	for start := range *starts {
		log.Printf("start %d of %d", start+1, *starts)
		err = l.oneStart(ctx, entries, order, *rounds, filepath.Join(scratch, fmt.Sprint(start)), filepath.Dir(*list), values, func(s sample) error {
			s.Run, s.Start = began, start
			all = append(all, s)
			return json.NewEncoder(samples).Encode(s)
		})
		if err != nil {
			break
		}
	}
	// What was measured is shown, however the run ended.
	results := collect(all)
	results.write(os.Stdout, entries, order, l)
	missed := results.writeLimits(os.Stdout)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted after %d measurements", len(all))
	case err != nil:
		return err
	case *limits && missed > 0:
		return fmt.Errorf("%d limits were missed", missed)
	}
	return nil
}

// installed says what is missing of the programs that a run needs, before it begins.
func installed(entries []entry) error {
	programs := []string{"wrk", "h2load"}
	for _, e := range entries {
		programs = append(programs, e.program())
	}
	var missing []string
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil && !slices.Contains(missing, program) {
			missing = append(missing, program)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("not found: %s; `make bench-peers` makes what is in $BIN (%q), and Debian has the others: apt-get install nginx haproxy wrk nghttp2-client",
			strings.Join(missing, ", "), os.Getenv("BIN"))
	}
	return nil
}

// oneStart starts all proxies, runs all scenarios over all of them and ends them. What is measured is recorded at once.
func (l loader) oneStart(ctx context.Context, entries []entry, order []string, rounds int, dir, peers string, values map[string]string, record func(sample) error) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	loaded := slices.DeleteFunc(slices.Clone(order), func(s string) bool { return scenarios[s].load == nil })
	if err := l.loadAll(ctx, entries, loaded, rounds, dir, peers, values, record); err != nil {
		return err
	}
	// These are of processes of their own: memory is that of a fresh one, and snapshots are those of another cluster.
	start := func(e entry, of string) (*proxy, error) {
		return e.start(filepath.Join(dir, e.name+"-"+of), peers, values)
	}
	for _, name := range order {
		if scenarios[name].load != nil {
			continue
		}
		for _, e := range entries {
			if !slices.Contains(e.scenarios, name) {
				continue
			}
			var err error
			if name == "mem" {
				err = l.measureIdle(ctx, e, start, record)
			} else {
				err = l.measureSwaps(ctx, e, start, rounds, record)
			}
			if err != nil {
				return fmt.Errorf("%s, %s: %w", name, e.name, err)
			}
		}
	}
	return nil
}

// loadAll starts the proxies of these scenarios, which have a load, and measures them in turn.
func (l loader) loadAll(ctx context.Context, entries []entry, loaded []string, rounds int, dir, peers string, values map[string]string, record func(sample) error) error {
	var proxies []*proxy
	defer func() {
		for _, p := range proxies {
			end(p.process)
		}
	}()
	for _, e := range entries {
		if !slices.ContainsFunc(e.scenarios, func(s string) bool { return slices.Contains(loaded, s) }) {
			continue
		}
		p, err := e.start(filepath.Join(dir, e.name), peers, values)
		if err != nil {
			return err
		}
		proxies = append(proxies, p)
		if err := l.ready(p, l.town.host, l.town.token); err != nil {
			return err
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
				s, err := warm.measure(ctx, name, p)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", name, p.name, err)
				}
				if round < 0 {
					continue
				}
				s.Scenario, s.Proxy, s.Round = name, p.name, round
				if err := record(s); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// ready waits until a proxy answers what it will be asked for.
func (l loader) ready(p *proxy, host, token string) error {
	return eventually(p.name+" answers", func() error {
		c, err := newOverHTTP(p.http, host, token)
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
