package serve

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"
)

// Whatever is logged, the line is the one that slog writes.
func TestJSONLogIsThatOfSlog(t *testing.T) {
	group := func(attrs ...slog.Attr) slog.Attr { return slog.Attr{Value: slog.GroupValue(attrs...)} }
	at := time.Date(2026, 11, 22, 1, 2, 3, 456789000, time.UTC)
	record := func(at time.Time, level slog.Level, message string, attrs ...slog.Attr) slog.Record {
		r := slog.NewRecord(at, level, message, 0)
		r.AddAttrs(attrs...)
		return r
	}
	every := make([]byte, 0, 256)
	for c := range 256 {
		every = append(every, byte(c))
	}
	for name, r := range map[string]slog.Record{
		"a request": record(at, slog.LevelInfo, "request", group(slog.String("user", "alice"), slog.String("path", "/a?<>&'"), slog.Int("status", 200),
			slog.Bool("cached", true), slog.Int64("bytes_out", math.MaxInt64), slog.Int64("bytes_in", math.MinInt64))),
		"no attributes":       record(at, slog.LevelInfo, "ready"),
		"an empty group":      record(at, slog.LevelInfo, "ready", group()),
		"a group with a name": record(at, slog.LevelInfo, "ready", slog.Group("of", slog.String("a", "b"))),
		"a group in a group":  record(at, slog.LevelInfo, "ready", group(slog.Int("a", 1), group(slog.Int("b", 2)), slog.Int("c", 3))),
		"nothing said":        record(at, slog.LevelInfo, "", slog.String("", "")),
		"an empty attribute":  record(at, slog.LevelInfo, "ready", slog.Attr{}, slog.Int("a", 1)),
		"quotes":              record(at, slog.LevelInfo, "request", slog.String("path", `/"a"\`)),
		"a line break":        record(at, slog.LevelInfo, "request", slog.String("a", "1"), slog.String("path", "/\n{\"msg\":\"forged\"}")),
		"all bytes":           record(at, slog.LevelInfo, "request", slog.String("path", string(every))),
		"a delete":            record(at, slog.LevelInfo, "request", slog.String("path", "\x7f")),
		"letters":             record(at, slog.LevelInfo, "request", slog.String("path", "путь\u2028")),
		"an odd key":          record(at, slog.LevelInfo, "request", slog.String("a\"b", "c")),
		"an odd message":      record(at, slog.LevelInfo, "a\tb", slog.String("a", "b")),
		"an error":            record(at, slog.LevelInfo, "request", slog.Int("n", 1), slog.Any("err", errors.New("no"))),
		"others":              record(at, slog.LevelInfo, "request", slog.Float64("f", 0.1), slog.Duration("d", time.Second), slog.Time("t", at), slog.Uint64("u", 1)),
		"a warning":           record(at, slog.LevelWarn, "slow", slog.String("a", "b")),
		"a level between":     record(at, slog.LevelInfo+1, "slow", slog.String("a", "b")),
		"no time":             record(time.Time{}, slog.LevelInfo, "request", slog.String("a", "b")),
		"far away":            record(time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC), slog.LevelInfo, "request", slog.String("a", "b")),
		"long ago":            record(time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC), slog.LevelInfo, "request", slog.String("a", "b")),
		"another zone":        record(at.In(time.FixedZone("x", 3600)), slog.LevelInfo, "request", slog.String("a", "b")),
		"many":                record(at, slog.LevelInfo, "request", slog.Int("a", 1), slog.Int("b", 2), slog.Int("c", 3), slog.Int("d", 4), slog.Int("e", 5), slog.Int("f", 6)),
		"now":                 record(time.Now(), slog.LevelInfo, "request", slog.String("a", "b")),
	} {
		var ours, theirs bytes.Buffer
		if err := newJSONHandler(&ours, slog.LevelInfo).Handle(t.Context(), r); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_ = slog.NewJSONHandler(&theirs, nil).Handle(t.Context(), r)
		if ours.String() != theirs.String() {
			t.Errorf("%s:\n%swant\n%s", name, ours.String(), theirs.String())
		}
	}
	h := newJSONHandler(io.Discard, slog.LevelInfo).(*jsonHandler)
	moments := []time.Time{at, at.Add(1), at.Add(time.Second), at.Add(time.Second / 2), at.Truncate(time.Second), at.Add(-time.Nanosecond), at.Add(999 * time.Millisecond), at.AddDate(0, 0, 1)}
	for _, zone := range []*time.Location{time.UTC, time.FixedZone("x", 3600), time.FixedZone("y", -12345), time.Local} {
		for _, moment := range moments {
			moment = moment.In(zone)
			if got, want := string(h.appendTime(nil, moment)), moment.Format(time.RFC3339Nano); got != want {
				t.Errorf("time %s, want %s", got, want)
			}
		}
	}
	var ours, theirs bytes.Buffer
	for w, h := range map[*bytes.Buffer]slog.Handler{&ours: newJSONHandler(&ours, slog.LevelInfo), &theirs: slog.NewJSONHandler(&theirs, nil)} {
		logger := slog.New(h).With("component", "discovery").WithGroup("of")
		logger.LogAttrs(t.Context(), slog.LevelDebug, "not to be seen")
		_ = logger.Handler().Handle(t.Context(), record(at, slog.LevelInfo, "cycle", slog.Int("services", 1)))
		if w.Len() == 0 {
			t.Error("nothing was written")
		}
	}
	if ours.String() != theirs.String() || strings.Contains(ours.String(), "not to be seen") {
		t.Errorf("a logger with attributes:\n%swant\n%s", ours.String(), theirs.String())
	}
}

func BenchmarkAccessLogLine(b *testing.B) {
	r := slog.NewRecord(time.Now(), slog.LevelInfo, "request", 0)
	r.AddAttrs(slog.Attr{Value: slog.GroupValue(slog.String("request_id", "0123456789abcdef0123456789abcdef"), slog.String("user", "alice"), slog.String("source", "authorization"),
		slog.String("decision", "allow"), slog.String("method", "GET"), slog.String("host", "05270714.proxy.test"), slog.String("path", "/"), slog.String("remote", "127.0.0.1:54356"),
		slog.String("operation_id", "1-2-3e8-1"), slog.String("task", "task"), slog.String("service", "ui"), slog.String("endpoint", "127.0.0.1:38135"), slog.Int("status", 200),
		slog.Bool("cached", true), slog.Int64("bytes_in", 0), slog.Int64("bytes_out", 1024), slog.Int64("duration_us", 400))})
	for _, h := range []struct {
		name    string
		handler slog.Handler
	}{{"ours", newJSONHandler(io.Discard, slog.LevelInfo)}, {"slog", slog.NewJSONHandler(io.Discard, nil)}} { //nolint:sloglint // what it costs is the question
		b.Run(h.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = h.handler.Handle(b.Context(), r)
			}
		})
	}
}
