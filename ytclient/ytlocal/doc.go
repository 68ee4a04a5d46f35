// Package ytlocal is a small YTsaurus cluster in one process: the HTTP API v4 that the Go SDK, the yt command line and
// SPYT's clients ask, over a Cypress in memory, and operations whose jobs are real local processes (package scheduler).
//
//	c, err := ytlocal.Start(ytlocal.Config{StateDir: dir})
//	defer c.Close()
//	alice, err := c.AddUser("alice")
//	yc, err := ythttp.NewClient(&yt.Config{Proxy: c.Addr(), Token: alice.Token,
//		CompressionCodec: yt.ClientCodecNone, DisableProxyDiscovery: true})
//
// The same cluster from a shell: YT_PROXY=$ADDR YT_TOKEN=$TOKEN yt list /
//
// It is for tests and the demo, and it starts processes. So it listens on loopback only, gives every user a random token
// and answers nothing of consequence without one, and refuses what a browser page could send it (server.go, guard).
// Whoever has a token may run commands with the rights of this process: give tokens to nobody else.
//
// # What is like the real thing
//
// Parameters from header, query and body; YSON and JSON; errors in headers, bodies and trailers with the cluster's codes
// and statuses. Tokens, cookies with CSRF tokens, groups, ACLs with inheritance, accounts with their right to use, the
// base ACL of //sys/operations. Paths with attributes, selectors and escapes. Transactions, nested, with timeouts,
// prerequisites and locks. Orchids of exec nodes with the ports of their jobs; that of the HTTP proxy with the domain of its
// login cookie. What browsers hear when they ask whether a page may call (CORS).
//
// # What is not
//
//   - Compression: requests may be gzip or zlib; answers are plain. The Go SDK needs CompressionCodec: yt.ClientCodecNone.
//   - Tables are static. A schema is enforced as to columns and types; sort order and uniqueness are not.
//   - Rights, owners and accounts of nodes change at once, whatever the transaction; users, groups and accounts are not
//     transactional at all.
//   - Reads need the read right on everything below; exists needs none.
//   - There are no caches: what was changed shows at once, where a real cluster takes seconds or minutes.
//   - Only superusers issue tokens; there are no passwords.
//   - A parameter that a command does not know is ignored, as on the real cluster.
//
// What a real cluster does on its bad days is asked for through Faults; edits.go has the answers of such days ready-made.
// Operations that exist in words only, with ids, states, addresses and ports at will, are told by Scheduler.Pretend.
package ytlocal
