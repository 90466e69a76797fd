package locktable

import (
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable/claim"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// The extent of a claim: how many permits of a semaphore Redis has for this host, or the mode in which it has a read/write
// lock for it. The extent covers all holds, and may be more: what came for waiters, or is given back.
//
// An operation says all that the host is to have, under a number of its own. So its result is
// of whatever came before it: an admission that is received while a Take or a Drop is in flight needs no answer. If that is
// not executed, another one follows.

// onExtentAsked notes that a Take is sent.
func (t *Table) onExtentAsked(now int64, l *lock, op *redisop.Op) {
	t.lastNum = op.HoldID
	t.needMany(l).met = 0
	if l.queue != nil {
		l.queue.contest.OnExtentAsked(now, op)
	}
}

// onExtent takes in what became of an operation on a semaphore or a read/write lock. False: it is what it is for any lock.
func (t *Table) onExtent(now int64, l *lock, op *claim.InFlight, r *redisop.Result) bool {
	c, q, isHeld := &l.claim, l.queue, l.holders.isHeld()
	isTake := op.Kind == redisop.Take
	if q != nil && isTake {
		q.contest.OnExtentResult(op.HoldID, op.Queues, r)
	}
	if q != nil && r.Outcome > redisop.HeldByOther {
		q.contest.OnExtentUnknown()
	}
	switch {
	case r.Outcome == redisop.Differs:
		// A claim or a place has a number that this host has not used yet: another program has made it. It expires.
		c.OnOverwritten()
		c.Retry(now + int64(t.cfg.RetryAfter))
		t.onRedisError(l, "Redis has a later claim of this host on "+l.kind().Noun()+" of this name, which this host did not make: delete it, or wait until it expires")
	case op.Kind == redisop.Drop:
		return false
	case r.Outcome == redisop.Done && op.Kind == redisop.Check:
		known := c.Extent()
		c.OnChecked(now)
		if h := t.checked(l); h != nil {
			c.SetRenewAt(t.nextCheck(now, h))
		}
		if r.Permits > known {
			c.OnOverwritten()
		}
	case r.Outcome == redisop.Done:
		t.onExtentConfirmed(now, l, op, r)
	case r.Outcome == redisop.HeldByOther && (r.Arrived != 0 || l.kind() == redisop.KindPermits && r.Field == ""):
		t.onAway(now, l, op, r)
	case r.Outcome == redisop.KeyMissing && !(isHeld && op.Since.Has(claim.DataMayBeLost)):
		l.forgetClaim(claim.Absent)
		t.doubt(l) // it may have some
		t.loseHolds(now, l, protocol.Deleted, "")
		if op.Count == 0 {
			c.Retry(now + int64(t.cfg.RetryAfter)) // something has the name that this host did not make
		}
	case r.Outcome == redisop.NotSent && isTake:
		c.OnExtentKept(op, l.kind() == redisop.KindReadWrite)
		return false
	case isTake && (r.Outcome == redisop.Refused || r.Outcome == redisop.Retryable || r.Outcome == redisop.NotSynced):
		if r.Outcome == redisop.NotSynced {
			c.OnUnknown(now, op)
		} else {
			c.OnExtentKept(op, l.kind() == redisop.KindReadWrite)
		}
		c.Retry(now + int64(t.cfg.RetryAfter)) // a renewal may be executed all the same
		switch {
		case r.Outcome != redisop.Refused:
			t.onRedisError(l, r.Msg)
		case isHeld && c.State().IsUnsure():
			t.refuseRenewal(now, l) // what asserts the holds is refused
		case op.Want > 0:
			t.denyWaiters(l, r.Msg)
		}
	default:
		return false
	}
	return true
}

// onExtentConfirmed notes the extent that Redis has for this host, after a Take or a Renew.
func (t *Table) onExtentConfirmed(now int64, l *lock, op *claim.InFlight, r *redisop.Result) {
	m, c := t.needMany(l), &l.claim
	before := c.Extent()
	known := max(op.Count, before)
	isRestored := c.State() == claim.Restored
	if op.Kind == redisop.Take {
		came := r.Permits - min(r.Permits, op.Count)
		m.came, m.met = came-min(came, m.met), 0 // of a read/write lock they mean nothing
		if l.queue != nil {
			l.queue.contest.OnExtentGranted(&t.contests, now)
		}
		l.memory.NoteHosts(r.Waiting > 0)
	}
	if op.Count = r.Permits; r.Permits == 0 {
		l.forgetClaim(claim.Absent)
		return
	}
	op.Unassigned = op.Unassigned && !l.holders.isHeld()
	if l.kind() == redisop.KindReadWrite && r.Permits == uint32(redisop.SharedMode) {
		op.Reserve = min(op.Reserve, 1) // as many were drawn, if its own place was admitted
	}
	if l.kind() == redisop.KindReadWrite && r.Permits > before && op.Reserve == 0 {
		c.DropTokens() // readers may have them
	}
	t.confirm(now, l, op, r.Sent, r.Token)
	if l.kind() == redisop.KindReadWrite {
		t.onMode(now, l, redisop.Mode(before), redisop.Mode(r.Permits))
		if r.Queues != 0 { // one operation does not admit all readers of a phase
			c.OnOverwritten()
		}
	}
	if op.Kind == redisop.Renew && (r.Permits > known || isRestored) {
		// What is beyond may be taken by an operation that was sent before, and is executed later. A predecessor may
		// have left a place.
		c.OnOverwritten()
	}
}

// onAway notes that this host has not got what it wants, but what it was to keep.
func (t *Table) onAway(now int64, l *lock, op *claim.InFlight, r *redisop.Result) {
	m, q, c := t.needMany(l), l.queue, &l.claim
	m.came, m.met, op.Reserve, op.Unassigned = 0, 0, 0, false
	switch {
	case op.Count == 0:
		l.forgetClaim(claim.Absent)
	case r.Unsynced:
		c.OnUnknown(now, op) // a failover may undo it: the claim lasts no longer than before
		c.Retry(now + int64(t.cfg.RetryAfter))
	default:
		t.confirm(now, l, op, r.Sent, 0)
	}
	t.doubtForConfirms(l, r.Unsynced)
	if q == nil {
		l.memory.NoteHosts(l.kind() == redisop.KindReadWrite || r.Rank > 0)
		return
	}
	isListening, mayBeFree := t.shardOf(l).isListening, op.Since.Has(claim.LockMayBeFree)
	why := ""
	if l.kind() == redisop.KindReadWrite {
		l.memory.NoteHosts(true)
		isNewcomer := q.firstTries() && q.waiters.head.request.since > op.SentAt
		q.contest.OnHeldByOther(&t.contests, now, l.name, r, op.SentAt, mayBeFree, isNewcomer)
		why = l.describeRemote(t)
	} else {
		isAlone := r.Permits == op.Count && r.Rank == 0 // and waits for its own clients
		l.memory.NoteHosts(r.Rank > 0)
		q.contest.OnPermitsWanted(&t.contests, now, r, op.SentAt, isListening && (r.IsQueued || isAlone), mayBeFree)
		why = tooFewPermits
	}
	for q.firstTries() && q.waiters.head.request.since <= op.SentAt && q.waiters.head.request.wantsAsMuchAs(op.Want) {
		req := q.waiters.head.request
		t.endRequest(req)
		t.refuseAcquire(l, req.session, req.id, protocol.Timeout, why)
	}
	switch {
	case q.firstTries():
		q.contest.TryNow(now)
	case !op.Has(redisop.Enqueue) && l.waiting() > 0 && isListening:
		q.contest.TryBy(now)
	}
}

// wantsAsMuchAs reports whether a request is refused if an operation did not get what it wanted.
func (r *request) wantsAsMuchAs(want uint16) bool {
	return r.mode != Units && uint16(r.mode.inRedis()) >= want || r.permits >= want
}

// onAdmitted takes what this host's place was for.
func (t *Table) onAdmitted(now int64, l *lock, msg *redisop.Message) {
	c, q := &l.claim, l.queue
	isLive := q != nil && q.contest.IsLive(msg.Ticket)
	mayAdd := c.State() == claim.Confirmed || !c.State().IsOurs() && !l.holders.isHeld()
	if msg.Of == redisop.KindReadWrite && c.Extent() > uint32(msg.Units) {
		mayAdd = false // a program has deleted what this host has
	}
	switch {
	case c.IsBusy() && (c.InFlight().Kind == redisop.Take || c.IsDropping()):
		// If that is executed, its result is of all that this host has.
		if c.IsDropping() && t.routes != nil {
			c.Note(claim.TransferReceived) // it may be in flight at another shard than made the admission
		}
	case !c.IsBusy() && isLive && mayAdd && l.kind() == msg.Of && q.contest.IsProof(msg):
		t.stats.Handoffs[HandoffTransfer]++
		m, before := t.needMany(l), c.Extent()
		if msg.Of == redisop.KindPermits {
			m.came += uint32(msg.Units)
		} else {
			t.onMode(now, l, redisop.Mode(before), redisop.Mode(msg.Units))
		}
		validSince := q.contest.OnTransferred(false, msg)
		if c.State() == claim.Confirmed {
			c.Admit(msg)
			break
		}
		m.askedAt, m.askedMS = validSince, msg.LeaseMS
		c.Transfer(now, validSince+claim.Validity(msg.LeaseMS), now, msg)
		c.SetRenewAt(t.renewalAfter(validSince, moment.MS(msg.LeaseMS), t.renewalGroup(l)))
	default:
		// Another operation has Redis take back what this host does not know.
		c.OnOverwritten()
		t.doubt(l)
		if isLive {
			q.contest.OnTransferUnproved()
		}
	}
}
