package serve

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// slowReader is what a log is written to: each write waits until somebody takes it.
type slowReader struct {
	taken  chan struct{}
	writes []string
}

func (s *slowReader) Write(p []byte) (int, error) {
	<-s.taken
	s.writes = append(s.writes, string(p))
	return len(p), nil
}

// Lines gather while nobody reads, nobody waits for that before there are too many, and none is lost: not then, and not at the end.
func TestAccessLogGathersLines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reader := &slowReader{taken: make(chan struct{})}
		log := NewAccessLog(reader, Config{LogFormat: "json"})
		const many = 100
		for i := range many {
			log.Info("request", "number", i)
		}
		synctest.Wait()
		var sent int
		var wg sync.WaitGroup
		wg.Go(func() {
			for ; sent < 3*maxGathered/len(long); sent++ {
				log.Info("request", "text", long)
			}
		})
		synctest.Wait()
		if sent < maxGathered/len(long)/2 || sent > 2*maxGathered/len(long) {
			t.Errorf("%d long lines went in while nobody read", sent)
		}
		close(reader.taken)
		wg.Wait()
		log.Close()
		text := strings.Join(reader.writes, "")
		if n := strings.Count(text, "\n"); n != many+sent {
			t.Errorf("%d lines, want %d", n, many+sent)
		}
		if n := strings.Count(reader.writes[1], "\n"); n < many-1 {
			t.Errorf("%d lines came in one write, want all that had gathered", n)
		}
		for i := range many {
			if !strings.Contains(text, fmt.Sprintf(`"number":%d}`, i)) {
				t.Errorf("line %d is lost", i)
			}
		}
		log.Info("late")
		if last := reader.writes[len(reader.writes)-1]; !strings.Contains(last, "late") {
			t.Errorf("the last line is %q", last)
		}
	})
}

var long = strings.Repeat("x", 10_000)
