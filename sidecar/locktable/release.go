package locktable

import (
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable/claim"
)

// Release ends one entry of a hold. Redis's answer cannot change this one.
func (t *Table) Release(now int64, id SessionID, req protocol.Release) {
	s := t.sessions[id]
	if s == nil {
		return
	}
	h := t.byHold[req.Hold]
	if h == nil {
		t.refuseNotHeld(s, req.ID, req.Hold)
		return
	}
	l := h.lock
	v := t.visit(now, l)
	if t.expireHold(now, h) || h.isOrphan() || h.session != s {
		t.refuseNotHeld(s, req.ID, req.Hold)
	} else {
		h.entries--
		t.touch(h)
		if req.ID != 0 {
			t.emit(Effect{Kind: Released, Session: id, ID: req.ID, Count: h.entries})
		}
		if h.entries == 0 {
			switch {
			case req.CutShort:
				t.emit(Effect{Kind: CutShort, Session: id, Name: l.name, Hold: h.id, IsShared: h.isShared(), Permits: h.permits, Reason: protocol.CutShort, Since: h.granted, Peer: &s.peer})
				t.groupStats(l).Losses[lossIndex(protocol.CutShort)]++
			case h.isLong(now):
				t.emit(Effect{Kind: LongHold, Session: id, Name: l.name, Hold: h.id, IsShared: h.isShared(), Permits: h.permits, Since: h.granted, Count: uint32(l.waiting()), Peer: &s.peer})
			}
			granted := h.granted
			if t.leave(now, h); !l.holders.isHeld() {
				t.linger(v, granted)
			}
		}
	}
	t.reconcile(v)
}

// ForceRelease ends the holds on a name, of any owner, or the one that the request names. The caller has checked that
// the session may.
func (t *Table) ForceRelease(now int64, id SessionID, req protocol.ForceRelease) {
	s := t.sessions[id]
	if s == nil {
		return
	}
	l := t.byName[req.Name]
	num, n := t.forceHolds(now, l, req.Hold)
	switch {
	case n > 0:
		t.emit(Effect{Kind: Forced, Session: id, ID: req.ID, Hold: num, Count: n, Name: req.Name})
	case req.Hold != 0:
		t.refuse(s, req.ID, protocol.NotHeld, "no client of this sidecar has hold %d of %q; it has ended, or is another host's", req.Hold, req.Name)
	default:
		t.refuse(s, req.ID, protocol.NotHeld, "no client of this sidecar holds %q; force it on the host of its holder", req.Name)
	}
	if l != nil {
		t.reconcile(t.visit(now, l))
	}
}

// EndHolds ends the holds that sessions have on a name, or one of them, with reason forced. It returns the largest
// number, and how many there were.
func (t *Table) EndHolds(now int64, name string, hold uint64) (num uint64, n uint32) {
	l := t.byName[name]
	num, n = t.forceHolds(now, l, hold)
	if l != nil {
		t.reconcile(t.visit(now, l))
	}
	return num, n
}

// forceHolds ends the holds on a lock, or one of them, if there are any, and returns the largest number. Those that one step
// may not end, the next ones do. l may be nil. The caller reconciles.
func (t *Table) forceHolds(now int64, l *lock, hold uint64) (num uint64, n uint32) {
	if l == nil {
		return 0, 0
	}
	t.expireHolds(now, l)
	h := l.holders.newest
	if hold != 0 {
		h = t.byHold[hold]
	}
	if h == nil || h.lock != l || hold != 0 && t.expireHold(now, h) {
		return 0, 0
	}
	num, n = h.id, 1
	m := t.manyOf(l)
	if m == nil || hold != 0 {
		t.loseHold(now, h, protocol.ByForce, "")
		return num, n
	}
	n = uint32(len(m.holds) - m.gaps)
	m.forced, m.dueAt = num, now
	t.markDirty(l) // a successor ends what is left of them
	t.expireHolds(now, l)
	return num, n
}

// A release is answered before Redis has executed it. A client that is about to tell
// another host that a lock is free asks for a confirmation: the answer comes when Redis
// has no field of a hold that has ended, so that the other host does not find the lock
// taken by it.

// Confirm is answered when Redis has executed every release of the lock that this
// sidecar has answered. If another local owner has the lock by then, that is so, too: it
// is taken, but not by an ended hold. So it is if the last hold is kept: Redis has it until then.
//
// With Config.Durable, replicas confirm a Drop before the answer, or a Take that found another owner, also of a
// lock that is not known: an earlier Drop of it, perhaps of a predecessor, may be one that no replica confirmed.
func (t *Table) Confirm(now int64, id SessionID, req protocol.Confirm) {
	s := t.sessions[id]
	if s == nil || s.phase.IsOver() {
		return
	}
	l := t.byName[req.Name]
	if l == nil && !t.cfg.Durable {
		t.emit(Effect{Kind: Confirmed, Session: id, ID: req.ID})
		return
	}
	why := t.noRoomToWait(s)
	if l == nil && why == "" {
		why = t.noRoomForName(now, s.user, req.Name)
	}
	if why != "" {
		t.refuse(s, req.ID, protocol.Limit, "%s", why)
		return
	}
	if l == nil {
		l = t.lockFor(req.Name)
		t.charge(l, s.user)
	}
	q := t.needQueue(l)
	if t.cfg.Durable && !l.holders.isHeld() && l.claim.State() == claim.Absent && !l.claim.IsBusy() {
		t.doubt(l)
	}
	q.confirms = append(q.confirms, confirm{s.id, s.user, req.ID})
	if s.confirms == nil {
		s.confirms = make(map[uint64]struct{})
	}
	s.confirms[req.ID] = struct{}{}
	t.waiting++
	s.user.waiters++
	t.reconcile(t.visit(now, l))
}
