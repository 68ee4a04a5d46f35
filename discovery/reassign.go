package discovery

import (
	"net"
	"slices"
	"strconv"
	"time"
)

// contest is what is remembered of a job that has an address which another job has as well: exec nodes that share a host give
// ports without knowing of each other. Which of the two answers there nobody can tell, so callers are led to neither, for as
// long as both nodes say so and both jobs run. The zero value: there is none.
type contest struct {
	ports []int         // of the job; it is as if it had none
	until time.Time     // not to be asked for them again before that
	pause time.Duration // … and for twice as long the next time
}

// waits reports whether the job's node has just been asked whose its ports are.
func (c *contest) waits(now time.Time) bool { return now.Before(c.until) }

// reassign takes addresses away from those who had them before the exec nodes gave them to the jobs whose ports were told just
// now. Whoever had them at the same node has ended, whether or not the cluster has said so yet: an operation that is held must
// not lead its callers to somebody else's process. It returns the problems of jobs whose addresses are contested.
func (d *Discovery) reassign() (problems []Problem) {
	claims := d.claimed()
	if claims == nil {
		return nil
	}
	for _, t := range d.tracked {
		for _, j := range t.jobs {
			if len(j.ports) > 0 && !claims.include(j) {
				claims.challenge(j)
			}
		}
	}
	now := time.Now()
	for _, t := range d.tracked {
		for _, j := range t.jobs {
			if !claims.include(j) {
				continue
			}
			if !claims.contested(j) {
				j.settle()
				continue
			}
			j.withhold(now, d.period)
			problems = append(problems, Problem{Kind: OddAnswer, OperationID: t.op.ID, Task: j.Task,
				Reason: "two exec nodes at one host gave one port to two jobs, so neither is an endpoint while both say so"})
		}
		for _, c := range t.addresses.claims {
			if j := c.living(t); j != nil && claims.byAnother(j, int(c.addr.Port())) {
				c.refuse("the exec node gave its port to another job")
			}
		}
	}
	return problems
}

// portClaims are the jobs that have a port of a host by what their nodes told just now, or when that was contested.
type portClaims map[portAt][]*job

type portAt struct {
	host string
	port int
}

// claimed collects them; nil as a rule.
func (d *Discovery) claimed() (claims portClaims) {
	for _, t := range d.tracked {
		for _, j := range t.jobs {
			fresh := j.portsNew
			j.portsNew = false
			if fresh && len(j.ports) == 0 || j.unknown > 0 {
				j.contest = contest{} // its node says that it has none any more
			}
			if !fresh && j.contest.ports == nil {
				continue
			}
			if claims == nil {
				claims = make(portClaims)
			}
			claims.add(j)
		}
	}
	return claims
}

// portsTold are the ports that the job's node has told, contested or not.
func (j *job) portsTold() []int {
	if len(j.ports) > 0 {
		return j.ports
	}
	return j.contest.ports
}

func (p portClaims) add(j *job) {
	for _, port := range j.portsTold() {
		if at := (portAt{j.host, port}); !slices.Contains(p[at], j) {
			p[at] = append(p[at], j)
		}
	}
}

func (p portClaims) include(j *job) bool {
	return slices.ContainsFunc(j.portsTold(), func(port int) bool { return slices.Contains(p[portAt{j.host, port}], j) })
}

// byAnother reports whether another job has a port at the job's host.
func (p portClaims) byAnother(j *job, port int) bool {
	return slices.ContainsFunc(p[portAt{j.host, port}], func(other *job) bool { return other != j })
}

func (p portClaims) contested(j *job) bool {
	return slices.ContainsFunc(j.portsTold(), func(port int) bool { return p.byAnother(j, port) })
}

// challenge decides about a job whose node told its ports some time ago. A node that gives one of them to another job has taken
// it from this one; another node has not.
func (p portClaims) challenge(j *job) {
	lost, contested := false, false
	for _, port := range j.ports {
		for _, other := range p[portAt{j.host, port}] {
			lost = lost || other.Address == j.Address
			contested = contested || other.Address != j.Address
		}
	}
	switch {
	case lost:
		j.ports = nil // asked for anew, as long as it is listed
	case contested:
		p.add(j)
	}
}

// settle ends a contest: the job has its ports for itself.
func (j *job) settle() {
	j.ports, j.contest = j.portsTold(), contest{}
}

// withhold begins a contest, or goes on with it. While the node says the same again it is asked less and less often.
func (j *job) withhold(now time.Time, period time.Duration) {
	if c := &j.contest; len(j.ports) > 0 {
		c.pause = min(max(2*c.pause, period), max(maxBackoff, period))
		c.until = now.Add(c.pause - period/2) // cycles come a little sooner or later
		c.ports = j.ports
	}
	j.ports = nil
}

// addr is the address of a port at the job's node, as endpoints have it.
func (j *job) addr(port int) string { return net.JoinHostPort(j.host, strconv.Itoa(port)) }
