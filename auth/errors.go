package auth

import "errors"

// What can be wrong with a request's credentials, or come of asking the cluster. Errors of this package wrap exactly
// one of them; test with errors.Is. Their texts never contain a credential.
var (
	// ErrNoCredentials: the request carries nothing that the cluster could know.
	ErrNoCredentials = errors.New("no credentials")
	// ErrAmbiguousCookie: the login cookie is there with two different values. A sibling site may have planted one of
	// them, so neither counts.
	ErrAmbiguousCookie = errors.New("two different values of the login cookie")
	// ErrMalformedCredentials: the credential that counts cannot be one. Nothing else is tried in its place.
	ErrMalformedCredentials = errors.New("malformed credentials")
	// ErrUnauthenticated: the cluster does not accept the credentials. May wrap the cluster's error.
	ErrUnauthenticated = errors.New("the credentials are not valid")
	// ErrDenied: the cluster says that this login may not have the operation.
	ErrDenied = errors.New("permission denied")
	// ErrNoSuchOperation: the cluster says that there is no such operation.
	ErrNoSuchOperation = errors.New("no such operation")
	// ErrTooMany: the caller asks for more than a fair share of the cluster, or the cluster refused too many of its
	// credentials. Nobody was asked; the same request may pass a second later.
	ErrTooMany = errors.New("too many attempts")
	// ErrAuthOff: the cluster takes credentials that nobody has, so it does not tell anybody from anybody.
	ErrAuthOff = errors.New("the cluster has no authentication")
	// ErrUnavailable: the cluster did not decide, and no earlier yes is young enough to count. As a rule it also wraps
	// ytclient's error, which says why; see IsAway.
	ErrUnavailable = errors.New("the cluster did not decide")
)
