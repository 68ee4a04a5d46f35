package proxy

import "strings"

// Header names meet readers that tell fewer of them apart than HTTP does: CGI, WSGI and their kin turn "-" into "_", some of
// them every other sign too. So names are compared as these readers see them.

// foldName is one byte of a name as such a reader sees it.
func foldName(c byte) byte {
	switch {
	case 'A' <= c && c <= 'Z':
		return c | 0x20
	case isAlnum(c):
		return c
	}
	return '-'
}

// hasFoldedPrefix reports whether name begins with prefix, which is lower-case with "-".
func hasFoldedPrefix(name, prefix string) bool {
	if len(name) < len(prefix) {
		return false
	}
	for i := range len(prefix) {
		if foldName(name[i]) != prefix[i] {
			return false
		}
	}
	return true
}

func isFolded(name, want string) bool { return len(name) == len(want) && hasFoldedPrefix(name, want) }

func isAlnum(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// trimSpace removes ASCII white space: the widest set that some reader of headers and cookies ignores.
func trimSpace(s string) string { return strings.Trim(s, " \t\r\n\v\f") }
