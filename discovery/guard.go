package discovery

import (
	"cmp"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"

	"taskproxy/ytclient"
)

// Addresses that users write are how a proxy is made to connect to what they cannot reach themselves: metadata services,
// the cluster's masters, somebody else's driver. So what they write only chooses among the places where the operation's own
// jobs run, as the cluster tells them; what is dialled is the exec node's own IP address, looked up once.

// maxHosts is how many exec nodes of one operation are looked at for one address.
const maxHosts = 32

// guard decides which written addresses become endpoints.
type guard struct {
	resolver Resolver
	ports    PortRanges // that a process may have taken by itself
}

func newGuard(cfg SPYTConfig, r Resolver) guard {
	g := guard{resolver: r, ports: cfg.Ports}
	if g.resolver == nil {
		g.resolver = net.DefaultResolver
	}
	if g.ports == nil {
		g.ports = defaultSparkPorts
	}
	return g
}

// trial is one claim about to be decided.
type trial struct {
	t          *tracked
	c          *claim
	candidates []*job // the running jobs that it can be of, likeliest first

	matched []*job     // those of them that run at the address's host
	ip      netip.Addr // of that host
}

// isNodeName reports whether a written name is what the cluster itself calls the exec node, or the first part of that, which
// is what many machines believe to be their name.
func isNodeName(name, node string) bool {
	node = strings.ToLower(strings.TrimSuffix(node, "."))
	first, _, _ := strings.Cut(node, ".")
	return name == node || name == first
}

// hosts lists the names that must be looked up to find the trial's node: those of nodes, and the written one where that is
// needed.
func (tr *trial) hosts() (nodes []string, written string) {
	if name, ok := tr.nodeName(); ok {
		return []string{name}, ""
	}
	for _, j := range tr.candidates {
		if !slices.Contains(nodes, j.host) && len(nodes) < maxHosts {
			nodes = append(nodes, j.host)
		}
	}
	if _, err := netip.ParseAddr(tr.c.at.host); err != nil {
		written = tr.c.at.host
	}
	return nodes, written
}

// nodeName is the host of the node that the written name is the cluster's own name of, if it is one; no resolver is asked
// about it then.
func (tr *trial) nodeName() (string, bool) {
	for _, j := range tr.candidates {
		if isNodeName(tr.c.at.host, j.host) {
			return j.host, true
		}
	}
	return tr.c.at.host, false
}

// match finds the exec node that the address means among those of the operation's jobs. An address that means several
// machines means the one that is an exec node of the operation; the others are never dialled.
func (tr *trial) match(l lookups) {
	host, ours := tr.nodeName()
	written, err := l.of(host)
	switch {
	case err != nil && ours:
		tr.c.wait(ClusterCall, "the exec node cannot be looked up")
		return
	case dnsNotFound(err):
		tr.c.refuse("its host has no address")
		return
	case err != nil:
		tr.c.wait(RejectedAddress, "its host cannot be looked up")
		return
	}
	unknown := false
	for _, j := range tr.candidates {
		ips, err := l.of(j.host)
		if err != nil {
			unknown = true
			continue
		}
		i := slices.IndexFunc(ips, func(ip netip.Addr) bool {
			return ip == tr.ip || !tr.ip.IsValid() && slices.Contains(written, ip)
		})
		if i >= 0 {
			tr.ip = ips[i]
			tr.matched = append(tr.matched, j)
		}
	}
	switch {
	case len(tr.matched) > 0:
	case unknown:
		tr.c.wait(ClusterCall, "an exec node of the operation cannot be looked up")
	default:
		tr.c.refuse("its host is not the exec node of a running job of the operation")
	}
}

// finding is what the exec nodes say about a trial's port.
type finding struct {
	job   *job // whose endpoint it can be; nil when the trial is over
	given bool // the node gave the port to that job
}

