package proxy

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// isGRPC reports whether the caller speaks gRPC and expects failures as a grpc-status: by its content type, in all its
// forms (application/grpc, application/grpc+proto, application/grpc-web).
func isGRPC(h http.Header) bool {
	const prefix = "application/grpc"
	ct := contentType(h)
	if len(ct) < len(prefix) || !strings.EqualFold(ct[:len(prefix)], prefix) {
		return false
	}
	rest := ct[len(prefix):]
	return rest == "" || strings.ContainsRune("+-; ", rune(rest[0]))
}

// contentType is the first one. http.Header's Get would make sure of the name each time.
func contentType(h http.Header) string {
	if values := h["Content-Type"]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// isGRPCWeb reports gRPC-Web, which has its trailers in the body.
func isGRPCWeb(h http.Header) bool {
	_, ok := cutPrefixFold(contentType(h), "application/grpc-web")
	return ok
}

// answerType is the content type of a status for a caller who speaks gRPC. A client of gRPC-Web takes no other than its own.
func answerType(h http.Header) string {
	if !isGRPCWeb(h) {
		return "application/grpc"
	}
	if _, text := cutPrefixFold(contentType(h), "application/grpc-web-text"); text {
		return "application/grpc-web-text+proto"
	}
	return "application/grpc-web+proto"
}

// answerGRPC writes a "Trailers-Only" answer: status and message in the one block of headers that ends the stream (PROTOCOL-HTTP2,
// section Responses), and so are they understood by clients of gRPC-Web. HTTP's own status is 200 as long as the other side
// speaks gRPC at all.
func answerGRPC(x *exchange, c *cause, public string) {
	x.grpcStatus = strconv.Itoa(c.grpc)
	h := x.w.Header()
	h.Set("Content-Type", answerType(x.in.Header))
	if x.cors != "" {
		h.Set("Access-Control-Expose-Headers", "Grpc-Status, Grpc-Message, X-Request-Id, X-Yt-Taskproxy-Error")
	}
	h.Set("Grpc-Status", x.grpcStatus)
	h.Set("Grpc-Message", grpcMessage(public+" (request "+x.id+")"))
	x.w.WriteHeader(http.StatusOK)
}

// grpcMessage percent-encodes what the protocol wants encoded: everything but printable ASCII, and the percent sign.
func grpcMessage(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c >= ' ' && c <= '~' && c != '%' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// grpcStatusLabel bounds what a job can write into metrics and logs to the seventeen codes that exist.
func grpcStatusLabel(s string) string {
	if n, err := strconv.Atoi(s); err == nil && n >= 0 && n <= 16 && strconv.Itoa(n) == s {
		return s
	}
	return "other"
}
