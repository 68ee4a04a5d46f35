package auth

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"taskproxy/ytclient"
)

const cookieName = "YTCypressCookie"

func oauth(secret string) ytclient.Credentials {
	return ytclient.Credentials{Kind: ytclient.OAuth, Secret: secret}
}

func bearer(secret string) ytclient.Credentials {
	return ytclient.Credentials{Kind: ytclient.Bearer, Secret: secret}
}

func cookie(secret string) ytclient.Credentials {
	return ytclient.Credentials{Kind: ytclient.Cookie, CookieName: cookieName, Secret: secret}
}

// request has the header lines, each "Name: value".
func request(t testing.TB, lines ...string) *http.Request {
	t.Helper()
	r := &http.Request{Header: http.Header{}, URL: &url.URL{}}
	for _, line := range lines {
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			t.Fatalf("no colon in %q", line)
		}
		r.Header.Add(name, strings.TrimPrefix(value, " "))
	}
	return r
}

func TestFromRequest(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", maxSecret)
	for _, tc := range []struct {
		name    string
		headers []string
		want    ytclient.Credentials
		source  Source
		err     error
	}{
		// Each rule by itself.
		{"nothing", nil, ytclient.Credentials{}, SourceNone, ErrNoCredentials},
		{"explicit oauth", []string{"x-yt-taskproxy-authorization: OAuth t"}, oauth("t"), SourceExplicit, nil},
		{"explicit bearer", []string{"x-yt-taskproxy-authorization: Bearer t"}, bearer("t"), SourceExplicit, nil},
		{"same-origin cookie", []string{"Sec-Fetch-Site: same-origin", "Cookie: YTCypressCookie=c"}, cookie("c"), SourceSameOriginCookie, nil},
		{"authorization oauth", []string{"Authorization: OAuth t"}, oauth("t"), SourceAuthorization, nil},
		{"authorization bearer", []string{"Authorization: Bearer t"}, bearer("t"), SourceAuthorization, nil},
		{"cookie", []string{"Cookie: YTCypressCookie=c"}, cookie("c"), SourceCookie, nil},
		{"bare cookie", []string{"Cookie: YTCypressCookie c"}, cookie("c"), SourceCookie, nil},

		// Their order.
		{"explicit before all", []string{"x-yt-taskproxy-authorization: OAuth e", "Sec-Fetch-Site: same-origin", "Cookie: YTCypressCookie=c", "Authorization: OAuth t"}, oauth("e"), SourceExplicit, nil},
		{"same-origin cookie before authorization", []string{"Authorization: Bearer service", "Sec-Fetch-Site: same-origin", "Cookie: YTCypressCookie=c"}, cookie("c"), SourceSameOriginCookie, nil},
		{"same-origin without cookie", []string{"Authorization: Bearer t", "Sec-Fetch-Site: same-origin", "Cookie: other=c"}, bearer("t"), SourceAuthorization, nil},
		{"authorization before cookie", []string{"Authorization: OAuth t", "Cookie: YTCypressCookie=c"}, oauth("t"), SourceAuthorization, nil},
		{"authorization before cookie, same-site", []string{"Authorization: OAuth t", "Sec-Fetch-Site: same-site", "Cookie: YTCypressCookie=c"}, oauth("t"), SourceAuthorization, nil},
		{"authorization before cookie, cross-site", []string{"Authorization: OAuth t", "Sec-Fetch-Site: cross-site", "Cookie: YTCypressCookie=c"}, oauth("t"), SourceAuthorization, nil},
		{"two fetch sites vouch for nothing", []string{"Authorization: OAuth t", "Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: cross-site", "Cookie: YTCypressCookie=c"}, oauth("t"), SourceAuthorization, nil},
		{"fetch site is exact", []string{"Authorization: OAuth t", "Sec-Fetch-Site: same-origin, x", "Cookie: YTCypressCookie=c"}, oauth("t"), SourceAuthorization, nil},
		{"basic belongs to the service", []string{"Authorization: Basic dTpw", "Cookie: YTCypressCookie=c"}, cookie("c"), SourceCookie, nil},
		{"basic alone", []string{"Authorization: Basic dTpw"}, ytclient.Credentials{}, SourceNone, ErrNoCredentials},
		{"longer scheme is another", []string{"Authorization: OAuth2 t"}, ytclient.Credentials{}, SourceNone, ErrNoCredentials},
		{"jupyter's scheme", []string{"Authorization: token t"}, ytclient.Credentials{}, SourceNone, ErrNoCredentials},
		{"two of other schemes", []string{"Authorization: Basic dTpw", "Authorization: Digest x", "Cookie: YTCypressCookie=c"}, cookie("c"), SourceCookie, nil},

		// Spelling of tokens.
		{"scheme in lower case", []string{"Authorization: oauth t"}, oauth("t"), SourceAuthorization, nil},
		{"scheme in upper case", []string{"x-yt-taskproxy-authorization: BEARER t"}, bearer("t"), SourceExplicit, nil},
		{"several spaces", []string{"Authorization:   OAuth   t  "}, oauth("t"), SourceAuthorization, nil},
		{"largest token", []string{"Authorization: OAuth " + big}, oauth(big), SourceAuthorization, nil},
		{"too large token", []string{"Authorization: OAuth x" + big, "Cookie: YTCypressCookie=c"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"empty token", []string{"Authorization: OAuth", "Cookie: YTCypressCookie=c"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"blank token", []string{"Authorization: Bearer  ", "Cookie: YTCypressCookie=c"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"two words", []string{"Authorization: OAuth a b"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"folded list", []string{"Authorization: OAuth a, OAuth b"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"tab for a space", []string{"Authorization: OAuth\tt", "Cookie: YTCypressCookie=c"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"colon for a space", []string{"Authorization: OAuth:t", "Cookie: YTCypressCookie=c"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"no-break space", []string{"Authorization: OAuth\u00a0t", "Cookie: YTCypressCookie=c"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"control byte", []string{"Authorization: OAuth a\x01b"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"line break", []string{"Authorization: OAuth a\r\nX: b"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"not ASCII", []string{"Authorization: OAuth tökén"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"repeated authorization", []string{"Authorization: OAuth a", "Authorization: OAuth b"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"repeated, the same", []string{"Authorization: OAuth a", "Authorization: OAuth a"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"repeated, one of the service's", []string{"Authorization: Basic dTpw", "Authorization: OAuth b"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},

		// A bad explicit header never gives way to something else.
		{"explicit repeated", []string{"x-yt-taskproxy-authorization: OAuth a", "x-yt-taskproxy-authorization: OAuth b"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"explicit empty", []string{"x-yt-taskproxy-authorization:", "Authorization: OAuth t"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"explicit basic", []string{"x-yt-taskproxy-authorization: Basic dTpw", "Authorization: OAuth t", "Cookie: YTCypressCookie=c"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"explicit without scheme", []string{"x-yt-taskproxy-authorization: t", "Authorization: OAuth t"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"explicit without token", []string{"x-yt-taskproxy-authorization: OAuth ", "Cookie: YTCypressCookie=c"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"underscores are another header", []string{"X_Yt_Taskproxy_Authorization: OAuth t"}, ytclient.Credentials{}, SourceNone, ErrNoCredentials},

		// Spelling of cookies: what any reader might take for the cookie is the cookie.
		{"among others", []string{"Cookie: a=1; YTCypressCookie=c; b=2"}, cookie("c"), SourceCookie, nil},
		{"in a second header", []string{"Cookie: a=1", "Cookie: YTCypressCookie=c"}, cookie("c"), SourceCookie, nil},
		{"spaces around", []string{"Cookie: a=1 ;\t YTCypressCookie \t=  c ;b=2"}, cookie("c"), SourceCookie, nil},
		{"no space between", []string{"Cookie: a=1;YTCypressCookie=c"}, cookie("c"), SourceCookie, nil},
		{"quoted", []string{`Cookie: YTCypressCookie="c"`}, cookie("c"), SourceCookie, nil},
		{"equals signs inside", []string{"Cookie: YTCypressCookie=c=="}, cookie("c=="), SourceCookie, nil},
		{"twice the same", []string{"Cookie: YTCypressCookie=c; YTCypressCookie=c", `Cookie: YTCypressCookie="c"`}, cookie("c"), SourceCookie, nil},
		{"beside nameless ones", []string{"Cookie: junk; =x; ;; YTCypressCookie=c"}, cookie("c"), SourceCookie, nil},
		{"another case is another cookie", []string{"Cookie: ytcypresscookie=c"}, ytclient.Credentials{}, SourceNone, ErrNoCredentials},
		{"longer name", []string{"Cookie: XYTCypressCookie=c; YTCypressCookie2=c; YTCypressCookie[]=c"}, ytclient.Credentials{}, SourceNone, ErrNoCredentials},
		{"inside another's value", []string{"Cookie: a=YTCypressCookie=c"}, ytclient.Credentials{}, SourceNone, ErrNoCredentials},
		{"empty", []string{"Cookie: YTCypressCookie="}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"empty in quotes", []string{`Cookie: YTCypressCookie=""`}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"empty, same-origin, beside a token", []string{"Cookie: YTCypressCookie=", "Sec-Fetch-Site: same-origin", "Authorization: OAuth t"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"lone quote", []string{`Cookie: YTCypressCookie="c`}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"space inside", []string{"Cookie: YTCypressCookie=c d"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"comma inside", []string{"Cookie: YTCypressCookie=c,d"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"backslash inside", []string{`Cookie: YTCypressCookie=c\d`}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"control byte inside", []string{"Cookie: YTCypressCookie=c\x00d"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"too large cookie", []string{"Cookie: YTCypressCookie=x" + big}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},

		// A sibling site plants a cookie of the same name, hoping to be taken for the victim or to make the victim its
		// own user. It cannot take the victim's away, so two are there.
		{"planted before", []string{"Cookie: YTCypressCookie=evil; YTCypressCookie=c"}, ytclient.Credentials{}, SourceNone, ErrAmbiguousCookie},
		{"planted after", []string{"Cookie: YTCypressCookie=c; YTCypressCookie=evil"}, ytclient.Credentials{}, SourceNone, ErrAmbiguousCookie},
		{"planted in another header", []string{"Cookie: YTCypressCookie=c", "Cookie: a=1; YTCypressCookie=evil"}, ytclient.Credentials{}, SourceNone, ErrAmbiguousCookie},
		{"planted with quotes", []string{`Cookie: YTCypressCookie=c; YTCypressCookie="evil"`}, ytclient.Credentials{}, SourceNone, ErrAmbiguousCookie},
		{"planted with spaces", []string{"Cookie: YTCypressCookie=c; YTCypressCookie = evil"}, ytclient.Credentials{}, SourceNone, ErrAmbiguousCookie},
		{"planted with bytes that a parser drops", []string{"Cookie: YTCypressCookie=c; YTCypressCookie=ev\x01il"}, ytclient.Credentials{}, SourceNone, ErrAmbiguousCookie},
		{"planted empty", []string{"Cookie: YTCypressCookie=; YTCypressCookie=c"}, ytclient.Credentials{}, SourceNone, ErrAmbiguousCookie},
		{"planted as a bare name", []string{"Cookie: YTCypressCookie; YTCypressCookie=c"}, ytclient.Credentials{}, SourceNone, ErrAmbiguousCookie},
		{"planted, same-origin, beside a token", []string{"Cookie: YTCypressCookie=c; YTCypressCookie=evil", "Sec-Fetch-Site: same-origin", "Authorization: OAuth t"}, ytclient.Credentials{}, SourceNone, ErrAmbiguousCookie},
		{"planted, but the token counts", []string{"Cookie: YTCypressCookie=c; YTCypressCookie=evil", "Authorization: OAuth t"}, oauth("t"), SourceAuthorization, nil},
		{"planted, but the explicit header counts", []string{"Cookie: YTCypressCookie=c; YTCypressCookie=evil", "x-yt-taskproxy-authorization: OAuth e"}, oauth("e"), SourceExplicit, nil},

		// The documented spelling without "=", which a browser can be made to send by a nameless cookie.
		{"bare, several spaces", []string{"Cookie:  YTCypressCookie   c "}, cookie("c"), SourceCookie, nil},
		{"bare beside a cookie", []string{"Cookie: YTCypressCookie c; a=1"}, ytclient.Credentials{}, SourceNone, ErrNoCredentials},
		{"bare behind a cookie", []string{"Cookie: a=1; YTCypressCookie c"}, ytclient.Credentials{}, SourceNone, ErrNoCredentials},
		{"bare beside a header", []string{"Cookie: YTCypressCookie c", "Cookie: a=1"}, ytclient.Credentials{}, SourceNone, ErrNoCredentials},
		{"bare with equals sign", []string{"Cookie: YTCypressCookie c=d"}, ytclient.Credentials{}, SourceNone, ErrNoCredentials},
		{"bare without value", []string{"Cookie: YTCypressCookie "}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"bare without space", []string{"Cookie: YTCypressCookiec"}, ytclient.Credentials{}, SourceNone, ErrNoCredentials},
		{"bare with two words", []string{"Cookie: YTCypressCookie c d"}, ytclient.Credentials{}, SourceNone, ErrMalformedCredentials},
		{"bare from a page", []string{"Cookie: YTCypressCookie evil", "Origin: https://a.example"}, ytclient.Credentials{}, SourceNone, ErrNoCredentials},
		{"bare from a navigation", []string{"Cookie: YTCypressCookie evil", "Sec-Fetch-Mode: navigate"}, ytclient.Credentials{}, SourceNone, ErrNoCredentials},
		{"bare from a same-origin page", []string{"Cookie: YTCypressCookie evil", "Sec-Fetch-Site: same-origin"}, ytclient.Credentials{}, SourceNone, ErrNoCredentials},
		{"bare from a navigation over plain http", []string{"Cookie: YTCypressCookie evil", "Upgrade-Insecure-Requests: 1"}, ytclient.Credentials{}, SourceNone, ErrNoCredentials},
		{"bare does not beat a token", []string{"Cookie: YTCypressCookie c", "Authorization: OAuth t"}, oauth("t"), SourceAuthorization, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := FromRequest(request(t, tc.headers...), cookieName)
			if !errors.Is(err, tc.err) {
				t.Fatalf("error %v, want %v", err, tc.err)
			}
			if want := (Presented{tc.want, tc.source}); got != want {
				t.Errorf("got %v %q, want %v %q", got, got.Credentials.Secret, want, want.Credentials.Secret)
			}
		})
	}
}

// TestFromRequestOverTheWire sends what matters through net/http's own parsers, HTTP/1.1 and HTTP/2: the latter splits
// cookies and joins them again, and neither may join what must be seen apart.
func TestFromRequestOverTheWire(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, err := FromRequest(r, cookieName)
		fmt.Fprintf(w, "%d %v %s %v", r.ProtoMajor, got.Source, got.Credentials.Secret, err)
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	for major, set := range map[int]func(*http.Protocols){
		1: func(p *http.Protocols) { p.SetHTTP1(true) },
		2: func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
	} {
		transport := &http.Transport{Protocols: new(http.Protocols)}
		set(transport.Protocols)
		t.Cleanup(transport.CloseIdleConnections)
		for _, tc := range []struct {
			name    string
			headers []string
			want    string
		}{
			{"explicit", []string{"x-yt-taskproxy-authorization: OAuth e", "Authorization: OAuth t"}, "explicit e <nil>"},
			{"explicit twice", []string{"x-yt-taskproxy-authorization: OAuth e", "x-yt-taskproxy-authorization: OAuth f"},
				"none  malformed credentials: header X-Yt-Taskproxy-Authorization is there 2 times, want once"},
			{"authorization twice", []string{"Authorization: OAuth e", "Authorization: OAuth f"},
				"none  malformed credentials: header Authorization is there 2 times, want once"},
			{"cookies", []string{"Cookie: a=1; YTCypressCookie=c; b=2"}, "cookie c <nil>"},
			{"cookies in two headers", []string{"Cookie: a=1", "Cookie: YTCypressCookie=c"}, "cookie c <nil>"},
			{"planted", []string{"Cookie: YTCypressCookie=c", "Cookie: YTCypressCookie=d"}, "none  two different values of the login cookie"},
			{"bare", []string{"Cookie: YTCypressCookie c"}, "cookie c <nil>"},
			{"bare beside a cookie", []string{"Cookie: YTCypressCookie c", "Cookie: a=1"}, "none  no credentials"},
		} {
			r := request(t, tc.headers...).WithContext(t.Context())
			r.Method, r.URL = http.MethodGet, &url.URL{Scheme: "http", Host: server.Listener.Addr().String(), Path: "/"}
			resp, err := transport.RoundTrip(r)
			if err != nil {
				t.Fatalf("%s: %v", tc.name, err)
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if got, want := string(body), fmt.Sprintf("%d %s", major, tc.want); err != nil || got != want {
				t.Errorf("%s: got %q, %v, want %q", tc.name, got, err, want)
			}
		}
	}
}

func TestFromRequestNeverReadsQueries(t *testing.T) {
	t.Parallel()
	r := request(t)
	r.URL.RawQuery = "access_token=t&token=t&YTCypressCookie=c&x-yt-taskproxy-authorization=OAuth+t&Authorization=OAuth+t"
	r.URL.User = url.UserPassword("OAuth", "t")
	if got, err := FromRequest(r, cookieName); !errors.Is(err, ErrNoCredentials) {
		t.Errorf("got %v, %v, want %v", got, err, ErrNoCredentials)
	}
}

func TestFromRequestWithoutCookieName(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"Cookie: =c", "Cookie: YTCypressCookie=c", "Cookie:  c"} {
		if got, err := FromRequest(request(t, line), ""); !errors.Is(err, ErrNoCredentials) {
			t.Errorf("%q: got %v, %v, want %v", line, got, err, ErrNoCredentials)
		}
	}
}

func TestSecretsDoNotPrint(t *testing.T) {
	t.Parallel()
	const secret = "ytct-5e-c4e7"
	good, err := FromRequest(request(t, "Authorization: OAuth "+secret), cookieName)
	if err != nil {
		t.Fatal(err)
	}
	prints := []string{fmt.Sprint(good), fmt.Sprintf("%+v", good), fmt.Sprintf("%#v", good)}
	for _, headers := range [][]string{
		{"Authorization: OAuth " + secret + " x"},
		{"Authorization: OAuth" + "\t" + secret},
		{"x-yt-taskproxy-authorization: " + secret},
		{"x-yt-taskproxy-authorization: OAuth " + secret, "x-yt-taskproxy-authorization: OAuth " + secret},
		{"Cookie: YTCypressCookie=" + secret + "; YTCypressCookie=x"},
		{"Cookie: YTCypressCookie=" + secret + ",x"},
	} {
		_, err := FromRequest(request(t, headers...), cookieName)
		if err == nil {
			t.Errorf("%q: no error", headers)
			continue
		}
		prints = append(prints, err.Error())
	}
	for _, p := range prints {
		if strings.Contains(p, secret) {
			t.Errorf("the secret is in %q", p)
		}
	}
}

func FuzzFromRequest(f *testing.F) {
	for _, seed := range [][5]string{
		{"", "OAuth t", "YTCypressCookie=c", "", ""},
		{"Bearer e", "", `YTCypressCookie="c"`, "a=1; YTCypressCookie = d", "same-origin"},
		{"", "oauth\tt", "YTCypressCookie c", "", ""},
		{"", "Basic dTpw", "YTCypressCookie=c;YTCypressCookie=", "", "cross-site"},
		{"", "", "; =;YTCypressCookie=\"\";", "YTCypressCookie", "none"},
		{"OAuth", "Bearer \u00a0", "YTCypressCookie=c\x00", "\"YTCypressCookie\"=c", "same-origin"},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3], seed[4])
	}
	f.Fuzz(func(t *testing.T, explicit, authorization, cookie1, cookie2, site string) {
		r := &http.Request{Header: http.Header{}}
		for _, h := range [][2]string{
			{ExplicitHeader, explicit}, {"Authorization", authorization}, {"Cookie", cookie1}, {"Cookie", cookie2}, {"Sec-Fetch-Site", site},
		} {
			if h[1] != "" {
				r.Header.Add(h[0], h[1])
			}
		}
		got, err := FromRequest(r, cookieName)
		if err != nil {
			if got != (Presented{}) {
				t.Errorf("credentials %v beside error %v", got, err)
			}
			if !errors.Is(err, ErrNoCredentials) && !errors.Is(err, ErrMalformedCredentials) && !errors.Is(err, ErrAmbiguousCookie) {
				t.Errorf("error %v is of no kind", err)
			}
			if errors.Is(err, ErrNoCredentials) && explicit != "" {
				t.Errorf("explicit header %q passed over", explicit)
			}
			return
		}
		c := got.Credentials
		if c.Secret == "" || len(c.Secret) > maxSecret || !all(c.Secret, isVisible) {
			t.Errorf("secret %q can be none", c.Secret)
		}
		// The secret was there, and only where the rule says.
		var again *http.Request
		switch got.Source {
		case SourceExplicit:
			if !strings.Contains(explicit, c.Secret) {
				t.Errorf("secret %q is not in %q", c.Secret, explicit)
			}
			again = request(t, ExplicitHeader+": "+string(c.Kind)+" "+c.Secret)
		case SourceAuthorization:
			if !strings.Contains(authorization, c.Secret) {
				t.Errorf("secret %q is not in %q", c.Secret, authorization)
			}
			again = request(t, "Authorization: "+string(c.Kind)+" "+c.Secret)
		case SourceSameOriginCookie, SourceCookie:
			if !strings.Contains(cookie1, c.Secret) && !strings.Contains(cookie2, c.Secret) {
				t.Errorf("secret %q is not in %q, %q", c.Secret, cookie1, cookie2)
			}
			// Whatever net/http takes for the cookie is what we took.
			for _, other := range r.CookiesNamed(cookieName) {
				if v := unquote(trimSpace(other.Value)); v != c.Secret {
					t.Errorf("secret %q, net/http reads %q", c.Secret, v)
				}
			}
			again = request(t, "Cookie: "+c.CookieName+"="+c.Secret)
			if got.Source == SourceSameOriginCookie {
				again.Header.Set("Sec-Fetch-Site", "same-origin")
			}
		default:
			t.Fatalf("credentials from %v", got.Source)
		}
		if back, err := FromRequest(again, cookieName); err != nil || back != got {
			t.Errorf("round trip: got %v %q, %v, want %v %q", back, back.Credentials.Secret, err, got, c.Secret)
		}
	})
}
