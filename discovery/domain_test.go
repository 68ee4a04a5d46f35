package discovery

import (
	"strings"
	"testing"
)

func TestIDs(t *testing.T) {
	t.Parallel()
	// Vectors of the published documentation and of the existing product's tests.
	short := func(operation, task, service, want string) {
		t.Helper()
		if got := ShortID(operation, task, service); got != want {
			t.Errorf("ShortID(%q, %q, %q) = %q, want %q", operation, task, service, got, want)
		}
	}
	short("a8ef7695-3de07913-5103e8-e29a6707", "example_grpc_server", "server", "ae5cf6f5")
	short("a6e04b98-bf982394-5103e8-55754a49", "master", "ui", "2ef4261c")
	short("a6e04b98-bf982394-5103e8-55754a49", "history", "ui", "51a6d485")
	short("0-0-0-1", "worker", "api", "da464c6e")
	short("0-0-0-1", "worker", "ui", "3a7fd2e3")
	short("0-0-0-2", "worker", "api", "6b8f3497")
	short("0-0-0-2", "worker", "ui", "9f7f65e3")

	// The short form cannot tell these apart, the long one can.
	if ShortID("1-2-3-4", "a", "bc") != ShortID("1-2-3-4", "ab", "c") {
		t.Error("ShortID has separators, which the published form has not")
	}
	if LongID("1-2-3-4", "a", "bc") == LongID("1-2-3-4", "ab", "c") {
		t.Error("LongID cannot tell a+bc from ab+c")
	}
	if got, want := LongID("a6e04b98-bf982394-5103e8-55754a49", "master", "ui"), "c78e71abcacad2f8"; got != want {
		t.Errorf("LongID = %q, want %q", got, want)
	}
}

func TestClassify(t *testing.T) {
	t.Parallel()
	bases, err := NewBases("Task-Proxy.Example.com", "inner.task-proxy.example.com", "localhost")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := bases.Primary(), "task-proxy.example.com"; got != want {
		t.Errorf("Primary() = %q, want %q", got, want)
	}
	f := func(host string, kind HostKind, label string) {
		t.Helper()
		if k, l := bases.Classify(host); k != kind || l != label {
			t.Errorf("Classify(%q) = %v, %q, want %v, %q", host, k, l, kind, label)
		}
	}
	f("ae5cf6f5.task-proxy.example.com", HostService, "ae5cf6f5")
	f("ae5cf6f5.task-proxy.example.com:443", HostService, "ae5cf6f5")
	f("ae5cf6f5.task-proxy.example.com:", HostService, "ae5cf6f5")
	f("ae5cf6f5.task-proxy.example.com.", HostService, "ae5cf6f5")
	f("ae5cf6f5.task-proxy.example.com.:8080", HostService, "ae5cf6f5")
	f("AE5CF6F5.Task-PROXY.example.COM", HostService, "ae5cf6f5")
	f("my_alias-master-ui.task-proxy.example.com", HostService, "my_alias-master-ui")
	f("ae5cf6f5.localhost:1", HostService, "ae5cf6f5")
	f("ae5cf6f5.inner.task-proxy.example.com", HostService, "ae5cf6f5")

	f("task-proxy.example.com", HostOwn, "")
	f("task-proxy.example.com:80", HostOwn, "")
	f("Task-Proxy.example.com.", HostOwn, "")
	f("task-proxy.task-proxy.example.com", HostOwn, "")
	f("inner.task-proxy.example.com", HostOwn, "") // a base of its own, though it looks like a label of the other
	f("localhost", HostOwn, "")
	f("task-proxy.localhost", HostOwn, "")

	f("", HostForeign, "")
	f(".", HostForeign, "")
	f(":80", HostForeign, "")
	f("example.com", HostForeign, "")
	f("xtask-proxy.example.com", HostForeign, "")
	f(".task-proxy.example.com", HostForeign, "")
	f("..task-proxy.example.com", HostForeign, "")
	f("a.b.task-proxy.example.com", HostForeign, "")
	f("a..task-proxy.example.com", HostForeign, "")
	f("ae5cf6f5.task-proxy.example.com..", HostForeign, "")
	f("user@ae5cf6f5.task-proxy.example.com", HostForeign, "")
	f("ae5cf6f5.task-proxy.example.com:80:80", HostForeign, "")
	f("ae5cf6f5.task-proxy.example.com:http", HostForeign, "")
	f("ae5cf6f5.task-proxy.example.com/x", HostForeign, "")
	f("ae5cf6f5 .task-proxy.example.com", HostForeign, "")
	f("ae5cf6f5\x00.task-proxy.example.com", HostForeign, "")
	f("ae5cf6f5.tas\u212a-proxy.example.com", HostForeign, "") // the Kelvin sign is no k
	f("\u212a.task-proxy.example.com", HostForeign, "")
	f(strings.Repeat("a", 64)+".task-proxy.example.com", HostForeign, "")
	f("10.0.0.1", HostForeign, "")
	f("10.0.0.1:80", HostForeign, "")
	f("::1", HostForeign, "")
	f("[::1]", HostForeign, "")
	f("[::1]:80", HostForeign, "")
	f("[ae5cf6f5.task-proxy.example.com]", HostForeign, "")

	if k, _ := (Bases{}).Classify("ae5cf6f5.localhost"); k != HostForeign {
		t.Errorf("the zero Bases classifies a host as %v", k)
	}
}

