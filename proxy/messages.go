package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// messagePrefix is how many bytes come before a message: a flag and its length (PROTOCOL-HTTP2, "Length-Prefixed-Message").
const messagePrefix = 5

// messages is the body of a gRPC answer on its way to the caller. When the stream is ended for a reason of ours, or the job's connection
// breaks, the body ends as if the job had ended it, if it does between two messages, and the reason goes out as the status in the
// trailers: clients call a reset an internal error, and do not try again. In the middle of a message there is no such end, and the
// stream is reset. The zero value is no such body.
type messages struct {
	io.ReadCloser
	ctx    context.Context // ends the stream
	prefix uint8           // bytes of the prefix that have come
	left   uint32          // bytes of the message to come
	ended  error           // why it was cut
}

// watchMessages puts x.messages in the place of an answer's body, if that can be ended by a status: gRPC over HTTP/2 on the
// caller's side, and a body whose length nobody has promised.
func (x *exchange) watchMessages(res *http.Response) {
	if !x.grpc || x.in.ProtoMajor < 2 || !isGRPC(res.Header) || isGRPCWeb(res.Header) ||
		res.StatusCode != http.StatusOK || res.ContentLength >= 0 {
		return
	}
	x.messages = messages{ReadCloser: res.Body, ctx: &x.carrier}
	res.Body = &x.messages
}

// open reports whether there is such a body.
func (m *messages) open() bool { return m.ReadCloser != nil }

// Read passes the job's bytes, and turns an end that is not the job's will, between two messages, into the end of the body.
func (m *messages) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	m.pass(p[:n])
	if err == nil || err == io.EOF || m.prefix != 0 || m.left != 0 {
		return n, err
	}
	why := context.Cause(m.ctx)
	if c, _ := known(why); c == nil {
		if why != nil || !isCut(err) {
			return n, err // the caller left, or the job reset the stream, and has its reason
		}
		why = &Error{cause: causeBroken, Err: broken(err)}
	}
	m.ended = why
	return n, io.EOF
}

// isCut reports a connection that ended within an answer.
func isCut(err error) bool {
	return isBroken(err) || errors.Is(err, io.ErrUnexpectedEOF) || strings.Contains(err.Error(), "GOAWAY")
}

// pass follows messages. The length is gathered in left while the prefix comes.
func (m *messages) pass(b []byte) {
	for len(b) > 0 {
		if m.prefix == 0 && m.left > 0 {
			take := min(uint64(len(b)), uint64(m.left))
			m.left -= uint32(take)
			b = b[take:]
			continue
		}
		if m.prefix > 0 { // the flag is no part of the length
			m.left = m.left<<8 | uint32(b[0])
		}
		m.prefix = (m.prefix + 1) % messagePrefix
		b = b[1:]
	}
}

// endGRPC gives an answer that was cut between two messages its status, as trailers. Of the job's own there are none.
func endGRPC(x *exchange) {
	c, public := known(x.messages.ended)
	x.failure, x.err, x.grpcStatus = c, x.messages.ended, strconv.Itoa(c.grpc)
	h := x.w.Header()
	h[http.TrailerPrefix+"Grpc-Status"] = []string{x.grpcStatus}
	h[http.TrailerPrefix+"Grpc-Message"] = []string{grpcMessage(public + " (request " + x.id + ")")}
	h[http.TrailerPrefix+"X-Yt-Taskproxy-Error"] = []string{c.reason}
}
