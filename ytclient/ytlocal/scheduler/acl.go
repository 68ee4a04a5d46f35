package scheduler

import "fmt"

// parseACL checks a list of access control entries: action, subjects, permissions. It returns a copy.
func parseACL(field string, v any) ([]any, error) {
	const want = "it must be a list of {action=allow|deny; subjects=[…]; permissions=[read;manage]}"
	list, ok := plain(v).([]any)
	if !ok {
		return nil, specError(field, v, want)
	}
	for i, entry := range list {
		at := fmt.Sprintf("%s/%d", field, i)
		ace, ok := plain(entry).(map[string]any)
		if !ok {
			return nil, specError(at, entry, want)
		}
		if action, _ := text(ace["action"]); action != "allow" && action != "deny" {
			return nil, specError(at+"/action", ace["action"], `it must be "allow" or "deny"`)
		}
		if _, err := parseStrings(at+"/subjects", ace["subjects"], "users and groups"); err != nil {
			return nil, err
		}
		permissions, err := parseStrings(at+"/permissions", ace["permissions"], `of "read" and "manage"`)
		if err != nil {
			return nil, err
		}
		for _, p := range permissions {
			if p != "read" && p != "manage" {
				return nil, specError(at+"/permissions", p, `only "read" and "manage" apply to operations`)
			}
		}
	}
	return cloneList(list), nil
}

// allow is an entry that gives a subject both rights.
func allow(subjects ...any) map[string]any {
	return map[string]any{
		"action":      "allow",
		"subjects":    subjects,
		"permissions": []any{"read", "manage"},
	}
}

// parseStrings reads a list of strings.
func parseStrings(field string, v any, what string) ([]string, error) {
	list, ok := plain(v).([]any)
	if !ok {
		return nil, specError(field, v, "it must be a list of strings, "+what)
	}
	out := make([]string, 0, len(list))
	for _, item := range list {
		s, ok := text(item)
		if !ok {
			return nil, specError(field, v, "it must be a list of strings, "+what)
		}
		out = append(out, s)
	}
	return out, nil
}
