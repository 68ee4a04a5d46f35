package serve

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A machine gets JSON, and who sits at a terminal gets lines to read, in colour; unless the flag says otherwise.
func TestLogFormat(t *testing.T) {
	t.Parallel()
	screen, terminal := openTerminal(t)
	shown := bufio.NewReader(screen)
	for _, format := range []string{"auto", "text"} {
		NewLogger(terminal, Config{LogFormat: format}).Info("hello", "service", "ui")
		line, err := shown.ReadString('\n')
		must(t, err)
		if !strings.Contains(line, "hello") || !strings.Contains(line, "\x1b[") || strings.Contains(line, "{") {
			t.Errorf("%s on a terminal: %q", format, line)
		}
	}
	NewLogger(terminal, Config{LogFormat: "json"}).Info("hello")
	if line, err := shown.ReadString('\n'); err != nil || !json.Valid([]byte(line)) {
		t.Errorf("json on a terminal: %q, %v", line, err)
	}

	var b bytes.Buffer
	NewLogger(&b, Config{LogFormat: "auto"}).Info("hello", "service", "a\nb")
	if !json.Valid(b.Bytes()) || bytes.Count(b.Bytes(), []byte("\n")) != 1 {
		t.Errorf("elsewhere: %q", &b)
	}
	b.Reset()
	NewLogger(&b, Config{LogFormat: "text"}).Info("hello")
	if text := b.String(); !strings.Contains(text, "hello") || strings.ContainsAny(text, "\x1b{") {
		t.Errorf("text elsewhere: %q", text)
	}
}

func TestLogLevel(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"json", "text"} {
		for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
			var b bytes.Buffer
			logger := NewLogger(&b, Config{LogFormat: format, LogLevel: level})
			logger.Debug("one")
			logger.Info("two")
			logger.Warn("three")
			logger.Error("four")
			if got, want := strings.Count(b.String(), "\n"), 3-int(level)/4; got != want {
				t.Errorf("%s, %s: %d lines, want %d", format, level, got, want)
			}
		}
	}
}

// openTerminal returns a pseudo-terminal: what is written to terminal is on the screen.
func openTerminal(t *testing.T) (screen, terminal *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	must(t, err)
	t.Cleanup(func() { screen.Close() })
	must(t, unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	must(t, err)
	terminal, err = os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	t.Cleanup(func() { terminal.Close() })
	return screen, terminal
}
