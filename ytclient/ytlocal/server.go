package ytlocal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"go.ytsaurus.tech/yt/go/guid"
	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yterrors"
)

// version is what /version says: that this is not the real thing.
const version = "ytlocal"

// listen opens the port, on loopback only: whoever reaches it may start processes.
func listen(address string) (net.Listener, error) {
	if address == "" {
		address = "127.0.0.1:0"
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("listen address %q of the local cluster must be host:port: %w", address, err)
	}
	ip, err := netip.ParseAddr(host)
	if host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("listen address %q of the local cluster is not on loopback: use 127.0.0.1, [::1] or localhost, since it starts processes", address)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("local cluster: %w", err)
	}
	// A hosts file can point localhost anywhere.
	if tcp, ok := listener.Addr().(*net.TCPAddr); !ok || !tcp.IP.IsLoopback() {
		return nil, errors.Join(fmt.Errorf("listen address %q of the local cluster leads to %s, which is not on loopback", address, listener.Addr()), listener.Close())
	}
	return listener, nil
}

// serve starts to answer.
func (c *Cluster) serve(listener net.Listener) {
	c.listener = listener
	host, port, _ := net.SplitHostPort(listener.Addr().String())
	c.hosts = map[string]struct{}{net.JoinHostPort(host, port): {}, net.JoinHostPort("localhost", port): {}}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	c.server = &http.Server{
		Handler:           http.HandlerFunc(c.handle),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(c.log.Handler(), slog.LevelDebug),
	}
	c.server.SetKeepAlivesEnabled(!c.config.NoKeepAlive)
	go func() {
		defer close(c.served)
		if err := c.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			c.log.Error("local cluster stopped serving", "err", err)
		}
	}()
}

// Addr is the host:port that the cluster listens on.
func (c *Cluster) Addr() string { return c.listener.Addr().String() }

// URL is the address with its scheme.
func (c *Cluster) URL() string { return "http://" + c.Addr() }

// handle is the way of every request: guard, then route. Preflights are answered before, for they are browsers' by nature.
func (c *Cluster) handle(w http.ResponseWriter, r *http.Request) {
	c.gate.RLock()
	defer c.gate.RUnlock()
	if c.closed {
		return
	}
	header := w.Header()
	header.Set("X-YT-Request-Id", guid.New().String())
	header.Set("X-YT-Proxy", c.Addr())
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	if c.preflight(w, r) {
		return
	}
	if err := c.guard(r); err != nil {
		status, e := asYT(err)
		writeErrorBody(w, status, e)
		return
	}
	switch path := strings.TrimSuffix(r.URL.Path, "/"); path {
	case "/ping":
		c.open(w, r, "ping", func() {})
	case "/version":
		c.open(w, r, "version", func() { _, _ = io.WriteString(w, version+"\n") })
	case "/hosts":
		c.open(w, r, "hosts", func() { c.serveHosts(w, r) })
	case "/api":
		c.open(w, r, "api", func() { writeJSON(w, []string{"v3", "v4"}) })
	case "/api/v4":
		c.open(w, r, "api", func() { writeJSON(w, c.descriptors()) })
	case "/auth/whoami":
		c.open(w, r, "whoami", func() { c.serveWhoAmI(w, r) })
	default:
		c.serveCommand(w, r, path)
	}
}

// open answers one of the routes that are no commands, faults included.
func (c *Cluster) open(w http.ResponseWriter, r *http.Request, name string, answer func()) {
	fault := c.faults.take(Call{Command: name})
	if err := c.faults.wait(r.Context(), fault); err != nil {
		panic(http.ErrAbortHandler)
	}
	if !fault.answer(w) {
		answer()
	}
}

// guard refuses what a page in somebody's browser could send: a host name that was bent to our address, and anything
// that a browser marks as another page's doing. It comes before everything else.
func (c *Cluster) guard(r *http.Request) error {
	if _, ok := c.hosts[strings.ToLower(r.Host)]; !ok {
		return failStatus(http.StatusForbidden, yterrors.CodeGeneric, "Host %.128q is not this cluster's address", r.Host)
	}
	if len(r.Header.Values("Origin")) > 0 {
		return failStatus(http.StatusForbidden, yterrors.CodeGeneric, "Requests of web pages (with an Origin) are refused")
	}
	for _, site := range r.Header.Values("Sec-Fetch-Site") {
		if site != "none" {
			return failStatus(http.StatusForbidden, yterrors.CodeGeneric, "Requests of web pages (Sec-Fetch-Site %.32q) are refused", site)
		}
	}
	return nil
}

// serveHosts names ourselves as the only proxy.
func (c *Cluster) serveHosts(w http.ResponseWriter, r *http.Request) {
	if strings.Contains(r.Header.Get("Accept"), "text/plain") {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, r.Host+"\n")
		return
	}
	writeJSON(w, []string{r.Host})
}

