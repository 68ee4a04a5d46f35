package ytclient

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestLetsIn(t *testing.T) {
	t.Parallel()
	const origin = "https://x.tp.example.net"
	tests := []struct {
		name   string
		status int
		header map[string]string
		want   bool
		err    error
	}{
		{"named", 200, map[string]string{"Access-Control-Allow-Origin": origin, "Access-Control-Allow-Credentials": "true"}, true, nil},
		{"without the cookie", 200, map[string]string{"Access-Control-Allow-Origin": origin}, false, nil},
		{"anybody without the cookie", 200, map[string]string{"Access-Control-Allow-Origin": "*", "Access-Control-Allow-Credentials": "true"}, false, nil},
		{"somebody else", 200, map[string]string{"Access-Control-Allow-Origin": "https://ui.example.net", "Access-Control-Allow-Credentials": "true"}, false, nil},
		{"nothing", 404, nil, false, nil},
		{"a redirect to a login", 302, map[string]string{"Location": "/"}, false, nil},
		{"a broken proxy", 502, nil, false, ErrUnavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodOptions || r.Header.Get("Origin") != origin || r.Header.Get("Access-Control-Request-Method") != http.MethodPost ||
					r.Header.Get("Authorization") != "" || r.Header.Get("Cookie") != "" {
					t.Errorf("%s with %v", r.Method, r.Header)
				}
				for k, v := range tt.header {
					w.Header().Set(k, v)
				}
				w.WriteHeader(tt.status)
			})
			if got, err := c.LetsIn(t.Context(), origin); got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("LetsIn = %t, %v; want %t, %v", got, err, tt.want, tt.err)
			}
		})
	}
}

func TestLoginCookieDomain(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		proxies string            // what the cluster lists
		configs map[string]string // of each, answered to its get; a name without one answers 503
		want    string
		err     error
	}{
		{"a domain", `["a:80"]`, map[string]string{"a:80": `{cookie_generator={domain=".Example.net"}}`}, "example.net", nil},
		{"the host only", `["a:80"]`, map[string]string{"a:80": `{cookie_generator={domain=#}}`}, "", nil},
		{"by default", `["a:80"]`, map[string]string{"a:80": `{}`}, "", nil},
		{"no such cookie", `["a:80"]`, map[string]string{"a:80": `#`}, "", ErrNotFound},
		{"the second answers", `["a:80";"b:80"]`, map[string]string{"b:80": `{cookie_generator={domain="example.net"}}`}, "example.net", nil},
		{"none answers", `["a:80";"b:80"]`, nil, "", ErrUnavailable},
		{"no proxy", `[]`, nil, "", ErrNotFound},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/execute_batch") {
					io.WriteString(w, `{results=[{output={value=`+tt.proxies+`}}]}`)
					return
				}
				path, _ := params(t, r)["path"].(string)
				for name, config := range tt.configs {
					if strings.HasPrefix(path, "//sys/http_proxies/"+name+"/orchid/config/") {
						io.WriteString(w, `{value=`+config+`}`)
						return
					}
				}
				w.WriteHeader(http.StatusServiceUnavailable)
			})
			if got, err := c.LoginCookieDomain(t.Context()); got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("LoginCookieDomain = %q, %v; want %q, %v", got, err, tt.want, tt.err)
			}
		})
	}
}
