package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"taskproxy/discovery"
)

// A job that refuses an upload may close its connection without reading it, as many simple servers do. Its answer is there all the
// same, and reaches the caller, who may be sending still. Each case many times, since it is a race that would lose the answer.
func TestAnswerBeforeTheUploadIsRead(t *testing.T) {
	t.Parallel()
	const answer = "HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 8\r\n\r\ntoo much"
	w := newWorld(t)
	jobs := map[string]*discovery.Service{
		"closes": w.publish(discovery.Service{}, rawAnswer(t, answer)),
		"reads on for a while": w.publish(discovery.Service{}, rawJob(t, func(conn net.Conn, _ *http.Request, rest *bufio.Reader) {
			_, _ = io.WriteString(conn, answer)
			_ = conn.(*net.TCPConn).CloseWrite()
			_, _ = io.CopyN(io.Discard, rest, 1<<20)
		})),
		"keeps the connection": w.publish(discovery.Service{}, serveUnguarded(t, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			rw.WriteHeader(http.StatusRequestEntityTooLarge)
			_, _ = io.WriteString(rw, "too much")
		}))),
	}
	for version := range versions {
		for job, service := range jobs {
			for _, length := range []int64{64 << 20, -1} {
				t.Run(fmt.Sprint(version, ", the job ", job, ", length ", length), func(t *testing.T) {
					t.Parallel()
					for range 20 {
						r := w.request(http.MethodPost, host(service), "/", io.LimitReader(neverending('x'), 64<<20))
						r.ContentLength = length
						res, err := newCaller(t, version).Do(r)
						if err != nil {
							t.Fatal(err)
						}
						body, err := io.ReadAll(res.Body)
						res.Body.Close()
						if res.StatusCode != http.StatusRequestEntityTooLarge || string(body) != "too much" || err != nil {
							t.Fatalf("got status %d, %q, %v, %s", res.StatusCode, body, err, res.Header["X-Yt-Taskproxy-Error"])
						}
					}
				})
			}
		}
	}
}

// neverending is a reader of one byte, over and over.
type neverending byte

func (b neverending) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(b)
	}
	return len(p), nil
}
