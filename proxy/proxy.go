package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http/httpguts"

	"taskproxy/auth"
	"taskproxy/discovery"
	"taskproxy/ytclient"
)

// Defaults for fields of Config that are zero.
const (
	DefaultConnectTimeout = 2 * time.Second
	DefaultIdleTimeout    = time.Hour
	DefaultDrainTimeout   = 30 * time.Second
)

// Authorizer says who is calling and what they may have; *auth.Authorizer is one. Its errors are auth's sentinels: of
// Authenticate ErrUnauthenticated, ErrUnavailable, ErrTooMany and ErrAuthOff, of Authorize ErrDenied, ErrNoSuchOperation,
// ErrUnavailable and ErrTooMany. caller is whose turn it is when the cluster has to be asked. Safe for concurrent use.
type Authorizer interface {
	Authenticate(ctx context.Context, caller netip.Addr, credentials ytclient.Credentials) (auth.Identity, error)
	Authorize(ctx context.Context, login, operationID string, permissions []ytclient.Permission) (auth.Decision, error)
	// Recheck asks both again for a stream that goes on; ErrUnauthenticated: the credentials are not login's any more.
	Recheck(ctx context.Context, login string, credentials ytclient.Credentials, operationID string, permissions []ytclient.Permission) (auth.Decision, error)
}

// Config is what a Proxy needs to know. Bases, Table and, unless AuthDisabled, Authorizer are required.
type Config struct {
	Bases discovery.Bases
	Table *Table

	// Authorizer decides about callers; nil together with AuthDisabled only.
	Authorizer Authorizer
	// AuthDisabled lets everybody have everything and tells jobs no login. Credentials are stripped all the same, and what a
	// stranger's page asked a browser for is refused as if the browser had a cookie.
	AuthDisabled bool
	// AuthCookieName is the cluster's login cookie: read as a credential, and never passed on to a job nor accepted from one;
	// nor is any cookie whose name ends in it as a word of its own. Empty: cookies are nobody's credential.
	AuthCookieName string

	// ConnectTimeout bounds one attempt to reach one endpoint. Zero: DefaultConnectTimeout.
	ConnectTimeout time.Duration
	// IdleTimeout ends a stream on which no byte moved in either direction for this long, unless its service has a limit of
	// its own (discovery.Service.IdleTimeout). Zero: DefaultIdleTimeout; negative: never.
	IdleTimeout time.Duration
	// DrainTimeout is how long at most a stream outlives its service and its job: within this time after an operation, one of its
	// services, or the job that answers, has left the table the stream is ended, unless that comes back. A job that the table holds
	// (discovery.Service.Held) has not left. Zero: DefaultDrainTimeout.
	DrainTimeout time.Duration
	// StaleLimit is how long a stream goes on after its last yes while the cluster cannot be reached; one that is there and
	// does not say whether the caller may still have it gets a minute, if that is less. Zero: auth.DefaultStaleLimit; negative: not at all.
	StaleLimit time.Duration

	// TrustedProxies are the peers whose X-Forwarded-* headers are kept and extended. Everybody else's are replaced.
	TrustedProxies []netip.Prefix
	// SparkRESTPeers are the hosts, by the addresses of their TCP connections, whose requests without credentials may reach the
	// REST servers of standalone Spark clusters: SPYT's client sends none. Whoever gets in runs code as the cluster's owner.
	// Nil: none.
	SparkRESTPeers []netip.Prefix
	// PublicScheme is what jobs read in X-Forwarded-Proto: "http" or "https". Empty: that of the connection.
	PublicScheme string
	// LoginURL is where a browser's 401 page links to: http or https, absolute. "{url}" in it stands for the address to come
	// back to, percent-encoded. Empty: no link.
	LoginURL string
	// FrameAncestors are origins (https://cluster.example.com) whose pages may frame every service. Empty: a service is framed
	// by its own pages, and by origins that its annotation names.
	FrameAncestors []string
	// ForwardCredentialsTo names users, and operation aliases with their "*", whose services an admin trusts with callers'
	// credentials. An alias belongs to whoever starts an operation with it first; a user is the safer choice.
	ForwardCredentialsTo []string

	// OnConnectFailure is told of each endpoint that refused a connection or reset a new one, and, with a zero Endpoint, of
	// a service that had none when a request came: what is known of its jobs may be out of date. It must not block. nil:
	// nobody is told.
	OnConnectFailure func(*discovery.Service, discovery.Endpoint)
	// AwaitService is asked once when an identified caller names a service that is not in the table: it may wait a little for
	// the table to be brought up to date, and reports whether it did. name is the same for all ways to name that service. nil:
	// what is not in the table does not exist.
	AwaitService func(ctx context.Context, login, name string) (waited bool)

	// Logger gets what goes wrong; nil: nothing is logged.
	Logger *slog.Logger
	// AccessLog gets one line per request; its handler may be a LineHandler. nil: none.
	AccessLog *slog.Logger
	// Registerer gets the metrics; nil: they are kept but nobody reads them.
	Registerer prometheus.Registerer
}

