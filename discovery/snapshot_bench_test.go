package discovery

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"taskproxy/ytclient"
)

func benchServices(n int) []Service {
	services := make([]Service, n)
	for i := range services {
		services[i] = svc(fmt.Sprintf("%08x-1-2-3", i/2), "task", fmt.Sprintf("port_%d", i%2), "10.0.0.1:20001", "10.0.0.2:20002")
	}
	return services
}

func BenchmarkNewSnapshot(b *testing.B) {
	for _, n := range []int{10, 1_000, 100_000} {
		services := benchServices(n)
		labels := NewLabels(nil)
		base, _ := NewSnapshot(nil, labels, services)
		b.Run(fmt.Sprintf("first/routes=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				NewSnapshot(nil, nil, services)
			}
		})
		b.Run(fmt.Sprintf("same/routes=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				NewSnapshot(base, labels, services)
			}
		})
		changed := append([]Service(nil), services...)
		changed[n/2].Endpoints = changed[n/2].Endpoints[:1]
		b.Run(fmt.Sprintf("changed/routes=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				NewSnapshot(base, labels, changed)
			}
		})
	}
}

// BenchmarkAliases is BenchmarkNewSnapshot where every operation has an alias.
func BenchmarkAliases(b *testing.B) {
	for _, n := range []int{10, 1_000, 100_000} {
		services := benchServices(n)
		for i := range services {
			services[i].Alias = fmt.Sprintf("*alias%d", i/2)
		}
		labels := NewLabels(nil)
		base, problems := NewSnapshot(nil, labels, services)
		if len(problems) > 0 {
			b.Fatal(problems)
		}
		b.Run(fmt.Sprintf("first/routes=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				NewSnapshot(nil, nil, services)
			}
		})
		b.Run(fmt.Sprintf("same/routes=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				NewSnapshot(base, labels, services)
			}
		})
	}
}

// BenchmarkLabelsMemory tells what the memory of who owns which label keeps, per service that is published. The time is that
// of looking.
func BenchmarkLabelsMemory(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		b.Run(fmt.Sprintf("routes=%d", n), func(b *testing.B) {
			services := benchServices(n)
			var kept uint64
			for b.Loop() {
				before := heap()
				labels := NewLabels(nil)
				NewSnapshot(nil, labels, services)
				kept = heap() - before
				runtime.KeepAlive(labels)
			}
			b.ReportMetric(float64(kept)/float64(n), "B/route")
			runtime.KeepAlive(services)
		})
	}
}

func BenchmarkLiving(b *testing.B) {
	for _, n := range []int{10, 1_000, 100_000} {
		labels := NewLabels(nil)
		services := benchServices(n)
		NewSnapshot(nil, labels, services)
		alive := make(map[string]bool)
		for _, s := range services {
			alive[s.OperationID] = true
		}
		b.Run(fmt.Sprintf("routes=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				labels.Living(alive)
			}
		})
	}
}

// BenchmarkLookup finds one service over and over, as callers of one do, and every service once before any comes again: then what is
// looked up is in no cache of the processor, if there are many. The work is the same, and memory is what takes longer.
func BenchmarkLookup(b *testing.B) {
	for _, n := range []int{10, 1_000, 10_000, 100_000} {
		s, _ := NewSnapshot(nil, nil, benchServices(n))
		hot := []string{s.Services()[n/2].ID}
		every := make([]string, 0, n)
		for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
			every = append(every, strings.Clone(s.Services()[i].ID)) // a request has it from its Host, not from the map
		}
		for name, labels := range map[string][]string{"hot": hot, "every": every} {
			b.Run(fmt.Sprintf("%s/routes=%d", name, n), func(b *testing.B) {
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for i := rand.IntN(len(labels)); pb.Next(); i++ {
						if i == len(labels) {
							i = 0
						}
						if s.Lookup(labels[i]) == nil {
							b.Fatal("not found")
						}
					}
				})
			})
		}
	}
}

// BenchmarkQuietCycle is a cycle in which nothing has changed, without the time that the cluster takes.
func BenchmarkQuietCycle(b *testing.B) {
	for _, n := range []int{10, 1_000, 20_000} {
		b.Run(fmt.Sprintf("routes=%d", n), func(b *testing.B) {
			var listing ytclient.Listing
			for i := range n {
				listing.Operations = append(listing.Operations, ytclient.Operation{ID: fmt.Sprintf("%08x-1-2-3", i), State: "running",
					Annotations: map[string]any{"task_proxy": map[string]any{"enabled": true}}})
			}
			d, err := New(Config{JobsRefreshPeriod: time.Hour, Source: &source{
				listOperations: func() (ytclient.Listing, error) { return listing, nil },
				getOperation: func(id string) (ytclient.OperationInfo, error) {
					return ytclient.OperationInfo{ID: id, State: "running", Tasks: []ytclient.Task{{Name: "t", JobCount: 1, PortCount: 1}}}, nil
				},
				listJobs: func(id string) (ytclient.JobListing, error) {
					return ytclient.JobListing{Jobs: []ytclient.Job{{ID: id, Task: "t", State: "running", Address: "node:9012"}}}, nil
				},
				jobPorts: func(refs []ytclient.JobRef) ([]ytclient.PortsAnswer, error) {
					answers := make([]ytclient.PortsAnswer, len(refs))
					for i := range answers {
						answers[i].Ports = []int{20001}
					}
					return answers, nil
				},
			}})
			if err != nil {
				b.Fatal(err)
			}
			cycle := func() {
				if err := d.cycle(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			cycle()
			b.ReportAllocs()
			for b.Loop() {
				cycle()
			}
			if d.Snapshot().Endpoints() != n || d.calls.Load() != 1 {
				b.Fatalf("%d endpoints, %d calls", d.Snapshot().Endpoints(), d.calls.Load())
			}
		})
	}
}

func BenchmarkClassify(b *testing.B) {
	bases, err := NewBases("task-proxy.example.com")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		bases.Classify("ae5cf6f5.task-proxy.example.com:8080")
	}
}
