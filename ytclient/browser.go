package ytclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yson"
)

// What the cluster's own HTTP proxy lets browsers do. A task proxy cannot change it, and what its services' pages can do to
// the people who open them depends on it.

// LetsIn asks the cluster as a browser does, before a page of origin calls it: may the page call with its visitor's cookie
// and read the answers? The request has no credentials and changes nothing.
//
// Errors: ErrUnavailable.
func (c *Client) LetsIn(ctx context.Context, origin string) (yes bool, err error) {
	err = c.do(ctx, "preflight", func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodOptions, c.base+"/api/v4/start_operation", nil)
		if err != nil {
			return err
		}
		req.Header.Set("Origin", origin)
		req.Header.Set("Access-Control-Request-Method", http.MethodPost)
		req.Header.Set("Access-Control-Request-Headers", "x-csrf-token")
		req.Header.Set("User-Agent", "task-proxy")
		resp, err := c.hc.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection can be used again
		if resp.StatusCode >= http.StatusInternalServerError {
			return fmt.Errorf("%w: status %d", ErrUnavailable, resp.StatusCode)
		}
		// A wildcard never counts for a request with a cookie (Fetch standard, CORS check).
		yes = resp.Header.Get("Access-Control-Allow-Origin") == origin &&
			resp.Header.Get("Access-Control-Allow-Credentials") == "true"
		return nil
	})
	return yes, err
}

// httpProxies is where a cluster tells of its HTTP proxies.
const httpProxies = "//sys/http_proxies"

// LoginCookieDomain is the Domain attribute with which the cluster's HTTP proxies hand out the cookie YTCypressCookie,
// without a leading dot; empty when they give none, so that browsers send the cookie to the host alone that set it. It is
// read from the configuration of one HTTP proxy that answers.
//
// Errors: ErrNotFound when the cluster does not show that configuration, or hands out no such cookie; ErrDenied,
// ErrOverloaded, ErrUnavailable.
func (c *Client) LoginCookieDomain(ctx context.Context) (domain string, err error) {
	answers, err := c.ListChildren(ctx, []string{httpProxies})
	if err != nil {
		return "", err
	}
	if err := answers[0].Err; err != nil {
		return "", err
	}
	const most = 5 // proxies that do not answer, before it is said so
	err = fmt.Errorf("%w: %s is empty", ErrNotFound, httpProxies)
	for _, name := range answers[0].Names[:min(most, len(answers[0].Names))] {
		domain, err = c.cookieDomain(ctx, name)
		if !errors.Is(err, ErrUnavailable) {
			break
		}
	}
	return domain, err
}

func (c *Client) cookieDomain(ctx context.Context, proxy string) (domain string, err error) {
	path := ypath.Path(httpProxies + "/" + escapeComponent(proxy) + "/orchid/config/auth/cypress_cookie_manager")
	err = c.do(ctx, "get_cookie_domain", func(ctx context.Context) error {
		var raw yson.RawValue
		var v any
		if err := c.yc.GetNode(ctx, path, &raw, nil); err != nil {
			return err
		}
		if err := item(raw, &v); err != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		manager, ok := Plain(v).(map[string]any)
		if !ok {
			// The key is there without a value where this kind of login is off.
			return fmt.Errorf("%w: this HTTP proxy hands out no cookie of its own", ErrNotFound)
		}
		generator, _ := Plain(manager["cookie_generator"]).(map[string]any)
		domain, _ = Plain(generator["domain"]).(string)
		domain = strings.ToLower(strings.TrimPrefix(domain, "."))
		return nil
	})
	return domain, err
}