// Proxy is the http.Handler that carries requests to jobs. Make it with New and end it with Close. Safe for concurrent use.
type Proxy struct {
	cfg      Config
	rules    rules
	balancer *balancer
	engine   *httputil.ReverseProxy
	streams  streams
	alarms   alarms
	bulk     bulkPool
	metrics  *metrics
	log      *slog.Logger
}

// New checks cfg and builds a Proxy. It starts no goroutine and opens no connection. The error names every wrong field.
func New(cfg Config) (*Proxy, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = DefaultConnectTimeout
	}
	if cfg.IdleTimeout == 0 {
		cfg.IdleTimeout = DefaultIdleTimeout
	}
	if cfg.DrainTimeout == 0 {
		cfg.DrainTimeout = DefaultDrainTimeout
	}
	if cfg.StaleLimit == 0 {
		cfg.StaleLimit = auth.DefaultStaleLimit
	}
	p := &Proxy{cfg: cfg, rules: newRules(cfg), log: cfg.Logger}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	states := newStates(newDialer(cfg.ConnectTimeout), cfg.OnConnectFailure != nil)
	m, err := newMetrics(cfg.Registerer, gauges{
		setAside: states.aside,
		flush:    func() { p.streams.each(p.metrics.flush) },
	})
	if err != nil {
		return nil, fmt.Errorf("register the proxy's metrics: %w", err)
	}
	p.metrics = m
	p.balancer = newBalancer(cfg, states, m)
	p.engine = p.newEngine()
	cfg.Table.follow(states.follow)
	return p, nil
}

func (c *Config) check() error {
	var errs []error
	if c.Table == nil {
		errs = append(errs, errors.New("field Table is nil: want a table from NewTable"))
	}
	if (c.Authorizer == nil) != c.AuthDisabled {
		errs = append(errs, fmt.Errorf("field AuthDisabled is %t and Authorizer is nil: %t; want either an authorizer or AuthDisabled", c.AuthDisabled, c.Authorizer == nil))
	}
	if c.AuthCookieName != "" && !httpguts.ValidHeaderFieldName(c.AuthCookieName) {
		errs = append(errs, fmt.Errorf("field AuthCookieName is %s: want a cookie's name, letters, digits and the like", quoted(c.AuthCookieName)))
	}
	if c.ConnectTimeout < 0 {
		errs = append(errs, fmt.Errorf("field ConnectTimeout is %s: want a positive duration", c.ConnectTimeout))
	}
	if c.DrainTimeout < 0 {
		errs = append(errs, fmt.Errorf("field DrainTimeout is %s: want a positive duration", c.DrainTimeout))
	}
	switch c.PublicScheme {
	case "", "http", "https":
	default:
		errs = append(errs, fmt.Errorf("field PublicScheme is %s: want \"http\", \"https\" or nothing", quoted(c.PublicScheme)))
	}
	if c.LoginURL != "" {
		if u, err := url.Parse(c.LoginURL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			errs = append(errs, fmt.Errorf("field LoginURL is %s: want an absolute http or https URL", quoted(c.LoginURL)))
		}
	}
	for _, origin := range c.FrameAncestors {
		if err := discovery.CheckOrigin(origin); err != nil {
			errs = append(errs, fmt.Errorf("field FrameAncestors has %s, which %w: want an origin such as https://cluster.example.com", quoted(origin), err))
		}
	}
	for _, name := range c.ForwardCredentialsTo {
		if strings.TrimPrefix(name, "*") == "" {
			errs = append(errs, fmt.Errorf("field ForwardCredentialsTo has %s: want a user or an operation alias", quoted(name)))
		}
	}
	return errors.Join(errs...)
}

