package ytclient

import (
	"errors"
	"testing"
)

func TestDeniedByAnswers(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]struct {
		subject, object string
		err             error
	}{
		`{action=deny;"object_name"="node //sys";"subject_name"=team}`:  {"team", "node //sys", nil},
		`{action=allow;"object_name"="node //sys";"subject_name"=team}`: {},
		`{action=deny}`: {},
		`{action=deny;"object_name"="node //sys"}`: {},
		`{action=deny;"subject_name"=team}`:        {},
		`#`:                                        {},
		`{action=`:                                 {err: ErrUnavailable},
	} {
		c := newClient(t, answer(200, body))
		if subject, object, err := c.DeniedBy(t.Context(), "robot", "//sys/x", Write); subject != want.subject || object != want.object || !errors.Is(err, want.err) {
			t.Errorf("%s: %q, %q, %v; want %+v", body, subject, object, err, want)
		}
	}
}
