package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"testing"
	"time"

	"taskproxy/discovery"
)

// The steps of a request that are ours, one by one; resolving is BenchmarkResolve, and looking up in tables of several sizes is
// discovery's BenchmarkLookup.

// BenchmarkBalance takes the next endpoint, with none set aside and with one that is.
func BenchmarkBalance(b *testing.B) {
	w := newWorld(b)
	for _, n := range []int{1, 3, 100} {
		addrs := make([]string, n)
		for i := range addrs {
			addrs[i] = fmt.Sprintf("10.0.0.1:%d", 20000+i)
		}
		s := w.publish(discovery.Service{}, addrs...)
		run := func(b *testing.B, a *setAside) {
			nobody := func(*discovery.Service, discovery.Endpoint) {}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				x := new(exchange)
				for pb.Next() {
					t := turn{service: s, aside: a, failed: nobody, tried: x.tried[:0]}
					if _, ok := t.next(x); !ok && n > 1 {
						b.Error("no endpoint")
					}
				}
			})
		}
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) { run(b, newSetAside()) })
		a := newSetAside()
		a.failed(s.Endpoints[0])
		b.Run(fmt.Sprintf("endpoints=%d/aside=1", n), func(b *testing.B) { run(b, a) })
	}
}

// browserHeader is what a browser sends.
var browserHeader = http.Header{
	"Accept":          {"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"},
	"Accept-Encoding": {"gzip, deflate, br"}, "Accept-Language": {"en-US,en;q=0.5"},
	"Cookie":         {"_ga=GA1.2.3; session=0123456789abcdef; YTCypressCookie=" + aliceToken + "; theme=dark"},
	"Sec-Fetch-Dest": {"empty"}, "Sec-Fetch-Mode": {"cors"}, "Sec-Fetch-Site": {"same-origin"},
	"User-Agent": {"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"},
}

// BenchmarkRewrite is what is done to a browser's request on its way to the job, and to the answer on its way back; the copies of
// the request and of the answer's headers are made outside, by ReverseProxy and here.
func BenchmarkRewrite(b *testing.B) {
	w := newWorld(b)
	s := w.publish(discovery.Service{}, "10.0.0.1:20000")
	in, _ := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://"+host(s)+"/static/app.js?v=1", nil)
	in.RemoteAddr, in.Header = "192.0.2.1:40000", browserHeader
	answer := http.Header{"Content-Type": {"text/html"}, "Content-Length": {"1024"}, "Date": {"Sat, 01 Jan 2000 00:00:00 GMT"}, "Etag": {`"1"`}}
	header := make(http.Header)
	begin := func(b *testing.B) *exchange {
		x := w.proxy.begin(nullWriter{http.Header{}}, in)
		if err := w.proxy.identify(x); err != nil {
			b.Fatal(err)
		}
		x.service = s
		return x
	}
	b.Run("request", func(b *testing.B) {
		out, x := in.Clone(b.Context()), begin(b)
		out.Header = header
		b.ReportAllocs()
		for b.Loop() {
			clear(header)
			for name, values := range browserHeader {
				header[name] = values
			}
			x.used = 0
			w.proxy.rules.rewrite(out, x)
		}
		if slices.Contains(out.Header["Cookie"], browserHeader["Cookie"][0]) {
			b.Error("the login cookie is still there")
		}
	})
	b.Run("answer", func(b *testing.B) {
		x := begin(b)
		b.ReportAllocs()
		for b.Loop() {
			clear(header)
			for name, values := range answer {
				header[name] = values
			}
			x.used = 0
			w.proxy.rules.cleanAnswer(header, x)
			w.proxy.rules.protect(http.StatusOK, header, x)
		}
	})
}

// BenchmarkWhileTablesChange resolves, in a table of 10,000 services that stays, and while it is swapped every millisecond. What the
// slowest of a hundred and of a thousand take has nothing to do with that: nobody waits for a table.
func BenchmarkWhileTablesChange(b *testing.B) {
	bases, _ := discovery.NewBases(base)
	snapshot := manyServices()
	table := NewTable()
	table.Store(snapshot)
	r := ways(snapshot.Services()[5000])["host"]
	if r == nil {
		b.Fatal("there is no way by host")
	}
	run := func(b *testing.B) {
		took := make([]time.Duration, 0, 1<<20)
		for b.Loop() {
			began := time.Now()
			name := readName(bases, r)
			if _, err := name.resolve(table.Load()); err != nil {
				b.Fatal(err)
			}
			if len(took) < cap(took) {
				took = append(took, time.Since(began))
			}
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)*99/100]), "p99-ns")
		b.ReportMetric(float64(took[len(took)*999/1000]), "p99.9-ns")
	}
	b.Run("still", run)
	others := [...]*discovery.Snapshot{snapshot, manyServices()}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-ticker.C:
				table.Store(others[i%len(others)])
			}
		}
	}()
	b.Run("swapped", run)
	close(stop)
	<-stopped
}

// appender is a LineHandler that keeps the last line.
type appender struct {
	slog.Handler
	text []byte
}

func (*appender) Enabled(context.Context, slog.Level) bool { return true }

func (a *appender) HandleLine(_ time.Time, line Line) error {
	a.text = line.AppendJSON(a.text[:0])
	return nil
}

// BenchmarkEnd is the end of a request: its metrics, and the text of its line in the access log.
func BenchmarkEnd(b *testing.B) {
	w := newWorld(b)
	s := w.publish(discovery.Service{}, "10.0.0.1:20000")
	in, _ := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://"+host(s)+"/static/app.js?v=1", nil)
	in.RemoteAddr, in.Header = "192.0.2.1:40000", browserHeader
	x := w.proxy.begin(nullWriter{http.Header{}}, in)
	if err := w.proxy.identify(x); err != nil {
		b.Fatal(err)
	}
	x.service, x.endpoint, x.authorized, x.finished, x.w.status = s, s.Endpoints[0], true, true, http.StatusOK
	for _, log := range []struct {
		name    string
		handler slog.Handler
	}{{"line", new(appender)}, {"none", slog.DiscardHandler}} {
		b.Run(log.name, func(b *testing.B) {
			w.proxy.cfg.AccessLog = slog.New(log.handler)
			b.ReportAllocs()
			for b.Loop() {
				w.proxy.end(x)
			}
		})
	}
}
