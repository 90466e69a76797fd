package locktable

import (
	"cmp"
	"slices"

	"github.com/locksidecar/locksidecar/sidecar/locktable/claim"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// The holds of one lock. A lock of kind lock has one at most: what follows from that calls sole. A lock of
// another kind may have many, of which Table.many has a record: so a lock of kind lock is as small as if
// there were no others.

// isHeld reports whether a client of this host has the lock, or had it until its keep ends.
func (s *holders) isHeld() bool { return s.newest != nil }

// sole returns the hold of a lock of kind lock; nil: there is none.
func (s *holders) sole() *hold { return s.newest }

// admits reports whether the holds, if there are any, admit one of a mode beside them. It is the one
// place that says when a waiter gets a lock although there are holds.
func (s *holders) admits(next Mode) bool { return s.newest == nil || s.newest.mode.admits(next) }

// manyOf returns the record of the holds of a lock; nil: it has one at most.
func (t *Table) manyOf(l *lock) *many {
	if l.lockMarks < lockKind { // kind lock: nearly all are
		return nil
	}
	return t.many[l]
}

// holdsOf yields the holds of a lock, in the order of their grants. A hold may end while it is yielded.
func (t *Table) holdsOf(l *lock) func(yield func(*hold) bool) {
	return func(yield func(*hold) bool) {
		m := t.manyOf(l)
		if m == nil {
			if h := l.holders.sole(); h != nil {
				yield(h)
			}
			return
		}
		for i := 0; i < len(m.holds); i++ {
			if h := m.holds[i].hold; h != nil && !yield(h) {
				return
			}
		}
	}
}

// holdOf returns the hold that an owner of a session has on a lock; nil: it has none.
func (t *Table) holdOf(l *lock, s *session, id uint64) *hold {
	if m := t.manyOf(l); m != nil {
		return m.owned[owner{s.id, id}]
	}
	if h := l.holders.sole(); h.isOwnedBy(s, id) {
		return h
	}
	return nil
}

// addHold adds a hold to those of its lock, and makes it known by its number. capacity is what the request for permits named.
func (t *Table) addHold(h *hold, capacity uint16) {
	l := h.lock
	l.holders.newest = h
	t.byHold[h.id] = h
	if !l.kind().HasMany() {
		return
	}
	m := t.needMany(l)
	m.add(h, capacity)
	if m.latest = max(m.latest, t.keepUntil(h)); !h.isRenewed() {
		m.latest = max(m.latest, h.deadline)
	}
	t.chargeHold(h, 1)
	t.touch(h)
}

// needMany returns the record of the holds of a lock that may have many, made if need be.
func (t *Table) needMany(l *lock) *many {
	m := t.many[l]
	if m == nil {
		m = &many{dueAt: moment.Never, owned: make(map[owner]*hold)}
		t.many[l] = m
	}
	return m
}

// neededOf is the extent that the claim is to have for the holds of a lock.
func (t *Table) neededOf(l *lock) uint32 {
	if l.kind() == redisop.KindReadWrite && l.holders.isHeld() {
		return uint32(l.holders.newest.mode.inRedis())
	}
	return t.unitsOf(l)
}

// unitsOf is how many permits of a semaphore the clients of this host have.
func (t *Table) unitsOf(l *lock) uint32 {
	if m := t.manyOf(l); m != nil {
		return m.units
	}
	return 0
}

// onGrant notes that a request is granted permits that came for waiters, or else idle ones. What the operation in flight
// brings for it is idle then: another host may wait that came before the next request.
func (m *many) onGrant(op *claim.InFlight, r *request) {
	permits := uint32(r.permits)
	if m.came < permits && op.Kind == redisop.Take && op.Want == r.permits && r.since <= op.SentAt {
		m.met += permits
	}
	m.came -= min(m.came, permits)
}

// validUntil is until when Redis has the key of a lock, as far as the holds under the watchdog are concerned. A
// fixed lease beside them may be longer: it ends with its hold, and theirs are renewed.
func (t *Table) validUntil(l *lock) int64 {
	if m := t.manyOf(l); m != nil {
		return min(m.validUntil, l.claim.ValidUntil())
	}
	return l.claim.ValidUntil()
}

func (m *many) add(h *hold, capacity uint16) {
	m.units += uint32(h.permits)
	m.capacities.add(capacity, 1)
	m.users.add(h.session.peer.UID, 1)
	if len(m.holds) == cap(m.holds) {
		m.compact(len(m.holds) / 2)
	}
	m.holds = append(m.holds, numbered{h.id, h, capacity})
	if at := h.ownedBy(); h.owner != 0 && !h.isOrphan() {
		if m.owned[at] == nil {
			m.owned[at] = h
		} else {
			if m.twins == nil {
				m.twins = make(map[owner]int)
			}
			m.twins[at]++
		}
	}
	m.count(h, 1)
	m.dueAt = min(m.dueAt, h.deadline)
	if h.endAt != 0 {
		m.dueAt = min(m.dueAt, h.endAt)
	}
}

// compact takes the gaps away, if there are more than so many.
func (m *many) compact(most int) {
	if m.gaps > most {
		m.holds = slices.DeleteFunc(m.holds, func(n numbered) bool { return n.hold == nil })
		m.gaps = 0
	}
}

// sort brings holds that were restored in any order into that of their numbers.
func (m *many) sort(l *lock) {
	slices.SortFunc(m.holds, func(a, b numbered) int { return cmp.Compare(a.id, b.id) })
	l.holders.newest = m.holds[len(m.holds)-1].hold
}

// count counts a hold by its phase, or not any more.
func (m *many) count(h *hold, n int) {
	if h.isRenewed() {
		m.renewed += n
	}
	if h.isOrphan() {
		m.orphans += n
	}
	if h.phase == HoldUnrenewable {
		m.refused += n
	}
}

// setPhase moves a hold to another phase.
func (t *Table) setPhase(h *hold, phase HoldPhase) {
	m, wasOrphan := t.manyOf(h.lock), h.isOrphan()
	if m != nil {
		m.count(h, -1)
	}
	h.phase = phase
	if m == nil {
		return
	}
	m.count(h, 1)
	if !h.isRenewed() {
		m.latest = max(m.latest, h.deadline)
	}
	if h.isOrphan() && !wasOrphan {
		m.disown(h)
	}
	t.touch(h)
}

// disown notes that the owner of a hold enters it no more, but another one of its holds, if it has one.
func (m *many) disown(h *hold) {
	at := h.ownedBy()
	twins := m.twins[at]
	if twins > 0 {
		if m.twins[at]--; twins == 1 {
			delete(m.twins, at)
		}
	}
	if m.owned[at] != h {
		return
	}
	delete(m.owned, at)
	for _, n := range m.holds {
		if twins == 0 {
			break
		}
		if o := n.hold; o != nil && o != h && o.ownedBy() == at && !o.isOrphan() {
			m.owned[at], twins = o, 0
		}
	}
}

func (h *hold) ownedBy() owner { return owner{h.session.id, h.owner} }

// removeHold takes a hold away from those of its lock.
func (t *Table) removeHold(h *hold) {
	l := h.lock
	m := t.manyOf(l)
	if m == nil {
		l.holders.newest = nil
		return
	}
	m.units -= uint32(h.permits)
	m.users.add(h.session.peer.UID, -1)
	m.count(h, -1)
	if !h.isOrphan() {
		m.disown(h)
	}
	n := m.entryOf(h)
	m.capacities.add(n.of, -1)
	n.hold = nil
	m.gaps++
	last := len(m.holds)
	for last > 0 && m.holds[last-1].hold == nil {
		last--
		m.gaps--
	}
	m.holds = m.holds[:last]
	if l.holders.newest = nil; last > 0 {
		l.holders.newest = m.holds[last-1].hold
	}
	t.chargeHold(h, -1)
}

// entryOf returns the entry of a hold among those of its lock.
func (m *many) entryOf(h *hold) *numbered {
	i, _ := slices.BinarySearchFunc(m.holds, h.id, func(n numbered, id uint64) int { return cmp.Compare(n.id, id) })
	return &m.holds[i]
}

// keepUntil is until when a hold excludes others, however it ends for its client; 0: it has no keep.
func (t *Table) keepUntil(h *hold) int64 {
	if !h.hasKeep {
		return 0
	}
	return t.keeps[h.id]
}

// touch notes that the journal is to have a hold as it is now. Locks of kind lock need no such note: markDirty
// is about their hold, too.
func (t *Table) touch(h *hold) {
	if m := t.manyOf(h.lock); m != nil && t.cfg.Journal != nil {
		m.changed = append(m.changed, h.id)
	}
}

// isRenewed reports whether the watchdog renews the hold.
func (h *hold) isRenewed() bool {
	return h.lease == WatchdogLease && h.phase != HoldUnserved && h.phase != HoldGivenUp && h.phase != HoldKept
}

// sharesLeaseEvents reports whether the lease events of its session are about it.
func (h *hold) sharesLeaseEvents() bool { return h.isRenewed() && !h.isOrphan() }

func (h *hold) isOrphan() bool { return h.phase.IsOrphan() }

func (h *hold) isShared() bool { return h.mode == Shared }

// isOwnedBy reports whether this owner of this session has the hold.
func (h *hold) isOwnedBy(s *session, owner uint64) bool {
	return h != nil && owner != 0 && h.owner == owner && h.session == s && !h.isOrphan()
}
