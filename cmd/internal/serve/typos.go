package serve

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// ParseEnviron is ParseConfig with the variables of a process, as os.Environ gives them. Because it sees them all, it also
// reports those that begin with TASK_PROXY_ and that no flag has: a typo would otherwise be a default, without a word. And
// when anything is wrong, a token's file that is not there is told with the rest.
func ParseEnviron(args, environ []string, out io.Writer) (Config, error) {
	return parseConfig(args, Getenv(environ), environ, out)
}

// Getenv looks variables up in an environment like os.Environ's. The first of the same name counts, as for os.Getenv.
func Getenv(environ []string) func(string) string {
	return func(name string) string {
		for _, variable := range environ {
			if value, ok := strings.CutPrefix(variable, name+"="); ok {
				return value
			}
		}
		return ""
	}
}

const variablePrefix = "TASK_PROXY_"

// ofKubernetes are the variables that it gives every container for every service of its namespace. One called task-proxy,
// or task-proxy-admin, makes them begin like ours.
var ofKubernetes = regexp.MustCompile(`^TASK_PROXY_(.*_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)

// strays notes each variable that begins like ours and that no flag has.
func (s *settings) strays(environ []string) {
	var known, strays []string
	for _, one := range s.list {
		known = append(known, envName(one.name))
	}
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		if value != "" && strings.HasPrefix(name, variablePrefix) && !slices.Contains(known, name) && !ofKubernetes.MatchString(name) {
			strays = append(strays, name)
		}
	}
	slices.Sort(strays)
	for _, name := range slices.Compact(strays) {
		s.note(fmt.Errorf("%s: no flag has this variable%s", name, meant(name, known)))
	}
}

// missingToken notes a token's file that cannot be found. By itself it does not make a configuration wrong: Run says it, and
// ends with another code. But whoever has to mend something anyway hears of all at once.
func (s *settings) missingToken(path string) {
	if path == "" {
		return
	}
	if _, err := singleFile(path); err != nil {
		s.note(fmt.Errorf("%s: %w", s.named("yt-token-path").origin(), err))
	}
}

// unknownFlag is the problem of a flag that there is not.
func (s *settings) unknownFlag(name string) error {
	var known []string
	for _, one := range s.list {
		known = append(known, "--"+one.name)
	}
	return fmt.Errorf("unknown flag --%s%s", name, meant("--"+name, known))
}

// meant asks for the known name that a wrong one is nearest to; nothing when none is near.
func meant(wrong string, known []string) string {
	const typos = 2 // letters to add, to leave out or to change
	best, least := "", typos+1
	for _, name := range known {
		if d := distance(wrong, name); d < least {
			best, least = name, d
		}
	}
	if best == "" {
		return ""
	}
	return "; is " + best + " meant?"
}

// distance is how many bytes must be added, left out or changed to make a of b, after Levenshtein; two that changed places
// count as one.
func distance(a, b string) int {
	// Three rows of the table: for a without its last two bytes, without its last, and with it.
	var before []int
	last, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			change := last[j]
			if a[i] != b[j] {
				change++
			}
			row[j+1] = min(change, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last, row = last, row, make([]int, len(b)+1)
	}
	return last[len(b)]
}
