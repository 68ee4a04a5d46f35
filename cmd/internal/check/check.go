package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"taskproxy/auth"
	"taskproxy/cmd/internal/serve"
	"taskproxy/ytclient"
)

// Run tries the cluster of cfg and writes what it finds to out, a line each. good is true when nothing is missing and every
// question that had to be was answered. What exceeds and what is only a warning does not count against it.
//
// The error says why it could not begin (the token's file, the address) or that out cannot be written to.
func Run(ctx context.Context, cfg serve.Config, out io.Writer, logger *slog.Logger) (good bool, err error) {
	token, err := serve.RobotToken(cfg, logger)
	if err != nil {
		return false, err
	}
	client, err := ytclient.New(ytclient.Config{Proxy: cfg.YTProxy, Token: token, CA: cfg.YTCA})
	if err != nil {
		return false, fmt.Errorf("--yt-proxy: %w", err)
	}
	defer client.Close()
	c := &checker{client: client, cfg: cfg, report: &report{out: out, counts: map[string]int{}}}
	if c.robot(ctx, token) {
		c.authentication(ctx)
		super := c.groups(ctx)
		c.operations(ctx)
		c.execNodes(ctx)
		c.table(ctx)
		c.spyt()
		if !super {
			c.excess(ctx)
		}
		c.cors(ctx)
		c.cookie(ctx)
	}
	good = c.report.sum()
	return good, c.report.err
}

type checker struct {
	*report
	client *ytclient.Client
	cfg    serve.Config
	login  string   // the robot's
	member []string // the groups that it is in, as far as the cluster says
}

// robot asks who we are. Without an answer nothing else can be asked.
func (c *checker) robot(ctx context.Context, source func() (string, error)) bool {
	token, err := source()
	if err == nil {
		c.login, err = c.client.WhoAmI(ctx, ytclient.Credentials{Kind: ytclient.OAuth, Secret: token})
	}
	switch {
	case errors.Is(err, ytclient.ErrUnauthenticated), errors.Is(err, ytclient.ErrDenied):
		c.line(missing, fmt.Sprintf("a token that %s knows: it refuses the one in %s", c.client.URL(), c.cfg.YTTokenPath),
			"yt issue-token robot-task-proxy > "+shellWord(c.cfg.YTTokenPath))
		return false
	case err != nil:
		c.failed++
		c.line(unknown, "whose the token is: "+cut(err.Error()), "is --yt-proxy="+c.cfg.YTProxy+" right, and can it be reached from here?")
		return false
	}
	c.ok("%s answers and knows the token: it is %s's", c.client.URL(), c.login)
	return true
}

// authentication makes sure that the cluster refuses credentials that nobody has.
func (c *checker) authentication(ctx context.Context) {
	switch err := auth.CheckClusterAuth(ctx, c.client); {
	case err == nil:
		c.ok("the cluster refuses a token that nobody has")
	case !errors.Is(err, auth.ErrAuthOff):
		c.unanswered("whether the cluster refuses a token that nobody has", err)
	case c.cfg.AuthEnabled:
		c.line(missing, "authentication: "+err.Error()+", so nobody could be kept out",
			"switch it on in the cluster (require_authentication of its HTTP proxies), or serve everybody with --auth-enabled=false")
	default:
		c.line(warning, err.Error()+", and --auth-enabled=false lets everybody in", "")
	}
}

// groups asks which ones the robot is in, and looks for the one that no ACL binds.
func (c *checker) groups(ctx context.Context) (super bool) {
	var err error
	c.member, err = c.client.Groups(ctx, c.login)
	switch {
	case c.login == "root" || slices.Contains(c.member, "superusers"):
		how := "yt remove-member " + shellWord(c.login) + " superusers"
		if c.login == "root" {
			how = "give it a robot of its own: yt create user --attr '{name=robot-task-proxy}'"
		}
		c.line(excess, c.login+" is a superuser: whoever has its token has the cluster", how)
		return true
	case err != nil:
		c.line(unknown, "whether "+c.login+" is a superuser: "+cut(err.Error()), "")
	default:
		c.ok("%s is no superuser", c.login)
	}
	return false
}

// right asks for one right. why is what the proxy does with it.
func (c *checker) right(ctx context.Context, p ytclient.Permission, path, why string) (has bool) {
	what := fmt.Sprintf("%s on %s: %s", p, path, why)
	has, err := c.client.CheckPermission(ctx, c.login, path, p)
	switch {
	case err != nil:
		c.unanswered(what, err)
	case has:
		c.ok("%s", what)
	default:
		c.lacks(ctx, p, path, what)
	}
	return has
}

// spyt says what cannot be looked at beforehand.
func (c *checker) spyt() {
	c.line(unknown, "read on the discovery paths of standalone Spark clusters: each has one of its own, wherever its owner has put it",
		"where a cluster is not published: "+strings.Replace(grant("PATH", c.login, "read"), "PATH", "<discovery path>", 1))
}
