package locktable

import (
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable/claim"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// remainingLease is the fixed lease of a hold that is not renewed, ms; 0: it is renewed. A
// hold that has lost the watchdog has what is left of the watchdog's lease.
func (t *Table) remainingLease(h *hold) uint32 {
	if h.isRenewed() {
		return 0
	}
	return t.leaseOf(h.lease, h.leaseMS)
}

// deadline is until when the client of the hold may believe in it: the largest deadline
// that it was sent. The key may be this host's for longer, but that does not count: the
// client has stopped believing.
func (t *Table) deadline(h *hold) int64 {
	switch {
	case !h.isRenewed():
		return h.deadline
	case h.isOrphan():
		return t.validUntil(h.lock)
	case h.session.leaseSeq != h.leaseSeq:
		return max(h.deadline, h.session.leaseSent)
	}
	return h.deadline
}

// checked returns the hold for which the key of a lock is checked now and then although its lease is not
// renewed: if another program deletes the key or takes it over, the clients are notified, and the next
// waiter gets the lock. nil: there is none.
func (t *Table) checked(l *lock) *hold {
	h := l.holders.newest
	if m := t.manyOf(l); m != nil && m.renewed > 0 || h == nil || m == nil && !h.isChecked() {
		return nil
	}
	return h
}

// isChecked is checked for the hold of a lock that has one at most.
func (h *hold) isChecked() bool {
	q := h.lock.queue
	return !h.isRenewed() && (h.phase == HoldLive || h.phase == HoldUnrenewable || q != nil && q.waiters.head != nil)
}

// confirm notes that Redis has the field as a Take or a Renew wanted it, with a lease from when that was sent. token
// is the last one that was drawn.
func (t *Table) confirm(now int64, l *lock, op *claim.InFlight, sent int64, token uint64) {
	c := &l.claim
	lease := op.LeaseMS
	if m := t.manyOf(l); m != nil {
		m.askedAt, m.askedMS = op.SentAt, op.LeaseMS
		m.validUntil = sent + claim.Validity(min(lease, t.leaseMS))
	} else if h := l.holders.sole(); h != nil && h.isRenewed() && !h.isOrphan() {
		lease = min(lease, t.leaseMS) // what is above it covers what its client was sent before
	}
	if op.Kind == redisop.Renew {
		t.stats.RenewalMargin.Observe(LeaseTimes, time.Duration(c.ValidUntil()-now))
	}
	c.Confirm(now, sent+claim.Validity(lease), op, token)
	c.SetRenewAt(t.renewalAfter(sent, moment.MS(min(lease, t.leaseMS)), t.renewalGroup(l)))
	if h := t.checked(l); h != nil {
		c.SetRenewAt(t.nextCheck(now, h))
	}
	t.onRenewed(l)
	t.trackDeadlines(l)
}

// refuseRenewal notes that Redis refuses to renew the key of a lock that is held.
func (t *Table) refuseRenewal(now int64, l *lock) {
	for h := range t.holdsOf(l) {
		if h.phase == HoldLive && h.lease == WatchdogLease {
			t.setPhase(h, HoldUnrenewable)
		}
	}
	if m := t.manyOf(l); m != nil {
		m.dueAt = now
	}
}

// onRenewed notes that Redis renews the key of a lock again.
func (t *Table) onRenewed(l *lock) {
	m, h := t.manyOf(l), l.holders.newest
	if m != nil && m.refused == 0 || m == nil && (h == nil || h.phase != HoldUnrenewable) {
		return
	}
	for h := range t.holdsOf(l) {
		if h.phase == HoldUnrenewable {
			t.setPhase(h, HoldLive)
		}
	}
}

// expireHold ends a hold if its time is over, or moves it to the phase that the end of its session asks
// for. It returns whether the hold has ended.
func (t *Table) expireHold(now int64, h *hold) (hasEnded bool) {
	a, m := moment.At(now), t.manyOf(h.lock)
	if hasEnded = t.expire(&a, h); m != nil {
		m.dueAt = min(m.dueAt, a.Next)
	}
	return hasEnded
}

// expireHolds ends the holds of a lock whose time is over.
func (t *Table) expireHolds(now int64, l *lock) {
	a, m := moment.At(now), t.manyOf(l)
	if m == nil {
		if h := l.holders.sole(); h != nil {
			t.expire(&a, h)
		}
		return
	}
	if !m.mayBeDue(now, l) {
		return
	}
	for h := range t.holdsOf(l) {
		if !t.mustWait(&a, h, m) {
			t.expire(&a, h)
		}
	}
	m.dueAt = min(m.dueAt, a.Next)
}

// mustWait reports whether the end of a hold is left for a later step: a client can have thousands of one name end
// at one time, and others wait for the answers of this step. It has the lock, also in Redis, until it ends.
func (t *Table) mustWait(a *moment.Alarm, h *hold, m *many) bool {
	isOver := h.id <= m.forced || h.endAt != 0 && a.Now >= h.endAt || h.session.phase == SessionEnded && !h.isOrphan()
	if !isOver || a.Now >= t.deadline(h) || t.ends.take(a.Now, t.cfg.MaxWork) {
		return false
	}
	if a.Next = min(a.Next, a.Now); h.endAt != 0 {
		a.Next = min(a.Next, h.endAt)
	}
	return true
}

// endDueHolds ends the holds of a lock whose time is over, or gives them up. It returns whether one
// has ended.
func (t *Table) endDueHolds(v *visit) (hasEnded bool) {
	m := t.manyOf(v.lock)
	if m == nil {
		h := v.lock.holders.sole()
		return h != nil && t.endIfDue(&v.Alarm, h)
	}
	if m.mayBeDue(v.Now, v.lock) {
		a := moment.At(v.Now)
		m.latest = 0
		for h := range t.holdsOf(v.lock) {
			if !t.mustWait(&a, h, m) && t.endIfDue(&a, h) {
				hasEnded = true
				continue
			}
			m.latest = max(m.latest, t.deadline(h), t.keepUntil(h))
		}
		m.dueAt = a.Next
		if at := v.lock.claim.RenewAt(); v.Now >= at {
			m.lookedAt = at
		}
	}
	v.Next = min(v.Next, max(m.dueAt, v.Now)) // now: some are left for the next step
	return hasEnded
}

// mayBeDue reports whether each hold has to be looked at: the time of one may be over, or a renewal is due,
// for the sessions that are served.
func (m *many) mayBeDue(now int64, l *lock) bool {
	at := l.claim.RenewAt()
	return now >= m.dueAt || now >= at && m.lookedAt != at
}

// endIfDue ends a hold if its time is over, or gives it up. It returns whether the hold has ended.
func (t *Table) endIfDue(a *moment.Alarm, h *hold) (hasEnded bool) {
	if t.expire(a, h) {
		return true
	}
	switch {
	case h.phase == HoldUnrenewable:
		if a.Due(t.giveUpAt(h)) {
			t.giveUp(h)
		}
	case t.cfg.SlotOf != nil && h.isTracked:
		t.giveUpForOthers(a, h)
	}
	return false
}

// giveUpForOthers gives up a hold that keeps down the deadline of the session's other holds, shortly
// before that deadline: its shard does not renew it, and those of the others do. A Redis that is no
// Cluster renews all of them, or none.
//
// The session may have been sent a deadline that is one bucket less, so a hold is given up two buckets
// before its own. If its renewal was just sent, that has a quarter of the time that is left, up to half a
// bucket: a host that stood still renews all of its holds at once, and one shard is the first to answer.
func (t *Table) giveUpForOthers(a *moment.Alarm, h *hold) {
	until, bucket := t.validUntil(h.lock), t.bucketWidth() // not what the session was sent: that is of the hold that lasts shortest
	op := h.lock.claim.InFlight()
	switch {
	case !a.Due(t.giveUpForOthersAt(h.lock)):
	case (op.Kind == redisop.Renew || op.Kind == redisop.Take) && !a.Due(op.SentAt+min(bucket/2, (until-op.SentAt)/4)):
	case t.lastsShortest(h):
		t.giveUp(h)
	default: // until another shard renews
		a.Due(a.Now + bucket/4)
	}
}

// expire ends a hold if its time is over, or moves it to the phase that the end of its session asks for.
// It returns whether the hold has ended.
func (t *Table) expire(a *moment.Alarm, h *hold) (hasEnded bool) {
	if !h.isOrphan() {
		switch s := h.session; {
		case s.phase == SessionEnded:
			if t.orphan(a.Now, h) {
				return true
			}
		case s.phase.IsOver() && h.phase != HoldUnserved:
			t.untrackDeadline(h)
			h.deadline = t.deadline(h)
			t.setPhase(h, HoldUnserved)
		}
	}
	if m := t.manyOf(h.lock); m != nil && h.id <= m.forced {
		t.loseHold(a.Now, h, protocol.ByForce, "")
		return true
	}
	for {
		switch {
		case a.Due(t.deadline(h)):
			t.notifyLoss(h, protocol.Expired, "")
		case h.endAt != 0 && a.Due(h.endAt):
			t.notifyLoss(h, protocol.MaxHold, "") // an orphan has no client to notify
		default:
			return false
		}
		if t.leave(a.Now, h) {
			return true
		}
	}
}

// orphan ends a hold whose session has ended, or lets it last for its crash delay. It returns whether the
// hold has ended.
func (t *Table) orphan(now int64, h *hold) (hasEnded bool) {
	t.stats.CrashReleases++
	t.emit(Effect{Kind: Crashed, Session: h.session.id, Name: h.lock.name, Hold: h.id, IsShared: h.isShared(), Permits: h.permits, Since: h.granted, Count: uint32(h.lock.waiting()), Peer: &h.session.peer})
	t.unlinkHold(h)
	h.lock.claim.KnownUntil(t.deadline(h)) // it may be from before a restart
	if h.isRenewed() {
		t.setPhase(h, HoldCrashDelayed)
	} else {
		t.setPhase(h, HoldGivenUp)
	}
	if h.crashDelayMS == 0 {
		return t.leave(now, h)
	}
	if end := h.session.endedAt + moment.MS(h.crashDelayMS); h.endAt == 0 || end < h.endAt {
		h.endAt = end
	}
	return false
}

// giveUpAt is when a hold that Redis refuses to renew is given up: some time before its
// deadline, since that is also the deadline of everything else that the session holds under
// the watchdog. (What was sent of it before a restart with a longer lease may be later: it
// is not what keeps the others' deadline down.)
func (t *Table) giveUpAt(h *hold) int64 {
	return min(t.deadline(h), t.validUntil(h.lock)) - int64(t.cfg.Lease)/4
}

// giveUp notifies the client of a hold that is not renewed. No other client gets the lock before the
// hold's deadline.
func (t *Table) giveUp(h *hold) {
	t.emit(Effect{Kind: Lost, Session: h.session.id, Name: h.lock.name, Hold: h.id, IsShared: h.isShared(), Permits: h.permits, Reason: protocol.Expired, WasClaimed: h.claimedEntries != 0, Since: h.granted, Peer: &h.session.peer})
	t.groupStats(h.lock).Losses[lossIndex(protocol.Expired)]++
	h.deadline = t.deadline(h)
	t.unlinkHold(h)
	t.setPhase(h, HoldGivenUp)
}

// loseHolds ends the holds of a lock that has another owner or none, and notifies their clients. found is
// what is under its name in Redis, if that is the reason.
func (t *Table) loseHolds(now int64, l *lock, why protocol.Reason, found string) {
	for h := range t.holdsOf(l) {
		t.loseHold(now, h, why, found)
	}
}

func (t *Table) loseHold(now int64, h *hold, why protocol.Reason, found string) {
	if h.session.phase == SessionEnded && !h.isOrphan() && t.orphan(now, h) { // it was not looked at since
		return
	}
	t.notifyLoss(h, why, found)
	t.endHold(now, h)
}

// notifyLoss notifies the client of a hold, if it has one, that the hold has ended without a
// release.
func (t *Table) notifyLoss(h *hold, why protocol.Reason, found string) {
	switch {
	case !h.isOrphan():
		t.emit(Effect{Kind: Lost, Session: h.session.id, Name: h.lock.name, Hold: h.id, IsShared: h.isShared(), Permits: h.permits, Reason: why, WasClaimed: h.claimedEntries != 0, Msg: found, Since: h.granted, Peer: &h.session.peer})
		t.groupStats(h.lock).Losses[lossIndex(why)]++
	case h.phase == HoldKept && why != protocol.Expired:
		t.emit(Effect{Kind: KeepLost, Session: h.session.id, Name: h.lock.name, Hold: h.id, Reason: why, Msg: found})
	}
}

// leave ends a hold for its client: the lock is kept, or else the hold has ended.
func (t *Table) leave(now int64, h *hold) (hasEnded bool) {
	if now >= t.keepUntil(h) {
		t.endHold(now, h)
		return true
	}
	t.observeEnd(now, h)
	h.lock.claim.KnownUntil(t.keepUntil(h)) // since the grant
	t.unlinkHold(h)
	h.deadline, h.endAt = t.keepUntil(h), 0
	t.setPhase(h, HoldKept)
	if m := t.manyOf(h.lock); m != nil {
		m.dueAt = min(m.dueAt, h.deadline)
	}
	h.entries = max(h.entries, 1) // Redis has as many
	return false
}

// observeEnd notes for how long the client of a hold had it.
func (t *Table) observeEnd(now int64, h *hold) {
	t.groupStats(h.lock).Held.Observe(LongTimes, time.Duration(now-h.granted))
}

// Operators want to know of a hold that was so long. BlockingHold: clients wait for the lock, and it is
// longer than a round trip to a Redis nearby.
const (
	NotableHold  = time.Second
	BlockingHold = 10 * time.Millisecond
)

// isLong reports whether operators want to know of the end of this hold. Most holds are short: their
// releases yield no effect for it.
func (h *hold) isLong(now int64) bool {
	held := time.Duration(now - h.granted)
	return held >= BlockingHold && (held >= NotableHold || h.lock.waiting() > 0)
}

// endHold makes the lock free for the next local waiter, or to be dropped.
func (t *Table) endHold(now int64, h *hold) {
	if q := h.lock.queue; q != nil && now-h.granted >= int64(BlockingHold) {
		q.blocker = blocker{&h.session.peer, now}
	}
	t.unlinkHold(h)
	h.uncountHold()
	delete(t.byHold, h.id)
	if h.hasKeep {
		delete(t.keeps, h.id)
	}
	if h.phase != HoldKept {
		t.observeEnd(now, h)
	}
	t.removeHold(h)
	if h.mode == Exclusive && h.lock.kind() == redisop.KindReadWrite {
		t.beginReadPhase(h.lock)
	}
	if h.slot != 0 {
		*h = hold{slot: h.slot, next: t.dirty.ended} // until writeJournal
		t.dirty.ended = h
		return
	}
	t.freeHold(h)
}

func (t *Table) freeHold(h *hold) {
	*h = hold{}
	t.holds.put(h)
}

func (t *Table) linkHold(h *hold) { h.session.holds.pushFront(h, holdLinks) }

// unlinkHold takes the hold out of its session's list; the session stays known as the one
// that had it.
func (t *Table) unlinkHold(h *hold) {
	if h.isOrphan() {
		return
	}
	h.session.holds.remove(h, holdLinks)
	t.untrackDeadline(h)
}
