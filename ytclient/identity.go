package ytclient

import (
	"context"
	"fmt"

	"go.ytsaurus.tech/yt/go/yt"
)

// WhoAmI asks the cluster, with the caller's credentials, whose they are. The login is never empty.
//
// Errors: ErrUnauthenticated when the cluster refuses them, ErrDenied when the user is banned, ErrOverloaded,
// ErrUnavailable.
func (c *Client) WhoAmI(ctx context.Context, cr Credentials) (login string, err error) {
	err = c.do(ctx, "whoami", func(ctx context.Context) error {
		r, err := c.yc.WhoAmI(yt.WithCredentials(ctx, wireCredentials{cr}), nil)
		if err != nil {
			return err
		}
		if r == nil || r.Login == "" {
			return fmt.Errorf("%w: it has no login", ErrOddAnswer)
		}
		login = r.Login
		return nil
	})
	return login, err
}

// CheckOperationPermission asks the cluster, as the robot, whether the user may have the operation. Only a plain "allow"
// is a yes and only a plain "deny" is a no; everything else is an error and decides nothing.
//
// Errors: ErrNoSuchOperation, ErrOverloaded, ErrUnavailable, ErrRejected (a user that the cluster does not know, say), and
// ErrUnauthenticated or ErrDenied when it is our own robot that is refused.
func (c *Client) CheckOperationPermission(ctx context.Context, login, operationID string, p Permission) (allowed bool, err error) {
	err = c.do(ctx, "check_operation_permission", func(ctx context.Context) error {
		id, err := parseID(operationID)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNoSuchOperation, err)
		}
		r, err := c.yc.CheckOperationPermission(ctx, yt.OperationID(id), login, yt.Permission(p), nil)
		if err != nil && brokenConnection(err) && ctx.Err() == nil {
			// The SDK tries this call only once. It changes nothing, so a kept-alive connection that the cluster had closed
			// deserves another.
			r, err = c.yc.CheckOperationPermission(ctx, yt.OperationID(id), login, yt.Permission(p), nil)
		}
		switch {
		case err != nil:
			return err
		case r == nil:
			return fmt.Errorf("%w: it is empty", ErrOddAnswer)
		case r.Action == yt.ActionAllow:
			allowed = true
		case r.Action != yt.ActionDeny:
			return fmt.Errorf("%w: its action is %.32q, neither allow nor deny", ErrOddAnswer, r.Action)
		}
		return nil
	})
	return allowed, err
}
