package sim_test

import (
	"regexp"
	"testing"

	"github.com/locksidecar/locksidecar/internal/sim"
)

// A checker that never finds a violation proves nothing: it must detect each mutant.
func TestEachMutantIsDetected(t *testing.T) {
	const seeds = 3000
	for i := range sim.Mutants {
		m := &sim.Mutants[i]
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			detected := regexp.MustCompile(m.Detected)
			var other *sim.Violation
			for seed := max(1, m.From); seed < m.From+seeds; seed++ {
				v := sim.Run(seed, sim.Options{Mutant: m}).Violation
				if v == nil {
					continue
				}
				if detected.MatchString(v.Error()) {
					t.Logf("detected: %v", v)
					return
				}
				other = v
			}
			t.Fatalf("no violation of the rule %q in %d seeds from %d; the last other violation: %v", m.Rule, seeds, max(1, m.From), other)
		})
	}
}

func TestMutantsHaveNamesAndRules(t *testing.T) {
	seen := make(map[string]bool)
	for _, m := range sim.Mutants {
		if m.Name == "" || m.Rule == "" || m.Detected == "" || seen[m.Name] || seen[m.Rule] {
			t.Errorf("mutant %q with the rule %q is not complete, or not the only one", m.Name, m.Rule)
		}
		seen[m.Name], seen[m.Rule] = true, true
	}
}
