//go:build linux && !race

package locksidecar

import "testing"

// Only Confirmed allocates something that waits for a confirmation.
func TestUnlockWithoutOptionsAllocatesNothing(t *testing.T) {
	c, p := listen(t).dial()
	const rounds = 100
	locks := make([]*Lock, 0, rounds+1) // AllocsPerRun does one round more
	for hold := range uint64(rounds + 1) {
		locks = append(locks, p.lock(c, "a", hold+1, inOneHour()))
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
