package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"taskproxy/auth"
	"taskproxy/discovery"
	"taskproxy/proxy"
	"taskproxy/ytclient"
)

// The seams between the packages, checked here because only here are both sides known.
var (
	_ discovery.Source = (*ytclient.Client)(nil)
	_ discovery.Store  = (*ytclient.ServicesTable)(nil)
	_ auth.Cluster     = (*ytclient.Client)(nil)
	_ proxy.Authorizer = (*auth.Authorizer)(nil)
)

// Addresses are where the listeners are, as host:port; of interest when the port was 0. Debug is empty when there is none.
type Addresses struct{ Public, Admin, Debug string }

// Run is the process: it opens the listeners, makes sure of the cluster, and serves until ctx ends; then it shuts down
// gracefully and returns nil. started, which may be nil, is called once when the listeners accept.
//
// What keeps it from starting is one error that names the file, the address or the cluster.
func Run(ctx context.Context, cfg Config, logger *slog.Logger, started func(Addresses)) error {
	token, err := openToken(cfg.YTTokenPath, logger)
	if err != nil {
		return err
	}
	registry := newRegistry(cfg.Version)
	if token.reloaded, err = newTokenMetric(registry); err != nil {
		return fmt.Errorf("register the token's metric: %w", err)
	}
	cluster, err := connect(cfg, token, registry)
	if err != nil {
		return err
	}
	defer cluster.close()
	var cert *certificate // nil: no TLS
	if cfg.TLSCertFile != "" {
		if cert, err = openCertificate(cfg.TLSCertFile, cfg.TLSKeyFile, logger, registry); err != nil {
			return err
		}
	}
	on, err := listen(cfg, logger)
	if err != nil {
		return err
	}
	defer on.close()
	if err := on.connections.register(registry, cfg.MaxConnections); err != nil {
		return fmt.Errorf("register the metrics of connections: %w", err)
	}
	if err := cluster.check(ctx, cfg, logger); err != nil {
		if ctx.Err() != nil {
			return nil // told to stop before it began
		}
		return err
	}
	parts, err := assemble(cfg, cluster, registry, logger)
	if err != nil {
		return err
	}
	defer parts.close()
	if parts.certificate = cert; cert != nil {
		parts.publicServer.TLSConfig = cert.config()
	}
	at := on.addresses()
	if started != nil {
		started(at)
	}
	logger.Info("serving", "listen", at.Public, "tls", cert != nil, "admin_listen", at.Admin, "debug_listen", at.Debug,
		"cluster", cluster.discovery.URL(), "base_domain", cfg.Bases.Primary())
	return parts.serve(ctx, cfg, on, logger)
}

// parts are what Run puts together.
type parts struct {
	certificate  *certificate     // nil: no TLS
	authorizer   *auth.Authorizer // nil when authentication is off
	discovery    *discovery.Discovery
	proxy        *proxy.Proxy
	publicServer *http.Server
	adminServer  *http.Server
	debug        *proxy.Debug
	debugServer  *http.Server
	draining     *atomic.Bool
}

func assemble(cfg Config, cluster *cluster, registry *prometheus.Registry, logger *slog.Logger) (_ *parts, err error) {
	p := &parts{draining: new(atomic.Bool)}
	table := proxy.NewTable()
	p.discovery, err = discovery.New(discovery.Config{
		Source:            cluster.discovery,
		Store:             cluster.discovery.ServicesTable(cfg.TablePath),
		Bases:             cfg.Bases,
		Period:            cfg.DiscoveryPeriod,
		Concurrency:       cfg.Concurrency,
		JobsRefreshPeriod: cfg.JobsRefreshPeriod,
		StaleLimit:        cfg.StaleLimit,
		SPYT:              cfg.SPYT,

		MaxServicesPerOperation: cfg.MaxServicesPerOperation,
		MaxServicesPerUser:      cfg.MaxServicesPerUser,
		MaxServices:             cfg.MaxServices,

		OnSnapshot: table.Store,
		Logger:     logger,
		Registerer: registry,
	})
	if err != nil {
		return nil, err
	}
	var authorizer proxy.Authorizer // stays a nil interface when authentication is off
	if cfg.AuthEnabled {
		p.authorizer, err = auth.New(auth.Config{
			Cluster: cluster.auth, GrantTTL: cfg.grantTTL, StaleLimit: cfg.AuthStaleLimit, Logger: logger, Registerer: registry,
		})
		if err != nil {
			return nil, err
		}
		authorizer = p.authorizer
	}
	p.proxy, err = proxy.New(proxy.Config{
		Bases:                cfg.Bases,
		Table:                table,
		Authorizer:           authorizer,
		AuthDisabled:         !cfg.AuthEnabled,
		AuthCookieName:       cfg.AuthCookieName,
		ConnectTimeout:       cfg.ConnectTimeout,
		IdleTimeout:          neverIfZero(cfg.IdleTimeout),
		DrainTimeout:         cfg.DrainTimeout,
		StaleLimit:           cfg.AuthStaleLimit,
		TrustedProxies:       cfg.TrustedProxies,
		SparkRESTPeers:       cfg.SPYTRESTAllowFrom,
		PublicScheme:         cfg.PublicScheme,
		LoginURL:             cfg.LoginURL,
		FrameAncestors:       cfg.FrameAncestors,
		ForwardCredentialsTo: cfg.ForwardCredentialsTo,
		OnConnectFailure:     p.discovery.EndpointFailed,
		AwaitService:         p.discovery.Await,
		Logger:               logger,
		AccessLog:            logger,
		Registerer:           registry,
	})
	if err != nil {
		p.close()
		return nil, err
	}
	p.publicServer = proxy.NewServer(lastAnswers(p.draining, p.proxy), logger)
	p.adminServer = newInnerServer(proxy.NewAdmin(proxy.AdminConfig{
		Ready:    func() bool { return p.discovery.Ready() && !p.draining.Load() },
		Gatherer: registry,
		Hosts:    cfg.AdminHosts,
		Logger:   logger,
	}), logger)
	p.debug = proxy.NewDebug(proxy.DebugConfig{Proxy: p.proxy, Problems: p.discovery.Problems, Hosts: cfg.AdminHosts})
	p.debugServer = newInnerServer(p.debug, logger)
	return p, nil
}

