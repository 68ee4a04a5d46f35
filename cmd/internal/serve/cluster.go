package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"taskproxy/auth"
	"taskproxy/ytclient"
)

// cluster is the way to the cluster: two clients, so that a flood of callers to identify leaves discovery its connections,
// and the other way round.
type cluster struct {
	discovery *ytclient.Client
	auth      *ytclient.Client
	token     func() (string, error)
}

func connect(cfg Config, token *tokenFile, r prometheus.Registerer) (*cluster, error) {
	metrics, err := ytclient.NewMetrics(r)
	if err != nil {
		return nil, err
	}
	client := func() (*ytclient.Client, error) {
		return ytclient.New(ytclient.Config{Proxy: cfg.YTProxy, Token: token.Token, CA: cfg.YTCA, Metrics: metrics})
	}
	c := &cluster{token: token.Token}
	if c.discovery, err = client(); err != nil {
		return nil, fmt.Errorf("--yt-proxy: %w", err)
	}
	if c.auth, err = client(); err != nil {
		c.discovery.Close()
		return nil, fmt.Errorf("--yt-proxy: %w", err)
	}
	return c, nil
}

func (c *cluster) close() {
	c.discovery.Close()
	c.auth.Close()
}

// check makes sure, before anything is served, that the cluster answers, that it knows the robot, and that it refuses
// credentials that nobody has: on a cluster without authentication every caller would be everybody.
func (c *cluster) check(ctx context.Context, cfg Config, logger *slog.Logger) error {
	token, err := c.token()
	if err != nil {
		return err
	}
	var login string
	err = c.decided(ctx, cfg, logger, func(ctx context.Context) (err error) {
		login, err = c.auth.WhoAmI(ctx, ytclient.Credentials{Kind: ytclient.OAuth, Secret: token})
		return err
	})
	switch {
	case errors.Is(err, ytclient.ErrUnauthenticated), errors.Is(err, ytclient.ErrDenied):
		return fmt.Errorf("the cluster %s refuses the robot's token from %s: %w", c.auth.URL(), cfg.YTTokenPath, err)
	case err != nil:
		return fmt.Errorf("the cluster %s does not answer: %w", c.auth.URL(), err)
	}
	logger.Info("cluster answers", "cluster", c.auth.URL(), "user", login)
	if !cfg.AuthEnabled {
		return nil
	}
	// From here on the authorizer's Run asks now and then.
	err = c.decided(ctx, cfg, logger, func(ctx context.Context) error { return auth.CheckClusterAuth(ctx, c.auth) })
	switch {
	case errors.Is(err, auth.ErrAuthOff):
		return fmt.Errorf("%s: %w; nobody could be kept out (--auth-enabled=false serves all the same)", c.auth.URL(), err)
	case err != nil:
		return fmt.Errorf("the cluster %s does not say whether it authenticates: %w", c.auth.URL(), err)
	}
	return nil
}

// decided asks until the cluster says yes or no, for StartupTimeout at most.
func (c *cluster) decided(ctx context.Context, cfg Config, logger *slog.Logger, ask func(context.Context) error) error {
	const pause = time.Second
	deadline := time.Now().Add(cfg.StartupTimeout)
	told := false
	for {
		try, cancel := context.WithTimeout(ctx, 3*time.Second)
		err := ask(try)
		cancel()
		if err == nil || errors.Is(err, ytclient.ErrUnauthenticated) || errors.Is(err, ytclient.ErrDenied) || errors.Is(err, auth.ErrAuthOff) {
			return err
		}
		if time.Now().Add(pause).After(deadline) {
			return err
		}
		if !told && ctx.Err() == nil {
			told = true
			logger.Warn("waiting for the cluster", "cluster", c.auth.URL(), "timeout", cfg.StartupTimeout.String(), "err", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}