// serveCommand is the way of a command: authenticate, find it, read parameters, run, write the answer.
func (c *Cluster) serveCommand(w http.ResponseWriter, r *http.Request, path string) {
	start := time.Now()
	id, err := c.authenticate(r)
	if err == nil {
		err = c.checkCSRF(r, id)
	}
	if err == nil {
		err = c.checkBanned(id.login)
	}
	name, isCommand := strings.CutPrefix(path, "/api/v4/")
	cmd := c.commands[name]
	if err == nil && (!isCommand || cmd == nil) {
		err = failStatus(http.StatusNotFound, yterrors.CodeGeneric, "Command %.64q is not supported here", name)
	}
	if err == nil {
		err = c.runCommand(w, r, cmd, id.login)
	}
	if err != nil {
		writeError(w, err)
	}
	c.logCall(r, name, id.login, err, time.Since(start))
}

// logCall says what was asked and how it went; parameters may hold secrets and stay out.
func (c *Cluster) logCall(r *http.Request, name, user string, err error, took time.Duration) {
	log := c.log.With("command", cut(name), "user", user, "duration_ms", took.Milliseconds(), "request_id", cut(r.Header.Get("X-YT-Correlation-Id")))
	if err == nil {
		log.Debug("call")
		return
	}
	_, e := asYT(err)
	log.Debug("call failed", "code", int(e.Code), "err", cut(e.Message))
}

// cut bounds what callers write into logs.
func cut(s string) string { return s[:min(len(s), 256)] }

// runCommand reads what a command needs, runs it and writes its answer. Errors are returned while nothing is written.
func (c *Cluster) runCommand(w http.ResponseWriter, r *http.Request, cmd *command, user string) error {
	k, err := c.newCall(r, cmd, user)
	if err != nil {
		return err
	}
	fault := c.faults.take(k.describe())
	if err := c.faults.wait(r.Context(), fault); err != nil {
		panic(http.ErrAbortHandler)
	}
	if fault.answer(w) {
		return nil
	}
	result, err := k.invoke()
	if err != nil {
		return err
	}
	return k.respond(w, fault, fault.edit(result))
}

// newCall parses a request.
func (c *Cluster) newCall(r *http.Request, cmd *command, user string) (*call, error) {
	p, err := parseParams(r, cmd)
	if err != nil {
		return nil, err
	}
	k := &call{c: c, ctx: r.Context(), cmd: cmd, user: user, params: p}
	if k.in, err = k.chooseFormat("input_format", r.Header, "X-YT-Input-Format", "Content-Type", cmd.input); err != nil {
		return nil, err
	}
	if k.out, err = k.chooseFormat("output_format", r.Header, "X-YT-Output-Format", "Accept", cmd.output); err != nil {
		return nil, err
	}
	k.body, err = inflate(r)
	return k, err
}

// chooseFormat looks for a format in the parameters, a header of YT, a header of HTTP. Without any, rows are YSON and
// values JSON, as on the real cluster.
func (k *call) chooseFormat(param string, header http.Header, name, mime, kind string) (format, error) {
	if kind == noData || kind == binary {
		return format{name: "yson"}, nil
	}
	if k.params.has(param) {
		return parseFormat(k.params[param])
	}
	if f, err := parseFormatHeader(header, name); err != nil || f.name != "" {
		return f, err
	}
	if f := acceptFormat(header.Get(mime)); f.name != "" {
		return f, nil
	}
	if kind == tabular {
		return format{name: "yson"}, nil
	}
	return format{name: "json"}, nil
}

// respond writes the answer.
func (k *call) respond(w http.ResponseWriter, fault *Fault, result any) error {
	if s, ok := result.(stream); ok {
		return k.respondStream(w, fault, s)
	}
	if result == nil {
		return nil
	}
	body, err := k.out.encode(result)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", k.out.contentType())
	writeBody(w, fault, body)
	return nil
}

// writeBody writes a whole body, or the half that a fault leaves of it.
func writeBody(w http.ResponseWriter, fault *Fault, body []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	if fault != nil && fault.Cut == CutBody {
		_, _ = w.Write(body[:len(body)/2])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(body)
}

// respondStream writes data. What goes wrong after its first byte is told in trailers.
func (k *call) respondStream(w http.ResponseWriter, fault *Fault, s stream) error {
	header := w.Header()
	header.Set("Content-Type", s.contentType)
	if s.parameters != nil {
		b, err := yson.MarshalFormat(s.parameters, yson.FormatText)
		if err != nil {
			return fail(yterrors.CodeGeneric, "response parameters: %v", err)
		}
		header.Set("X-YT-Response-Parameters", string(b))
	}
	if fault != nil && fault.Cut == CutBody {
		var b bytes.Buffer
		if err := s.write(&b); err != nil {
			return err
		}
		writeBody(w, fault, b.Bytes())
		return nil
	}
	header.Set("Trailer", "X-YT-Error, X-YT-Response-Code, X-YT-Response-Message")
	if err := s.write(w); err != nil {
		_, e := asYT(err)
		setErrorHeaders(header, e)
	}
	return nil
}
