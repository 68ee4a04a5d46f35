package auth

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	"taskproxy/ytclient"
)

const (
	// openLogin is whom a cluster without authentication takes everybody for.
	openLogin = "root"
	// openPeriod is how often a cluster without authentication is asked whether it has it again.
	openPeriod = 15 * time.Second
	// canaries is how many tokens are tried at a time, each by a call of its own: behind one address there may be several HTTP
	// proxies, of which one has lost its authentication.
	canaries = 4
)

// CheckClusterAuth asks the cluster who has tokens that nobody has. It returns nil if the cluster refuses all of them. The
// error wraps ErrAuthOff, and names the login, if the cluster takes one: such a cluster tells nobody from anybody. It wraps
// ErrUnavailable if the cluster did not say.
func CheckClusterAuth(ctx context.Context, c Cluster) error {
	errs := make(chan error, canaries)
	for range canaries {
		go func() { errs <- tryNobody(ctx, c) }()
	}
	var err error
	for range canaries {
		if e := <-errs; err == nil || errors.Is(e, ErrAuthOff) {
			err = e
		}
	}
	return err
}

// tryNobody runs in a goroutine of its own, where a panic would end the process.
func tryNobody(ctx context.Context, c Cluster) (err error) {
	defer func() {
		if recover() != nil {
			err = fmt.Errorf("%w: %w", ErrUnavailable, errPanicked)
		}
	}()
	// A new one each time: the cluster remembers whom it refused.
	login, err := c.WhoAmI(ctx, ytclient.Credentials{Kind: ytclient.OAuth, Secret: "task-proxy-canary-" + rand.Text()})
	switch {
	case err == nil:
		return fmt.Errorf("%w: it takes a random token for %.64q", ErrAuthOff, login)
	case errors.Is(err, ytclient.ErrUnauthenticated), errors.Is(err, ytclient.ErrDenied):
		return nil
	}
	return fmt.Errorf("%w: ask whether the cluster authenticates: %w", ErrUnavailable, err)
}

// Run asks the cluster, at once and then every Config.CanaryPeriod with some jitter, whether it tells callers apart at all.
// While it takes credentials that nobody has, Authenticate is ErrAuthOff for everybody; it is asked more often then. A call
// that fails changes nothing. Run returns nil when ctx ends.
func (a *Authorizer) Run(ctx context.Context) error {
	for {
		_ = a.canary(ctx) // tells by itself what changes
		pause := a.canaryPeriod
		if a.open.Load() {
			pause = min(pause, openPeriod)
		}
		pause += mathrand.N(pause/10 + 1)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// proveClosed is asked when a caller turns out to be openLogin: that may be so, or the cluster has just lost its
// authentication, and then nobody is let in until Run finds out.
func (a *Authorizer) proveClosed(ctx context.Context) error { return a.canary(ctx) }

// canary asks once and keeps what it learns.
func (a *Authorizer) canary(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	err := CheckClusterAuth(ctx, a.cluster)
	switch {
	case err == nil:
		a.setOpen(false, nil)
	case errors.Is(err, ErrAuthOff):
		a.setOpen(true, err)
	}
	return err
}

// setOpen changes what Authenticate says. Whom the cluster knew on the way here may be anybody, so all identities are
// forgotten: when authentication goes, and once more when it is back, for calls that were under way.
func (a *Authorizer) setOpen(open bool, why error) {
	if !a.open.CompareAndSwap(!open, open) {
		return
	}
	a.identities.forget()
	if open {
		a.log.Error("the cluster has no authentication any more, nobody is let in", "err", why)
	} else {
		a.log.Warn("the cluster has authentication again")
	}
}
