package sim

import (
	"github.com/locksidecar/locksidecar/internal/sim/invariant"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// Clients that have lost their sidecar. They return and claim what they have, or do not.
//
// A client knows what it was sent: it reads frames that were written to its socket even if
// the sidecar is dead. What it sent itself may not have been read. The journal of the
// sidecar may be ahead of both, never behind.

// link is the state of a client's connection to its sidecar.
type link uint8

const (
	connected    link = iota
	disconnected      // the connection ended with the sidecar
	claiming          // the client has resumed its session, and has not claimed everything
)

// clientState is what a client knows of its session that has lost its sidecar, and what the
// loop of its sidecar knows of it.
type clientState struct {
	link             link
	resumable        bool
	restored         bool // the session is in the table, and was not resumed
	willNotReturn    bool
	diesBeforeReturn bool
	diedWhileDown    bool // its process ended while no sidecar ran
	closedBySidecar  bool // there was nothing to return for
	claimSent        bool // a claim has no answer
	lastClaim        bool // it is, or was, the last one
	pages            int
	beliefs          []belief
	resend           []request // acquires that were not answered
	surplus          []protocol.ClaimedHold
}

// belief is a hold as a client knows it that has lost its sidecar.
type belief struct {
	name    int8
	claimed bool
	gone    bool // its host knows that it is lost, and could not send that
	reason  protocol.Reason
	life    int // which process of the sidecar knows
	hold    hold
}

// belief returns the index of a belief, or -1.
func (s *session) belief(num uint64) int {
	for i := range s.beliefs {
		if s.beliefs[i].hold.num == num {
			return i
		}
	}
	return -1
}

func (s *session) removeBelief(i int) { s.beliefs = append(s.beliefs[:i], s.beliefs[i+1:]...) }

// giveUp has a client that is not connected stop believing in a hold.
func (w *world) giveUp(h *host, s *session, i int) {
	b := &s.beliefs[i]
	if c := &h.locks[b.name].hold; c.num == b.hold.num && c.state == away {
		c.state = unbelieved
		w.believed--
	}
	s.removeBelief(i)
}

// resetClient forgets everything that only a client without its sidecar has.
func (w *world) resetClient(s *session) {
	w.waiting -= len(s.resend)
	s.clientState = clientState{}
}

// disconnect ends the connection between a client and its sidecar.
func (w *world) disconnect(h *host, s *session) {
	was := s.link
	s.link, s.claimSent, s.lastClaim = disconnected, false, false
	for i := range s.beliefs {
		s.beliefs[i].claimed = false
	}
	if was == disconnected {
		return
	}
	w.disconnectPermits(h, s.id)
	if was == connected {
		for n := range w.plan.names {
			c := &h.locks[n].hold
			if c.state != live || c.session != s.id {
				continue
			}
			if w.phase == faulty && w.random.oneIn(8) {
				w.check.meet(ReleaseNotReceived)
				until := c.keptUntil
				w.endHold(h, n)
				c.state, c.keptUntil = unbelieved, until
				continue
			}
			c.restored = true
			s.beliefs = append(s.beliefs, belief{name: int8(n), hold: *c})
			c.state = away
		}
		for i := range s.requests {
			q := &s.requests[i]
			if q.kind != reqAcquire && q.kind != reqPermits {
				continue
			}
			canceled := false
			for j := range s.requests {
				canceled = canceled || s.requests[j].kind == reqCancel && s.requests[j].target == q.id
			}
			if !canceled {
				s.resend = append(s.resend, *q)
				w.waiting++
			}
		}
		w.dropRequests(h, s)
	}
	s.diesBeforeReturn = w.random.oneIn(8)
	back := w.random.magnitude(ms, max(w.plan.returnTime, 2*ms))
	if w.phase != faulty {
		back = w.random.between(ms, 100*ms)
	}
	w.after(back, event{kind: evReturn, host: int16(h.index), arg: int32(slotOf(s.id)), gen: s.gen})
}

// comesBack has a client try to resume its session.
func (w *world) comesBack(h *host, s *session, e event) {
	if s.gen != e.gen || s.link != disconnected || s.diedWhileDown || s.willNotReturn || h.process == abandoned {
		return
	}
	switch {
	case s.diesBeforeReturn && w.phase == faulty:
		w.die(h, s)
	case h.process != serving:
		w.after(w.random.between(ms, 300*ms), e)
	case s.closedBySidecar:
		w.drainDeferred(h)
		w.check.meet(NewSessionAfterReturn)
		resend := s.resend
		w.detachPermits(h, s.id) // of what its sidecar does not know it
		w.open(h, int(e.arg))
		s.resend = resend
		w.resendAll(h, s)
	case w.phase == faulty && w.random.oneIn(12):
		s.willNotReturn = true
		w.after(w.random.magnitude(h.lease/2, 3*h.longest), event{kind: evAbandon, host: e.host, arg: e.arg, gen: e.gen})
	default:
		w.drainDeferred(h)
		if w.trace.on {
			w.trace.add(w, -1, h, "s%d comes back", s.id)
		}
		s.link, s.lastClaim, s.pages = claiming, false, 0
		h.table.Resume(s.id, peer(int(e.arg)))
		h.journal.open(h.table.Record(s.id), peer(int(e.arg)))
		w.drain(h)
		w.after(w.random.below(20*ms), event{kind: evClaim, host: e.host, arg: e.arg, gen: e.gen})
	}
}

// die ends the process of a client that is not connected.
func (w *world) die(h *host, s *session) {
	switch {
	case s.closedBySidecar:
		w.closePermits(h, s.id)
		w.resetClient(s)
	case h.process != serving:
		if w.trace.on {
			w.trace.add(w, -1, h, "the process of s%d ends", s.id)
		}
		w.check.meet(ClientDiedWhileDown)
		for len(s.beliefs) > 0 {
			w.giveUp(h, s, 0)
		}
		w.closePermits(h, s.id)
		w.waiting -= len(s.resend)
		s.resend = nil
		s.diedWhileDown = true
		return // its session is closed when its sidecar is back
	default:
		w.drainDeferred(h)
		w.close(h, s)
	}
	w.after(w.pause(), reopen(h, s.id))
}

// onAbandon has a sidecar stop waiting for a client.
func (w *world) onAbandon(h *host, s *session, e event) {
	if s.gen != e.gen || s.link != disconnected || !s.willNotReturn || h.process == abandoned {
		return
	}
	if h.process != serving {
		w.after(h.lease, e)
		return
	}
	w.drainDeferred(h)
	w.check.meet(ClientAbandoned)
	if w.phase != faulty {
		w.close(h, s)
		return
	}
	w.detach(h, s)
	w.schedule(h, s, w.random.magnitude(ms, 2*h.lease))
}

// claimNext has a client claim the next page of its holds, unless it is disconnected or
// dies first.
func (w *world) claimNext(h *host, s *session, e event) {
	if s.gen != e.gen || s.link != claiming || h.isDown() {
		return
	}
	w.drainDeferred(h)
	if w.phase == faulty {
		switch w.random.below(24) {
		case 0, 1:
			w.check.meetIf(DisconnectedInClaim, s.pages > 0)
			w.disconnect(h, s)
			return
		case 2:
			w.check.meet(DiedInClaim)
			w.die(h, s)
			return
		case 3:
			if w.plan.crashes > 0 {
				w.check.meetIf(KilledInClaim, s.pages > 0)
				w.crash(h)
				return
			}
		}
	}
	w.claimPage(h, s)
}

func (w *world) claimPage(h *host, s *session) {
	if s.claimSent {
		return
	}
	now := h.clock(w.now)
	w.dropBeliefs(h, s, now)
	s.lastID++
	req := protocol.Claim{ID: s.lastID}
	room := int(w.random.between(0, 2))
	for i := range s.beliefs {
		b := &s.beliefs[i]
		if b.claimed {
			continue
		}
		if room--; room < 0 {
			req.More = true
			break
		}
		b.claimed = true
		req.Holds = append(req.Holds, b.hold.claim())
	}
	req.More = w.claimPermits(h, s, max(room, 0), &req) || req.More
	req.More = req.More || w.random.oneIn(4)
	s.claimSent, s.lastClaim = true, !req.More
	if s.pages++; s.pages == 2 {
		w.check.meet(ClaimedInPages)
	}
	if w.trace.on {
		w.trace.add(w, -1, h, "s%d claims id=%d %v more=%v", s.id, req.ID, req.Holds, req.More)
	}
	if fault := h.table.Claim(now, s.id, &req); fault != "" {
		w.violation(invariant.ResumedSession, -1, "host %d refuses a claim of session %d: %s; it claims %v", h.index, s.id, fault, req.Holds)
	}
	w.drain(h)
	if h.dying {
		return
	}
	if s.link == claiming {
		if s.claimSent {
			w.violation(invariant.AnswersInTime, -1, "the claim %d of session %d is not answered", req.ID, s.id)
		}
		pause := w.random.magnitude(10*µs, 200*ms)
		if w.phase == faulty && w.random.oneIn(3) {
			pause = w.random.between(ms, 2*h.lease)
		}
		w.after(pause, event{kind: evClaim, host: int16(h.index), arg: int32(slotOf(s.id)), gen: s.gen})
		return
	}
	w.releaseSurplus(h, s, now)
	w.resendAll(h, s)
}

// dropBeliefs has a client stop believing in some of the holds that it has not claimed, or
// in some of their entries.
func (w *world) dropBeliefs(h *host, s *session, now int64) {
	for i := 0; i < len(s.beliefs); {
		b := &s.beliefs[i]
		if !b.claimed && (b.hold.isOver(now) || w.phase == faulty && w.random.oneIn(12)) {
			w.giveUp(h, s, i)
			continue
		}
		if !b.claimed && b.hold.count > 1 && w.random.oneIn(4) { // it was released once meanwhile
			w.check.meet(ClaimedFewerEntries)
			b.hold.count--
			if c := &h.locks[b.name].hold; c.num == b.hold.num && c.state == away {
				c.count--
			}
		}
		i++
	}
}

func (c *hold) claim() protocol.ClaimedHold {
	return protocol.ClaimedHold{Hold: c.num, Entries: c.count}
}

// releaseSurplus releases what a client has claimed, and has stopped believing in before
// the answer came.
func (w *world) releaseSurplus(h *host, s *session, now int64) {
	for _, c := range s.surplus {
		for range c.Entries {
			if w.trace.on {
				w.trace.add(w, -1, h, "s%d releases %d, which it has given up", s.id, c.Hold)
			}
			h.table.Release(now, s.id, protocol.Release{Hold: c.Hold})
			w.drain(h)
		}
	}
	for n := range w.plan.names {
		if c := &h.locks[n].hold; len(s.surplus) > 0 && c.session == s.id && c.state == unbelieved {
			w.leaveHold(h, n)
		}
	}
	s.surplus = nil
}

// onClaimed judges the answer to a claim.
func (w *world) onClaimed(h *host, e *locktable.Effect) {
	s := w.sessionOf(h, e)
	if s.link != claiming || s.detached || !s.claimSent || e.ID != s.lastID || e.IsLast != s.lastClaim {
		w.violation(invariant.ResumedSession, -1, "session %d gets the answer that its claim %d is done (last: %v)", s.id, e.ID, e.IsLast)
	}
	for i := range s.beliefs {
		if b := &s.beliefs[i]; b.claimed && b.gone {
			w.violation(invariant.ResumedSession, int(b.name), "session %d claimed hold %d, which is gone, and is not notified", s.id, b.hold.num)
		}
	}
	s.claimSent = false
	if !e.IsLast {
		return
	}
	now := h.clock(w.now)
	for n := range w.plan.names {
		c := &h.locks[n].hold
		if c.session != s.id || c.state != away && c.state != unbelieved {
			continue
		}
		row, _ := h.table.Info(now, lockNames[n])
		if c.state == unbelieved {
			if row.State == protocol.StateHeld && row.Hold == c.num && !row.Orphan {
				w.violation(invariant.ResumedSession, n, "session %d did not claim hold %d, and still has it", s.id, c.num)
			}
			w.check.meet(UnclaimedHold)
			w.leaveHold(h, n)
			continue
		}
		if row.Hold != c.num || row.Count != c.count || row.Token != c.token || row.Absent {
			w.violation(invariant.ResumedSession, n, "session %d claimed hold %d with %d entries, token %d; it has %+v", s.id, c.num, c.count, c.token, row)
		}
		w.check.meet(ClaimedHold)
		if c.isOver(now) { // between the claim and its answer its client stopped believing
			w.check.meet(ExpiredInClaim)
			c.state = unbelieved
			w.believed--
			s.surplus = append(s.surplus, c.claim())
			continue
		}
		c.state = live
	}
	w.onPermitsClaimed(h, s)
	s.link, s.restored = connected, false
	s.beliefs = nil
	w.schedule(h, s, w.pause())
}

// resendAll sends the acquires again that were not answered, in their former order.
func (w *world) resendAll(h *host, s *session) {
	now := h.clock(w.now)
	for len(s.resend) > 0 && !h.isDown() {
		q := s.resend[0]
		s.resend = s.resend[1:]
		w.waiting--
		if q.acquire.WaitMS > 0 {
			if q.acquire.WaitMS = (q.arrived + q.acquire.WaitMS*ms - now) / ms; q.acquire.WaitMS <= 0 {
				continue
			}
		}
		if q.kind == reqPermits {
			w.check.meet(PermitsResent)
			w.sendPermits(h, s, q.acquire, q.permits, q.of)
		} else {
			w.check.meet(AcquireResent)
			w.sendAcquire(h, s, int(q.name), q.acquire)
		}
		if w.phase == faulty && w.plan.crashes > 0 && w.random.oneIn(50) {
			w.crash(h)
		}
	}
}

// noteLost notes that a hold in which a client believes is lost. received: the client gets
// the event.
func (w *world) noteLost(h *host, s *session, n int, e *locktable.Effect, received bool) {
	i := s.belief(e.Hold)
	switch {
	case received && s.link == connected:
	case received:
		if i < 0 || !s.beliefs[i].claimed {
			w.violation(invariant.ResumedSession, n, "session %d is notified that it lost hold %d before it has claimed it", s.id, e.Hold)
		}
		w.check.meet(LostInClaim)
		s.removeBelief(i)
	default:
		if i < 0 {
			i = len(s.beliefs)
			s.beliefs = append(s.beliefs, belief{name: int8(n), hold: h.locks[n].hold})
		}
		b := &s.beliefs[i]
		b.gone, b.reason, b.life = true, e.Reason, h.life
	}
}

// onForgotten judges the event that a claimed hold is gone.
func (w *world) onForgotten(h *host, s *session, e *locktable.Effect) {
	if w.onPermitsForgotten(h, s, e) {
		return
	}
	i := s.belief(e.Hold)
	if s.link != claiming || i < 0 || !s.beliefs[i].claimed {
		w.violation(invariant.ResumedSession, -1, "session %d is notified that hold %d is forgotten, and did not claim it", s.id, e.Hold)
	}
	b := &s.beliefs[i]
	if !b.gone {
		w.violation(invariant.ResumedSession, int(b.name), "hold %d of session %d was neither released nor lost, and is forgotten", e.Hold, s.id)
	}
	reason := protocol.Forgotten
	if b.life == h.life {
		reason = b.reason // the loop knows
	}
	w.check.lost[reason]++
	w.check.meet(ClaimedLost)
	s.removeBelief(i)
}
