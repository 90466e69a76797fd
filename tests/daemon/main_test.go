// Package daemon tests what `locksidecar serve` does over its life: start and stop, restart
// and its state file, its socket, and its answers to every frame of the protocol.
package daemon

import (
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

func TestMain(m *testing.M) { harness.Main(m, harness.Config{}) }
