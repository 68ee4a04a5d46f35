package observe

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// query is what is to be known of a PromQL expression: which series it takes, and which labels it groups by. It reads the
// subset of the language that is used here; testdata/observe has Prometheus's own parser read it all.
type query struct {
	selectors []selector
	grouping  []string
}

// selector is a metric with its matchers.
type selector struct {
	name     string
	matchers []matcher
	end      int // offset in the text just behind the name, or in the braces
	braces   bool
}

// matcher is one of a selector's conditions.
type matcher struct{ label, op, value string }

// tokens are, in order: variables of Grafana, strings, durations in brackets, numbers, words, comparisons, everything else.
var tokens = regexp.MustCompile(`\$\w+|"(?:[^"\\]|\\.)*"|\[[^\]]*\]|[0-9][0-9.]*[a-z]*|[a-zA-Z_:][a-zA-Z0-9_:]*|=~|!~|!=|[<>=]=|\S`)

// words that are no metrics.
var (
	aggregators = strings.Fields("sum min max avg count topk bottomk quantile")
	groupers    = strings.Fields("by without on ignoring group_left group_right")
	operators   = strings.Fields("and or unless bool offset")
)

func parseQuery(text string) (query, error) {
	var q query
	at := tokens.FindAllStringIndex(text, -1)
	word := func(i int) string {
		if i < 0 || i >= len(at) {
			return ""
		}
		return text[at[i][0]:at[i][1]]
	}
	for i := 0; i < len(at); i++ {
		w := word(i)
		switch {
		case !isWord(w), slices.Contains(aggregators, w), slices.Contains(operators, w):
		case slices.Contains(groupers, w):
			if word(i+1) != "(" {
				if strings.HasPrefix(w, "group_") {
					continue
				}
				return q, fmt.Errorf("%q: %s without labels", text, w)
			}
			for i += 2; word(i) != ")"; i++ {
				switch {
				case i >= len(at):
					return q, fmt.Errorf("%q: the labels of %s do not end", text, w)
				case isWord(word(i)):
					q.grouping = append(q.grouping, word(i))
				}
			}
		case word(i+1) == "(": // a function
		default:
			s := selector{name: w, end: at[i][1]}
			if word(i+1) == "{" {
				s.braces = true
				s.end = at[i+1][1]
				for i += 2; word(i) != "}"; i++ {
					if word(i) == "," {
						continue
					}
					if !isWord(word(i)) || !strings.HasPrefix(word(i+2), `"`) {
						return q, fmt.Errorf("%q: the matchers of %s are not understood", text, w)
					}
					s.matchers = append(s.matchers, matcher{word(i), word(i + 1), strings.Trim(word(i+2), `"`)})
					i += 2
				}
			}
			q.selectors = append(q.selectors, s)
		}
	}
	if len(q.selectors) == 0 {
		return q, fmt.Errorf("%q asks for no metric", text)
	}
	return q, nil
}

func isWord(s string) bool {
	return s != "" && (s[0] == '_' || s[0] >= 'a' && s[0] <= 'z' || s[0] >= 'A' && s[0] <= 'Z')
}

// within adds matchers to every selector of an expression.
func within(text, matchers string) (string, error) {
	q, err := parseQuery(text)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	from := 0
	for _, s := range q.selectors {
		b.WriteString(text[from:s.end])
		from = s.end
		if s.braces {
			b.WriteString(matchers + ",")
		} else {
			b.WriteString("{" + matchers + "}")
		}
	}
	return b.String() + text[from:], nil
}

// targetLabels are those that Prometheus adds to what it scrapes.
var targetLabels = []string{"namespace", "job", "pod", "instance"}

// Check reports what of an expression is in no series: a metric, a label, or a value that is asked for.
func (m Metrics) Check(expr string) error {
	q, err := parseQuery(expr)
	if err != nil {
		return err
	}
	labels := slices.Clone(targetLabels)
	for _, s := range q.selectors {
		series := m.series(s.name)
		if len(series) == 0 {
			return fmt.Errorf("%q: there is no metric %s", expr, s.name)
		}
		for name := range series[0] {
			labels = append(labels, name)
		}
		if !slices.ContainsFunc(series, s.takes) {
			return fmt.Errorf("%q: no series of %s has the labels that are asked for", expr, s.name)
		}
	}
	for _, label := range q.grouping {
		if !slices.Contains(labels, label) {
			return fmt.Errorf("%q: none of its metrics has the label %s", expr, label)
		}
	}
	return nil
}

// takes reports whether a series satisfies the matchers, but for those of labels that Prometheus adds. A label that is
// not there satisfies none: it is a mistake.
func (s selector) takes(series map[string]string) bool {
	for _, m := range s.matchers {
		if slices.Contains(targetLabels, m.label) {
			continue
		}
		value, ok := series[m.label]
		if !ok {
			return false
		}
		pattern := regexp.QuoteMeta(m.value)
		if strings.HasSuffix(m.op, "~") {
			pattern = m.value
		}
		matched, err := regexp.MatchString("^(?:"+pattern+")$", value)
		if err != nil || matched == strings.HasPrefix(m.op, "!") {
			return false
		}
	}
	return true
}
