package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"taskproxy/ytclient"
)

// operations looks at what discovery and the gate ask about operations.
func (c *checker) operations(ctx context.Context) {
	const base = "//sys/operations"
	if !c.right(ctx, ytclient.Read, base, "see the operations of others, their jobs, and who may read them") {
		return
	}
	listing, err := c.client.ListOperations(ctx)
	if err != nil {
		c.denied(ctx, "list_operations", base, err)
		return
	}
	c.ok("list_operations: %d running", len(listing.Operations))
	// One that nobody has started is answered as well: there is no such operation.
	id, user := "1-1-3e803e8-1", c.login
	if len(listing.Operations) > 0 {
		id, user = listing.Operations[0].ID, listing.Operations[0].User
		if _, err := c.client.ListJobs(ctx, id); gone(err) {
			c.ok("list_jobs")
		} else {
			c.denied(ctx, "list_jobs of operation "+id, base, err)
		}
	}
	if _, err := c.client.CheckOperationPermission(ctx, user, id, ytclient.Read); gone(err) {
		c.ok("check_operation_permission for others")
	} else {
		c.denied(ctx, "check_operation_permission for others", base, err)
	}
}

// gone reports whether a call succeeded, or failed only because the operation is not there (any more).
func gone(err error) bool { return err == nil || errors.Is(err, ytclient.ErrNoSuchOperation) }

// denied is the line for a call that failed: with what brings read on path if a right is what it lacks.
func (c *checker) denied(ctx context.Context, what, path string, err error) {
	if errors.Is(err, ytclient.ErrDenied) {
		c.lacks(ctx, ytclient.Read, path, "read on "+path+": "+what+" is denied")
		return
	}
	c.unanswered(what, err)
}

// execNodes asks one of them for its jobs, as discovery does for their ports.
func (c *checker) execNodes(ctx context.Context) {
	const nodes = "//sys/exec_nodes"
	answers, err := c.client.ListChildren(ctx, []string{nodes})
	if err == nil {
		err = answers[0].Err
	}
	if err != nil {
		c.denied(ctx, "list the exec nodes", nodes, err)
		return
	}
	const most = 5 // nodes that do not answer: one that is off says nothing about rights
	err = errors.New("the cluster has none")
	for _, address := range answers[0].Names[:min(most, len(answers[0].Names))] {
		if _, err = c.client.NodeJobs(ctx, address); err == nil || errors.Is(err, ytclient.ErrDenied) {
			break
		}
	}
	if err != nil {
		c.denied(ctx, "the orchid of an exec node, which tells the ports of its jobs", nodes, err)
		return
	}
	c.ok("read on %s: an exec node tells the ports of its jobs", nodes)
}

// table looks at the services table and its directory.
func (c *checker) table(ctx context.Context) {
	path := c.cfg.TablePath
	dir := path[:strings.LastIndexByte(path, '/')]
	there, err := c.client.Exists(ctx, dir)
	if err != nil {
		c.unanswered("the directory "+dir, err)
		return
	}
	if !there {
		c.noDirectory(ctx, dir)
		return
	}
	all := true
	for _, need := range []struct {
		p   ytclient.Permission
		why string
	}{{ytclient.Read, "look at the services table"}, {ytclient.Write, "lock the directory, make the table in it and write it"}} {
		all = c.right(ctx, need.p, dir, need.why) && all
	}
	on := dir
	if there, err = c.client.Exists(ctx, path); err != nil {
		c.unanswered("the services table "+path, err)
	} else if there && all {
		// Asked only now: what the directory lacks its table lacks as well, and is cured there.
		on = path
		all = c.right(ctx, ytclient.Read, path, "know which names are taken, after a restart") && all
		all = c.right(ctx, ytclient.Write, path, "write the services") && all
	}
	all = c.account(ctx, on) && all
	if all {
		c.trial(ctx, dir)
	}
	if there && on == path {
		switch _, err := c.client.ServicesTable(path).ReadServices(ctx); {
		case errors.Is(err, ytclient.ErrRejected):
			c.line(missing, "a services table at "+path+": "+cut(err.Error()), "move away what is there, or give another --table-path")
		case err != nil && !errors.Is(err, ytclient.ErrDenied): // denied: said already
			c.unanswered("read the services table "+path, err)
		}
	}
	c.readers(ctx, on, path)
}

// account asks for the right to use the account that pays for the table.
func (c *checker) account(ctx context.Context, path string) bool {
	name, err := c.client.Account(ctx, path)
	if errors.Is(err, ytclient.ErrDenied) {
		return false // said already: it takes read on path
	}
	if err != nil {
		c.unanswered("the account of "+path, err)
		return false
	}
	return c.right(ctx, ytclient.Use, "//sys/accounts/"+name, "the table takes place on disks")
}

// noDirectory looks whether the proxy can make the directory itself.
func (c *checker) noDirectory(ctx context.Context, dir string) {
	parent, err := c.nearest(ctx, dir)
	may := false
	if err == nil {
		may, err = c.client.CheckPermission(ctx, c.login, parent, ytclient.Write)
	}
	switch {
	case err != nil:
		c.unanswered("whether the directory "+dir+" can be made", err)
		return
	case may:
		c.ok("the directory %s is not there yet; the proxy makes it, for it has write on %s", dir, parent)
	default:
		attributes := fmt.Sprintf("{acl=[%s]}", ace(c.login, "read", "write"))
		c.line(missing, "the directory "+dir+" of the services table",
			fmt.Sprintf("yt create map_node %s --recursive --attributes %s", shellWord(dir), shellWord(attributes)))
	}
	c.account(ctx, parent) // which pays for what is made below
}

// nearest is the closest node above path that exists; "/" does.
func (c *checker) nearest(ctx context.Context, path string) (string, error) {
	for {
		path = path[:strings.LastIndexByte(path, '/')]
		if path == "/" {
			return path, nil
		}
		there, err := c.client.Exists(ctx, path)
		if there || err != nil {
			return path, err
		}
	}
}

// trial does what a writer does, for what the rights alone do not tell: a full account, say.
func (c *checker) trial(ctx context.Context, dir string) {
	what := "lock " + dir + " and make a table there, in a transaction that is aborted"
	if err := c.client.ServicesTable(c.cfg.TablePath).TryWriter(ctx); errors.Is(err, ytclient.ErrDenied) || errors.Is(err, ytclient.ErrRejected) {
		c.line(missing, what, "the cluster says: "+cut(err.Error()))
	} else if err != nil {
		c.unanswered(what, err)
	} else {
		c.ok("%s", what)
	}
}

// readers looks whether users can look up addresses in the table: by on's ACL, which is the table's or, before that exists,
// its directory's.
func (c *checker) readers(ctx context.Context, on, table string) {
	what := "users can read the services table " + table
	acl, err := c.client.EffectiveACL(ctx, on)
	if err != nil {
		c.line(unknown, "whether "+what+": "+cut(err.Error()), "")
		return
	}
	can := false
	for _, a := range acl {
		counts := on == table || a.Inheritance != "object_only"
		if !counts || !slices.Contains(a.Permissions, ytclient.Read) ||
			!slices.Contains(a.Subjects, everyone) && !slices.Contains(a.Subjects, users) {
			continue
		}
		if can = !a.Deny; a.Deny {
			break // deny beats allow, wherever it stands
		}
	}
	if can {
		c.ok("%s", what)
		return
	}
	c.line(warning, "no ACL lets everyone or users read the services table "+table+", where they and Spark's clients look up addresses", grant(on, users, "read"))
}
