package scheduler

import (
	"maps"
	"slices"
	"strings"
)

// Abort ends an operation as aborted and returns when none of its processes is left. The message may be empty. Like all
// orders it takes an id or the alias of an operation that has not ended; the error for any other has code 200, and 201
// for one that is ending already.
func (s *Scheduler) Abort(id, message string) error {
	reason := "the operation was aborted by request"
	if message != "" {
		reason += ": " + cut(message)
	}
	return s.stop(id, "abort", aborted, reason)
}

// Complete ends an operation as completed, its running jobs as aborted, and returns when none of its processes is left.
// Errors as for Abort.
func (s *Scheduler) Complete(id string) error {
	return s.stop(id, "complete", completed, "")
}

func (s *Scheduler) stop(id, order, verdict, reason string) error {
	s.mu.Lock()
	op, err := s.livingLocked(id, order)
	if err == nil {
		op.end(verdict, reason)
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	<-op.done
	return nil
}

// Suspend starts no further jobs of an operation; those that run go on. Suspending twice is no error. Errors as for
// Abort.
func (s *Scheduler) Suspend(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	op, err := s.livingLocked(id, "suspend")
	if err != nil {
		return err
	}
	if op.resumed == nil {
		op.resumed = make(chan struct{})
	}
	return nil
}

// Resume undoes Suspend. Errors as for Abort, with code 201 also for an operation that is not suspended.
func (s *Scheduler) Resume(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	op, err := s.livingLocked(id, "resume")
	if err != nil {
		return err
	}
	if op.resumed == nil {
		return errState(op, "resume")
	}
	close(op.resumed)
	op.resumed = nil
	return nil
}

// livingLocked finds an operation that can still be told what to do. Scheduler.mu is held.
func (s *Scheduler) livingLocked(id, order string) (*operation, error) {
	op := s.findLocked(id)
	if op == nil || op.finished() {
		return nil, errNotRunning(id)
	}
	if op.verdict != "" {
		return nil, errState(op, order)
	}
	return op, nil
}

// ignoredParameters are those that steer what we do not have: pools, weights and nodes to choose from.
var ignoredParameters = map[string]bool{
	"scheduling_options_per_pool_tree": true,
	"options_per_job_shell":            true,
	"controller_agent_tag":             true,
	"scheduling_tag_filter":            true,
	"pool":                             true,
	"weight":                           true,
	"resource_limits":                  true,
}

// UpdateParameters changes what can be changed while an operation runs: annotations are merged into those that it has,
// maps at any depth, and # (nil) clears them; acl replaces the user's entries, but not the starting user's own; scheduling
// options are accepted and mean nothing here. All or nothing is changed. Errors as for Abort, or about the parameter.
func (s *Scheduler) UpdateParameters(id string, params map[string]any) error {
	change, err := parseUpdate(params)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	op, err := s.livingLocked(id, "update the parameters of")
	if err != nil {
		return err
	}
	if change.clearAnnotations {
		op.annotations = nil
	}
	if change.annotations != nil {
		op.annotations = patch(op.annotations, change.annotations)
	}
	if change.acl != nil {
		op.acl = change.acl
	}
	return nil
}

// update is what UpdateParameters asks for, checked; nil is no change.
type update struct {
	clearAnnotations bool
	annotations      map[string]any
	acl              []any
}

func parseUpdate(params map[string]any) (update, error) {
	var u update
	f := &fields{prefix: "parameters/", m: params}
	for _, key := range slices.Sorted(maps.Keys(params)) {
		v := params[key]
		switch {
		case key == "annotations" && plain(v) == nil:
			u.clearAnnotations = true
		case key == "annotations":
			u.annotations = cloneMap(f.object(key))
		case key == "acl":
			list, err := parseACL(f.at(key), v)
			if err != nil {
				return update{}, err
			}
			u.acl = list
		case !ignoredParameters[key]:
			known := append(slices.Sorted(maps.Keys(ignoredParameters)), "annotations", "acl")
			return update{}, badField(f.at(cut(key)), "no such parameter; there are "+strings.Join(known, ", "))
		}
	}
	return u, f.err
}
