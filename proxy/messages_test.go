package proxy

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"taskproxy/discovery"
)

// message is a gRPC message on the wire.
func message(tb testing.TB, text string) []byte {
	tb.Helper()
	b, err := proto.Marshal(&testpb.StreamingOutputCallResponse{Payload: &testpb.Payload{Body: []byte(text)}})
	if err != nil {
		tb.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
}

// serveH2C is a job that speaks HTTP/2 and writes its gRPC by hand.
func serveH2C(tb testing.TB, h http.HandlerFunc) string {
	tb.Helper()
	l := listen(tb)
	server := &http.Server{Handler: h, Protocols: new(http.Protocols), ReadHeaderTimeout: time.Minute}
	server.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	tb.Cleanup(func() { server.Close(); <-done })
	return l.Addr().String()
}

// A stream that we end has our status if it can have one: between two messages.
func TestStatusGoesBetweenMessages(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		announce bool // the job says beforehand which trailers come
		header   map[string]string
		rest     func(m []byte) []byte
		code     codes.Code
		reason   string
	}{
		{name: "after a message", code: codes.Unavailable, reason: "shutting_down"},
		{name: "after announced trailers", announce: true, code: codes.Unavailable, reason: "shutting_down"},
		{name: "in a prefix", rest: func(m []byte) []byte { return m[:1] }, code: codes.Internal},
		{name: "in a message", rest: func(m []byte) []byte { return m[:7] }, code: codes.Internal},
		{name: "with a length that was promised", header: map[string]string{"Content-Length": "100000"}, code: codes.Internal},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(cfg *Config) { cfg.DrainTimeout = 30 * time.Millisecond })
			text := strings.Repeat("first", 2000) // more than what is buffered when a length was promised
			first := message(t, text)
			ended := make(chan struct{})
			s := w.publish(discovery.Service{Protocol: discovery.GRPC}, serveH2C(t, func(rw http.ResponseWriter, r *http.Request) {
				defer close(ended)
				rw.Header().Set("Content-Type", "application/grpc")
				if c.announce {
					rw.Header().Set("Trailer", "Grpc-Status, Grpc-Message, X-Own")
				}
				for name, value := range c.header {
					rw.Header().Set(name, value)
				}
				_, _ = rw.Write(first)
				if c.rest != nil {
					_, _ = rw.Write(c.rest(message(t, "second")))
				}
				_ = http.NewResponseController(rw).Flush()
				<-r.Context().Done() // the job is told, by the end of its stream
			}))
			stream, err := w.dialGRPC(host(s)).FullDuplexCall(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if res, err := stream.Recv(); err != nil || string(res.GetPayload().GetBody()) != text {
				t.Fatalf("got %d bytes, %v", len(res.GetPayload().GetBody()), err)
			}
			eventually(t, "the stream is listed, with all that was sent", func() bool {
				w.proxy.streams.mu.Lock()
				defer w.proxy.streams.mu.Unlock()
				for x := range w.proxy.streams.open {
					return c.rest == nil || x.bytesOut.Load() > int64(len(first))
				}
				return false
			})
			go w.proxy.Close()
			_, err = stream.Recv()
			trailer := stream.Trailer()
			if status.Code(err) != c.code || strings.Join(trailer.Get("x-yt-taskproxy-error"), ",") != c.reason {
				t.Errorf("got %v, trailer %v", err, trailer)
			}
			if c.reason != "" && !strings.Contains(status.Convert(err).Message(), "request ") {
				t.Errorf("message %q names no request", status.Convert(err).Message())
			}
			<-ended
			eventually(t, "the log says why", func() bool {
				text := w.log.text()
				return strings.Contains(text, `"reason":"shutting_down"`) && (c.reason == "" || strings.Contains(text, `"grpc_status":"14"`))
			})
		})
	}
}

// So has one whose job is gone; what the job itself resets stays so.
func TestStatusOfAJobThatBroke(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		part   int // of a second message that comes
		resets bool
		code   codes.Code
		reason string
	}{
		{name: "after a message", code: codes.Unavailable, reason: "upstream_broken"},
		{name: "in a message", part: 7, code: codes.Internal},
		{name: "by its own will", resets: true, code: codes.Internal},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			seen := make(chan struct{})
			job := newCountingJob(t, "", func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set("Content-Type", "application/grpc")
				_, _ = rw.Write(append(message(t, "first"), message(t, "second")[:c.part]...))
				_ = http.NewResponseController(rw).Flush()
				<-seen
				if c.resets {
					panic(http.ErrAbortHandler)
				}
				<-r.Context().Done()
			})
			s := w.publish(discovery.Service{Protocol: discovery.GRPC}, job.addr())
			stream, err := w.dialGRPC(host(s)).FullDuplexCall(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if res, err := stream.Recv(); err != nil || string(res.GetPayload().GetBody()) != "first" {
				t.Fatalf("got %q, %v", res.GetPayload().GetBody(), err)
			}
			close(seen)
			if !c.resets {
				job.CloseClientConnections()
			}
			_, err = stream.Recv()
			if got := strings.Join(stream.Trailer().Get("x-yt-taskproxy-error"), ","); status.Code(err) != c.code || got != c.reason {
				t.Errorf("got %v, %q, want %v, %q", err, got, c.code, c.reason)
			}
			eventually(t, "the log says why", func() bool { return strings.Contains(w.log.text(), `"reason":"upstream_broken"`) })
		})
	}
}

