// Package measure measures what the documentation quotes of one daemon, or of a few, without a
// comparison with others:
//
//	make measure                                                                  all of it
//	go -C tests/bench test ./measure -run TestMeasurePairs -count 1 -v -measure   a part
//
// The results are printed and not judged, because they depend on the machine. With -short all
// numbers and times are small: that shows that the measurements work, and means nothing else.
package measure

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/tests/harness"
)

var measure = flag.Bool("measure", false, "run the measurements, about ten minutes")

// otherProgram is an environment variable with the path of a locksidecar to measure instead of
// that of this tree, for instance of an earlier version.
const otherProgram = "LOCKSIDECAR_MEASURED_PROGRAM"

func TestMain(m *testing.M) {
	harness.Main(m, harness.Config{Program: os.Getenv(otherProgram)})
}

// measured skips a measurement unless it was asked for.
func measured(t *testing.T) {
	t.Helper()
	if !*measure {
		t.Skip("only with -measure")
	}
	if harness.RaceEnabled {
		t.Skip("the race detector would be measured, too")
	}
}

// reduction is by how much -short reduces numbers and times.
const reduction = 50

// window returns how long to measure.
func window(d time.Duration) time.Duration {
	if testing.Short() {
		return d / reduction
	}
	return d
}

// count returns how many locks, hosts or rounds to measure.
func count(n int) int {
	if testing.Short() {
		return max(2, n/reduction)
	}
	return n
}

func row(what, format string, args ...any) {
	fmt.Printf("  %-48s %s\n", what, fmt.Sprintf(format, args...))
}

func ms(ns int64) string { return fmt.Sprintf("%.2f ms", float64(ns)/1e6) }
