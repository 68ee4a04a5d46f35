package serve

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// settings are the flags, each of which a variable can give as well. Unlike package flag by itself they report all
// problems and not the first.
type settings struct {
	fs       *flag.FlagSet
	list     []*setting
	replaced []*legacy
	problems []string
}

type setting struct {
	name  string
	def   string
	apply func(string) error
	bool  bool

	value  string
	source string // fromDefault, fromFlag, the name of a variable or, with its dash, of a legacy flag
}

// Where a setting's value is from, if neither from a variable nor from a legacy flag.
const (
	fromDefault = "default"
	fromFlag    = "flag"
)

// origin is what to call the setting by when its value is wrong.
func (s *setting) origin() string {
	if s.source == fromDefault || s.source == fromFlag {
		return "--" + s.name
	}
	return s.source + " (--" + s.name + ")"
}

// String implements flag.Value; package flag calls it on a zero value too.
func (s *setting) String() string {
	if s == nil {
		return ""
	}
	return s.def
}

// Set implements flag.Value. It only remembers: values are judged together, after the variables have been read.
func (s *setting) Set(v string) error { s.value, s.source = v, fromFlag; return nil }

// IsBoolFlag lets "--auth-enabled" stand for "--auth-enabled=true".
func (s *setting) IsBoolFlag() bool { return s.bool }

func newSettings() *settings {
	fs := flag.NewFlagSet("task-proxy serve", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	return &settings{fs: fs}
}

func (s *settings) add(name, def, usage string, isBool bool, apply func(string) error) {
	one := &setting{name: name, def: def, apply: apply, bool: isBool, value: def, source: fromDefault}
	s.list = append(s.list, one)
	s.fs.Var(one, name, usage)
}

// named is the setting of that name, which must have been declared.
func (s *settings) named(name string) *setting { return s.fs.Lookup(name).Value.(*setting) }

func (s *settings) text(name, def, usage string, apply func(string) error) {
	s.add(name, def, usage, false, apply)
}

func (s *settings) flag(name string, def bool, usage string, dst *bool) {
	s.add(name, strconv.FormatBool(def), usage, true, func(v string) (err error) {
		if *dst, err = strconv.ParseBool(v); err != nil {
			return fmt.Errorf("%q is neither true nor false", v)
		}
		return nil
	})
}

func (s *settings) duration(name string, def, least time.Duration, usage string, dst *time.Duration) {
	s.add(name, def.String(), "`duration`: "+usage, false, func(v string) error {
		d, err := time.ParseDuration(v)
		switch {
		case err != nil:
			return fmt.Errorf("%q is no duration like 10s or 1m30s", v)
		case d < least:
			return fmt.Errorf("%q is less than %s", v, least)
		}
		*dst = d
		return nil
	})
}

// number is a setting from least to most.
func (s *settings) number(name string, def, least, most int, usage string, dst *int) {
	s.add(name, strconv.Itoa(def), "`number`: "+usage, false, func(v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < least || n > most {
			return fmt.Errorf("%q is no number from %d to %d", v, least, most)
		}
		*dst = n
		return nil
	})
}

func envName(flag string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// parse fills every setting from the flag, the variable, the legacy flag or the default. It returns only ErrHelp; what is wrong is added to
// problems.
func (s *settings) parse(args []string, getenv func(string) string, out io.Writer) error {
	for {
		err := s.fs.Parse(args)
		if errors.Is(err, flag.ErrHelp) {
			s.usage(out)
			return ErrHelp
		}
		before := args
		args = s.fs.Args()
		if err != nil {
			s.note(s.inOurWords(err))
			if strings.HasPrefix(err.Error(), "bad flag syntax") {
				args = args[1:] // package flag leaves it where it is
				continue
			}
			// What follows an unknown flag is its value, and may be a secret: "--token X".
			at := len(before) - len(args) - 1
			if !strings.Contains(before[at], "=") && len(args) > 0 && !strings.HasPrefix(args[0], "-") {
				args = args[1:]
			}
			continue
		}
		if len(args) == 0 {
			break
		}
		s.problems = append(s.problems, fmt.Sprintf("unexpected argument %q: values follow their flag, as in --listen=:8080", args[0]))
		args = args[1:]
	}
	for _, one := range s.list {
		if v := getenv(envName(one.name)); v != "" && one.source == fromDefault {
			one.value, one.source = v, envName(one.name)
		}
	}
	for _, one := range s.replaced {
		if one.given {
			s.note(one.settle())
		}
	}
	for _, one := range s.list {
		if err := one.apply(one.value); err != nil {
			s.note(fmt.Errorf("%s: %w", one.origin(), err))
		}
	}
	return nil
}

// inOurWords is an error of package flag with the flag as one writes it.
func (s *settings) inOurWords(err error) error {
	if _, name, ok := strings.Cut(err.Error(), "not defined: -"); ok {
		return s.unknownFlag(name)
	}
	if _, name, ok := strings.Cut(err.Error(), "needs an argument: -"); ok {
		return fmt.Errorf("--%s needs a value, as in --%s=%s", name, name, s.fs.Lookup(name).DefValue)
	}
	return err
}

// note adds a problem; nil is none. It shows no name and password that a URL begins with.
func (s *settings) note(err error) {
	if err != nil {
		s.problems = append(s.problems, userinfo.ReplaceAllString(err.Error(), "${1}${2}xxxxx@"))
	}
}

// userinfo is what is before the @ of an address, with what is before that.
var userinfo = regexp.MustCompile(`(^|[\s"',/=])[^\s"',/=@]*:[^\s"',/@]*@|(//)[^\s"/@]*@`)

// effective is every setting with its value, a line each as a flag, and where that is from. No value is a secret but a
// password in a URL and a token in the place of its file's name, which are not shown.
func (s *settings) effective() string {
	var b strings.Builder
	for _, one := range s.list {
		value := one.value
		if one.name == "yt-token-path" {
			value = shownPath(value)
		}
		if u, err := url.Parse(value); err == nil && u.User != nil {
			value = u.Redacted()
		}
		if strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("\"'`\\$&;|<>()*?#~!", r) }) {
			value = strconv.QuoteToASCII(value)
		}
		fmt.Fprintf(&b, "%-60s # %s\n", "--"+one.name+"="+value, one.source)
	}
	return b.String()
}

