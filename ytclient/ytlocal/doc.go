// Package ytlocal is a small YTsaurus cluster in one process: the HTTP API v4 that the Go SDK, the yt command line and
// SPYT's clients ask, over a Cypress in memory, and operations whose jobs are real local processes (package scheduler).
//
// It is for tests and the demo, and it starts processes. So it listens on loopback only, gives every user a random token
// and answers nothing of consequence without one, and refuses what a browser page could send it.
package ytlocal
