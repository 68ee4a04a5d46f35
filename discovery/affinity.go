package discovery

import (
	"crypto/sha256"
	"encoding/base64"
)

// affinity reads affinity=cookie; inherited stands when nothing is said, or nothing that can be read.
func (r *reading) affinity(fields map[string]any, task, service, where string, inherited bool) bool {
	switch v := at(fields, "affinity"); v {
	case nil:
		return inherited
	case "cookie":
		return true
	case "none":
		return false
	default:
		r.problem(BadAnnotation, task, service, where+"affinity is "+describe(v)+"; it must be cookie or none; it is ignored")
		return inherited
	}
}

// Handle names an endpoint of the service to strangers: by the same word in every replica and after every restart, for as long
// as its job lives, and for this service only. It tells neither the address nor the job's id. It is no secret and proves
// nothing: whoever has it has chosen among jobs that all callers of the service are sent to anyway.
func (s *Service) Handle(e Endpoint) string {
	sum := sha256.Sum256([]byte("affinity\x00" + s.LongID + "\x00" + e.JobID))
	return base64.RawURLEncoding.EncodeToString(sum[:handleSize])
}

// handleSize is that of a handle in bytes before it is written as text.
const handleSize = 15

// ByHandle is the index of the endpoint that a handle names, and whether there is one. It is one map read. Services without
// Affinity have no handles.
func (s *Service) ByHandle(handle string) (int, bool) {
	i, ok := s.handles[handle]
	return i, ok
}

// newHandles are those of all endpoints of a service that needs them, by index.
func newHandles(s *Service) map[string]int {
	if !s.Affinity || len(s.Endpoints) == 0 {
		return nil
	}
	handles := make(map[string]int, len(s.Endpoints))
	for i, e := range s.Endpoints {
		handles[s.Handle(e)] = i
	}
	return handles
}
