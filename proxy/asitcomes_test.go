package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"taskproxy/discovery"
)

// What a job says reaches the caller before it says more, whatever it is and however long it will be; and a job learns that its
// caller has left.
func TestAnswersPassAsTheyCome(t *testing.T) {
	t.Parallel()
	for version := range versions {
		for name, c := range map[string]struct {
			contentType string
			length      int
		}{
			"events":                    {"text/event-stream", 0},
			"events with a type's rest": {"text/event-stream; charset=utf-8", 0},
			"events of known length":    {"text/event-stream", 1000},
			"text":                      {"text/plain", 0},
			"text of known length":      {"text/plain", 1000},
			"a large file":              {"application/octet-stream", 10 << 20},
		} {
			t.Run(version+", "+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				more, left := make(chan struct{}), make(chan struct{})
				s := w.publish(discovery.Service{}, serveUnguarded(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					defer close(left)
					rw.Header().Set("Content-Type", c.contentType)
					if c.length > 0 {
						rw.Header().Set("Content-Length", strconv.Itoa(c.length))
					}
					if c.length == 0 || c.length > 1<<20 { // its headers alone
						_ = http.NewResponseController(rw).Flush()
						<-more
					}
					for i := range 3 {
						fmt.Fprintf(rw, "data: %d\n\n", i)
						_ = http.NewResponseController(rw).Flush()
						<-more
					}
					<-r.Context().Done()
				})))
				res, err := newCaller(t, version).Do(w.request(http.MethodGet, host(s), "/", nil))
				if err != nil {
					t.Fatal(err)
				}
				if c.length == 0 || c.length > 1<<20 {
					more <- struct{}{}
				}
				reader := bufio.NewReader(res.Body)
				for i := range 3 {
					line, err := reader.ReadString('\n')
					if _, failed := reader.ReadString('\n'); line != fmt.Sprintf("data: %d\n", i) || err != nil || failed != nil {
						t.Fatalf("got %q, %v, %v", line, err, failed)
					}
					more <- struct{}{}
				}
				res.Body.Close()
				<-left
			})
		}
	}
}

// An upload and its answer go on at once.
func TestBothWaysAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serveUnguarded(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(rw)
		_ = control.EnableFullDuplex()
		_ = control.Flush()
		_, _ = io.Copy(writeFlusher{rw, control}, r.Body)
	})))
	for version := range versions {
		body, send := io.Pipe()
		res, err := newCaller(t, version).Do(w.request(http.MethodPost, host(s), "/", body))
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range []int{1, 10, 100_000, 3} {
			go func() { _, _ = io.CopyN(send, neverending('x'), int64(size)) }()
			if _, err := io.CopyN(io.Discard, res.Body, int64(size)); err != nil {
				t.Fatalf("%s: %v", version, err)
			}
		}
		send.Close()
		if rest, err := io.ReadAll(res.Body); err != nil || len(rest) > 0 {
			t.Errorf("%s: rest %q, %v", version, rest, err)
		}
		res.Body.Close()
	}
}

type writeFlusher struct {
	io.Writer
	control *http.ResponseController
}

func (w writeFlusher) Write(b []byte) (int, error) {
	n, err := w.Writer.Write(b)
	return n, errors.Join(err, w.control.Flush())
}

