//go:build e2e

package serve

import (
	"testing"
	"time"
)

// TestE2EChaos takes the words as they are: a job is paused for a minute, and the cluster is down for one, twice, while what it said is
// believed for as long as it is in earnest.
func TestE2EChaos(t *testing.T) {
	chaos(t, time.Minute, time.Minute, 0)
}
