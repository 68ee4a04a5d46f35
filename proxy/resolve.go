package proxy

import (
	"net/http"
	"strconv"

	"taskproxy/discovery"
)

// HeaderID names a service by the label that it is published under.
const HeaderID = "X-Yt-Taskproxy-Id"

// routingHeaders are the other documented ways to name a service. Until they are served they are refused: passing over one
// would send the request to a service that the caller did not mean.
var routingHeaders = []string{
	"X-Yt-Taskproxy-Operation-Id", "X-Yt-Taskproxy-Operation-Alias", "X-Yt-Taskproxy-Task-Name", "X-Yt-Taskproxy-Service",
}

// naming is what a request says about the service that it wants, read once. Nothing else of a request routes:
// X-Forwarded-Host, Forwarded, spellings with "_", SNI and earlier requests of the connection have no say.
type naming struct {
	kind  discovery.HostKind
	label string // for discovery.HostService
	id    string // from HeaderID; empty when there is none
	err   error  // what makes the request unresolvable, whatever services there are
	tls   bool
}

// readName reads a request's naming. Of an absolute-form target and a Host header that differ, net/http has already let the
// target win, as RFC 9112, section 3.2.2 demands; refuse sees to it that there is no third opinion.
func readName(bases discovery.Bases, r *http.Request) naming {
	n := naming{tls: r.TLS != nil}
	n.kind, n.label = bases.Classify(r.Host)
	ids := r.Header[HeaderID]
	switch {
	case len(ids) > 1:
		n.err = fail(causeBadRouting, "header %s is there %d times: send it once", HeaderID, len(ids))
	case len(ids) == 1 && !isID(ids[0]):
		n.err = fail(causeBadRouting, "header %s is %s: want the 8 or 16 lower-case hex digits of a service's ID", HeaderID, quoted(ids[0]))
	case len(ids) == 1:
		n.id = ids[0]
	}
	for _, name := range routingHeaders {
		if _, ok := r.Header[name]; ok && n.err == nil {
			n.err = fail(causeBadRouting, "header %s is not served yet: name the service by its host or by %s", name, HeaderID)
		}
	}
	return n
}

// isID accepts the one spelling that the services table has: a header is copied from there or made by a program, not typed
// into an address bar, so no letter case is folded.
func isID(s string) bool {
	if len(s) != 8 && len(s) != 16 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// home reports a request for the proxy's own page: its own host, and nothing that names a service.
func (n *naming) home() bool { return n.kind == discovery.HostOwn && n.id == "" && n.err == nil }

// shared reports that the service was reached by another host than one of its own, so through an origin that it shares with
// every other one: the proxy's own host, an IP address, a name inside of Kubernetes.
func (n *naming) shared() bool { return n.kind != discovery.HostService }

// resolve finds the one service that everything present names. Whoever disagrees with somebody else, also by naming
// nothing that exists, makes the request ambiguous.
func (n *naming) resolve(snapshot *discovery.Snapshot) (*discovery.Service, error) {
	if n.err != nil {
		return nil, n.err
	}
	var byHost, byID *discovery.Service
	if n.kind == discovery.HostService {
		byHost = snapshot.Lookup(n.label)
	}
	if n.id != "" {
		byID = snapshot.Lookup(n.id)
	}
	switch {
	case n.kind == discovery.HostService && n.id != "":
		if byHost == nil || byHost != byID {
			return nil, causeConflict
		}
		return byHost, nil
	case n.kind == discovery.HostService:
		return found(byHost)
	case n.id != "":
		return found(byID)
	case n.tls && n.kind == discovery.HostForeign:
		return nil, causeMisdirected
	}
	return nil, causeNoService
}

func found(s *discovery.Service) (*discovery.Service, error) {
	if s == nil {
		return nil, causeNoService
	}
	return s, nil
}

// maxQuoted is the most that a log line or an answer repeats of what a stranger wrote, in bytes.
const maxQuoted = 256

// quoted makes a stranger's words safe to repeat in one line of text: cut, quoted, and ASCII.
func quoted(s string) string {
	return strconv.QuoteToASCII(s[:min(len(s), maxQuoted)])
}
