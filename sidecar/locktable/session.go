package locktable

import "math"

// Open begins a session.
func (t *Table) Open(_ int64, id SessionID, p Peer) { t.open(id, p) }

func (t *Table) open(id SessionID, p Peer) *session {
	s := &session{
		id:       id,
		peer:     p,
		requests: make(map[uint64]*request),
		owners:   make(map[uint64]*list[request]),
		leaseEvents: leaseEvents{
			deadlineBuckets: make(map[int64]int32),
			minBucket:       math.MaxInt64,
			minUncovered:    math.MaxInt64,
		},
	}
	s.timer.Value = s
	s.user = t.userOf(p.UID)
	s.user.sessions++
	t.sessions[id] = s
	return s
}

// Close ends a session because its client died: its requests vanish without an answer,
// its holds are released, each after its crash delay. What is left of a large session is
// done in Work. Closed follows when nothing is.
func (t *Table) Close(now int64, id SessionID) {
	s := t.sessions[id]
	if s == nil {
		return
	}
	delete(t.sessions, id)
	s.user.sessions--
	s.phase, s.endedAt = SessionEnded, now
	t.startSweep(now, s)
}

// Suspend ends the service to a client that lives but misbehaves, or that does not come
// back: its requests vanish, its holds stay, unrenewed, until their deadlines. Close
// releases them earlier.
func (t *Table) Suspend(now int64, id SessionID) {
	s := t.sessions[id]
	if s == nil || s.phase.IsOver() {
		return
	}
	if s.phase.IsAway() {
		s.phase = SessionGivenUp
	} else {
		s.phase = SessionUnserved
	}
	t.markSessionDirty(s)
	t.startSweep(now, s)
}

// startSweep does what the end of a session asks of its requests and holds, or leaves it
// for Work.
func (t *Table) startSweep(now int64, s *session) {
	t.now = now
	if !s.timer.Pending() && t.sweep(now, s, t.cfg.MaxWork) == 0 {
		t.wheel.Defer(&s.timer)
	}
}

// due has Work do a part of what the end of the session asks, and the rest after the others in the
// backlog.
func (s *session) due(t *Table, now int64) {
	left := t.sweep(now, s, t.budget)
	if left == 0 {
		t.wheel.Defer(&s.timer)
	}
	t.budget = min(t.budget, left)
}

// sweep takes a session's requests away, and reconciles the locks that it holds, so that
// expire sees that it is over: at most so many. It returns how many of those are left
// over; 0: there may be more to do.
//
// Of a session that is not served each hold ends by its timer. It is only reconciled now if
// that is quick.
func (t *Table) sweep(now int64, s *session, most int) (left int) {
	for s.byAge.head != nil {
		if most == 0 {
			return 0
		}
		most--
		r := s.byAge.head
		t.abandon(r)
		t.reconcile(t.visit(now, r.at.lock))
	}
	if s.phase != SessionEnded {
		for h := s.holds.head; h != nil && most > 1; most-- {
			next, l := h.inSession.next, h.lock
			t.expireHold(now, h)
			if next == nil || next.lock != l || most == 2 { // it ends all holds of the lock that are over
				t.reconcile(t.visit(now, l))
			}
			h = next
		}
		return max(most, 1)
	}
	for s.holds.head != nil {
		if most == 0 {
			return 0
		}
		most--
		l := s.holds.head.lock
		t.expireHold(now, s.holds.head)
		t.reconcile(t.visit(now, l))
	}
	if most == 0 {
		return 0
	}
	t.forgetIfIdle(s.user)
	t.emit(Effect{Kind: Closed, Session: s.id})
	return most
}

// InUse reports whether the session has a request with this id that is not answered yet.
// Only an acquire and a confirm are not answered at once.
func (t *Table) InUse(id SessionID, request uint64) bool {
	s := t.sessions[id]
	if s == nil || len(s.requests)+len(s.confirms) == 0 {
		return false
	}
	_, confirms := s.confirms[request]
	return confirms || s.requests[request] != nil
}