// newInnerServer is for listeners that callers do not see.
func newInnerServer(h http.Handler, logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}

func (p *parts) close() {
	if p.proxy != nil {
		p.proxy.Close()
	}
	if p.authorizer != nil {
		p.authorizer.Close()
	}
}

// serve runs everything until ctx ends or a listener fails, and then ends it in this order: not ready, a pause for the
// balancers in front, no new connections, the requests under way, discovery and what watches the cluster, the inner listeners.
func (p *parts) serve(ctx context.Context, cfg Config, on *listeners, logger *slog.Logger) error {
	g, failed := errgroup.WithContext(context.WithoutCancel(ctx))
	background, stopBackground := context.WithCancel(failed)
	defer stopBackground()
	g.Go(func() error { return p.discovery.Run(background) })
	if p.authorizer != nil {
		g.Go(func() error { return p.authorizer.Run(background) })
	}
	if p.certificate != nil {
		g.Go(func() error { return p.certificate.run(background, cmp.Or(cfg.certificatePeriod, certificatePeriod)) })
		g.Go(func() error { return ignoreClosed(p.publicServer.ServeTLS(proxy.GatherListener(on.public), "", "")) })
	} else {
		g.Go(func() error { return ignoreClosed(p.publicServer.Serve(proxy.GatherListener(on.public))) })
	}
	g.Go(func() error { return ignoreClosed(p.adminServer.Serve(on.admin)) })
	if on.debug != nil {
		g.Go(func() error { return p.debug.Run(background, cfg.DiscoveryPeriod) })
		g.Go(func() error { return ignoreClosed(p.debugServer.Serve(on.debug)) })
	}
	g.Go(func() error {
		defer stopBackground()
		defer p.debugServer.Close()
		defer p.adminServer.Close()
		select {
		case <-ctx.Done():
			p.drain(cfg, on, logger)
		case <-failed.Done():
			p.publicServer.Close()
		}
		return nil
	})
	return g.Wait()
}

// lastBytesTime is for what was written when the requests have had their time.
const lastBytesTime = time.Second

// drain lets balancers notice that we are going, and then lets requests finish.
func (p *parts) drain(cfg Config, on *listeners, logger *slog.Logger) {
	start := time.Now()
	p.draining.Store(true) // answers are the last of their connections from here on
	logger.Info("shutting down", "delay", cfg.ShutdownDelay.String(), "timeout", cfg.ShutdownTimeout.String())
	time.Sleep(cfg.ShutdownDelay)
	// The context that brought us here has ended; the requests get one of their own.
	ctx, cancel := context.WithTimeout(context.Background(), cfg.ShutdownTimeout)
	defer cancel()
	var tunnels sync.WaitGroup
	tunnels.Go(func() { p.proxy.Drain(ctx) })
	if err := p.publicServer.Shutdown(ctx); err != nil {
		logger.Warn("requests did not finish in time", "err", err)
		p.proxy.Close() // streams get their last words
		p.publicServer.Close()
		brief, cancel := context.WithTimeout(context.Background(), lastBytesTime)
		defer cancel()
		ctx = brief
	}
	tunnels.Wait()
	on.connections.wait(ctx) // of HTTP/2 they are closed behind the server's back, when what was written has left
	logger.Info("shut down", "duration_ms", time.Since(start).Milliseconds())
}

// neverIfZero says "never" in the proxy's words: there 0 is the default, and a flag's default is spelled out.
func neverIfZero(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
