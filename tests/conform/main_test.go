// Package conform plays the scenes of `locksidecar conform` to the two SDKs and to the client in
// TypeScript, which must pass them, and to broken copies of that client, which must not.
package conform

import (
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

func TestMain(m *testing.M) { harness.Main(m, harness.Config{}) }
