package main

import (
	"context"
	"fmt"
	"log/slog"

	"taskproxy/cmd/internal/serve"
)

// proxy is the task proxy, running.
type proxy struct {
	public, admin string // host:port as one can dial them
	end           context.CancelFunc
	done          chan struct{} // closed when it has ended
	err           error         // why, once done is closed
}

// startProxy returns when the proxy listens. It outlives ctx: the demo's end stops it by stop, in its turn.
func startProxy(ctx context.Context, config serve.Config, logger *slog.Logger) (*proxy, error) {
	inner, end := context.WithCancel(context.WithoutCancel(ctx))
	p := &proxy{end: end, done: make(chan struct{})}
	started := make(chan serve.Addresses, 1)
	go func() {
		defer close(p.done)
		p.err = serve.Run(inner, config, logger, func(a serve.Addresses) { started <- a })
	}()
	select {
	case addresses := <-started:
		p.public, p.admin = dialable(addresses.Public), dialable(addresses.Admin)
		return p, nil
	case <-p.done:
		end()
		return nil, fmt.Errorf("start the proxy: %w", p.err)
	case <-ctx.Done():
		_ = p.stop() // ctx says why
		return nil, ctx.Err()
	}
}

// watch returns a context that ends with ctx, and with the proxy.
func (p *proxy) watch(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		select {
		case <-p.done:
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// blame returns the proxy's own failure if it has ended with one, and err otherwise.
func (p *proxy) blame(err error) error {
	select {
	case <-p.done:
		if p.err != nil {
			return fmt.Errorf("the proxy: %w", p.err)
		}
	default:
	}
	return err
}

// stop ends the proxy gracefully and waits for it. It may be called again.
func (p *proxy) stop() error {
	p.end()
	<-p.done
	if p.err != nil {
		return fmt.Errorf("the proxy: %w", p.err)
	}
	return nil
}
