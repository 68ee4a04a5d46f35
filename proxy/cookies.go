package proxy

import (
	"strings"

	"golang.org/x/net/http/httpguts"
)

// stripCookie takes the cluster's cookie out of one Cookie header, in every spelling that some reader could take for it:
// any case, the name in quotes or after bytes that no name has, a quoted value with ";" inside, "NAME VALUE" without "=",
// after a "," as in older standards or after white space as Python reads it. Other cookies keep their bytes. It reports false
// when nothing is left.
func (ru *rules) stripCookie(v string) (string, bool) {
	var kept strings.Builder
	stripped, any := false, false
	for start := 0; start <= len(v); {
		next := nextSeparator(v, start, ";,")
		part := v[start:next]
		head, tail, found := ru.cutCookie(part)
		if found {
			next = cookieEnd(v, next-len(tail))
			part = strings.TrimRight(head, spaces)
			if !stripped {
				kept.WriteString(v[:max(start-1, 0)])
				stripped = true
			}
		}
		blank := trimSpace(part) == ""
		any = any || !blank
		if stripped && (!found || !blank) {
			if kept.Len() > 0 {
				kept.WriteByte(v[start-1])
			} else {
				part = strings.TrimLeft(part, " \t")
			}
			kept.WriteString(part)
		}
		start = next + 1
	}
	if !stripped {
		return v, true
	}
	return kept.String(), any
}

// spaces is the widest set of white space that some reader of cookies ignores, or takes for the end of one.
const spaces = " \t\r\n\v\f"

// cutCookie looks for the cluster's cookie in what is between two separators: at the beginning, and after white space. head
// is what comes before it, tail what follows its name.
//
// Before the name may be bytes that names do not have, or "$" (RFC 2965), or a quote. Whatever is no part of a name ends it:
// "NAME[]" is an array of that name to PHP.
func (ru *rules) cutCookie(part string) (head, tail string, found bool) {
	odd := func(c byte) bool { return c == '$' || c == '\'' || !httpguts.IsTokenRune(rune(c)) }
	for at := 0; ; {
		name := at
		for name < len(part) && odd(part[name]) {
			name++
		}
		tail, ok := cutPrefixFold(part[name:], ru.cookie)
		if ok && (tail == "" || odd(tail[0])) {
			if name > 0 && tail != "" && tail[0] == part[name-1] && (tail[0] == '"' || tail[0] == '\'') {
				tail = tail[1:] // it ends the name, and begins no value
			}
			return part[:at], tail, true
		}
		i := strings.IndexAny(part[name:], spaces)
		if i < 0 {
			return "", "", false
		}
		at = name + i
	}
}

// cookieEnd is the index of the ";" that ends the value which begins after v[from:]'s "=" and spaces, or len(v). A ","
// does not end it, and neither does a ";" inside a quoted value: a part of the secret would stay behind.
func cookieEnd(v string, from int) int {
	for from < len(v) && strings.IndexByte("="+spaces, v[from]) >= 0 {
		from++
	}
	if from < len(v) && v[from] == '"' {
		for i := from + 1; i < len(v); i++ {
			switch v[i] {
			case '\\':
				i++ // to some readers it makes the next quote a part of the value
			case '"':
				return nextSeparator(v, i, ";")
			}
		}
	}
	return nextSeparator(v, from, ";")
}

func nextSeparator(v string, from int, separators string) int {
	if i := strings.IndexAny(v[from:], separators); i >= 0 {
		return from + i
	}
	return len(v)
}
