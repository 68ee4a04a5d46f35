package serve

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// jsonHandler writes what slog.JSONHandler writes. The line that every request has takes it a quarter of the time, because its one attribute
// writes itself; all other records are slog's.
type jsonHandler struct {
	*slog.JSONHandler
	w     io.Writer
	level slog.Level
	last  atomic.Pointer[second]
}

// jsonFields is the value of an attribute without a key, a group. AppendJSON appends its members as slog.JSONHandler writes them, each with
// a comma before it.
type jsonFields interface {
	slog.LogValuer
	AppendJSON(text []byte) []byte
}

func newJSONHandler(w io.Writer, level slog.Level) slog.Handler {
	return &jsonHandler{JSONHandler: slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}), w: w, level: level}
}

// Enabled is slog.Handler's.
func (h *jsonHandler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level }

// second is the text of one, which many lines have.
type second struct {
	unix       int64
	zone       *time.Location
	date, rest string // up to the fraction, and after it
}

// appendTime is t.AppendFormat(b, time.RFC3339Nano).
func (h *jsonHandler) appendTime(b []byte, t time.Time) []byte {
	s := h.last.Load()
	if s == nil || s.unix != t.Unix() || s.zone != t.Location() {
		s = &second{t.Unix(), t.Location(), t.Format("2006-01-02T15:04:05"), t.Format("Z07:00")}
		h.last.Store(s)
	}
	b = append(b, s.date...)
	if n := t.Nanosecond(); n != 0 {
		digits := [...]byte{'.', 0, 0, 0, 0, 0, 0, 0, 0, 0}
		for i := len(digits) - 1; i > 0; i-- {
			digits[i], n = byte('0'+n%10), n/10
		}
		b = append(b, bytes.TrimRight(digits[:], "0")...)
	}
	return append(b, s.rest...)
}

// jsonLines lends room for lines.
var jsonLines = sync.Pool{New: func() any { return new([]byte) }}

// Handle is slog.Handler's. The loggers that are made from this one (WithAttrs, WithGroup) are slog's.
func (h *jsonHandler) Handle(ctx context.Context, r slog.Record) error {
	fields := fieldsOf(&r)
	if fields == nil {
		return h.JSONHandler.Handle(ctx, r)
	}
	room := jsonLines.Get().(*[]byte)
	line := append((*room)[:0], `{"time":"`...)
	line = h.appendTime(line, r.Time)
	line = append(line, `","level":"INFO","msg":"request"`...)
	line = fields.AppendJSON(line)
	line = append(line, '}', '\n')
	_, err := h.w.Write(line)
	if cap(line) <= 4096 {
		*room = line
		jsonLines.Put(room)
	}
	return err
}

// fieldsOf is what a request's line has to say; nil: the record is another.
func fieldsOf(r *slog.Record) (fields jsonFields) {
	// Other years than those from 1970 to 9986 may have no RFC 3339.
	if unix := r.Time.Unix(); r.NumAttrs() != 1 || r.Level != slog.LevelInfo || r.Message != "request" || unix <= 0 || unix > 253e9 {
		return nil
	}
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "" {
			fields, _ = a.Value.Any().(jsonFields)
		}
		return true
	})
	return fields
}
