package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
)

// figures are the medians of one proxy in one scenario: of its starts' medians.
type figures struct {
	cpu         float64 // microseconds of one request; of big, of one answer
	perSecond   float64
	p50, p99    float64 // microseconds
	p999        float64
	secondP99   float64
	fresh       float64 // MB
	kept, socks float64 // KB of an idle connection
	spread      float64 // of cpu between the starts: greatest by least
	swaps       float64 // a second
	changed     float64 // services, a second
}

// results are the figures by scenario and proxy; of swaps by phase.
type results map[string]map[string]figures

func collect(samples []sample) results {
	type key struct{ scenario, proxy string }
	grouped := map[key]map[int][]sample{}
	for _, s := range samples {
		k := key{s.Scenario, cmp.Or(s.Phase, s.Proxy)}
		if grouped[k] == nil {
			grouped[k] = map[int][]sample{}
		}
		grouped[k][s.Start] = append(grouped[k][s.Start], s)
	}
	r := results{}
	for k, starts := range grouped {
		of := func(figure func(sample) float64) (middle, spread float64) {
			var each []float64
			for _, rounds := range starts {
				var all []float64
				for _, s := range rounds {
					all = append(all, figure(s))
				}
				each = append(each, median(all))
			}
			return median(each), slices.Max(each) / max(slices.Min(each), 1e-9)
		}
		var f figures
		f.cpu, f.spread = of(func(s sample) float64 { return s.CPU / max(s.Requests, 1) * 1e6 })
		f.perSecond, _ = of(func(s sample) float64 { return s.Requests / max(s.Seconds, 1e-9) })
		f.p50, _ = of(func(s sample) float64 { return s.P50 })
		f.p99, _ = of(func(s sample) float64 { return s.P99 })
		f.p999, _ = of(func(s sample) float64 { return s.P999 })
		f.secondP99, _ = of(func(s sample) float64 { return s.SecondP99 })
		f.swaps, _ = of(func(s sample) float64 { return s.Swaps / max(s.Seconds, 1e-9) })
		f.changed, _ = of(func(s sample) float64 { return s.Changed / max(s.Seconds, 1e-9) })
		f.fresh, _ = of(func(s sample) float64 { return s.FreshKB / 1024 })
		f.kept, _ = of(func(s sample) float64 { return s.KeepAliveKB })
		f.socks, _ = of(func(s sample) float64 { return s.WebSocketKB })
		if r[k.scenario] == nil {
			r[k.scenario] = map[string]figures{}
		}
		r[k.scenario][k.proxy] = f
	}
	return r
}

// median of values, of which there is at least one.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// write prints a table for each scenario. Ratios are of the task proxy by the proxy of the row: below 1, it uses less.
func (r results) write(w io.Writer, entries []entry, order []string, l loader) {
	for _, name := range order {
		of := r[name]
		if len(of) == 0 {
			continue
		}
		if name == "swaps" {
			r.writeSwaps(w, l)
			continue
		}
		sc := scenarios[name]
		fmt.Fprintf(w, "\n### %s\n\n", sc.title)
		if name == "mem" {
			fmt.Fprintf(w, "%d connections of each kind; MB of a fresh process, KB for each idle connection.\n\n", l.idle)
			fmt.Fprintln(w, "| proxy | fresh | keep-alive | WebSocket |\n|---|--:|--:|--:|")
		} else {
			fmt.Fprintf(w, "| proxy | CPU µs / request | task-proxy uses | requests/s | task-proxy makes | p50 µs | p99 µs |\n|---|--:|--:|--:|--:|--:|--:|\n")
		}
		ours, ok := of["task-proxy"]
		if _, open := of["task-proxy-open"]; open && name != "h1-auth" && name != "lat-auth" {
			ours, ok = of["task-proxy-open"], true
		}
		for _, e := range entries {
			f, in := of[e.name]
			if !in {
				continue
			}
			ratio := func(a, b float64) string {
				if !ok || b == 0 {
					return "–"
				}
				return fmt.Sprintf("%.2fx", a/b)
			}
			time := func(us float64) string {
				if us == 0 {
					return "–"
				}
				return fmt.Sprintf("%.0f", us)
			}
			if name == "mem" {
				fmt.Fprintf(w, "| %s | %.1f | %.1f | %.1f |\n", e.name, f.fresh, f.kept, f.socks)
			} else {
				fmt.Fprintf(w, "| %s | %.1f | %s | %.0f | %s | %s | %s |\n",
					e.name, f.cpu, ratio(ours.cpu, f.cpu), f.perSecond, ratio(ours.perSecond, f.perSecond), time(f.p50), time(f.p99))
			}
		}
	}
}
