package discovery

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "rewrite the wanted parts of testdata")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