// A job can be gone before anybody has begun to read the caller's messages for it.
func TestBodyThatNobodyHasReadIsBrokenOff(t *testing.T) {
	t.Parallel()
	read := make(chan error, 1)
	addr := serveH2C(t, func(rw http.ResponseWriter, r *http.Request) {
		x := &exchange{in: r, service: &discovery.Service{Protocol: discovery.GRPC}}
		x.w.ResponseWriter, x.w.x = rw, x
		body := &attemptBody{requestBody: &requestBody{ReadCloser: r.Body, x: x, out: r}, ctx: r.Context()}
		body.settled.Store(true)
		_ = body.Close()
		_, err := body.Read(make([]byte, 1))
		read <- err
	})
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	body, caller := io.Pipe()
	defer caller.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer context.AfterFunc(ctx, func() { caller.Close() })()
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr, body)
	if res, err := transport.RoundTrip(r); err != nil {
		t.Error(err)
	} else {
		res.Body.Close()
	}
	if err := <-read; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// gRPC-Web has its trailers in the body, and a JSON answer to a gRPC caller has none: these are cut, as others are.
func TestOtherAnswersAreCut(t *testing.T) {
	t.Parallel()
	for _, contentType := range []string{"application/grpc-web", "application/grpc-web+proto", "application/json"} {
		t.Run(contentType, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(cfg *Config) { cfg.IdleTimeout = 100 * time.Millisecond })
			s := w.publish(discovery.Service{}, serve(t, func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set("Content-Type", contentType)
				_, _ = rw.Write(message(t, "first"))
				_ = http.NewResponseController(rw).Flush()
				<-r.Context().Done()
			}))
			transport := &http.Transport{Protocols: new(http.Protocols)}
			transport.Protocols.SetUnencryptedHTTP2(true)
			defer transport.CloseIdleConnections()
			res, err := transport.RoundTrip(w.request(http.MethodPost, host(s), "/", nil, "Content-Type: "+contentType))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if b, err := io.ReadAll(res.Body); err == nil || len(b) != len(message(t, "first")) {
				t.Errorf("got %d bytes, %v, want the message and a broken stream", len(b), err)
			}
			if res.Trailer.Get("Grpc-Status") != "" {
				t.Errorf("trailer %v", res.Trailer)
			}
		})
	}
}

// chunks is a body that comes in pieces and then breaks.
type chunks struct {
	pieces [][]byte
	cancel func()
}

func (c *chunks) Close() error { return nil }

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.pieces) == 0 {
		c.cancel()
		return 0, context.Canceled
	}
	n := copy(p, c.pieces[0])
	if c.pieces[0] = c.pieces[0][n:]; len(c.pieces[0]) == 0 {
		c.pieces = c.pieces[1:]
	}
	return n, nil
}

// However the bytes are cut, a body ends well exactly if it ends with a message.
func FuzzMessages(f *testing.F) {
	f.Add(append(message(f, "a"), message(f, "")...), uint64(1))
	f.Add(message(f, "hello")[:8], uint64(2))
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0}, uint64(3))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0}, uint64(4))
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 0))
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		body := &chunks{cancel: func() { cancel(causeRevoked) }}
		for at := 0; at < len(b); {
			n := 1 + random.IntN(len(b)-at)
			body.pieces = append(body.pieces, b[at:at+n])
			at += n
		}
		m := messages{ReadCloser: body, ctx: ctx}
		got, err := io.ReadAll(&m)
		whole := true
		for rest := b; len(rest) > 0 && whole; {
			if whole = len(rest) >= messagePrefix; whole {
				size := uint64(binary.BigEndian.Uint32(rest[1:]))
				if whole = uint64(len(rest)-messagePrefix) >= size; whole {
					rest = rest[messagePrefix+size:]
				}
			}
		}
		if string(got) != string(b) || (err == nil) != whole || (m.ended != nil) != whole {
			t.Errorf("got %d of %d bytes, %v, ended %v, want whole %t", len(got), len(b), err, m.ended, whole)
		}
	})
}
