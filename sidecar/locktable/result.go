package locktable

import (
	"math"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Result takes Redis's answer to the lock's operation in flight.
func (t *Table) Result(now int64, r redisop.Result) {
	t.redis.onResult(now)
	l := t.byName[r.Name]
	if l != nil && l.queue != nil && r.Kind == redisop.Drop {
		l.queue.arbiter.onDropResult(&r)
	}
	if l == nil {
		panic("locktable: a result for a lock that is not known: " + r.Name)
	}
	if r.Outcome < redisop.NotSent {
		t.policy.noteTrip(now - r.Sent)
		t.policy.noteLatency(now - r.Sent)
		t.stats.Scripts.Observe(ShortTimes, time.Duration(now-r.Sent))
	}
	if r.Kind == redisop.Renew {
		t.stats.Renewals[r.Outcome]++
	}
	if r.Kind == redisop.Drop && l.queue != nil {
		l.queue.place.onDropResult(&r)
	}
	op, pipelined := l.claim.answered(r.Kind)
	if pipelined {
		// Nothing more to learn here: the result of the Take pipelined after this Drop
		// reports the key's state.
		l.noteListeners(&r)
		t.reconcile(now, l)
		return
	}
	if op.kind == redisop.Arrive {
		t.onArrived(now, l, &op, &r)
		t.reconcile(now, l)
		return
	}
	if op.enqueue && l.queue != nil { // Up may have forgotten the ticket, and with it the queue
		l.queue.place.onTakeResult(op.holdID, l.queue.order.asked, &r)
		if r.Outcome == redisop.HeldByOther && r.Arrived != 0 {
			l.queue.arrive(op.sentAt, r.Arrived)
		}
	}
	// A deadline that passed before this answer came has passed: the holder has
	// stopped believing, whatever Redis did.
	t.expireHold(now, l)

	l.noteListeners(&r)
	c, q := &l.claim, l.queue
	if q != nil {
		q.lastError = ""
	}
	switch r.Outcome {
	case redisop.Done:
		switch op.kind {
		case redisop.Drop:
			t.onDropDone(now, l, &op, &r)
		case redisop.Check:
			c.confirmedAt = now
			if h := l.holds; h != nil && h.isChecked() {
				c.renewAt = t.nextCheck(now, h)
			}
		default:
			t.onConfirmed(now, l, &op, &r)
		}
		if op.checkAgain && l.holds != nil {
			l.checkSoon(now)
		}

	case redisop.HeldByOther:
		l.forgetClaim(claimAbsent)
		t.cool(l)
		if l.holds != nil {
			t.loseHold(now, l.holds, protocol.Stolen, r.Field)
		}
		if q = l.queue; q != nil {
			t.onHeldByOther(now, l, &op, &r)
		}

	case redisop.KeyMissing:
		if l.holds != nil && op.mayHaveLostData {
			c.state = claimInDoubt // no program deleted it: assert it
			c.dropTokens()
			break
		}
		l.forgetClaim(claimAbsent)
		if l.holds != nil {
			t.loseHold(now, l.holds, protocol.Deleted, "")
		} else if q != nil && op.enqueue {
			q.arbiter.onFoundFree(&t.policy, now, q.firstTries())
		}

	case redisop.Differs:
		if c.state == claimConfirmed {
			c.state = claimStale // so that it is set again
		}

	case redisop.NotALock:
		l.forgetClaim(claimAbsent)
		if l.holds != nil {
			t.loseHold(now, l.holds, protocol.Stolen, r.Field)
		}
		t.denyWaiters(l, r.Msg)

	case redisop.NotSent:
		c.retryAt = now + int64(t.cfg.RetryAfter)
		t.onRedisError(l, r.Msg)

	case redisop.Unknown:
		c.unknown(now, &op)
		t.onRedisError(l, r.Msg)

	case redisop.Retryable:
		if op.reserve > 0 && l.holds != nil {
			t.reserveFailed(now, l)
		} else {
			c.retryAt = now + int64(t.cfg.RetryAfter)
		}
		t.onRedisError(l, r.Msg)

	case redisop.Refused:
		if q != nil && l.holds == nil {
			q.arbiter.onRefused()
		}
		switch {
		case op.kind == redisop.Drop:
			// This sidecar may not touch the key any more; it ends with its lease.
			l.forgetClaim(claimAbsent)
			if l.queue != nil && len(l.queue.confirms) > 0 {
				l.queue.refusal = r.Msg
			}
		case op.reserve > 0 && l.holds != nil:
			t.reserveFailed(now, l)
		case l.holds != nil:
			c.retryAt = now + int64(t.cfg.RetryAfter)
			if h := l.holds; h.phase == HoldLive && h.lease == WatchdogLease {
				h.phase = HoldUnrenewable
			}
		default:
			t.denyWaiters(l, r.Msg)
		}
	}
	t.reconcile(now, l)
}

// reserveFailed notes that no tokens could be reserved for the waiters of a held lock. The
// operation may have failed for their sake alone, so it is not tried again until a while
// later: until then nothing keeps the hold from being renewed.
func (t *Table) reserveFailed(now int64, l *lock) {
	t.cool(l)
	if l.queue != nil {
		l.queue.drawAt = now + int64(reservePause)
	}
}

const reservePause = time.Second

// denyWaiters has grantNext refuse all local waiters.
func (t *Table) denyWaiters(l *lock, msg string) {
	if l.queue != nil && l.queue.waiters.head != nil {
		l.queue.denial = msg
	}
}

// noteListeners notes how many are subscribed, if Redis counted them.
func (l *lock) noteListeners(r *redisop.Result) {
	if (r.Outcome == redisop.Done || r.Outcome == redisop.HeldByOther) && r.Kind != redisop.Renew && r.Listeners != redisop.Uncounted {
		l.rivals.listeners = int16(min(r.Listeners, math.MaxInt16))
	}
}

// onConfirmed notes that the key is this host's as a Take or a Renew wanted it.
func (t *Table) onConfirmed(now int64, l *lock, op *inFlight, r *redisop.Result) {
	c, h := &l.claim, l.holds
	op.unassigned = op.unassigned && h == nil // a request may have been granted with what there was before
	if q := l.queue; q != nil {
		q.arbiter.onAcquired(c.state)
		if op.kind == redisop.Take && !c.state.isOurs() {
			q.order.onAcquired(op, r)
		}
	}
	if r.Ticket != 0 { // it stood in the queue
		op.holdID = r.Ticket
	}
	if op.kind == redisop.Renew {
		t.stats.RenewalMargin.Observe(LeaseTimes, time.Duration(c.validUntil-now))
	}
	lease := op.leaseMS
	if h != nil && h.isRenewed() && !h.isOrphan() {
		lease = min(lease, t.leaseMS) // what is above it covers what its client was sent before
	}
	c.confirmed(now, r.Sent+validity(lease), op, r.Token)
	c.renewAt = t.renewalAfter(r.Sent, ms(min(lease, t.leaseMS)), c.holdID)
	if h != nil && h.isChecked() {
		c.renewAt = t.nextCheck(now, h)
	}
	if op.kind == redisop.Take {
		if r.Made && l.user != nil {
			t.countNewName(now, l.user)
		}
		l.rivals.areWaiting = r.Waiting > 0
	}
	if h != nil && h.phase == HoldUnrenewable {
		h.phase = HoldLive
	}
	t.trackDeadline(h)
}

// onDropDone notes that the key has no field of this host.
func (t *Table) onDropDone(now int64, l *lock, op *inFlight, r *redisop.Result) {
	q := l.queue
	if r.Paused {
		q = t.needQueue(l) // it remembers for how long the lock is left free
	}
	if q != nil {
		q.arbiter.onDropDone(&t.policy, now, r, q.firstTries())
	}
	l.forgetClaim(claimAbsent)
	if op.isDoubted {
		l.claim.state = claimUncertain
	}
}

// onHeldByOther notes who has the lock, and refuses the first waiters that do not wait.
func (t *Table) onHeldByOther(now int64, l *lock, op *inFlight, r *redisop.Result) {
	q := l.queue
	a := &q.arbiter
	a.onHeldByOther(&t.policy, now, r, op, &q.place, q.firstTries() && q.waiters.head.request.since > op.sentAt)
	if l.rivals.pollerAt == max(1, shortMillis(now)) {
		t.pollers.note(l.name, l.rivals.pollerAt)
	}
	for q.firstTries() && q.waiters.head.request.since <= op.sentAt {
		req := q.waiters.head.request
		t.endRequest(req)
		t.refuseAcquire(l, req.session, req.id, protocol.Timeout, a.remote.describe(&t.cfg))
	}
	if q.firstTries() {
		a.nextTry = now // it came after the operation was sent
	}
}

// printable makes a foreign owner field fit to be shown.
func printable(field string) string {
	return strings.ToValidUTF8(field[:min(len(field), protocol.MaxField)], "?")
}

// onRedisError keeps what Redis returned for waiters whose time ends before it gets
// better, and answers those that do not wait.
func (t *Table) onRedisError(l *lock, msg string) {
	q := l.queue
	if q == nil {
		return
	}
	q.lastError = msg
	for l.holds == nil && q.firstTries() {
		r := q.waiters.head.request
		t.endRequest(r)
		t.refuseAcquire(l, r.session, r.id, protocol.Unavailable, msg)
	}
}

// updateSubscription has the arbiter subscribe or unsubscribe, and frees a queue that
// nothing needs.
func (t *Table) updateSubscription(a *alarm, l *lock) {
	q := l.queue
	if q == nil {
		return
	}
	heldSince := int64(never)
	if l.holds != nil {
		heldSince = l.holds.granted
	}
	if effect := q.arbiter.updateSubscription(&t.policy, a, q.waiters.head, heldSince, &q.place); effect != 0 {
		t.emit(Effect{Kind: effect, Name: l.name})
	}
	isRivalKnown := l.claim.state.isOurs() && a.now < q.arbiter.rivalUntil
	if q.waiters.head == nil && len(q.confirms) == 0 && q.place.phase == placeNone && q.arbiter.isIdle() && !isRivalKnown &&
		a.due(q.arbiter.backoffUntil) { // the next client must not end a pause that the arbiter made
		l.queue = nil
		*q = queue{}
		t.queues.put(q)
	}
}

// onUnlocked notes a message on the lock's channel.
func (t *Table) onUnlocked(now int64, l *lock) {
	q := l.queue
	own := q.arbiter.onOwnPublish(now)
	if !own {
		l.claim.lingerUntil = 0
	}
	l.claim.noteMayBeFree() // even if a local client believes to have it: the result may say otherwise
	if l.holds != nil && !own {
		l.checkSoon(now)
	}
	switch {
	case q.waiters.head == nil:
		q.arbiter.onUnneededMessage(now)
	case l.holds == nil && !l.claim.isBusy() && q.arbiter.phase != yielding:
		q.arbiter.onUnlocked(&t.policy, now, &q.place)
	}
}

// Subscribed notes that Redis confirmed the subscription, for the first time or again.
func (t *Table) Subscribed(now int64, name string) {
	if l := t.byName[name]; l != nil && l.queue != nil && l.queue.arbiter.sub != unsubscribed {
		q := l.queue
		l.claim.noteMayBeFree()
		if l.holds != nil {
			l.checkSoon(now)
		}
		q.arbiter.onSubscribed(now, q.waiters.head != nil && l.holds == nil)
		t.reconcile(now, l)
	}
}

// Unsubscribed notes that the subscription is gone or was denied. The sidecar polls until
// Subscribed follows.
func (t *Table) Unsubscribed(now int64, name string) {
	if l := t.byName[name]; l != nil && l.queue != nil && l.queue.arbiter.sub == subscribed {
		l.queue.arbiter.onUnsubscribed(&t.policy, now)
		t.reconcile(now, l)
	}
}
