package harness

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// seedVar is an environment variable with the seed of all tests. .ci/nightly sets it.
const seedVar = "LOCKSIDECAR_TEST_SEED"

// longVar is an environment variable. If it is set, tests take their long forms. .ci/nightly sets it.
const longVar = "LOCKSIDECAR_LONG"

// Long reports whether a test takes its long form: more laps, more load, more time. The short form shows
// the same rule with a fixed seed.
func Long() bool { return os.Getenv(longVar) != "" }

// Pick returns one of two sizes of a test: the first one in its short form, the second in its long one.
func Pick[T any](short, long T) T {
	if Long() {
		return long
	}
	return short
}

// Seed returns the seed of what a test draws: the same one in each run, unless the environment has
// another one. The log of the test has it, and if the test fails, the command that repeats the test.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(1)
	if text := os.Getenv(seedVar); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s is no seed: %v", seedVar, err)
		}
		seed = n
	}
	t.Logf("seed %d", seed)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to repeat what was drawn: %s=%d go test -count 1 ./%s -run '^%s$'", seedVar, seed, packageDir(), t.Name())
		}
	})
	return seed
}

// Random returns the generator of a test, with its Seed. It is for one goroutine.
func Random(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Seed(t), 0))
}

// packageDir returns the directory of the package that is tested, relative to the repository.
func packageDir() string {
	wd, _ := os.Getwd()
	if dir, err := filepath.Rel(root, wd); err == nil {
		return dir
	}
	return wd
}
