package serve

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"taskproxy/discovery"
	"taskproxy/ytclient"
)

// Config is what the flags and variables say. ParseConfig fills it; the comment of a field names its flag.
type Config struct {
	YTProxy     string          // --yt-proxy
	YTTokenPath string          // --yt-token-path
	YTCA        []byte          // --yt-ca-file, its content
	Bases       discovery.Bases // --base-domain

	Listen         string // --listen
	AdminListen    string // --admin-listen
	DebugListen    string // --debug-listen; empty: there is none
	MaxConnections int    // --max-connections; 0: no limit
	TLSCertFile    string // --tls-cert-file; empty: no TLS
	TLSKeyFile     string // --tls-key-file

	TablePath         string        // --table-path, or --dir-path and "/services"
	DiscoveryPeriod   time.Duration // --discovery-period
	Concurrency       int           // --discovery-concurrency
	JobsRefreshPeriod time.Duration // --jobs-refresh-period
	StaleLimit        time.Duration // --stale-limit

	MaxServicesPerOperation int // --max-services-per-operation
	MaxServicesPerUser      int // --max-services-per-user
	MaxServices             int // --max-services

	SPYT              discovery.SPYTConfig // --spyt-rest, --spyt-rest-permission, --spyt-ports
	SPYTRESTAllowFrom []netip.Prefix       // --spyt-rest-allow-from

	AuthEnabled          bool           // --auth-enabled
	AuthCookieName       string         // --auth-cookie-name
	AuthStaleLimit       time.Duration  // --auth-stale-limit
	LoginURL             string         // --login-url
	FrameAncestors       []string       // --frame-ancestors
	ForwardCredentialsTo []string       // --forward-credentials-to
	TrustedProxies       []netip.Prefix // --trusted-proxies
	PublicScheme         string         // --public-scheme
	AdminHosts           []string       // --admin-hosts, for the debug listener too

	ConnectTimeout  time.Duration // --connect-timeout
	IdleTimeout     time.Duration // --idle-timeout; 0: never
	DrainTimeout    time.Duration // --drain-timeout
	StartupTimeout  time.Duration // --startup-timeout
	ShutdownDelay   time.Duration // --shutdown-delay
	ShutdownTimeout time.Duration // --shutdown-timeout

	LogFormat string     // --log-format
	LogLevel  slog.Level // --log-level

	Version string // of the program, for the metrics; no flag; empty: unknown

	DryRun bool // --dry-run: whoever runs the process prints Effective instead of serving
	// Effective is what all flags and variables came to, a line each, for people; no secrets.
	Effective string

	// For tests.
	certificatePeriod time.Duration // 0: the constant of that name
	grantTTL          time.Duration // 0: auth.DefaultGrantTTL
}

// UsageError is everything that is wrong with a configuration, a line each. The process must exit with 2.
type UsageError struct{ Problems []string }

// Error lists all problems.
func (e *UsageError) Error() string {
	return "wrong configuration:\n  " + strings.Join(e.Problems, "\n  ")
}

// ErrHelp says that help was asked for and printed.
var ErrHelp = errors.New("help was asked for")

// ParseConfig reads the flags in args (without the program's name), then, for flags not given, the variables
// TASK_PROXY_<FLAG>, then the flags of the server that this one replaces. It reports every problem at once, in a *UsageError. For --help it prints the flags to out and returns
// ErrHelp.
func ParseConfig(args []string, getenv func(string) string, out io.Writer) (Config, error) {
	return parseConfig(args, getenv, nil, out)
}

