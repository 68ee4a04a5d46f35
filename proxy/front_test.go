package proxy

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// acceptor is a listener that tells whom it accepts.
type acceptor struct {
	net.Listener
	conns chan *frontConn
}

func (a acceptor) Accept() (net.Conn, error) {
	conn, err := a.Listener.Accept()
	if front, ok := conn.(*frontConn); ok {
		a.conns <- front
	}
	return conn, err
}

// Connections of HTTP/2 gather, with and without TLS. Those of HTTP/1.1 stay TCP's, also for somebody who begins as HTTP/2 does.
func TestFrontConnections(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		tls, http2 bool
	}{{"HTTP/1.1", false, false}, {"HTTP/2", false, true}, {"HTTP/1.1 in TLS", true, false}, {"HTTP/2 in TLS", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewUnstartedServer(nil)
			config := NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				_, _ = w.Write(body)
			}), nil)
			server.Config = config
			listener := acceptor{GatherListener(server.Listener), make(chan *frontConn, 1)}
			server.Listener = listener
			server.EnableHTTP2 = true
			transport := &http.Transport{Protocols: http1Only}
			if c.http2 {
				transport.Protocols = http2Only
			}
			if c.tls {
				server.TLS = &tls.Config{GetConfigForClient: GatherTLS}
				server.StartTLS()
				transport.TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
				transport.TLSClientConfig.NextProtos = nil
				if c.http2 {
					transport.Protocols = new(http.Protocols)
					transport.Protocols.SetHTTP2(true)
				}
			} else {
				server.Start()
			}
			t.Cleanup(server.Close)
			t.Cleanup(transport.CloseIdleConnections)
			body := make([]byte, 300<<10)
			for i := range body {
				body[i] = byte(i * i >> 8)
			}
			for range 3 {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, io.NopCloser(newSlowReader(body)))
				if err != nil {
					t.Fatal(err)
				}
				res, err := transport.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if err != nil || string(got) != string(body) || (res.ProtoMajor == 2) != c.http2 {
					t.Fatalf("HTTP/%d: %d bytes of %d: %v", res.ProtoMajor, len(got), len(body), err)
				}
			}
			if front := <-listener.conns; (front.gathered.Load() != nil) != c.http2 {
				t.Errorf("it gathers: %t", front.gathered.Load() != nil)
			}
		})
	}
	t.Run("not quite HTTP/2", func(t *testing.T) {
		t.Parallel()
		listener := acceptor{GatherListener(listen(t)), make(chan *frontConn, 1)}
		server := NewServer(http.NotFoundHandler(), nil)
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(func() { server.Close() })
		conn, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		wrote(t, conn, preface[:len(preface)-4]+"GET / HTTP/1.1\r\n")
		_, _ = io.ReadAll(conn) // until it is closed
		if front := <-listener.conns; front.gathered.Load() != nil {
			t.Error("it gathers")
		}
	})
}

// slowReader gives a body in pieces of all sizes.
type slowReader struct {
	rest []byte
	size int
}

func newSlowReader(b []byte) *slowReader { return &slowReader{b, 1} }

func (s *slowReader) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		return 0, io.EOF
	}
	s.size = s.size*2%70001 + 1
	n := copy(p[:min(len(p), s.size)], s.rest)
	s.rest = s.rest[n:]
	return n, nil
}
