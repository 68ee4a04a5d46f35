package proxy

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"taskproxy/auth"
	"taskproxy/discovery"
	"taskproxy/ytclient"
)

// The files attack_*_test.go are callers and jobs that mean harm, in raw bytes over real sockets. This one has what they
// share; attack_index_test.go says which attack is tried where.

// attack is a proxy on which alice may have one service, mine, and nothing else. Whoever connects to theirs fails the test.
type attack struct {
	*world
	mine, theirs *discovery.Service
	job          *strictJob // mine's
	asked        *journal   // the operations that alice was authorized for, or not
}

func newAttack(tb testing.TB, configure ...func(*Config)) *attack {
	tb.Helper()
	a := &attack{asked: new(journal)}
	authorizer := people()
	authorizer.authorize = func(_ context.Context, login, operation string, _ []ytclient.Permission) (auth.Decision, error) {
		a.asked.add(operation)
		if login != "alice" || operation != a.mine.OperationID {
			return auth.Decision{}, auth.ErrDenied
		}
		return auth.Decision{}, nil
	}
	a.world = newWorld(tb, append([]func(*Config){func(c *Config) { c.Authorizer = authorizer }}, configure...)...)
	a.job = newStrictJob(tb, "mine")
	a.mine = a.publish(discovery.Service{OperationID: "1f-2e-3e803e8-a", Alias: "*mine", Task: "t", Name: "ui"}, a.job.addr)
	a.theirs = a.publish(discovery.Service{OperationID: "2f-2e-3e803e8-b", Alias: "*theirs", Task: "t", Name: "ui", User: "bob"}, trap(tb))
	return a
}

// trap is the address of a job that nobody may reach.
func trap(tb testing.TB) string {
	tb.Helper()
	l := listen(tb)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.SetDeadline(time.Now().Add(time.Second))
			got := make([]byte, 512)
			n, _ := conn.Read(got)
			tb.Errorf("somebody reached a job that is not theirs to reach: %q", got[:n])
			conn.Close()
		}
	})
	tb.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

// fill writes hosts and names of the two services into a request: {mine}, {theirs.id}, {mine.op}, ... Line ends become CR LF.
func (a *attack) fill(text string) string {
	var pairs []string
	for name, s := range map[string]*discovery.Service{"mine": a.mine, "theirs": a.theirs} {
		pairs = append(pairs, "{"+name+"}", host(s), "{"+name+".id}", s.ID, "{"+name+".long}", s.LongID, "{"+name+".op}", s.OperationID,
			"{"+name+".alias}", s.Alias, "{"+name+".label}", s.AliasLabel+"."+base)
	}
	return strings.NewReplacer(append(pairs, "{token}", aliceToken, "\n", "\r\n")...).Replace(text)
}

// send sends bytes as they are on a connection of its own and returns everything that comes back until the proxy closes:
// whoever sends an attack that the proxy survives adds "Connection: close".
func (a *attack) send(tb testing.TB, text string) string {
	tb.Helper()
	conn := dial(tb, a.world)
	_, _ = io.WriteString(conn, text) // a refusal may come before the end
	all, err := io.ReadAll(conn)
	if err != nil && len(all) == 0 {
		tb.Errorf("no answer to %.200q: %v", text, err)
	}
	return string(all)
}

// outcome is what came of a request, in a word: the reason of a refusal, a bare status if net/http refused, or the job.
func outcome(text string) string {
	head, body, _ := strings.Cut(text, "\r\n\r\n")
	for line := range strings.SplitSeq(head, "\r\n") {
		if reason, ok := strings.CutPrefix(line, "X-Yt-Taskproxy-Error: "); ok {
			return reason
		}
	}
	if strings.HasPrefix(head, "HTTP/1.1 200 ") || strings.HasPrefix(head, "HTTP/1.0 200 ") {
		return body
	}
	_, status, _ := strings.Cut(head, " ")
	return status[:min(len(status), 3)]
}

// journal is a list that goroutines add to.
type journal struct {
	mu    sync.Mutex
	items []string
}

func (j *journal) add(s string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.items = append(j.items, s)
}

// take empties the list.
func (j *journal) take() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	items := j.items
	j.items = nil
	return items
}

// strictJob is a job that reads bytes and forgives nothing: a request that two readers could read in two ways fails the test,
// and so does a credential anywhere in it. It answers each request with its name and keeps connections open.
type strictJob struct {
	name   string
	addr   string
	errorf func(format string, args ...any)
	conns  atomic.Int64         // that were opened so far
	seen   *journal             // requests, as they came
	calls  func(request string) // nil: nobody is told of each
	// bodies may hold what look like credentials: they are requests that a length has swallowed
	bodies bool
}

