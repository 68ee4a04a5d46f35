package serve

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// legacy is a flag of the server that this one replaces whose name or form is another one here. It stands for a setting, and
// no variable stands for it. Those that are the same in both are settings and nothing else.
type legacy struct {
	name   string
	usage  string
	target *setting
	means  func(string) (string, error) // the setting's value
	same   func(a, b string) bool       // two values of the setting

	value string
	given bool
}

// String implements flag.Value.
func (l *legacy) String() string { return "" }

// Set implements flag.Value; like a setting's it only remembers.
func (l *legacy) Set(v string) error { l.value, l.given = v, true; return nil }

func (s *settings) legacy(name, target, usage string, means func(string) (string, error), same func(a, b string) bool) {
	one := &legacy{name: name, usage: usage, target: s.named(target), means: means, same: same}
	s.replaced = append(s.replaced, one)
	s.fs.Var(one, name, usage)
}

// settle gives the setting its value, unless a flag or a variable has; then they must agree.
func (l *legacy) settle() error {
	value, err := l.means(l.value)
	if err != nil {
		return fmt.Errorf("-%s (--%s): %w", l.name, l.target.name, err)
	}
	switch {
	case l.target.source == fromDefault:
		l.target.value, l.target.source = value, "-"+l.name
	case !l.same(l.target.value, value):
		return fmt.Errorf("-%s %s means --%s=%s, and %s says %q: give only one of them", l.name, l.value, l.target.name, value, l.target.origin(), l.target.value)
	}
	return nil
}

// legacyFlags declares them all.
func (s *settings) legacyFlags() {
	s.legacy("namespace", "yt-proxy", "the Kubernetes `namespace` of the cluster; X means --yt-proxy=http-proxies-lb.X.svc.cluster.local",
		proxyIn, func(a, b string) bool { return a == b })
	s.legacy("discovery-period-seconds", "discovery-period", "a `number`; N means --discovery-period=Ns", seconds, sameDuration)
}

// proxyIn is the address that the cluster's HTTP proxies have in a namespace.
func proxyIn(namespace string) (string, error) {
	if !isDNSLabel(namespace) {
		return "", fmt.Errorf("%q is no name of a Kubernetes namespace: want at most 63 of a-z, 0-9 and -, with - neither first nor last", namespace)
	}
	return "http-proxies-lb." + namespace + ".svc.cluster.local", nil
}

func seconds(v string) (string, error) {
	const most = 24 * 60 * 60 // as in the existing chart
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > most {
		return "", fmt.Errorf("%q is no number from 1 to %d", v, most)
	}
	return (time.Duration(n) * time.Second).String(), nil
}

func sameDuration(a, b string) bool {
	da, errA := time.ParseDuration(a)
	db, errB := time.ParseDuration(b)
	return errors.Join(errA, errB) == nil && da == db
}

func isDNSLabel(v string) bool {
	if v == "" || len(v) > 63 || v[0] == '-' || v[len(v)-1] == '-' {
		return false
	}
	for i := range len(v) {
		if c := v[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}
