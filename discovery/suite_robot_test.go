package discovery

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"strings"

	"go.ytsaurus.tech/yt/go/ypath"
)

// robotLogin is who the proxy of the suite is to the cluster: a user with the rights that the installation asks for.
const robotLogin = "robot-task-proxy"

// robot is what the proxy proves itself with.
type robot struct{ token string }

// robotDenied is the ACL of an operation whose author lets the robot not read it.
var robotDenied = []any{map[string]any{"action": "deny", "subjects": []any{robotLogin}, "permissions": []any{"read"}}}

func (s *stage) addRobot(ctx context.Context) error {
	user, err := s.cluster.AddUser(robotLogin)
	if err != nil {
		return err
	}
	s.robot.token = user.Token
	return s.allow(ctx, "read")
}

// allow gives the robot rights on every operation, in place of those that it has.
func (s *stage) allow(ctx context.Context, permissions ...string) error {
	acl := []any{}
	if len(permissions) > 0 {
		acl = append(acl, map[string]any{"action": "allow", "subjects": []string{robotLogin}, "permissions": permissions})
	}
	return s.author.SetNode(ctx, ypath.Path("//sys/operations/@acl"), acl, nil)
}

func (w *suiteWorld) rights(words []string, _ map[string]string) error {
	var permissions []string
	switch words[0] {
	case "none":
	case "read":
		permissions = words
	default:
		return errors.New("rights are none or read")
	}
	w.robot = append(w.robot, func(ctx context.Context, s *stage) error { return s.allow(ctx, permissions...) })
	return nil
}

func (w *suiteWorld) token(words []string, _ map[string]string) error {
	change := map[string]func(context.Context, *stage) error{
		"revoked": func(ctx context.Context, s *stage) error {
			return s.author.RevokeToken(ctx, robotLogin, "", s.robot.token, nil)
		},
		"renewed": func(ctx context.Context, s *stage) (err error) {
			s.robot.token, err = s.author.IssueToken(ctx, robotLogin, "", nil)
			return err
		},
	}[words[0]]
	if change == nil {
		return errors.New("a token is revoked or renewed")
	}
	w.robot = append(w.robot, change)
	return nil
}

var repetition = regexp.MustCompile(`"([^"\\]*)"\*([0-9]+)`)

// repeated writes out each "x"*1000 of annotations; what x is, in brackets of its own, goes without quotes.
func repeated(annotations string) string {
	return repetition.ReplaceAllStringFunc(annotations, func(s string) string {
		m := repetition.FindStringSubmatch(s)
		n, err := strconv.Atoi(m[2])
		if err != nil {
			return s
		}
		if strings.ContainsAny(m[1], "[]{}") {
			return strings.Repeat(m[1], n)
		}
		quoted := strconv.Quote(m[1]) // once: some texts are many megabytes
		return `"` + strings.Repeat(quoted[1:len(quoted)-1], n) + `"`
	})
}
