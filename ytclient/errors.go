package ytclient

import "errors"

// What a call can fail with. Errors returned by Client wrap exactly one of them; test with errors.Is.
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
	// ErrOverloaded: the cluster limits the caller, here usually our own robot (codes 904, 108).
	ErrOverloaded = errors.New("the cluster limits requests")
	// ErrUnavailable: the cluster could not be asked, took too long, broke, or answered something that is no answer.
	ErrUnavailable = errors.New("the cluster cannot be asked")
	// ErrRejected: the cluster understood the call and refused it for a reason that no other sentinel names.
	ErrRejected = errors.New("the cluster rejected the request")
)