// require adds a problem for a setting that has no value, unless one is named already.
func (s *settings) require(name string, ok bool) {
	if ok {
		return
	}
	for _, p := range s.problems {
		if strings.Contains(p, "--"+name+":") || strings.Contains(p, "(--"+name+"):") {
			return
		}
	}
	s.problems = append(s.problems, fmt.Sprintf("--%s (or %s) is required", name, envName(name)))
}

func (s *settings) usage(out io.Writer) {
	fmt.Fprintln(out, "Usage: task-proxy [serve] [flags]\n       task-proxy check [flags]   what the robot lacks or has too much of, and what the cluster lets browsers do; exit code 1: something is missing\n       task-proxy version\n       task-proxy help\n\nEvery flag can be given as a variable too: --yt-proxy as TASK_PROXY_YT_PROXY; an empty one counts as not given.\n\nFlags:")
	s.fs.VisitAll(func(f *flag.Flag) {
		if _, ok := f.Value.(*setting); !ok {
			return
		}
		kind, usage := flag.UnquoteUsage(f)
		if kind == "value" {
			kind = ""
		}
		def := ""
		if f.DefValue != "" {
			def = " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(out, "  --%s %s\n        %s%s\n", f.Name, kind, usage, def)
	})
	fmt.Fprint(out, "\nFlags of the server that this one replaces; its others are the same here:\n")
	for _, one := range s.replaced {
		kind, usage := flag.UnquoteUsage(s.fs.Lookup(one.name))
		fmt.Fprintf(out, "  -%s %s\n        %s\n", one.name, kind, usage)
	}
}
