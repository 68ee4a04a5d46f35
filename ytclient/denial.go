package ytclient

import (
	"context"

	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yt"
)

// DeniedBy asks which entry of an ACL denies a user a right on a node: the subject that it names, which is the user or one of
// its groups, and the object in whose ACL it stands, in the cluster's words ("node //sys"). Both are empty when the user has
// the right, when nobody has given it, and when the cluster does not say.
//
// Errors: as CheckPermission.
func (c *Client) DeniedBy(ctx context.Context, login, path string, p Permission) (subject, object string, err error) {
	err = c.do(ctx, "check_permission", func(ctx context.Context) error {
		r, err := c.yc.CheckPermission(ctx, login, yt.Permission(p), ypath.Path(path), nil)
		if err == nil && r != nil && r.Action == yt.ActionDeny && r.SubjectName != nil && r.ObjectName != nil {
			subject, object = *r.SubjectName, *r.ObjectName
		}
		return err
	})
	return subject, object, err
}
