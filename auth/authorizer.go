package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"taskproxy/ytclient"
)

// Defaults of Config.
const (
	DefaultCapacity    = 65536
	DefaultGrantTTL    = time.Minute
	DefaultDenyTTL     = 5 * time.Second
	DefaultStaleLimit  = 10 * time.Minute
	DefaultCallTimeout = 3 * time.Second

	DefaultLookupsPerCaller  = 6
	DefaultFailuresPerCaller = 30
	DefaultCanaryPeriod      = 5 * time.Minute
)

// Cluster is what this package asks a cluster; *ytclient.Client is one. Errors wrap the sentinels of ytclient. Both
// methods must return soon after their context ends, and are called concurrently.
type Cluster interface {
	// WhoAmI returns the login that the credentials belong to, asked as the caller. ErrUnauthenticated and ErrDenied are
	// the cluster's no.
	WhoAmI(ctx context.Context, cr ytclient.Credentials) (login string, err error)
	// CheckOperationPermission says whether login has the permission p, asked as the robot. ErrNoSuchOperation is an
	// answer; every other error, ErrDenied included, says nothing about login.
	CheckOperationPermission(ctx context.Context, login, operationID string, p ytclient.Permission) (allowed bool, err error)
}

// Config is what an Authorizer is made of. Durations other than StaleLimit must not be negative.
type Config struct {
	// Cluster is asked for everything that is not remembered. Required.
	Cluster Cluster
	// Capacity is how many identities are remembered, how many decisions, and how many failures of each.
	// Zero means DefaultCapacity; an entry takes a few hundred bytes.
	Capacity int
	// GrantTTL is how long a yes counts. Zero means DefaultGrantTTL.
	GrantTTL time.Duration
	// DenyTTL is how long a no counts. Zero means DefaultDenyTTL.
	DenyTTL time.Duration
	// StaleLimit is how old a yes may be, instead of GrantTTL, while the cluster cannot be reached or answers 5xx.
	// Zero means DefaultStaleLimit; negative: a yes never outlives GrantTTL.
	StaleLimit time.Duration
	// CallTimeout is the deadline of one call to the cluster. Zero means DefaultCallTimeout.
	CallTimeout time.Duration
	// LookupsPerCaller is how many questions to the cluster one caller may have under way: that is an address (IPv6: a
	// /64) about new credentials, and a login about decisions and about credentials that were good before. Further ones
	// wait for their turn, and too many are ErrTooMany. Zero means DefaultLookupsPerCaller; negative: no limit but the one for all together.
	LookupsPerCaller int
	// FailuresPerCaller is how many credentials of one address the cluster may refuse in a row; then one is forgiven each
	// second, and of the new ones that come sooner a few are made to wait and the others are ErrTooMany. Should be above
	// LookupsPerCaller. Zero means DefaultFailuresPerCaller; negative: failures are not counted.
	FailuresPerCaller int
	// CanaryPeriod is how often Run asks whether the cluster authenticates. Zero means DefaultCanaryPeriod.
	CanaryPeriod time.Duration
	// Logger gets what an operator should know. nil discards it.
	Logger *slog.Logger
	// Registerer gets the metrics (metrics.go). nil: they are not exported.
	Registerer prometheus.Registerer
}

