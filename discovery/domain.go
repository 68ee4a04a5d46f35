package discovery

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The label of the proxy's own host under a base domain, beside the base domain itself.
const ownLabel = "task-proxy"

// maxLabel is what DNS allows for one label, and maxBase what it leaves for a base domain in front of which such a label
// and a dot still fit (RFC 1035, section 2.3.4).
const (
	maxLabel = 63
	maxBase  = 253 - maxLabel - 1
)

// ShortID is the label that a service is published under as a rule: the last 8 hex digits of
// sha256(operation id ++ task ++ service). It is short enough to collide, also on purpose; Labels remembers who owns it.
func ShortID(operationID, task, name string) string {
	sum := sha256.Sum256([]byte(operationID + task + name))
	return hex.EncodeToString(sum[len(sum)-4:])
}

// LongID is the label that resolves for every service, always: the last 16 hex digits of
// sha256(operation id NUL task NUL service). The separators make the three parts unambiguous.
func LongID(operationID, task, name string) string {
	label := longID(operationID, task, name)
	return string(label[:])
}

// longID is LongID without an allocation, for names as long as they can be published.
func longID(operationID, task, name string) (label [16]byte) {
	text := make([]byte, 0, 64+2*maxName)
	text = append(text, operationID...)
	text = append(text, 0)
	text = append(text, task...)
	text = append(text, 0)
	text = append(text, name...)
	sum := sha256.Sum256(text)
	hex.Encode(label[:], sum[len(sum)-8:])
	return label
}

// newAliasLabel composes the label <alias>-<task>-<service>, all lower-cased, for an alias with or without its "*". It is
// only ever looked up as a whole: the parts may have "-" themselves. The problem has no Kind when there is such a label. No
// such label is an ID or the proxy's own, since it has two "-" that are not at its ends.
func newAliasLabel(alias, task, name string) (string, Problem) {
	alias = strings.TrimPrefix(alias, "*")
	// First of all the length: an author may write what is much longer than a label.
	if n := len(alias) + len(task) + len(name) + 2; n > maxLabel {
		return "", Problem{Kind: LabelTooLong, Reason: fmt.Sprintf(
			"<alias>-<task>-<service> has %d bytes, a DNS label at most %d; it is reached by its ID", n, maxLabel)}
	}
	label := lowerASCII(alias + "-" + task + "-" + name)
	reason := ""
	switch {
	case alias == "" || task == "" || name == "":
		reason = "a part of it is empty"
	case !validLabel(label):
		reason = "a DNS label has letters, digits, \"-\" and \"_\" only"
	case label[0] == '-' || label[len(label)-1] == '-':
		reason = "a DNS label has no \"-\" at its ends"
	case label[2:4] == "--":
		reason = "\"--\" at this place is for encoded names (RFC 5891)"
	default:
		return label, Problem{}
	}
	return "", Problem{Kind: BadLabel, Reason: quote(label) + " (<alias>-<task>-<service>) is no DNS label: " + reason + "; it is reached by its ID"}
}

// Domain is the host name of a label under a base domain: no scheme, no port. Bases.Classify is its inverse.
func Domain(label, base string) string { return label + "." + base }

// HostKind says what a host name means to the proxy.
type HostKind uint8

// The kinds of host names.
const (
	HostForeign HostKind = iota // not under any base domain; only headers can name a service
	HostOwn                     // the proxy's own host: a base domain itself, or "task-proxy" under it
	HostService                 // one label under a base domain; whether a service has it is the snapshot's to say
)

// String is the word for logs.
func (k HostKind) String() string {
	switch k {
	case HostForeign:
		return "foreign"
	case HostOwn:
		return "own"
	case HostService:
		return "service"
	}
	return "HostKind(" + strconv.Itoa(int(k)) + ")"
}

// Bases are the base domains that services are reached under. The zero Bases has none: every host is foreign to it.
// It is immutable and safe for concurrent use.
type Bases struct {
	domains []string // lower-cased; the first is the primary one
}

// NewBases checks the base domains, of which the first is the primary one. Each must be a DNS name without scheme, port,
// wildcard or trailing dot, and leave room for a label in front. Letter case does not matter. The error names every value
// that is wrong and what would be right.
func NewBases(domains ...string) (Bases, error) {
	if len(domains) == 0 {
		return Bases{}, errors.New("no base domain given: at least one DNS name is needed, such as task-proxy.example.com")
	}
	var b Bases
	var errs []error
	for _, d := range domains {
		lower := lowerASCII(d)
		switch reason := badBase(lower); {
		case reason != "":
			errs = append(errs, fmt.Errorf("base domain %s %s", quote(d), reason))
		case slices.Contains(b.domains, lower):
			errs = append(errs, fmt.Errorf("base domain %s is given twice: name it once", quote(d)))
		default:
			b.domains = append(b.domains, lower)
		}
	}
	if len(errs) > 0 {
		return Bases{}, errors.Join(errs...)
	}
	return b, nil
}

