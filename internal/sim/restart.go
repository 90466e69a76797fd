package sim

import (
	"time"

	"github.com/locksidecar/locksidecar/internal/sim/invariant"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// Sidecars that are killed, or stop, and are started again on the same host.

// crash kills a sidecar with -9, between any two instructions.
func (w *world) crash(h *host) {
	if w.trace.on {
		w.trace.add(w, -1, h, "kill -9")
	}
	h.dying = true
	inputs := h.undrained
	last := w.random.below(4)
	if s := &h.sessions[w.random.below(int64(len(h.sessions)))]; w.plan.forces && s.open && !s.detached && h.process == serving && s.link == connected && w.random.oneIn(3) {
		h.dying = false
		w.drainDeferred(h)
		h.dying = true
		if w.plan.permits > 0 && w.permits.random.oneIn(2) {
			w.forcePermits(h, s)
		} else {
			w.forceRelease(h, s)
		}
		inputs, last = true, 0
	}
	for ; last > 0; last-- {
		s := &h.sessions[w.random.below(int64(len(h.sessions)))]
		switch {
		case s.open && s.willNotReturn && s.restored && h.process == serving:
			h.detaching = true
			h.table.Suspend(h.clock(w.now), s.id)
		case !s.open || s.detached || h.process == stopping || s.link == disconnected:
			continue
		case s.link == claiming:
			w.claimPage(h, s)
		case last == 1 && w.random.oneIn(2):
			w.acquire(h, s)
		default:
			if n := w.findHeld(h, s); n >= 0 {
				w.release(h, s, n)
			}
		}
		inputs = true
	}
	switch w.random.below(4) {
	case 0:
		w.check.meetIf(KilledBeforeJournal, inputs)
	case 1:
		h.journal.writes = int(w.random.between(1, 8))
		effects := h.table.Effects()
		w.check.meetIf(KilledInJournal, h.journal.writes == killed)
		h.journal.writes = immortal
		for i := range effects {
			w.dropEffect(h, &effects[i])
		}
	default:
		w.applySome(h)
	}
	h.dying, h.undrained = false, false
	w.check.forcing = 0
	w.end(h)
}

// applySome carries out a part of the effects: the process is killed while it gives its
// operations to one writer, and its frames to others.
func (w *world) applySome(h *host) {
	effects := h.table.Effects()
	h.journal.run, h.journal.floor = h.conns[0].run, h.raised
	ops := int64(0)
	for i := range effects {
		ops += int64(btoi(effects[i].Kind == locktable.Redis))
	}
	left := w.random.below(ops + 1)
	if w.random.oneIn(2) {
		left = ops
	}
	var cut [256]bool // sessions that get no more
	all := w.random.oneIn(4)
	dropped := 0
	for i := range effects {
		e := &effects[i]
		switch e.Kind {
		case locktable.Redis:
			if left--; left >= 0 {
				w.apply(h, e)
			} else {
				dropped++
			}
		case locktable.Subscribe, locktable.Unsubscribe, locktable.Closed:
		default:
			slot := slotOf(e.Session)
			if cut[slot] = cut[slot] || all || w.random.oneIn(3); cut[slot] {
				dropped++
				w.dropEffect(h, e)
			} else {
				w.apply(h, e)
			}
		}
	}
	w.giveOps(h)
	w.check.meetIf(KilledInEffects, dropped > 0)
}

// dropEffect drops an effect that is in the journal: no client gets it.
func (w *world) dropEffect(h *host, e *locktable.Effect) {
	if w.trace.on && e.Kind != locktable.Redis {
		w.trace.effect(w, h, e)
		w.trace.add(w, -1, h, "     (which no client gets)")
	}
	switch e.Kind {
	case locktable.Lost:
		w.onLost(h, w.sessionOf(h, e), e, false)
	case locktable.Forced:
		for n := range w.plan.names {
			if c := &h.locks[n].hold; c.num == e.Hold && c.state == orphaned {
				w.endHold(h, n)
			}
		}
	case locktable.Refusal:
		w.noteUnheard(h, e)
	case locktable.Granted:
		w.noteUnheard(h, e)
		w.check.meet(GrantNotReceived)
	}
}

// noteUnheard notes that a request waits no more, to the sidecar that is being killed.
func (w *world) noteUnheard(h *host, e *locktable.Effect) {
	s := &h.sessions[slotOf(e.Session)]
	if s.id != e.Session {
		return
	}
	for i := range s.requests {
		if q := &s.requests[i]; q.id == e.ID && (q.kind == reqAcquire || q.kind == reqPermits) {
			q.isUnheard = true
		}
	}
}

// stop stops a sidecar in order: requests that it has read are done, no client is kept
// waiting, and locks that are released are released in Redis while there is time.
func (w *world) stop(h *host) {
	w.drainDeferred(h)
	if w.trace.on {
		w.trace.add(w, -1, h, "stop")
	}
	h.process = stopping
	now := h.clock(w.now)
	for i := range h.sessions {
		if s := &h.sessions[i]; s.open && !s.detached {
			w.disconnect(h, s)
		}
	}
	h.table.DropWaiters(now)
	w.drain(h)
	for i := range h.sessions { // requests that were read before
		s := &h.sessions[i]
		for j := 0; j < len(s.beliefs); {
			b := s.beliefs[j]
			if s.restored || b.gone || !w.random.oneIn(4) {
				j++
				continue
			}
			w.giveUp(h, s, j)
			for range b.hold.count {
				h.table.Release(now, s.id, protocol.Release{Hold: b.hold.num})
				w.drain(h)
			}
		}
	}
	w.after(w.random.magnitude(ms, 2*sec), event{kind: evExit, host: int16(h.index), gen: uint32(h.life)})
}

func (w *world) exit(h *host) {
	w.drainDeferred(h)
	w.check.meet(Stopped)
	if w.trace.on {
		w.trace.add(w, -1, h, "exit")
	}
	w.end(h)
}

// end ends a process. What remains of it is Redis's side of its connections, its journal,
// and its clients.
func (w *world) end(h *host) {
	for i := range h.sessions {
		s := &h.sessions[i]
		if s.open && !s.detached {
			w.disconnect(h, s)
		}
	}
	for s := range h.shards {
		w.breakConnection(h, s, false)
	}
	for i := range w.ops {
		o := &w.ops[i]
		if int(o.host) != h.index || o.settled {
			continue
		}
		o.settled = true
		w.freeOp(int32(i))
	}
	w.endConnections(h)
	h.floor, h.raised = h.journal.floor, h.journal.floor
	h.closing, h.detaching = 0, false
	h.process = down
	h.asleep, h.undrained = true, false
	h.forgetRevoked()
	h.noWait = 0
	w.check.lossKnown[h.index] = 0
	for n := range h.locks {
		l := &h.locks[n]
		*l = lockOnHost{
			hold: l.hold, inFlight: noOp, dropPending: noOp, arriving: noOp,
			excusedUntil: l.excusedUntil, endedAt: l.endedAt, refusedAt: l.refusedAt, dataLostAt: l.dataLostAt,
			lastToken: l.lastToken, lastTokenDrawnAt: l.lastTokenDrawnAt,
		}
	}
	if h.journal.whole {
		for n := range w.plan.names {
			w.checkRecord(h, n)
		}
		w.checkBeliefs(h)
		for i := range h.sessions {
			s := &h.sessions[i]
			if r := h.journal.session(s.id); r != nil && r.Phase.IsOver() && s.open && !s.detached {
				w.onDetached(h, s)
			}
		}
	}
	pause := w.random.magnitude(5*ms, h.lease/2)
	if w.plan.longDowntimes && w.random.oneIn(3) {
		pause = w.random.magnitude(h.lease/2, 2*h.lease)
	}
	if w.phase != faulty {
		pause = w.random.between(ms, 100*ms)
	}
	w.after(pause, event{kind: evStart, host: int16(h.index)})
}

// checkRecord compares what the journal has of a lock with what its client knows, and makes
// of the hold what a successor will find.
func (w *world) checkRecord(h *host, n int) {
	l := &h.locks[n]
	now := h.clock(w.now)
	c := &l.hold
	var r locktable.HoldRecord
	if recorded := h.journal.find(n); recorded != nil {
		r = recorded.hold
	}
	if c.state == away || c.state == unserved {
		if !c.isOver(now) {
			h.journal.checkHold(n, c)
		}
		if r.ID == c.num && !r.Phase.IsOrphan() {
			c.confirmed = h.journal.deadline(&r)
			return
		}
		w.endHold(h, n)
	}
	if r.ID == 0 {
		if l.isProtected(now) {
			w.violation(invariant.Journal, n, "the journal of host %d does not have hold %d, whose crash delay lasts", h.index, c.num)
		}
		c.state = none
		return
	}
	h.usedHolds[r.ID] = true
	was := c.state
	if r.ID != c.num {
		*c = hold{
			num: r.ID, token: r.Token, count: r.Entries, owner: r.Owner, session: r.Session, fixed: r.LeaseMS > 0, leaseMS: r.LeaseMS,
			granted: r.Granted, maxHoldEnd: r.End, crashDelay: int64(r.CrashDelayMS) * ms, orphanedUntil: r.End,
			keptUntil: r.KeepUntil,
		}
		was = none
	}
	if was == orphaned && !r.Phase.IsOrphan() { // the journal has not recorded its end, nor that it was kept
		c.fixed, c.maxHoldEnd = r.LeaseMS > 0, r.End
	}
	if r.KeepUntil < c.keptUntil {
		w.violation(invariant.Journal, n, "the journal of host %d has a keep of hold %d until %d; it lasts until %d", h.index, c.num, r.KeepUntil, c.keptUntil)
	}
	c.keptUntil = r.KeepUntil // what ended it may have been lost with the process
	if r.Phase == locktable.HoldKept {
		c.count = r.Entries
		c.orphanUntil(r.Deadline)
		c.keptUntil = r.Deadline
		return
	}
	if r.Phase.IsOrphan() {
		if was != orphaned {
			c.orphanedUntil = now
		}
		c.state = orphaned
		if c.fixed {
			return
		}
		c.deadline, c.confirmed = r.Deadline, r.Deadline
		return
	}
	c.state = unbelieved
	c.deadline, c.confirmed = h.journal.deadline(&r), h.journal.deadline(&r)
	if was == orphaned && h.journal.session(r.Session) == nil {
		w.violation(invariant.Journal, n, "the journal of host %d has hold %d as its session's, which is closed", h.index, c.num)
	}
	if slotOf(r.Session) >= len(h.sessions) {
		w.violation(invariant.Journal, n, "the journal of host %d has hold %d of session %d", h.index, r.ID, r.Session)
	}
	s := &h.sessions[slotOf(r.Session)]
	if i := s.belief(r.ID); i >= 0 && s.id == r.Session && s.open {
		// Its loss was not recorded, so there was none.
		b := &s.beliefs[i]
		b.gone = false
		*c = b.hold
		c.state = away
		w.believed++
		if !c.isOver(now) {
			h.journal.checkHold(n, c)
		}
		c.confirmed = h.journal.deadline(&r)
	}
}

// checkBeliefs checks that every hold that a client would claim is in the journal, or known
// to be lost.
func (w *world) checkBeliefs(h *host) {
	now := h.clock(w.now)
	for i := range h.sessions {
		s := &h.sessions[i]
		for j := range s.beliefs {
			b := &s.beliefs[j]
			if c := &h.locks[b.name].hold; !b.gone && !b.hold.isOver(now) && (c.num != b.hold.num || c.state != away) {
				w.violation(invariant.Journal, int(b.name), "session %d believes in hold %d; the journal of host %d has %+v", s.id, b.hold.num, h.index, *c)
			}
		}
	}
}

// start starts a successor.
func (w *world) start(h *host) {
	if h.process != down {
		return
	}
	if !h.journal.whole {
		w.startWithoutState(h)
		return
	}
	h.process = serving
	h.life++
	now := h.clock(w.now)
	before := h.lease
	if w.plan.otherLease > 0 && w.random.oneIn(2) {
		h.lease = int64(w.plan.table.Lease) + int64(w.plan.otherLease) - h.lease
		h.longest = max(h.longest, h.lease)
	}
	if w.trace.on {
		w.trace.add(w, -1, h, "start, lease %s", time.Duration(h.lease))
	}
	w.boot(h)
	m := h.journal.snapshot()
	h.table.Restore(now, &m)
	h.troubleAt = w.now
	w.restorePermits(h, &m)
	believed := 0
	for n := range w.plan.names {
		c := &h.locks[n].hold
		w.check.meetIf(RestoredOrphan, c.state == orphaned)
		w.check.meetIf(RestoredHold, c.state == away)
		believed += btoi(c.state == away && !c.isOver(now))
		if c.state != orphaned && !c.fixed { // it counts on no more than a lease, if that is shorter than it was
			most := now + h.lease - h.lease/100 - 2*ms
			c.confirmed, c.confirmedBefore = min(c.confirmed, most), min(c.confirmedBefore, most)
		}
		if r := h.journal.find(n); r != nil {
			h.locks[n].uncounted = true
			w.check.meetIf(RestoredDrop, r.hold.ID == 0)
			w.check.meetIf(RestoredUnderOtherLease, r.hold.ID != 0 && h.lease != before)
		}
	}
	w.check.meetIf(StartedWithinLease, believed > 0)
	w.check.meetIf(StartedTooLate, believed == 0 && len(m.Locks) > 0)
	for i := range h.sessions {
		h.sessions[i].restored = true
	}
	if w.phase == faulty && w.random.oneIn(10) {
		w.check.meet(KilledInRestore)
		w.crash(h)
		return
	}
	w.drain(h)
	for n := range w.plan.names {
		row, ok := h.table.Info(now, lockNames[n])
		w.checkRow(h, n, row, ok)
	}
	w.takeOver(h, &m)
	w.drain(h)
}

// takeOver does with the restored sessions what the loop does.
func (w *world) takeOver(h *host, m *locktable.Snapshot) {
	forced := m.Forced()
	for _, r := range m.Sessions {
		s := &h.sessions[slotOf(r.ID)]
		switch {
		case !s.open || s.id != r.ID: // it was closed, and the process was killed before that was recorded
			w.closeInTable(h, r.ID)
		case s.diedWhileDown, h.table.Holds(r.ID) == 0 && s.detached:
			w.close(h, s)
			w.after(w.pause(), reopen(h, r.ID))
		case h.table.Holds(r.ID) == 0 && !forced[r.ID]:
			w.checkNothingToTell(h, s)
			s.open, s.closedBySidecar = false, true
			w.closeInTable(h, r.ID)
		case s.detached:
			w.check.meet(RestoredDetached)
			w.schedule(h, s, w.pause())
		case !s.resumable:
			w.check.meet(ClientNotResumable)
			w.detach(h, s)
			w.schedule(h, s, w.pause())
		}
	}
}

// startWithoutState starts a sidecar that finds no usable state, as if on another host. The
// clients of the former one keep what they have until the deadlines that they were sent.
func (w *world) startWithoutState(h *host) {
	w.check.meet(StartedWithoutState)
	h.process = abandoned
	for i := range h.sessions {
		s := &h.sessions[i]
		w.resetClient(s)
		w.detachPermits(h, s.id)
		s.open = false
	}
	for n := range w.plan.names {
		l := &h.locks[n]
		switch c := &l.hold; c.state {
		case away:
			w.believed--
			c.state = unserved
		case orphaned, unbelieved:
			c.state = none
		}
		if l.hold.keptUntil > h.clock(w.now) { // the key lives without a sidecar
			l.hold.orphanUntil(l.hold.keptUntil)
			w.check.meet(KeptWithoutSidecar)
		}
		l.wantsMessages, l.subscribed = false, false
	}
	if len(w.hosts) < maxHosts { // or else it is never started
		w.addHost()
	}
}
