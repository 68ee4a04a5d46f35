package serve

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskproxy/discovery"
	"taskproxy/proxy"
)

// moments are times, the earliest first, of which some need all digits and some none.
func moments(zone *time.Location) []time.Time {
	at := time.Date(2026, 11, 22, 1, 2, 3, 456789000, zone)
	return []time.Time{at.Truncate(time.Second), at.Add(-1), at, at.Add(1), at.Add(time.Second / 2), at.Add(999 * time.Millisecond), at.Add(time.Second), at.AddDate(0, 0, 1)}
}

func TestJSONLogTime(t *testing.T) {
	h := newJSONHandler(io.Discard, slog.LevelInfo).(*jsonHandler)
	for _, zone := range []*time.Location{time.UTC, time.FixedZone("x", 3600), time.FixedZone("y", -12345), time.Local} {
		for _, moment := range moments(zone) {
			if got, want := string(h.appendTime(nil, moment)), moment.Format(time.RFC3339Nano); got != want {
				t.Errorf("time %s, want %s", got, want)
			}
		}
	}
}

// request makes the proxy write a line into log.
func request(tb testing.TB, log slog.Handler, path string) {
	tb.Helper()
	bases, err := discovery.NewBases("proxy.test")
	must(tb, err)
	p, err := proxy.New(proxy.Config{Bases: bases, Table: proxy.NewTable(), AuthDisabled: true, AccessLog: slog.New(log)})
	must(tb, err)
	defer p.Close()
	r := httptest.NewRequestWithContext(tb.Context(), http.MethodGet, "http://05270714.proxy.test"+path, nil)
	r.Header.Set("X-Request-Id", "1")
	p.ServeHTTP(httptest.NewRecorder(), r)
}

// The line of a request is written in another way than others. It is the one that slog writes.
func TestJSONLogLineIsThatOfSlog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the same request has the same time
		var ours, theirs bytes.Buffer
		log := newJSONHandler(&ours, slog.LevelInfo)
		if _, ok := log.(proxy.LineHandler); !ok {
			t.Error("lines go the long way")
		}
		paths := []string{"/", "/%22a%22?x=y", "/%d0%bf", "/" + strings.Repeat("a", 300), "/" + strings.Repeat("a", 10000), "/<>&'%00"}
		for i, moment := range moments(time.Local) {
			time.Sleep(time.Until(moment))
			request(t, log, paths[i%len(paths)])
			request(t, slog.NewJSONHandler(&theirs, nil), paths[i%len(paths)])
		}
		if ours.String() != theirs.String() || strings.Count(ours.String(), `"host":"05270714.proxy.test","path":"`) != len(moments(time.Local)) {
			t.Errorf("got\n%swant\n%s", &ours, &theirs)
		}
	})
}

// What a logger was given is in a line too.
func TestJSONLogWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ours, theirs bytes.Buffer
		for w, h := range map[*bytes.Buffer]slog.Handler{&ours: newJSONHandler(&ours, slog.LevelInfo), &theirs: slog.NewJSONHandler(&theirs, nil)} {
			logger := slog.New(h).With("component", "discovery").WithGroup("of")
			logger.LogAttrs(t.Context(), slog.LevelDebug, "not to be seen")
			logger.LogAttrs(t.Context(), slog.LevelInfo, "cycle", slog.Int("services", 1))
			request(t, logger.Handler(), "/")
			if w.Len() == 0 {
				t.Error("nothing was written")
			}
		}
		if ours.String() != theirs.String() || strings.Contains(ours.String(), "not to be seen") || strings.Count(ours.String(), `"component":"discovery"`) != 2 {
			t.Errorf("got\n%swant\n%s", &ours, &theirs)
		}
	})
}

// lastLine is a proxy.LineHandler that keeps the last line.
type lastLine struct {
	slog.Handler
	line proxy.Line
}

func (*lastLine) Enabled(context.Context, slog.Level) bool { return true }

func (l *lastLine) HandleLine(_ time.Time, line proxy.Line) error {
	l.line = line
	return nil
}

func BenchmarkAccessLogLine(b *testing.B) {
	last := new(lastLine)
	request(b, last, "/")
	log, at := newJSONHandler(io.Discard, slog.LevelInfo).(*jsonHandler), time.Now()
	b.ReportAllocs()
	for b.Loop() {
		_ = log.HandleLine(at, last.line)
	}
}
