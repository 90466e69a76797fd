package cli

import (
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// The flash sale: the demo exits with 0 only if all was as promised.
func TestDemoSellsEachUnitOnceWithLock(t *testing.T) {
	t.Parallel()
	// Without Python all tills are in Go.
	out := harness.RunProgram(t, []string{"LOCKSIDECAR_DEMO_PYTHON=/nonexistent/python"}, "demo", "--stock", "100", "--tills", "4", "--pay", "50ms", "--in-process")
	if out.Code != 0 {
		t.Fatalf("exit code %d:\n%s\n%s", out.Code, out.Stdout, out.Stderr)
	}
	for _, want := range []string{
		"100 units are for sale at 4 tills, each a process of its own, all in Go.",
		"oversold: ",
		`2  With the lock "flashsale" around the three steps`,
		"100 customers paid for 100 units (",
		"3  With the lock, and kill -9 of the till that holds it",
		"4  With the lock, and kill -9 of the sidecar, which then starts again",
	} {
		if !strings.Contains(out.Stdout, want) {
			t.Errorf("it does not print %q:\n%s", want, out.Stdout)
		}
	}
	for line := range strings.Lines(out.Stdout) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 {
			t.Errorf("a line has %d columns: %s", n, line)
		}
	}
}
