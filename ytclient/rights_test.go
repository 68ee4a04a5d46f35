package ytclient

import (
	"errors"
	"reflect"
	"testing"
)

// Only a plain yes is a yes, and only a plain no is a no.
func TestCheckPermissionAnswers(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]struct {
		yes bool
		err error
	}{
		`{action=allow}`: {true, nil}, `{action=deny}`: {false, nil}, `{action=perhaps}`: {false, ErrOddAnswer}, `{}`: {false, ErrOddAnswer},
		`#`: {false, ErrOddAnswer}, `[1]`: {false, ErrUnavailable},
	} {
		c := newClient(t, answer(200, body))
		if yes, err := c.CheckPermission(t.Context(), "robot", "//sys", Write); yes != want.yes || !errors.Is(err, want.err) {
			t.Errorf("%s: %t, %v; want %t, %v", body, yes, err, want.yes, want.err)
		}
	}
}

func TestEffectiveACLAnswers(t *testing.T) {
	t.Parallel()
	c := newClient(t, answer(200, `{value=[{action=allow;subjects=[users];permissions=[read;write];"inheritance_mode"="object_only"};{action=deny;subjects=[bob];permissions=[read]}]}`))
	want := []ACE{
		{Subjects: []string{"users"}, Permissions: []Permission{Read, Write}, Inheritance: "object_only"},
		{Deny: true, Subjects: []string{"bob"}, Permissions: []Permission{Read}},
	}
	if got, err := c.EffectiveACL(t.Context(), "//sys"); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("ACL = %+v, %v; want %+v", got, err, want)
	}
	for _, body := range []string{`{value=#}`, `{value={}}`, `{value=[1]}`, `{value=[{action=maybe}]}`, `{}`} {
		c := newClient(t, answer(200, body))
		if acl, err := c.EffectiveACL(t.Context(), "//sys"); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v, %v; want ErrUnavailable", body, acl, err)
		}
		if account, err := c.Account(t.Context(), "//sys"); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: account %q, %v; want ErrUnavailable", body, account, err)
		}
	}
}
