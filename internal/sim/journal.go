package sim

import "github.com/locksidecar/locksidecar/sidecar/locktable"

// journal is what survives the process of a sidecar: a state file in memory. It checks what
// the table records.
type journal struct {
	w        *world
	h        *host
	slots    [2 * maxNames]locktable.LockRecord
	used     [2 * maxNames]bool
	room     int    // slots that the file system has room for
	lastHold uint64 // largest hold number
	run      int    // of the Redis to which there was a connection last
	floor    tokenFloor
	sessions []locktable.RememberedSession
	whole    bool // it has everything that it was given
	full     bool // it is not whole because there was no room for a lock
	calls    int  // until the process is killed; or immortal, or killed
}

const (
	immortal = -1 // calls of a process that is not killed
	killed   = -2 // calls of one that was
)

func newJournal(w *world, h *host) *journal {
	j := &journal{w: w, h: h, room: 2 * maxNames, whole: true, calls: immortal}
	if w.plan.journalRoom > 0 {
		j.room = w.plan.journalRoom
	}
	return j
}

// isKilled reports whether the process is killed in this call, or was before.
func (j *journal) isKilled() bool {
	if j.calls > 0 {
		j.calls--
	}
	return j.calls == 0 || j.calls == killed
}

// tear writes a part of a record, field by field as sidecar/state does.
func (j *journal) tear(to, r *locktable.LockRecord) {
	if to.Name != r.Name || j.calls == killed {
		return
	}
	was := &to.Hold
	stores := j.w.random.below(7)
	store := func() bool { stores--; return stores >= 0 }
	if r.Hold.Num == 0 || was.Num != r.Hold.Num {
		if store() {
			*was = locktable.HoldRecord{}
		}
		if store() {
			to.Top = r.Top
		}
		return
	}
	if store() {
		to.Top = r.Top
	}
	if store() {
		was.Deadline = r.Hold.Deadline
	}
	if store() {
		was.End = r.Hold.End
	}
	if store() {
		was.Tells, was.LeaseMS = r.Hold.Tells, r.Hold.LeaseMS
	}
	if store() {
		was.Count, was.CrashDelayMS = r.Hold.Count, r.Hold.CrashDelayMS
	}
	if store() {
		was.Orphan, was.InDoubt = r.Hold.Orphan, r.Hold.InDoubt
	}
}

// KeepLast records the last hold number.
func (j *journal) KeepLast(num uint64) {
	if num < j.lastHold {
		j.w.violation(-1, "host %d records %d as its last number, after %d", j.h.index, num, j.lastHold)
	}
	if !j.isKilled() {
		j.lastHold = num
	} else {
		j.calls = killed
	}
}

// KeepLock records a lock, in a new slot if slot is 0. It returns the slot, or 0 if there
// is no room.
func (j *journal) KeepLock(slot uint32, r *locktable.LockRecord) uint32 {
	n := nameIndex(r.Name)
	if h := &r.Hold; h.Num > r.Top || j.calls == immortal && r.Top > j.lastHold ||
		h.Num != 0 && (h.Token == 0 || h.Count == 0 || h.Session == 0 || h.Deadline == 0) {
		j.w.violation(n, "host %d records %+v; its last number is %d", j.h.index, *r, j.lastHold)
	}
	if slot != 0 && j.calls != killed && (!j.used[slot-1] || j.slots[slot-1].Name != r.Name) {
		j.w.violation(n, "host %d records a lock in slot %d, which it does not have", j.h.index, slot)
	}
	if j.isKilled() {
		if slot != 0 && j.w.random.oneIn(2) {
			j.tear(&j.slots[slot-1], r)
		}
		j.calls = killed
		return max(slot, 1)
	}
	if slot == 0 {
		if j.find(n) != nil {
			j.w.violation(n, "host %d records a lock in two slots", j.h.index)
		}
		for i := range j.room {
			if !j.used[i] {
				slot = uint32(i + 1)
			}
		}
		if slot == 0 {
			j.whole, j.full = false, true
			return 0
		}
	}
	j.used[slot-1], j.slots[slot-1] = true, *r
	return slot
}

// ForgetLock frees a slot.
func (j *journal) ForgetLock(slot uint32) {
	if j.isKilled() {
		j.calls = killed
		return
	}
	if slot == 0 || !j.used[slot-1] {
		j.w.violation(-1, "host %d frees slot %d, which it does not have", j.h.index, slot)
	}
	j.used[slot-1], j.slots[slot-1] = false, locktable.LockRecord{}
}

