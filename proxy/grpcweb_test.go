package proxy

import (
	"encoding/base64"
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"testing"

	"taskproxy/discovery"
)

// webFrame is a frame of gRPC-Web: a message, or with the flag 0x80 the trailers.
func webFrame(flag byte, payload string) string {
	return string(binary.BigEndian.AppendUint32([]byte{flag}, uint32(len(payload)))) + payload
}

// gRPC-Web is HTTP with any service that is declared http: its bytes pass as they are in both forms, and with them the status, which
// is in the body.
func TestGRPCWebPasses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	more := make(chan struct{})
	s := w.publish(discovery.Service{}, serve(t, func(rw http.ResponseWriter, r *http.Request) {
		encode := func(s string) string { return s }
		if strings.Contains(r.Header.Get("Content-Type"), "text") {
			encode = func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
		}
		body, _ := io.ReadAll(r.Body)
		if string(body) != encode(webFrame(0, "question")) || r.Proto != "HTTP/1.1" || r.Header.Get("X-Grpc-Web") != "1" || r.Header.Get("Grpc-Timeout") != "5S" {
			t.Errorf("the job got %s, %v, %q", r.Proto, r.Header, body)
		}
		rw.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		_, _ = io.WriteString(rw, encode(webFrame(0, "answer")))
		_ = http.NewResponseController(rw).Flush()
		<-more // until the caller has it
		_, _ = io.WriteString(rw, encode(webFrame(0x80, "grpc-status:0\r\n")))
	}))
	for version := range versions {
		for _, contentType := range []string{"application/grpc-web", "application/grpc-web+proto", "application/grpc-web-text", "application/grpc-web-text+proto"} {
			encode := func(s string) string { return s }
			if strings.Contains(contentType, "text") {
				encode = func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
			}
			r := w.request(http.MethodPost, host(s), "/helloworld.Greeter/SayHello", strings.NewReader(encode(webFrame(0, "question"))),
				"Content-Type: "+contentType, "X-Grpc-Web: 1", "Grpc-Timeout: 5S")
			res, err := newCaller(t, version).Do(r)
			if err != nil {
				t.Fatal(err)
			}
			first := make([]byte, len(encode(webFrame(0, "answer"))))
			_, err = io.ReadFull(res.Body, first)
			if err != nil || string(first) != encode(webFrame(0, "answer")) {
				t.Errorf("%s, %s: got %q, %v", version, contentType, first, err)
			}
			more <- struct{}{}
			rest, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || string(rest) != encode(webFrame(0x80, "grpc-status:0\r\n")) || res.Header.Get("Content-Type") != contentType {
				t.Errorf("%s, %s: got %v, %q, %v", version, contentType, res.Header, rest, err)
			}
			if record := w.log.wait(t, res.Header.Get("X-Request-Id")); record["grpc_status"] != nil {
				t.Errorf("the log has the status %v, which nobody has read", record["grpc_status"])
			}
		}
	}
}

// What we answer ourselves is a status that a client of gRPC-Web understands: in the headers, in an answer of its own type. A page
// of another origin may read it, if it may read answers at all.
func TestGRPCWebFailures(t *testing.T) {
	t.Parallel()
	const friend = "https://app.example.com"
	w := newWorld(t)
	s := w.publish(discovery.Service{Origins: []string{friend}}, deadAddr(t))
	for version := range versions {
		for contentType, want := range map[string]string{
			"application/grpc-web": "application/grpc-web+proto", "Application/gRPC-Web+Proto": "application/grpc-web+proto",
			"application/grpc-web-text": "application/grpc-web-text+proto", "application/grpc-web-text+proto; x=y": "application/grpc-web-text+proto",
			"application/grpc": "application/grpc", "application/grpc+json": "application/grpc",
		} {
			for _, c := range []struct{ host, credentials, status, reason string }{
				{host(s), "Authorization: " + aliceOAuth, "14", "connect_failed"},
				{host(s), "-: -", "16", "no_credentials"},
				{host(s), "Authorization: OAuth " + bobToken, "7", "access_denied"},
				{"zz." + base, "Authorization: " + aliceOAuth, "5", "no_such_service"},
			} {
				r := w.request(http.MethodPost, c.host, "/a.B/C", strings.NewReader(webFrame(0, "x")), "Content-Type: "+contentType, "Origin: "+friend, c.credentials)
				res, err := newCaller(t, version).Do(r)
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(res.Body)
				res.Body.Close()
				h := res.Header
				if res.StatusCode != 200 || len(body) > 0 || h.Get("Content-Type") != want || h.Get("Grpc-Status") != c.status ||
					h.Get("X-Yt-Taskproxy-Error") != c.reason || h.Get("Grpc-Message") == "" {
					t.Errorf("%s, %s: got %d, %v, %q, want %+v, %s", version, contentType, res.StatusCode, h, body, c, want)
				}
				readable := h.Get("Access-Control-Allow-Origin") == friend
				if exposed := strings.Contains(h.Get("Access-Control-Expose-Headers"), "Grpc-Status, Grpc-Message"); exposed != readable {
					t.Errorf("%s, %s: its origin may read the answer: %t, and the status: %t", c.reason, contentType, readable, exposed)
				}
				if c.reason == "connect_failed" && !readable {
					t.Errorf("the friend may not read %v", h)
				}
			}
		}
	}
}
