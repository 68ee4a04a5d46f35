package serve

import (
	"bufio"
	"bytes"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// said is a log that several goroutines write.
type said struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *said) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// net/http quotes in package log what a server sends out of turn; that may be what it was sent.
func TestStandardLogRepeatsNobodysWords(t *testing.T) { // alone: it listens to the process's own log
	logged := new(said)
	was, flags := log.Writer(), log.Flags()
	defer func() { log.SetOutput(was); log.SetFlags(flags) }()
	log.SetOutput(StandardLog(slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: slog.LevelDebug}))))

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	answered, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		r, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		<-answered
		_, _ = io.WriteString(conn, r.Header.Get("Authorization"))
		_, _ = io.Copy(io.Discard, conn)
	}()
	defer func() { listener.Close(); <-ended }()
	transport := new(http.Transport)
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "OAuth s3cret")
	res, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	close(answered)
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(logged.text(), "Unsolicited response"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing was logged")
		}
	}
	if text := logged.text(); strings.Contains(text, "OAuth") || strings.Contains(text, "s3cret") {
		t.Errorf("logged %s", text)
	}
}
