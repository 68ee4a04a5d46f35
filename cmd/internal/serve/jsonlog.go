package serve

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"taskproxy/proxy"
)

// jsonHandler is a slog.JSONHandler that is a proxy.LineHandler too: the line that every request has takes it a quarter of the time.
type jsonHandler struct {
	*slog.JSONHandler
	w     io.Writer
	level slog.Level
	last  atomic.Pointer[second]
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

// HandleLine is proxy.LineHandler's. The loggers that are made from this one (WithAttrs, WithGroup) are slog's.
func (h *jsonHandler) HandleLine(at time.Time, line proxy.Line) error {
	room := jsonLines.Get().(*[]byte)
	text := append((*room)[:0], `{"time":"`...)
	text = h.appendTime(text, at)
	text = append(text, `","level":"INFO",`...)
	text = line.AppendJSON(text)
	text = append(text, '}', '\n')
	_, err := h.w.Write(text)
	if cap(text) <= 4096 {
		*room = text
		jsonLines.Put(room)
	}
	return err
}
