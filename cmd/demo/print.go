package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/term"
)

// printer writes what the person at the terminal reads.
type printer struct {
	out    io.Writer
	styled bool
}

// newPrinter styles for a terminal whose owner did not say NO_COLOR.
func newPrinter(out io.Writer, getenv func(string) string) *printer {
	file, ok := out.(*os.File)
	return &printer{out: out, styled: ok && term.IsTerminal(int(file.Fd())) && getenv("NO_COLOR") == ""}
}

// The styles, as terminals understand them.
const (
	bold  = "1"
	green = "32"
	faint = "2"
)

func (p *printer) style(style, text string) string {
	if !p.styled {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

// step says that something has become true.
func (p *printer) step(what, format string, args ...any) {
	fmt.Fprintf(p.out, "%s %-17s %s\n", p.style(green, "✓"), what, p.style(faint, fmt.Sprintf(format, args...)))
}

// section begins a group of lines.
func (p *printer) section(title string) {
	fmt.Fprintf(p.out, "\n%s\n", p.style(bold, title))
}

// command shows one to paste. What it does is a comment in shell's terms, so that a whole block can be pasted as well.
func (p *printer) command(comment, format string, args ...any) {
	if comment != "" {
		fmt.Fprintln(p.out, p.style(faint, "# "+comment))
	}
	fmt.Fprintf(p.out, format+"\n", args...)
}

func (p *printer) stopping() {
	fmt.Fprintln(p.out, "\nStopping.")
}

// guide is what the printed commands need to know.
type guide struct {
	*printer
	address, admin string // of the proxy
	cluster        string // its URL
	alice, bob     user
	login          string // link, without the login at its end
	proto          string // path of helloworld.proto
}

// guide shows how to call the services: every command answers when it is pasted as it is.
func (p *printer) guide(g guide, services []*service) {
	g.printer = p
	g.section("Services")
	for _, service := range services {
		fmt.Fprintf(p.out, "%-17s  %s\n", service.name, service.link(g.address))
	}
	g.http(find(services, "http-service"))
	g.grpc(find(services, "grpc-service"))
	g.page(find(services, pageService))
	g.spark(find(services, "spark-driver"), find(services, "spark-rest"))
	g.section("Behind the scenes")
	g.command("the proxy's metrics", "curl http://%s/metrics", g.admin)
	g.command("the cluster, with the command line of YTsaurus (pip install ytsaurus-client), as alice",
		"YT_PROXY=%s YT_TOKEN=%s yt list-operations --state running", g.cluster, g.alice.Token)
	fmt.Fprintf(p.out, "\nEach call shows up below. %s\n\n", p.style(bold, "Ctrl-C ends it all."))
}

// authority is a service's domain with the port of the proxy's address.
func authority(domain, address string) string {
	port := address[strings.LastIndexByte(address, ':'):]
	if port == ":80" {
		return domain
	}
	return domain + port
}

// link is how one opens the service at the proxy's address.
func (s *service) link(address string) string {
	if s.row.Protocol == "grpc" {
		return authority(s.row.Domain, address) + " (gRPC)"
	}
	return "http://" + authority(s.row.Domain, address) + "/"
}

func (g guide) http(s *service) {
	url, elsewhere := s.link(g.address), "http://"+g.address+"/"
	base := strings.TrimPrefix(s.row.Domain, s.id())
	g.section("HTTP: call twice, and two jobs answer in turn")
	g.command("by the service's address, with a token",
		`curl -H 'Authorization: OAuth %s' %s`, g.alice.Token, url)
	g.command("what reached the job: alice's login, and none of her credentials",
		`curl -H 'Authorization: Bearer %s' %sheaders`, g.alice.Token, url)
	g.command("with the cookie that a browser has",
		`curl -H 'Cookie: %s=%s' -H 'Accept: application/json' %s`, g.alice.CookieName, g.alice.Cookie, url)
	g.command("by the proxy's address and the Host header",
		`curl -H 'Host: %s' -H 'Authorization: OAuth %s' %s`, s.row.Domain, g.alice.Token, elsewhere)
	g.command("by the proxy's address and the service's id",
		`curl -H 'x-yt-taskproxy-id: %s' -H 'Authorization: OAuth %s' %s`, s.id(), g.alice.Token, elsewhere)

	g.section("Who is kept out")
	g.command("bob may not read alice's operation: 403",
		`curl -i -H 'Authorization: OAuth %s' %s`, g.bob.Token, url)
	g.command("nobody: 401", `curl -i %s`, url)
	g.command("alice, asking for a service that does not exist: 404",
		`curl -i -H 'Authorization: OAuth %s' http://%s/`, g.alice.Token, authority("00000000"+base, g.address))
}

func (g guide) grpc(s *service) {
	const hello = "helloworld.Greeter/SayHello"
	asService := "-authority " + s.row.Domain
	// By reflection grpcurl calls twice: for the descriptors, and for what it was asked. With two jobs the second call would
	// always meet the same one, and a refusal would be reported as the first one's. So it gets the proto file.
	proto := "-import-path " + shellWord(filepath.Dir(g.proto)) + " -proto " + filepath.Base(g.proto)
	g.section("gRPC: the same with grpcurl (go install github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4)")
	g.command("which services there are, by reflection",
		`grpcurl -plaintext %s -H 'Authorization: OAuth %s' %s list`, asService, g.alice.Token, g.address)
	g.command("health, by reflection, with the cookie",
		`grpcurl -plaintext %s -H 'Cookie: %s=%s' %s grpc.health.v1.Health/Check`, asService, g.alice.CookieName, g.alice.Cookie, g.address)

	call := func(comment, service, credentials, request, method string) {
		words := []string{"grpcurl -plaintext", proto, service}
		if credentials != "" {
			words = append(words, "-H '"+credentials+"'")
		}
		if request != "" {
			words = append(words, "-d '"+request+"'")
		}
		g.command(comment, "%s", strings.Join(append(words, g.address, method), " "))
	}
	alice := "Authorization: OAuth " + g.alice.Token
	byID := func(id string) string { return "-H 'x-yt-taskproxy-id: " + id + "'" }
	call("call twice, and two jobs answer in turn", asService, alice, `{"name": "you"}`, hello)
	call("three answers in a stream", asService, "Authorization: Bearer "+g.alice.Token, `{"count": 3}`, hello+"Stream")
	call("by the service's id", byID(s.id()), alice, "", hello)
	call("bob: PermissionDenied", asService, "Authorization: OAuth "+g.bob.Token, "", hello)
	call("nobody: Unauthenticated", asService, "", "", hello)
	call("an unknown id: NotFound", byID("00000000"), alice, "", hello)
}

func (g guide) page(s *service) {
	url := s.link(g.address)
	g.section("A page with a WebSocket and an event stream")
	g.command("the event stream; Ctrl-C ends it",
		`curl -N -H 'Authorization: OAuth %s' %sevents`, g.alice.Token, url)
	g.command("in a browser, log in as alice: the link leads to the page, and the other links open then too", "%salice", g.login)
	g.command("as bob, who may not read it", "%sbob", g.login)
}

func (g guide) spark(driver, rest *service) {
	g.section("Spark as SPYT runs it: a driver and a standalone cluster, found by what they leave about themselves")
	g.command("the driver took a port by itself and wrote it into its operation's annotations",
		`curl -H 'Authorization: OAuth %s' %s`, g.alice.Token, driver.link(g.address))
	g.command("whoever submits to the cluster runs code as alice, so it takes the right to manage her operation",
		`curl -H 'Authorization: OAuth %s' %s`, g.alice.Token, rest.link(g.address))
}

// clusterGuide shows how to use a cluster that has nothing but users.
func (p *printer) clusterGuide(cluster *cluster, baseDomain string) {
	p.section("Administrator")
	p.command("the command line of YTsaurus: pip install ytsaurus-client", "export YT_PROXY=%s YT_TOKEN=%s", cluster.url, cluster.rootToken)
	p.section("The proxy's user")
	p.command("", "yt create user --attributes '{name=%s}'", robot)
	p.command("", "yt set //sys/operations/@acl/end '{action=allow; subjects=[%s]; permissions=[read]}'", robot)
	p.command("", "yt set //sys/accounts/sys/@acl/end '{action=allow; subjects=[%s]; permissions=[use]}'", robot)
	p.command("", "yt create map_node %s", proxyDir)
	p.command("", "yt set %s/@acl/end '{action=allow; subjects=[%s]; permissions=[read; write; create; remove]}'", proxyDir, robot)
	p.command("", "(umask 077; yt issue-token %s > robot-token)", robot)
	p.section("The proxy")
	p.command("in another terminal, in the same directory", "go run ./cmd/task-proxy serve --yt-proxy %s --yt-token-path robot-token --base-domain %s", cluster.url, baseDomain)
	p.section("A service, as alice")
	alice := cluster.user("alice")
	p.command("", `YT_TOKEN=%s yt vanilla --async --tasks '{example_http_server={job_count=2; command="python3 -m http.server ${YT_PORT_0}"; port_count=1}}' --spec '{annotations={task_proxy={enabled=%%true;}}}'`, alice.Token)
	p.command("", "yt read-table %s --format json", servicesTable)
	fmt.Fprintf(p.out, "\n%s\n\n", p.style(bold, "Ctrl-C ends it all."))
}
