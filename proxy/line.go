package proxy

import (
	"log/slog"
	"strconv"
	"time"
)

// accessLog writes the one line of a request.
func (p *Proxy) accessLog(x *exchange, took time.Duration) {
	log, ctx := p.cfg.AccessLog.Handler(), x.in.Context()
	if !log.Enabled(ctx, slog.LevelInfo) {
		return
	}
	x.line = line{x: x, took: took, open: p.cfg.AuthDisabled}
	record := slog.NewRecord(x.start.Add(took), slog.LevelInfo, "request", 0) // not by the Logger: it would look up who calls
	record.AddAttrs(slog.Any("", &x.line))
	_ = log.Handle(ctx, record) // there is nobody to tell
}

// line is what the access log says of an exchange that is over. Every slog.Handler gets its fields as attributes: a group without a name is
// its members. One that writes JSON may take their text instead; that is much cheaper, and every request has a line.
type line struct {
	x    *exchange
	took time.Duration
	open bool // nobody is asked who they are
}

// LogValue is slog.LogValuer's.
func (l *line) LogValue() slog.Value {
	f := fields{attrs: make([]slog.Attr, 0, 24)}
	l.write(&f)
	return slog.GroupValue(f.attrs...)
}

// AppendJSON appends the fields as slog.JSONHandler writes those of LogValue, each with a comma before it.
func (l *line) AppendJSON(text []byte) []byte {
	f := fields{asJSON: true, json: text}
	l.write(&f)
	return f.json
}

// write writes the fields. Neither query nor headers are among them: both can hold secrets.
func (l *line) write(f *fields) {
	x := l.x
	f.string("request_id", x.id)
	f.string("user", x.login)
	f.string("source", x.authSource())
	f.string("decision", x.decision(l.open))
	f.string("method", x.in.Method)
	f.string("host", x.in.Host)
	f.string("path", x.in.URL.EscapedPath())
	f.string("remote", x.in.RemoteAddr)
	f.string("protocol", x.protocol().String())
	if s := x.service; s != nil {
		f.string("operation_id", s.OperationID)
		f.string("task", s.Task)
		f.string("service", s.Name)
	}
	f.string("endpoint", x.endpoint.Addr)
	if x.attempts > 1 {
		f.int("attempts", int64(x.attempts))
	}
	f.int("status", int64(x.status()))
	f.string("grpc_status", x.grpcStatus)
	if x.failure != nil {
		f.string("reason", x.failure.reason)
	}
	if x.err != nil {
		f.string("err", x.err.Error())
	}
	f.bool("cached", x.cached)
	f.int("bytes_in", x.bytesIn.Load())
	f.int("bytes_out", x.bytesOut.Load())
	f.int("duration_us", l.took.Microseconds()) // a float would go through encoding/json
}

// fields are those of a line: attributes, or the text of JSON. Keys need no escapes.
type fields struct {
	attrs  []slog.Attr
	asJSON bool
	json   []byte
}

// string adds a text, as plain makes it; an empty one is left out.
func (f *fields) string(key, value string) {
	if value == "" {
		return
	}
	if !f.asJSON {
		f.attrs = append(f.attrs, slog.String(key, plain(value)))
		return
	}
	text := append(f.key(key), '"')
	if harmless(value) {
		text = append(text, value...)
	} else {
		for _, c := range []byte(quoted(value)) { // printable ASCII
			if c == '"' || c == '\\' {
				text = append(text, '\\')
			}
			text = append(text, c)
		}
	}
	f.json = append(text, '"')
}

func (f *fields) int(key string, value int64) {
	if !f.asJSON {
		f.attrs = append(f.attrs, slog.Int64(key, value))
		return
	}
	f.json = strconv.AppendInt(f.key(key), value, 10)
}

func (f *fields) bool(key string, value bool) {
	if !f.asJSON {
		f.attrs = append(f.attrs, slog.Bool(key, value))
		return
	}
	f.json = strconv.AppendBool(f.key(key), value)
}

// key is the text with the beginning of a member.
func (f *fields) key(key string) []byte {
	text := append(f.json, ',', '"')
	text = append(text, key...)
	return append(text, '"', ':')
}

// plain is s when it is plain, and otherwise s cut and quoted: no line break, terminal escape or look-alike gets from a stranger into a log.
func plain(s string) string {
	if harmless(s) {
		return s
	}
	return quoted(s)
}

// harmless reports a text that is short, and printable ASCII without quotes or backslashes.
func harmless(s string) bool {
	if len(s) > maxQuoted {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}