// parseConfig looks, unless environ is nil, at what surrounds a process too; see ParseEnviron.
func parseConfig(args []string, getenv func(string) string, environ []string, out io.Writer) (Config, error) {
	var c Config
	dir, table := "", ""
	s := newSettings()
	s.text("yt-proxy", "", "the cluster's HTTP proxy, `[scheme://]host[:port]`; required", func(v string) error {
		c.YTProxy = v
		return ytclient.CheckProxy(v)
	})
	s.text("yt-token-path", "", "the `file` with the robot's token, or a directory with just that file, or with one called token; read again when it changes; required",
		func(v string) error { c.YTTokenPath = v; return nil })
	s.text("yt-ca-file", "", "a `file` of PEM certificates to trust towards the cluster besides the system's; empty: only the system's",
		func(v string) (err error) {
			if v != "" {
				c.YTCA, err = readRoots(v)
			}
			return err
		})
	s.text("base-domain", "", "the `domain` under which services get their addresses, <id>.<domain>; several separated by commas, the first is published; required",
		func(v string) (err error) {
			if v != "" {
				c.Bases, err = discovery.NewBases(splitList(v)...)
			}
			return err
		})
	s.text("listen", ":8080", "the public `address`, HTTP/1.1 and h2c, or with --tls-cert-file HTTP/1.1 and HTTP/2 over TLS; port 0: any free one", setAddress(&c.Listen))
	s.text("tls-cert-file", "", "a `file` with the certificate and those between it and its root, in PEM, for TLS on --listen; read again when it changes; empty: no TLS",
		func(v string) error { c.TLSCertFile = v; return nil })
	s.text("tls-key-file", "", "the `file` with the key of --tls-cert-file, in PEM", func(v string) error { c.TLSKeyFile = v; return nil })
	s.number("max-connections", 0, 0, 10_000_000, "connections that --listen has at a time at most, further ones wait; 0: no limit", &c.MaxConnections)
	s.text("admin-listen", ":9102", "the `address` of /healthz, /readyz and /metrics", setAddress(&c.AdminListen))
	s.text("debug-listen", "127.0.0.1:9103", "the `address` of /routes, which tells every service, endpoint and problem, and of /debug/pprof/; for admins' eyes only; given as empty: none", func(v string) error {
		if v == "" {
			return nil
		}
		return setAddress(&c.DebugListen)(v)
	})
	s.text("admin-hosts", "", "`names`, separated by commas, by which the admin and debug listeners may be called besides IP addresses and localhost",
		func(v string) error { c.AdminHosts = splitList(v); return nil })
	s.text("dir-path", "//sys/task_proxies", "the Cypress `directory` of the services table", func(v string) error {
		dir = v
		return ytclient.CheckPath(v)
	})
	s.text("table-path", "", "the `path` of the services table; empty: \"services\" in --dir-path", func(v string) error {
		table = v
		if v == "" {
			return nil
		}
		return ytclient.CheckPath(v)
	})
	s.duration("discovery-period", 10*time.Second, time.Second/10, "time between two discovery cycles", &c.DiscoveryPeriod)
	s.number("discovery-concurrency", 16, 1, 1000, "calls that discovery has under way at most", &c.Concurrency)
	s.duration("jobs-refresh-period", time.Minute, time.Second, "time after which an operation's jobs are listed again although nothing seems to have changed", &c.JobsRefreshPeriod)
	s.duration("stale-limit", 10*time.Minute, time.Second, "how long endpoints are kept while the cluster cannot be asked about them", &c.StaleLimit)
	s.number("max-services-per-operation", discovery.DefaultMaxServicesPerOperation, 1, 10_000, "services that one operation may publish", &c.MaxServicesPerOperation)
	s.number("max-services-per-user", discovery.DefaultMaxServicesPerUser, 1, 1_000_000, "services that one user's operations may publish", &c.MaxServicesPerUser)
	s.number("max-services", discovery.DefaultMaxServices, 1, 1_000_000, "services that all operations together may publish", &c.MaxServices)
	s.text("spyt-rest", "publish", "`publish or hide` the REST submission server of standalone Spark clusters", func(v string) error {
		c.SPYT.HideREST = v == "hide"
		return oneOf(v, "publish", "hide")
	})
	s.text("spyt-rest-permission", "manage", "what callers of that server need besides read, `manage or read`: whoever gets in runs code as the cluster's owner", func(v string) error {
		c.SPYT.RESTPermission = ytclient.Permission(v)
		return oneOf(v, "manage", "read")
	})
	s.text("spyt-rest-allow-from", "", "`CIDRs`, separated by commas, of TCP peers that may call that server without credentials, as SPYT's client does; empty: none",
		func(v string) (err error) { c.SPYTRESTAllowFrom, err = parsePrefixes(v); return err })
	s.text("spyt-ports", "27000-27999", "`ports` that Spark's processes may take without having been given them, like 27000-27999 or 27001,27080; empty: none",
		func(v string) (err error) { c.SPYT.Ports, err = discovery.ParsePortRanges(v); return err })
	s.flag("auth-enabled", true, "check who calls and what they may read; false lets everybody in", &c.AuthEnabled)
	s.text("auth-cookie-name", "YTCypressCookie", "the `name` of the cookie that identifies a caller to the cluster", func(v string) error {
		c.AuthCookieName = v
		return checkCookieName(v)
	})
	s.duration("auth-stale-limit", 10*time.Minute, time.Second, "how long a yes counts while the cluster cannot be asked", &c.AuthStaleLimit)
	s.text("login-url", "", "`URL` of the page where a browser logs in to the cluster, \"{url}\" in it stands for the address to come back to; empty: no link is shown", func(v string) error {
		c.LoginURL = v
		return checkLoginURL(v)
	})
	s.text("frame-ancestors", "", "`origins` like https://cluster.example.com, separated by commas, whose pages may frame services, as the cluster's UI may want to; empty: none besides a service's own",
		func(v string) (err error) { c.FrameAncestors, err = parseOrigins(v); return err })
	s.text("forward-credentials-to", "", "`users and aliases` (with their *), separated by commas, whose operations get the caller's credentials passed on; empty: nobody's",
		func(v string) error { c.ForwardCredentialsTo = splitList(v); return nil })
	s.text("trusted-proxies", "", "`CIDRs`, separated by commas, of proxies in front of this one whose X-Forwarded-* headers are kept; empty: none",
		func(v string) (err error) { c.TrustedProxies, err = parsePrefixes(v); return err })
	s.text("public-scheme", "", "`http or https`, as callers see it when TLS ends at a proxy in front; empty: what this one sees", func(v string) error {
		c.PublicScheme = v
		return oneOf(v, "", "http", "https")
	})
	s.duration("connect-timeout", 2*time.Second, time.Millisecond, "time for connecting to a job", &c.ConnectTimeout)
	s.duration("idle-timeout", time.Hour, 0, "time without a byte in either direction after which a stream ends; 0: never", &c.IdleTimeout)
	s.duration("drain-timeout", 30*time.Second, time.Second, "time within which streams end after their operation or job has", &c.DrainTimeout)
	s.duration("startup-timeout", 30*time.Second, 0, "how long to wait at the start for a cluster that does not answer", &c.StartupTimeout)
	s.duration("shutdown-delay", 5*time.Second, 0, "time between not being ready and refusing connections, for balancers to notice", &c.ShutdownDelay)
	s.duration("shutdown-timeout", 30*time.Second, 0, "time that requests under way get to finish at the end", &c.ShutdownTimeout)
	s.text("log-format", "auto", "`json, text or auto` (text on a terminal)", func(v string) error {
		c.LogFormat = v
		return oneOf(v, "json", "text", "auto")
	})
	s.text("log-level", "info", "the least `level` to log: debug, info, warn or error", func(v string) error {
		if err := oneOf(strings.ToLower(v), "debug", "info", "warn", "error"); err != nil {
			return err
		}
		return c.LogLevel.UnmarshalText([]byte(v))
	})

	s.flag("dry-run", false, "print what all flags and variables come to, and end", &c.DryRun)
	s.legacyFlags()

	if err := s.parse(args, getenv, out); err != nil {
		return Config{}, err
	}
	s.strays(environ)
	if table == "" {
		table = dir + "/services"
		s.named("table-path").value, s.named("table-path").source = table, "--dir-path"
	}
	c.TablePath = table
	switch {
	case c.TLSCertFile == "" && c.TLSKeyFile == "":
	case c.TLSCertFile == "" || c.TLSKeyFile == "":
		s.require("tls-cert-file", c.TLSCertFile != "")
		s.require("tls-key-file", c.TLSKeyFile != "")
		if c.TLSCertFile != "" {
			_, err := readFor("tls-cert-file", c.TLSCertFile)
			s.note(err)
		} else {
			_, err := readFor("tls-key-file", c.TLSKeyFile)
			s.note(err)
		}
	default:
		for _, err := range checkPair(c.TLSCertFile, c.TLSKeyFile) {
			s.note(err)
		}
	}
	for _, err := range []error{
		checkApart("admin-listen", c.AdminListen, "listen", c.Listen),
		checkApart("debug-listen", c.DebugListen, "listen", c.Listen),
		checkApart("debug-listen", c.DebugListen, "admin-listen", c.AdminListen),
	} {
		s.note(err)
	}
	s.require("yt-proxy", c.YTProxy != "")
	s.require("yt-token-path", c.YTTokenPath != "")
	s.require("base-domain", c.Bases.Primary() != "")
	if len(s.problems) > 0 {
		if environ != nil {
			s.missingToken(c.YTTokenPath)
		}
		return Config{}, &UsageError{Problems: s.problems}
	}
	c.Effective = s.effective()
	return c, nil
}

