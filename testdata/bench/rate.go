package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc/metadata"
)

// target declares the flags that say where requests go, and as whose.
func target(fs *flag.FlagSet) (addr, host, token *string) {
	return fs.String("addr", "", "the proxy's host:port"), fs.String("host", "", "Host or :authority"), fs.String("token", "", "Authorization")
}

// latency is how long requests took from the moment when they were due.
type latency struct {
	Count, Errors  int64
	P50, P99, P999 float64 // microseconds
	SecondP99      float64 // the median of the seconds' own P99
}

// requester sends one request and reads its answer to the end.
type requester interface {
	do() error
	io.Closer
}

// overHTTP is a keep-alive connection.
type overHTTP struct {
	net.Conn
	in      *bufio.Reader
	request []byte
}

func newOverHTTP(addr, host, token string) (*overHTTP, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	request := fmt.Appendf(nil, "GET / HTTP/1.1\r\nHost: %s\r\nAuthorization: %s\r\nUser-Agent: bench\r\n\r\n", host, token)
	return &overHTTP{conn, bufio.NewReader(conn), request}, nil
}

func (o *overHTTP) do() error {
	if _, err := o.Write(o.request); err != nil {
		return err
	}
	res, err := http.ReadResponse(o.in, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	return nil
}

// overGRPC is a connection with one unary call at a time.
type overGRPC struct {
	ctx context.Context
	io.Closer
	invoke func(context.Context) error
}

func newOverGRPC(addr, host, token string) (*overGRPC, error) {
	conn, err := dialGRPC(addr, host)
	if err != nil {
		return nil, err
	}
	return &overGRPC{metadata.AppendToOutgoingContext(context.Background(), "authorization", token), conn, func(ctx context.Context) error {
		var out []byte
		return conn.Invoke(ctx, sayHello, &world, &out)
	}}, nil
}

func (o *overGRPC) do() error { return o.invoke(o.ctx) }

// rate sends requests at a fixed rate whether or not earlier ones were answered, and times each from when it was due: a
// proxy that stalls cannot hide the requests that wait meanwhile. Arrivals are a Poisson process.
func rate(args []string) error {
	fs := flags("rate")
	addr, host, token := target(fs)
	connections := fs.Int("c", 32, "connections")
	perSecond := fs.Float64("rps", 1500, "requests per second, of all connections")
	lasting := fs.Duration("d", 3*time.Second, "how long")
	viaGRPC := fs.Bool("grpc", false, "unary gRPC calls instead of HTTP/1.1")
	if err := fs.Parse(args); err != nil {
		return err
	}
	requesters := make([]requester, *connections)
	for i := range requesters {
		var err error
		if *viaGRPC {
			requesters[i], err = newOverGRPC(*addr, *host, *token)
		} else {
			requesters[i], err = newOverHTTP(*addr, *host, *token)
		}
		if err == nil {
			err = requesters[i].do() // the connection is there, and the caller known, before anything is timed
		}
		if err != nil {
			return err
		}
		defer requesters[i].Close()
	}
	runtime.GOMAXPROCS(8) // the pacer sleeps in the kernel and must not keep a needed processor meanwhile
	due := make(chan time.Time, int(*perSecond*lasting.Seconds()*2))
	go pace(due, *perSecond, *lasting)

	var mu sync.Mutex
	var took []answered
	var failed atomic.Int64
	var all sync.WaitGroup
	for _, r := range requesters {
		all.Go(func() {
			var mine []answered
			for at := range due {
				if err := r.do(); err != nil {
					failed.Add(1)
					break
				}
				mine = append(mine, answered{at, time.Since(at)})
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, mine...)
		})
	}
	all.Wait()
	if len(took) == 0 {
		return errors.New("no request was answered")
	}
	return json.NewEncoder(os.Stdout).Encode(latency{
		Count: int64(len(took)), Errors: failed.Load(), SecondP99: secondP99(took), P50: quantile(took, 0.5), P99: quantile(took, 0.99), P999: quantile(took, 0.999),
	})
}

// answered is one request.
type answered struct {
	due  time.Time
	took time.Duration
}

// quantile of what requests took, in microseconds, of which there is at least one. It sorts them by that.
func quantile(all []answered, q float64) float64 {
	byTook := func(a, b answered) int { return cmp.Compare(a.took, b.took) }
	if !slices.IsSortedFunc(all, byTook) {
		slices.SortFunc(all, byTook)
	}
	return float64(all[int(q*float64(len(all)-1))].took.Nanoseconds()) / 1e3
}

// secondP99 takes each second for itself: what disturbs the machine for a moment spoils one of them, and what happens every
// second is in all.
func secondP99(all []answered) float64 {
	begin := slices.MinFunc(all, func(a, b answered) int { return a.due.Compare(b.due) }).due
	seconds := map[time.Duration][]answered{}
	for _, a := range all {
		second := a.due.Sub(begin) / time.Second
		seconds[second] = append(seconds[second], a)
	}
	var each []float64
	for _, in := range seconds {
		each = append(each, quantile(in, 0.99))
	}
	return median(each)
}

// pace says when requests are due, and closes the channel at the end. Go's own timers are too coarse for this.
func pace(due chan<- time.Time, perSecond float64, lasting time.Duration) {
	runtime.LockOSThread()
	defer close(due)
	next := time.Now().Add(200 * time.Millisecond)
	for end := next.Add(lasting); next.Before(end); {
		if wait := time.Until(next); wait > 0 {
			ts := syscall.NsecToTimespec(int64(wait))
			_ = syscall.Nanosleep(&ts, nil) // cut short by a signal: the request is due a little early
		}
		due <- next
		next = next.Add(time.Duration(rand.ExpFloat64() / perSecond * 1e9))
	}
}

// hold opens connections, uses each once, prints READY and keeps them until its input ends.
func hold(args []string) error {
	fs := flags("hold")
	addr, host, token := target(fs)
	connections := fs.Int("n", 5000, "connections")
	upgraded := fs.Bool("ws", false, "WebSockets instead of keep-alive connections")
	if err := fs.Parse(args); err != nil {
		return err
	}
	open := func() (io.Closer, error) {
		if *upgraded {
			w, err := openWebSocket(*addr, *host, *token)
			if err != nil {
				return nil, err
			}
			return w, w.ping(kibibyte[:128])
		}
		c, err := newOverHTTP(*addr, *host, *token)
		if err != nil {
			return nil, err
		}
		return c, c.do()
	}
	var group sync.WaitGroup
	held := make([]io.Closer, *connections)
	errs := make([]error, *connections)
	slots := make(chan struct{}, 64)
	for i := range held {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			held[i], errs[i] = open()
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Println("READY")
	copyOut(os.Stdin)
	for _, c := range held {
		c.Close()
	}
	return nil
}
