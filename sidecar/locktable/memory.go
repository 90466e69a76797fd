package locktable

import (
	"fmt"
	"math"

	"github.com/locksidecar/locksidecar/protocol"
)

// A Keeper remembers for a successor what the table must not forget when its
// process dies: which locks Redis may have as ours, and who holds them. The table
// tells it of every change before it hands out the effects of that change, and
// never asks it anything.
type Keeper interface {
	// KeepLock stores what there is to know of a lock, in place of what was stored
	// in slot; 0: nothing was. It returns the slot; 0: there is no room. Then the
	// memory is incomplete until Table.Unkept is 0 again, and until then no successor
	// may restore it under the same uuid: Redis would take its first Take of that lock
	// for a later hold of the same owner, and grant what a living client holds.
	KeepLock(slot uint32, r *LockRecord) uint32

	// ForgetLock frees a slot: Redis has nothing of ours under that name.
	ForgetLock(slot uint32)

	// KeepSession stores what an open session was told of its deadlines.
	KeepSession(r SessionRecord)

	// KeepLast stores the largest number that a hold or an operation ever had.
	KeepLast(num uint64)
}

// LockRecord is a lock of which Redis may have a field of ours.
type LockRecord struct {
	Name string
	Top  uint64     // largest number that any hold of it, or operation on it, had
	Hold HoldRecord // Num 0: nobody holds it, and what Redis has is to be dropped
}

// HoldRecord is a hold as its client was told of it.
type HoldRecord struct {
	Num, Token, Owner uint64
	Session           SessionID
	Granted           int64
	Deadline          int64 // told with the grant; see SessionRecord.Told
	End               int64 // max_hold or crash delay; 0: never
	Tells             uint32
	Count             uint32
	LeaseMS           uint32 // 0: watchdog
	CrashDelayMS      uint32
	Orphan            bool // its session is gone
	InDoubt           bool // Redis may have lost its data, and the key with it: it is asserted, not confirmed
}

// SessionRecord is what a session was told: Told is good for each of its watchdog
// holds whose Tells is not the session's.
type SessionRecord struct {
	ID       SessionID
	Told     int64
	Tells    uint32
	Detached bool
}

// Memory is what a Keeper kept.
type Memory struct {
	Last     uint64
	Sessions []RememberedSession
	Locks    []RememberedLock
}

// RememberedSession is a session that a table had open.
type RememberedSession struct {
	SessionRecord
	Peer Peer
}

// RememberedLock is a lock in the slot where it was kept.
type RememberedLock struct {
	Slot uint32
	LockRecord
}

// dirtySet is what changed since the Keeper was told last.
type dirtySet struct {
	locks    []*lock
	sessions []*session
	last     uint64
	record   LockRecord

	unkept []*lock // those for which the Keeper had no room; lock.unkept is the index
	again  bool    // KeepAgain was called
}

func (t *Table) markDirty(l *lock) {
	if t.cfg.Keeper != nil && !l.isDirty {
		l.isDirty = true
		t.dirty.locks = append(t.dirty.locks, l)
	}
}

func (t *Table) markSessionDirty(s *session) {
	if t.cfg.Keeper != nil && !s.isDirty {
		s.isDirty = true
		t.dirty.sessions = append(t.dirty.sessions, s)
	}
}

// writeJournal tells the Keeper what changed. The process may die between any two calls, so
// each must leave a memory that is true of what clients were told: numbers come
// before records that have them; that a session is detached before its watchdog
// holds become fixed leases, or a successor would tell their client of renewals; and
// what a session was told, which may be less than before, after the holds for which
// more was true.
func (t *Table) writeJournal() {
	k, n := t.cfg.Keeper, &t.dirty
	if k == nil {
		return
	}
	if n.last != t.lastNum {
		n.last = t.lastNum
		k.KeepLast(n.last)
	}
	for _, s := range n.sessions {
		if s.wasDetached() {
			k.KeepSession(s.record())
		}
	}
	for i, l := range n.locks {
		l.isDirty = false
		switch {
		case l.hasRemoteState():
			t.record(l, &n.record)
			l.slot = k.KeepLock(l.slot, &n.record)
		case l.slot != 0:
			k.ForgetLock(l.slot)
			l.slot = 0
		}
		n.track(l)
		n.locks[i] = nil
	}
	n.locks = n.locks[:0]
	for n.again && len(n.unkept) > 0 {
		l := n.unkept[len(n.unkept)-1]
		t.record(l, &n.record)
		l.slot = k.KeepLock(0, &n.record)
		n.track(l)
		n.again = l.slot != 0 // all of them have to be stored, so there is no use in trying others
	}
	n.again = false
	for i, s := range n.sessions {
		if s.isDirty = false; !s.wasDetached() {
			k.KeepSession(s.record())
		}
		n.sessions[i] = nil
	}
	n.sessions = n.sessions[:0]
}

