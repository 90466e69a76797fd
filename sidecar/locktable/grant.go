package locktable

import (
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable/claim"
	"github.com/locksidecar/locksidecar/sidecar/locktable/contest"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// grantNext grants a free lock to the first of its waiters if Redis is known to have it for
// this host, and answers first waiters that do not wait. It returns whether there is a new
// hold.
func (t *Table) grantNext(v *visit) bool {
	now, l := v.Now, v.lock
	q := l.queue
	if q == nil {
		return false
	}
	for left := t.cfg.MaxWork; q.waiters.head != nil && (q.denial != "" || l.holders.admits(q.waiters.head.request.mode)); left-- {
		if left == 0 {
			t.leaveRest(v)
			return false
		}
		w := q.waiters.head
		r := w.request
		if r.session.phase.IsOver() {
			v.onChange()
			t.abandon(r)
			continue
		}
		if q.denial != "" {
			v.onChange()
			t.endRequest(r)
			t.refuseAcquire(l, r.session, r.id, protocol.Denied, q.denial)
			continue
		}
		if t.mayGrant(v) {
			if v.grants++; v.grants > t.cfg.MaxWork && l.holders.isHeld() {
				t.leaveRest(v)
				return false
			}
			v.onChange()
			if why := t.fullOfHolds(r.session, l.name, l.kind()); why != "" { // since it began to wait
				t.endRequest(r)
				t.refuseAcquire(l, r.session, r.id, protocol.Limit, why)
				continue
			}
			t.grant(now, l, r)
			return true
		}
		if !w.isTrying() {
			return false
		}
		cannotAsk := l.claim.InFlight().Kind == redisop.NoOp && (t.shardOf(l).phase == shardDown || now < l.claim.RetryAt())
		if !cannotAsk && !q.contest.RefusesTries(now, l.claim.IsDropping()) && !t.isSilent(now, l) {
			return false // until Redis returns a result
		}
		v.onChange()
		t.endRequest(r)
		code, msg := t.explain(now, l, r.session, r.since, r.mode, r.isAlone)
		t.refuseAcquire(l, r.session, r.id, code, msg)
	}
	if q.waiters.head == nil {
		q.denial = ""
	}
	return false
}

// mayGrant reports whether the first waiter gets the lock: Redis has it for this host, for long enough,
// and it is this host's turn. A turn that is over ends.
func (t *Table) mayGrant(v *visit) bool {
	c := &v.lock.claim
	if !c.State().IsOurs() || c.IsDropping() {
		return false
	}
	verdict := t.decide(v)
	v.lock.queue.contest.Accept(verdict)
	return verdict.Do == contest.Grant
}

// grant makes a request a hold. If another hold had the lock before, this is a handoff:
// an operation is sent to Redis after the answer.
func (t *Table) grant(now int64, l *lock, r *request) {
	c, s := &l.claim, r.session
	var blockedBy *Peer
	blockingField := ""
	if now-r.since >= int64(BlockingHold) {
		blockedBy, blockingField = l.blockerSince(r.since)
	}
	t.endRequest(r)
	isBeside := l.holders.isHeld()
	isReader := l.kind() == redisop.KindReadWrite && r.mode == Shared
	id, token, source := c.Grant(t.lastNum+1, isReader && c.Extent() == uint32(redisop.SharedMode))
	t.lastNum = max(t.lastNum, id)
	g := t.groupStats(l)
	g.Acquires[AcquireGranted]++
	g.Wait.Observe(ShortTimes, time.Duration(now-r.since))
	switch source {
	case claim.FromLinger:
		t.stats.Handoffs[HandoffLingering]++
	case claim.FromHold:
		if isBeside {
			break
		}
		t.stats.Handoffs[HandoffLocal]++
	}
	h := t.holds.get()
	*h = hold{
		id: id, token: token, owner: r.owner, lock: l, session: s, granted: now, entries: 1,
		lease: r.lease, leaseMS: r.leaseMS, crashDelayMS: r.crashDelayMS, mode: r.mode, permits: r.permits,
	}
	t.charge(l, s.user)
	if r.maxHoldMS != 0 {
		h.endAt = now + moment.MS(r.maxHoldMS)
	}
	if r.keepMS != 0 {
		h.hasKeep = true
		t.keeps[id] = min(now+moment.MS(r.keepMS), c.ValidUntil())
	}
	until := min(c.ValidUntil(), now+claim.Validity(t.leaseOf(r.lease, r.leaseMS)))
	if l.kind().HasMany() {
		m := t.needMany(l)
		m.onGrant(c.InFlight(), r)
		if !isBeside {
			m.validUntil = min(c.ValidUntil(), now+claim.Validity(t.leaseMS))
		}
		if r.lease == WatchdogLease {
			until = min(until, t.validUntil(l))
		}
	}
	h.deadline, h.leaseSeq = until, s.leaseSeq
	switch {
	case h.lease == WatchdogLease:
		if renewBy := until - int64(t.cfg.Lease)/4; l.kind().HasMany() {
			c.RenewBy(renewBy)
		} else {
			c.LimitTo(until, renewBy)
		}
		t.onWatchdogGrant(s, until)
	case !isBeside: // otherwise the key is renewed, or checked, for another one
		c.SetRenewAt(t.nextCheck(now, h))
	}
	t.assertGranted(now, h)
	t.addHold(h, r.capacity)
	t.linkHold(h)
	h.countHold()
	t.trackDeadline(h)
	e := t.next(Granted)
	e.Session, e.ID, e.Hold, e.Token, e.Count = s.id, r.id, id, h.token, 1
	e.Deadline, e.End, e.Since = until, h.endAt, r.since
	e.Name, e.Peer, e.Msg = l.name, blockedBy, blockingField
	e.IsShared, e.Permits, e.Capacity = h.isShared(), r.permits, r.capacity
	t.reenterOthers(h)
}

// reenter grants a further entry of a hold to its owner.
func (t *Table) reenter(h *hold, id uint64) {
	h.entries++
	t.touch(h)
	t.groupStats(h.lock).Acquires[AcquireReentered]++
	if h.isRenewed() {
		h.deadline = max(t.deadline(h), t.validUntil(h.lock))
	}
	t.emit(Effect{Kind: Granted, Session: h.session.id, ID: id, Token: h.token, Hold: h.id, Count: h.entries, Deadline: t.deadline(h), End: h.endAt, IsShared: h.isShared()})
}

// reenterOthers answers the other requests of the owner of a new hold: they have become
// re-entries. They are in two lists; the shorter one is walked.
func (t *Table) reenterOthers(h *hold) {
	s, l := h.session, h.lock
	own := s.owners[h.owner]
	if h.owner == 0 || own == nil {
		return
	}
	reenter := func(r *request) {
		if r.at.lock == l && r.session == s && r.owner == h.owner && !r.notReentrant && h.mode.covers(r.mode) {
			t.endRequest(r)
			t.reenter(h, r.id)
		}
	}
	if l.queue.waiters.len < own.len {
		for w := l.queue.waiters.head; w != nil; {
			next := w.inQueue.next
			reenter(w.request)
			w = next
		}
		return
	}
	for r := own.head; r != nil; {
		next := r.ofOwner.next
		reenter(r)
		r = next
	}
}