// judge looks in the answers of the nodes at the trial's host whose the port is. There may be several nodes at one host.
func (g guard) judge(tr *trial, nodes []string, answers nodeAnswers) finding {
	var owner *job   // to whom its node gave the port
	var known []*job // those that their own nodes confirm
	foreign, odd := false, false
	var silent error
	for _, address := range nodes {
		a := answers[address]
		if a.err != nil {
			// A node that is no more has no jobs.
			if tr.runsAt(address) || !errors.Is(a.err, ytclient.ErrNotFound) {
				silent = a.err
			}
			continue
		}
		for _, n := range a.jobs {
			j := tr.jobAt(n, address)
			has := slices.Contains(n.Ports, int(tr.c.at.port))
			switch {
			case n.Err != nil:
				odd = true
			case j == nil:
				foreign = foreign || has
			case has:
				owner = j.told(n)
			default:
				known = append(known, j.told(n))
			}
		}
	}
	c := tr.c
	switch {
	case foreign: // maybe beside us: two nodes of one host need not know of each other
		c.refuse("the exec node gave its port to another job")
	case owner != nil:
		return finding{job: owner, given: true}
	case silent != nil:
		c.wait(ClusterCall, "an exec node does not tell its jobs: "+cause(silent))
	case odd:
		c.wait(OddAnswer, "an exec node's list of its jobs cannot be read in full")
	case len(known) == 0:
		c.unknown()
	case !g.ports.has(c.at.port):
		c.refuse("its port is neither one that the exec node gave to the job nor one that Spark may take by itself")
	default:
		for _, j := range tr.matched { // in their order
			if slices.Contains(known, j) && c.means(j) {
				return finding{job: j}
			}
		}
		c.refuse(lateJob)
	}
	return finding{}
}

// lateJob is why an address that its author left behind does not count for the jobs that came later.
const lateJob = "the job that ran when it was written has ended; it counts again when it is written anew"

func (tr *trial) runsAt(address string) bool {
	return slices.ContainsFunc(tr.matched, func(j *job) bool { return j.Address == address })
}

// nodes are the exec nodes whose word counts in the trial: all that are known to be at the hosts of its jobs.
func (tr *trial) nodes(siblings map[string][]string) []string {
	var nodes []string
	for _, j := range tr.matched {
		nodes = append(nodes, siblings[j.host]...)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// jobAt is the trial's job that a node's entry is about; nil when it is another one.
func (tr *trial) jobAt(n ytclient.NodeJob, address string) *job {
	for _, j := range tr.matched {
		if j.ID == n.ID && j.Address == address && n.OperationID == tr.t.op.ID {
			return j
		}
	}
	return nil
}

// decide admits claims in an order that does not depend on chance: the older operation's before the younger's. Everything in
// it is memory; the cluster and the resolver were asked before.
func (d *Discovery) decide(trials []*trial, siblings map[string][]string, answers nodeAnswers) {
	slices.SortFunc(trials, func(a, b *trial) int {
		return cmp.Or(a.t.op.StartTime.Compare(b.t.op.StartTime), strings.Compare(a.t.op.ID, b.t.op.ID), strings.Compare(a.c.key, b.c.key))
	})
	findings := make([]finding, len(trials))
	for i, tr := range trials {
		if len(tr.matched) > 0 {
			findings[i] = d.guard.judge(tr, tr.nodes(siblings), answers)
		}
	}
	held := d.heldAddresses() // after the judgement, which ends claims
	for i, tr := range trials {
		f := findings[i]
		if f.job == nil {
			continue
		}
		addr := netip.AddrPortFrom(tr.ip, tr.c.at.port)
		if holder := held[addr]; holder != nil && holder != tr.t {
			if !f.given {
				tr.c.refuse("another operation has its port")
				continue
			}
			holder.withdraw(addr)
		}
		tr.c.admit(f.job, addr, f.given)
		held[addr] = tr.t
	}
}

// heldAddresses are the addresses of all living claims.
func (d *Discovery) heldAddresses() map[netip.AddrPort]*tracked {
	held := make(map[netip.AddrPort]*tracked)
	for _, t := range d.tracked {
		for _, c := range t.addresses.claims {
			if c.living(t) != nil {
				held[c.addr] = t
			}
		}
	}
	return held
}

// withdraw ends the operation's claims to an address that turned out to be another's.
func (t *tracked) withdraw(addr netip.AddrPort) {
	for _, c := range t.addresses.claims {
		if c.job != "" && c.addr == addr {
			c.refuse("the exec node gave its port to another job")
		}
	}
}