func newStrictJob(tb testing.TB, name string) *strictJob {
	tb.Helper()
	l := listen(tb)
	j := &strictJob{name: name, errorf: tb.Errorf, addr: l.Addr().String(), seen: new(journal)}
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			j.conns.Add(1)
			mu.Lock()
			open[conn] = true
			mu.Unlock()
			wg.Go(func() {
				j.serve(conn)
				conn.Close()
				mu.Lock()
				delete(open, conn)
				mu.Unlock()
			})
		}
	})
	tb.Cleanup(func() {
		l.Close()
		mu.Lock()
		for conn := range open {
			conn.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return j
}

func (j *strictJob) serve(conn net.Conn) {
	r := bufio.NewReaderSize(conn, 128<<10)
	for {
		var request bytes.Buffer
		if !j.readRequest(r, &request) {
			return
		}
		text := request.String()
		head, _, _ := strings.Cut(text, "\r\n\r\n")
		if strings.Contains(head, "s3cret") || !j.bodies && strings.Contains(text, "s3cret") {
			j.errorf("a credential reached the job: %q", text)
		}
		if j.calls != nil {
			j.calls(text)
		} else {
			j.seen.add(text)
		}
		if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: "+strconv.Itoa(len(j.name))+"\r\n\r\n"+j.name); err != nil {
			return
		}
	}
}

// readRequest reads one request into b. It reports false at the end of the connection, which may come at any time.
func (j *strictJob) readRequest(r *bufio.Reader, b *bytes.Buffer) bool {
	line, ok := j.readLine(r, b)
	if !ok {
		return false
	}
	method, rest, _ := strings.Cut(line, " ")
	target, proto, _ := strings.Cut(rest, " ")
	if method == "" || strings.Trim(method, tokenBytes) != "" || !strings.HasPrefix(target, "/") || strings.ContainsAny(target, "#\"<>\\^`{|}") || proto != "HTTP/1.1" {
		j.errorf("request line %q", line)
	}
	hosts, lengths, chunked := 0, []string(nil), 0
	for {
		line, ok := j.readLine(r, b)
		if !ok {
			return false
		}
		if line == "" {
			break
		}
		name, value, colon := strings.Cut(line, ":")
		if !colon || name == "" || strings.Trim(name, tokenBytes) != "" {
			j.errorf("header line %q", line)
		}
		switch value = strings.TrimSpace(value); strings.ToLower(name) {
		case "host":
			hosts++
		case "content-length":
			lengths = append(lengths, value)
		case "transfer-encoding":
			chunked++
			if value != "chunked" {
				j.errorf("header line %q", line)
			}
		}
	}
	if hosts != 1 || len(lengths)+chunked > 1 {
		j.errorf("%d hosts, %d lengths, %d encodings in %q", hosts, len(lengths), chunked, b.String())
	}
	switch {
	case chunked > 0:
		return j.readChunks(r, b)
	case len(lengths) > 0:
		n, err := strconv.ParseUint(lengths[0], 10, 31)
		if err != nil {
			j.errorf("length %q", lengths[0])
			return false
		}
		_, err = io.CopyN(b, r, int64(n))
		return err == nil
	}
	return true
}

// readChunks reads a chunked body and its trailers.
func (j *strictJob) readChunks(r *bufio.Reader, b *bytes.Buffer) bool {
	for {
		line, ok := j.readLine(r, b)
		if !ok {
			return false
		}
		n, err := strconv.ParseUint(line, 16, 31)
		if err != nil {
			j.errorf("chunk size %q", line)
			return false
		}
		if n == 0 {
			break
		}
		if _, err := io.CopyN(b, r, int64(n)); err != nil {
			return false
		}
		if line, ok := j.readLine(r, b); !ok || line != "" {
			if ok {
				j.errorf("a chunk ends in %q", line)
			}
			return false
		}
	}
	for {
		line, ok := j.readLine(r, b)
		if !ok || line == "" {
			return ok
		}
		if name, _, colon := strings.Cut(line, ":"); !colon || name == "" || strings.Trim(name, tokenBytes) != "" {
			j.errorf("trailer line %q", line)
		}
	}
}

// readLine reads up to CR LF, which no line may contain otherwise.
func (j *strictJob) readLine(r *bufio.Reader, b *bytes.Buffer) (string, bool) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return "", false
	}
	b.Write(line)
	text := strings.TrimSuffix(string(line), "\r\n")
	if len(text) != len(line)-2 || strings.ContainsAny(text, "\r\x00") {
		j.errorf("line %q", line)
	}
	return text, true
}

const tokenBytes = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
