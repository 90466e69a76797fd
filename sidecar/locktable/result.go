package locktable

import (
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable/claim"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Result takes Redis's answer to the lock's operation in flight.
func (t *Table) Result(now int64, r redisop.Result) {
	l := t.byName[r.Name]
	if l == nil {
		panic("locktable: a result for a lock that is not known: " + r.Name)
	}
	t.shardAt(r.Shard).onResult(now)
	if r.Outcome < redisop.NotSent {
		t.contests.NoteAnswer(now, now-r.Sent)
		t.stats.Scripts.Observe(ShortTimes, time.Duration(now-r.Sent))
	}
	if r.Kind == redisop.Renew {
		t.stats.Renewals[r.Outcome]++
	}
	if r.Kind == redisop.Drop && l.queue != nil {
		l.queue.contest.OnDropResult(&r)
	}
	op, pipelined := l.claim.Answer(r.Kind)
	if pipelined {
		// Nothing more to learn here: the result of the Take pipelined after this Drop
		// reports the key's state.
		l.memory.NoteSubscribers(&r)
		t.reconcile(t.visit(now, l))
		return
	}
	if op.Kind == redisop.Arrive {
		t.onArrived(now, l, &op, &r)
		t.reconcile(t.visit(now, l))
		return
	}
	if op.Has(redisop.Enqueue) && l.queue != nil && l.kind() == redisop.KindLock { // Up may have forgotten the ticket, and with it the queue
		l.queue.contest.OnTakeResult(op.HoldID, &r)
		if r.Outcome == redisop.HeldByOther && r.Arrived != 0 {
			l.queue.arrive(op.SentAt, r.Arrived)
		}
	}
	// A deadline that passed before this answer came has passed: the holder has
	// stopped believing, whatever Redis did.
	t.expireHolds(now, l)

	l.memory.NoteSubscribers(&r)
	if q := l.queue; q != nil {
		q.lastError = ""
	}
	wasMoved := op.Since.Has(claim.Moved)
	if isExecuted := r.Outcome != redisop.NotSent && r.Outcome != redisop.Retryable; isExecuted || !wasMoved {
		if !l.kind().HasMany() || !t.onExtent(now, l, &op, &r) {
			t.onOutcome(now, l, &op, &r)
		}
	}
	if wasMoved {
		// It went to the shard that had the lock before. The present one may lack what it did, and is asked
		// at once if it did nothing.
		l.claim.OnDataLost()
		if l.queue != nil {
			l.queue.contest.OnMoved(now, t.shardOf(l).isListening)
		}
	}
	t.reconcile(t.visit(now, l))
}

// onOutcome takes in what became of an operation.
func (t *Table) onOutcome(now int64, l *lock, op *claim.InFlight, r *redisop.Result) {
	c, q := &l.claim, l.queue
	switch r.Outcome {
	case redisop.Done:
		switch op.Kind {
		case redisop.Drop:
			t.onDropDone(now, l, op, r)
		case redisop.Check:
			c.OnChecked(now)
			if h := t.checked(l); h != nil {
				c.SetRenewAt(t.nextCheck(now, h))
			}
		default:
			t.onConfirmed(now, l, op, r)
		}
		if op.Since.Has(claim.KeyMayHaveChanged) && l.holders.isHeld() {
			c.CheckSoon(now)
		}

	case redisop.HeldByOther:
		l.forgetClaim(claim.Absent)
		t.cool(l)
		t.doubtForConfirms(l, r.Unsynced || r.Kind != redisop.Take) // another operation writes nothing that replicas confirm
		t.loseHolds(now, l, protocol.Stolen, r.Field)
		if l.kind() == redisop.KindReadWrite && r.Kind != redisop.Take {
			t.doubt(l) // it may have the other mode
		}
		if q = l.queue; q != nil {
			t.onHeldByOther(now, l, op, r)
		}

	case redisop.KeyMissing:
		if l.holders.isHeld() && op.Since.Has(claim.DataMayBeLost) {
			c.OnKeyMissing() // no program deleted it: assert it
			break
		}
		l.forgetClaim(claim.Absent)
		t.doubtForConfirms(l, true)
		if l.holders.isHeld() {
			t.loseHolds(now, l, protocol.Deleted, "")
		} else if q != nil && op.Has(redisop.Enqueue) {
			q.contest.OnFoundFree(&t.contests, now, q.firstTries())
		}

	case redisop.Differs:
		c.OnOverwritten()

	case redisop.NotALock:
		l.forgetClaim(claim.Absent)
		t.loseHolds(now, l, protocol.Stolen, r.Field)
		t.denyWaiters(l, r.Msg)

	case redisop.NotSent:
		c.Retry(now + int64(t.cfg.RetryAfter))
		t.onRedisError(l, r.Msg)

	case redisop.Unknown:
		c.OnUnknown(now, op)
		t.onRedisError(l, r.Msg)

	case redisop.NotSynced, redisop.Retryable:
		if r.Outcome == redisop.NotSynced {
			c.OnUnknown(now, op) // after a failover, Redis may have what it had before
		}
		if op.Reserve > 0 && l.holders.isHeld() {
			t.reserveFailed(now, l)
		} else {
			c.Retry(now + int64(t.cfg.RetryAfter))
		}
		t.onRedisError(l, r.Msg)

	case redisop.Refused:
		if q != nil && !l.holders.isHeld() {
			q.contest.OnRefused()
		}
		switch {
		case op.Kind == redisop.Drop:
			// This sidecar may not touch the key any more; it ends with its lease.
			l.forgetClaim(claim.Absent)
			if l.queue != nil && len(l.queue.confirms) > 0 {
				l.queue.refusal = r.Msg
			}
		case op.Reserve > 0 && l.holders.isHeld():
			t.reserveFailed(now, l)
		case l.holders.isHeld():
			c.Retry(now + int64(t.cfg.RetryAfter))
			t.refuseRenewal(now, l)
		default:
			t.denyWaiters(l, r.Msg)
		}
	}
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

// onConfirmed notes that the key is this host's as a Take or a Renew wanted it.
func (t *Table) onConfirmed(now int64, l *lock, op *claim.InFlight, r *redisop.Result) {
	c := &l.claim
	isForQueue := op.Unassigned
	op.Unassigned = op.Unassigned && !l.holders.isHeld() // a request may have been granted with what there was before
	if q := l.queue; q != nil {
		q.contest.OnAcquired(c.State().IsOurs())
		if op.Kind == redisop.Take && isForQueue && !c.State().IsOurs() { // a Take that asserts a hold says nothing of waiters
			q.contest.OnTaken(op.SentAt, op.Has(redisop.Enqueue), r)
		}
	}
	if r.Ticket != 0 { // it stood in the queue
		op.HoldID = r.Ticket
	}
	t.confirm(now, l, op, r.Sent, r.Token)
	if op.Kind == redisop.Take {
		if r.Made && l.user != nil {
			t.countNewName(now, l.user)
		}
		l.memory.NoteHosts(r.Waiting > 0)
	}
}

// onDropDone notes that the key has no field of this host.
func (t *Table) onDropDone(now int64, l *lock, op *claim.InFlight, r *redisop.Result) {
	q := l.queue
	if r.Paused {
		q = t.needQueue(l) // it remembers for how long the lock is left free
	}
	if q != nil {
		q.contest.OnDropped(&t.contests, now, r, q.firstTries())
	}
	l.forgetClaim(claim.Absent)
	if op.Since.Has(claim.TransferReceived) || op.Since.Has(claim.Moved) || r.Queues != 0 {
		l.claim.MayBeBack() // another Drop follows
	}
	t.doubtForConfirms(l, op.Has(redisop.CanWait))
}

// onHeldByOther notes who has the lock, and refuses the first waiters that do not wait.
func (t *Table) onHeldByOther(now int64, l *lock, op *claim.InFlight, r *redisop.Result) {
	q := l.queue
	isNewcomer := q.firstTries() && q.waiters.head.request.since > op.SentAt
	q.contest.OnHeldByOther(&t.contests, now, l.name, r, op.SentAt, op.Since.Has(claim.LockMayBeFree), isNewcomer)
	for q.firstTries() && q.waiters.head.request.since <= op.SentAt {
		req := q.waiters.head.request
		t.endRequest(req)
		t.refuseAcquire(l, req.session, req.id, protocol.Timeout, q.contest.Remote().Describe(&t.contests))
	}
	switch {
	case q.firstTries():
		q.contest.TryNow(now) // it came after the operation was sent
	case !op.Has(redisop.Enqueue) && l.waiting() > 0 && t.shardOf(l).isListening:
		q.contest.TryBy(now) // the operation was for a hold, or for a request that did not wait, and made no ticket
	}
}

// onArrived takes the result of an Arrive.
func (t *Table) onArrived(now int64, l *lock, op *claim.InFlight, r *redisop.Result) {
	q := l.queue
	if r.Outcome != redisop.Done {
		if q != nil { // it says nothing of the lock
			q.contest.OnArriveFailed(r, now+int64(t.cfg.RetryAfter))
		}
		return
	}
	isOurs := l.claim.State().IsOurs() && !l.claim.IsDropping() // which may have passed it on since
	if isOurs && r.FirstArrived != 0 {
		l.memory.NoteHosts(true)
	}
	if q == nil {
		return
	}
	q.arrive(op.SentAt, r.Arrived)
	q.contest.OnArrived(r, isOurs)
}
