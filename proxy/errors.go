package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"taskproxy/auth"
)

// gRPC status codes that we answer with (google.golang.org/grpc/codes; the numbers are the wire format).
const (
	grpcInvalidArgument   = 3
	grpcDeadlineExceeded  = 4
	grpcNotFound          = 5
	grpcPermissionDenied  = 7
	grpcResourceExhausted = 8
	grpcUnimplemented     = 12
	grpcInternal          = 13
	grpcUnavailable       = 14
	grpcUnauthenticated   = 16
)

// statusClientGone is what logs and metrics say of a caller that left before an answer; it is never sent (nginx's number).
const statusClientGone = 499

// cause is why we answer a request ourselves. The table below is the only place where a cause meets its status.
type cause struct {
	reason string // stable word for metrics, logs and the x-yt-taskproxy-error header
	status int
	grpc   int
	public string // what the caller reads, when the Error has nothing more precise
}

func (c *cause) Error() string { return c.reason }

// The causes, in the order in which a request can meet them.
var (
	causeBadTarget      = &cause{"bad_request_target", 400, grpcInvalidArgument, "the request target is not one that the proxy forwards"}
	causeBadHost        = &cause{"bad_host", 400, grpcInvalidArgument, "the request does not say one host that it is for"}
	causeBadUpgrade     = &cause{"bad_upgrade", 400, grpcInvalidArgument, "a WebSocket handshake is a GET without a body"}
	causeBadBody        = &cause{"bad_request_body", 400, grpcInvalidArgument, "the request's body ended early, or not in the form that it has to have"}
	causeNoCredentials  = &cause{"no_credentials", 401, grpcUnauthenticated, "credentials are needed: a token in the Authorization header (OAuth or Bearer), or the cluster's login cookie"}
	causeAmbiguous      = &cause{"ambiguous_cookie", 401, grpcUnauthenticated, "the login cookie is there with two different values: delete one of them"}
	causeBadCredentials = &cause{"malformed_credentials", 401, grpcUnauthenticated, "the credentials are malformed: want one \"OAuth <token>\", one \"Bearer <token>\", or the login cookie"}
	causeRefused        = &cause{"invalid_credentials", 401, grpcUnauthenticated, "the cluster does not accept these credentials"}
	causeBadRouting     = &cause{"malformed_service_id", 400, grpcInvalidArgument, "the routing header is malformed"}
	causeConflict       = &cause{"ambiguous_service", 400, grpcInvalidArgument, "the host and the routing headers do not all name the same service"}
	causeNoService      = &cause{"no_such_service", 404, grpcNotFound, "there is no such service; it may have ended"}
	causeMisdirected    = &cause{"misdirected", 421, grpcNotFound, "this host is not served here"}
	causeCrossSite      = &cause{"cross_site", 403, grpcPermissionDenied, "a page of another site asked your browser for this, and the browser adds your login by itself: open the service's own address, send a token, or have the service's author name the site under cross_site in the annotation"}
	causeDenied         = &cause{"access_denied", 403, grpcPermissionDenied, "you have no permission for the operation behind this service"}
	causeNoOperation    = &cause{"no_such_operation", 404, grpcNotFound, "the operation behind this service does not exist any more"}
	causeNoCluster      = &cause{"cluster_unavailable", 503, grpcUnavailable, "the cluster cannot be asked for your permissions right now"}
	causeTooMany        = &cause{"too_many_attempts", 429, grpcResourceExhausted, "too many requests from your address or login have to be checked with the cluster: try again in a moment"}
	causeAuthOff        = &cause{"cluster_auth_off", 503, grpcUnavailable, "the cluster has no authentication at the moment, so nobody can be identified"}
	causeNoEndpoint     = &cause{"no_endpoints", 503, grpcUnavailable, "no job answers for this service yet"}
	causeConnect        = &cause{"connect_failed", 502, grpcUnavailable, "the job does not accept connections"}
	causeConnectTimeout = &cause{"connect_timeout", 504, grpcDeadlineExceeded, "the job did not accept a connection in time"}
	causeBroken         = &cause{"upstream_broken", 502, grpcUnavailable, "the job broke the connection or did not speak its protocol"}
	causeBadAnswer      = &cause{"bad_answer", 502, grpcUnavailable, "the job's answer is none that can be passed on"}
	causeRouteTimeout   = &cause{"route_timeout", 504, grpcDeadlineExceeded, "the job did not begin its answer in time"}
	causeMismatch       = &cause{"protocol_mismatch", 415, grpcUnimplemented, "the job does not speak the caller's protocol"}
	causeIdle           = &cause{"idle_timeout", 504, grpcDeadlineExceeded, "the job took too long"}
	causeRevoked        = &cause{"access_revoked", 403, grpcPermissionDenied, "the permission for this service was taken back"}
	causeEnded          = &cause{"operation_ended", 503, grpcUnavailable, "the operation behind this service has ended"}
	causeJobEnded       = &cause{"job_ended", 503, grpcUnavailable, "the job that answered this has ended; another may answer if you ask again"}
	causeClosing        = &cause{"shutting_down", 503, grpcUnavailable, "the proxy is shutting down"}
	causeGone           = &cause{"client_gone", statusClientGone, grpcUnavailable, "the client left"}
	causeInternal       = &cause{"internal", 500, grpcInternal, "the proxy failed; the log has more under this request id"}
)

