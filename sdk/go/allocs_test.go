//go:build linux && !race

package locksidecar

import "testing"

// What waits for a confirmation is made for Confirmed only.
func TestUnlockWithoutOptionsAllocatesNothing(t *testing.T) {
	c, p := listen(t).dial()
	const rounds = 100
	locks := make([]*Lock, 0, rounds+1) // AllocsPerRun begins with one round that does not count
	for hold := range uint64(rounds + 1) {
		locks = append(locks, p.lock(c, "a", hold+1, far()))
	}
	next := 0
	if n := testing.AllocsPerRun(rounds, func() {
		if err := locks[next].Unlock(); err != nil {
			t.Error(err)
		}
		next++
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
