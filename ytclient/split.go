package ytclient

import (
	"encoding/binary"
	"errors"
	"fmt"

	"go.ytsaurus.tech/yt/go/yson"
)

// The SDK's reader gives up on a whole document when any part of it is nested deeper than 256, and authors nest as deep as
// they like. So maps and lists of strangers' things are cut into their parts here, at any depth, and each part is then
// decoded alone: what is wrong with one is nobody else's.

// splitMap cuts a map into its raw values. Attributes of the map itself are dropped; of equal keys the last counts.
func splitMap(data []byte) (map[string]yson.RawValue, error) {
	s := splitter{data: data}
	if err := s.open('{'); err != nil {
		return nil, err
	}
	m := make(map[string]yson.RawValue)
	for !s.closed('}') {
		raw, err := s.value()
		if err != nil {
			return nil, err
		}
		var key string
		if err := yson.Unmarshal(raw, &key); err != nil {
			return nil, fmt.Errorf("a key is no string: %.64q", raw)
		}
		if s.space(); s.at >= len(s.data) || s.data[s.at] != '=' {
			return nil, s.unexpected("=")
		}
		s.at++
		if m[key], err = s.value(); err != nil {
			return nil, err
		}
		if err := s.separated('}'); err != nil {
			return nil, err
		}
	}
	return m, s.end()
}

// splitList cuts a list into its raw values.
func splitList(data []byte) ([]yson.RawValue, error) {
	s := splitter{data: data}
	if err := s.open('['); err != nil {
		return nil, err
	}
	list := []yson.RawValue{}
	for !s.closed(']') {
		raw, err := s.value()
		if err != nil {
			return nil, err
		}
		list = append(list, raw)
		if err := s.separated(']'); err != nil {
			return nil, err
		}
	}
	return list, s.end()
}

// splitStart cuts a map of which only the beginning is there, and returns of the list under key the raw values that are there
// in whole.
func splitStart(data []byte, key string) (list []yson.RawValue) {
	s := splitter{data: data}
	if s.open('{') != nil {
		return nil
	}
	for {
		raw, err := s.value()
		var name string
		if err != nil || yson.Unmarshal(raw, &name) != nil {
			return nil
		}
		if s.space(); s.at >= len(s.data) || s.data[s.at] != '=' {
			return nil
		}
		s.at++
		if name == key {
			break
		}
		if _, err := s.value(); err != nil || s.separated('}') != nil {
			return nil
		}
	}
	if s.open('[') != nil {
		return nil
	}
	for !s.closed(']') {
		raw, err := s.value()
		// Only what comes after it tells that a value is whole.
		if err != nil || s.separated(']') != nil {
			break
		}
		list = append(list, raw)
	}
	return list
}

// splitter walks over YSON, text or binary, without looking into values. The format is described in the documentation of
// YTsaurus, "YSON".
type splitter struct {
	data []byte
	at   int
}

var errCut = errors.New("it ends too early")

func (s *splitter) unexpected(want string) error {
	if s.at >= len(s.data) {
		return errCut
	}
	return fmt.Errorf("byte %d is %q where %s was expected", s.at, s.data[s.at], want)
}

func (s *splitter) space() {
	for s.at < len(s.data) {
		switch s.data[s.at] {
		case ' ', '\t', '\r', '\n', '\v', '\f':
			s.at++
		default:
			return
		}
	}
}

// open steps into a map or list, over its attributes.
func (s *splitter) open(bracket byte) error {
	if s.space(); s.at < len(s.data) && s.data[s.at] == '<' {
		if err := s.nested(); err != nil {
			return err
		}
		s.space()
	}
	if s.at >= len(s.data) || s.data[s.at] != bracket {
		return s.unexpected(string(bracket))
	}
	s.at++
	return nil
}

// closed steps over the closing bracket if it is next.
func (s *splitter) closed(bracket byte) bool {
	if s.space(); s.at < len(s.data) && s.data[s.at] == bracket {
		s.at++
		return true
	}
	return false
}

// separated steps over the ";" between values, which may be missing before the closing bracket.
func (s *splitter) separated(bracket byte) error {
	switch s.space(); {
	case s.at < len(s.data) && s.data[s.at] == ';':
		s.at++
	case s.at >= len(s.data) || s.data[s.at] != bracket:
		return s.unexpected(";")
	}
	return nil
}

func (s *splitter) end() error {
	if s.space(); s.at < len(s.data) {
		return s.unexpected("the end")
	}
	return nil
}

// value steps over one value with its attributes, and returns its bytes.
func (s *splitter) value() (yson.RawValue, error) {
	s.space()
	start := s.at
	if s.at < len(s.data) && s.data[s.at] == '<' {
		if err := s.nested(); err != nil {
			return nil, err
		}
		s.space()
	}
	if s.at >= len(s.data) {
		return nil, errCut
	}
	var err error
	switch s.data[s.at] {
	case '{', '[':
		err = s.nested()
	default:
		err = s.literal()
	}
	return yson.RawValue(s.data[start:s.at]), err
}

// nested steps over everything from an opening bracket to the one that closes it, however deep.
func (s *splitter) nested() error {
	var open []byte // the closing brackets that are awaited
	for {
		if s.space(); s.at >= len(s.data) {
			return errCut
		}
		switch c := s.data[s.at]; c {
		case '{':
			open = append(open, '}')
		case '[':
			open = append(open, ']')
		case '<':
			open = append(open, '>')
		case '}', ']', '>':
			if c != open[len(open)-1] {
				return s.unexpected(string(open[len(open)-1]))
			}
			if open = open[:len(open)-1]; len(open) == 0 {
				s.at++
				return nil
			}
		case ';', '=':
		default:
			if err := s.literal(); err != nil {
				return err
			}
			continue
		}
		s.at++
	}
}

// The first bytes of values in binary YSON.
const (
	binaryString = 0x01
	binaryInt64  = 0x02
	binaryDouble = 0x03
	binaryFalse  = 0x04
	binaryTrue   = 0x05
	binaryUint64 = 0x06
)

// literal steps over a string, number, boolean or entity.
func (s *splitter) literal() error {
	rest := s.data[s.at+1:]
	switch s.data[s.at] {
	case '"':
		for i := 0; i < len(rest); i++ {
			switch rest[i] {
			case '\\':
				i++
			case '"':
				s.at += i + 2
				return nil
			}
		}
		return errCut
	case binaryString:
		length, n := binary.Varint(rest)
		if n <= 0 || length < 0 || length > int64(len(rest)-n) {
			return errCut
		}
		s.at += 1 + n + int(length)
	case binaryInt64, binaryUint64:
		_, n := binary.Uvarint(rest)
		if n <= 0 {
			return errCut
		}
		s.at += 1 + n
	case binaryDouble:
		if len(rest) < 8 {
			return errCut
		}
		s.at += 9
	case binaryFalse, binaryTrue, '#':
		s.at++
	default:
		start := s.at
		for s.at < len(s.data) && isWord(s.data[s.at]) {
			s.at++
		}
		if s.at == start {
			return s.unexpected("a value")
		}
	}
	return nil
}

// isWord reports the bytes of unquoted strings, numbers and %true.
func isWord(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		c == '_' || c == '-' || c == '+' || c == '.' || c == '%'
}
