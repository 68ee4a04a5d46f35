package proxy

import (
	"bufio"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// responseWriter is the caller's end of an exchange. It sees everything that goes out, also the 1xx answers that
// httputil.ReverseProxy sends without asking anybody, and counts.
type responseWriter struct {
	http.ResponseWriter
	x        *exchange
	rules    *rules
	alarms   *alarms
	status   int         // final status; 0 until there is one
	left     int64       // of a job's body whose length is known, what is still to come; otherwise 0 or less
	started  atomic.Bool // the final status was sent, or the connection is no longer HTTP
	hijacked atomic.Bool // the connection is a tunnel's

	// live: what is written goes out at once, and the beginning soon.
	live  bool
	mu    sync.Mutex // held while a live answer is written or flushed
	alarm *alarm     // nil: the beginning has gone out, or waits no longer
	unary bool       // the first bytes of the body are a part of the beginning
}

// patienceAtFirst is how long the beginning of a live answer waits, to leave together with what follows: the headers for the first bytes
// of the body, and both for the status of a gRPC call, of which most have one message. An answer that is all there takes less,
// and whoever waits for events does not notice.
const patienceAtFirst = time.Millisecond

// adopt makes a job's headers the answer's, as they are, and leaves res without any: ReverseProxy would copy each value. So it
// does not see either that a body has to be flushed at every write, and that is done here: a body of unknown length, and events.
func (w *responseWriter) adopt(res *http.Response) {
	h := w.Header()
	for name, values := range res.Header {
		h[name] = values
	}
	w.live = res.ContentLength < 0 || isEventStream(res.Header)
	res.Header, res.ContentLength = nil, 0
}

// isEventStream reports Server-Sent Events.
func isEventStream(h http.Header) bool {
	media, _, _ := strings.Cut(contentType(h), ";")
	return strings.EqualFold(trimSpace(media), "text/event-stream")
}

// ring sends the beginning of a live answer that goes on later.
func (w *responseWriter) ring() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.alarm != nil {
		_ = http.NewResponseController(w.ResponseWriter).Flush()
		w.alarm = nil
	}
}

// silence ends the alarm; when it returns nobody flushes any more but who writes. The caller holds mu.
func (w *responseWriter) silence() {
	if w.alarm != nil {
		w.alarms.drop(w.alarm)
		w.alarm = nil
	}
}

// release is for when the job's answer is over, or given up.
func (w *responseWriter) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silence()
	w.live = false
}

// WriteHeader sends a status. A 1xx is always the job's, since we write none, and is cleaned here.
func (w *responseWriter) WriteHeader(status int) {
	h := w.Header()
	if status >= 100 && status < 200 {
		if status == http.StatusSwitchingProtocols {
			// Over HTTP/2 a job's 101 arrives as just another 1xx, and net/http would let it out.
			w.x.carrier.cancel(&Error{cause: causeBadAnswer, Err: errUnaskedUpgrade})
			return
		}
		if w.x.in.ProtoMajor >= 2 {
			// Not passed on: net/http encodes a 1xx from this very map, maybe still when the stream has ended and the map is
			// about to change. Concurrent map access ends the process, and a job and its own caller can bring it about.
			return
		}
		removeHopByHop(h)
		w.rules.cleanAnswer(h, w.x)
		w.ResponseWriter.WriteHeader(status)
		return
	}
	if w.started.Swap(true) {
		return
	}
	w.status = status
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // or net/http would guess one, and a browser might run what was not meant to run
	}
	h["X-Request-Id"] = w.x.one(w.x.id)
	if w.x.bodyOpen() {
		// What is left of the body, or follows a broken one, must not be read as the next request, and nobody waits for it.
		h["Connection"] = []string{"close"}
	}
	if w.live && w.x.grpc {
		h["Content-Length"] = nil // or net/http would tell one, when it has all
	}
	w.ResponseWriter.WriteHeader(status)
	switch {
	case w.live:
		w.mu.Lock()
		defer w.mu.Unlock()
		w.unary = w.x.grpc && w.x.in.ProtoMajor >= 2
		w.alarm = w.alarms.set(patienceAtFirst, w)
	case w.left > bufferSize && w.x.in.Method != http.MethodHead:
		_ = http.NewResponseController(w.ResponseWriter).Flush() // a large body may begin much later; Write meets what is wrong
	}
}

// Write sends a part of the body. Less than a buffer is all that the job has said so far, and does not wait in net/http's buffers for
// what comes next. (Nor does a live answer: see write.)
func (w *responseWriter) Write(b []byte) (int, error) {
	if !w.started.Load() {
		w.WriteHeader(http.StatusOK)
	}
	n, err := w.write(b)
	w.x.bytesOut.Add(int64(n))
	w.x.watch.touch()
	if w.left -= int64(n); w.left > 0 && len(b) < bufferSize && err == nil {
		err = http.NewResponseController(w.ResponseWriter).Flush()
	}
	return n, err
}

func (w *responseWriter) write(b []byte) (int, error) {
	if !w.live {
		return w.ResponseWriter.Write(b)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.ResponseWriter.Write(b)
	if w.alarm != nil && w.unary && err == nil {
		w.unary = false // a second message ends the waiting
		return n, nil
	}
	w.silence()
	if err == nil {
		_ = http.NewResponseController(w.ResponseWriter).Flush() // the next write tells
	}
	return n, err
}

// FlushError sends what is buffered; http.ResponseController calls it.
func (w *responseWriter) FlushError() error {
	if !w.started.Load() {
		w.WriteHeader(http.StatusOK)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.alarm != nil && w.x.grpc && w.x.in.ProtoMajor >= 2 {
		return nil // ReverseProxy asks before it adds trailers, since HTTP/1 needs that; they follow, or the alarm rings
	}
	w.silence()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Flush is FlushError for callers that ask for an http.Flusher.
func (w *responseWriter) Flush() { _ = w.FlushError() }

// Hijack hands the connection over; from then on its bytes are the tunnel's to count.
func (w *responseWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.started.Store(true)
		w.hijacked.Store(true)
	}
	return conn, rw, err
}

// Unwrap lets http.ResponseController reach deadlines and full duplex.
func (w *responseWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