// withDefaults fills the zero fields, or names every field that is wrong.
func (cfg Config) withDefaults() (Config, error) {
	var errs []error
	if cfg.Cluster == nil {
		errs = append(errs, errors.New("field Cluster is nil"))
	}
	if cfg.Capacity < 0 {
		errs = append(errs, fmt.Errorf("field Capacity is %d, want a positive number of entries", cfg.Capacity))
	} else if cfg.Capacity == 0 {
		cfg.Capacity = DefaultCapacity
	}
	for _, d := range []struct {
		name     string
		value    *time.Duration
		standard time.Duration
	}{
		{"GrantTTL", &cfg.GrantTTL, DefaultGrantTTL},
		{"DenyTTL", &cfg.DenyTTL, DefaultDenyTTL},
		{"CallTimeout", &cfg.CallTimeout, DefaultCallTimeout},
		{"CanaryPeriod", &cfg.CanaryPeriod, DefaultCanaryPeriod},
	} {
		if *d.value < 0 {
			errs = append(errs, fmt.Errorf("field %s is %s, want a positive duration", d.name, *d.value))
		} else if *d.value == 0 {
			*d.value = d.standard
		}
	}
	if cfg.StaleLimit == 0 {
		cfg.StaleLimit = DefaultStaleLimit
	}
	if cfg.LookupsPerCaller == 0 {
		cfg.LookupsPerCaller = DefaultLookupsPerCaller
	}
	if cfg.FailuresPerCaller == 0 {
		cfg.FailuresPerCaller = DefaultFailuresPerCaller
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if err := errors.Join(errs...); err != nil {
		return cfg, fmt.Errorf("auth config: %w", err)
	}
	return cfg, nil
}

// Authorizer says who a credential belongs to and what a login may have, and remembers both. It is safe for concurrent
// use. Close it when no more requests are served.
type Authorizer struct {
	cluster    Cluster
	digests    *digester
	identities *book[digest, string]
	decisions  *book[question, struct{}]
	crew       *crew
	metrics    *metrics
	log        *slog.Logger

	timeout      time.Duration // of the canary's call
	canaryPeriod time.Duration
	open         atomic.Bool // the cluster takes any credential (canary.go)
}

// question is what a decision answers.
type question struct {
	login       string
	operationID string
	permission  ytclient.Permission
}

// New makes an Authorizer with nothing remembered. It starts no goroutines and does not call the cluster.
func New(cfg Config) (*Authorizer, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	life := lifetimes{grant: cfg.GrantTTL, deny: cfg.DenyTTL, stale: cfg.StaleLimit}
	identities, err := newCache[digest, string](cfg.Capacity, life)
	if err != nil {
		return nil, fmt.Errorf("make the cache of identities: %w", err)
	}
	decisions, err := newCache[question, struct{}](cfg.Capacity, life)
	if err != nil {
		return nil, fmt.Errorf("make the cache of decisions: %w", err)
	}
	m, err := newMetrics(cfg.Registerer, identities.tally(), decisions.tally())
	if err != nil {
		return nil, err
	}
	wait := cfg.CallTimeout + patience
	strangers, err := newFairness(cfg.LookupsPerCaller, cfg.FailuresPerCaller, wait, identities.now, m.limits())
	if err != nil {
		return nil, fmt.Errorf("make the memory of addresses: %w", err)
	}
	// A no about an operation is nobody's attempt to be somebody else, and is remembered: it costs no more than a yes.
	users, err := newFairness(cfg.LookupsPerCaller, 0, wait, decisions.now, m.limits())
	if err != nil {
		return nil, fmt.Errorf("make the memory of logins: %w", err)
	}
	c := newCrew()
	a := &Authorizer{
		cluster: cfg.Cluster,
		digests: newDigester(),
		identities: &book[digest, string]{
			cache: identities, login: func(_ digest, login string) string { return login }, fair: strangers, crew: c, outage: newOutage(), timeout: cfg.CallTimeout,
			log: cfg.Logger, name: labelIdentity, metrics: m.of(labelIdentity),
		},
		decisions: &book[question, struct{}]{
			cache: decisions, login: func(q question, _ struct{}) string { return q.login }, fair: users, crew: c, outage: newOutage(), timeout: cfg.CallTimeout,
			log: cfg.Logger, name: labelDecision, metrics: m.of(labelDecision),
		},
		crew:         c,
		metrics:      m,
		log:          cfg.Logger,
		timeout:      cfg.CallTimeout,
		canaryPeriod: cfg.CanaryPeriod,
	}
	away := func() bool { return a.identities.outage.isAway() || a.decisions.outage.isAway() }
	if err := m.registerStates(a.open.Load, away); err != nil {
		return nil, err
	}
	return a, nil
}

// Close cancels the calls under way, waits for their end, and takes the metrics out of the Registerer. Afterwards what
// is remembered still counts, and everything else is ErrUnavailable. It may be called more than once.
func (a *Authorizer) Close() {
	a.crew.close()
	a.metrics.unregister()
}

// Identity is who the cluster says a caller is.
type Identity struct {
	Login  string // never empty without an error
	Cached bool   // this request did not wait for the cluster's answer
	Held   bool   // the cluster is away, and this is what it said earlier
	// Expires is when somebody who still relies on the answer should ask again. That is seconds from now if the cluster
	// is away and an earlier answer had to do.
	Expires time.Time
}

// Authenticate returns whom the cluster knows by cr. caller is the address from which cr came, as far as that is known;
// what the cluster does not know yet is asked at its cost, and what is remembered costs nothing.
//
// The error wraps ErrUnauthenticated if cr is nobody's, ErrUnavailable if the cluster did not say, ErrTooMany if caller
// asks too much, ErrAuthOff if the cluster takes anybody's; when ctx ends first, it wraps ctx.Err().
func (a *Authorizer) Authenticate(ctx context.Context, caller netip.Addr, cr ytclient.Credentials) (Identity, error) {
	return a.authenticate(ctx, addressParty(caller), cr)
}

func (a *Authorizer) authenticate(ctx context.Context, p party, cr ytclient.Credentials) (Identity, error) {
	switch cr.Kind {
	case ytclient.OAuth, ytclient.Bearer, ytclient.Cookie:
	default:
		return Identity{}, fmt.Errorf("%w: unknown kind of credentials %q", ErrUnauthenticated, string(cr.Kind))
	}
	if cr.Secret == "" {
		return Identity{}, fmt.Errorf("%w: the %s credential is empty", ErrUnauthenticated, cr.Kind)
	}
	if a.open.Load() {
		return Identity{}, fmt.Errorf("%w: it took a random token", ErrAuthOff)
	}
	key := a.digests.of(cr)
	ans, renew := a.identities.find(key)
	if renew {
		a.identities.renew(key, ans.value, a.whoAmI(cr))
	}
	if ans.outcome == missing {
		ans = a.identities.ask(ctx, p, key, a.whoAmI(cr))
	}
	a.identities.metrics.count(ans.outcome, ans.cached)
	return Identity{Login: ans.value, Cached: ans.cached, Held: ans.outcome == held, Expires: a.identities.moment(ans.expires)}, ans.err
}

// whoAmI is the question behind an identity.
func (a *Authorizer) whoAmI(cr ytclient.Credentials) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		login, err := a.cluster.WhoAmI(ctx, cr)
		switch {
		case errors.Is(err, ytclient.ErrUnauthenticated), errors.Is(err, ytclient.ErrDenied):
			// Denied is a banned user here: the cluster knows the name and does not let it in.
			return "", fmt.Errorf("%w: %w", ErrUnauthenticated, err)
		case err != nil:
			return "", fmt.Errorf("ask who the caller is: %w", err)
		case login == "":
			return "", fmt.Errorf("%w: the cluster answered an empty login", ErrUnauthenticated)
		case login == openLogin:
			if err := a.proveClosed(ctx); err != nil {
				return "", err
			}
		}
		return login, nil
	}
}

