package scheduler

import (
	"math/rand/v2"

	"go.ytsaurus.tech/yt/go/guid"
)

// The third group of a cluster's id is the cell's tag and the type of the object. Ours is a cell of our own, 3fe.
const (
	operationType = 0x03fe_03e8
	jobType       = 0x03fe_0384
)

func newOperationID() string { return newID(operationType) }

func newJobID() string { return newID(jobType) }

// newID makes an id in canonical text form. Ids are names, not secrets: whoever knows one may do nothing with it.
func newID(kind uint32) string {
	return guid.FromParts(rand.Uint32(), kind, rand.Uint32(), rand.Uint32()).String()
}
