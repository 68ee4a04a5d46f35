package proxy

import "strings"

// stripCookie takes the cluster's cookie out of one Cookie header, in every spelling that some reader could take for it:
// any case, spaces around the name, a quoted value with ";" inside, "NAME VALUE" without "=", after a "," as in older
// standards. Other cookies keep their bytes. It reports false when nothing is left.
func (ru *rules) stripCookie(v string) (string, bool) {
	var kept strings.Builder
	stripped, any := false, false
	for start := 0; start <= len(v); {
		end := nextSeparator(v, start, ";,")
		part := v[start:end]
		if rest, ok := ru.afterCookieName(part); ok {
			if !stripped {
				kept.WriteString(v[:max(start-1, 0)])
				stripped = true
			}
			start = cookieEnd(v, end-len(rest)) + 1
			continue
		}
		if trimSpace(part) != "" {
			any = true
		}
		if stripped {
			if kept.Len() > 0 {
				kept.WriteByte(v[start-1])
			} else {
				part = strings.TrimLeft(part, " \t")
			}
			kept.WriteString(part)
		}
		start = end + 1
	}
	if !stripped {
		return v, true
	}
	return kept.String(), any
}

// afterCookieName reports whether part begins with the cluster cookie's name, and returns what follows it.
func (ru *rules) afterCookieName(part string) (rest string, ok bool) {
	rest, ok = cutPrefixFold(strings.TrimLeft(part, " \t\r\n\v\f"), ru.cookie)
	if !ok || rest != "" && strings.IndexByte("= \t\r\n\v\f", rest[0]) < 0 {
		return "", false
	}
	return rest, true
}

// cookieEnd is the index of the ";" that ends the value which begins after v[from:]'s "=" and spaces, or len(v). A ","
// does not end it, and neither does a ";" inside a quoted value: a part of the secret would stay behind.
func cookieEnd(v string, from int) int {
	for from < len(v) && strings.IndexByte("= \t\r\n\v\f", v[from]) >= 0 {
		from++
	}
	if from < len(v) && v[from] == '"' {
		if closing := strings.IndexByte(v[from+1:], '"'); closing >= 0 {
			from += closing + 2
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
