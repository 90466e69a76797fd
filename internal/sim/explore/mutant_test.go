package explore

import (
	"regexp"
	"testing"
)

// An exploration that never finds a violation proves nothing: it must detect each mutant.
func TestEachMutantIsDetected(t *testing.T) {
	for i := range Mutants {
		m := &Mutants[i]
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			all := roots
			if m.Permits {
				all = permitRoots
			}
			r := Explore(&Plan{Budget: m.Budget, Prefix: named(all, m.Root)[0].steps, Fair: m.Fair, Cluster: m.Cluster, Permits: m.Permits, Settle: 1, mutant: m})
			switch v := r.Violation; {
			case v == nil:
				t.Fatalf("no violation of the rule %q in %d states, %d steps deep", m.Rule, r.States, r.Depth)
			case !regexp.MustCompile(m.Detected).MatchString(v.Text):
				t.Fatalf("the violation is not one of the rule %q: %s\n%s", m.Rule, v.Text, v.Trace())
			default:
				t.Logf("detected %d steps from %q, after %d states: %s", v.Depth, m.Root, r.States, v.Text)
			}
		})
	}
}

func TestMutantsHaveNamesAndRules(t *testing.T) {
	seen := make(map[string]bool)
	for i := range Mutants {
		m := &Mutants[i]
		if m.Name == "" || m.Rule == "" || m.Detected == "" || seen[m.Name] || seen[m.Rule] {
			t.Errorf("mutant %q with the rule %q is not complete, or not the only one", m.Name, m.Rule)
		}
		seen[m.Name], seen[m.Rule] = true, true
	}
}
