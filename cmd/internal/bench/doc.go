// Package bench holds benchmarks of the product as it runs, and nothing else: a process of its own before a local cluster, jobs
// that are processes too, and callers in a third, so that what is counted is the proxy's alone. `make bench-allocs` runs them.
//
// Allocations per request are stable, and fail above a limit. Nothing here fails by time.
package bench
