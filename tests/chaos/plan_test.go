package main

import (
	"slices"
	"testing"
	"time"
)

func planOf(seed uint64, length time.Duration) []fault {
	return drawPlan(seed, length, lanes(2, 4*time.Second), settings{lease: 4 * time.Second}.schedule())
}

func TestSameSeedDrawsTheSamePlan(t *testing.T) {
	t.Parallel()
	if !slices.Equal(planOf(7, 5*time.Minute), planOf(7, 5*time.Minute)) {
		t.Error("one seed drew two plans")
	}
	if slices.Equal(planOf(7, 5*time.Minute), planOf(8, 5*time.Minute)) {
		t.Error("two seeds drew one plan")
	}
	long, short := planOf(7, 5*time.Minute), planOf(7, time.Minute)
	if !slices.Equal(long[:len(short)], short) {
		t.Error("a shorter run is not the beginning of a longer one")
	}
}

// A plan has all kinds of faults. A lane has one fault at a time, and in calms there are only faults
// that affect no other client.
func TestPlanHasAllFaultsAndCalms(t *testing.T) {
	t.Parallel()
	w := settings{lease: 4 * time.Second}.schedule()
	all := lanes(2, 4*time.Second)
	kinds := map[faultKind]int{}
	free := map[string]time.Duration{}
	for _, f := range planOf(3, time.Hour) {
		kinds[f.kind]++
		if f.at < free[f.lane] {
			t.Errorf("%v begins while its lane is broken until %v", f, free[f.lane])
		}
		free[f.lane] = f.at + f.duration
		if f.lane != "fleet" && f.at%(w.storm+w.calm) >= w.storm {
			t.Errorf("%v is in the calm", f)
		}
	}
	for _, l := range all {
		for _, c := range l.faults {
			if kinds[c.kind] == 0 {
				t.Errorf("an hour without: %s", c.kind)
			}
		}
	}
}
