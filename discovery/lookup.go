package discovery

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"

	"taskproxy/ytclient"
)

// What the guard asks the resolver and the exec nodes about. It is asked for all trials of a pass at once.

// Resolver looks host names up. *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// lookUpBudget bounds all that a cycle asks the resolver. Names are looked up for strangers, and the servers that answer may
// be theirs: a cycle waits neither for one of them nor for many. Those that were not reached wait for the next cycle.
const lookUpBudget = time.Second

// lookups are the answers of the resolver in one pass, by host.
type lookups map[string]lookup

type lookup struct {
	ips []netip.Addr
	err error
}

var errNotLookedUp = errors.New("there was no time to look the name up")

// of returns a host's addresses; an address is its own.
func (l lookups) of(host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{normal(ip)}, nil
	}
	answer, ok := l[host]
	if !ok {
		return nil, errNotLookedUp
	}
	return answer.ips, answer.err
}

func dnsNotFound(err error) bool {
	var e *net.DNSError
	return errors.As(err, &e) && e.IsNotFound
}

// lookUp asks the resolver for all hosts that the trials need: the nodes' first, then those that authors wrote.
func (d *Discovery) lookUp(ctx context.Context, trials []*trial) lookups {
	var hosts []string
	seen := make(map[string]bool)
	add := func(host string) {
		if _, err := netip.ParseAddr(host); err != nil && host != "" && !seen[host] {
			seen[host] = true
			hosts = append(hosts, host)
		}
	}
	var strangers []*trial
	for _, tr := range trials {
		if tr.matched != nil {
			continue
		}
		nodes, written := tr.hosts()
		for _, host := range nodes {
			add(host)
		}
		if written != "" {
			strangers = append(strangers, tr)
		}
	}
	for _, tr := range inTurn(strangers) {
		add(tr.c.at.host)
	}
	if len(hosts) == 0 {
		return nil
	}
	answers := make([]lookup, len(hosts))
	budget, cancel := context.WithTimeout(ctx, lookUpBudget)
	defer cancel()
	for i := range answers {
		answers[i].err = errNotLookedUp
	}
	d.forEachIndex(budget, len(hosts), func(i int) { answers[i] = d.guard.lookUp(budget, hosts[i]) })
	names := make(lookups, len(hosts))
	for i, host := range hosts {
		names[host] = answers[i]
	}
	return names
}

// inTurn is the order in which the hosts that authors wrote are looked up: one of each user, then another one of each. There may
// be time for a few only, so no user comes first each time, and of one user's those come last that were asked for most often
// in vain.
func inTurn(trials []*trial) []*trial {
	byUser := make(map[string][]*trial)
	for _, tr := range trials {
		byUser[tr.t.op.User] = append(byUser[tr.t.op.User], tr)
	}
	queues := slices.Collect(maps.Values(byUser))
	for _, q := range queues {
		slices.SortStableFunc(q, func(a, b *trial) int { return a.c.tries - b.c.tries })
	}
	rand.Shuffle(len(queues), func(i, j int) { queues[i], queues[j] = queues[j], queues[i] })
	order := make([]*trial, 0, len(trials))
	for turn := 0; len(order) < len(trials); turn++ {
		for _, q := range queues {
			if turn < len(q) {
				order = append(order, q[turn])
			}
		}
	}
	return order
}

func (g guard) lookUp(ctx context.Context, host string) (l lookup) {
	l.ips, l.err = g.resolver.LookupNetIP(ctx, "ip", host)
	for i, ip := range l.ips {
		l.ips[i] = normal(ip)
	}
	return l
}

// siblings are, by host of a trial's node, all the exec nodes that are known to be at that host.
func (d *Discovery) siblings(trials []*trial) map[string][]string {
	hosts := make(map[string]map[string]struct{})
	for _, tr := range trials {
		for _, j := range tr.matched {
			hosts[j.host] = make(map[string]struct{})
		}
	}
	if len(hosts) == 0 {
		return nil
	}
	for _, t := range d.tracked {
		for _, j := range t.jobs {
			if at := hosts[j.host]; at != nil {
				at[j.Address] = struct{}{}
			}
		}
	}
	siblings := make(map[string][]string, len(hosts))
	for host, addresses := range hosts {
		siblings[host] = slices.Sorted(maps.Keys(addresses))
	}
	return siblings
}

// nodeAnswers are what exec nodes told of their jobs in one pass, by address.
type nodeAnswers map[string]nodeAnswer

type nodeAnswer struct {
	jobs []ytclient.NodeJob
	err  error
}

// askTheirNodes asks each of the exec nodes for its jobs.
func (d *Discovery) askTheirNodes(ctx context.Context, siblings map[string][]string) nodeAnswers {
	var addresses []string
	for _, at := range siblings {
		addresses = append(addresses, at...)
	}
	answered := make([]nodeAnswer, len(addresses))
	now := time.Now()
	d.forEachIndex(ctx, len(addresses), func(i int) {
		if d.silent.has(addresses[i], now) {
			answered[i].err = errSilent
			return
		}
		answered[i].err = d.call(ctx, func(ctx context.Context) (err error) {
			answered[i].jobs, err = d.source.NodeJobs(ctx, addresses[i])
			return err
		})
		d.silent.note(addresses[i], answered[i].err)
	})
	answers := make(nodeAnswers, len(addresses))
	for i, address := range addresses {
		answers[address] = answered[i]
	}
	return answers
}

// forEachIndex calls f for 0 to n-1, as forEach does.
func (d *Discovery) forEachIndex(ctx context.Context, n int, f func(int)) {
	indices := make([]int, n)
	for i := range indices {
		indices[i] = i
	}
	forEach(ctx, d.concurrency, indices, f)
}
