package sim

import (
	"regexp"
	"testing"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// A checker that never complains proves nothing. Each rule is broken on purpose,
// and must be missed.
func TestSimulationCatchesBrokenRules(t *testing.T) {
	const seeds = 3000
	for _, sabotage := range sabotages {
		t.Run(sabotage.rule, func(t *testing.T) {
			t.Parallel()
			caught := regexp.MustCompile(sabotage.caught)
			var other error
			for seed := uint64(1); seed <= seeds; seed++ {
				_, err := play(seed, func(cfg locktable.Config, now int64) lockTable {
					s := &hurried{spoiled{cfg: cfg, madeAt: now}}
					s.configure(func(*locktable.Config) {})
					if sabotage.spoil == nil {
						return s
					}
					sabotage.spoil(&s.spoiled)
					return &s.spoiled
				}, false)
				if err == nil {
					continue
				}
				if caught.MatchString(err.Error()) {
					t.Logf("caught: %v", err)
					return
				}
				other = err
			}
			t.Fatalf("%d seeds passed, and nobody noticed; last complaint: %v", seeds, other)
		})
	}
}

// A replica that was behind has an older counter. What keeps tokens rising then is
// the floor: the time at which the connection to it was made.
func TestSimulationCatchesTokensWithoutAFloor(t *testing.T) {
	for seed := uint64(1); seed <= 2000; seed++ {
		w := newWorld(seed, nil)
		w.floorless = true
		if err := w.toItsEnd(); err != nil {
			if !regexp.MustCompile(`Redis gives token \d+ after|token \d+ after`).MatchString(err.Error()) {
				t.Fatal(err)
			}
			t.Logf("caught: %v", err)
			return
		}
	}
	t.Fatal("nobody noticed")
}
