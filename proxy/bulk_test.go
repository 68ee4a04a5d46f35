package proxy

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"taskproxy/discovery"
)

// A large body arrives whole, with a large buffer of its own and also when all of these are in use; one that its job does not
// finish is cut off, and no buffer stays away.
func TestLargeBodies(t *testing.T) {
	t.Parallel()
	content := make([]byte, 3*bulkSize+1)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(content)
	w := newWorld(t)
	s := w.publish(discovery.Service{}, serve(t, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Length", strconv.Itoa(len(content)))
		part := content
		if r.URL.Path == "/half" {
			part = content[:len(content)/2]
		}
		_, _ = rw.Write(part)
	}))
	fetch := func(path string) ([]byte, error) {
		res, err := w.client.Do(w.request(http.MethodGet, host(s), path, nil))
		if err != nil {
			t.Fatal(err)
		}
		defer w.log.wait(t, res.Header.Get("X-Request-Id")) // then the handler is over
		defer res.Body.Close()
		return io.ReadAll(res.Body)
	}
	for _, inUse := range []int32{0, maxBulk - 1, maxBulk} {
		w.proxy.bulk.lent.Store(inUse)
		if got, err := fetch("/"); err != nil || !bytes.Equal(got, content) {
			t.Errorf("with %d buffers in use: %d bytes, %v", inUse, len(got), err)
		}
		if got, err := fetch("/half"); !errors.Is(err, io.ErrUnexpectedEOF) || !bytes.HasPrefix(content, got) {
			t.Errorf("with %d buffers in use: half a body is %d bytes, %v", inUse, len(got), err)
		}
		if lent := w.proxy.bulk.lent.Load(); lent != inUse {
			t.Errorf("%d buffers are in use, want %d again", lent, inUse)
		}
	}
	if n := strings.Count(w.log.text(), `"reason":"upstream_broken"`); n != 3 {
		t.Errorf("%d answers were cut off, want 3", n)
	}
	w.proxy.bulk.lent.Store(maxBulk)
	if w.proxy.bulk.get() != nil {
		t.Error("there is no limit")
	}
}
