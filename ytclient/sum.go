package ytclient

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"maps"
	"math"
	"slices"

	"go.ytsaurus.tech/yt/go/yson"
)

// Sum identifies annotations: two of the same are annotations of the same content. It is comparable; zero when there are none.
type Sum [sha256.Size]byte

// SumAnnotations is the Sum of annotations in the types of Operation.Annotations; zero for nil. The order in which a cluster
// tells the keys of a map does not count, and a NaN, which equals nothing, is the same as itself.
func SumAnnotations(annotations map[string]any) (s Sum) {
	if annotations == nil {
		return s
	}
	h := summer{h: sha256.New()}
	h.value(annotations)
	h.h.Sum(s[:0])
	return s
}

// summer writes values so that different ones look different: a letter for the type, then a length or eight bytes.
type summer struct {
	h   hash.Hash
	buf [9]byte
}

func (s *summer) word(kind byte, n uint64) {
	s.buf[0] = kind
	binary.BigEndian.PutUint64(s.buf[1:], n)
	s.h.Write(s.buf[:])
}

func (s *summer) text(kind byte, v string) {
	s.word(kind, uint64(len(v)))
	s.h.Write([]byte(v))
}

func (s *summer) value(v any) {
	switch v := v.(type) {
	case map[string]any:
		s.word('m', uint64(len(v)))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			s.text('k', k)
			s.value(v[k])
		}
	case []any:
		s.word('l', uint64(len(v)))
		for _, e := range v {
			s.value(e)
		}
	case *yson.ValueWithAttrs:
		if v == nil {
			s.word('0', 0)
			return
		}
		s.word('a', 0)
		s.value(v.Attrs)
		s.value(v.Value)
	case string:
		s.text('s', v)
	case int64:
		s.word('i', uint64(v))
	case uint64:
		s.word('u', v)
	case float64:
		s.word('d', math.Float64bits(v))
	case bool:
		if s.word('f', 0); v {
			s.word('t', 0)
		}
	default: // nil: the decoder makes nothing else
		s.word('0', 0)
	}
}
