package main

import (
	"fmt"
	"io"
)

// limit is what the task proxy is held to: a figure of its, by another proxy's or by itself. Those of swaps are by phases.
type limit struct {
	what     string
	scenario string
	ours     string
	theirs   string // empty: the figure itself is limited
	figure   func(figures) float64
	bound    float64
	atLeast  bool // else at most
}

func cpu(f figures) float64       { return f.cpu }
func perSecond(f figures) float64 { return f.perSecond }
func p50(f figures) float64       { return f.p50 }

// perCPU is what a second of processor time makes of it: bytes per CPU second are in proportion to it.
func perCPU(f figures) float64 { return 1 / max(f.cpu, 1e-9) }

// limits are what users compare. Ratios hold within one run only.
var limits = []limit{
	{"checked, CPU", "h1-auth", "task-proxy", "caddy-auth", cpu, 0.35, false},
	{"checked, CPU", "h1-auth", "task-proxy", "nginx-auth", cpu, 1.4, false},
	{"checked, requests/s", "h1-auth", "task-proxy", "caddy-auth", perSecond, 3, true},
	{"checked, requests/s", "h1-auth", "task-proxy", "nginx-auth", perSecond, 1.8, true},
	{"checked, p50 at a fixed rate", "lat-auth", "task-proxy", "nginx-auth", p50, 0.12, false},
	{"checked, CPU", "h1-auth", "task-proxy", "task-proxy-open", cpu, 1.1, false},
	{"open, CPU", "h1", "task-proxy-open", "caddy", cpu, 0.75, false},
	{"open, CPU", "h1", "task-proxy-open", "nginx", cpu, 3.2, false},
	{"a connection for each request, CPU", "conn", "task-proxy-open", "caddy", cpu, 0.8, false},
	{"1 MiB, bytes by CPU", "big", "task-proxy-open", "caddy", perCPU, 1, true},
	{"1 MiB, bytes by CPU", "big", "task-proxy-open", "haproxy", perCPU, 0.9, true},
	{"gRPC unary, CPU", "grpc", "task-proxy-open", "caddy", cpu, 0.6, false},
	{"gRPC streams, CPU", "gstream", "task-proxy-open", "caddy", cpu, 0.85, false},
	// Nobody waits for a swap, but a cycle that finds changes has more to do on the same cores: 1.0 to 1.2 is what runs say. The
	// rest is for the machine: with 20 ms of a lock at each swap it is above 15.
	{"p99 of a second while snapshots are swapped", "swaps", swapped, quiet, func(f figures) float64 { return f.secondP99 }, 1.3, false},
	{"memory of a fresh process, MB", "mem", "task-proxy", "", func(f figures) float64 { return f.fresh }, 40, false},
	{"memory of an idle keep-alive connection, KB", "mem", "task-proxy", "", func(f figures) float64 { return f.kept }, 25, false},
	{"memory of an idle WebSocket, KB", "mem", "task-proxy", "", func(f figures) float64 { return f.socks }, 30, false},
}

// writeLimits prints how the run compares with the limits that it has the figures for, and returns how many were missed.
func (r results) writeLimits(w io.Writer) (missed int) {
	fmt.Fprint(w, "\n### Limits\n\n| what | beside | limit | seen | |\n|---|---|--:|--:|---|\n")
	for _, l := range limits {
		ours, ok := r[l.scenario][l.ours]
		if !ok {
			continue
		}
		seen, sign, beside := l.figure(ours), "≤", "–"
		if l.theirs != "" {
			theirs, ok := r[l.scenario][l.theirs]
			if !ok {
				continue
			}
			seen /= l.figure(theirs)
			beside = l.theirs
		}
		if l.atLeast {
			sign = "≥"
		}
		verdict := "holds"
		if (seen >= l.bound) != l.atLeast && seen != l.bound {
			verdict = "MISSED"
			missed++
		}
		fmt.Fprintf(w, "| %s | %s | %s %.2f | %.2f | %s |\n", l.what, beside, sign, l.bound, seen, verdict)
	}
	return missed
}
