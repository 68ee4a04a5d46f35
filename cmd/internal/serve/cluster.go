package serve

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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
	login, err := c.whoAmI(ctx, cfg, logger, token)
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
	stranger, err := c.whoAmI(ctx, cfg, logger, "task-proxy-canary-"+rand.Text())
	switch {
	case err == nil:
		return fmt.Errorf("the cluster %s has no authentication: it takes a random token for %q; nobody could be kept out (--auth-enabled=false serves all the same)",
			c.auth.URL(), stranger)
	case errors.Is(err, ytclient.ErrUnauthenticated), errors.Is(err, ytclient.ErrDenied):
		return nil
	default:
		return fmt.Errorf("the cluster %s does not say whether it authenticates: %w", c.auth.URL(), err)
	}
}

// whoAmI asks until the cluster says yes or no, for StartupTimeout at most.
func (c *cluster) whoAmI(ctx context.Context, cfg Config, logger *slog.Logger, token string) (string, error) {
	const pause = time.Second
	deadline := time.Now().Add(cfg.StartupTimeout)
	told := false
	cr := ytclient.Credentials{Kind: ytclient.OAuth, Secret: token}
	for {
		try, cancel := context.WithTimeout(ctx, 3*time.Second)
		login, err := c.auth.WhoAmI(try, cr)
		cancel()
		if err == nil || errors.Is(err, ytclient.ErrUnauthenticated) || errors.Is(err, ytclient.ErrDenied) {
			return login, err
		}
		if time.Now().Add(pause).After(deadline) {
			return "", err
		}
		if !told && ctx.Err() == nil {
			told = true
			logger.Warn("waiting for the cluster", "cluster", c.auth.URL(), "timeout", cfg.StartupTimeout.String(), "err", err)
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(pause):
		}
	}
}
