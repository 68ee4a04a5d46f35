package ytclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"syscall"

	"go.ytsaurus.tech/yt/go/yterrors"
)

// What a call can fail with. Errors returned by Client wrap one of them (and ErrOddAnswer is an ErrUnavailable); test with
// errors.Is.
var (
	// ErrUnauthenticated: the cluster refused the credentials (HTTP 401, or codes 110, 111, 900).
	ErrUnauthenticated = errors.New("the cluster refused the credentials")
	// ErrDenied: the cluster knows who asks and says no (HTTP 403, or codes 901, 903).
	ErrDenied = errors.New("the cluster denied access")
	// ErrNotFound: the Cypress path does not exist (code 500).
	ErrNotFound = errors.New("no such node")
	// ErrNoSuchOperation: the operation does not exist (codes 1915 and 200).
	ErrNoSuchOperation = errors.New("no such operation")
	// ErrConflict: another transaction holds a conflicting lock (code 402).
	ErrConflict = errors.New("lock conflict")
	// ErrLeaseLost: the lease under which something was to be done has ended (codes 1000 and 11000).
	ErrLeaseLost = errors.New("the lease is lost")
	// ErrOverloaded: the cluster limits the caller, here usually our own robot (codes 904, 108).
	ErrOverloaded = errors.New("the cluster limits requests")
	// ErrUnavailable: the cluster could not be asked, took too long, broke, or answered something that is no answer.
	ErrUnavailable = errors.New("the cluster cannot be asked")
	// ErrOddAnswer is the ErrUnavailable of a cluster that was reached and answered, without a failure of its own (5xx),
	// something that is no answer: an empty one, a login page, a redirect.
	ErrOddAnswer = fmt.Errorf("%w: its answer is none", ErrUnavailable)
	// ErrRejected: the cluster understood the call and refused it for a reason that no other sentinel names.
	ErrRejected = errors.New("the cluster rejected the request")
)

// codes maps the cluster's error codes to sentinels, most telling first: an error is a tree, and the outer codes are
// often general.
var codes = []struct {
	code     yterrors.ErrorCode
	sentinel error
}{
	{yterrors.CodeRequestQueueSizeLimitExceeded, ErrOverloaded},    // 904
	{yterrors.CodeRPCRequestQueueSizeLimitExceeded, ErrOverloaded}, // 108
	{yterrors.CodeUserBanned, ErrDenied},                           // 903
	{yterrors.CodeInvalidCsrfToken, ErrUnauthenticated},            // 110
	{yterrors.CodeInvalidCredentials, ErrUnauthenticated},          // 111
	{yterrors.CodeAuthenticationError, ErrUnauthenticated},         // 900
	{yterrors.CodeAuthorizationError, ErrDenied},                   // 901
	{yterrors.CodeAPINoSuchOperation, ErrNoSuchOperation},          // 1915
	{yterrors.CodeNoSuchOperation, ErrNoSuchOperation},             // 200
	{yterrors.CodeConcurrentTransactionLockConflict, ErrConflict},  // 402
	{yterrors.CodeResolveError, ErrNotFound},                       // 500
}

// transient are codes of a cluster that cannot answer now, although the proxy in front of it could be reached.
var transient = []yterrors.ErrorCode{
	yterrors.CodeTimeout, yterrors.CodeTransportError, yterrors.CodeUnavailable, yterrors.CodeProxyBanned,
	yterrors.CodePeerBanned, yterrors.CodeRetriableArchiveError,
}

// classify wraps err with the sentinel that says what it means. seen is the last answer of the call that was on the wire:
// when the SDK retried until the deadline its error says only that, and the answer says why.
func classify(err error, seen *seen) error {
	for _, s := range []error{ErrUnauthenticated, ErrDenied, ErrNotFound, ErrNoSuchOperation, ErrConflict, ErrLeaseLost,
		ErrOverloaded, ErrUnavailable, ErrRejected} {
		if errors.Is(err, s) {
			return err // already in our words
		}
	}
	if why := seen.failure.Load(); why != nil && errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w; before that: %s", sentinel(err, seen), err, (*why).Error()) // told, not wrapped: it decides nothing
	}
	return fmt.Errorf("%w: %w", sentinel(err, seen), err)
}