// Decision tells how a yes came about.
type Decision struct {
	Cached  bool      // this request did not wait for the cluster's answers
	Held    bool      // as in Identity; true if any of the permissions is
	Expires time.Time // as in Identity; the earliest of all permissions
}

// Authorize returns nil if the cluster grants login every one of perms on the operation. The error wraps ErrDenied or
// ErrNoSuchOperation if it does not, ErrUnavailable if it did not say, ErrTooMany if login asks about too many operations
// at a time; when ctx ends first, it wraps ctx.Err(). Without a login, an operation or any permission to ask for the answer is ErrDenied: nothing is granted by asking nothing.
func (a *Authorizer) Authorize(ctx context.Context, login, operationID string, perms []ytclient.Permission) (Decision, error) {
	return a.authorize(ctx, party{login: login}, operationID, perms)
}

func (a *Authorizer) authorize(ctx context.Context, p party, operationID string, perms []ytclient.Permission) (Decision, error) {
	switch {
	case p.login == "":
		return Decision{}, fmt.Errorf("%w: the login is empty", ErrDenied)
	case operationID == "":
		return Decision{}, fmt.Errorf("%w: the operation id is empty", ErrDenied)
	case len(perms) == 0:
		return Decision{}, fmt.Errorf("%w: no permission was asked for", ErrDenied)
	}
	cached, stale, expires := true, false, time.Duration(0)
	for i, permission := range perms {
		ans := a.decide(ctx, p, question{p.login, operationID, permission})
		cached = cached && ans.cached
		stale = stale || ans.outcome == held
		if ans.err != nil {
			return Decision{Cached: cached}, ans.err
		}
		if i == 0 || ans.expires < expires {
			expires = ans.expires
		}
	}
	return Decision{Cached: cached, Held: stale, Expires: a.decisions.moment(expires)}, nil
}

func (a *Authorizer) decide(ctx context.Context, p party, q question) answer[struct{}] {
	if q.permission == "" {
		return answer[struct{}]{outcome: refused, err: fmt.Errorf("%w: a permission is empty", ErrDenied)}
	}
	ans, renew := a.decisions.find(q)
	if renew {
		a.decisions.renew(q, struct{}{}, a.check(q))
	}
	if ans.outcome == missing {
		ans = a.decisions.ask(ctx, p, q, a.check(q))
	}
	a.decisions.metrics.count(ans.outcome, ans.cached)
	return ans
}

// check is the question behind a decision.
func (a *Authorizer) check(q question) func(context.Context) (struct{}, error) {
	return func(ctx context.Context) (struct{}, error) {
		allowed, err := a.cluster.CheckOperationPermission(ctx, q.login, q.operationID, q.permission)
		switch {
		case errors.Is(err, ytclient.ErrNoSuchOperation):
			return struct{}{}, fmt.Errorf("%w: %w", ErrNoSuchOperation, err)
		case err != nil:
			// Also if the cluster denies: then it is our robot that may not ask, and the caller is not to blame.
			return struct{}{}, fmt.Errorf("check permission %q on the operation: %w", string(q.permission), err)
		case !allowed:
			return struct{}{}, fmt.Errorf("%w: %q on the operation", ErrDenied, string(q.permission))
		}
		return struct{}{}, nil
	}
}
