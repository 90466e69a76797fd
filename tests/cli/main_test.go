// Package cli tests the commands of locksidecar as people and shells use them.
package cli

import (
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

func TestMain(m *testing.M) { harness.Main(m, harness.Config{}) }
