package locktable

import (
	"math/rand/v2"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// renewalAfter returns when the watchdog renews a key that got a lease, ns, at a time: after a
// third of the lease, and less than a twentieth of the daemon's lease later (three cells, which
// are longer for a lease of less than 120 ms).
//
// Each renewal group has an offset in a period that is two cells longer than a third of the lease.
// The renewals of a lock move to the offset of its group, by the shorter way and a cell at most:
// some come later than a period after the one before, and some earlier. So locks that were
// acquired together, by one host or by many, are not renewed together for good; and the locks of a
// group are, also after a time in which Redis was slow.
func (t *Table) renewalAfter(set, lease int64, group uint64) int64 {
	cell := t.renewalCell()
	due := ceilDiv(set+lease/3, cell) // this and what follows is in cells
	if t.cfg.NoRenewalOffsets {
		return due * cell
	}
	// What was sent at the end of a cell begins the lease a moment later, so with no delay the
	// next renewal is due after a third of the lease and a cell. One more cell makes a period:
	// a lock that is at its offset has a delay of 1, and others move by a cell or not at all.
	period := (lease/3+cell/2)/cell + 2
	delay := (t.renewalDraw(group, 0, period) - due%period + period) % period // until the next moment with the offset
	if delay > 2 {
		later := t.renewalDraw(group, due/period, 2)
		if delay < period/2 {
			later++
		}
		delay = later
	}
	return (due + delay) * cell
}

// renewalGroup is the group in which the key of a lock is renewed: that of its hold number, or in a
// Cluster that of its slot, because one run of a script has locks of one slot there.
func (t *Table) renewalGroup(l *lock) uint64 {
	if t.routes != nil {
		return uint64(t.cfg.SlotOf(l.name))
	}
	return redisop.RenewalGroup(l.claim.HoldID())
}

// renewalCell is the width of the cells of time at whose ends renewals are sent, ns. The locks
// that are due in the same half second of a lease of 30 s are sent together: they share scripts,
// and the scripts find Redis's code and data in the caches of the processor. Other hosts have
// other clocks.
func (t *Table) renewalCell() int64 { return cellOfLease(int64(t.cfg.Lease)) }

func cellOfLease(lease int64) int64 { return max(lease/60, int64(wheelTick)) }

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

// renewalDraw returns a number below n that a renewal group has at random in a period.
func (t *Table) renewalDraw(group uint64, period, n int64) int64 {
	var draw rand.PCG
	draw.Seed(t.renewalSeed+uint64(period), group)
	return int64(draw.Uint64() % uint64(n))
}

// nextCheck returns when the key of a hold whose lease is not renewed is checked again: after a
// third of its lease, like a renewal, or of the daemon's lease if that is shorter. So a program that
// takes the lock away is noticed before most of the lease has passed.
//
// A hold with a shorter lease than the daemon's is checked twice at most before it ends, and has no
// offset: what it costs is bounded by the acquire that it began with.
func (t *Table) nextCheck(now int64, h *hold) int64 {
	if lease := moment.MS(t.leaseOf(h.lease, h.leaseMS)); lease < int64(t.cfg.Lease) {
		cell := t.cellOf(h)
		return ceilDiv(now+max(lease/3, minCheckInterval), cell) * cell
	}
	return t.renewalAfter(now, int64(t.cfg.Lease), t.renewalGroup(h.lock))
}

// minCheckInterval is how long the key of a hold is not checked again, unless another program has
// published a release: a lock that is taken for a few milliseconds is not looked at each millisecond.
// A lease that is not longer ends before a check is due, and no client relies on it for longer
// than this interval.
const minCheckInterval = int64(100 * time.Millisecond)

// cellOf is the width of the cells of time in which renewals and checks of a hold are sent
// together: that of the daemon's lease, or of its own if it is checked by a shorter one.
func (t *Table) cellOf(h *hold) int64 {
	if h.isRenewed() {
		return t.renewalCell()
	}
	return min(t.renewalCell(), cellOfLease(moment.MS(t.leaseOf(h.lease, h.leaseMS))))
}

// renewalsPerTick is how many renewals are begun in a tick of the wheel: 256,000 a second, which
// is about half of what Redis can execute. So they do not pile up in memory, and Redis has time
// for what else this host asks.
const renewalsPerTick = 4 * redisop.RenewalGroupSize

// paceRenewal postpones a renewal or check that is due, if renewalsPerTick others were begun in this
// tick: to a later tick, and by half a cell at most. Nothing else of the lock waits for that.
func (t *Table) paceRenewal(now int64, l *lock) {
	c := &l.claim
	if now < c.RenewAt() || c.IsBusy() || !l.holders.isHeld() {
		return
	}
	cell := t.renewalCell()
	if m := t.manyOf(l); m == nil || m.renewed == 0 {
		cell = t.cellOf(l.holders.newest)
	}
	latest := c.RenewAt()/cell*cell + cell/2 // renewals are due at the beginning of a cell
	if now >= latest {
		return
	}
	p := &t.renewals
	if tick := now / int64(wheelTick); p.tick != tick {
		*p = renewalPace{tick: tick}
	}
	if p.begun < renewalsPerTick {
		p.begun++
		return
	}
	p.postponed++
	c.SetRenewAt(min((p.tick+ceilDiv(int64(p.postponed), renewalsPerTick))*int64(wheelTick), latest))
}
