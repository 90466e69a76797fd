package locktable

import (
	"github.com/locksidecar/locksidecar/sidecar/locktable/claim"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

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
		l.slot = r.Slot
		l.setKind(r.Kind)
		l.claim.RestoreLock(r.MaxHoldID)
		l.memory.ForgetSubscribers()
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
	for l, many := range t.many { // in any order: none depends on another
		many.sort(l)
	}
	for i := range m.Locks {
		if many := t.manyOf(t.locks[i]); many != nil && m.Locks[i].Forced != 0 {
			many.forced, many.dueAt = m.Locks[i].Forced, now
		}
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
		t.reconcile(t.visit(now, t.locks[i]))
	}
}

// restoreHold makes a hold what it was. s is its session, or the one that it had.
func (t *Table) restoreHold(now int64, r *RestoredHold, s *session) {
	l := t.locks[r.Lock]
	t.charge(l, s.user)
	t.stats.TakenOver++
	h := t.holds.get()
	*h = hold{
		id: r.ID, token: r.Token, owner: r.Owner, lock: l, session: s, slot: r.Slot, granted: r.Granted,
		deadline: r.Deadline, endAt: r.End, leaseSeq: r.LeaseSeq, entries: r.Entries, leaseMS: r.LeaseMS,
		crashDelayMS: r.CrashDelayMS, lease: r.Lease, mode: r.Mode, phase: r.Phase,
	}
	if l.kind() == redisop.KindPermits {
		h.permits = r.Permits
	}
	if r.KeepUntil != 0 {
		h.hasKeep = true
		t.keeps[h.id] = r.KeepUntil
	}
	if h.phase == HoldUnrenewable {
		h.phase = HoldLive // until Redis refuses this process, too
	}
	t.addHold(h, r.Capacity)
	if h.isOrphan() {
		l.claim.RestoreHold(now, r.Granted, h.deadline, r.InDoubt)
		if m := t.manyOf(l); m != nil && h.isRenewed() {
			m.validUntil = max(m.validUntil, h.deadline)
		}
		return
	}
	h.deadline, h.leaseSeq = t.deadline(h), s.leaseSeq
	m := t.manyOf(l)
	if m != nil {
		m.latest = max(m.latest, h.deadline) // it may be from a longer lease
	}
	until := h.deadline
	if s.phase.IsOver() {
		t.setPhase(h, HoldUnserved) // the process may have died before this was stored
	}
	if h.isRenewed() {
		h.leaseMS = 0
		until = min(until, now+claim.Validity(t.leaseMS))
		if m != nil {
			m.validUntil = max(m.validUntil, until)
		}
	}
	l.claim.RestoreHold(now, r.Granted, until, r.InDoubt)
	t.linkHold(h)
	t.trackDeadline(h)
}
