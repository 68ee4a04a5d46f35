package proxy

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"taskproxy/discovery"
)

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

// rest is a world with the REST server of a Spark cluster, and with an ordinary service that calls itself the same.
func rest(t *testing.T, configure ...func(*Config)) (w *world, spark, forged *discovery.Service) {
	w = newWorld(t, configure...)
	job := serve(t, echoJob("rest"))
	spark = w.publish(discovery.Service{Task: "master", Name: "rest", SparkREST: true}, job)
	forged = w.publish(discovery.Service{Task: "master", Name: "rest"}, job)
	return w, spark, forged
}

const nobody = "-: -" // no credentials at all

func TestSparkClientNeedsNoCredentials(t *testing.T) {
	t.Parallel()
	w, spark, _ := rest(t, func(c *Config) { c.SparkRESTPeers = loopback })
	for _, header := range [][]string{
		{"X: y"},
		{"User-Agent: Java/11.0.20", "Accept: text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2"},
		{"Authorization: Basic eDp5"}, // the service's own business
		{"X-Yt-Taskproxy-Id: " + spark.ID},
	} {
		a := w.do(w.request(http.MethodPost, host(spark), "/v1/submissions/create", strings.NewReader("{}"), append(header, nobody)...))
		if e := a.echo(t); a.StatusCode != 200 || e.Target != "/v1/submissions/create" || e.Body != "{}" || e.Header[UserHeader] != nil {
			t.Errorf("%v: status %d, job saw %+v", header, a.StatusCode, e)
		}
		if record := w.log.wait(t, a.Header.Get("X-Request-Id")); record["source"] != "peer" || record["user"] != nil {
			t.Errorf("%v: logged %v", header, record)
		}
	}
	// Who says who they are is who they are.
	a := w.get(host(spark), "/")
	if record := w.log.wait(t, a.Header.Get("X-Request-Id")); a.StatusCode != 200 || record["source"] != "explicit" || record["user"] != "alice" {
		t.Errorf("with a token: status %d, logged %v", a.StatusCode, record)
	}
}

