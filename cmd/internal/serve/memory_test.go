package serve

import (
	"math"
	"runtime/debug"
	"strings"
	"testing"
	"testing/fstest"
)

func files(nameContent ...string) fstest.MapFS {
	root := make(fstest.MapFS)
	for i := 0; i < len(nameContent); i += 2 {
		root[nameContent[i]] = &fstest.MapFile{Data: []byte(nameContent[i+1])}
	}
	return root
}

func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	const v2, v1, list = "sys/fs/cgroup/", "sys/fs/cgroup/memory/", "proc/self/cgroup"
	for _, tt := range []struct {
		name string
		root fstest.MapFS
		want int64
		file string
		err  string
	}{
		{"no cgroups", files(), 0, "", ""},
		{"v2, container", files(list, "0::/\n", v2+"memory.max", "536870912\n"), 536870912, v2 + "memory.max", ""},
		{"v2, no limit", files(list, "0::/\n", v2+"memory.max", "max\n"), 0, "", ""},
		{"v2, root of a host", files(list, "0::/\n"), 0, "", ""},
		{"v2, service", files(list, "0::/system.slice/x.service\n", v2+"system.slice/x.service/memory.max", "1000\n", v2+"system.slice/memory.max", "max\n"), 1000, v2 + "system.slice/x.service/memory.max", ""},
		{"v2, the group above has less", files(list, "0::/a/b\n", v2+"a/b/memory.max", "1000\n", v2+"a/memory.max", "500\n"), 500, v2 + "a/memory.max", ""},
		{"v2, the host's path", files(list, "0::/kubepods/pod1\n", v2+"memory.max", "1000\n"), 1000, v2 + "memory.max", ""},
		{"v2, a path that leads out", files(list, "0::/../../x\n", v2+"memory.max", "1000\n", "sys/x/memory.max", "5\n"), 1000, v2 + "memory.max", ""},
		{"v1, container", files(list, "12:pids:/docker/1\n11:cpu,memory:/docker/1\n1:name=systemd:/\n", v1+"memory.limit_in_bytes", "1000\n"), 1000, v1 + "memory.limit_in_bytes", ""},
		{"v1, no limit", files(list, "11:memory:/\n", v1+"memory.limit_in_bytes", "9223372036854771712\n"), 0, "", ""},
		{"v1 and v2", files(list, "11:memory:/a\n0::/a\n", v1+"a/memory.limit_in_bytes", "1000\n"), 1000, v1 + "a/memory.limit_in_bytes", ""},
		{"garbage", files(list, "0::/\n", v2+"memory.max", "lots\n"), 0, "", `/sys/fs/cgroup/memory.max is "lots": want a number of bytes, or max`},
		{"negative", files(list, "0::/\n", v2+"memory.max", "-5\n"), 0, "", `"-5"`},
		{"odd lines", files(list, "\n0\n0:::\n::/\n"), 0, "", ""},
	} {
		got, file, err := memoryLimit(tt.root)
		if got != tt.want || file != tt.file || (tt.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %d from %q, %v; want %d from %q, %s", tt.name, got, file, err, tt.want, tt.file, tt.err)
		}
	}
}

// It sets what the whole process has, so it is alone.
func TestLimitMemory(t *testing.T) {
	before := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(before)
	root := files("proc/self/cgroup", "0::/\n", "sys/fs/cgroup/memory.max", "10000000000\n")
	log := new(buffer)
	logger := NewLogger(log, Config{LogFormat: "json"})
	LimitMemory(root, env(map[string]string{"GOMEMLIMIT": "off"}), logger)
	LimitMemory(files(), env(nil), logger)
	LimitMemory(files("proc/self/cgroup", "0::/\n", "sys/fs/cgroup/memory.max", "lots"), env(nil), logger)
	if got := debug.SetMemoryLimit(-1); got != math.MaxInt64 {
		t.Errorf("a limit of %d was set", got)
	}
	percent := func() int {
		p := debug.SetGCPercent(100)
		debug.SetGCPercent(p)
		return p
	}
	usual := percent()
	defer debug.SetGCPercent(usual)
	LimitMemory(root, env(map[string]string{"GOGC": "150"}), logger)
	if got := debug.SetMemoryLimit(-1); got != 9000000000 {
		t.Errorf("the limit is %d", got)
	}
	if got := percent(); got != usual {
		t.Errorf("GOGC is there, and the collector was told %d", got)
	}
	LimitMemory(root, env(map[string]string{"GOMEMLIMIT": "9000000000"}), logger) // the runtime has read that itself
	if got := percent(); got != roomyGC {
		t.Errorf("the collector was told %d, want %d", got, roomyGC)
	}
	for _, want := range []string{`"limit":"off"`, `"limit_bytes":9000000000,"cgroup_bytes":10000000000,"file":"/sys/fs/cgroup/memory.max"`, `"level":"WARN","msg":"memory limit unknown`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %s:\n%s", want, log)
		}
	}
}
