package proxy

import (
	"log/slog"
	"strconv"
	"time"
)

// LineHandler is a slog.Handler that can take a request's line as text: an access log has one for every request, and that is much cheaper than
// attributes. Safe for concurrent use, as handlers are.
type LineHandler interface {
	slog.Handler
	// HandleLine writes what Handle would write of this line as a record of level Info, for which Enabled was asked before. An error goes
	// nowhere: there is nobody to tell.
	HandleLine(at time.Time, line Line) error
}

// Line is what the access log says of a request.
type Line interface {
	// AppendJSON appends the message and the attributes as slog.JSONHandler writes them, without a comma before or after them.
	AppendJSON(text []byte) []byte
}

// accessLog writes the one line of a request.
func (p *Proxy) accessLog(x *exchange, took time.Duration) {
	log, ctx := p.cfg.AccessLog.Handler(), x.in.Context()
	if !log.Enabled(ctx, slog.LevelInfo) {
		return
	}
	x.took = took
	at := x.start.Add(took)
	if lines, ok := log.(LineHandler); ok {
		_ = lines.HandleLine(at, x) // there is nobody to tell
		return
	}
	record := slog.NewRecord(at, slog.LevelInfo, lineMessage, 0) // not by the Logger: it would look up who calls
	x.logTo(&fields{record: &record})
	_ = log.Handle(ctx, record)
}

const lineMessage = "request"

// AppendJSON is Line's.
func (x *exchange) AppendJSON(text []byte) []byte {
	f := fields{json: append(text, `"msg":"`+lineMessage+`"`...)}
	x.logTo(&f)
	return f.json
}

// logTo writes the fields of the line. Neither query nor headers are among them: both can hold secrets.
func (x *exchange) logTo(f *fields) {
	f.string("request_id", x.id)
	f.string("user", x.login)
	f.string("source", x.authSource())
	f.string("decision", x.decision(x.w.rules.open))
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
	f.int("duration_us", x.took.Microseconds()) // a float would go through encoding/json
}

// fields are those of a line on their way: attributes of a record, or else text that goes on in JSON. Keys need no escapes.
type fields struct {
	record *slog.Record
	json   []byte
}

// string adds a text, as plain makes it; an empty one is left out.
func (f *fields) string(key, value string) {
	if value == "" {
		return
	}
	if f.record != nil {
		f.record.AddAttrs(slog.String(key, plain(value)))
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
	if f.record != nil {
		f.record.AddAttrs(slog.Int64(key, value))
		return
	}
	f.json = strconv.AppendInt(f.key(key), value, 10)
}

func (f *fields) bool(key string, value bool) {
	if f.record != nil {
		f.record.AddAttrs(slog.Bool(key, value))
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
