package ytlocal

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yterrors"
)

// path is a parsed YPath: where to start, the steps down the tree, and the steps into an attribute, if it names one.
type path struct {
	text   string         // the path without its attributes and selectors, as written
	object string         // set for "#id" paths, which start at an object instead of the root
	steps  []string       // child keys, unescaped
	wild   bool           // the last step was "*"; it is not in steps
	isAttr bool           // the path names attributes: all of them if attr is empty
	attr   []string       // attribute name and the steps into its value
	nolink bool           // the path ends in "&": a link itself, not its target
	attrs  map[string]any // attributes of a rich path: append, columns, file_name, …
	rich   *ypath.Rich    // row and column selectors; nil without any
}

// parsePath reads a path from a parameter: a string, or a string with attributes around it.
func parsePath(v any) (path, error) {
	attrs := map[string]any{}
	if va, ok := v.(*yson.ValueWithAttrs); ok {
		for k, a := range va.Attrs {
			attrs[k] = a
		}
		v = va.Value
	}
	text, ok := v.(string)
	if !ok {
		return path{}, fail(yterrors.CodeGeneric, "a path must be a string, not %T", v)
	}
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "<") {
		n, err := yson.SliceYPathAttrs([]byte(text))
		if err != nil {
			return path{}, fail(yterrors.CodeGeneric, "bad attributes of path %.256q: %v", text, err)
		}
		var inner yson.ValueWithAttrs
		if err := yson.Unmarshal([]byte(text[:n]+"#"), &inner); err != nil {
			return path{}, fail(yterrors.CodeGeneric, "bad attributes of path %.256q: %v", text, err)
		}
		for k, a := range inner.Attrs {
			attrs[k] = a
		}
		text = strings.TrimSpace(text[n:])
	}
	p := path{attrs: attrs}
	return p, p.parse(text)
}

// parse reads the path proper.
func (p *path) parse(text string) error {
	if i := selectorStart(text); i < len(text) {
		rich, err := ypath.Parse(text)
		if err != nil {
			return fail(yterrors.CodeGeneric, "bad path %.256q: %v", text, err)
		}
		p.rich = rich
		text = text[:i]
	}
	p.text = text
	rest, ok := strings.CutPrefix(text, "/")
	if !ok {
		object, found := strings.CutPrefix(text, "#")
		if !found {
			return fail(yterrors.CodeGeneric, "path %.256q must start with \"/\" or \"#\"", text)
		}
		end := strings.IndexByte(object, '/')
		if end < 0 {
			end = len(object)
		}
		p.object, rest = object[:end], object[end:]
	}
	for rest != "" {
		if rest == "&" || strings.HasPrefix(rest, "&/@") {
			p.nolink = true
			if rest = rest[1:]; rest == "" {
				return nil
			}
		}
		if rest[0] != '/' {
			return fail(yterrors.CodeGeneric, "path %.256q: expected \"/\" before %.64q", text, rest)
		}
		rest = rest[1:]
		if strings.HasPrefix(rest, "@") && !p.isAttr {
			p.isAttr = true
			if rest = rest[1:]; rest == "" {
				return nil
			}
		}
		if rest == "*" && !p.isAttr {
			p.wild = true
			return nil
		}
		step, n, err := literal(rest)
		if err != nil {
			return fail(yterrors.CodeGeneric, "path %.256q: %v", text, err)
		}
		rest = rest[n:]
		if p.isAttr {
			p.attr = append(p.attr, step)
		} else {
			p.steps = append(p.steps, step)
		}
	}
	return nil
}

// selectorStart is the index of the first unescaped "{" or "[", or the length of text.
func selectorStart(text string) int {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '{', '[':
			return i
		}
	}
	return len(text)
}

// literal reads one step up to the next unescaped special character and undoes its escapes.
func literal(s string) (step string, n int, err error) {
	var b strings.Builder
	for n < len(s) {
		switch ch := s[n]; ch {
		case '/', '&', '*':
			if b.Len() == 0 {
				return "", 0, fmt.Errorf("unexpected %q", ch)
			}
			return b.String(), n, nil
		case '\\':
			switch {
			case n+3 < len(s) && s[n+1] == 'x':
				code, err := strconv.ParseUint(s[n+2:n+4], 16, 8)
				if err != nil {
					return "", 0, fmt.Errorf("bad escape %q", s[n:n+4])
				}
				b.WriteByte(byte(code))
				n += 4
			case n+1 < len(s):
				b.WriteByte(s[n+1])
				n += 2
			default:
				return "", 0, errors.New("it ends in a lone backslash")
			}
		default:
			b.WriteByte(ch)
			n++
		}
	}
	if b.Len() == 0 {
		return "", 0, errors.New("it has an empty step")
	}
	return b.String(), n, nil
}

// flag reads a boolean attribute of a rich path.
func (p path) flag(name string) bool {
	b, _ := p.attrs[name].(bool)
	return b
}

// escapeStep is the inverse of literal: it makes a key safe to stand in a path.
func escapeStep(key string) string {
	var b strings.Builder
	for i := range len(key) {
		if strings.IndexByte(`\/@&*[{`, key[i]) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(key[i])
	}
	return b.String()
}
