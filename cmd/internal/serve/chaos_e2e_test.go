//go:build e2e

package serve

import (
	"testing"
	"time"
)

// TestE2EChaos takes the words as they are: the table changes a hundred times, a job is paused for a minute, and the cluster is down for one,
// twice, while what it said is believed for as long as it is in earnest.
func TestE2EChaos(t *testing.T) {
	chaos(t, 100, time.Minute, time.Minute, 0)
}