// classified is err as classify has it, by what the wire has answered to the call of ctx so far. It is for errors after which
// the call goes on: what is answered when a transaction is cleaned up says nothing about why.
func classified(ctx context.Context, err error) error {
	s, _ := ctx.Value(seenKey{}).(*seen)
	if err == nil || s == nil {
		return err
	}
	return classify(err, s)
}

func sentinel(err error, seen *seen) error {
	status, limited := seen.last()
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		if limited {
			return ErrOverloaded
		}
		return ErrUnavailable
	}
	for _, c := range codes {
		if yterrors.ContainsErrorCode(err, c.code) {
			// A verdict comes with 4xx. In an answer that is 5xx the code is what some part of the cluster said on its way to
			// failing (a failing authenticator nests 900 there): nobody has judged anything. Only being limited comes with 503.
			if status >= http.StatusInternalServerError && !errors.Is(c.sentinel, ErrOverloaded) {
				return ErrUnavailable
			}
			return c.sentinel
		}
	}
	switch {
	case status == http.StatusUnauthorized:
		return ErrUnauthenticated
	case status == http.StatusForbidden:
		return ErrDenied
	case status == http.StatusTooManyRequests:
		return ErrOverloaded
	case status == 0, status >= http.StatusInternalServerError, brokenConnection(err):
		return ErrUnavailable
	}
	for _, code := range transient {
		if yterrors.ContainsErrorCode(err, code) {
			return ErrUnavailable
		}
	}
	var ytErr *yterrors.Error
	if status == http.StatusBadRequest && errors.As(err, &ytErr) {
		return ErrRejected
	}
	return ErrOddAnswer
}

// brokenConnection reports whether the call ended because its connection did, so that one more try makes sense.
func brokenConnection(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// seen is what the wire last answered to one call, all its tries included. The SDK keeps neither the status nor the
// answers that it retried.
type seen struct {
	status  atomic.Int32          // 0: nothing was answered to the last try
	limited atomic.Bool           // the last answer was 904 or 108
	failure atomic.Pointer[error] // of the last try that failed before the call's time was over; nil: it was answered
}

func (s *seen) last() (status int, limited bool) { return int(s.status.Load()), s.limited.Load() }

type seenKey struct{}

func withSeen(ctx context.Context) (context.Context, *seen) {
	s := new(seen)
	return context.WithValue(ctx, seenKey{}, s), s
}

// recorder notes each answer in the seen of its call.
type recorder struct{ next http.RoundTripper }

func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	s, _ := req.Context().Value(seenKey{}).(*seen)
	if s == nil {
		return r.next.RoundTrip(req)
	}
	s.status.Store(0)
	resp, err := r.next.RoundTrip(req)
	switch {
	case err == nil:
		s.status.Store(int32(resp.StatusCode))
		s.limited.Store(limits(resp))
		s.failure.Store(nil)
	case req.Context().Err() == nil:
		s.limited.Store(false)
		s.failure.Store(&err)
	default:
		// Time ran out in the middle of a try: what the one before was answered is still why it had to be made.
	}
	return resp, err
}

// limits reports whether an answer says 904 or 108, however deep. The SDK tries those again until time runs out, and then
// its error does not say why.
func limits(resp *http.Response) bool {
	if resp.StatusCode == http.StatusTooManyRequests {
		return true
	}
	text := []byte(resp.Header.Get("X-Yt-Error"))
	if len(text) == 0 && resp.StatusCode >= http.StatusBadRequest {
		// whoami has its errors in the body only.
		text, _ = io.ReadAll(io.LimitReader(resp.Body, maxError))
		resp.Body = &prefixed{Reader: io.MultiReader(bytes.NewReader(text), resp.Body), Closer: resp.Body}
	}
	var answer yterrors.Error
	if len(text) == 0 || json.Unmarshal(text, &answer) != nil {
		return false
	}
	return yterrors.ContainsErrorCode(&answer, yterrors.CodeRequestQueueSizeLimitExceeded) ||
		yterrors.ContainsErrorCode(&answer, yterrors.CodeRPCRequestQueueSizeLimitExceeded)
}

// maxError bounds what is read of an error's body to look for a code in it.
const maxError = 256 << 10

// prefixed is a body of which some was read already.
type prefixed struct {
	io.Reader
	io.Closer
}

// CloseIdleConnections lets http.Client.CloseIdleConnections reach the transport.
func (r *recorder) CloseIdleConnections() {
	if c, ok := r.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
