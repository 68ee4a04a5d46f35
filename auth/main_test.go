package auth

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"taskproxy/ytclient"
)

// nowhere is the address of callers for whom it makes no difference.
var nowhere netip.Addr

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster answers as its fields say, and counts. A nil field knows one user, alice, who may everything.
type cluster struct {
	whoAmI func(ctx context.Context, cr ytclient.Credentials) (string, error)
	check  func(ctx context.Context, login, operationID string, p ytclient.Permission) (bool, error)

	whoAmIs, checks atomic.Int64
}

var _ Cluster = (*cluster)(nil)

func (c *cluster) WhoAmI(ctx context.Context, cr ytclient.Credentials) (string, error) {
	c.whoAmIs.Add(1)
	if c.whoAmI == nil {
		return "alice", nil
	}
	return c.whoAmI(ctx, cr)
}

func (c *cluster) CheckOperationPermission(ctx context.Context, login, operationID string, p ytclient.Permission) (bool, error) {
	c.checks.Add(1)
	if c.check == nil {
		return true, nil
	}
	return c.check(ctx, login, operationID, p)
}

// newAuthorizer is New with a cluster that answers, closed at the end of the test.
func newAuthorizer(t testing.TB, cfg Config) *Authorizer {
	t.Helper()
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

func token(secret string) ytclient.Credentials {
	return ytclient.Credentials{Kind: ytclient.OAuth, Secret: secret}
}

var read = []ytclient.Permission{ytclient.Read}
