package locktable

import (
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable/claim"
	"github.com/locksidecar/locksidecar/sidecar/locktable/contest"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// reconcile brings a lock to rest after any change: expired holds end, the next waiter is
// granted if it can be, the operation is sent that makes Redis have what it should
// have, and the timer is set to the next time at which any of that may change.
//
// Nothing leaves the table and nothing is stored before Effects: reconcile appends effects,
// and marks what the journal has to store.
func (t *Table) reconcile(v *visit) {
	l := v.lock
	t.now = v.Now
	for t.endDueHolds(v) || t.grantNext(v) {
		v.onChange()
		v.Next = moment.Never // of what has changed
	}
	if !l.isIdle() {
		t.syncRemote(v)
		t.answerConfirms(v)
		t.updateSubscription(v)
	}
	t.windows.Close(&l.claim)
	if l.isIdle() {
		t.forget(l)
		return
	}
	t.markDirty(l)
	switch {
	case v.hasMore && l.holders.isHeld(): // in the backlog, nothing of the hold would be done when it is due
		t.arm(&l.timer, v.Now)
	case v.hasMore:
		t.wheel.Defer(&l.timer)
	case v.Next == moment.Never:
		t.wheel.Remove(&l.timer)
	default:
		t.arm(&l.timer, v.Next)
	}
}

// syncRemote sends the operation, if there is one, that makes Redis have what it should have.
func (t *Table) syncRemote(v *visit) {
	l := v.lock
	for t.shardOf(l).isUp() && l.claim.MayStep() {
		var w claim.Want
		t.want(&w, v)
		op := l.claim.Step(&v.Alarm, &w)
		if op.Kind == redisop.NoOp {
			return
		}
		t.send(v, &op)
		if l.waiting() == 0 {
			return // for a waiter, a Take may be pipelined after a Drop
		}
	}
}

// want sets w, which is empty, to what Redis should have for a lock.
func (t *Table) want(w *claim.Want, v *visit) {
	l, q := v.lock, v.lock.queue
	switch isHeld := l.holders.isHeld(); {
	case !isHeld && l.waiting() == 0:
	case l.kind() == redisop.KindPermits:
		t.wantPermits(w, v)
		return
	case l.kind() == redisop.KindReadWrite:
		t.wantReadWrite(w, v)
		return
	case isHeld:
		t.wantForHold(w, v)
		return
	}
	verdict := t.decide(v)
	if v.view.LingerUntil != 0 && v.view.Waiting == 0 && verdict.Do != contest.Linger {
		l.claim.EndLinger()
	}
	switch verdict.Do {
	case contest.Linger:
		w.Kind = claim.WantLinger
	case contest.Ask:
		w.Kind, w.HoldID, w.Count, w.LeaseMS = claim.WantForQueue, t.lastNum+1, 1, t.leaseToTake(q.waiters.head.request)
		w.Asked, w.NotBefore, w.ArriveAt = verdict.Asked, verdict.NotBefore, verdict.ArriveAt
		w.Reserve = 1
		if l.memory.IsHot() || v.view.Waiting > 1 {
			w.Reserve = uint16(max(2, t.cfg.Tokens))
		}
		// The Drop before a pipelined Take counts them.
		w.Set(redisop.CountListeners, !w.Has(redisop.AfterPendingDrop) && (w.Reserve > 1 || l.memory.NeedsCount() || l.claim.State().IsOurs()))
	default:
		t.wantDrop(w, v, verdict)
	}
}

func (t *Table) wantForHold(w *claim.Want, v *visit) {
	now, l, q := v.Now, v.lock, v.lock.queue
	h := l.holders.sole()
	w.Kind, w.HoldID, w.Count = claim.WantHold, h.id, h.entries
	w.LeaseMS, w.FullLeaseMS = t.leaseToSet(now, h), t.leaseOf(h.lease, h.leaseMS)
	w.IsRenewed, w.IsChecked = h.isRenewed(), h.isChecked()
	if h.hasKeep {
		w.FullLeaseMS = max(w.FullLeaseMS, claim.LeaseKeeping(t.keepUntil(h)-h.granted))
	}
	w.Tokens, w.ReserveAt = t.cfg.Tokens, moment.Never
	switch {
	case h.phase == HoldKept: // its end is the end of the claim, so nothing is handed over
	case l.waiting() > 0:
		w.ReserveAt = q.drawAt
	case l.memory.IsHot():
		w.IsHot, w.ReserveAt = true, now
	}
	if w.ArriveAt = moment.Never; q != nil && q.newcomer != nil && t.isInOrder(l) {
		w.ArriveAt = q.contest.ArriveAt()
	}
}

// nextBeside returns the first waiter of a lock that is held, if the holds admit it; nil: there is none.
func (t *Table) nextBeside(l *lock) *request {
	if l.waiting() == 0 || !l.holders.admits(l.queue.waiters.head.request.mode) {
		return nil
	}
	return l.queue.waiters.head.request
}

// allLeases is the lease that Redis is given for all holds of a lock that may have many, and for the next one
// beside them.
func (t *Table) allLeases(now int64, l *lock, m *many, op *redisop.Op) uint32 {
	lease := uint32(1)
	if m.renewed > 0 {
		lease = t.leaseMS
	}
	if r := t.nextBeside(l); r != nil && t.mayComeBeside(l, m, r, op) {
		lease = max(lease, t.leaseToTake(r))
	}
	if left := m.latest - now; left > claim.Validity(lease) {
		lease = claim.LeaseKeeping(left)
	}
	return lease
}

// mayComeBeside reports whether an operation gets what a waiter wants beside holds, so that it is to have the lease of that,
// too. One that waits for other hosts may do so for long.
func (t *Table) mayComeBeside(l *lock, m *many, r *request, op *redisop.Op) bool {
	needed := m.units + uint32(r.permits)
	if l.kind() == redisop.KindReadWrite {
		needed = uint32(r.mode.inRedis())
	}
	return op.Kind == redisop.Take && l.claim.Extent() >= needed
}

// leaseToSet is the lease that Redis is given for a hold now.
func (t *Table) leaseToSet(now int64, h *hold) uint32 {
	if h.phase == HoldKept {
		return claim.LeaseKeeping(h.deadline - now)
	}
	lease := t.leaseMS
	if !h.isRenewed() {
		// What is left of a fixed lease, and its drift, so that the key
		// does not outlive the hold by more than it would have.
		full := t.leaseOf(h.lease, h.leaseMS)
		left := h.deadline - now + moment.MS(full) - claim.Validity(full)
		lease = uint32((left + int64(time.Millisecond) - 1) / int64(time.Millisecond))
	}
	if !h.isRenewed() || !h.isOrphan() {
		// What was sent when a longer lease was configured stays true.
		lease = max(lease, claim.LeaseCovering(t.deadline(h)-now))
	}
	if h.hasKeep {
		lease = max(lease, claim.LeaseKeeping(t.keepUntil(h)-now))
	}
	return lease
}

func (t *Table) send(v *visit, op *redisop.Op) {
	now, l := v.Now, v.lock
	op.Name, op.User, op.Shard = l.name, redisop.NoUser, l.shard
	if l.user != nil {
		op.User = l.user.uid
	}
	op.Of = l.kind()
	op.Set(redisop.CanWait, op.Kind == redisop.Drop && !l.isAwaited(op))
	switch {
	case op.Kind != redisop.Take:
	case op.Of.HasMany():
		t.onExtentAsked(now, l, op)
	case !l.holders.isHeld():
		t.lastNum = op.HoldID
		if op.Has(redisop.Enqueue) {
			l.queue.contest.OnTakeSent(now, op)
		}
	}
	if m := t.manyOf(l); m != nil && l.holders.isHeld() && (op.Kind == redisop.Take || op.Kind == redisop.Renew) {
		op.LeaseMS = t.allLeases(now, l, m, op)
	}
	if op.Kind == redisop.Drop && l.queue != nil {
		l.queue.contest.OnDropSent(&v.verdict)
	}
	v.onChange()
	t.windows.Open(&l.claim)
	l.claim.Send(now, op, !l.holders.isHeld())
	if op.Kind == redisop.Take || op.Kind == redisop.Renew {
		t.trackDeadlines(l)
		if m := t.manyOf(l); m != nil {
			v.Due(m.dueAt)
		}
	}
	t.shardOf(l).onSent(now)
	t.next(Redis).Op = *op
}

// updateSubscription has the host subscribe or unsubscribe, and frees a queue that
// nothing needs.
func (t *Table) updateSubscription(v *visit) {
	a, l, q := &v.Alarm, v.lock, v.lock.queue
	if q == nil {
		return
	}
	waitsSince, heldSince := int64(moment.Never), int64(moment.Never)
	if w := q.waiters.head; w != nil && t.mayBePublished(l) {
		waitsSince = w.request.since
	}
	if l.holders.isHeld() {
		heldSince = l.holders.newest.granted
	}
	switch q.contest.UpdateSubscription(&t.contests, a, waitsSince, heldSince) {
	case contest.Subscribe:
		t.emit(Effect{Kind: Subscribe, Name: l.name, Op: redisop.Op{Shard: l.shard}})
	case contest.Unsubscribe:
		t.emit(Effect{Kind: Unsubscribe, Name: l.name, Op: redisop.Op{Shard: l.shard}})
	}
	if q.waiters.head == nil && len(q.confirms) == 0 && q.contest.IsIdle(a, l.claim.State().IsOurs()) {
		l.queue = nil
		*q = queue{}
		t.queues.put(q)
	}
}

// mayBePublished reports whether a release of the lock would be published on its channel: that of permits is not, unless
// something else has the name.
func (t *Table) mayBePublished(l *lock) bool {
	return l.kind() != redisop.KindPermits || l.queue.contest.Remote().IsKnown() && !l.isShortOfPermits()
}

func (l *lock) due(t *Table, now int64) { t.reconcile(t.visit(now, l)) }

// isUrgent reports whether the watchdog renews the lock's holds. It need not be due now: the
// lock has one timer, and in the backlog it would not fire when the renewal is due.
func (t *Table) isUrgent(now int64, l *lock) bool {
	if m := t.manyOf(l); m != nil {
		return m.renewed > 0
	}
	h := l.holders.sole()
	return h != nil && h.isRenewed() && h.session.phase != SessionEnded && now < t.deadline(h) && (h.endAt == 0 || now < h.endAt)
}