// Jobs and callers of HTTP/1.0, whose bodies end with the connection.
func TestHTTP10(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 100_000)
	// job answers requests that it has read to their end, and closes only connections that it did not promise to keep: a POST may be lost otherwise.
	job := func(answer string, keeps bool) string {
		return rawJob(t, func(conn net.Conn, r *http.Request, reader *bufio.Reader) {
			for err := error(nil); err == nil; r, err = http.ReadRequest(reader) {
				_, _ = io.Copy(io.Discard, r.Body)
				if _, _ = io.WriteString(conn, answer); !keeps {
					return
				}
			}
		})
	}
	jobs := map[string]string{
		"a job of HTTP/1.0":                      job("HTTP/1.0 200 OK\r\nX-A: 1\r\n\r\n"+long, false),
		"one that keeps connections":             job("HTTP/1.0 200 OK\r\nX-A: 1\r\nConnection: keep-alive\r\nContent-Length: 100000\r\n\r\n"+long, true),
		"one of HTTP/1.1 without a length":       job("HTTP/1.1 200 OK\r\nX-A: 1\r\nConnection: close\r\n\r\n"+long, false),
		"a chunked one":                          job("HTTP/1.1 200 OK\r\nX-A: 1\r\nTransfer-Encoding: chunked\r\n\r\n186a0\r\n"+long+"\r\n0\r\nX-T: 1\r\n\r\n", true),
		"one without a reason phrase or a space": job("HTTP/1.1 200\r\nX-A: 1\r\nContent-Length: 100000\r\n\r\n"+long, true),
	}
	w := newWorld(t) // closes its connections before the jobs end
	for name, addr := range jobs {
		s := w.publish(discovery.Service{}, addr)
		for version := range versions {
			for range 2 {
				res, err := newCaller(t, version).Do(w.request(http.MethodGet, host(s), "/", nil))
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil || res.StatusCode != 200 || string(body) != long || res.Header.Get("X-A") != "1" {
					t.Errorf("%s, %s: got %d, %v, %d bytes, %v", name, version, res.StatusCode, res.Header, len(body), err)
				}
			}
		}
		for _, keep := range []string{"", "Connection: keep-alive\r\n"} {
			a := w.raw("GET / HTTP/1.0\r\n" + asAlice(s) + keep + "\r\n")
			if a.StatusCode != 200 || a.body != long || len(a.TransferEncoding) > 0 {
				t.Errorf("%s, a caller of HTTP/1.0 (%q): got %d, %v, %v, %d bytes", name, keep, a.StatusCode, a.Header, a.TransferEncoding, len(a.body))
			}
		}
		a := w.raw("POST / HTTP/1.0\r\n" + asAlice(s) + "Content-Length: 5\r\n\r\nhello")
		if a.StatusCode != 200 || a.body != long {
			t.Errorf("%s, a POST of HTTP/1.0: got %d, %d bytes", name, a.StatusCode, len(a.body))
		}
	}
}

// Requests that are sent before the answer to the one before are answered one after the other, bodies or not.
func TestPipelinedRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, echoJob("a")))
	conn := dial(t, w)
	want := []string{"/1", "/2 hello", "/3 world", "/4"}
	send(t, conn, "GET /1 HTTP/1.1\r\n"+asAlice(s)+"\r\nPOST /2 HTTP/1.1\r\n"+asAlice(s)+"Content-Length: 5\r\n\r\nhello"+
		"POST /3 HTTP/1.1\r\n"+asAlice(s)+"Transfer-Encoding: chunked\r\n\r\n5\r\nworld\r\n0\r\n\r\nGET /4 HTTP/1.1\r\n"+asAlice(s)+"\r\n")
	reader := bufio.NewReader(conn)
	for _, want := range want {
		res, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatalf("%s: %v", want, err)
		}
		body, _ := io.ReadAll(res.Body)
		e := answer{res, string(body)}.echo(t)
		if got := strings.TrimSpace(e.Target + " " + e.Body); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Messages of 8 MiB, more than any buffer or window holds, and metadata of 40 KiB pass in both directions; a job learns that its caller has left, and a deadline is the job's too.
