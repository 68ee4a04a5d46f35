package serve

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// reader is what a log is written to. It takes nothing while it is held.
type reader struct {
	mu     sync.Mutex
	writes int
	text   bytes.Buffer
}

func (r *reader) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writes++
	return r.text.Write(p)
}

func (r *reader) seen() (writes int, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.writes, r.text.String()
}

func TestLogIsWrittenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := new(reader)
		log := NewLogWriter(out)
		var want strings.Builder
		for i := range 1000 {
			line := fmt.Sprintf("line %d\n", i)
			want.WriteString(line)
			if n, err := log.Write([]byte(line)); n != len(line) || err != nil {
				t.Fatalf("Write: %d, %v", n, err)
			}
		}
		synctest.Wait()
		if writes, _ := out.seen(); writes != 0 {
			t.Errorf("%d writes at once", writes)
		}
		time.Sleep(logDelay)
		synctest.Wait()
		if writes, text := out.seen(); writes != 1 || text != want.String() {
			t.Errorf("after %s: %d writes, %d bytes; want all lines by one", logDelay, writes, len(text))
		}
		// The next lines are not lost behind the first ones.
		fmt.Fprintln(log, "later")
		time.Sleep(logDelay)
		synctest.Wait()
		if _, text := out.seen(); !strings.HasSuffix(text, "later\n") {
			t.Errorf("a later line is missing: …%q", tail(text))
		}
		log.Close()
		log.Close()
	})
}

// A busy log is written in pieces that stay small, and none of its lines waits longer than before.
func TestBusyLogWaitsForNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := new(reader)
		log := NewLogWriter(out)
		line := append(bytes.Repeat([]byte{'x'}, 499), '\n')
		want := 0
		for range 3 {
			for n := 0; n < logMany; n += len(line) {
				_, _ = log.Write(line)
				want += len(line)
			}
			synctest.Wait()
			if _, text := out.seen(); len(text) != want {
				t.Errorf("at once: %d bytes, want %d", len(text), want)
			}
		}
		fmt.Fprintln(log, "the last")
		synctest.Wait()
		if writes, _ := out.seen(); writes != 3 {
			t.Errorf("%d writes, want 3: one line waits for others", writes)
		}
		time.Sleep(logDelay)
		synctest.Wait()
		if _, text := out.seen(); !strings.HasSuffix(text, "x\nthe last\n") {
			t.Errorf("after %s the last line is missing: …%q", logDelay, tail(text))
		}
		log.Close()
	})
}

func TestLogIsWholeAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := new(reader)
		log := NewLogWriter(out)
		fmt.Fprintln(log, "before")
		log.Close()
		if _, got := out.seen(); got != "before\n" {
			t.Errorf("Close left %q", got)
		}
		fmt.Fprintln(log, "after")
		if _, got := out.seen(); got != "before\nafter\n" {
			t.Errorf("what is written after Close waits: %q", got)
		}
	})
}

// A log that nobody reads keeps nobody waiting at the end either: not who shuts down, and not what is logged meanwhile.
func TestEndWithoutAReaderOfTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe() // a Write ends when somebody reads
		log := NewLogWriter(w)
		fmt.Fprintln(log, "before")
		log.Hurry()
		synctest.Wait() // nobody reads
		fmt.Fprintln(log, "shutting down")
		start := time.Now()
		log.Close()
		fmt.Fprintln(log, "after")
		if took := time.Since(start); took != logClose {
			t.Errorf("Close took %s, want %s", took, logClose)
		}
		r.Close()
	})
}

func TestHurry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := new(reader)
		log := NewLogWriter(out)
		fmt.Fprintln(log, "before")
		log.Hurry()
		log.Hurry()
		synctest.Wait()
		fmt.Fprintln(log, "after")
		synctest.Wait()
		if _, got := out.seen(); got != "before\nafter\n" {
			t.Errorf("written at once: %q", got)
		}
		log.Close()
	})
}

// A log that nobody reads keeps no request waiting, and says how much of it is missing.
func TestSlowReaderOfTheLog(t *testing.T) {
	out := new(reader)
	log := NewLogWriter(out)
	out.mu.Lock()
	line := append(bytes.Repeat([]byte{'x'}, 1<<20-1), '\n')
	const lines = 20
	for range lines {
		if n, err := log.Write(line); n != len(line) || err != nil {
			t.Fatalf("Write: %d, %v", n, err)
		}
	}
	out.mu.Unlock()
	log.Close()
	_, text := out.seen()
	written := strings.Count(text, "xx\n")
	if written == lines || written == 0 {
		t.Errorf("%d of %d lines were written while nobody read", written, lines)
	}
	if want := fmt.Sprintf(`"lines":%d}`, lines-written); !strings.Contains(text, want) {
		t.Errorf("the log does not end with %s, but with %q", want, tail(text))
	}
}

func tail(s string) string { return s[max(0, len(s)-200):] }
