package locktable

// A Journal stores for a successor what the table must not forget when its process dies:
// for which locks Redis may have a field of this sidecar, and which holds there are. The
// table stores every change before it returns the effects of that change, and never reads
// the journal: the successor does, and restores the table from it.
//
// A record has a slot, which the journal chooses and the table remembers. Slot 0 is none.
// A Put that finds no room returns 0. The journal is then incomplete until Table.Unstored
// is 0 again, and until then no successor may restore it under the same uuid: Redis would
// take the successor's first Take of that lock for a later hold of the same owner, and
// grant what a living client holds.
type Journal interface {
	// PutLock stores a lock in a new slot, if slot is 0, or in place of the record of the
	// same lock in slot, for which there is always room.
	PutLock(slot uint32, r *LockRecord) uint32

	// DeleteLock deletes a lock: Redis has no field of this sidecar under its name. The
	// holds of the lock are deleted before.
	DeleteLock(slot uint32)

	// PutHold stores a hold of the lock in the slot lock, which was put with the number of
	// the hold or a larger one. slot is as for PutLock.
	PutHold(slot, lock uint32, r *HoldRecord) uint32

	// DeleteHold deletes a hold that has ended.
	DeleteHold(slot uint32)

	// PutSession stores what changes of an open session.
	PutSession(r SessionRecord)

	// PutLastHoldID stores the largest number that a hold or an operation ever had.
	PutLastHoldID(id uint64)
}

// LockRecord is a lock for which Redis may have a field or a ticket of this sidecar. If the
// lock has no hold, the field is to be dropped. A ticket is given back when it is transferred.
type LockRecord struct {
	Name      string
	MaxHoldID uint64 // largest number that any hold of it, or operation on it, had
}

// HoldRecord is a hold as its client knows it. ID, Token, Owner, Session, Granted, KeepUntil,
// Permits, Lease and Mode never change.
type HoldRecord struct {
	ID, Token, Owner uint64
	Session          SessionID
	Granted          int64
	Deadline         int64 // sent with the grant; see SessionRecord.LeaseSent
	End              int64 // max_hold, or the end of the crash delay; 0: never
	KeepUntil        int64 // until when it excludes others, however it ends; 0: it has no keep
	LeaseSeq         uint32
	LeaseMS          uint32 // of a fixed lease; of a watchdog lease that is not renewed any more; or 0
	Entries          uint32
	CrashDelayMS     uint32
	Permits          uint16
	Lease            LeaseKind
	Mode             Mode
	Phase            HoldPhase
	InDoubt          bool // Redis may have lost its data, and the field with it: it is to be asserted
}

// SessionRecord is what a session was sent of its deadlines: LeaseSent holds for each of
// its watchdog holds that has another LeaseSeq. Phase is SessionServing, or, if the session
// is not served any more, SessionGivenUp or SessionUnserved.
type SessionRecord struct {
	ID        SessionID
	LeaseSent int64
	LeaseSeq  uint32
	Phase     SessionPhase
}

// RestoredPhase is the phase of the session in a successor: its client is away.
func (r *SessionRecord) RestoredPhase() SessionPhase {
	if r.Phase.IsOver() {
		return SessionGivenUp
	}
	return SessionAbsent
}

// Snapshot is what a successor finds in a journal.
type Snapshot struct {
	LastHoldID uint64
	Sessions   []RestoredSession
	Locks      []RestoredLock
	Holds      []RestoredHold
}

// RestoredSession is a session that was open.
type RestoredSession struct {
	SessionRecord
	Peer Peer
}

// RestoredLock is a lock, and the slot of its record.
type RestoredLock struct {
	Slot uint32
	LockRecord
}

// RestoredHold is a hold, and the slot of its record.
type RestoredHold struct {
	Slot uint32
	Lock uint32 // its index in Snapshot.Locks
	HoldRecord
}

// dirtySet is what has changed and is not in the journal yet.
type dirtySet struct {
	locks      []*lock
	sessions   []*session
	lastHoldID uint64

	// Passed to the journal by reference, which would make each of them escape.
	lock LockRecord
	hold HoldRecord

	ended *hold // that have ended, and whose records are still in the journal, linked by hold.next

	unstored   []*lock       // of which the journal lacks something
	unstoredAt map[*lock]int // their indices in it
	retry      bool          // RetryJournal was called
}

func (t *Table) markDirty(l *lock) {
	if t.cfg.Journal != nil && !l.isDirty {
		l.isDirty = true
		t.dirty.locks = append(t.dirty.locks, l)
	}
}

