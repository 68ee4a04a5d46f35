package proxy

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"taskproxy/discovery"
)

// askedContext notes that somebody has asked for its end.
type askedContext struct {
	context.Context
	asked bool
}

func (c *askedContext) Done() <-chan struct{} {
	c.asked = true
	return c.Context.Done()
}

// A carrier is what context.WithCancelCause makes, whatever happens to it and in whatever order: what can be seen of it is the same,
// of what others make of it too, and at once. Only it does not sign on with its caller before somebody waits.
func TestCarrierIsACancellableContext(t *testing.T) {
	t.Parallel()
	errLeft, errFirst, errSecond := errors.New("left"), errors.New("first"), errors.New("second")
	type side struct {
		ctx      context.Context
		cancel   context.CancelCauseFunc
		leave    context.CancelCauseFunc
		children []context.Context
		called   int
	}
	steps := []struct {
		name string
		do   func(*side)
	}{
		{"wait", func(s *side) { s.ctx.Done() }},
		{"child", func(s *side) {
			child, cancel := context.WithCancel(s.ctx)
			t.Cleanup(cancel)
			s.children = append(s.children, child)
		}},
		{"call", func(s *side) { context.AfterFunc(s.ctx, func() { s.called++ }) }},
		{"leave", func(s *side) { s.leave(errLeft) }},
		{"over", func(s *side) { s.cancel(nil) }},
		{"first", func(s *side) { s.cancel(errFirst) }},
		{"second", func(s *side) { s.cancel(errSecond) }},
	}
	isDone := func(ctx context.Context) bool {
		select {
		case <-ctx.Done():
			return true
		default:
			return false
		}
	}
	same := func(a, b context.Context) bool {
		return errors.Is(a.Err(), b.Err()) && errors.Is(context.Cause(a), context.Cause(b))
	}
	// Looking is waiting, so that it is done at the end only.
	run := func(names []string, through func(*carrier) context.Context, order []int) {
		synctest.Test(t, func(t *testing.T) {
			var is, want side
			caller, leave := context.WithCancelCause(context.WithValue(t.Context(), http.ServerContextKey, "value"))
			asked := &askedContext{Context: caller}
			x := &exchange{in: &http.Request{}, service: &discovery.Service{Protocol: discovery.HTTP}}
			x.carrier.begin(asked, x)
			is.ctx, is.cancel, is.leave = through(&x.carrier), x.carrier.cancel, leave
			caller, want.leave = context.WithCancelCause(context.WithValue(t.Context(), http.ServerContextKey, "value"))
			want.ctx, want.cancel = context.WithCancelCause(caller)
			defer func() { leave(nil); want.leave(nil); want.cancel(nil) }()
			waited := false
			for _, i := range order {
				steps[i].do(&is)
				steps[i].do(&want)
				waited = waited || slices.Contains([]string{"wait", "child", "call", "first", "second"}, steps[i].name)
				if !same(is.ctx, want.ctx) {
					t.Errorf("%s: after %s: %v because of %v, want %v because of %v", names, steps[i].name,
						is.ctx.Err(), context.Cause(is.ctx), want.ctx.Err(), context.Cause(want.ctx))
				}
				for n, child := range is.children {
					if !same(child, want.children[n]) {
						t.Errorf("%s: after %s a child has %v because of %v, want %v because of %v", names, steps[i].name,
							child.Err(), context.Cause(child), want.children[n].Err(), context.Cause(want.children[n]))
					}
				}
				if asked.asked && !waited && !slices.Contains(names, "over") {
					t.Errorf("%s: it has signed on although nobody waits", names)
				}
			}
			synctest.Wait()
			if is.called != want.called || isDone(is.ctx) != isDone(want.ctx) {
				t.Errorf("%s: called %d times, done %t, want %d, %t", names, is.called, isDone(is.ctx), want.called, isDone(want.ctx))
			}
			if is.ctx.Value(http.ServerContextKey) != "value" || exchangeOf(is.ctx) != x || exchangeOf(x.carrier.shown()) != x {
				t.Errorf("%s: values are missing", names)
			}
			if shown := x.carrier.shown(); shown.Done() != nil || shown.Err() != nil {
				t.Errorf("%s: what ReverseProxy sees ends", names)
			}
		})
	}
	plain := func(c *carrier) context.Context { return c }
	sent := func(c *carrier) context.Context { // by ReverseProxy, with its trace
		type key struct{}
		return &ending{c, context.WithValue(c.shown(), key{}, "trace")}
	}
	var all func(order []int)
	all = func(order []int) {
		names := make([]string, len(order))
		for n, i := range order {
			names[n] = steps[i].name
		}
		run(names, plain, order)
		run(append(names, "as sent"), sent, order)
		if len(order) == 4 {
			return
		}
		for i := range steps {
			if !slices.Contains(order, i) {
				all(append(slices.Clone(order), i))
			}
		}
	}
	all(nil)
}

