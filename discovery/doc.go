// Package discovery finds the web services of a cluster's running operations and keeps an immutable Snapshot of them.
//
// It owns what a service is called (domain.go), whose such a name is (labels.go), what operations declare (annotation.go,
// spyt.go, notebook.go), where their jobs answer (jobs.go), which addresses that authors wrote are their jobs' (guard.go),
// and the services table in Cypress where users look addresses up (publish.go). A Discovery asks the cluster in cycles
// (cycle.go): it lists the running operations, asks about those that are new or no longer listed, lists the jobs of those
// where something may have changed, and asks once for the ports of each job. Then it swaps the snapshot.
//
// It promises: a snapshot never changes, and a service that did not change is the same *Service in the next one. What the
// cluster does not answer is held for a while; what it answers to be gone goes at once. No operation, however its author
// wrote it, fails a cycle or touches the services of another: it becomes a Problem. The services table is written
// by one of all replicas, the one that has its lease (writer.go), and nothing waits for that.
//
// It leaves to others: who may call a service, and which of its endpoints serves a request. It makes no connection to
// any of them.
//
//	d, err := discovery.New(discovery.Config{Source: client, Bases: bases, OnSnapshot: table.Store})
//	…
//	go d.Run(ctx)
//	service := d.Snapshot().Lookup("ae5cf6f5")
package discovery
