// Package proxy carries a request from an authorized caller to a job.
//
// It owns the way of one request (proxy.go): who is calling, which service is meant, whether the caller may have it, which
// endpoint takes the request, and what crosses in each direction. It also owns the listeners' http.Server settings and the
// admin handler.
//
// It promises:
//   - One resolver, one target. What a request names is read once (resolve.go); authorization, routing, logs and metrics use
//     the service that came of it and never look at the request again.
//   - A request sees one snapshot, from its beginning to its end.
//   - Nothing that identifies the caller to the cluster reaches a job (rewrite.go), and nothing that a job says can act on
//     the cluster's cookie, on a sibling, or in the proxy's name (response.go).
//   - What a browser's login cookie authorizes was not asked for by a stranger's page (browser.go).
//   - No byte of a request is sent twice unless it is idempotent and has no body (balance.go).
//   - Every answer of its own comes from one table, cause to status, gRPC code and reason (errors.go).
//
// It leaves to others: which services exist and where (discovery, handed over through a Table), and whether credentials are
// good and permit an operation (auth, behind Authorizer).
//
//	table := proxy.NewTable()
//	p, err := proxy.New(proxy.Config{Bases: bases, Table: table, Authorizer: authorizer, AuthCookieName: "YTCypressCookie"})
//	server := proxy.NewServer(p, logger)
package proxy