// badBase says what is wrong with a lower-cased base domain, as the end of a sentence; empty when nothing is.
func badBase(d string) string {
	const right = "give a DNS name alone, such as task-proxy.example.com"
	switch {
	case d == "":
		return "is empty: " + right
	case strings.Contains(d, "://"):
		return "has a scheme: " + right
	case strings.Contains(d, "*"):
		return "has a wildcard: " + right + "; every label under it is served anyway"
	case strings.ContainsAny(d, "[]") || strings.Count(d, ":") > 1:
		return "is an IP address: " + right
	case strings.Contains(d, ":"):
		return "has a port: " + right
	case strings.Contains(d, "/"):
		return "has a path: " + right
	case strings.HasSuffix(d, "."):
		return "ends with a dot: " + right
	case len(d) > maxBase:
		return fmt.Sprintf("is %d bytes long: at most %d leave room for a service's label", len(d), maxBase)
	}
	labels := strings.Split(d, ".")
	for _, l := range labels {
		if !validLabel(l) || l[0] == '-' || l[len(l)-1] == '-' {
			return fmt.Sprintf("has the label %s, which is no DNS label (1 to %d letters, digits, \"-\" or \"_\", no \"-\" at its ends): %s",
				quote(l), maxLabel, right)
		}
	}
	// No top-level domain is a number (RFC 3696, section 2); what ends with one is an IPv4 address in some spelling.
	if strings.Trim(labels[len(labels)-1], "0123456789") == "" {
		return "is an IP address: " + right
	}
	return ""
}

// Primary is the base domain that services are published under; empty for the zero Bases.
func (b Bases) Primary() string {
	if len(b.domains) == 0 {
		return ""
	}
	return b.domains[0]
}

// All are the base domains, the primary one first.
func (b Bases) All() []string { return slices.Clone(b.domains) }

// Domain is the published host name of a label: under the primary base domain.
func (b Bases) Domain(label string) string { return Domain(label, b.Primary()) }

// Classify says what a Host header or authority means, and for HostService which label it names, lower-cased. Letter case,
// a port and one trailing dot do not matter. Everything that is not exactly one label under a base domain is foreign:
// IP addresses, userinfo, empty and nested labels, labels with characters that no DNS label has. It does not allocate
// unless the host has capital letters.
func (b Bases) Classify(host string) (kind HostKind, label string) {
	name, ok := hostName(host)
	if !ok {
		return HostForeign, ""
	}
	for _, d := range b.domains {
		if name == d {
			return HostOwn, ""
		}
	}
	// A host is one label under one base domain at most, so their order does not matter, also when one is under another.
	for _, d := range b.domains {
		head, ok := strings.CutSuffix(name, d)
		if !ok {
			continue
		}
		l, ok := strings.CutSuffix(head, ".")
		if !ok || !validLabel(l) {
			continue
		}
		if l == ownLabel {
			return HostOwn, ""
		}
		return HostService, l
	}
	return HostForeign, ""
}

// hostName is the lower-cased name of a host without its port and one trailing dot.
func hostName(host string) (string, bool) {
	name := host
	if i := strings.IndexByte(host, ':'); i >= 0 {
		// RFC 3986, section 3.2.3: a port is any number of digits, none included.
		port := host[i+1:]
		for j := range len(port) {
			if port[j] < '0' || port[j] > '9' {
				return "", false
			}
		}
		name = host[:i]
	}
	name = strings.TrimSuffix(name, ".")
	return lowerASCII(name), name != ""
}

// lowerASCII folds A to Z only: strings.ToLower maps other letters into ASCII as well (the Kelvin sign to "k"), and two
// different names must not become one.
func lowerASCII(s string) string {
	for i := range len(s) {
		if s[i] >= 'A' && s[i] <= 'Z' {
			lower := []byte(s)
			for j := i; j < len(lower); j++ {
				if lower[j] >= 'A' && lower[j] <= 'Z' {
					lower[j] += 'a' - 'A'
				}
			}
			return string(lower)
		}
	}
	return s
}

// validLabel reports whether a lower-cased string is 1 to 63 characters of those that labels in use have.
func validLabel(l string) bool {
	if l == "" || len(l) > maxLabel {
		return false
	}
	for i := range len(l) {
		c := l[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}
