package locktable

import (
	"fmt"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Exclusion between two hosts rests on Redis: a script sets a key only if it is free or this
// host's (scripts/ownership.lua in package store), and a holder believes only until the
// deadline of the lease that the key was given. The table keeps its side of that: it grants a
// hold only under a claim, with a deadline that the claim covers. The simulation checks both
// sides together, over several hosts.
//
// The invariants of the design that a lock can break are asserted where they could be
// broken, in every build: a sidecar that broke one stops, and its successor continues from
// the journal, which is better than a second holder.

// assertGranted panics if a hold that is being granted, and is not among those of its lock yet, breaks
// an invariant.
func (t *Table) assertGranted(now int64, h *hold) {
	l, c := h.lock, &h.lock.claim
	switch {
	case !l.holders.admits(h.mode):
		violated("Exclusion", l, "hold %d is granted beside hold %d", h.id, l.holders.newest.id)
	case l.kind() == redisop.KindReadWrite && uint32(h.mode.inRedis()) > c.Extent():
		violated("A claim covers its holds", l, "hold %d is granted in mode %d, and Redis has mode %d for this host", h.id, h.mode.inRedis(), c.Extent())
	case t.unitsOf(l)+uint32(h.permits) > c.Extent() && h.permits > 0:
		violated("A claim covers its holds", l, "hold %d of %d permits is granted; holds have %d, and Redis has %d for this host", h.id, h.permits, t.unitsOf(l), c.Extent())
	case !c.State().IsOurs() || c.IsDropping():
		violated("Exclusion", l, "hold %d is granted without a claim", h.id)
	case h.deadline > c.ValidUntil() || h.deadline <= now:
		violated("Validity is conservative", l, "hold %d is granted until %d at %d; the claim is valid until %d", h.id, h.deadline, now, c.ValidUntil())
	case h.id < c.HoldID() || h.id > t.lastNum:
		violated("A lower hold number never replaces a higher one", l, "hold %d is granted; Redis has %d, and %d was used last", h.id, c.HoldID(), t.lastNum)
	}
}

func violated(invariant string, l *lock, format string, args ...any) {
	panic(fmt.Sprintf("locktable: %q: invariant %q is violated: %s; this is a defect of the sidecar, report it", l.name, invariant, fmt.Sprintf(format, args...)))
}
