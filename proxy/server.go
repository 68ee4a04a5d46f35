package proxy

import (
	"log"
	"log/slog"
	"net/http"
	"strings"
	"time"
)

// NewServer returns a server for h that speaks HTTP/1.1 and, without TLS and from the first byte, HTTP/2 on the same port,
// with limits that hold against strangers. It has no timeout for bodies: streams end by Config.IdleTimeout. The caller sets
// Addr or TLSConfig if needed, serves and shuts down. A nil logger: the server logs nothing.
func NewServer(h http.Handler, logger *slog.Logger) *http.Server {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           h,
		Protocols:         protocols,
		MaxHeaderBytes:    64 << 10,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          250,
			MaxReadFrameSize:              64 << 10,
			MaxReceiveBufferPerConnection: 1 << 20,
			MaxReceiveBufferPerStream:     256 << 10,
			MaxDecoderHeaderTableSize:     4 << 10,
			// A caller that vanished without a word does not hold its streams for longer than this.
			SendPingTimeout:  time.Minute,
			PingTimeout:      15 * time.Second,
			WriteByteTimeout: stallLimit, // where connections do not see to it themselves (GatherListener)
		},
		// "OPTIONS *" is for the handler to judge like everything else.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     log.New(serverLog{logger}, "", 0),
	}
}

// maxServerLog is the most of one message of net/http that is logged, in bytes: a stack of a panic fits in it.
const maxServerLog = 8 << 10

// serverLog turns net/http's lines into records: one message, the line as an attribute, since callers can write into it.
type serverLog struct{ logger *slog.Logger }

func (l serverLog) Write(line []byte) (int, error) {
	text := strings.TrimRight(string(line[:min(len(line), maxServerLog)]), "\n")
	if strings.HasPrefix(text, "http: panic serving") {
		l.logger.Error("handler panicked", "err", text)
	} else {
		l.logger.Debug("connection failed", "err", plain(text))
	}
	return len(line), nil
}
