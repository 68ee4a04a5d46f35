package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// scenario is a load, and what is read off it.
type scenario struct {
	title string
	load  func(l loader, p *proxy) []string // the command that makes it; nil: the scenario is measured in a way of its own
	read  func(out string) (sample, error)
	bytes int // of one answer, if that is what the scenario is about
}

// scenarios are the loads, by the names that lists of proxies use. An -auth twin is the same load for proxies that ask who is
// calling.
var scenarios = map[string]scenario{
	"h1":       {title: "HTTP/1.1, 64 keep-alive connections, 1 KiB", load: wrk(64, "/"), read: readWRK},
	"h1-auth":  {title: "HTTP/1.1, 64 keep-alive connections, 1 KiB, callers are checked", load: wrk(64, "/"), read: readWRK},
	"conn":     {title: "HTTP/1.1, a connection for each request, 64 at a time, 1 KiB", load: wrk(64, "/", "-H", "Connection: close"), read: readWRK},
	"big":      {title: "HTTP/1.1, 16 connections, 1 MiB", load: wrk(16, "/big?n=1048576"), read: readWRK, bytes: 1 << 20},
	"lat":      {title: "HTTP/1.1, fixed rate", load: loader.atRate, read: readRate},
	"lat-auth": {title: "HTTP/1.1, fixed rate, callers are checked", load: loader.atRate, read: readRate},
	"ws":       {title: "WebSocket, 64 connections, 128-byte echo", load: loader.echo, read: readCount},
	"grpc":     {title: "gRPC unary, 8 connections with 8 calls each", load: h2load(sayHello), read: readH2Load},
	"gstream":  {title: "gRPC, streams of 100 messages of 1 KiB, 8 connections with 8 calls each", load: h2load(stream), read: readH2Load},
	"swaps":    {title: "HTTP/1.1, fixed rate, callers are checked, while snapshots of 10,000 services are swapped"},
	"mem":      {title: "Memory of idle connections"},
}

// scenarioOrder is the order in which they are run and reported.
var scenarioOrder = []string{"h1", "h1-auth", "conn", "big", "lat", "lat-auth", "ws", "grpc", "gstream", "swaps", "mem"}

// sample is one measurement of one proxy.
type sample struct {
	Run             string // when it began
	Scenario, Proxy string
	Start, Round    int
	Requests        float64 `json:",omitempty"`
	Seconds         float64 `json:",omitempty"` // of load
	CPU             float64 `json:",omitempty"` // seconds that the proxy used meanwhile
	P50, P99, P999  float64 `json:",omitempty"` // microseconds
	SecondP99       float64 `json:",omitempty"`
	FreshKB         float64 `json:",omitempty"` // of memory
	KeepAliveKB     float64 `json:",omitempty"` // more, for each idle connection
	WebSocketKB     float64 `json:",omitempty"` // more, for each idle one
	Phase           string  `json:",omitempty"` // of swaps
	Cycles, Swaps   float64 `json:",omitempty"` // of discovery meanwhile
	Changed         float64 `json:",omitempty"` // services, in all swaps
}

// loader knows what the loads need.
type loader struct {
	self    string
	scratch string
	town    *town
	crowd   *crowd // nil: there is no swaps
	seconds int
	rps     int
	idle    int // connections of mem
	churn   int // operations of crowd that have a new job every second
	// realtime: swaps runs with real-time priority.
	realtime bool
}

// lasting is how long a load lasts, as tools want it.
func (l loader) lasting() string { return strconv.Itoa(l.seconds) + "s" }

func wrk(connections int, path string, more ...string) func(loader, *proxy) []string {
	return func(l loader, p *proxy) []string {
		words := []string{"wrk", "-t1", "-c", strconv.Itoa(connections), "-d", l.lasting(), "-H", "Host: " + l.town.host, "-H", "Authorization: " + l.town.token}
		return append(append(words, more...), "http://"+p.http+path)
	}
}

func h2load(path string) func(loader, *proxy) []string {
	return func(l loader, p *proxy) []string {
		return []string{
			"h2load", "-t1", "-c", "8", "-m", "8", "-D", strconv.Itoa(l.seconds), "-d", l.call(),
			"-H", "content-type: application/grpc", "-H", "te: trailers", "-H", ":authority: " + l.town.calls, "-H", "authorization: " + l.town.token,
			"http://" + p.grpc + path,
		}
	}
}

// call is a file with the request of a unary call, in the framing of gRPC.
func (l loader) call() string { return filepath.Join(l.scratch, "call") }

func (l loader) writeCall() error {
	return os.WriteFile(l.call(), append([]byte{0, 0, 0, 0, byte(len(world))}, world...), 0o644)
}

