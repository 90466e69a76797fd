package locktable

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Groups that were acquired at one moment reach their offsets, whatever the lease, and no renewal
// is earlier than a third of the lease or later than a twentieth of it after that.
//
// Shows docs/renewals.md: When.
func TestRenewalGroupsReachTheirOffsets(t *testing.T) {
	const groups = 200
	for _, lease := range []time.Duration{300 * time.Millisecond, 10 * time.Second, 30 * time.Second, 75 * time.Second, 2 * time.Minute, time.Hour} {
		tb := New(Config{Lease: lease, Seed: 1}, 0)
		cell, third := tb.renewalCell(), int64(lease)/3
		moments := make(map[int64]int) // groups by the cell of their renewal in the last period
		for group := range uint64(groups) {
			at, phases := 100*int64(time.Hour), make([]int64, 0, 200)
			for range 200 {
				set := at + 1000 // what is sent at a moment begins the lease later
				at = tb.renewalAfter(set, int64(lease), group)
				if late := at - set - third; late < 0 || late > max(int64(lease)/20, 3*cell) {
					t.Fatalf("lease %v: a renewal is %v after the last one", lease, time.Duration(at-set))
				}
				phases = append(phases, at-set)
			}
			for _, p := range phases[150:] {
				if p != phases[199] {
					t.Fatalf("lease %v: after 150 renewals group %d is not at its offset", lease, group)
				}
			}
			if last := phases[199]; last > third+2*cell {
				t.Fatalf("lease %v: a lock at its offset is renewed each %v", lease, time.Duration(last))
			}
			moments[at/cell%(phases[199]/cell+1)]++
		}
		most := 0
		for _, n := range moments {
			most = max(most, n)
		}
		if most > groups/10 {
			t.Errorf("lease %v: %d of %d groups are renewed at one moment", lease, most, groups)
		}
	}
}

// Only a renewal that is begun counts: one that waits for the operation in flight does not postpone
// those of other locks.
func TestRenewalThatWaitsIsNotCounted(t *testing.T) {
	now := int64(time.Hour)
	tb := New(Config{}, now)
	l := new(lock)
	l.holders.newest = &hold{phase: HoldLive, lease: WatchdogLease}
	l.claim.Reset()
	l.claim.SetRenewAt(now)
	tb.windows.Open(&l.claim)
	l.claim.Send(now, &redisop.Op{Kind: redisop.Check}, false)
	tb.paceRenewal(now, l)
	if tb.renewals.begun != 0 {
		t.Error("a renewal behind an operation in flight was counted")
	}
	l.claim.Answer(redisop.Check)
	tb.paceRenewal(now, l)
	if tb.renewals.begun != 1 || l.claim.RenewAt() != now {
		t.Errorf("a renewal that is begun: %+v, due at %d, want %d", tb.renewals, l.claim.RenewAt(), now)
	}
}
