package locktable

import (
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Downgrade makes an exclusive hold of a read/write lock a shared one, with all its entries. No writer gets the lock in between,
// and readers that wait get it, on this host at once.
func (t *Table) Downgrade(now int64, id SessionID, req protocol.Downgrade) {
	s := t.sessions[id]
	if s == nil {
		return
	}
	h := t.byHold[req.Hold]
	if h == nil {
		t.refuseNotHeld(s, req.ID, req.Hold)
		return
	}
	v := t.visit(now, h.lock)
	switch {
	case t.expireHold(now, h) || h.isOrphan() || h.session != s:
		t.refuseNotHeld(s, req.ID, req.Hold)
	case h.lock.kind() != redisop.KindReadWrite:
		t.refuse(s, req.ID, protocol.BadRequest, "hold %d is of %s; only an exclusive hold of a read/write lock can be downgraded", req.Hold, h.lock.kind().Noun())
	case h.mode != Exclusive:
		t.refuse(s, req.ID, protocol.BadRequest, "hold %d is shared already", req.Hold)
	default:
		h.mode = Shared
		t.touch(h)
		t.beginReadPhase(h.lock)
		v.onChange()
		t.emit(Effect{Kind: Downgraded, Session: id, ID: req.ID, Hold: h.id, Deadline: t.deadline(h)})
	}
	t.reconcile(v)
}