// track has unkept list the lock if, and only if, the Keeper should have it and does
// not.
func (n *dirtySet) track(l *lock) {
	missing := l.slot == 0 && l.hasRemoteState()
	switch {
	case missing == (l.unkept != 0):
	case missing:
		n.unkept = append(n.unkept, l)
		l.unkept = uint32(len(n.unkept))
	default:
		last := len(n.unkept) - 1
		moved := n.unkept[last]
		n.unkept[l.unkept-1], moved.unkept = moved, l.unkept
		n.unkept[last] = nil
		n.unkept, l.unkept = n.unkept[:last], 0
	}
}

// Unkept is the number of locks for which the Keeper had no room, and which it should
// have. It is up to date after Effects.
func (t *Table) Unkept() int { return len(t.dirty.unkept) }

// KeepAgain has the next Effects offer the Keeper the locks for which it had no room.
func (t *Table) KeepAgain() { t.dirty.again = true }

// hasRemoteState tells whether Redis has, or may yet have, a field of ours.
func (l *lock) hasRemoteState() bool {
	return l.holds != nil || l.claim.state != claimAbsent || l.claim.isBusy()
}

func (t *Table) record(l *lock, r *LockRecord) {
	*r = LockRecord{Name: l.name, Top: l.claim.maxHoldID}
	h := l.holds
	if h == nil {
		return
	}
	r.Hold = HoldRecord{
		Num: h.id, Token: h.token, Owner: h.owner, Session: h.session.id,
		Granted: h.granted, Deadline: h.deadline, End: h.endAt, Tells: h.leaseSeq,
		Count: h.entries, LeaseMS: t.remainingLease(h), CrashDelayMS: h.crashDelayMS, Orphan: h.isOrphan(),
		InDoubt: l.claim.state.isUnsure(),
	}
	if h.isOrphan() {
		r.Hold.Deadline = t.deadline(h)
	}
}

// Restore makes the table what the Keeper's table was when its process died, apart
// from waiters: those ask again. It comes before any other input. Sessions are open
// and absent: the caller closes those whose clients are dead, detaches those who
// will not come back, and has the others claim what they hold.
//
// What Redis has is not taken for granted: holds are confirmed, and what was being
// given back is given back, when Redis can be asked.
func (t *Table) Restore(now int64, m *Memory) {
	t.lastNum, t.dirty.last = m.Last, m.Last
	t.wheel.MaxPending = 2 * max(t.cfg.MaxLocks, len(m.Locks))
	for _, r := range m.Sessions {
		s := t.open(r.ID, r.Peer)
		s.leaseSent, s.leaseSeq, s.phase = r.Told, r.Tells, SessionAbsent
		if r.Detached {
			s.phase = SessionGivenUp
		}
	}
	gone := make(map[SessionID]*session)
	for i := range m.Locks {
		r := &m.Locks[i]
		t.lastNum = max(t.lastNum, r.Top, r.Hold.Num)
		l := t.lockFor(r.Name)
		l.slot, l.claim.maxHoldID = r.Slot, max(r.Top, r.Hold.Num)
		l.claim.state, l.rivals.listeners = claimUncertain, -1
		if r.Hold.Num == 0 {
			continue
		}
		s, isOrphan := t.sessions[r.Hold.Session], r.Hold.Orphan
		if s == nil {
			if s = gone[r.Hold.Session]; s == nil {
				s = &session{id: r.Hold.Session}
				gone[r.Hold.Session] = s
			}
			isOrphan = true
		}
		t.charge(l, s.user)
		l.claim.state = claimRestored
		if r.Hold.InDoubt {
			l.claim.state = claimInDoubt
		}
		h := t.holds.get()
		*h = hold{
			id: r.Hold.Num, token: r.Hold.Token, owner: r.Hold.Owner, lock: l, session: s, granted: r.Hold.Granted,
			deadline: r.Hold.Deadline, endAt: r.Hold.End, leaseSeq: r.Hold.Tells,
			entries: max(1, r.Hold.Count), leaseMS: r.Hold.LeaseMS, crashDelayMS: r.Hold.CrashDelayMS, permits: 1, mode: exclusive,
		}
		if h.leaseMS != 0 {
			h.lease = fixedLease
		}
		t.addHold(h)
		switch {
		case isOrphan && (!r.Hold.Orphan || h.lease == fixedLease):
			h.phase = holdGivenUp // if there is no session, no client can come back for it
		case isOrphan:
			h.phase = holdCrashDelayed
		}
		if l.claim.validUntil = h.deadline; !isOrphan {
			l.claim.validUntil = t.deadline(h)
			h.deadline, h.leaseSeq = l.claim.validUntil, s.leaseSeq
			if s.phase.IsOver() { // that was not kept of it any more
				h.phase = holdUnserved
			}
			if h.isRenewed() {
				l.claim.validUntil = min(l.claim.validUntil, now+validity(t.leaseMS))
			}
			t.linkHold(h)
			t.trackDeadline(h)
		}
	}
	for i := range m.Sessions {
		if s := t.sessions[m.Sessions[i].ID]; len(s.deadlineBuckets) > 0 {
			// From here on, each hold says for itself what was sent of it: leases may
			// be shorter now, and an event with less than before still be needed.
			s.leaseSent = t.reachedDeadline(s)
			t.markSessionDirty(s)
		}
	}
	for i := len(t.locks) - 1; i >= 0; i-- {
		t.reconcile(now, t.locks[i])
	}
}