func TestGRPCExtremes(t *testing.T) {
	t.Parallel()
	const large = 8 << 20
	seen := make(chan string, 10)
	l := listen(t)
	server := grpc.NewServer(grpc.MaxRecvMsgSize(large+1<<10), grpc.MaxSendMsgSize(large+1<<10), grpc.StreamInterceptor(
		func(_ any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, _ grpc.StreamHandler) error {
			if md, _ := metadata.FromIncomingContext(stream.Context()); len(md["x-refuse"]) > 0 {
				return status.Error(codes.FailedPrecondition, "not now")
			}
			if deadline, ok := stream.Context().Deadline(); ok {
				seen <- fmt.Sprint("deadline in ", time.Until(deadline).Round(time.Hour))
			}
			_ = stream.SendHeader(metadata.Pairs("x-first", "1"))
			<-stream.Context().Done()
			seen <- "left"
			return status.FromContextError(stream.Context().Err()).Err()
		}), grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		_ = grpc.SetHeader(ctx, metadata.MD{"x-large": md["x-large"], "x-large-bin": md["x-large-bin"]})
		_ = grpc.SetTrailer(ctx, metadata.MD{"x-large": md["x-large"]})
		return handler(ctx, req)
	}))
	testpb.RegisterTestServiceServer(server, &grpcJob{tb: t, name: "one"})
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-done })
	w := newWorld(t)
	s := w.publish(discovery.Service{Protocol: discovery.GRPC}, l.Addr().String())
	client := w.dialGRPC(host(s), "authorization", aliceOAuth)

	t.Run("large messages", func(t *testing.T) {
		body := make([]byte, large)
		body[large-1] = 'x'
		res, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: &testpb.Payload{Body: body}}, grpc.MaxCallRecvMsgSize(large+1<<10), grpc.MaxCallSendMsgSize(large+1<<10))
		if got := res.GetPayload().GetBody(); err != nil || len(got) != large || got[large-1] != 'x' {
			t.Errorf("got %d bytes, %v", len(got), err)
		}
	})
	t.Run("large metadata", func(t *testing.T) {
		text, binary := strings.Repeat("m", 30<<10), string(make([]byte, 7<<10))
		var header, trailer metadata.MD
		_, err := client.UnaryCall(metadata.AppendToOutgoingContext(t.Context(), "x-large", text, "x-large-bin", binary), &testpb.SimpleRequest{},
			grpc.Header(&header), grpc.Trailer(&trailer))
		if err != nil || fmt.Sprint(header["x-large"], trailer["x-large"]) != fmt.Sprint([]string{text}, []string{text}) || fmt.Sprint(header["x-large-bin"]) != fmt.Sprint([]string{binary}) {
			t.Errorf("got %v; %d, %d", err, len(fmt.Sprint(header)), len(fmt.Sprint(trailer)))
		}
	})
	t.Run("the caller leaves", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
		stream, err := client.FullDuplexCall(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Header(); err != nil {
			t.Fatal(err)
		}
		cancel()
		if _, err := stream.Recv(); status.Code(err) != codes.Canceled {
			t.Errorf("got %v", err)
		}
		if got := []string{<-seen, <-seen}; got[0] != "deadline in 2h0m0s" || got[1] != "left" {
			t.Errorf("the job saw %q", got)
		}
	})
	t.Run("the deadline passes", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		stream, err := client.FullDuplexCall(ctx)
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("got %v", err)
		}
		if got := []string{<-seen, <-seen}; got[1] != "left" {
			t.Errorf("the job saw %q", got)
		}
	})
	// A race would lose the status.
	t.Run("the job has ended the stream, and the caller has not", func(t *testing.T) {
		for i := range 100 {
			stream, err := client.FullDuplexCall(metadata.AppendToOutgoingContext(t.Context(), "x-refuse", "1"))
			if err != nil {
				t.Fatal(err)
			}
			for range i % 3 {
				_ = stream.Send(&testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: make([]byte, 1000*i)}})
			}
			if _, err := stream.Recv(); status.Code(err) != codes.FailedPrecondition {
				t.Fatalf("call %d: got %v", i, err)
			}
		}
	})
	// The caller has nothing to say, and learns it all the same.
	t.Run("the job is gone", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		stream, err := client.FullDuplexCall(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Header(); err != nil {
			t.Fatal(err)
		}
		server.Stop() // ends the connection, without a word to its streams
		if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("got %v", err)
		}
	})
}
