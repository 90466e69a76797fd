package locktable

import "github.com/locksidecar/locksidecar/protocol"

// A release is answered before Redis has executed it. A client that is about to tell
// another host that a lock is free asks for a confirmation: the answer comes when Redis
// has no field of a hold that has ended, so that the other host does not find the lock
// taken by it.

// confirm is a confirmation that was asked for. It stays when its session has ended, and
// counts as a waiter of its user, so that no user can have more of them than it may have
// of those.
type confirm struct {
	session SessionID
	user    *user
	id      uint64
}

// Confirm is answered when Redis has executed every release of the lock that this
// sidecar has answered. If another local owner has the lock by then, that is so, too: it
// is taken, but not by an ended hold. So it is if the last hold is kept: Redis has it until then.
func (t *Table) Confirm(now int64, id SessionID, req protocol.Confirm) {
	s := t.sessions[id]
	if s == nil || s.phase.IsOver() {
		return
	}
	l := t.byName[req.Name]
	if l == nil {
		t.emit(Effect{Kind: Confirmed, Session: id, ID: req.ID})
		return
	}
	if why := t.noRoomToWait(s); why != "" {
		t.refuse(s, req.ID, protocol.Limit, "%s", why)
		return
	}
	q := t.needQueue(l)
	q.confirms = append(q.confirms, confirm{s.id, s.user, req.ID})
	if s.confirms == nil {
		s.confirms = make(map[uint64]struct{})
	}
	s.confirms[req.ID] = struct{}{}
	t.waiting++
	s.user.waiters++
	t.reconcile(now, l)
}

// answerConfirms answers those who asked for a confirmation: that Redis has no ended
// hold, or that it refuses the release. Those that one step may not answer, Work does.
func (t *Table) answerConfirms(l *lock) {
	q := l.queue
	if q == nil || q.refusal == "" && l.holds == nil && (l.claim.state != claimAbsent || l.claim.isBusy()) {
		return
	}
	n := min(len(q.confirms), t.cfg.MaxWork)
	for _, c := range q.confirms[:n] {
		switch s := t.endConfirm(c); {
		case s == nil:
		case q.refusal != "":
			t.refuse(s, c.id, protocol.Denied, "the lock is released here, and its lease ends in Redis, but Redis refused the release: %s", q.refusal)
		case !s.phase.IsOver():
			t.emit(Effect{Kind: Confirmed, Session: s.id, ID: c.id})
		}
	}
	if q.confirms = q.confirms[n:]; len(q.confirms) > 0 {
		t.deferReconcile(l)
		return
	}
	q.confirms, q.refusal = nil, ""
}

// endConfirm counts a confirmation no more, and returns its session if there still is one.
func (t *Table) endConfirm(c confirm) *session {
	t.waiting--
	c.user.waiters--
	s := t.sessions[c.session]
	if s == nil {
		t.forgetIfIdle(c.user)
		return nil
	}
	delete(s.confirms, c.id)
	return s
}

// dropConfirms forgets what was asked for, without an answer.
func (t *Table) dropConfirms(l *lock) {
	if q := l.queue; q != nil {
		for _, c := range q.confirms {
			t.endConfirm(c)
		}
		q.confirms, q.refusal = nil, ""
	}
}
