package serve

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// settings are the flags, each of which a variable can give as well. Unlike package flag by itself they report all
// problems and not the first.
type settings struct {
	fs       *flag.FlagSet
	list     []*setting
	problems []string
}

type setting struct {
	name  string
	def   string
	apply func(string) error
	bool  bool

	value string
	given bool
}

// String implements flag.Value; package flag calls it on a zero value too.
func (s *setting) String() string {
	if s == nil {
		return ""
	}
	return s.def
}

// Set implements flag.Value. It only remembers: values are judged together, after the variables have been read.
func (s *setting) Set(v string) error { s.value, s.given = v, true; return nil }

// IsBoolFlag lets "--auth-enabled" stand for "--auth-enabled=true".
func (s *setting) IsBoolFlag() bool { return s.bool }

func newSettings() *settings {
	fs := flag.NewFlagSet("task-proxy serve", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	return &settings{fs: fs}
}

func (s *settings) add(name, def, usage string, isBool bool, apply func(string) error) {
	one := &setting{name: name, def: def, apply: apply, bool: isBool}
	s.list = append(s.list, one)
	s.fs.Var(one, name, usage)
}

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

// number is a setting from 1 to most.
func (s *settings) number(name string, def, most int, usage string, dst *int) {
	s.add(name, strconv.Itoa(def), "`number`: "+usage, false, func(v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > most {
			return fmt.Errorf("%q is no number from 1 to %d", v, most)
		}
		*dst = n
		return nil
	})
}

func envName(flag string) string {
	return "TASK_PROXY_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// parse fills every setting from the flag, the variable or the default. It returns only ErrHelp; what is wrong is added to
// problems.
func (s *settings) parse(args []string, getenv func(string) string, out io.Writer) error {
	for {
		err := s.fs.Parse(args)
		if errors.Is(err, flag.ErrHelp) {
			s.usage(out)
			return ErrHelp
		}
		args = s.fs.Args()
		if err != nil {
			s.problems = append(s.problems, strings.Replace(err.Error(), "not defined: -", "unknown: --", 1))
			continue
		}
		if len(args) == 0 {
			break
		}
		s.problems = append(s.problems, fmt.Sprintf("unexpected argument %q: values follow their flag, as in --listen=:8080", args[0]))
		args = args[1:]
	}
	for _, one := range s.list {
		source, value := "--"+one.name, one.value
		if !one.given {
			value = one.def
			if v := getenv(envName(one.name)); v != "" {
				source, value = envName(one.name)+" (--"+one.name+")", v
			}
		}
		if err := one.apply(value); err != nil {
			s.problems = append(s.problems, source+": "+err.Error())
		}
	}
	return nil
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
	fmt.Fprintln(out, "Usage: task-proxy [serve] [flags]\n       task-proxy check [flags]   what the robot lacks or has too much of, and what the cluster lets browsers do; exit code 1: something is missing\n       task-proxy version\n\nEvery flag can be given as a variable too: --yt-proxy as TASK_PROXY_YT_PROXY.\n\nFlags:")
	s.fs.VisitAll(func(f *flag.Flag) {
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
}
