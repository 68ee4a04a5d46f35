package proxy

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"taskproxy/auth"
	"taskproxy/discovery"
)

// Every handler gets these attributes, in this order.
func TestLine(t *testing.T) {
	t.Parallel()
	whole := &exchange{
		in: &http.Request{Method: "GET", Host: "a.test", URL: &url.URL{Path: "/a b", RawQuery: "token=s3cret"}, RemoteAddr: "192.0.2.1:1"},
		id: "1", login: "alice", source: auth.SourceCookie, authorized: true, cached: true, grpc: true, grpcStatus: "14", attempts: 2, failure: causeConnect, err: errors.New("no\nway"),
		service: &discovery.Service{OperationID: "1-2", Task: "t", Name: "путь"}, endpoint: discovery.Endpoint{Addr: "10.0.0.1:2"},
	}
	whole.w.status, whole.took = 503, 1500*time.Millisecond
	whole.bytesIn.Store(5)
	whole.bytesOut.Store(1 << 62)
	little := &exchange{in: &http.Request{Method: "GET", URL: &url.URL{Path: "/"}}}
	for _, c := range []struct {
		x    *exchange
		want string
	}{
		{whole, `request_id=1 user=alice source=cookie decision=allow method=GET host=a.test path=/a%20b remote=192.0.2.1:1 protocol=grpc ` +
			`operation_id=1-2 task=t service="\"\\u043f\\u0443\\u0442\\u044c\"" endpoint=10.0.0.1:2 attempts=2 status=503 grpc_status=14 reason=connect_failed err="\"no\\nway\"" ` +
			`cached=true bytes_in=5 bytes_out=4611686018427387904 duration_us=1500000`},
		{little, `method=GET path=/ protocol=http status=0 cached=false bytes_in=0 bytes_out=0 duration_us=0`},
	} {
		c.x.w.rules = new(rules)
		if got := logged(t, c.x, true); got != "level=INFO msg=request "+c.want+"\n" {
			t.Errorf("got  %swant %s", got, c.want)
		}
		checkText(t, c.x)
	}
}

// logged is the line as slog's handlers write it, without a time.
func logged(tb testing.TB, x *exchange, words bool) string {
	tb.Helper()
	var b bytes.Buffer
	var h slog.Handler = slog.NewJSONHandler(&b, nil)
	if words {
		h = slog.NewTextHandler(&b, nil)
	}
	r := slog.NewRecord(time.Time{}, slog.LevelInfo, "request", 0)
	x.logTo(&fields{record: &r})
	if err := h.Handle(tb.Context(), r); err != nil {
		tb.Fatal(err)
	}
	return b.String()
}

// checkText compares the text of a line with what slog makes of it.
func checkText(tb testing.TB, x *exchange) {
	tb.Helper()
	begun := `{"level":"INFO",`
	if got, want := string(x.AppendJSON([]byte(begun)))+"}\n", logged(tb, x, false); got != want {
		tb.Errorf("got\n%swant\n%s", got, want)
	}
}

// FuzzLine has what strangers write in a line: the text is the one that slog writes, and stays one line.
func FuzzLine(f *testing.F) {
	every := make([]byte, 256)
	for c := range every {
		every[c] = byte(c)
	}
	for _, s := range []string{"", "a", string(every[:128]), string(every[128:]), "\"\\\x7f\u2028\xff", "\n{\"msg\":\"forged\"}", strings.Repeat("a", maxQuoted), strings.Repeat("a", maxQuoted+1), strings.Repeat("\\", 1000)} {
		f.Add(s, s, s, s, int64(len(s)))
	}
	f.Add("GET", "<&>'", "%2f?", "no", int64(-1<<63))
	f.Fuzz(func(t *testing.T, method, host, path, name string, n int64) {
		x := &exchange{in: &http.Request{Method: method, Host: host, URL: &url.URL{Path: path}}, service: &discovery.Service{Name: name}, err: errors.New(name), grpcStatus: name,
			took: time.Duration(n)}
		x.w.rules = new(rules)
		x.bytesIn.Store(n)
		checkText(t, x)
		if text := x.AppendJSON(nil); bytes.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%q", text)
		}
	})
}
