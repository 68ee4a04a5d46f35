package serve

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/lmittmann/tint"
	"golang.org/x/term"
)

// NewLogger returns the log that Config asks for: JSON for machines, coloured lines for a terminal. w must be safe for concurrent use, as files and
// LogWriter are; each Write is whole lines.
func NewLogger(w io.Writer, cfg Config) *slog.Logger {
	return slog.New(newHandler(w, isTerminal(w), cfg))
}

func newHandler(w io.Writer, terminal bool, cfg Config) slog.Handler {
	if cfg.LogFormat == "text" || cfg.LogFormat == "auto" && terminal {
		return tint.NewTextHandler(w, &tint.Options{Level: cfg.LogLevel, TimeFormat: time.TimeOnly, NoColor: !terminal})
	}
	return newJSONHandler(w, cfg.LogLevel)
}

// StandardLog is where package log is to write: libraries use it, net/http among them for what a job sends out of turn. What
// such a line quotes is the job's words, and may be a credential that it was sent: a line ends where it begins to quote. The
// rest is an attribute, quoted and cut.
func StandardLog(logger *slog.Logger) io.Writer { return standardLog{logger} }

type standardLog struct{ logger *slog.Logger }

func (l standardLog) Write(line []byte) (int, error) {
	const most = 256
	text := line
	if i := bytes.IndexAny(line, "\"`"); i >= 0 {
		text = line[:i]
	}
	text = bytes.TrimSpace(text)
	l.logger.Debug("message of a library", "err", strconv.QuoteToASCII(string(text[:min(len(text), most)])))
	return len(line), nil
}

func isTerminal(w io.Writer) bool {
	if gathering, ok := w.(*LogWriter); ok {
		w = gathering.w
	}
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