func (t *Table) markSessionDirty(s *session) {
	if t.cfg.Journal != nil && !s.isDirty {
		s.isDirty = true
		t.dirty.sessions = append(t.dirty.sessions, s)
	}
}

// writeJournal stores what has changed. The process may die between any two calls, so
// after each of them the journal must be true of what clients were sent:
//   - The last hold number comes before the records that have it.
//   - A session that is not served any more comes before its holds, or a successor would
//     send lease events to its client.
//   - Other sessions come after the holds: their last deadline may have become an earlier
//     one, which is true only of the new records of their holds.
//   - The holds that have ended are deleted first. Then comes each lock with its largest hold
//     number, then its holds; or it is deleted. In between, it has fewer holds than it had or
//     will have: those have ended, or their clients have not been answered.
func (t *Table) writeJournal() {
	j, d := t.cfg.Journal, &t.dirty
	if j == nil {
		return
	}
	if d.lastHoldID != t.lastNum {
		d.lastHoldID = t.lastNum
		j.PutLastHoldID(d.lastHoldID)
	}
	for _, s := range d.sessions {
		if r := s.record(); r.Phase != SessionServing {
			j.PutSession(r)
		}
	}
	for h := d.ended; h != nil; h = d.ended {
		j.DeleteHold(h.slot)
		d.ended = h.next
		t.freeHold(h)
	}
	for i, l := range d.locks {
		l.isDirty = false
		t.writeLock(j, l)
		d.locks[i] = nil
	}
	d.locks = d.locks[:0]
	for d.retry && len(d.unstored) > 0 {
		l := d.unstored[len(d.unstored)-1]
		t.writeLock(j, l)
		_, isMissing := d.unstoredAt[l]
		d.retry = !isMissing // all of them have to be stored, so there is no use in trying others
	}
	d.retry = false
	for i, s := range d.sessions {
		s.isDirty = false
		if r := s.record(); r.Phase == SessionServing {
			j.PutSession(r)
		}
		d.sessions[i] = nil
	}
	d.sessions = d.sessions[:0]
}

// writeLock stores a lock and its holds, or deletes them.
func (t *Table) writeLock(j Journal, l *lock) {
	d := &t.dirty
	isStored := true
	switch {
	case l.hasRemoteState():
		d.lock = LockRecord{Name: l.name, MaxHoldID: l.claim.maxHoldID}
		l.slot = j.PutLock(l.slot, &d.lock)
		isStored = l.slot != 0
		for h := l.holds; h != nil && isStored; h = h.next {
			t.fillRecord(&d.hold, h)
			h.slot = j.PutHold(h.slot, l.slot, &d.hold)
			isStored = h.slot != 0
		}
	case l.slot != 0:
		j.DeleteLock(l.slot)
		l.slot = 0
	}
	d.track(l, isStored)
}

// track has unstored list the lock if, and only if, the journal lacks something of it.
func (d *dirtySet) track(l *lock, isStored bool) {
	i, isMissing := d.unstoredAt[l]
	switch {
	case isStored != isMissing:
	case !isStored:
		if d.unstoredAt == nil {
			d.unstoredAt = make(map[*lock]int)
		}
		d.unstoredAt[l] = len(d.unstored)
		d.unstored = append(d.unstored, l)
	default:
		last := len(d.unstored) - 1
		moved := d.unstored[last]
		d.unstored[i], d.unstoredAt[moved] = moved, i
		d.unstored[last] = nil
		d.unstored = d.unstored[:last]
		delete(d.unstoredAt, l)
	}
}

// Unstored is the number of locks of which the journal lacks something because there was no
// room for it. It is up to date after Effects.
func (t *Table) Unstored() int { return len(t.dirty.unstored) }

// RetryJournal has the next Effects store what found no room, if there is room now.
func (t *Table) RetryJournal() { t.dirty.retry = true }

// hasRemoteState reports whether Redis has, or may yet have, a field or a ticket of this
// sidecar.
func (l *lock) hasRemoteState() bool {
	return l.holds != nil || l.claim.state != claimAbsent || l.claim.isBusy() || l.queue != nil && l.queue.place.phase != placeNone
}

func (t *Table) fillRecord(r *HoldRecord, h *hold) {
	*r = HoldRecord{
		ID: h.id, Token: h.token, Owner: h.owner, Session: h.session.id,
		Granted: h.granted, Deadline: h.deadline, End: h.endAt, KeepUntil: t.keepUntil(h),
		LeaseSeq: h.leaseSeq, LeaseMS: t.remainingLease(h), Entries: h.entries, CrashDelayMS: h.crashDelayMS,
		Permits: h.permits, Lease: h.lease, Mode: h.mode, Phase: h.phase,
		InDoubt: h.lock.claim.state.isUnsure(),
	}
	if h.isOrphan() {
		r.Deadline = t.deadline(h)
	}
}