// KeepSession records a session.
func (j *journal) KeepSession(r locktable.SessionRecord) {
	s := j.session(r.ID)
	if s == nil {
		j.w.violation(-1, "host %d records session %d, which is not open", j.h.index, r.ID)
	}
	if r.Tells < s.Tells || s.Detached && !r.Detached {
		j.w.violation(-1, "host %d records %+v of session %d, after %+v", j.h.index, r, r.ID, s.SessionRecord)
	}
	switch {
	case !j.isKilled():
		s.SessionRecord = r
	case j.calls == 0:
		s.Told = r.Told // Tells and Detached are in one store after it
		j.calls = killed
	}
}

// open records a session, as the loop does.
func (j *journal) open(r locktable.SessionRecord, p locktable.Peer) {
	s := j.session(r.ID)
	if s == nil {
		j.sessions = append(j.sessions, locktable.RememberedSession{})
		s = &j.sessions[len(j.sessions)-1]
	}
	*s = locktable.RememberedSession{SessionRecord: r, Peer: p}
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
func (j *journal) session(id locktable.SessionID) *locktable.RememberedSession {
	for i := range j.sessions {
		if j.sessions[i].ID == id {
			return &j.sessions[i]
		}
	}
	return nil
}

// find returns what is recorded of a lock, or nil.
func (j *journal) find(n int) *locktable.LockRecord {
	for i := range j.slots {
		if j.used[i] && j.slots[i].Name == lockNames[n] {
			return &j.slots[i]
		}
	}
	return nil
}

// snapshot returns what a successor finds.
func (j *journal) snapshot() locktable.Memory {
	m := locktable.Memory{Last: j.lastHold, Sessions: append([]locktable.RememberedSession(nil), j.sessions...)}
	for i := range j.slots {
		if j.used[i] {
			m.Locks = append(m.Locks, locktable.RememberedLock{Slot: uint32(i + 1), LockRecord: j.slots[i]})
		}
	}
	return m
}

// growRoom has the file system of a full journal grow now and then.
func (j *journal) growRoom(t lockTable) {
	if j.full && j.w.random.oneIn(30) {
		j.room = len(j.slots)
		t.KeepAgain()
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
	if unkept := t.Unkept(); unkept > missing {
		j.w.violation(-1, "host %d has %d locks for which there is no room; its journal misses %d at most", j.h.index, unkept, missing)
	} else if unkept == 0 {
		j.w.check.meet(JournalWholeAgain)
		j.whole, j.full = true, false
	}
}

// deadline returns the deadline that a session was sent of a hold, as it is recorded.
func (j *journal) deadline(r *locktable.HoldRecord) int64 {
	if s := j.session(r.Session); s != nil && r.LeaseMS == 0 && r.Tells != s.Tells {
		return max(r.Deadline, s.Told)
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
	if r == nil || r.Hold.Num != c.num {
		j.w.violation(n, "the journal of host %d does not have hold %d of session %d, which believes in it", j.h.index, c.num, c.session)
	}
	h := &r.Hold
	if h.Token != c.token || h.Owner != c.owner || h.Session != c.session || h.Granted != c.granted || h.Orphan ||
		h.Count < c.count || h.End != c.maxHoldEnd || int64(h.CrashDelayMS)*ms != c.crashDelay || j.deadline(h) < c.deadline {
		j.w.violation(n, "the journal of host %d has %+v, with the deadline %d; it is %+v", j.h.index, *h, j.deadline(h), *c)
	}
}

// checkOperation checks that a lock is recorded before Redis is asked for it.
func (j *journal) checkOperation(n int, op locktable.Op) {
	if !j.whole {
		return
	}
	if r := j.find(n); r == nil || r.Top < op.HoldID || j.lastHold < op.HoldID {
		j.w.violation(n, "%s is issued, and the journal of host %d has %+v", opString(op), j.h.index, r)
	}
}

func (j *journal) checkEmpty() {
	for i := range j.slots {
		if j.used[i] {
			j.w.violation(-1, "all sessions of host %d are closed, and its journal still has %+v", j.h.index, j.slots[i])
		}
	}
	if len(j.sessions) != 0 {
		j.w.violation(-1, "all sessions of host %d are closed, and its journal still has session %d", j.h.index, j.sessions[0].ID)
	}
}
