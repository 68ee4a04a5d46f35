package discovery

import (
	"net"
	"slices"
	"strconv"
)

// reassign takes addresses away from those who had them before the exec nodes gave them to the jobs whose ports were told just
// now. Whoever had them has ended, whether or not the cluster has said so yet: an operation that is held must not lead its
// callers to somebody else's process.
func (d *Discovery) reassign() {
	var given map[string]*job // by address; nil as a rule
	for _, t := range d.tracked {
		for _, j := range t.jobs {
			if !j.portsNew {
				continue
			}
			j.portsNew = false
			for _, port := range j.ports {
				if given == nil {
					given = make(map[string]*job)
				}
				given[j.addr(port)] = j
			}
		}
	}
	if given == nil {
		return
	}
	for _, t := range d.tracked {
		for _, j := range t.jobs {
			if slices.ContainsFunc(j.ports, func(port int) bool { g := given[j.addr(port)]; return g != nil && g != j }) {
				j.ports = nil // asked for anew, as long as it is listed
			}
		}
		for _, c := range t.addresses.claims {
			j := c.living(t)
			if j == nil {
				continue
			}
			if g := given[j.addr(int(c.addr.Port()))]; g != nil && g != j {
				c.refuse("the exec node gave its port to another job")
			}
		}
	}
}

// addr is the address of a port at the job's node, as endpoints have it.
func (j *job) addr(port int) string { return net.JoinHostPort(j.host, strconv.Itoa(port)) }
