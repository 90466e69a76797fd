package sim

import (
	"maps"
	"slices"

	"github.com/locksidecar/locksidecar/internal/sim/invariant"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// journal is what survives the process of a sidecar: a state file in memory. It checks what
// the table records.
//
// The process may be killed in a write. What the table records of one lock and its hold is
// one write, of which some stores may have been made, as sidecar/state makes them.
type journal struct {
	w        *world
	h        *host
	slots    [2 * maxNames]record
	room     int    // slots that the file system has room for
	lastHold uint64 // largest hold number
	run      int    // of the Redis to which there was a connection last
	floor    tokenFloor
	holds    map[uint32]manyRecord // those of the semaphore, by slot
	permits  map[uint64]bool       // whether a hold number was ever that of a hold of the semaphore
	nextSlot uint32
	sessions []locktable.RestoredSession
	whole    bool // it has everything that it was given
	full     bool // it is not whole because there was no room for a lock
	writes   int  // until the process is killed; or immortal, or killed

	stores int // of the hold that follows, which a process makes that is killed in this write
}

// record is what a journal has of a lock. There are exclusive holds only, so it has at most
// one: its slot is that of the lock.
type record struct {
	lock locktable.LockRecord // without a name: the slot is free
	hold locktable.HoldRecord // without an id: there is none
}

// manyRecord is a hold of a lock that may have many: it has a slot of its own.
type manyRecord struct {
	lock uint32 // its slot
	hold locktable.HoldRecord
}

const firstManySlot = 1000

const (
	immortal = -1 // writes of a process that is not killed
	killed   = -2 // writes of one that was
)

func newJournal(w *world, h *host) *journal {
	j := &journal{w: w, h: h, room: 2 * maxNames, whole: true, writes: immortal, holds: make(map[uint32]manyRecord), permits: make(map[uint64]bool), nextSlot: firstManySlot}
	if w.plan.journalRoom > 0 {
		j.room = w.plan.journalRoom
	}
	return j
}

// isKilled counts a write, and reports whether the process is killed in it, or was before.
func (j *journal) isKilled() bool {
	if j.writes > 0 {
		j.writes--
	}
	return j.writes == 0 || j.writes == killed
}

// PutLastHoldID records the last hold number.
func (j *journal) PutLastHoldID(id uint64) {
	if id < j.lastHold {
		j.w.violation(invariant.HoldNumbers, -1, "host %d records %d as its last number, after %d", j.h.index, id, j.lastHold)
	}
	if !j.isKilled() {
		j.lastHold = id
	} else {
		j.writes = killed
	}
}

// PutLock records a lock, in a new slot if slot is 0. It returns the slot, or 0 if there is
// no room.
func (j *journal) PutLock(slot uint32, l *locktable.LockRecord) uint32 {
	n := nameIndex(l.Name)
	if j.writes == immortal && l.MaxHoldID > j.lastHold {
		j.w.violation(invariant.HoldNumbers, n, "host %d records %+v; its last number is %d", j.h.index, *l, j.lastHold)
	}
	if slot != 0 && j.writes != killed && j.slots[slot-1].lock.Name != l.Name {
		j.w.violation(invariant.Journal, n, "host %d records a lock in slot %d, which it does not have", j.h.index, slot)
	}
	j.stores = 0
	if j.isKilled() {
		if slot != 0 && j.w.random.oneIn(2) && j.writes != killed {
			j.tearLock(&j.slots[slot-1], l)
		}
		j.writes = killed
		return max(slot, 1)
	}
	if slot == 0 {
		if j.find(n) != nil {
			j.w.violation(invariant.Journal, n, "host %d records a lock in two slots", j.h.index)
		}
		for i := range j.room {
			if j.slots[i].lock.Name == "" {
				slot = uint32(i + 1)
			}
		}
		if slot == 0 {
			j.whole, j.full = false, true
			return 0
		}
	}
	j.slots[slot-1].lock = *l
	return slot
}

// tearLock makes the first stores of a write.
func (j *journal) tearLock(r *record, l *locktable.LockRecord) {
	stores := int(j.w.random.below(7))
	if stores == 0 {
		return
	}
	r.lock.MaxHoldID = l.MaxHoldID
	if stores > 1 && l.Forced != 0 {
		r.lock.Forced = l.Forced
	}
	if r.hold.ID != 0 {
		j.stores = stores - 1 // and the next hold of a lock appears with its last store
	}
}

// tearHold makes the stores that are left of a write whose hold stays.
func (j *journal) tearHold(was, h *locktable.HoldRecord) {
	store := func() bool { j.stores--; return j.stores >= 0 }
	if store() {
		was.Deadline = h.Deadline
	}
	if store() {
		was.End = h.End
	}
	if store() {
		was.LeaseSeq, was.LeaseMS = h.LeaseSeq, h.LeaseMS
	}
	if store() {
		was.Entries = h.Entries
	}
	if store() {
		was.Phase, was.InDoubt = h.Phase, h.InDoubt
	}
}

// DeleteLock frees a slot.
func (j *journal) DeleteLock(slot uint32) {
	if j.isKilled() {
		j.writes = killed
		return
	}
	if slot == 0 || j.slots[slot-1].lock.Name == "" {
		j.w.violation(invariant.Journal, -1, "host %d frees slot %d, which it does not have", j.h.index, slot)
	}
	if r := &j.slots[slot-1]; r.hold.ID != 0 {
		j.w.violation(invariant.Journal, nameIndex(r.lock.Name), "host %d frees the slot of a lock before that of hold %d", j.h.index, r.hold.ID)
	}
	for _, m := range j.holds {
		if m.lock == slot {
			j.w.violation(invariant.Journal, semaphore, "host %d frees the slot of a lock before that of hold %d", j.h.index, m.hold.ID)
		}
	}
	j.slots[slot-1] = record{}
}

// putMany records a hold of a lock that may have many.
func (j *journal) putMany(slot, lock uint32, h *locktable.HoldRecord) uint32 {
	was := j.holds[slot]
	isWrong := slot != 0 && was.hold.ID != h.ID || h.ID > j.slots[lock-1].lock.MaxHoldID || h.Permits == 0 || h.Session == 0 || h.Deadline == 0
	if isWrong && j.writes != killed {
		j.w.violation(invariant.Journal, semaphore, "host %d records %+v in slot %d, which has %+v; its lock is %+v", j.h.index, *h, slot, was.hold, j.slots[lock-1].lock)
	}
	isLast := j.writes != killed && j.isKilled()
	if isLast {
		j.writes = killed
	}
	if j.writes == killed && !(isLast && j.w.random.oneIn(2)) {
		return max(slot, firstManySlot)
	}
	if slot == 0 {
		j.nextSlot++
		slot = j.nextSlot
	}
	j.holds[slot] = manyRecord{lock, *h}
	j.permits[h.ID] = true
	return slot
}

func (j *journal) deleteMany(slot uint32) {
	if j.writes != killed && j.holds[slot].hold.ID == 0 {
		j.w.violation(invariant.Journal, semaphore, "host %d frees the hold in slot %d, which it does not have", j.h.index, slot)
	}
	isLast := j.writes != killed && j.isKilled()
	if isLast {
		j.writes = killed
	}
	if j.writes != killed || isLast && j.w.random.oneIn(2) {
		if r := j.holds[slot].hold; r.LeaseMS == 0 && slotOf(r.Session) < len(j.h.sessions) {
			j.h.sessions[slotOf(r.Session)].renewedPermitsUntil = j.w.now
		}
		delete(j.holds, slot)
	}
}

// PutHold records the hold of a lock.
func (j *journal) PutHold(slot, lock uint32, h *locktable.HoldRecord) uint32 {
	r := &j.slots[lock-1]
	if r.lock.Kind.HasMany() {
		return j.putMany(slot, lock, h)
	}
	if j.writes == killed {
		if slot != 0 && r.hold.ID == h.ID {
			j.tearHold(&r.hold, h)
		}
		return lock
	}
	n := nameIndex(r.lock.Name)
	if h.ID > r.lock.MaxHoldID || h.Token == 0 || h.Entries == 0 || h.Session == 0 || h.Deadline == 0 {
		j.w.violation(invariant.Journal, n, "host %d records %+v; its lock is %+v", j.h.index, *h, r.lock)
	}
	if slot == 0 && r.hold.ID != 0 || slot != 0 && (slot != lock || r.hold.ID != h.ID) {
		j.w.violation(invariant.Journal, n, "host %d records hold %d in slot %d, beside hold %d in slot %d", j.h.index, h.ID, slot, r.hold.ID, lock)
	}
	r.hold = *h
	return lock
}

// DeleteHold frees the slot of a hold.
func (j *journal) DeleteHold(slot uint32) {
	if slot >= firstManySlot {
		j.deleteMany(slot)
		return
	}
	if j.writes != killed && (slot == 0 || j.slots[slot-1].hold.ID == 0) {
		j.w.violation(invariant.Journal, -1, "host %d frees the hold in slot %d, which it does not have", j.h.index, slot)
	}
	if !j.isKilled() || j.writes != killed && j.w.random.oneIn(2) {
		j.slots[slot-1].hold = locktable.HoldRecord{}
	}
	if j.writes == 0 {
		j.writes = killed
	}
}

// PutSession records a session.
func (j *journal) PutSession(r locktable.SessionRecord) {
	s := j.session(r.ID)
	if s == nil {
		j.w.violation(invariant.Journal, -1, "host %d records session %d, which is not open", j.h.index, r.ID)
	}
	if r.LeaseSeq < s.LeaseSeq || s.Phase.IsOver() && !r.Phase.IsOver() {
		j.w.violation(invariant.Journal, -1, "host %d records %+v of session %d, after %+v", j.h.index, r, r.ID, s.SessionRecord)
	}
	switch {
	case !j.isKilled():
		s.SessionRecord = r
	case j.writes == 0:
		s.LeaseSent = r.LeaseSent // LeaseSeq and Phase are in one store after it
		j.writes = killed
	}
}

// open records a session, as the loop does.
func (j *journal) open(r locktable.SessionRecord, p locktable.Peer) {
	s := j.session(r.ID)
	if s == nil {
		j.sessions = append(j.sessions, locktable.RestoredSession{})
		s = &j.sessions[len(j.sessions)-1]
	}
	*s = locktable.RestoredSession{SessionRecord: r, Peer: p}
}

// closed removes a session that has ended, once its holds are known to have ended.
func (j *journal) closed(id locktable.SessionID) {
	for i := range j.sessions {
		if j.sessions[i].ID == id {
			j.sessions = append(j.sessions[:i], j.sessions[i+1:]...)
			return
		}
	}
}

// session returns what is recorded of a session, or nil.
func (j *journal) session(id locktable.SessionID) *locktable.RestoredSession {
	for i := range j.sessions {
		if j.sessions[i].ID == id {
			return &j.sessions[i]
		}
	}
	return nil
}

// find returns what is recorded of a lock, or nil.
func (j *journal) find(n int) *record {
	for i := range j.slots {
		if j.slots[i].lock.Name == lockNames[n] {
			return &j.slots[i]
		}
	}
	return nil
}

// snapshot returns what a successor finds.
func (j *journal) snapshot() locktable.Snapshot {
	m := locktable.Snapshot{LastHoldID: j.lastHold, Sessions: append([]locktable.RestoredSession(nil), j.sessions...)}
	for i := range j.slots {
		r, slot := &j.slots[i], uint32(i+1)
		if r.lock.Name == "" {
			continue
		}
		if r.hold.ID != 0 {
			m.Holds = append(m.Holds, locktable.RestoredHold{Slot: slot, Lock: uint32(len(m.Locks)), HoldRecord: r.hold})
		}
		for _, s := range slices.Sorted(maps.Keys(j.holds)) {
			if many := j.holds[s]; many.lock == slot {
				m.Holds = append(m.Holds, locktable.RestoredHold{Slot: s, Lock: uint32(len(m.Locks)), HoldRecord: many.hold})
			}
		}
		m.Locks = append(m.Locks, locktable.RestoredLock{Slot: slot, LockRecord: r.lock})
	}
	return m
}

// growRoom has the file system of a full journal grow now and then.
func (j *journal) growRoom(t lockTable) {
	if j.full && j.w.random.oneIn(30) {
		j.room = len(j.slots)
		t.RetryJournal()
	}
}

// checkRoom marks a journal as whole again when the table misses nothing in it.
func (j *journal) checkRoom(t lockTable) {
	if !j.full {
		return
	}
	missing := 0
	for n := range j.w.plan.names {
		missing += btoi(j.find(n) == nil)
	}
	if unstored := t.Unstored(); unstored > missing {
		j.w.violation(invariant.Journal, -1, "host %d has %d locks for which there is no room; its journal misses %d at most", j.h.index, unstored, missing)
	} else if unstored == 0 {
		j.w.check.meet(JournalWholeAgain)
		j.whole, j.full = true, false
	}
}

// deadline returns the deadline that a session was sent of a hold, as it is recorded.
func (j *journal) deadline(r *locktable.HoldRecord) int64 {
	if s := j.session(r.Session); s != nil && r.LeaseMS == 0 && r.LeaseSeq != s.LeaseSeq {
		return max(r.Deadline, s.LeaseSent)
	}
	return r.Deadline
}

// checkHold checks that a hold in which a client believes is recorded as the client knows
// it.
func (j *journal) checkHold(n int, c *hold) {
	if !j.whole {
		return
	}
	r := j.find(n)
	if r == nil || r.hold.ID != c.num {
		j.w.violation(invariant.Journal, n, "the journal of host %d does not have hold %d of session %d, which believes in it", j.h.index, c.num, c.session)
	}
	h := &r.hold
	if h.Token != c.token || h.Owner != c.owner || h.Session != c.session || h.Granted != c.granted || h.Phase.IsOrphan() ||
		h.Entries < c.count || h.End != c.maxHoldEnd || int64(h.CrashDelayMS)*ms != c.crashDelay || h.KeepUntil < c.keptUntil || j.deadline(h) < c.deadline {
		j.w.violation(invariant.Journal, n, "the journal of host %d has %+v, with the deadline %d; it is %+v", j.h.index, *h, j.deadline(h), *c)
	}
}

// checkOperation checks that a lock is recorded before Redis is asked for it.
func (j *journal) checkOperation(n int, op redisop.Op) {
	if !j.whole {
		return
	}
	if r := j.find(n); r == nil || r.lock.MaxHoldID < op.HoldID || j.lastHold < op.HoldID {
		j.w.violation(invariant.Journal, n, "%s is issued, and the journal of host %d has %+v", opString(op), j.h.index, r)
	}
}

func (j *journal) checkEmpty() {
	for i := range j.slots {
		if j.slots[i].lock.Name != "" {
			j.w.violation(invariant.NothingLeft, -1, "all sessions of host %d are closed, and its journal still has %+v", j.h.index, j.slots[i])
		}
	}
	if len(j.holds) != 0 {
		j.w.violation(invariant.NothingLeft, semaphore, "all sessions of host %d are closed, and its journal still has %d holds", j.h.index, len(j.holds))
	}
	if len(j.sessions) != 0 {
		j.w.violation(invariant.NothingLeft, -1, "all sessions of host %d are closed, and its journal still has session %d", j.h.index, j.sessions[0].ID)
	}
}
