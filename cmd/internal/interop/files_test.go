//go:build e2e

package interop_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"taskproxy/examples/job"
)

// upload is what the job says of a body that it got.
type upload struct {
	Method  string
	Bytes   int64
	SHA256  string
	Length  int64 // that was announced; -1 is none
	Chunked bool
}

// serveFiles is the job that curl talks to.
func serveFiles(ctx context.Context, _ job.Info, listener net.Listener) error {
	return job.ServeHTTP(ctx, listener, files())
}

// files answers; ?size= says how many bytes of the pattern an answer has.
func files() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/upload", func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		n, err := io.Copy(h, r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(upload{
			Method: r.Method, Bytes: n, SHA256: hex.EncodeToString(h.Sum(nil)),
			Length: r.ContentLength, Chunked: len(r.TransferEncoding) > 0,
		})
	})
	mux.HandleFunc("/form", serveForm)
	mux.HandleFunc("/refuse", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "too much", http.StatusRequestEntityTooLarge) // the body is not read
	})
	mux.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"pattern"`)
		http.ServeContent(w, r, "pattern.bin", time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), newPattern(size(r)))
	})
	mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).Flush() // so that there is no length
		_, _ = io.Copy(w, newPattern(size(r)))
	})
	mux.HandleFunc("/cut", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.FormatInt(size(r), 10))
		_, _ = io.Copy(w, newPattern(size(r)/2))
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/check", func(w http.ResponseWriter, r *http.Request) {
		wrong := new(checker)
		n, err := io.Copy(wrong, r.Body)
		fmt.Fprintf(w, "%d bytes, announced %d, %v", n, r.ContentLength, err)
	})
	mux.HandleFunc("/tunnel", serveTunnel)
	mux.HandleFunc("/zip", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Vary", "Accept-Encoding")
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			_, _ = io.Copy(w, newPattern(size(r)))
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		zipped := gzip.NewWriter(w)
		_, _ = io.Copy(zipped, newPattern(size(r)))
		zipped.Close()
	})
	return mux
}

// serveForm answers with a line for each part: its name, length and sum.
func serveForm(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseMultipartForm(8 << 20); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	line := func(name string, content []byte) {
		fmt.Fprintf(w, "%s=%d %x\n", name, len(content), sha256.Sum256(content))
	}
	for _, name := range []string{"empty", "file", "name"} {
		for _, value := range r.MultipartForm.Value[name] {
			line(name, []byte(value))
		}
		for _, header := range r.MultipartForm.File[name] {
			file, err := header.Open()
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			content, _ := io.ReadAll(file)
			file.Close()
			line(name, content)
		}
	}
}

func size(r *http.Request) int64 {
	n, _ := strconv.ParseInt(r.URL.Query().Get("size"), 10, 64)
	return n
}

// pattern is a file in which no two places look alike for a long while, made as it is read.
type pattern struct{ size, at int64 }

func newPattern(size int64) *pattern { return &pattern{size: size} }

// period is a prime, so that the pattern fits no buffer's size.
const period = 1<<20 - 3

// patternBytes is the pattern twice, so that period bytes can be had from any place in it.
var patternBytes = func() []byte {
	once := make([]byte, 0, period+sha256.Size)
	for i := uint64(0); len(once) < period; i++ {
		block := sha256.Sum256(strconv.AppendUint(nil, i, 10))
		once = append(once, block[:]...)
	}
	return bytes.Repeat(once[:period], 2)
}()

func (p *pattern) Read(b []byte) (int, error) {
	if p.at >= p.size {
		return 0, io.EOF
	}
	start := p.at % period
	n := copy(b[:min(int64(len(b)), p.size-p.at)], patternBytes[start:start+period])
	p.at += int64(n)
	return n, nil
}

func (p *pattern) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += p.at
	case io.SeekEnd:
		offset += p.size
	}
	if offset < 0 {
		return 0, errors.New("seek to before the beginning")
	}
	p.at = offset
	return offset, nil
}
