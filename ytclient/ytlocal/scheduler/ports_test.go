package scheduler

import (
	"net"
	"slices"
	"sync"
	"testing"
)

func TestPortsAreGivenOnce(t *testing.T) {
	t.Parallel()
	// Two pools, as of two processes: what one has the other cannot get.
	var pools [2]portPool
	defer pools[0].close()
	defer pools[1].close()
	var mu sync.Mutex
	seen := map[int]bool{}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			ports, err := pools[i%2].take(20)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, port := range ports {
				if seen[port] {
					t.Errorf("port %d is given out twice", port)
				}
				if port < portLow || port >= portHigh {
					t.Errorf("port %d is out of range", port)
				}
				seen[port] = true
			}
		})
	}
	all.Wait()
	if len(seen) != 160 {
		t.Errorf("ports: got %d, want 160", len(seen))
	}
}

func TestPortsInUseAreLeftOut(t *testing.T) {
	t.Parallel()
	var p portPool
	defer p.close()
	first, err := p.take(3)
	if err != nil {
		t.Fatal(err)
	}
	p.give(first)
	for _, host := range []string{"127.0.0.1", ""} {
		// The next in the queue, taken by somebody else.
		p.mu.Lock()
		next := p.free[0]
		p.mu.Unlock()
		l, err := net.Listen("tcp", net.JoinHostPort(host, show(int64(next))))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		got, err := p.take(1)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(got, next) {
			t.Errorf("port %d in use on %q is given out", next, host)
		}
	}
}

// A port that was given back waits behind all others.
func TestPortsAreReusedLate(t *testing.T) {
	t.Parallel()
	var p portPool
	defer p.close()
	first, err := p.take(1)
	if err != nil {
		t.Fatal(err)
	}
	p.give(first)
	second, err := p.take(1)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Equal(first, second) {
		t.Errorf("port %d is given out again at once", first[0])
	}
}

// No job is given a port that Spark may take without asking.
func TestSparkPortsAreNotGiven(t *testing.T) {
	t.Parallel()
	blocks := portBlocks()
	if len(blocks) == 0 {
		t.Fatal("there are no blocks")
	}
	for _, base := range blocks {
		for port := base; port < base+portBlock; port++ {
			if port >= 27_000 && port <= 27_999 {
				t.Fatalf("the block at %d has port %d", base, port)
			}
		}
	}
}

func TestPretendedPortsRunOut(t *testing.T) {
	t.Parallel()
	p := pretendedPorts{}
	if _, err := p.take("n:1", pretendedEnd-pretendedLow); err != nil {
		t.Fatal(err)
	}
	if _, err := p.take("n:1", 1); err == nil {
		t.Error("one more: got no error")
	}
	if _, err := p.take("other:1", 1); err != nil {
		t.Errorf("another node: %v", err)
	}
	p.give("n:1", []int{40_000})
	if got, err := p.take("n:1", 1); err != nil || got[0] != 40_000 {
		t.Errorf("after one was given back: got %v %v", got, err)
	}
}

// A port belongs to its job for as long as the job lives, whether it listens or not.
func TestLivingJobsShareNoPort(t *testing.T) {
	t.Parallel()
	s := newScheduler(t)
	var jobs []Job
	for range 2 {
		id := mustStart(t, s, spec(shell("sleep 1000", "job_count", int64(3), "port_count", int64(40))))
		jobs = append(jobs, waitRunning(t, s, id, 3)...)
	}
	seen := map[int]string{}
	for _, j := range jobs {
		if len(j.Ports) != 40 {
			t.Errorf("job %s: got %d ports, want 40", j.ID, len(j.Ports))
		}
		for _, port := range j.Ports {
			if other, ok := seen[port]; ok {
				t.Errorf("port %d belongs to jobs %s and %s", port, other, j.ID)
			}
			seen[port] = j.ID
		}
	}
}
