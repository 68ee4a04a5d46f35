//go:build unix

package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Ports of jobs come from the range that exec nodes use by default, in blocks. Real ones are below pretendedLow, so that
// no pretended job shares a port with a process.
const (
	portLow      = 20_000
	portHigh     = 30_000 // exclusive
	portBlock    = 32
	pretendedLow = 30_000
	pretendedEnd = 65_536 // exclusive

	// Spark's processes take ports of their own accord here, whoever they are given to.
	sparkLow  = 27_000
	sparkHigh = 28_000 // exclusive
)

// portPool hands out TCP ports of this machine, each to one living job at a time. The zero value is ready.
//
// A port is only promised: between the probe and the moment a job listens, anybody may take it. So that no other
// scheduler does, one in another process included, each owns blocks of ports, and owns a block by listening on its first
// port: the kernel ends that with the process, however it dies. The ports of the block are never given out in the order
// in which they came back soonest, so that whoever still dials an old port is not answered by a new job at once.
type portPool struct {
	mu    sync.Mutex
	free  []int                // the one that waits longest first
	locks map[int]net.Listener // by the first port of the block
}

// take returns n free ports.
func (p *portPool) take(n int) ([]int, error) {
	var taken, busy []int
	defer func() { p.give(busy) }()
	for len(taken) < n {
		port, ok := p.pop()
		if !ok {
			if err := p.grow(); err != nil {
				p.give(taken)
				return nil, err
			}
			continue
		}
		if isFree(port) {
			taken = append(taken, port)
		} else {
			busy = append(busy, port)
		}
	}
	return taken, nil
}

func (p *portPool) pop() (port int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) == 0 {
		return 0, false
	}
	port = p.free[0]
	p.free = p.free[1:]
	return port, true
}

// give takes ports back.
func (p *portPool) give(ports []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, ports...)
}

// grow makes one more block ours.
func (p *portPool) grow() error {
	blocks := portBlocks()
	first := rand.IntN(len(blocks)) // so that schedulers seldom try for the same block
	for i := range blocks {
		base := blocks[(first+i)%len(blocks)]
		lock, err := listen("127.0.0.1", base)
		if err != nil {
			continue
		}
		p.mu.Lock()
		if p.locks == nil {
			p.locks = map[int]net.Listener{}
		}
		p.locks[base] = lock
		for port := base + 1; port < base+portBlock; port++ {
			p.free = append(p.free, port)
		}
		p.mu.Unlock()
		return nil
	}
	return fmt.Errorf("no free ports between %d and %d", portLow, portHigh)
}

// close gives all blocks up. Nothing may use a port any more.
func (p *portPool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, lock := range p.locks {
		lock.Close()
	}
	p.locks, p.free = nil, nil
}

// portBlocks lists the first ports of all blocks but Spark's, without those from which the kernel takes the local ports of outgoing
// connections, which would steal promised ports. Where too little is left of the range they are used all the same.
func portBlocks() []int {
	low, high := ephemeralRange()
	var all, outside []int
	for base := portLow; base+portBlock <= portHigh; base += portBlock {
		if base+portBlock > sparkLow && base < sparkHigh {
			continue
		}
		all = append(all, base)
		if base+portBlock <= low || base > high {
			outside = append(outside, base)
		}
	}
	if len(outside) < len(all)/4 {
		return all
	}
	return outside
}

// ephemeralRange asks Linux; elsewhere it is the range that IANA has set aside, which the others keep to.
func ephemeralRange() (low, high int) {
	const ianaLow, ianaHigh = 49_152, 65_535
	data, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return ianaLow, ianaHigh
	}
	bounds := strings.Fields(string(data))
	if len(bounds) != 2 {
		return ianaLow, ianaHigh
	}
	low, lowErr := strconv.Atoi(bounds[0])
	high, highErr := strconv.Atoi(bounds[1])
	if lowErr != nil || highErr != nil {
		return ianaLow, ianaHigh
	}
	return low, high
}

// isFree probes a port as a job may want it: on loopback, and on all addresses. Both, because some systems let one
// listener in beside the other.
func isFree(port int) bool {
	for _, host := range []string{"127.0.0.1", ""} {
		l, err := listen(host, port)
		if err != nil {
			return false
		}
		l.Close()
	}
	return true
}

// listen is strict: unlike net.Listen it does not reuse an address with connections in TIME_WAIT, because a job may be
// as strict as that.
func listen(host string, port int) (net.Listener, error) {
	strict := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		ctlErr := c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 0)
		})
		return errors.Join(ctlErr, err)
	}}
	return strict.Listen(context.Background(), "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
}

// pretendedPorts hands out numbers by host, for jobs that have no process: nodes at one host share its ports. Scheduler.mu
// guards it.
type pretendedPorts map[string]*pretendedHost

type pretendedHost struct {
	next int
	held map[int]bool
}

func (p pretendedPorts) take(address string, n int) ([]int, error) {
	if n == 0 {
		return nil, nil
	}
	name := hostOf(address)
	host := p[name]
	if host == nil {
		host = &pretendedHost{next: pretendedLow, held: map[int]bool{}}
		p[name] = host
	}
	if len(host.held)+n > pretendedEnd-pretendedLow {
		return nil, fmt.Errorf("host %s has no %d free pretended ports", name, n)
	}
	ports := make([]int, 0, n)
	for len(ports) < n {
		if !host.held[host.next] {
			host.held[host.next] = true
			ports = append(ports, host.next)
		}
		if host.next++; host.next == pretendedEnd {
			host.next = pretendedLow
		}
	}
	return ports, nil
}

func (p pretendedPorts) give(address string, ports []int) {
	for _, port := range ports {
		delete(p[hostOf(address)].held, port)
	}
}

// hostOf is the host of a node's address; an address without a port is its own.
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}
