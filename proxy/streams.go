package proxy

import (
	"context"
	"sync"
)

// streams are the exchanges that last: tunnels, and whatever else lived long enough for its watch to look at it. They are
// listed so that a shutdown can end them. Short requests never come here, nor does discovery.
type streams struct {
	mu       sync.Mutex
	draining bool // no further tunnels
	closed   bool // nothing lasts any more
	open     map[*exchange]*stream
}

type stream struct {
	tunnel bool
	over   chan struct{} // closed when the exchange has ended
}

// list puts an exchange among the streams, as a tunnel or not; it reports false when it must end instead. An exchange that is
// over is not listed.
func (p *Proxy) list(x *exchange, tunnel bool) bool {
	w := &x.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done && !tunnel || w.listed && !tunnel {
		return true
	}
	added := p.streams.add(x, tunnel)
	w.listed = w.listed || added
	return added
}

func (s *streams) add(x *exchange, tunnel bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.draining && tunnel {
		return false
	}
	if s.open == nil {
		s.open = make(map[*exchange]*stream)
	}
	if known := s.open[x]; known != nil {
		known.tunnel = tunnel
		return true
	}
	s.open[x] = &stream{tunnel: tunnel, over: make(chan struct{})}
	return true
}

func (s *streams) remove(x *exchange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.open[x]; known != nil {
		delete(s.open, x)
		close(known.over)
	}
}

// each calls f for every stream that is open, and for none that has ended.
func (s *streams) each(f func(*exchange)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for x := range s.open {
		f(x)
	}
}

// end ends the tunnels, or all streams, and waits for their end or that of ctx. There will be no others.
func (s *streams) end(ctx context.Context, all bool) {
	s.mu.Lock()
	s.draining = true
	s.closed = s.closed || all
	var ending []*exchange
	var over []chan struct{}
	for x, stream := range s.open {
		if all || stream.tunnel {
			ending, over = append(ending, x), append(over, stream.over)
		}
	}
	s.mu.Unlock() // whoever ends an exchange holds its watch's lock, and the other way round is how it is listed
	for _, x := range ending {
		x.end(causeClosing)
	}
	for _, c := range over {
		select {
		case <-c:
		case <-ctx.Done():
			return
		}
	}
}
