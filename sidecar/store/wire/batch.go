package wire

import (
	"cmp"
	"slices"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Which operations one run of a script executes, and its command.

// SortForBatching puts ops that are sent at now, ns, into an order in which few scripts
// execute them: renewals first, because a late one costs a client its lock; then checks; then
// arrivals; then takes and drops, those with the same lease together. Of the renewals that one
// script executes, those that look for the fields of others come first, and then the locks of a
// renewal group stay together. A Drop stays with the Take that is pipelined after it: in one
// script, no other host gets the lock in between.
//
// slot is the slot of a name, whose locks stay together; nil: there are none.
func SortForBatching(now int64, ops []redisop.Op, slot func(name string) uint16) {
	class := func(op *redisop.Op) int {
		switch op.Kind {
		case redisop.Renew:
			return 0
		case redisop.Check:
			return 1
		case redisop.Arrive:
			return 2
		}
		return 3 + int(op.Of)
	}
	var ofTake map[string]uint32 // leases of the Takes that are pipelined after a Drop
	for i := range ops {
		if op := &ops[i]; op.Has(redisop.AfterPendingDrop) {
			if ofTake == nil {
				ofTake = make(map[string]uint32)
			}
			ofTake[op.Name] = op.LeaseMS
		}
	}
	lease := func(op *redisop.Op) uint32 {
		if op.Kind == redisop.Drop {
			return ofTake[op.Name] // 0: with any other
		}
		return op.LeaseMS
	}
	slices.SortStableFunc(ops, func(a, b redisop.Op) int {
		c := cmp.Compare(class(&a), class(&b))
		if c == 0 && slot != nil {
			c = cmp.Compare(slot(a.Name), slot(b.Name))
		}
		if c = cmp.Or(c, cmp.Compare(a.Of, b.Of), cmp.Compare(lease(&a), lease(&b))); c != 0 || ScriptOf(&a) != Renew {
			return c
		}
		if c := cmp.Compare(a.Count, b.Count); c != 0 {
			return c
		}
		switch looks := LooksForOthers(now, &a); {
		case looks == LooksForOthers(now, &b):
			return cmp.Compare(a.HoldID, b.HoldID)
		case looks:
			return -1
		}
		return 1
	})
}

// BatchPrefix returns how many of ops, at least one, one run of a script executes, and which
// script: neighbours with the same script and one lease; and if they are renewed or checked,
// with the same number of entries. Drops, which have a lease for what they pass on, go with
// any lease of the others. Operations of semaphores and read/write locks have a lease each. slot: as in sortForBatching; one run has locks of one slot.
func BatchPrefix(ops []redisop.Op, slot func(name string) uint16) (*Script, int) {
	s := ScriptOf(&ops[0])
	var first, drop *redisop.Op // of those with a lease
	belongs := func(op *redisop.Op) bool {
		switch {
		case ScriptOf(op) != s, slot != nil && op != &ops[0] && slot(op.Name) != slot(ops[0].Name):
			return false
		case s == Permits, s == ReadWrite: // each has its own lease
		case op.Kind == redisop.Drop && drop != nil:
			return op.LeaseMS == drop.LeaseMS
		case op.Kind == redisop.Drop:
			drop = op
		case first == nil:
			first = op
		default:
			return op.LeaseMS == first.LeaseMS && (s != Renew || op.Count == first.Count)
		}
		return true
	}
	n := 0
	for n < min(len(ops), RunMax) && belongs(&ops[n]) {
		n++
	}
	if n > 1 && n < len(ops) && IsPair(&ops[n-1], &ops[n]) {
		n-- // the next script executes both
	}
	return s, n
}

// IsPair reports whether the second operation is a Take that is pipelined after the first, a Drop.
func IsPair(drop, take *redisop.Op) bool {
	return drop.Kind == redisop.Drop && take.Has(redisop.AfterPendingDrop) && take.Name == drop.Name
}

// AppendRun appends the command that runs a script for ops, and arranges them. It is sent at now, ns. The
// first token of a new counter is above birth, µs.
func (e *Encoder) AppendRun(dst []byte, r Run, now, birth int64, ops []redisop.Op) []byte {
	switch r.Script {
	case Renew:
		return e.renewals(dst, r, now, ops)
	case Arrive:
		return e.arrivals(dst, r, ops)
	case Permits:
		return e.permits(dst, r, birth, ops)
	case ReadWrite:
		return e.readWrite(dst, r, birth, ops)
	}
	return e.takesAndDrops(dst, r, birth, ops)
}
