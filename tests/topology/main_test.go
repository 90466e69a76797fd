// Package topology tests the daemon with Redis as it is deployed: behind Sentinels, and with replicas.
package topology

import (
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

func TestMain(m *testing.M) { harness.Main(m, harness.Config{}) }