// Resume says that the client of an absent session is here, and about to claim.
func (t *Table) Resume(id SessionID, p Peer) {
	s := t.sessions[id]
	s.peer = p
	for h := s.holds.head; h != nil; h = h.inSession.next {
		h.claimedEntries = 0
	}
}

// Record is what the Keeper is told of a session.
func (t *Table) Record(id SessionID) SessionRecord { return t.sessions[id].record() }

func (s *session) record() SessionRecord {
	return SessionRecord{ID: s.id, Told: s.leaseSent, Tells: s.leaseSeq, Detached: s.wasDetached()}
}

// wasDetached reports whether the session's watchdog holds are not renewed any more.
func (s *session) wasDetached() bool {
	return s.phase == SessionGivenUp || s.phase == SessionUnserved
}

// Claim notes that the client of an absent session has these holds, with that many
// entries; it has lost those that the session does not have. The last claim ends the
// absence: holds and entries that were not claimed are released, for a release, or a grant,
// did not get through. Until then nothing changes, for the client may come back again and
// claim again. fault says how the claim breaks the protocol; "": it does not.
func (t *Table) Claim(now int64, id SessionID, req *protocol.Claim) (fault string) {
	s := t.sessions[id]
	if s == nil {
		return ""
	}
	for _, c := range req.Holds {
		h := t.byHold[c.Hold]
		if h == nil || h.session != s || h.isOrphan() {
			t.emit(Effect{Kind: Lost, Session: id, Hold: c.Hold, Reason: protocol.Forgotten})
			continue
		}
		switch {
		case h.claimedEntries != 0:
			return fmt.Sprintf("hold %d is claimed twice", c.Hold)
		case h.entries < c.Entries:
			return fmt.Sprintf("more entries of hold %d are claimed than were granted", c.Hold)
		}
		h.claimedEntries = c.Entries
		t.reconcile(now, h.lock) // it may be over just now
	}
	if !req.More {
		t.finishResume(now, s)
	}
	t.emit(Effect{Kind: Claimed, Session: id, ID: req.ID, IsLast: !req.More})
	return ""
}

// finishResume ends the absence of a session whose client has claimed all that it has.
func (t *Table) finishResume(now int64, s *session) {
	s.phase = SessionServing
	var changed []*lock
	until := int64(math.MaxInt64)
	for h := s.holds.head; h != nil; {
		next, l := h.inSession.next, h.lock
		switch {
		case h.claimedEntries == 0:
			t.endHold(h)
			changed = append(changed, l)
		case h.entries != h.claimedEntries:
			h.entries = h.claimedEntries
			changed = append(changed, l)
			t.expireHold(now, l) // it may be over since
		default:
			if t.expireHold(now, l); l.holds != h {
				changed = append(changed, l)
			}
		}
		if h = l.holds; h != nil && h.isRenewed() {
			until = min(until, t.deadline(h))
		}
		h = next
	}
	for _, l := range changed {
		if t.byName[l.name] == l { // it may be listed twice, and be gone by now
			t.reconcile(now, l)
		}
	}
	if until != math.MaxInt64 {
		// What it was sent while it was absent, or just before and did not receive.
		t.emit(Effect{Kind: Lease, Session: s.id, Deadline: until})
	}
}

// Adjourn takes all waiters away, without an answer, because the sidecar stops:
// whoever comes back will ask its successor.
func (t *Table) Adjourn(now int64) {
	for i := len(t.locks) - 1; i >= 0; i-- {
		l := t.locks[i]
		for l.queue != nil && l.queue.waiters.head != nil {
			t.endRequest(l.queue.waiters.head.request)
		}
		t.dropConfirms(l)
		t.reconcile(now, l)
	}
}
