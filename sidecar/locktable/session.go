package locktable

import "math"

// SessionID names a session; the caller never reuses one.
type SessionID uint64

// Peer is what operators see of the process behind a session.
type Peer struct {
	PID, UID int64
	Cmd      string
	Client   string
}

// SessionPhase is where a session is in its life. The table and its caller have the same
// phases; what only one of them can tell apart is marked. The journal has it, like Mode.
//
//	restored            Open
//	   ▼                 │
//	absent ──Resume──▶ claiming ──last claim──▶ serving ──bye──▶ leaving ──▶ ended
//	   │  ◀─connection──┘                       │    │                        ▲
//	   │       ended                            │    └─process ended──▶ draining
//	   │ it does not come back                  │ it breaks the protocol      ▲
//	   ▼                                        ▼                             │
//	givenUp                                 unserved ─────────────────────────┘
//	   └───────────────its process ended, or it holds nothing─────────────────┘
type SessionPhase uint8

const (
	// SessionServing: its client is connected, or the sidecar has not noticed that it is
	// not. Its watchdog holds are renewed.
	SessionServing SessionPhase = iota

	// SessionAbsent: it is from the journal, and its client has not come back since the
	// restart. Its watchdog holds are renewed.
	SessionAbsent

	// SessionClaiming: its client is back, and has not claimed all its holds yet.
	SessionClaiming

	// SessionLeaving (the caller's): its client said bye, and is answered at the end of the
	// step.
	SessionLeaving

	// SessionDraining (the caller's): its process ended, and what it sent last is being read.
	SessionDraining

	// SessionGivenUp: its client did not come back. Its holds are not renewed.
	SessionGivenUp

	// SessionUnserved: its client broke the protocol, but lives. Its holds are not renewed.
	SessionUnserved

	// SessionEnded: its client died, or left. Its holds are released, each after its crash
	// delay.
	SessionEnded
)

// IsOver reports whether the session is not served any more.
func (p SessionPhase) IsOver() bool { return p >= SessionGivenUp }

// IsAway reports whether the session's client has not claimed its holds since a restart.
func (p SessionPhase) IsAway() bool { return p == SessionAbsent || p == SessionClaiming }

// session is one client: its holds, its requests, and what it was sent about its
// watchdog deadlines.
type session struct {
	id    SessionID
	peer  Peer
	user  *user
	terms *Terms // nil: the policy says nothing about it
	phase SessionPhase

	isSweeping bool // in Table.sweeping
	isDirty    bool // in dirtySet.sessions

	endedAt int64

	holds    list[hold]
	confirms map[uint64]struct{} // ids of its confirms that are not answered; nil: it has sent none

	requests map[uint64]*request       // by id
	byAge    list[request]             // the same in the order of their arrival
	owners   map[uint64]*list[request] // the same by owner, without those of owner 0

	leaseEvents
}

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
	s.user = t.userOf(p.UID)
	s.user.sessions++
	t.sessions[id] = s
	return s
}

func (s *session) addRequest(r *request) {
	s.requests[r.id] = r
	s.byAge.push(r, inSession)
	if r.owner != 0 {
		if s.owners[r.owner] == nil {
			s.owners[r.owner] = new(list[request])
		}
		s.owners[r.owner].push(r, ofOwner)
	}
	s.user.waiters++
	s.countWaiter(r.at.lock.name, 1)
}

func (s *session) removeRequest(r *request) {
	delete(s.requests, r.id)
	s.byAge.remove(r, inSession)
	if r.owner != 0 {
		own := s.owners[r.owner]
		if own.remove(r, ofOwner); own.len == 0 {
			delete(s.owners, r.owner)
		}
	}
	s.user.waiters--
	s.countWaiter(r.at.lock.name, -1)
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
	if !s.isSweeping && t.sweep(now, s, t.cfg.MaxWork) == 0 {
		s.isSweeping = true
		t.sweeping = append(t.sweeping, s)
	}
}

// sweep takes a session's requests away, and reconciles the locks that it holds, so that
// expireHold sees that it is over: at most so many. It returns how many of those are left
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
		t.reconcile(now, r.at.lock)
	}
	if s.phase != SessionEnded {
		for h := s.holds.head; h != nil && most > 1; most-- {
			next := h.inSession.next
			t.reconcile(now, h.lock)
			h = next
		}
		return max(most, 1)
	}
	for s.holds.head != nil {
		if most == 0 {
			return 0
		}
		most--
		t.reconcile(now, s.holds.head.lock)
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