func TestClassifyDoesNotAllocate(t *testing.T) {
	bases, err := NewBases("task-proxy.example.com")
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { bases.Classify("ae5cf6f5.task-proxy.example.com:8080") }); n != 0 {
		t.Errorf("Classify allocates %v times", n)
	}
}

func TestNewBasesRefuses(t *testing.T) {
	t.Parallel()
	f := func(domain, want string) {
		t.Helper()
		_, err := NewBases("good.example.com", domain)
		if err == nil || !strings.Contains(err.Error(), quote(domain)) || !strings.Contains(err.Error(), want) {
			t.Errorf("NewBases(%q): error %v, want one that names it and says %q", domain, err, want)
		}
	}
	f("", "is empty")
	f("https://task-proxy.example.com", "has a scheme")
	f("*.example.com", "has a wildcard")
	f("example.com:443", "has a port")
	f("example.com/path", "has a path")
	f("example.com.", "ends with a dot")
	f("a..example.com", "no DNS label")
	f(".example.com", "no DNS label")
	f("-a.example.com", "no DNS label")
	f("exa mple.com", "no DNS label")
	f("пример.рф", "no DNS label")
	f("10.0.0.1", "is an IP address")
	f("::1", "is an IP address")
	f("[::1]:80", "is an IP address")
	f(strings.Repeat("a.", 100)+"com", "bytes long")
	f("Good.example.com", "given twice")
	if _, err := NewBases(); err == nil {
		t.Error("NewBases() accepts no domain at all")
	}
	if _, err := NewBases("a b", "c:1"); err == nil || !strings.Contains(err.Error(), "a b") || !strings.Contains(err.Error(), "c:1") {
		t.Errorf("NewBases names not every wrong value: %v", err)
	}
}

func FuzzClassify(f *testing.F) {
	for _, s := range []string{"ae5cf6f5", "AE5CF6F5", "a.b", "", ".", "[::1]:80", "x@y", "task-proxy", "xn--a", "\u212a", "a:1", "a_b-c"} {
		f.Add(s)
	}
	bases, err := NewBases("task-proxy.example.com", "localhost")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if kind, label := bases.Classify(s); kind == HostService {
			// Whatever was read is written back to a host that means the same.
			for _, base := range []string{"task-proxy.example.com", "localhost"} {
				if k, l := bases.Classify(Domain(label, base)); k != kind || l != label {
					t.Errorf("Classify(%q) names %q, but its domain is %v, %q", s, label, k, l)
				}
			}
		} else if label != "" {
			t.Errorf("Classify(%q) is %v and names %q", s, kind, label)
		}
		host := bases.Domain(s)
		kind, label := bases.Classify(host)
		if valid := validLabel(lowerASCII(s)) && lowerASCII(s) != ownLabel; valid != (kind == HostService) {
			t.Errorf("Classify(%q) = %v, %q", host, kind, label)
		} else if valid && label != lowerASCII(s) {
			t.Errorf("Classify(%q) names %q", host, label)
		}
	})
}
