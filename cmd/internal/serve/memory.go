package serve

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// unlimited is more than any machine has: cgroup v1 says "no limit" by such a number.
const unlimited = 1 << 60

// roomyGC is GOGC when there is a memory limit: the heap of a proxy is small, and what requests leave behind is most of it. Collected
// less often it costs less, and near the limit it is collected as often as it takes.
const roomyGC = 400

// LimitMemory tells the garbage collector to stay within nine tenths of what the process's cgroup may have, so that it collects
// more often rather than be killed, and to take its time below that. The variables GOMEMLIMIT and GOGC overrule it, whatever they
// are set to. Where there is no limit, nothing changes. root is the file system with /proc and /sys, os.DirFS("/") outside of tests.
func LimitMemory(root fs.FS, getenv func(string) string, logger *slog.Logger) {
	limitMemory(root, getenv, logger)
	if debug.SetMemoryLimit(-1) < math.MaxInt64 && getenv("GOGC") == "" {
		debug.SetGCPercent(roomyGC)
	}
}

func limitMemory(root fs.FS, getenv func(string) string, logger *slog.Logger) {
	if v := getenv("GOMEMLIMIT"); v != "" {
		logger.Info("memory limit is GOMEMLIMIT's", "limit", v)
		return
	}
	most, file, err := memoryLimit(root)
	switch {
	case err != nil:
		logger.Warn("memory limit unknown, none is set; GOMEMLIMIT sets one", "err", err)
	case most == 0:
		logger.Debug("no memory limit")
	default:
		limit := most - most/10
		debug.SetMemoryLimit(limit)
		logger.Info("memory limit set to nine tenths of the cgroup's", "limit_bytes", limit, "cgroup_bytes", most, "file", "/"+file)
	}
}

// memoryLimit is the least limit of the process's cgroup and those above it, in bytes, and the file that says so; 0: there
// is none, as on systems without cgroups. It knows both versions of cgroups (cgroups(7)).
func memoryLimit(root fs.FS) (least int64, file string, err error) {
	list, err := fs.ReadFile(root, "proc/self/cgroup")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, "", nil
	}
	if err != nil {
		return 0, "", err
	}
	lines := bufio.NewScanner(bytes.NewReader(list))
	for lines.Scan() {
		// hierarchy:controllers:path; version 2 is hierarchy 0, without controllers.
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		dir, name := "", ""
		switch {
		case parts[0] == "0" && parts[1] == "":
			dir, name = "sys/fs/cgroup", "memory.max"
		case hasWord(parts[1], "memory"):
			dir, name = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		// Of a container the path may be the host's, and not be there; the directory above all is always the container's own.
		for group := path.Clean("/" + parts[2]); ; group = path.Dir(group) {
			one := path.Join(dir, group, name)
			limit, err := readLimit(root, one)
			if err != nil {
				return 0, "", err
			}
			if limit > 0 && (least == 0 || limit < least) {
				least, file = limit, one
			}
			if group == "/" {
				break
			}
		}
	}
	return least, file, lines.Err()
}

// readLimit is what one file says; 0: no limit, or no such file.
func readLimit(root fs.FS, name string) (int64, error) {
	content, err := fs.ReadFile(root, name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(content))
	if text == "max" {
		return 0, nil
	}
	limit, err := strconv.ParseInt(text, 10, 64)
	if err != nil || limit < 0 {
		return 0, fmt.Errorf("/%s is %q: want a number of bytes, or max", name, text)
	}
	if limit >= unlimited {
		return 0, nil
	}
	return limit, nil
}

func hasWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}