// ServeHTTP answers one request. It panics with http.ErrAbortHandler when an answer that has begun cannot be finished, as
// handlers of net/http do.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := p.begin(w, r)
	defer func() {
		if !x.tunnelled {
			p.end(x)
		}
	}()
	if err := p.walk(x); err != nil {
		p.answer(x, err)
	}
	if x.tunnelled {
		return
	}
	x.finished = true
	if x.bodyOpen() {
		x.letRead()
		// net/http reads on for a while before it closes, so that the answer is not lost; somebody who sends nothing more
		// must not hold it there.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(lingerTime))
	}
}

// letRead returns when nobody reads the caller's body any more. A transport may still do so after the answer, and net/http would break
// that read off; a chunked body cannot be read on then, so that the connection would be closed at once, and reset under the
// answer by what the caller still sends.
func (x *exchange) letRead() {
	if x.in.ContentLength < 0 {
		_ = x.w.FlushError() // meanwhile
		_ = http.NewResponseController(x.w.ResponseWriter).SetReadDeadline(time.Now().Add(lastReadTime))
		x.reading.Lock()
		x.reading.Unlock() //nolint:staticcheck // SA2001: what is waited for is the lock itself
	}
}

const (
	// lingerTime is how long the rest of a request that was answered early may take.
	lingerTime = 5 * time.Second
	// lastReadTime is how long a read of it may take that goes on when the answer has ended: somebody who uploads is faster.
	lastReadTime = 100 * time.Millisecond
	// lastWordTime is how long writing our answer may take, or a status or a close frame, when we have ended an exchange.
	lastWordTime = time.Second
	// ownAnswerTime is how long a caller may take to read an answer of ours.
	ownAnswerTime = 30 * time.Second
)

// walk is the way of a request. Each step decides one thing, once, and what follows uses the decision. Who the caller is
// comes before what exists: without valid credentials the answer is 401 whatever the name. The one exception is the
// proxy's own page, which is the same text for everybody.
func (p *Proxy) walk(x *exchange) error {
	if err := refuse(x.in); err != nil {
		return err
	}
	name := readName(p.cfg.Bases, x.in)
	if name.home() && !x.grpc {
		return p.home(x)
	}
	err := p.identify(x)
	if (errors.Is(err, auth.ErrNoCredentials) || p.cfg.AuthDisabled) && p.preflight(x, &name) {
		return nil
	}
	if errors.Is(err, auth.ErrNoCredentials) && p.fromSparkPeer(x, &name) {
		return p.forward(x)
	}
	if err != nil {
		return err
	}
	service, snapshot, err := p.find(x, &name)
	if err != nil {
		return err
	}
	x.service, x.shared = service, name.shared()
	if err := p.checkSite(x, snapshot); err != nil {
		return err
	}
	if err := p.authorize(x); err != nil {
		return err
	}
	return p.forward(x)
}

