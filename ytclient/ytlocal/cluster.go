package ytlocal

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"taskproxy/ytclient/ytlocal/scheduler"
)

// Config of a Cluster.
type Config struct {
	// Listen is a host:port on loopback; empty means 127.0.0.1:0, any free port. Everything else is refused.
	Listen string
	// StateDir holds what jobs need on disk. It is created (0700) if missing; one that exists must belong to us and be
	// writable by nobody else. What is in it when the cluster closes is left to the caller. Required.
	StateDir string
	// Logger of the cluster; nil discards.
	Logger *slog.Logger
	// Nodes are the addresses of the pretended exec nodes; nil means 127.0.0.1:9012 and 127.0.0.1:9013.
	Nodes []string
	// AuthOff makes a cluster without authentication: everybody is root, with any credentials or none, and so may start
	// processes. For tests of what a client makes of such a cluster.
	AuthOff bool
	// NoKeepAlive closes every connection after one answer, so that a client that lives in pretended time (testing/synctest)
	// has none that is idle: while a goroutine waits for the network, that time stands still.
	NoKeepAlive bool
	// JobEnviron is the base environment of every job ("K=V"); nil means the scheduler's minimal one. The environment of
	// this process, with whatever secrets are in it, is not handed on.
	JobEnviron []string
	// CORSHostSuffixes are the ends of host names whose pages are told, when their browser asks, that they may call the cluster
	// with their visitor's cookie. They still may not. nil: no page is told so.
	CORSHostSuffixes []string
	// CookieDomain is what the configuration of the cluster's HTTP proxy shows as the Domain of the login cookie; empty: none.
	// Nobody is handed a cookie over the wire here.
	CookieDomain string
}

// Cluster is a running local cluster. Safe for concurrent use.
type Cluster struct {
	config    Config
	log       *slog.Logger
	commands  map[string]*command
	faults    *Faults
	scheduler *scheduler.Scheduler
	csrfKey   []byte
	rootToken string

	listener net.Listener
	server   *http.Server
	hosts    map[string]struct{} // the Host headers that mean us
	cancel   context.CancelFunc  // ends hanging handlers
	gate     sync.RWMutex        // held for reading by every handler
	closed   bool                // guarded by gate: nothing is answered any more
	served   chan struct{}       // closed when Serve has returned
	close    func() error

	mu       sync.Mutex // guards what follows, and all nodes, transactions and locks
	root     *node
	objects  map[string]*node
	txs      map[string]*transaction
	locks    map[string]*lock
	users    map[string]*member
	groups   map[string]*member
	tokens   map[string]string // digest -> login
	cookies  map[string]string // digest -> login
	revision uint64

	// Nodes that mean more than others.
	accounts, operations, transactions *node
}

// Start makes a cluster and serves it until Close. It returns when the cluster answers.
func Start(cfg Config) (*Cluster, error) {
	listener, err := listen(cfg.Listen)
	if err != nil {
		return nil, err
	}
	c, err := newCluster(cfg)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	c.plantProxy(listener.Addr().String())
	c.serve(listener)
	return c, nil
}

