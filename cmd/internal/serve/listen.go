package serve

import (
	"fmt"
	"log/slog"
	"net"
)

// listeners are the open ones. debug is nil when there is none.
type listeners struct {
	public, admin, debug net.Listener
	connections          connectionMetrics // of public
}

// listen opens the listeners before anything else starts, so that an address in use is the first thing one hears.
func listen(cfg Config, logger *slog.Logger) (_ *listeners, err error) {
	l := new(listeners)
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.public, err = net.Listen("tcp", cfg.Listen); err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	if tcp, ok := l.public.(*net.TCPListener); ok {
		l.public = limitConnections(tcp, cfg.MaxConnections, &l.connections, logger)
	}
	if l.admin, err = net.Listen("tcp", cfg.AdminListen); err != nil {
		return nil, fmt.Errorf("--admin-listen: %w", err)
	}
	if cfg.DebugListen != "" {
		if l.debug, err = net.Listen("tcp", cfg.DebugListen); err != nil {
			return nil, fmt.Errorf("--debug-listen (empty: none): %w", err)
		}
	}
	return l, nil
}

func (l *listeners) addresses() Addresses {
	a := Addresses{Public: l.public.Addr().String(), Admin: l.admin.Addr().String()}
	if l.debug != nil {
		a.Debug = l.debug.Addr().String()
	}
	return a
}

// close closes what is open; servers may have closed it before.
func (l *listeners) close() {
	for _, one := range []net.Listener{l.public, l.admin, l.debug} {
		if one != nil {
			one.Close()
		}
	}
}
