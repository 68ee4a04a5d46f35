package ytlocal

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"regexp"
	"slices"

	"go.ytsaurus.tech/yt/go/yterrors"
)

// User is somebody who may talk to the cluster. Its secrets are made anew in every run, and it prints without them.
type User struct {
	Login      string
	Token      string // for Authorization: OAuth or Bearer
	CookieName string // YTCypressCookie
	Cookie     string
}

// String is the login alone.
func (u User) String() string { return u.Login + " [redacted]" }

// GoString is String, so that %#v hides the secrets as well.
func (u User) GoString() string { return u.String() }

// LogValue is String: a secret never reaches a log.
func (u User) LogValue() slog.Value { return slog.StringValue(u.String()) }

// CookieName is the cookie that the cluster's own login hands out.
const CookieName = "YTCypressCookie"

// Names that every cluster knows.
const (
	rootUser   = "root"
	everyone   = "everyone"
	usersGroup = "users"
	superusers = "superusers"
)

// member is a user or a group. Guarded by Cluster.mu.
type member struct {
	node   *node
	groups map[string]struct{} // that it is directly in
}

// subjectName is what a user or a group may be called.
var subjectName = regexp.MustCompile(`^[A-Za-z0-9_.@-]{1,128}$`)

// secret makes a token or cookie value: 128 bits that nobody guesses.
func secret() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// digest is the form in which secrets are kept and looked up.
func digest(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// AddUser creates a user with a token and a cookie. The login must be new.
func (c *Cluster) AddUser(login string) (User, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.addUser(login); err != nil {
		return User{}, err
	}
	return c.credentials(login), nil
}

// credentials gives a user a new token and a new cookie.
func (c *Cluster) credentials(login string) User {
	u := User{Login: login, Token: secret(), CookieName: CookieName, Cookie: secret()}
	c.tokens[digest(u.Token)] = login
	c.cookies[digest(u.Cookie)] = login
	return u
}

// addUser creates a user without credentials, and its node.
func (c *Cluster) addUser(login string) (*node, error) {
	n, err := c.addSubject("user", login)
	if err != nil {
		return nil, err
	}
	c.users[login] = &member{node: n, groups: map[string]struct{}{usersGroup: {}}}
	n.attrs["banned"] = false
	n.computed = func() map[string]any {
		return map[string]any{
			"name": login, "member_of": anyList(c.directGroups(c.users[login])),
			"member_of_closure": anyList(sortedKeys(c.closure(login))),
		}
	}
	return n, nil
}

// addGroup creates a group without members, and its node.
func (c *Cluster) addGroup(name string) (*node, error) {
	n, err := c.addSubject("group", name)
	if err != nil {
		return nil, err
	}
	c.groups[name] = &member{node: n, groups: map[string]struct{}{}}
	n.computed = func() map[string]any {
		return map[string]any{
			"name": name, "members": anyList(c.members(name)), "member_of": anyList(c.directGroups(c.groups[name])),
		}
	}
	return n, nil
}

// addSubject makes the node of a user or group under //sys/users or //sys/groups.
func (c *Cluster) addSubject(kind, name string) (*node, error) {
	if !subjectName.MatchString(name) {
		return nil, fail(yterrors.CodeGeneric, "%s name %.64q must be 1 to 128 letters, digits, dots, dashes, underscores or @", kind, name)
	}
	if c.users[name] != nil || c.groups[name] != nil {
		return nil, fail(yterrors.CodeAlreadyExists, "User or group %q already exists", name)
	}
	n := c.newNode(kind, nil)
	c.attach(c.mustFind("//sys/"+kind+"s"), name, n)
	return n, nil
}

// directGroups of a user or group, sorted.
func (c *Cluster) directGroups(m *member) []string { return sortedKeys(m.groups) }

// members of a group, users first, both sorted.
func (c *Cluster) members(group string) []string {
	var out []string
	for _, all := range []map[string]*member{c.users, c.groups} {
		for _, name := range sortedKeys(all) {
			if _, ok := all[name].groups[group]; ok {
				out = append(out, name)
			}
		}
	}
	return out
}

// closure is every group that a user is in, directly or through groups.
func (c *Cluster) closure(user string) map[string]struct{} {
	all := map[string]struct{}{}
	var add func(m *member)
	add = func(m *member) {
		for group := range m.groups {
			if _, seen := all[group]; seen {
				continue
			}
			all[group] = struct{}{}
			if g := c.groups[group]; g != nil {
				add(g)
			}
		}
	}
	if m := c.users[user]; m != nil {
		all[everyone] = struct{}{}
		add(m)
	}
	return all
}

// isMember reports whether subject is the user or a group that the user is in.
func (c *Cluster) isMember(user, subject string) bool {
	if user == subject {
		return true
	}
	_, ok := c.closure(user)[subject]
	return ok
}

// isSuperuser reports whether ACLs do not bind the user.
func (c *Cluster) isSuperuser(user string) bool { return c.isMember(user, superusers) }

// isBanned reports whether the user was banned by its attribute.
func (c *Cluster) isBanned(user string) bool {
	m := c.users[user]
	if m == nil {
		return true
	}
	banned, _ := m.node.attrs["banned"].(bool)
	return banned
}

// mustBeSuper is nil for superusers only: what it guards is a right on schemas, which nobody else has here.
func (k *call) mustBeSuper(permission, what string) error {
	if k.c.isSuperuser(k.user) {
		return nil
	}
	return denied(k.user, permission, what)
}

// membership reads the parameters of add_member and remove_member.
func (k *call) membership() (*member, string, error) {
	group, err := k.params.need("group")
	if err != nil {
		return nil, "", err
	}
	name, err := k.params.need("member")
	if err != nil {
		return nil, "", err
	}
	if k.c.groups[group] == nil {
		return nil, "", fail(yterrors.CodeNoSuchSubject, "No such group %.64q", group)
	}
	if group == everyone || group == usersGroup {
		return nil, "", fail(yterrors.CodeGeneric, "Cannot change members of built-in group %q", group)
	}
	m := k.c.users[name]
	if m == nil {
		m = k.c.groups[name]
	}
	if m == nil {
		return nil, "", fail(yterrors.CodeNoSuchSubject, "No such user or group %.64q", name)
	}
	return m, group, k.mustBeSuper("write", "group "+group)
}

func runAddMember(k *call) (any, error) {
	m, group, err := k.membership()
	if err != nil {
		return nil, err
	}
	if _, ok := m.groups[group]; ok {
		return nil, fail(yterrors.CodeGeneric, "Already a member of group %q", group)
	}
	m.groups[group] = struct{}{}
	return map[string]any{}, nil
}

func runRemoveMember(k *call) (any, error) {
	m, group, err := k.membership()
	if err != nil {
		return nil, err
	}
	if _, ok := m.groups[group]; !ok {
		return nil, fail(yterrors.CodeGeneric, "Not a member of group %q", group)
	}
	delete(m.groups, group)
	return map[string]any{}, nil
}

// tokenOwner reads the user whose tokens a command is about. Passwords do not exist here, so only superusers may.
func (k *call) tokenOwner() (string, error) {
	user, err := k.params.need("user")
	if err != nil {
		return "", err
	}
	if err := k.mustBeSuper("administer", "tokens of user "+user); err != nil {
		return "", err
	}
	if k.c.users[user] == nil {
		return "", fail(yterrors.CodeResolveError, "No such user %.64q", user)
	}
	return user, nil
}

func runIssueToken(k *call) (any, error) {
	user, err := k.tokenOwner()
	if err != nil {
		return nil, err
	}
	token := secret()
	k.c.tokens[digest(token)] = user
	return token, nil
}

func runRevokeToken(k *call) (any, error) {
	user, err := k.tokenOwner()
	if err != nil {
		return nil, err
	}
	hash, err := k.params.need("token_sha256")
	if err != nil {
		return nil, err
	}
	if k.c.tokens[hash] != user {
		return nil, fail(yterrors.CodeGeneric, "User %q has no such token", user)
	}
	delete(k.c.tokens, hash)
	return map[string]any{}, nil
}

func runListUserTokens(k *call) (any, error) {
	user, err := k.tokenOwner()
	if err != nil {
		return nil, err
	}
	var hashes []string
	for hash, owner := range k.c.tokens {
		if owner == user {
			hashes = append(hashes, hash)
		}
	}
	slices.Sort(hashes)
	return anyList(hashes), nil
}

func runGetCurrentUser(k *call) (any, error) { return map[string]any{"user": k.user}, nil }

// removeSubject forgets a user or a group whose node is being removed.
func (c *Cluster) removeSubject(n *node) {
	switch n.typ {
	case "user":
		delete(c.users, n.key)
		for _, secrets := range []map[string]string{c.tokens, c.cookies} {
			for hash, owner := range secrets {
				if owner == n.key {
					delete(secrets, hash)
				}
			}
		}
	case "group":
		delete(c.groups, n.key)
		for _, all := range []map[string]*member{c.users, c.groups} {
			for _, m := range all {
				delete(m.groups, n.key)
			}
		}
	}
}