func setAddress(dst *string) func(string) error {
	return func(v string) error {
		*dst = v
		_, port, err := net.SplitHostPort(v)
		if err != nil {
			return fmt.Errorf("%q is no address like :8080 or 127.0.0.1:8080", v)
		}
		if _, err := net.LookupPort("tcp", port); err != nil {
			return fmt.Errorf("%q has no port between 0 and 65535", v)
		}
		return nil
	}
}

// checkApart makes sure that two flags have addresses that one process can listen on. Addresses that are wrong by themselves are not its business.
func checkApart(flag, address, other, taken string) error {
	host, port := splitAddress(address)
	host2, port2 := splitAddress(taken)
	if port != port2 || port <= 0 || host != host2 && host != "" && host2 != "" {
		return nil
	}
	return fmt.Errorf("--%s: %q takes the port of --%s, %q; want another", flag, address, other, taken)
}

// splitAddress has an empty host for all of them, and port 0 for any free one or none.
func splitAddress(address string) (host string, port int) {
	host, name, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0
	}
	if addr, err := netip.ParseAddr(host); err == nil && addr.IsUnspecified() {
		host = ""
	}
	port, err = net.LookupPort("tcp", name)
	if err != nil {
		return "", 0
	}
	return host, port
}

// splitList splits at commas; white space around an item and empty items are dropped.
func splitList(v string) (items []string) {
	for item := range strings.SplitSeq(v, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

func parsePrefixes(v string) (prefixes []netip.Prefix, err error) {
	for _, item := range splitList(v) {
		p, err := netip.ParsePrefix(item)
		if err != nil {
			return nil, fmt.Errorf("%q is no CIDR like 10.0.0.0/8 or fd00::/8", item)
		}
		prefixes = append(prefixes, p.Masked())
	}
	return prefixes, nil
}

func parseOrigins(v string) ([]string, error) {
	origins := splitList(v)
	for _, origin := range origins {
		if err := discovery.CheckOrigin(origin); err != nil {
			return nil, fmt.Errorf("%q %w: want an origin such as https://cluster.example.com", origin, err)
		}
	}
	return origins, nil
}

func oneOf(v string, allowed ...string) error {
	for _, a := range allowed {
		if v == a {
			return nil
		}
	}
	return fmt.Errorf("%q is none of %s", v, strings.TrimPrefix(strings.Join(allowed, ", "), ", "))
}

func checkCookieName(v string) error {
	if v == "" || (&http.Cookie{Name: v, Value: "x"}).Valid() != nil {
		return fmt.Errorf("%q is no name of a cookie", v)
	}
	return nil
}

func checkLoginURL(v string) error {
	if v == "" {
		return nil
	}
	u, err := url.Parse(v)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return fmt.Errorf("%q is no absolute http or https URL", v)
	}
	return nil
}
