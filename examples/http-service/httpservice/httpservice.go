// Package httpservice is a small HTTP service that tells which job answered, who called, and what arrived.
package httpservice

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"

	"taskproxy/examples/job"
)

// UserHeader is where the task proxy tells the caller's login. It informs: whoever reaches the job's port without the
// proxy can write it too, so nothing may be decided by it.
const UserHeader = "X-Yt-Taskproxy-User"

// Answer is the service's answer in JSON.
type Answer struct {
	Job job.Info `json:"job"`
	// User is the caller's login; empty when the request did not come through the proxy.
	User    string      `json:"user"`
	Method  string      `json:"method"`
	Path    string      `json:"path"` // with the query, as it arrived
	Host    string      `json:"host"`
	Headers http.Header `json:"headers"`
}

// Serve is the job's work: it answers on the listener until the context ends.
func Serve(ctx context.Context, info job.Info, listener net.Listener) error {
	return job.ServeHTTP(ctx, listener, Handler(info))
}

// Handler answers every path: "/headers" with the headers that arrived, anything else with one line, and both with an
// Answer when the Accept header asks for JSON.
func Handler(info job.Info) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := Answer{
			Job:     info,
			User:    r.Header.Get(UserHeader),
			Method:  r.Method,
			Path:    r.RequestURI,
			Host:    r.Host,
			Headers: r.Header,
		}
		// What is shown was written by the caller: no browser may take it for a page, and no cache may keep it.
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Vary", "Accept")
		if wantsJSON(r.Header) {
			w.Header().Set("Content-Type", "application/json")
			encoder := json.NewEncoder(w)
			encoder.SetIndent("", "  ")
			_ = encoder.Encode(answer) // fails only when the client has left
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if r.URL.Path == "/headers" {
			writeHeaders(w, answer)
			return
		}
		fmt.Fprintf(w, "Hello, %s! This is %s of operation %s.\n", answer.name(), info, info.OperationID)
	})
}

// name is how the answer addresses its reader.
func (a Answer) name() string {
	if a.User == "" {
		return "stranger"
	}
	return a.User
}

// writeHeaders shows the request as it reached the job.
func writeHeaders(w http.ResponseWriter, answer Answer) {
	fmt.Fprintf(w, "%s %s\nHost: %s\n", answer.Method, answer.Path, answer.Host)
	for _, name := range slices.Sorted(maps.Keys(answer.Headers)) {
		for _, value := range answer.Headers[name] {
			fmt.Fprintf(w, "%s: %s\n", name, value)
		}
	}
}

// wantsJSON reports whether the caller named JSON. A wildcard is no wish: curl and browsers send one always.
func wantsJSON(header http.Header) bool {
	for _, value := range header.Values("Accept") {
		for part := range strings.SplitSeq(value, ",") {
			media, _, _ := strings.Cut(part, ";")
			if strings.EqualFold(strings.TrimSpace(media), "application/json") {
				return true
			}
		}
	}
	return false
}