// Whatever is not exactly that gets what everybody without credentials gets, to the byte.
func TestSparkClientsDoorIsNarrow(t *testing.T) {
	t.Parallel()
	w, spark, forged := rest(t, func(c *Config) { c.SparkRESTPeers = loopback })
	closed, closedSpark, _ := rest(t)
	elsewhere, elsewhereSpark, _ := rest(t, func(c *Config) { c.SparkRESTPeers = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} })
	ingress, ingressSpark, _ := rest(t, func(c *Config) { c.SparkRESTPeers, c.TrustedProxies = loopback, loopback })
	for _, c := range []struct {
		name   string
		w      *world
		host   string
		header []string
	}{
		{"no such flag", closed, host(closedSpark), nil},
		{"another peer", elsewhere, host(elsewhereSpark), nil},
		{"another peer that says it is not", elsewhere, host(elsewhereSpark), []string{"X-Forwarded-For: 10.0.0.1"}},
		{"a proxy for others", ingress, host(ingressSpark), nil},
		{"an unknown proxy for others", w, host(spark), []string{"X-Forwarded-For: 127.0.0.1"}},
		{"an unknown proxy for others, newer", w, host(spark), []string{"Forwarded: for=127.0.0.1"}},
		{"a service of the same name", w, host(forged), nil},
		{"no service", w, "00000000." + base, nil},
		{"an ambiguous service", w, host(spark), []string{"X-Yt-Taskproxy-Id: " + forged.ID}},
		{"a malformed header", w, host(spark), []string{"X-Yt-Taskproxy-Id: x"}},
		{"a page of another site", w, host(spark), []string{"Origin: https://evil.example", "Content-Type: text/plain"}},
		{"a page in a sandbox", w, host(spark), []string{"Origin: null"}},
		{"a page of the very host", w, host(spark), []string{"Origin: http://" + host(spark)}},
		{"a page that embeds it", w, host(spark), []string{"Sec-Fetch-Site: cross-site"}},
		{"a sibling's page", w, host(spark), []string{"Sec-Fetch-Site: same-site"}},
		{"two words about the page", w, host(spark), []string{"Sec-Fetch-Site: none", "Sec-Fetch-Site: cross-site"}},
		{"an address that was typed", w, host(spark), []string{"Sec-Fetch-Site: none"}},
		{"a browser over plain http", w, host(spark), []string{"Upgrade-Insecure-Requests: 1"}},
		{"a browser's hints", w, host(spark), []string{"Sec-Ch-Ua: x"}},
		{"a browser's language", w, host(spark), []string{"Accept-Language: en"}},
		{"a browser's name", w, host(spark), []string{"User-Agent: Mozilla/5.0 (X11)"}},
		{"a page's address", w, host(spark), []string{"Referer: https://evil.example/"}},
		{"somebody's cookie", w, host(spark), []string{"Cookie: a=1"}},
		{"a name that is bound to our address", w, "evil.example", []string{"X-Yt-Taskproxy-Id: " + spark.ID}},
		{"the proxy's own host", w, base, []string{"X-Yt-Taskproxy-Id: " + spark.ID}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := c.w.do(c.w.request(http.MethodPost, c.host, "/v1/submissions/create", strings.NewReader("{}"), append(c.header, nobody)...))
			a.check(t, 401, "no_credentials")
			id := a.Header.Get("X-Request-Id")
			reference := closed.get("00000000."+base, "/", nobody)
			if got, want := strings.ReplaceAll(a.body, id, ""), strings.ReplaceAll(reference.body, reference.Header.Get("X-Request-Id"), ""); got != want {
				t.Errorf("body %q, want %q", got, want)
			}
			if record := c.w.log.wait(t, id); record["source"] != nil || record["service"] != nil {
				t.Errorf("logged %v", record)
			}
		})
	}
	for _, name := range []string{
		"X-Forwarded-For", "X_Forwarded_For", "x.forwarded.for", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded", "X-Forwarded-Client-Cert", "Forwarded",
		"Via", "X-Real-Ip", "X_Real_IP", "X-Client-Ip", "Client-Ip", "X-Cluster-Client-Ip", "True-Client-Ip", "True_Client_Ip", "Cf-Connecting-Ip",
		"Fastly-Client-Ip", "X-Original-Forwarded-For", "X-Envoy-External-Address", "X-Amzn-Trace-Id", "X-Azure-Clientip", "Cdn-Loop",
	} {
		// What a proxy adds to everybody's requests.
		w.do(w.request(http.MethodPost, host(spark), "/v1/submissions/create", strings.NewReader("{}"), name+": 127.0.0.1", nobody)).check(t, 401, "no_credentials")
	}
	for _, c := range []struct{ header, reason string }{
		{"Authorization: OAuth s3cret-wrong", "invalid_credentials"},
		{"Authorization: Bearer", "malformed_credentials"},
		{"Cookie: YTCypressCookie=", "malformed_credentials"},
		{"Cookie: YTCypressCookie=a; YTCypressCookie=b", "ambiguous_cookie"},
	} {
		w.get(host(spark), "/", c.header).check(t, 401, c.reason)
	}
	a := w.get(host(spark), "/", "Authorization: OAuth "+bobToken)
	a.check(t, 403, "access_denied")
}

// There is a door for those without credentials only while there are credentials at all.
func TestSparkClientWithoutAuth(t *testing.T) {
	t.Parallel()
	w, spark, forged := rest(t, func(c *Config) { c.SparkRESTPeers, c.AuthDisabled, c.Authorizer = loopback, true, nil })
	for _, s := range []*discovery.Service{spark, forged} {
		if a := w.get(host(s), "/", nobody); a.StatusCode != 200 {
			t.Errorf("status %d", a.StatusCode)
		}
	}
}
