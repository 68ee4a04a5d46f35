package ytlocal

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.ytsaurus.tech/yt/go/yterrors"
)

// identity is who a request comes from.
type identity struct {
	login  string
	realm  string
	cookie bool // proved by a cookie, which a browser sends by itself
}

// csrfLife is how long a CSRF token is good for.
const csrfLife = 7 * 24 * time.Hour

// authenticate finds out who sent the request. Errors carry the status of the real proxy's authenticator.
func (c *Cluster) authenticate(r *http.Request) (identity, error) {
	if c.config.AuthOff {
		// As with require_authentication=false: nobody looks at credentials.
		return c.impersonate(r, identity{login: rootUser, realm: "YT"})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if header := r.Header.Get("Authorization"); header != "" {
		token, ok := strings.CutPrefix(header, "OAuth ")
		if !ok {
			token, ok = strings.CutPrefix(header, "Bearer ")
		}
		if !ok {
			return identity{}, failStatus(http.StatusUnauthorized, yterrors.CodeInvalidCredentials, "Malformed Authorization header")
		}
		if token = strings.TrimSpace(token); token != "" {
			login, ok := c.tokens[digest(token)]
			if !ok {
				return identity{}, failStatus(http.StatusUnauthorized, yterrors.CodeAuthenticationError, "Request authentication failed: no such token")
			}
			return c.impersonateLocked(r, identity{login: login, realm: "cypress:token"})
		}
	}
	if cookie, err := r.Cookie(CookieName); err == nil {
		login, ok := c.cookies[digest(cookie.Value)]
		if !ok {
			return identity{}, failStatus(http.StatusUnauthorized, yterrors.CodeAuthenticationError, "Request authentication failed: no such cookie")
		}
		return identity{login: login, realm: "cypress:cookie", cookie: true}, nil
	}
	return identity{}, failStatus(http.StatusUnauthorized, yterrors.CodeInvalidCredentials, "Client is missing credentials")
}

// impersonate lets a superuser act as somebody else by X-YT-User-Name.
func (c *Cluster) impersonate(r *http.Request, id identity) (identity, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.impersonateLocked(r, id)
}

func (c *Cluster) impersonateLocked(r *http.Request, id identity) (identity, error) {
	as := r.Header.Get("X-YT-User-Name")
	if as == "" || as == id.login {
		return id, nil
	}
	if !c.isSuperuser(id.login) {
		return identity{}, failStatus(http.StatusForbidden, yterrors.CodeAuthenticationError, "User %q may not impersonate %.64q", id.login, as)
	}
	if c.users[as] == nil {
		return identity{}, failStatus(http.StatusForbidden, yterrors.CodeNoSuchSubject, "No such user %.64q", as)
	}
	id.login = as
	return id, nil
}

// checkCSRF demands proof that the page which sent a cookie also can read our answers. Requests that only read, and
// those with a token, need none.
func (c *Cluster) checkCSRF(r *http.Request, id identity) error {
	if !id.cookie || r.Method == http.MethodGet || r.Method == http.MethodHead {
		return nil
	}
	values := r.Header.Values("X-Csrf-Token")
	if len(values) == 0 {
		return failStatus(http.StatusUnauthorized, yterrors.CodeInvalidCredentials, "CSRF token is missing")
	}
	_, stamp, ok := strings.Cut(values[0], ":")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if !ok || err != nil {
		return failStatus(http.StatusServiceUnavailable, yterrors.CodeGeneric, "Malformed CSRF token")
	}
	at := time.Unix(seconds, 0)
	if !hmac.Equal([]byte(values[0]), []byte(c.csrfToken(id.login, at))) {
		return failStatus(http.StatusUnauthorized, yterrors.CodeInvalidCsrfToken, "Invalid CSRF token signature")
	}
	if c.now().Sub(at) > csrfLife {
		return failStatus(http.StatusUnauthorized, yterrors.CodeInvalidCsrfToken, "CSRF token has expired")
	}
	return nil
}

// csrfToken of a user, made at the given moment.
func (c *Cluster) csrfToken(login string, at time.Time) string {
	stamp := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, c.csrfKey)
	mac.Write([]byte(login + ":" + stamp))
	return hex.EncodeToString(mac.Sum(nil)) + ":" + stamp
}

// checkBanned is run for commands, but not for whoami.
func (c *Cluster) checkBanned(login string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isBanned(login) {
		return failStatus(http.StatusForbidden, yterrors.CodeUserBanned, "User %q is banned", login)
	}
	return nil
}

// serveWhoAmI answers /auth/whoami: any method, JSON, errors in the body only, and no CSRF token needed.
func (c *Cluster) serveWhoAmI(w http.ResponseWriter, r *http.Request) {
	id, err := c.authenticate(r)
	if err != nil {
		status, e := asYT(err)
		writeErrorBody(w, status, e)
		return
	}
	writeJSON(w, map[string]any{"login": id.login, "realm": id.realm, "csrf_token": c.csrfToken(id.login, c.now())})
}

// writeJSON answers with a value of our own making.
func writeJSON(w http.ResponseWriter, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		writeError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b)
}
