// Package examples runs the programs in examples/ with real daemons. The client in C is compiled as
// its first lines say, and runs also against a sidecar of the test, which sends what no daemon
// sends. The shell library is tested in tests/cli.
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
