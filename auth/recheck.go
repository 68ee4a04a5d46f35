package auth

import (
	"context"
	"fmt"

	"taskproxy/ytclient"
)

// Recheck asks again what Authenticate and Authorize said yes to, for a stream that lasts longer than their answers: are cr
// still those of login, and may login still have the operation.
//
// What has to be asked is asked at the cost of login's re-checks, which have turns and calls of their own: no look-up that
// anybody makes by new requests, the caller and his address included, makes a re-check wait or fail. Otherwise who is about
// to lose a right would see to it that nobody asks.
//
// Errors are those of Authorize, ErrUnauthenticated if cr are nobody's any more or somebody else's, and ErrAuthOff. IsAway
// tells the ErrUnavailable of an outage from others.
func (a *Authorizer) Recheck(ctx context.Context, login string, cr ytclient.Credentials, operationID string, perms []ytclient.Permission) (Decision, error) {
	p := party{login: login, again: true}
	identity, err := a.authenticate(ctx, p, cr)
	if err != nil {
		return Decision{}, err
	}
	if identity.Login != login {
		return Decision{}, fmt.Errorf("%w: they are those of %.64q now", ErrUnauthenticated, identity.Login)
	}
	d, err := a.authorize(ctx, p, operationID, perms)
	d.Cached = d.Cached && identity.Cached
	if err == nil {
		d.Held = d.Held || identity.Held
		if identity.Expires.Before(d.Expires) {
			d.Expires = identity.Expires
		}
	}
	return d, err
}
