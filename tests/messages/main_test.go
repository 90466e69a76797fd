// Package messages shows what users and operators can read when something is wrong: errors
// of the SDKs and of the commands, and the log of the daemon. A message says what happened,
// and names what has to be changed.
package messages

import (
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

func TestMain(m *testing.M) { harness.Main(m, harness.Config{}) }
