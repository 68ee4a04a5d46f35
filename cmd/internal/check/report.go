package check

import (
	"fmt"
	"io"
	"strings"
	"unicode"
)

// The verdicts. A line begins with one.
const (
	fine    = "ok"
	missing = "MISSING" // without it the proxy does not do its work
	excess  = "EXCESS"  // it would be somebody else's when the robot's token is
	warning = "WARN"    // nothing that the robot has or lacks, but worth knowing
	unknown = "unknown" // not decided; the line says why
)

// report writes the lines as they come and counts them.
type report struct {
	out    io.Writer
	counts map[string]int
	failed int // of the unknown ones, those that the cluster did not answer
	err    error
}

// line says what was looked at and, if there is something to be done, how.
func (r *report) line(verdict, what, how string) {
	r.counts[verdict]++
	text := fmt.Sprintf("%-8s %s", verdict, oneLine(what))
	if how != "" {
		text += " — " + oneLine(how)
	}
	if _, err := fmt.Fprintln(r.out, text); err != nil && r.err == nil {
		r.err = fmt.Errorf("write the report: %w", err)
	}
}

func (r *report) ok(format string, args ...any) { r.line(fine, fmt.Sprintf(format, args...), "") }

// unanswered is for a question that had to be answered and was not.
func (r *report) unanswered(what string, err error) {
	r.failed++
	r.line(unknown, what+": "+cut(err.Error()), "")
}

// sum ends the report. It reports whether nothing is missing and all that had to be answered was.
func (r *report) sum() bool {
	parts := []string{fmt.Sprintf("%d ok", r.counts[fine])}
	for _, v := range []struct{ verdict, word string }{
		{missing, "missing"}, {excess, "in excess"}, {warning, "to be warned of"}, {unknown, "not known"},
	} {
		if n := r.counts[v.verdict]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, v.word))
		}
	}
	if _, err := fmt.Fprintln(r.out, strings.Join(parts, ", ")); err != nil && r.err == nil {
		r.err = fmt.Errorf("write the report: %w", err)
	}
	return r.counts[missing] == 0 && r.failed == 0
}

// cut bounds what a cluster says in an error.
func cut(s string) string {
	const most = 400
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// oneLine keeps what others have written, names and errors, from making lines of their own or moving the cursor.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
}

// plainWord are the characters that neither a shell nor YSON reads as anything but themselves.
func plainWord(s, more string) bool {
	for _, r := range s {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_' || r == '-' || r == '.'
		if !letter && !strings.ContainsRune(more, r) {
			return false
		}
	}
	return s != ""
}

// shellWord writes s so that a shell reads it as one word.
func shellWord(s string) string {
	if plainWord(s, "/@:+,") {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// ysonWord writes s as a YSON string.
func ysonWord(s string) string {
	if plainWord(s, "") && !strings.ContainsRune("0123456789-.", rune(s[0])) {
		return s
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// grant is the command that gives a subject permissions on a node.
func grant(path, subject string, permissions ...string) string {
	return fmt.Sprintf("yt set %s %s", shellWord(path+"/@acl/end"), shellWord(ace(subject, permissions...)))
}

func ace(subject string, permissions ...string) string {
	return fmt.Sprintf("{action=allow; subjects=[%s]; permissions=[%s]}", ysonWord(subject), strings.Join(permissions, "; "))
}
