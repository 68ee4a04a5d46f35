package proxy

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// wsFrame writes a frame: first byte, payload, and whether it is masked. form is the length's: 0 the shortest, or 16 or 64
// bits whatever the length.
func wsFrame(first byte, size int, masked bool, form int) []byte {
	var mask byte
	if masked {
		mask = 0x80
	}
	b := []byte{first}
	switch {
	case form == 64 || form == 0 && size > math.MaxUint16:
		b = binary.BigEndian.AppendUint64(append(b, mask|127), uint64(size))
	case form == 16 || form == 0 && size > 125:
		b = binary.BigEndian.AppendUint16(append(b, mask|126), uint16(size))
	default:
		b = append(b, mask|byte(size))
	}
	if masked {
		b = append(b, 1, 2, 3, 4)
	}
	return append(b, bytes.Repeat([]byte{0x88}, size)...) // a payload that looks like close frames
}

func TestFrameBoundaries(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		frames [][]byte
		closed bool
	}{
		{"text", [][]byte{wsFrame(0x81, 5, false, 0), wsFrame(0x82, 0, false, 0)}, false},
		{"the longest short one", [][]byte{wsFrame(0x81, 125, false, 0)}, false},
		{"16 bits", [][]byte{wsFrame(0x81, 126, false, 0), wsFrame(0x81, 65535, false, 0)}, false},
		{"64 bits", [][]byte{wsFrame(0x81, 65536, false, 0)}, false},
		{"lengths that are too long", [][]byte{wsFrame(0x81, 0, false, 64), wsFrame(0x81, 3, false, 16), wsFrame(0x81, 3, true, 64)}, false},
		{"control frames between fragments", [][]byte{wsFrame(0x01, 300, false, 0), wsFrame(0x89, 4, false, 0), wsFrame(0x00, 2, false, 0), wsFrame(0x8a, 0, false, 0), wsFrame(0x80, 0, false, 0)}, false},
		{"masked, which a server's are not", [][]byte{wsFrame(0x81, 0, true, 0), wsFrame(0x81, 9, true, 0), wsFrame(0x81, 700, true, 0)}, false},
		{"reserved bits and opcodes", [][]byte{wsFrame(0xf3, 5, false, 0), wsFrame(0x8f, 200, false, 0), wsFrame(0xc1, 7, false, 0)}, false},
		{"close", [][]byte{wsFrame(0x81, 1, false, 0), wsFrame(0x88, 2, false, 0)}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := slices.Concat(c.frames...)
			for _, step := range []int{1, 2, 3, 7, len(all)} { // however the bytes come
				var f frames
				var got []int
				for at := 0; at < len(all); {
					chunk := all[at:min(at+step, len(all))]
					n := f.next(chunk)
					if n < 1 || n < len(chunk) && !f.between() {
						t.Fatalf("%d of %d bytes at %d, between %t", n, len(chunk), at, f.between())
					}
					if at += n; f.between() {
						got = append(got, at)
					}
				}
				var want []int
				sum := 0
				for _, frame := range c.frames {
					sum += len(frame)
					want = append(want, sum)
				}
				if !slices.Equal(got, want) {
					t.Errorf("by %d: frames end at %v, want %v", step, got, want)
				}
				if f.closed != c.closed {
					t.Errorf("by %d: closed is %t", step, f.closed)
				}
			}
		})
	}
}

// frameEnds is the plain way: with all bytes at hand.
func frameEnds(b []byte) (ends []int, closed bool) {
	for at := 0; ; {
		rest := b[at:]
		if len(rest) < 2 {
			return ends, closed
		}
		head, size := 2, uint64(rest[1]&0x7f)
		switch size {
		case 126:
			head = 4
			if len(rest) >= head {
				size = uint64(binary.BigEndian.Uint16(rest[2:]))
			}
		case 127:
			head = 10
			if len(rest) >= head {
				size = binary.BigEndian.Uint64(rest[2:])
			}
		}
		if rest[1]&0x80 != 0 {
			head += 4
		}
		if len(rest) < head || uint64(len(rest)-head) < size {
			return ends, closed
		}
		at += head + int(size)
		ends, closed = append(ends, at), closed || rest[0]&0x0f == opcodeClose
	}
}

// However the bytes are cut, the frames end where they end.
func FuzzFrames(f *testing.F) {
	f.Add(slices.Concat(wsFrame(0x81, 5, false, 0), wsFrame(0x88, 130, true, 0)), uint64(1))
	f.Add([]byte{0x81, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4, 5}, uint64(2))
	f.Add([]byte{0x81, 0xfe, 0, 0, 1, 2, 3, 4, 0x81}, uint64(3))
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 0))
		var fr frames
		var got []int
		for at := 0; at < len(b); {
			chunk := b[at : at+1+random.IntN(len(b)-at)]
			n := fr.next(chunk)
			if n < 1 || n > len(chunk) || n < len(chunk) && !fr.between() {
				t.Fatalf("%d of %d bytes, between %t", n, len(chunk), fr.between())
			}
			if at += n; fr.between() {
				got = append(got, at)
			}
		}
		want, closed := frameEnds(b)
		if !slices.Equal(got, want) || fr.closed != closed {
			t.Errorf("frames end at %v (closed %t), want %v (%t)", got, fr.closed, want, closed)
		}
		var whole frames
		whole.pass(b)
		if whole != fr {
			t.Errorf("at once: %+v, in pieces: %+v", whole, fr)
		}
	})
}

// A close frame is one: whatever its cause, it is short, whole and unmasked.
func TestCloseFrame(t *testing.T) {
	t.Parallel()
	long := &cause{"a_reason", 500, 13, string(bytes.Repeat([]byte("x"), 200))}
	for c, code := range map[*cause]int{causeRevoked: 1008, causeEnded: 1001, causeClosing: 1001, causeIdle: 1001, causeNoCluster: 1001, long: 1001} {
		b := closeFrame(c)
		var f frames
		f.pass(b)
		if !f.between() || !f.closed || len(b) > 127 || b[0] != 0x88 || int(b[1]) != len(b)-2 {
			t.Errorf("%s: % x", c.reason, b)
		}
		if got := int(binary.BigEndian.Uint16(b[2:])); got != code || !bytes.HasPrefix(b[4:], []byte(c.reason)) {
			t.Errorf("%s: code %d, reason %q", c.reason, got, b[4:])
		}
	}
}
