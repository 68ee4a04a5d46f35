package proxy

import (
	"net/http"
	"strconv"
	"strings"

	"taskproxy/discovery"
)

// HeaderID names a service by the label that it is published under.
const HeaderID = "X-Yt-Taskproxy-Id"

// These name a service by its parts: an operation, by its id or its alias or both, a task, and the service's name. Values
// are compared as they are, byte by byte: they are names, not labels.
const (
	headerOperation = "X-Yt-Taskproxy-Operation-Id"
	headerAlias     = "X-Yt-Taskproxy-Operation-Alias" // with or without its "*"
	headerTask      = "X-Yt-Taskproxy-Task-Name"
	headerService   = "X-Yt-Taskproxy-Service"
)

// maxPart is the longest value of these headers in bytes: nothing longer is ever published.
const maxPart = 256

// naming is what a request says about the service that it wants, read once. Nothing else of a request routes:
// X-Forwarded-Host, Forwarded, spellings with "_", SNI and earlier requests of the connection have no say.
type naming struct {
	kind  discovery.HostKind
	label string // for discovery.HostService

	// From headers; empty when they are not there. With an operation or an alias there are a task and a service.
	id                              string
	operation, alias, task, service string

	err error // what makes the request unresolvable, whatever services there are
	tls bool
}

// readName reads a request's naming. Of an absolute-form target and a Host header that differ, net/http has already let the
// target win, as RFC 9112, section 3.2.2 demands; refuse sees to it that there is no third opinion.
func readName(bases discovery.Bases, r *http.Request) naming {
	n := naming{tls: r.TLS != nil}
	n.kind, n.label = bases.Classify(r.Host)
	n.id = n.header(r.Header, HeaderID)
	n.operation = n.header(r.Header, headerOperation)
	n.alias = n.header(r.Header, headerAlias)
	n.task = n.header(r.Header, headerTask)
	n.service = n.header(r.Header, headerService)
	if n.err == nil {
		n.err = n.check()
	}
	return n
}

// header is the value of a header that may be there once, and then says something.
func (n *naming) header(h http.Header, name string) string {
	values := h[name]
	switch {
	case len(values) == 0 || n.err != nil:
		return ""
	case len(values) > 1:
		n.err = fail(causeBadRouting, "header %s is there %d times: send it once", name, len(values))
	case values[0] == "":
		n.err = fail(causeBadRouting, "header %s is empty: give it a value, or leave it out", name)
	case len(values[0]) > maxPart:
		n.err = fail(causeBadRouting, "header %s has %d bytes: nothing is published by a name of more than %d", name, len(values[0]), maxPart)
	}
	return values[0]
}

// check says what is wrong with the headers together.
func (n *naming) check() error {
	parts := n.operation != "" || n.alias != "" || n.task != "" || n.service != ""
	switch {
	case n.id != "" && !isID(n.id):
		return fail(causeBadRouting, "header %s is %s: want the 8 or 16 lower-case hex digits of a service's ID", HeaderID, quoted(n.id))
	case !parts:
		return nil
	case n.operation == "" && n.alias == "":
		return fail(causeBadRouting, "a service is named by its operation as well: send %s or %s", headerOperation, headerAlias)
	case n.task == "":
		return fail(causeBadRouting, "a service is named by its task as well: send %s", headerTask)
	case n.service == "":
		return fail(causeBadRouting, "a service is named by its own name as well: send %s", headerService)
	case n.operation != "" && !isOperationID(n.operation):
		return fail(causeBadRouting, "header %s is %s: want an operation's id as the cluster prints it, like 1f-2e-3e803e8-4d", headerOperation, quoted(n.operation))
	case n.alias == "*":
		return fail(causeBadRouting, "header %s is \"*\": want an operation's alias", headerAlias)
	}
	return nil
}

// routed reports whether a header of a request is there to name a service.
func routed(h http.Header) bool {
	return h[HeaderID] != nil || h[headerOperation] != nil || h[headerAlias] != nil || h[headerTask] != nil || h[headerService] != nil
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

// isOperationID accepts the canonical form of an id: four groups of hex digits, lower-case and without leading zeros.
func isOperationID(s string) bool {
	groups, digits := 1, 0
	for i := range len(s) {
		switch c := s[i]; {
		case c == '-':
			if digits == 0 {
				return false
			}
			groups, digits = groups+1, 0
			continue
		case (c < '0' || c > '9') && (c < 'a' || c > 'f'), digits == 8, digits == 1 && s[i-1] == '0':
			return false
		}
		digits++
	}
	return groups == 4 && digits > 0
}

// headers reports whether a header names a service.
func (n *naming) headers() bool { return n.id != "" || n.operation != "" || n.alias != "" }

// home reports a request for the proxy's own page: its own host, and nothing that names a service.
func (n *naming) home() bool { return n.kind == discovery.HostOwn && !n.headers() && n.err == nil }

// shared reports that the service was reached by another host than one of its own, so through an origin that it shares with
// every other one: the proxy's own host, an IP address, a name inside of Kubernetes.
func (n *naming) shared() bool { return n.kind != discovery.HostService }

// resolve finds the one service that everything present names. Whoever disagrees with somebody else, also by naming
// nothing that exists, makes the request ambiguous.
func (n *naming) resolve(snapshot *discovery.Snapshot) (*discovery.Service, error) {
	if n.err != nil {
		return nil, n.err
	}
	var v verdict
	if n.kind == discovery.HostService {
		v.add(snapshot.Lookup(n.label))
	}
	if n.id != "" {
		v.add(snapshot.Lookup(n.id))
	}
	if n.operation != "" {
		v.add(snapshot.ByOperation(n.operation, n.task, n.service))
	}
	if n.alias != "" {
		v.add(snapshot.ByAlias(strings.TrimPrefix(n.alias, "*"), n.task, n.service))
	}
	switch {
	case v.conflict || v.ways > 1 && v.service == nil:
		return nil, causeConflict
	case v.service != nil:
		return v.service, nil
	case v.ways == 0 && n.tls && n.kind == discovery.HostForeign:
		return nil, causeMisdirected
	}
	return nil, causeNoService
}

// verdict is what the ways to name a service come to.
type verdict struct {
	ways     int
	service  *discovery.Service
	conflict bool
}

// add takes what one way names; nil: nothing that exists.
func (v *verdict) add(s *discovery.Service) {
	v.conflict = v.conflict || v.ways > 0 && s != v.service
	v.ways, v.service = v.ways+1, s
}

// maxQuoted is the most that a log line or an answer repeats of what a stranger wrote, in bytes.
const maxQuoted = 256

// quoted makes a stranger's words safe to repeat in one line of text: cut, quoted, and ASCII.
func quoted(s string) string {
	return strconv.QuoteToASCII(s[:min(len(s), maxQuoted)])
}
