package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// The two phases of swaps. In both the proxy asks the cluster every second; in one of them something has changed each time.
const (
	quiet   = "quiet"
	swapped = "swapped"
)

// Phases are longer than other measurements, since there is one swap in a second, and more, since the slowest of a hundred requests
// are what anything else on the machine disturbs most.
const (
	phaseLasts  = 2 // times the seconds of other measurements
	phasesOfOne = 2 // pairs for each round of others
)

// measureSwaps calls one service of 10,000 at a fixed rate, in quiet phases and in others in which a new snapshot of all of
// them is swapped in every second, in turn.
func (l loader) measureSwaps(ctx context.Context, e entry, start func(e entry, of string) (*proxy, error), rounds int, record func(sample) error) error {
	e.command = l.urgent(1, e.command...)
	p, err := start(e, "swaps")
	if err != nil {
		return err
	}
	defer end(p.process)
	if err := l.ready(p, l.crowd.Host, l.crowd.Token); err != nil {
		return err
	}
	w := watcher{log: filepath.Join(p.dir, "log")}
	if err := eventually("discovery is watched", w.open); err != nil {
		return err
	}
	for round := range rounds * phasesOfOne {
		if err := eventually("discovery is at rest", w.atRest); err != nil {
			return err
		}
		for _, phase := range []string{quiet, swapped} {
			s, err := l.measurePhase(ctx, p, &w, phase == swapped)
			if err != nil {
				return fmt.Errorf("%s: %w", phase, err)
			}
			s.Scenario, s.Proxy, s.Phase, s.Round = "swaps", p.name, phase, round
			if err := record(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// measurePhase makes the load once, and makes sure that the phase was one.
func (l loader) measurePhase(ctx context.Context, p *proxy, w *watcher, changes bool) (sample, error) {
	seconds := l.seconds * phaseLasts
	words := l.urgent(2, l.self, "rate", "-d", strconv.Itoa(seconds)+"s", "-rps", strconv.Itoa(l.rps), "-addr", p.http, "-host", l.crowd.Host, "-token", l.crowd.Token)
	load := exec.CommandContext(ctx, words[0], words[1:]...)
	var out bytes.Buffer
	load.Stdout, load.Stderr = &out, &out
	cycles, err := w.cycles()
	if err != nil {
		return sample{}, err
	}
	cpu := cpuSeconds(p.pid())
	if err := load.Start(); err != nil {
		return sample{}, err
	}
	ended := make(chan error, 1)
	go func() { ended <- load.Wait() }()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for loading := true; loading; {
		if changes {
			if err := l.crowd.change(l.churn); err != nil {
				return sample{}, fmt.Errorf("change the cluster: %w", err)
			}
		}
		select {
		case err = <-ended:
			loading = false
		case <-tick.C:
		}
	}
	cpu = cpuSeconds(p.pid()) - cpu
	if err != nil {
		return sample{}, fmt.Errorf("rate: %w\n%s", err, out.Bytes())
	}
	s, err := readRate(out.String())
	if err != nil {
		return sample{}, fmt.Errorf("rate: %w\n%s", err, out.Bytes())
	}
	s.Seconds, s.CPU = float64(seconds), cpu
	if s.Cycles, err = w.cycles(); err != nil {
		return sample{}, err
	}
	s.Cycles -= cycles
	if s.Swaps, s.Changed, err = w.swaps(); err != nil {
		return sample{}, err
	}
	// Cycles come every second, later where the machine is busy, and a phase may begin and end between two.
	switch least := float64(seconds) / 2; {
	case s.Cycles < least, changes && s.Swaps < least:
		err = fmt.Errorf("%.0f cycles and %.0f swaps in %d s, want %.0f at least", s.Cycles, s.Swaps, seconds, least)
	case !changes && s.Swaps > 0:
		err = fmt.Errorf("%.0f swaps where nothing changes", s.Swaps)
	}
	return s, err
}

// urgent is a command that the machine's other work does not delay, if that was asked for. The proxy comes after its callers and its
// backend (level 1 after 2): these must not be what delays.
func (l loader) urgent(level int, words ...string) []string {
	if !l.realtime {
		return words
	}
	return append([]string{"chrt", "--rr", strconv.Itoa(level)}, words...)
}

// watcher looks at what discovery does: cycles by the metrics, swaps by the log.
type watcher struct {
	log     string
	seen    int64 // bytes of the log
	metrics string
}

// open learns where the metrics are.
func (w *watcher) open() error {
	text, err := os.ReadFile(w.log)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(text) {
		var l struct {
			Msg   string `json:"msg"`
			Admin string `json:"admin_listen"`
		}
		if json.Unmarshal(line, &l) == nil && l.Msg == "serving" {
			w.metrics = "http://" + l.Admin + "/metrics"
			return nil
		}
	}
	return fmt.Errorf("%s does not tell where the metrics are", w.log)
}

// atRest says whether all services are there and a whole cycle has swapped nothing.
func (w *watcher) atRest() error {
	if routes, err := w.metric("yt_task_proxy_routes"); err != nil || routes != crowdOperations*crowdServices {
		return fmt.Errorf("%.0f services, error %w", routes, err)
	}
	if _, _, err := w.swaps(); err != nil {
		return err
	}
	before, err := w.cycles()
	if err != nil {
		return err
	}
	for now := before; now < before+2; { // the second one began after the question
		time.Sleep(50 * time.Millisecond) // between two questions
		if now, err = w.cycles(); err != nil {
			return err
		}
	}
	time.Sleep(100 * time.Millisecond) // the log is written a little later
	n, _, err := w.swaps()
	if err == nil && n > 0 {
		err = fmt.Errorf("%.0f swaps", n)
	}
	return err
}

// cycles is how many there have been.
func (w *watcher) cycles() (float64, error) { return w.metric("yt_task_proxy_discovery_success_total") }

func (w *watcher) metric(name string) (float64, error) {
	res, err := http.Get(w.metrics)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err
	}
	return found(string(text), `(?m)^`+name+` ([\d.e+]+)$`), nil
}

// swaps is how many there were since it was asked last, and how many services were other ones in all of them.
func (w *watcher) swaps() (n, changed float64, err error) {
	file, err := os.Open(w.log)
	if err != nil {
		return 0, 0, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.NewSectionReader(file, w.seen, 1<<62))
	if err != nil {
		return 0, 0, err
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	w.seen += int64(len(text))
	for line := range bytes.Lines(text) {
		var l struct {
			Services, Changed float64
		}
		if bytes.Contains(line, []byte(`"msg":"services swapped"`)) && json.Unmarshal(line, &l) == nil {
			n, changed = n+1, changed+l.Changed
		}
	}
	return n, changed, nil
}

// writeSwaps prints the table of swaps. Each number is the median of the starts' medians.
func (r results) writeSwaps(w io.Writer, l loader) {
	of := r["swaps"]
	if len(of) == 0 {
		return
	}
	fmt.Fprintf(w, "\n### %s\n\n", scenarios["swaps"].title)
	fmt.Fprintf(w, "%d requests/s for one of %d services, %d s each in turn. The cluster is asked every second; in one of the phases %d of %d operations have "+
		"a new job each time.\n\n", l.rps, crowdOperations*crowdServices, l.seconds*phaseLasts, l.churn, crowdOperations)
	fmt.Fprintln(w, "| | swaps/s | services changed/s | CPU µs / request | p50 µs | p99 µs | p99 of a second µs | p99.9 µs |\n|---|--:|--:|--:|--:|--:|--:|--:|")
	for _, phase := range []string{quiet, swapped} {
		if f, ok := of[phase]; ok {
			fmt.Fprintf(w, "| %s | %.1f | %.0f | %.1f | %.0f | %.0f | %.0f | %.0f |\n", phase, f.swaps, f.changed, f.cpu, f.p50, f.p99, f.secondP99, f.p999)
		}
	}
	if a, b := of[quiet], of[swapped]; a.p50 > 0 && b.p50 > 0 {
		fmt.Fprintf(w, "| ratio | | | %.2fx | %.2fx | %.2fx | %.2fx | %.2fx |\n", b.cpu/a.cpu, b.p50/a.p50, b.p99/a.p99, b.secondP99/a.secondP99, b.p999/a.p999)
	}
}
