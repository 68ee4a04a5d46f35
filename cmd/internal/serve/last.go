package serve

import (
	"net/http"
	"sync/atomic"
)

// lastAnswers makes each answer the last of its connection once draining is true: HTTP/1.1 says so by "Connection: close", and
// net/http turns that into a GOAWAY of HTTP/2, which lets the streams under way finish. Server.SetKeepAlivesEnabled
// would close idle connections at once, perhaps with a request on its way, and leave busy ones of HTTP/2 alone.
func lastAnswers(draining *atomic.Bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if draining.Load() {
			w = lastAnswer{w}
		}
		next.ServeHTTP(w, r)
	})
}

// lastAnswer says it with the status, when nobody takes headers away any more.
type lastAnswer struct{ http.ResponseWriter }

// WriteHeader sends a status, and with a final one the hint.
func (w lastAnswer) WriteHeader(status int) {
	if status >= 200 {
		w.Header().Set("Connection", "close")
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController flush, hijack and set deadlines.
func (w lastAnswer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
