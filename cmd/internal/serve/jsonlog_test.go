package serve

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"taskproxy/discovery"
	"taskproxy/proxy"
)

// members are attributes that write themselves.
type members []slog.Attr

func (m members) LogValue() slog.Value { return slog.GroupValue(m...) }

func (m members) AppendJSON(text []byte) []byte {
	var b bytes.Buffer
	_ = slog.NewJSONHandler(&b, nil).Handle(context.Background(), record(time.Time{}, slog.LevelInfo, "", m...))
	return append(text, bytes.TrimSuffix(bytes.TrimPrefix(b.Bytes(), []byte(`{"level":"INFO","msg":""`)), []byte("}\n"))...)
}

func record(at time.Time, level slog.Level, message string, attrs ...slog.Attr) slog.Record {
	r := slog.NewRecord(at, level, message, 0)
	r.AddAttrs(attrs...)
	return r
}

// Whatever is logged, the line is the one that slog writes.
func TestJSONLogIsThatOfSlog(t *testing.T) {
	group := func(attrs ...slog.Attr) slog.Attr { return slog.Attr{Value: slog.GroupValue(attrs...)} }
	at := time.Date(2026, 11, 22, 1, 2, 3, 456789000, time.UTC)
	itself := slog.Any("", members{slog.String("user", "alice"), slog.String("path", "/a\"b"), slog.Int("status", 200), slog.Bool("cached", true)})
	every := make([]byte, 0, 256)
	for c := range 256 {
		every = append(every, byte(c))
	}
	for name, r := range map[string]slog.Record{
		"a request": record(at, slog.LevelInfo, "request", group(slog.String("user", "alice"), slog.String("path", "/a?<>&'"), slog.Int("status", 200),
			slog.Bool("cached", true), slog.Int64("bytes_out", math.MaxInt64), slog.Int64("bytes_in", math.MinInt64))),
		"itself":              record(at, slog.LevelInfo, "request", itself),
		"itself, of nothing":  record(at, slog.LevelInfo, "request", slog.Any("", members{})),
		"itself now":          record(time.Now(), slog.LevelInfo, "request", itself),
		"with a key":          record(at, slog.LevelInfo, "request", slog.Any("of", members{slog.Int("a", 1)})),
		"not alone":           record(at, slog.LevelInfo, "request", itself, slog.Int("a", 1)),
		"not the first":       record(at, slog.LevelInfo, "request", slog.Int("a", 1), itself),
		"twice":               record(at, slog.LevelInfo, "request", itself, itself),
		"another message":     record(at, slog.LevelInfo, "ready", itself),
		"another level":       record(at, slog.LevelWarn, "request", itself),
		"itself at no time":   record(time.Time{}, slog.LevelInfo, "request", itself),
		"itself far away":     record(time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC), slog.LevelInfo, "request", itself),
		"itself at the end":   record(time.Date(9999, 12, 31, 23, 59, 59, 0, time.FixedZone("x", -3600)), slog.LevelInfo, "request", itself),
		"itself long ago":     record(time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC), slog.LevelInfo, "request", itself),
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

// kept is a slog.Handler that keeps the last record.
type kept struct {
	slog.Handler
	record slog.Record
}

func (k *kept) Enabled(context.Context, slog.Level) bool { return true }

func (k *kept) Handle(_ context.Context, r slog.Record) error {
	k.record = r.Clone()
	return nil
}

// accessLogRecord is what the proxy gives to its access log for a request.
func accessLogRecord(tb testing.TB) slog.Record {
	tb.Helper()
	bases, err := discovery.NewBases("proxy.test")
	must(tb, err)
	log := new(kept)
	p, err := proxy.New(proxy.Config{Bases: bases, Table: proxy.NewTable(), AuthDisabled: true, AccessLog: slog.New(log)})
	must(tb, err)
	defer p.Close()
	p.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(tb.Context(), http.MethodGet, "http://05270714.proxy.test/%22a%22?x=y", nil))
	return log.record
}

// What every request has is among what writes itself.
func TestAccessLogLineWritesItself(t *testing.T) {
	r := accessLogRecord(t)
	if fieldsOf(&r) == nil {
		t.Errorf("record %q of level %s with %d attributes goes the long way", r.Message, r.Level, r.NumAttrs())
	}
	var ours, theirs bytes.Buffer
	_ = newJSONHandler(&ours, slog.LevelInfo).Handle(t.Context(), r)
	_ = slog.NewJSONHandler(&theirs, nil).Handle(t.Context(), r)
	if ours.String() != theirs.String() || !strings.Contains(ours.String(), `"host":"05270714.proxy.test","path":"/%22a%22",`) {
		t.Errorf("got\n%swant\n%s", &ours, &theirs)
	}
}

func BenchmarkAccessLogLine(b *testing.B) {
	r := accessLogRecord(b)
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
