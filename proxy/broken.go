package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
)

// broken is what may be said about an exchange with a job that failed: what the network said, which is its own, and of
// everything else the kind alone. net/http's errors quote the answer that it cannot read, and in that a job can repeat
// whatever it was sent: a password that it asked for, a cookie of its own, the caller's token if it is trusted with that.
func broken(err error) error {
	var network *net.OpError
	if errors.As(err, &network) {
		return network
	}
	for _, plain := range [...]error{
		io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, context.Canceled, context.DeadlineExceeded, os.ErrDeadlineExceeded,
	} {
		if errors.Is(err, plain) {
			return plain
		}
	}
	text := err.Error()
	for _, kind := range brokenKinds {
		if strings.Contains(text, kind) {
			return errors.New(kind)
		}
	}
	return errors.New("malformed answer")
}

// brokenKinds are words of net/http's that say what is wrong, the more precise ones first. A job that writes them itself
// chooses the word; it can add nothing.
var brokenKinds = [...]string{
	"malformed HTTP response", "malformed HTTP status code", "malformed HTTP version", "malformed MIME header",
	"bad Content-Length", "Content-Length", "transfer encoding", "response headers exceeded", "too many 1xx",
	"server closed idle connection",
	// HTTP/2: its error codes (RFC 9113, section 7), and what comes without one.
	"PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED", "FRAME_SIZE_ERROR", "REFUSED_STREAM",
	"COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED", "CANCEL", "GOAWAY",
	"client connection lost", "client connection force closed", "frame too large", "first record does not look like",
}