// Record is what the journal has of a session.
func (t *Table) Record(id SessionID) SessionRecord { return t.sessions[id].record() }

func (s *session) record() SessionRecord {
	r := SessionRecord{ID: s.id, LeaseSent: s.leaseSent, LeaseSeq: s.leaseSeq, Phase: SessionServing}
	if s.phase == SessionGivenUp || s.phase == SessionUnserved {
		r.Phase = s.phase
	}
	return r
}

// Restore makes the table what the table of the journal was when its process died, except
// for the waiters: their clients send their requests again. It comes before any other
// input. Sessions are open and absent. The caller closes those whose clients are dead,
// detaches those that will not come back, and has the clients of the others claim what they
// hold.
//
// What Redis has is not taken for granted: holds are confirmed, and locks without holds are
// dropped, when Redis can be reached.
func (t *Table) Restore(now int64, m *Snapshot) {
	t.lastNum, t.dirty.lastHoldID = m.LastHoldID, m.LastHoldID
	t.wheel.MaxPending = 2*max(t.cfg.MaxLocks, len(m.Locks)) + strayCells
	for _, r := range m.Sessions {
		s := t.open(r.ID, r.Peer)
		s.leaseSent, s.leaseSeq, s.phase = r.LeaseSent, r.LeaseSeq, r.RestoredPhase()
	}
	for i := range m.Locks {
		r := &m.Locks[i]
		l := t.lockFor(r.Name) // t.locks[i]
		l.slot, l.claim.maxHoldID = r.Slot, r.MaxHoldID
		l.claim.state, l.rivals.listeners = claimUncertain, -1
		t.lastNum = max(t.lastNum, r.MaxHoldID)
	}
	gone := make(map[SessionID]*session)
	for i := range m.Holds {
		r := &m.Holds[i]
		if s := t.sessions[r.Session]; s != nil {
			t.restoreHold(now, r, s)
			continue
		}
		if gone[r.Session] == nil {
			gone[r.Session] = &session{id: r.Session}
		}
		if !r.Phase.IsOrphan() {
			r.Phase = HoldGivenUp // no client can come back for it
		}
		t.restoreHold(now, r, gone[r.Session])
	}
	for i := range m.Sessions {
		if s := t.sessions[m.Sessions[i].ID]; len(s.deadlineBuckets) > 0 {
			// From here on, each hold has what was sent of it: leases may be shorter now,
			// and a lease event with less than before still be needed.
			s.leaseSent = t.reachedDeadline(s)
			t.markSessionDirty(s)
		}
	}
	for i := len(t.locks) - 1; i >= 0; i-- {
		t.reconcile(now, t.locks[i])
	}
}

// restoreHold makes a hold what it was. s is its session, or the one that it had.
func (t *Table) restoreHold(now int64, r *RestoredHold, s *session) {
	l := t.locks[r.Lock]
	t.charge(l, s.user)
	l.claim.state = claimRestored
	if r.InDoubt {
		l.claim.state = claimInDoubt
	}
	l.claim.busySince, l.claim.cameAt = r.Granted, now
	t.stats.TakenOver++
	h := t.holds.get()
	*h = hold{
		id: r.ID, token: r.Token, owner: r.Owner, lock: l, session: s, slot: r.Slot, granted: r.Granted,
		deadline: r.Deadline, endAt: r.End, leaseSeq: r.LeaseSeq, entries: r.Entries, leaseMS: r.LeaseMS,
		crashDelayMS: r.CrashDelayMS, permits: r.Permits, lease: r.Lease, mode: r.Mode, phase: r.Phase,
	}
	if r.KeepUntil != 0 {
		h.hasKeep = true
		t.keeps[h.id] = r.KeepUntil
	}
	if h.phase == HoldUnrenewable {
		h.phase = HoldLive // until Redis refuses this process, too
	}
	t.addHold(h)
	if h.isOrphan() {
		l.claim.validUntil = h.deadline
		return
	}
	l.claim.validUntil = t.deadline(h)
	h.deadline, h.leaseSeq = l.claim.validUntil, s.leaseSeq
	if s.phase.IsOver() {
		h.phase = HoldUnserved // the process may have died before this was stored
	}
	if h.isRenewed() {
		h.leaseMS = 0
		l.claim.validUntil = min(l.claim.validUntil, now+validity(t.leaseMS))
	}
	t.linkHold(h)
	t.trackDeadline(h)
}
