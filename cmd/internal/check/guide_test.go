package check

import (
	"os"
	"strings"
	"testing"

	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yt"
)

// The commands of the chart's install guide give a robot that has no rights at all what it needs: with all of them nothing is
// missing and nothing in excess, and without any one of them something is.
func TestInstallGuide(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../../chart/README.md")
	must(t, err)
	rights, _, ok := strings.Cut(string(guide), "\n## 2. ")
	if !ok {
		t.Fatal("the guide has no step 2")
	}
	var commands []string
	for line := range strings.Lines(rights) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "yt set //sys/") {
			commands = append(commands, line)
		}
	}
	if len(commands) != 5 {
		t.Fatalf("the guide grants %d rights on //sys, want 5:\n%s", len(commands), strings.Join(commands, "\n"))
	}
	for without := -1; without < len(commands); without++ {
		name := "all of them"
		if without >= 0 {
			name = "without " + commands[without]
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.set(t, "//sys/operations/@acl", []any{})
			w.set(t, "//sys/accounts/sys/@acl", []any{})
			w.aces(t, "//sys/exec_nodes", []string{"root", "read"})
			must(t, w.admin.RemoveNode(t.Context(), ypath.Path(dir), nil))
			_, err := w.admin.CreateNode(t.Context(), ypath.Path(dir), yt.NodeMap, &yt.CreateNodeOptions{Attributes: map[string]any{"inherit_acl": false}})
			must(t, err)
			for i, command := range commands {
				if i != without {
					w.run(t, command)
				}
			}
			good, lines, all := w.check(t)
			if without < 0 && (!good || len(lines) > 0) {
				t.Errorf("content %t:\n%s", good, all)
			}
			if without >= 0 && len(lines) == 0 {
				t.Errorf("nothing is missing: the guide grants too much\n%s", all)
			}
		})
	}
}
