// Package examples tests the client programs in examples/: each is compiled as its first lines
// say, and runs against a real daemon and against a sidecar of the test, which sends what no
// daemon sends. The shell library is tested in tests/cli.
package examples

import (
	"os"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

func TestMain(m *testing.M) {
	// The processes of a test cannot be traced everywhere, as the leak sanitizer needs it.
	os.Setenv("ASAN_OPTIONS", "detect_leaks=0")
	harness.Main(m, harness.Config{})
}