// Only who has nothing more to send than its header is carried without an end that ReverseProxy sees.
func TestCarrierShows(t *testing.T) {
	t.Parallel()
	if _, ok := any(new(responseWriter)).(interface{ CloseNotify() <-chan bool }); ok {
		t.Error("ReverseProxy watches for the caller's leaving by itself, in a goroutine for each request")
	}
	for _, c := range []struct {
		name  string
		x     *exchange
		never bool
	}{
		{"no body", &exchange{in: &http.Request{}, service: &discovery.Service{Protocol: discovery.HTTP}}, true},
		{"body", &exchange{in: &http.Request{ContentLength: 1}, service: &discovery.Service{Protocol: discovery.HTTP}}, false},
		{"unknown length", &exchange{in: &http.Request{ContentLength: -1}, service: &discovery.Service{Protocol: discovery.HTTP}}, false},
		{"gRPC", &exchange{in: &http.Request{}, service: &discovery.Service{Protocol: discovery.GRPC}}, false},
		{"WebSocket", &exchange{in: &http.Request{}, websocket: true, service: &discovery.Service{Protocol: discovery.HTTP}}, false},
	} {
		c.x.carrier.begin(t.Context(), c.x)
		if shown := c.x.carrier.shown(); (shown.Done() == nil) != c.never {
			t.Errorf("%s: never ends: %t, want %t", c.name, !c.never, c.never)
		}
	}
}

// When an answer is over, so is the context in which it was asked for, whether somebody waits for its end or not: transports give up what
// they still hold for it, and the caller's context forgets it.
func TestCarrierEndsWithTheExchange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, waited := range []bool{false, true} {
		var asking atomic.Pointer[exchange]
		s := w.publish(discovery.Service{}, serve(t, func(http.ResponseWriter, *http.Request) {
			if waited {
				asking.Load().carrier.Done()
			}
		}))
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		x := w.proxy.begin(nullWriter{http.Header{}}, r)
		x.service = s
		asking.Store(x)
		if err := w.proxy.forward(x); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(x.carrier.Err(), context.Canceled) || t.Context().Err() != nil {
			t.Errorf("waited for: %t: it goes on", waited)
		}
	}
}

// The watch, the reader of a body, transports and the handler come as they like; who ends it first has the say.
func TestCarrierIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	errFirst, errSecond := errors.New("first"), errors.New("second")
	for range 200 {
		caller, leave := context.WithCancel(t.Context())
		x := &exchange{in: &http.Request{}, service: &discovery.Service{Protocol: discovery.HTTP}}
		x.carrier.begin(caller, x)
		ctx := &ending{&x.carrier, x.carrier.shown()}
		var wg sync.WaitGroup
		for _, f := range []func(){
			leave,
			func() { x.carrier.cancel(nil) },
			func() { x.carrier.cancel(errFirst) },
			func() { x.carrier.cancel(errSecond) },
			func() { context.AfterFunc(ctx, func() {})() },
			func() { <-ctx.Done() },
			func() {
				child, cancel := context.WithCancel(ctx)
				defer cancel()
				<-child.Done()
			},
		} {
			wg.Go(f)
		}
		wg.Wait()
		why := context.Cause(ctx)
		if !slices.Contains([]error{errFirst, errSecond, context.Canceled}, why) {
			t.Errorf("ended because of %v", why)
		}
		x.carrier.cancel(errors.New("too late"))
		if again := context.Cause(ctx); !errors.Is(ctx.Err(), context.Canceled) || !errors.Is(again, why) {
			t.Errorf("%v: ended because of %v, and then of %v", ctx.Err(), why, again)
		}
	}
}