// causeOf maps the sentinels of auth. Its order does not matter: an error wraps exactly one of them.
var causeOf = []struct {
	err   error
	cause *cause
}{
	{auth.ErrNoCredentials, causeNoCredentials},
	{auth.ErrAmbiguousCookie, causeAmbiguous},
	{auth.ErrMalformedCredentials, causeBadCredentials},
	{auth.ErrUnauthenticated, causeRefused},
	{auth.ErrDenied, causeDenied},
	{auth.ErrNoSuchOperation, causeNoOperation},
	{auth.ErrTooMany, causeTooMany},
	{auth.ErrAuthOff, causeAuthOff},
	{auth.ErrUnavailable, causeNoCluster},
}

// Error is a request's failure as its two readers see it: Public is for the caller, Err is for the log.
type Error struct {
	cause  *cause
	Public string // empty: the cause's own words
	Err    error  // nil: there is no more to say
}

// Error is the log's view.
func (e *Error) Error() string {
	if e.Err != nil {
		return e.cause.reason + ": " + e.Err.Error()
	}
	if e.Public != "" {
		return e.cause.reason + ": " + e.Public
	}
	return e.cause.reason
}

// Unwrap is Err.
func (e *Error) Unwrap() error { return e.Err }

// fail is an Error whose words are for the caller.
func fail(c *cause, format string, args ...any) error {
	return &Error{cause: c, Public: fmt.Sprintf(format, args...)}
}

// known is the cause that an error of this package carries; nil when it carries none.
func known(err error) (c *cause, public string) {
	if err == nil {
		return nil, ""
	}
	var e *Error
	var bare *cause
	switch {
	case errors.As(err, &e) && e.Public != "":
		return e.cause, e.Public
	case e != nil:
		return e.cause, e.cause.public
	case errors.As(err, &bare):
		return bare, bare.public
	}
	return nil, ""
}

// explain finds the cause of a request's failure and the words for the caller. ctx is the caller's own context: when it has
// ended, that is why everything else failed.
func explain(ctx context.Context, err error) (c *cause, public string) {
	if ctx.Err() != nil {
		return causeGone, causeGone.public
	}
	if c, public := known(err); c != nil {
		return c, public
	}
	for _, row := range causeOf {
		if errors.Is(err, row.err) {
			return row.cause, row.cause.public
		}
	}
	return causeInternal, causeInternal.public
}

// answer says to the caller, in the caller's own manner, why the request failed. It is the only place that does.
func (p *Proxy) answer(x *exchange, err error) {
	ctx := x.in.Context()
	if x.abandoned.Load() {
		ctx = context.Background() // ended by us, in a way
	}
	c, public := explain(ctx, err)
	x.failure, x.err = c, err
	if c == causeInternal {
		p.log.Error("request failed", "err", err, "request_id", x.id)
	}
	if c == causeGone || x.w.started.Load() {
		// Nobody listens, or the answer has begun and can only be cut off.
		panic(http.ErrAbortHandler)
	}
	h := x.w.Header()
	clear(h)
	h.Set("X-Yt-Taskproxy-Error", c.reason)
	h.Set("Cache-Control", "no-store")
	x.allowOrigin(h)
	switch c.status {
	case http.StatusUnauthorized:
		h.Set("Www-Authenticate", `OAuth realm="task proxy", Bearer realm="task proxy"`)
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		h.Set("Retry-After", retryAfter)
	}
	if x.grpc {
		answerGRPC(x, c, public)
		return
	}
	p.answerHTTP(x, c, public)
}

// oneLine keeps words of ours that quote the caller on one line whatever they quote.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}