func (l loader) atRate(p *proxy) []string {
	return append([]string{l.self, "rate", "-d", l.lasting(), "-rps", strconv.Itoa(l.rps)}, l.target(p)...)
}

func (l loader) echo(p *proxy) []string {
	return append([]string{l.self, "ws", "-d", l.lasting()}, l.target(p)...)
}

func (l loader) target(p *proxy) []string {
	return []string{"-addr", p.http, "-host", l.town.host, "-token", l.town.token}
}

// measure makes the load once.
func (l loader) measure(ctx context.Context, name string, p *proxy) (sample, error) {
	sc := scenarios[name]
	words := sc.load(l, p)
	before := cpuSeconds(p.pid())
	out, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput()
	used := cpuSeconds(p.pid()) - before
	if err != nil {
		return sample{}, fmt.Errorf("%s: %w\n%s", words[0], err, out)
	}
	s, err := sc.read(string(out))
	if err != nil {
		return sample{}, fmt.Errorf("%s: %w\n%s", words[0], err, out)
	}
	if s.Seconds == 0 {
		s.Seconds = float64(l.seconds)
	}
	s.CPU = used
	return s, nil
}

// found is the number that a pattern's group matches in text; 0 if it does not.
func found(text, pattern string) float64 {
	match := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if match == nil {
		return 0
	}
	n, _ := strconv.ParseFloat(match[1], 64)
	return n
}

func readWRK(out string) (sample, error) {
	s := sample{Requests: found(out, `(\d+) requests in`), Seconds: found(out, `requests in ([\d.]+)s`)}
	if n := found(out, `Non-2xx or 3xx responses: (\d+)`); n > 0 || s.Requests == 0 {
		return sample{}, fmt.Errorf("%.0f of %.0f answers are no success", n, s.Requests)
	}
	// wrk counts the end of a connection that it asked to be closed as a failure to read.
	if lost := found(out, `Socket errors: .*timeout (\d+)`); lost > 0 {
		return sample{}, fmt.Errorf("%.0f requests were not answered in time", lost)
	}
	return s, nil
}

func readH2Load(out string) (sample, error) {
	s := sample{Requests: found(out, `(\d+) succeeded`)}
	if n := found(out, `, (\d+) failed`); n > 0 || s.Requests == 0 {
		return sample{}, fmt.Errorf("%.0f calls failed beside %.0f", n, s.Requests)
	}
	return s, nil
}

func readRate(out string) (sample, error) {
	var l latency
	if err := json.Unmarshal([]byte(out), &l); err != nil {
		return sample{}, err
	}
	if l.Errors > 0 {
		return sample{}, fmt.Errorf("%d requests failed", l.Errors)
	}
	return sample{Requests: float64(l.Count), P50: l.P50, P99: l.P99, P999: l.P999, SecondP99: l.SecondP99}, nil
}

func readCount(out string) (sample, error) {
	n, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
	return sample{Requests: n}, err
}

// measureIdle reads the memory of a process that has served nothing yet, then what idle connections add to it: each kind to a process of its
// own, since what one has left behind would be room for the other.
func (l loader) measureIdle(ctx context.Context, e entry, start func(e entry, of string) (*proxy, error), record func(sample) error) error {
	s := sample{Scenario: "mem", Proxy: e.name}
	for _, kind := range []struct {
		of, ws string
		out    *float64
	}{{"kept", "-ws=false", &s.KeepAliveKB}, {"ws", "-ws=true", &s.WebSocketKB}} {
		p, err := start(e, kind.of)
		if err != nil {
			return err
		}
		fresh, each, err := l.hold(ctx, p, kind.ws)
		end(p.process)
		if err != nil {
			return fmt.Errorf("hold %s: %w", kind.ws, err)
		}
		if *kind.out = each; s.FreshKB == 0 {
			s.FreshKB = fresh
		}
	}
	return record(s)
}

// hold has the process hold idle connections, and returns its memory before and what each has added.
func (l loader) hold(ctx context.Context, p *proxy, ws string) (freshKB, eachKB float64, err error) {
	time.Sleep(2 * time.Second) // what a process does at its start is over
	freshKB = memoryKB(p.pid())
	cmd := exec.CommandContext(ctx, l.self, append([]string{"hold", "-n", strconv.Itoa(l.idle), ws}, l.target(p)...)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return 0, 0, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, 0, err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil && line == "READY\n" {
		time.Sleep(3 * time.Second) // what is not needed any more may go first
		eachKB = (memoryKB(p.pid()) - freshKB) / float64(l.idle)
	}
	in.Close()
	copyOut(io.Reader(out))
	return freshKB, eachKB, errors.Join(err, cmd.Wait())
}
