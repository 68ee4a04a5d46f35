package proxy

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"strconv"
	"strings"
)

// retryAfter is what a 503 asks for, in seconds: a discovery cycle is about that long.
const retryAfter = "5"

//go:embed pages
var pageFiles embed.FS

// pageStyle is the one style sheet of our pages. They load nothing: each carries it, and the policy names its hash.
var pageStyle = mustRead("pages/style.css")

var pageTemplates = template.Must(template.New("").
	Funcs(template.FuncMap{"style": func() template.CSS { return template.CSS(pageStyle) }}).
	ParseFS(pageFiles, "pages/*.html"))

// pagePolicy lets a page show itself and nothing else: no script, no frame around it, no form, nothing loaded.
var pagePolicy = func() string {
	sum := sha256.Sum256([]byte(pageStyle))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}()

func mustRead(name string) string {
	b, err := pageFiles.ReadFile(name)
	if err != nil {
		panic(err) // the file is part of the binary
	}
	return string(b)
}

// errorPage is what the page of a failure shows.
type errorPage struct {
	Status    int
	Title     string
	Message   string
	Reason    string
	RequestID string
	LoginURL  string // for 401, when there is one
	Retry     string // seconds, for 503
}

// answerHTTP writes a failure for a caller that does not speak gRPC.
func (p *Proxy) answerHTTP(x *exchange, c *cause, public string) {
	public = oneLine(public)
	switch manner(x.in.Header) {
	case mannerPage:
		page := errorPage{Status: c.status, Title: http.StatusText(c.status), Message: public, Reason: c.reason, RequestID: x.id}
		switch c.status {
		case http.StatusUnauthorized:
			page.LoginURL = p.loginURL(x.in)
		case http.StatusServiceUnavailable, http.StatusTooManyRequests:
			if x.in.Method == http.MethodGet { // a page that is loaded again is loaded by a GET
				page.Retry = retryAfter
			}
		}
		p.writePage(x, c.status, "error.html", page)
	case mannerJSON:
		body, _ := json.Marshal(map[string]string{"error": c.reason, "message": public, "request_id": x.id}) // strings marshal
		x.writeBody(c.status, "application/json", append(body, '\n'))
	default:
		x.writeBody(c.status, "text/plain; charset=utf-8", fmt.Appendf(nil, "%s (request %s)\n", public, x.id))
	}
}

// home is the page of the proxy's own host: how to call. It says the same to everybody and nothing about what exists, so
// nobody has to be identified for it.
func (p *Proxy) home(x *exchange) error {
	if x.in.Method != http.MethodGet && x.in.Method != http.MethodHead {
		return causeNoService
	}
	base := p.cfg.Bases.Primary()
	if manner(x.in.Header) == mannerPage {
		p.writePage(x, http.StatusOK, "home.html", map[string]string{"Base": base})
		return nil
	}
	x.writeBody(http.StatusOK, "text/plain; charset=utf-8", fmt.Appendf(nil,
		"This is the task proxy: web services of running YTsaurus operations.\n"+
			"Call a service at %s://<ID>.%s/, or here with the header %s: <ID>.\n"+
			"IDs are in the cluster's services table. Send a token (Authorization: OAuth <token>) or the login cookie.\n",
		p.rules.schemeOf(x.in), base, strings.ToLower(HeaderID)))
	return nil
}

func (p *Proxy) writePage(x *exchange, status int, name string, data any) {
	var b bytes.Buffer
	if err := pageTemplates.ExecuteTemplate(&b, name, data); err != nil {
		p.log.Error("page failed", "err", err, "request_id", x.id)
	}
	h := x.w.Header()
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("Referrer-Policy", "no-referrer")
	x.writeBody(status, "text/html; charset=utf-8", b.Bytes())
}

// writeBody writes an answer of our own, without its body for HEAD.
func (x *exchange) writeBody(status int, contentType string, body []byte) {
	h := x.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("X-Content-Type-Options", "nosniff")
	x.limitAnswer()
	x.w.WriteHeader(status)
	if x.in.Method != http.MethodHead {
		_, _ = x.w.Write(body) // the caller may have left; the log says so
	}
}

// The manners of answering somebody who does not speak gRPC.
const (
	mannerLine = iota
	mannerPage
	mannerJSON
)

// manner chooses how to tell a caller about a failure: a page for a person who navigates, JSON for who asks for it, one line
// for everybody else. A script in a page gets no page, although it may accept HTML like everything.
func manner(h http.Header) int {
	accept := strings.Join(h["Accept"], ",")
	mode, dest := h.Get("Sec-Fetch-Mode"), h.Get("Sec-Fetch-Dest")
	switch {
	case mode == "navigate" && dest == "document":
		return mannerPage
	case mode == "" && dest == "" && accepts(accept, "text/html"):
		return mannerPage
	case accepts(accept, "application/json"):
		return mannerJSON
	}
	return mannerLine
}

// accepts reports whether an Accept header names a media type itself, not by a wildcard, and does not rule it out.
func accepts(accept, mediaType string) bool {
	for item := range strings.SplitSeq(accept, ",") {
		name, params, _ := strings.Cut(item, ";")
		if strings.EqualFold(trimSpace(name), mediaType) && !strings.HasPrefix(strings.ReplaceAll(params, " ", "")+";", "q=0;") {
			return true
		}
	}
	return false
}
