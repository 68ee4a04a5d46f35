package proxy

import (
	"strings"

	"taskproxy/discovery"
)

// find resolves the request's naming in the snapshot in use. When that has no such service, it may have been started a
// moment ago: an identified caller waits a little for the next snapshot, once, and what that says counts. The request sees
// this one snapshot from then on.
func (p *Proxy) find(x *exchange, name *naming) (*discovery.Service, *discovery.Snapshot, error) {
	snapshot := p.cfg.Table.Load()
	service, err := name.resolve(snapshot)
	if c, _ := known(err); c != causeNoService || x.login == "" || p.cfg.AwaitService == nil {
		return service, snapshot, err
	}
	sought := name.sought()
	if sought == "" || !p.cfg.AwaitService(x.in.Context(), x.login, sought) {
		return nil, nil, err
	}
	snapshot = p.cfg.Table.Load()
	service, err = name.resolve(snapshot)
	return service, snapshot, err
}

// sought is what the request names, in one form for all ways to name it; empty when no service is ever called so.
func (n *naming) sought() string {
	switch {
	case n.id != "":
		return n.id
	case isID(n.label), strings.Count(n.label, "-") >= 2: // an alias, a task and a service
		return n.label
	case n.operation != "":
		return discovery.LongID(n.operation, n.task, n.service)
	case n.alias != "":
		return strings.TrimPrefix(n.alias, "*") + "\x00" + n.task + "\x00" + n.service
	}
	return ""
}
