package proxy

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"taskproxy/auth"
	"taskproxy/discovery"
	"taskproxy/ytclient"
)

// exchange is one request on its way: what was decided about it, and what the access log will say. The request's own
// goroutine writes it, except for the fields marked otherwise.
type exchange struct {
	in    *http.Request // as net/http gave it; decisions never go back to it
	w     responseWriter
	id    string // request id
	start time.Time

	login       string
	source      auth.Source
	credentials ytclient.Credentials // asked with again while the stream lasts; print redacted
	expires     time.Time            // when the yeses are to be asked for again; zero: nobody said
	service     *discovery.Service
	cors        string // the origin whose page may read the answer; empty: none that we would name

	carrier  carrier // the context of what is forwarded, which ends the stream for a reason; begins when the request is forwarded
	ending   ending  // the same, for the attempts
	watch    watch
	patience *patience   // with the job's answer; nil: there is no limit
	body     requestBody // the caller's, on its way to the job
	sent     sentBytes
	answer   *http.Response     // the job's; ReverseProxy's, but for the trailers, which it has when its body has ended
	messages messages           // the body of a gRPC answer
	endpoint discovery.Endpoint // the last one that was tried; written with watch.mu held
	attempts int
	tried    [1]discovery.Endpoint // room for the turn's
	upgraded *upgraded             // the tunnel's other end, once the job agreed

	reading           sync.Mutex   // held by whoever reads the caller's body
	bytesIn, bytesOut atomic.Int64 // bodies and tunnels; written by copying goroutines
	// What of them is in the metrics already; written by whoever looks at these too.
	countedIn, countedOut atomic.Int64
	abandoned             atomic.Bool // the job broke the connection while the caller's body was waited for
	bodyEnded             atomic.Bool // the caller's body was read to its end; written by the goroutine that sends it on
	grpcStatus            string

	failure *cause // why we answered ourselves
	err     error  // what the log says about it

	// These stand together to take less room.
	carried    protocol // whose bytes they are; fixed before others look
	grpc       bool     // the caller speaks gRPC
	held       bool     // one of the yeses is what the cluster said before it went away
	cached     bool     // no call to the cluster was needed
	authorized bool
	peer       bool // passes without a login, because of where it comes from
	shared     bool // reached through the proxy's own host
	confides   bool // an admin trusts the job with credentials
	websocket  bool // a handshake that may become a tunnel
	tunnelled  bool // it is a tunnel, and its own goroutine's from then on
	finished   bool // false when a panic ended the handler

	// Values of headers that we set, of which there are not more as a rule; used of them are taken.
	values [8]string
	used   int

	took time.Duration // from its beginning to its end; set for the access log
}

// one is a header's value that nobody else has. Nearly every request needs some, and so they are made together.
func (x *exchange) one(value string) []string {
	if x.used == len(x.values) {
		return []string{value}
	}
	x.values[x.used] = value
	x.used++
	return x.values[x.used-1 : x.used : x.used] // no room: whoever appends gets a slice of their own
}

// bodyOpen reports an HTTP/1 request whose body was not read to its end. (Over HTTP/2 a body is its stream's alone.)
func (x *exchange) bodyOpen() bool {
	return x.in.ProtoMajor == 1 && x.in.ContentLength != 0 && !x.bodyEnded.Load()
}

// add adds a value of ours to a header.
func (x *exchange) add(h http.Header, name, value string) {
	if values := h[name]; len(values) > 0 {
		h[name] = append(values, value)
		return
	}
	h[name] = x.one(value)
}

// begin opens the record of a request and gives it an id.
func (p *Proxy) begin(w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{in: r, id: requestID(r.Header), start: time.Now(), grpc: isGRPC(r.Header)}
	x.w.ResponseWriter, x.w.x, x.w.rules, x.w.alarms = w, x, &p.rules, &p.alarms
	x.carried = x.protocol()
	return x
}

// requestID keeps the caller's id when it is harmless wherever it will be repeated, so that traces of several systems join.
func requestID(h http.Header) string {
	if ids := h["X-Request-Id"]; len(ids) == 1 && validRequestID(ids[0]) {
		return ids[0]
	}
	return newRequestID()
}

// requestIDs are made many at a time, each a part of one string.
const (
	requestIDSize  = 32
	requestIDsEach = 32
)

// unusedIDs has strings of request ids that nobody has got yet, as *string.
var unusedIDs sync.Pool

// newRequestID is one that nobody has had: 128 random bits in hex.
func newRequestID() string {
	ids, ok := unusedIDs.Get().(*string)
	if !ok {
		ids = new(string)
	}
	if *ids == "" {
		var random [requestIDSize / 2 * requestIDsEach]byte
		_, _ = rand.Read(random[:]) // never fails
		var text [2 * len(random)]byte
		hex.Encode(text[:], random[:])
		*ids = string(text[:])
	}
	id := (*ids)[:requestIDSize]
	*ids = (*ids)[requestIDSize:]
	unusedIDs.Put(ids)
	return id
}

func validRequestID(s string) bool {
	if len(s) == 0 || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !isAlnum(c) && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// end closes the record: metrics and one line in the access log. It runs also while a panic passes through. Whoever waits for a stream's
// end waits for its line too: after a shutdown nobody writes it any more.
func (p *Proxy) end(x *exchange) {
	if !x.finished && x.failure == nil {
		x.failure = causeBroken
		if x.in.Context().Err() != nil {
			x.failure = causeGone
		}
	}
	took := time.Since(x.start)
	p.metrics.record(x, took)
	if p.cfg.AccessLog != nil {
		p.accessLog(x, took)
	}
	if x.watch.wasListed() {
		p.streams.remove(x)
	}
}

// status is what the caller was told, or would have been.
func (x *exchange) status() int {
	if x.failure == causeGone {
		return statusClientGone
	}
	return x.w.status
}

// protocol is what the caller speaks, as far as the job has agreed to it.
func (x *exchange) protocol() protocol {
	switch {
	case x.upgraded != nil:
		return protocolWebSocket
	case x.grpc:
		return protocolGRPC
	}
	return protocolHTTP
}

// decision is what came of asking whether the caller may have the service, in a word; empty: it did not come to that.
func (x *exchange) decision(open bool) string {
	switch {
	case x.peer:
		return "peer" // by where it comes from
	case x.authorized && x.held:
		return "allow_stale" // by what the cluster said before it went away
	case x.authorized:
		return "allow"
	case x.failure == causeNoCluster, x.failure == causeTooMany, x.failure == causeAuthOff:
		return "undecided"
	case x.failure != nil && x.failure.isAuth():
		return "deny"
	case open && x.service != nil:
		return "open" // nobody is asked who they are
	}
	return ""
}
