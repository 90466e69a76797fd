package locktable

import (
	"math/rand/v2"
	"time"
)

// RenewalGroup returns the renewal group of a hold's lock. Locks with neighbouring hold numbers
// are a group: Redis made their keys one after the other and has them side by side in memory, so
// a script that renews a group has fewer cache misses than a script for as many other locks.
func RenewalGroup(holdID uint64) uint64 { return holdID / RenewalGroupSize }

// RenewalGroupSize is how many hold numbers a renewal group has: as many as one script renews.
const RenewalGroupSize = 128

// renewalAfter returns when the watchdog renews a key that got a lease, ns, at a time: after a
// third of the lease, and up to half a second or four cells later, whichever is longer, but no
// more than a twentieth of the daemon's lease.
//
// Each renewal group has an offset in a period that is a little longer than a third of the lease.
// The renewals of a lock move to the offset of its group, by the shorter way: some come later than
// a period after the one before, and some earlier. So locks that were acquired together, by one
// host or by many, are not renewed together for good; and the locks of a group are, also after a
// time in which Redis was slow.
func (t *Table) renewalAfter(set, lease int64, holdID uint64) int64 {
	cell := t.renewalCell()
	due := ceilDiv(set+lease/3, cell) // this and what follows is in cells
	if t.cfg.NoRenewalOffsets {
		return due * cell
	}
	most := max(min(max(int64(500*time.Millisecond)/cell, 4), int64(t.cfg.Lease)/20/cell), 2)
	// What was sent at the end of a cell begins the lease a moment later: hence the 1.
	period := ceilDiv(lease/3, cell) + 1 + most/2
	group := RenewalGroup(holdID)
	delay := (t.renewalDraw(group, 0, period) - due%period + period) % period // until the next moment with the offset
	if delay > most {
		later := t.renewalDraw(group, due/period, most/2+1)
		if delay < period/2 {
			later += (most + 1) / 2
		}
		delay = later
	}
	return (due + delay) * cell
}

// renewalCell is the width of the cells of time at whose ends renewals are sent, ns. The locks
// that are due in the same hundred milliseconds of a lease of 30 s are sent together, and cost
// Redis a script together. Other hosts have other clocks.
func (t *Table) renewalCell() int64 { return max(int64(t.cfg.Lease)/300, int64(wheelTick)) }

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

// renewalDraw returns a number below n that a renewal group has at random in a period.
func (t *Table) renewalDraw(group uint64, period, n int64) int64 {
	var draw rand.PCG
	draw.Seed(t.renewalSeed+uint64(period), group)
	return int64(draw.Uint64() % uint64(n))
}

// nextCheck returns when the key of a hold with a fixed lease is checked again.
func (t *Table) nextCheck(now int64, c *remoteClaim) int64 {
	return t.renewalAfter(now, int64(t.cfg.Lease), c.holdID)
}