// newCluster makes a cluster that does not listen yet.
func newCluster(cfg Config) (*Cluster, error) {
	if cfg.Nodes == nil {
		cfg.Nodes = []string{"127.0.0.1:9012", "127.0.0.1:9013"}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	dir, err := stateDir(cfg.StateDir)
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		config: cfg, log: cfg.Logger, commands: commands(), faults: &Faults{calls: map[string]int{}},
		csrfKey: make([]byte, 32), served: make(chan struct{}),
		objects: map[string]*node{}, txs: map[string]*transaction{}, locks: map[string]*lock{},
		users: map[string]*member{}, groups: map[string]*member{}, tokens: map[string]string{}, cookies: map[string]string{},
	}
	_, _ = rand.Read(c.csrfKey) // never fails
	c.close = sync.OnceValue(c.shutdown)
	if err := c.plant(); err != nil {
		return nil, err
	}
	c.scheduler, err = scheduler.New(scheduler.Config{
		Dir: dir, Nodes: cfg.Nodes, Fetch: c.fetch, Environ: cfg.JobEnviron, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("starting the scheduler of the local cluster: %w", err)
	}
	return c, nil
}

// stateDir makes sure that nobody else can put anything into the state directory, and returns its private part.
func stateDir(dir string) (string, error) {
	if dir == "" {
		return "", errors.New("ytlocal: StateDir is required")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("creating the state directory of the local cluster: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return "", fmt.Errorf("state directory of the local cluster: %w", err)
	}
	if perm := info.Mode().Perm(); perm&0o022 != 0 {
		return "", fmt.Errorf("state directory %q of the local cluster can be written by others (mode %04o): use one of mode 0700", dir, perm)
	}
	private := filepath.Join(dir, "cluster")
	if err := os.Mkdir(private, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("creating the state directory of the local cluster: %w", err)
	}
	if info, err = os.Lstat(private); err != nil {
		return "", fmt.Errorf("state directory of the local cluster: %w", err)
	}
	if !info.IsDir() || info.Mode().Perm() != 0o700 {
		return "", fmt.Errorf("state directory %q of the local cluster must be a directory of mode 0700, not %v", private, info.Mode())
	}
	return private, nil
}

// now is the cluster's clock.
func (c *Cluster) now() time.Time { return time.Now() }

// open is an ACE that lets a group do everything with nodes but change their rights.
func open(group string) map[string]any {
	return map[string]any{
		"action": "allow", "subjects": []any{group},
		"permissions": []any{"read", "write", "create", "remove", "mount", "modify_children"},
	}
}

// grant is an ACE with one permission for one group.
func grant(group, permission string) map[string]any {
	return map[string]any{"action": "allow", "subjects": []any{group}, "permissions": []any{permission}}
}

// plant makes the tree that a new cluster has: //sys for the system, //home and //tmp for everybody.
func (c *Cluster) plant() error {
	dir := func(parent *node, key string, attrs map[string]any) *node {
		n := c.newNode("map_node", attrs)
		c.attach(parent, key, n)
		return n
	}
	c.root = c.newNode("map_node", map[string]any{"acl": []any{grant(everyone, "read")}, "account": "sys"})
	c.register(c.root)
	sys := dir(c.root, "sys", map[string]any{"cluster_name": "local"})
	dir(c.root, "home", map[string]any{"acl": []any{open(usersGroup)}, "account": "default"})
	dir(c.root, "tmp", map[string]any{"acl": []any{open(usersGroup)}, "account": "tmp"})
	c.accounts = dir(sys, "accounts", nil)
	// Nobody inherits a right on operations: what is granted here is granted on every one of them.
	c.operations = dir(sys, "operations", map[string]any{"acl": []any{}, "inherit_acl": false})
	c.transactions = dir(sys, "transactions", nil)
	dir(sys, "users", nil)
	dir(sys, "groups", nil)
	for _, kind := range []string{"cluster_nodes", "exec_nodes"} {
		nodes := dir(sys, kind, nil)
		for _, address := range c.config.Nodes {
			n := dir(nodes, address, map[string]any{"state": "online", "banned": false})
			orchid := c.newNode("orchid", nil)
			orchid.virtual = func(steps []string) any { return c.orchid(address, steps) }
			c.attach(n, "orchid", orchid)
		}
	}
	for _, group := range []string{everyone, usersGroup, superusers} {
		if _, err := c.addGroup(group); err != nil {
			return err
		}
	}
	for _, account := range []string{"sys", "tmp", "default"} {
		n, err := c.addAccount(account)
		if err != nil {
			return err
		}
		if account != "sys" {
			n.attrs["acl"] = []any{grant(usersGroup, "use")}
		}
	}
	if _, err := c.addUser(rootUser); err != nil {
		return err
	}
	c.users[rootUser].groups[superusers] = struct{}{}
	c.rootToken = c.credentials(rootUser).Token
	for _, n := range c.objects {
		n.builtin = true
	}
	return nil
}

// object finds what an id names: a node, a transaction or a lock; nil without any. Cluster.mu is held.
func (c *Cluster) object(id string) *node {
	if n := c.objects[id]; n != nil {
		return n
	}
	if t := c.txs[id]; t != nil {
		return &node{id: id, typ: "transaction", attrs: map[string]any{"acl": []any{grant(everyone, "read")}}, created: t.started, modified: t.started, computed: t.describe}
	}
	if l := c.locks[id]; l != nil {
		return &node{id: id, typ: "lock", attrs: map[string]any{"acl": []any{grant(everyone, "read")}}, computed: l.describe}
	}
	return nil
}

// RootToken is the token of root, who may do everything. It is new in every run.
func (c *Cluster) RootToken() string { return c.rootToken }

// Scheduler is what runs the cluster's operations.
func (c *Cluster) Scheduler() *scheduler.Scheduler { return c.scheduler }

// Faults makes the cluster misbehave.
func (c *Cluster) Faults() *Faults { return c.faults }

// Close ends all jobs, waits for them and for all calls, and stops listening. Closing twice does nothing more.
func (c *Cluster) Close() error { return c.close() }

func (c *Cluster) shutdown() error {
	// The listener goes first, so that nothing starts a job behind our back.
	err := c.server.Close()
	c.cancel()
	err = errors.Join(err, c.scheduler.Close())
	<-c.served
	// A connection that was accepted just before may still begin to be handled.
	c.gate.Lock()
	c.closed = true
	c.gate.Unlock()
	return err
}