// refuse turns away what net/http lets through but nobody can forward faithfully. The job would read another request than
// the one that was judged.
func refuse(r *http.Request) error {
	switch {
	case r.Method == http.MethodConnect:
		return fail(causeBadTarget, "method CONNECT is not served")
	case !httpguts.ValidHeaderFieldName(r.Method): // a token, like these; HTTP/2 lets everything through
		return fail(causeBadTarget, "the method is not one word")
	case strings.Contains(r.RequestURI, "#"):
		return fail(causeBadTarget, "the request target has a fragment (#): a client keeps that to itself")
	case r.URL.Opaque != "" || r.ProtoMajor >= 2 && !strings.HasPrefix(r.RequestURI, "/"):
		return fail(causeBadTarget, "the request target is not a path: it must begin with a slash")
	case r.URL.User != nil:
		return fail(causeBadTarget, "the request target has a user name or password")
	case r.URL.Path != "" && r.URL.Path[0] != '/', r.URL.Path == "" && r.URL.Host == "":
		return fail(causeBadTarget, "the request target is not a path: it must begin with a slash")
	case r.URL.Host != "" && r.URL.Host != r.Host:
		return fail(causeBadHost, "the request target and the Host header name different hosts")
	case !httpguts.ValidHostHeader(r.Host): // HTTP/2 does not look; a transport would map such a host to another name, or drop it
		return fail(causeBadHost, "the host has bytes that no host name has")
	case r.Host == "" && !routed(r.Header):
		return fail(causeBadHost, "the request has no host: send a Host header or %s", HeaderID)
	}
	// HTTP/2 leaves a Host header in place beside :authority (RFC 9113, section 8.3.1: they must not differ).
	for _, host := range r.Header["Host"] {
		if !strings.EqualFold(host, r.Host) {
			return fail(causeBadHost, ":authority and the host header name different hosts")
		}
	}
	return nil
}

// identify asks who is calling.
func (p *Proxy) identify(x *exchange) error {
	if p.cfg.AuthDisabled {
		return nil
	}
	presented, err := auth.FromRequest(x.in, p.cfg.AuthCookieName)
	if err != nil {
		return err
	}
	x.credentials = presented.Credentials
	identity, err := p.cfg.Authorizer.Authenticate(x.in.Context(), p.rules.callerAddr(x.in), x.credentials)
	if err != nil {
		return fmt.Errorf("authenticate: %w", err)
	}
	if identity.Login == "" || !httpguts.ValidHeaderFieldValue(identity.Login) {
		return &Error{cause: causeRefused, Err: fmt.Errorf("the cluster named the caller %s, which is no login", quoted(identity.Login))}
	}
	x.login, x.source, x.cached = identity.Login, presented.Source, identity.Cached
	x.expires, x.held = identity.Expires, identity.Held
	return nil
}

// authorize asks whether the caller may have the service that was resolved.
func (p *Proxy) authorize(x *exchange) error {
	if p.cfg.AuthDisabled {
		return nil
	}
	decision, err := p.cfg.Authorizer.Authorize(x.in.Context(), x.login, x.service.OperationID, x.service.Permissions)
	if err != nil {
		return fmt.Errorf("authorize: %w", err)
	}
	x.cached = x.cached && decision.Cached
	x.expires, x.held = earliest(x.expires, decision.Expires), x.held || decision.Held
	x.authorized = true
	return nil
}

// Drain is for the beginning of a shutdown: it ends the tunnels, which would go on for as long as their two sides like, with
// a close frame that says so, and refuses upgrades from now on. It returns when they have ended or ctx has. It may be
// called more than once.
func (p *Proxy) Drain(ctx context.Context) { p.streams.end(ctx, false) }

// Close ends the tunnels and all other streams that have lasted for a while, waits a moment for their last words, and closes
// idle connections to jobs. Requests that have just begun are the server's to end. It may be called more than once.
func (p *Proxy) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*lastWordTime)
	defer cancel()
	p.streams.end(ctx, true)
	p.balancer.states.closeIdle()
}
