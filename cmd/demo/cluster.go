package main

import (
	"context"
	"fmt"
	"log/slog"

	"taskproxy/ytclient/ytlocal"
)

const (
	robot         = "robot-task-proxy" // the proxy's own user
	proxyDir      = "//sys/task_proxies"
	servicesTable = proxyDir + "/services"
)

// user is somebody with credentials for the cluster. The tags are the ready file's.
type user struct {
	Login      string `json:"login"`
	Token      string `json:"token"`
	CookieName string `json:"cookie_name"`
	Cookie     string `json:"cookie"`
}

// cluster is the local cluster, running.
type cluster struct {
	url       string
	rootToken string
	users     []user

	local *ytlocal.Cluster
}

func startCluster(listen, dir string, logger *slog.Logger, getenv func(string) string) (*cluster, error) {
	local, err := ytlocal.Start(ytlocal.Config{
		Listen:     listen,
		StateDir:   dir,
		Logger:     logger,
		JobEnviron: jobEnviron(getenv),
	})
	if err != nil {
		return nil, fmt.Errorf("start the local cluster: %w", err)
	}
	return &cluster{url: local.URL(), rootToken: local.RootToken(), local: local}, nil
}

// jobEnviron is what jobs get of the demo's environment: enough to find programs, and none of the secrets that an
// environment may hold. Their HOME is their sandbox. The samples listen on loopback only: all there is to reach them is on
// this machine, and past the proxy nobody asks who is calling.
func jobEnviron(getenv func(string) string) []string {
	environ := []string{"LISTEN_HOST=127.0.0.1"}
	for _, name := range []string{"PATH", "LANG"} {
		if value := getenv(name); value != "" {
			environ = append(environ, name+"="+value)
		}
	}
	return environ
}

// close ends every job and the cluster, and waits for both.
func (c *cluster) close() error {
	if err := c.local.Close(); err != nil {
		return fmt.Errorf("end the local cluster: %w", err)
	}
	return nil
}

// addUsers gives each login a token and a cookie of this run.
func (c *cluster) addUsers(logins ...string) error {
	for _, login := range logins {
		added, err := c.local.AddUser(login)
		if err != nil {
			return fmt.Errorf("add user %s: %w", login, err)
		}
		c.users = append(c.users, user{Login: login, Token: added.Token, CookieName: added.CookieName, Cookie: added.Cookie})
	}
	return nil
}

// user returns the user of the login; it must have been added.
func (c *cluster) user(login string) user {
	for _, user := range c.users {
		if user.Login == login {
			return user
		}
	}
	panic("no user " + login)
}

// as returns a client that asks as the user.
func (c *cluster) as(login string) *client { return &client{url: c.url, token: c.user(login).Token} }

// install does what the installation guide tells an administrator to do for the proxy's user, and no more: a right that
// the proxy needs and does not get here is a right that an installation would miss.
func (c *cluster) install(ctx context.Context) error {
	root := &client{url: c.url, token: c.rootToken}
	directory := map[string]any{"path": proxyDir, "type": "map_node", "ignore_existing": true}
	if _, err := root.change(ctx, "create", directory); err != nil {
		return err
	}
	for _, grant := range []struct {
		path        string
		permissions []string
	}{
		{"//sys/operations", []string{"read"}},
		{"//sys/accounts/sys", []string{"use"}},
		{proxyDir, []string{"read", "write", "create", "remove"}},
	} {
		entry := map[string]any{"action": "allow", "subjects": []string{robot}, "permissions": grant.permissions}
		if err := root.set(ctx, grant.path+"/@acl/end", entry); err != nil {
			return fmt.Errorf("grant %q on %s: %w", grant.permissions, grant.path, err)
		}
	}
	return nil
}
