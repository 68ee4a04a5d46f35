package ytclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"go.ytsaurus.tech/yt/go/yt"
	"go.ytsaurus.tech/yt/go/yt/ythttp"
)

// Config of a Client.
type Config struct {
	// Proxy is the cluster's HTTP proxy, [scheme://]host[:port]; http when no scheme is given. Required.
	Proxy string
	// Token returns the robot's token. It is asked before every call, so a rotated token is used at once. Required.
	Token func() (string, error)
	// CallTimeout bounds every call, retries included; a sooner deadline of the call's context wins. 0 means 10s.
	CallTimeout time.Duration
	// TxTimeout is how long a transaction, and so a Lease, outlives a process that vanished. 0 means 15s.
	TxTimeout time.Duration
	// CA holds PEM certificates trusted towards the cluster in addition to the system's. Empty: the system's only.
	CA []byte
	// Metrics may be shared by several clients. nil: none are kept.
	Metrics *Metrics
}

// Client asks one cluster. It is safe for concurrent use.
type Client struct {
	yc      yt.Client
	hc      *http.Client
	base    string // scheme://host[:port]
	token   func() (string, error)
	timeout time.Duration
	metrics *Metrics

	singles atomic.Pointer[singles] // of the last listing of operations
	long    heavy                   // operations, and their lists of jobs as operation/task
	bounds  bounds
}

const (
	defaultCallTimeout = 10 * time.Second
	// maxConns bounds the connections of one client towards the cluster; further calls wait for a free one. A cluster limits
	// a user's concurrent requests to about a hundred.
	maxConns = 64
	// maxAnswer bounds the answer of a call that we read ourselves, which is held in memory as a whole; some sixteen may be at
	// the same time. A page of 1,000 operations fits, of 32 KiB each.
	maxAnswer = 32 << 20
)

// bounds are the constants of these names, but in tests.
type bounds struct {
	answer, operation, jobs int // maxAnswer, maxOperation, maxJobsAnswer
	item, large, userLarge  int // maxItem, largeItem, maxLarge
	jobsPages               int // maxJobsPages
}

var defaultBounds = bounds{
	answer: maxAnswer, operation: maxOperation, jobs: maxJobsAnswer,
	item: maxItem, large: largeItem, userLarge: maxLarge,
	jobsPages: maxJobsPages,
}

// New returns a client. It makes no call. Close it to release its connections.
func New(cfg Config) (*Client, error) {
	base, err := clusterURL(cfg.Proxy)
	if err != nil {
		return nil, err
	}
	if cfg.Token == nil {
		return nil, errors.New("no source of the robot's token")
	}
	tlsConfig, err := clusterTLS(cfg.CA)
	if err != nil {
		return nil, err
	}
	c := &Client{base: base, token: cfg.Token, timeout: cfg.CallTimeout, metrics: cfg.Metrics, bounds: defaultBounds}
	c.singles.Store(&singles{})
	if c.timeout <= 0 {
		c.timeout = defaultCallTimeout
	}
	txTimeout, txPing := transactionTimes(cfg.TxTimeout)
	transport := &http.Transport{
		Proxy:               nil, // the cluster is never behind the environment's HTTP_PROXY
		DialContext:         (&net.Dialer{Timeout: 3 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: 5 * time.Second,
		MaxIdleConnsPerHost: maxConns,
		MaxConnsPerHost:     maxConns,
		IdleConnTimeout:     30 * time.Second,
		DisableCompression:  true,
	}
	c.hc = &http.Client{
		Transport: &recorder{next: transport},
		// A redirect would drop the credentials or turn a POST into the GET of a login page: it is an answer, and a bad one.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	c.yc, err = ythttp.NewClient(&yt.Config{
		Proxy:                 base,
		DisableProxyDiscovery: true,
		CompressionCodec:      yt.ClientCodecNone,
		HTTPClient:            c.hc,
		LightRequestTimeout:   &c.timeout,
		TxTimeout:             txTimeout,
		TxPingPeriod:          txPing,
		// The rule behind this switch protects clusters from jobs that ask in their thousands; we are one client.
		AllowRequestsFromJob: true,
		CredentialsProviderFn: func(context.Context) (yt.Credentials, error) {
			token, err := c.token()
			if err != nil {
				return nil, err
			}
			return wireCredentials{Credentials{Kind: OAuth, Secret: token}}, nil
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", base, err)
	}
	return c, nil
}

// Close ends what the client still does and releases its connections.
func (c *Client) Close() {
	c.yc.Stop()
	c.hc.CloseIdleConnections()
}

// URL is the cluster's address as the client uses it, scheme://host[:port].
func (c *Client) URL() string { return c.base }

// CheckProxy reports what is wrong with Config.Proxy.
func CheckProxy(proxy string) error {
	if proxy == "" {
		return nil // missing is another problem than wrong
	}
	_, err := clusterURL(proxy)
	return err
}

// clusterURL completes and checks the address. The SDK would read the environment for an empty one and append a domain
// of its vendor's to a bare name, so it only ever sees a whole URL.
func clusterURL(proxy string) (string, error) {
	if proxy == "" {
		return "", errors.New("the cluster's address is empty; give [scheme://]host[:port]")
	}
	s := proxy
	if !strings.Contains(s, "//") {
		s = "http://" + s
	}
	u, err := url.Parse(s)
	if err != nil {
		return "", fmt.Errorf("%q is no address of a cluster like [scheme://]host[:port]", proxy)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.User != nil ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "" {
		return "", fmt.Errorf("%q is no address of a cluster like [scheme://]host[:port] with scheme http or https", proxy)
	}
	return u.Scheme + "://" + u.Host, nil
}

func clusterTLS(ca []byte) (*tls.Config, error) {
	if len(ca) == 0 {
		return &tls.Config{MinVersion: tls.VersionTLS12}, nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(ca) {
		return nil, errors.New("the cluster's CA holds no PEM certificate")
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}, nil
}

// do runs one call with a deadline, turns its failure into one of our sentinels, and counts it. The SDK panics on some
// answers that it does not expect; such an answer is a failed call like any other.
func (c *Client) do(ctx context.Context, request string, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	ctx, seen := withSeen(ctx)
	start := time.Now()
	err := recovered(func() error { return call(ctx) })
	if err != nil {
		err = fmt.Errorf("%s: %w", request, classify(err, seen))
	}
	c.metrics.observe(request, time.Since(start), err)
	return err
}

// recovered is call's error, or what it panicked with.
func recovered(call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: it cannot be decoded: %v at %s", ErrOddAnswer, p, panicOrigin())
		}
	}()
	return call()
}

// panicOrigin is the function that panicked, one line of the stack.
func panicOrigin() string {
	lines := strings.Split(string(debug.Stack()), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "panic(") && i+2 < len(lines) {
			return lines[i+2]
		}
	}
	return "an unknown place"
}
