package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

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
						for tries := 1; ; tries++ {
							began := time.Now()
							got := upload(t, newCaller(t, version), w.request(http.MethodPost, host(service), "/", io.LimitReader(neverending('x'), 64<<20)), length)
							if got == "413 too much <nil>" {
								break
							}
							// A caller who pauses for so long while he sends may lose the answer. Here that is a machine that is busy.
							if time.Since(began) < lastReadTime || tries == 5 {
								t.Fatalf("got %s, try %d", got, tries)
							}
						}
					}
				})
			}
		}
	}
}

// upload sends a body and tells what came back.
func upload(t *testing.T, caller *http.Client, r *http.Request, length int64) string {
	t.Helper()
	r.ContentLength = length
	res, err := caller.Do(r)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return strings.TrimSpace(fmt.Sprintln(res.StatusCode, string(body), err, res.Header.Get("X-Yt-Taskproxy-Error")))
}

// neverending is a reader of one byte, over and over.
type neverending byte

func (b neverending) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	p[0] = byte(b)
	for n := 1; n < len(p); n *= 2 { // not one by one: the race detector looks at each
		copy(p[n:], p[:n])
	}
	return len(p), nil
}
