package locktable

import (
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable/claim"
	"github.com/locksidecar/locksidecar/sidecar/locktable/contest"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// The permits of a semaphore. In Redis, this host has one claim: so many permits as all its holds together, and those
// that came for its waiters. An operation says all that the host is to have, under a number of its own. So its result is
// of whatever came before it: an admission that is received while a Take or a Drop is in flight needs no answer. If that is
// not executed, another one follows.
//
// What a claim has beyond the holds is idle. An idle permit goes to the next local waiter, unless another host waits that
// came before it: see contest/permits.go. Then it goes back, with the operation that asks for the waiter.

// handBackDelay is for how long a host may keep permits that no client of it wants, beside those that one has, while no
// other host asks for them: as long as Redis may have an earlier hold of a lock that is handed over.
const handBackDelay = int64(5 * time.Millisecond)

// wantPermits sets what Redis should have for a semaphore that local clients have permits of, or want.
func (t *Table) wantPermits(w *claim.Want, v *visit) {
	l, q := v.lock, v.lock.queue
	m := t.needMany(l)
	w.Kind, w.HoldID, w.Count, w.LeaseMS = claim.WantPermits, t.lastNum+1, m.units, t.leaseMS
	w.NotBefore, w.GiveBackAt = moment.Never, t.giveBackAt(v, m)
	w.IsRenewed, w.IsChecked = m.renewed > 0, m.renewed == 0
	w.Capacity = max(m.capacities.largest(), uint16(m.units))
	if l.waiting() == 0 || m.units > 0 && l.claim.State().IsUnsure() {
		return // the holds are asserted by what they need alone
	}
	verdict, first := t.decide(v), q.waiters.head.request
	if verdict.Do == contest.Drop {
		t.wantDrop(w, v, verdict)
		return
	}
	if verdict.Do == contest.Grant || v.hasMore {
		w.GiveBackAt = moment.Never
		return // Work grants it
	}
	w.Asked, w.NotBefore, w.LeaseMS = verdict.Asked, verdict.NotBefore, t.leaseToTake(first)
	w.Want, w.Capacity, w.Times, w.Reserve = first.permits, first.capacity, 1, 1
	if w.Has(redisop.Yields) {
		return
	}
	lacksToken := l.claim.Permits() >= m.units+uint32(first.permits)
	if l.memory.IsHot() || v.view.Waiting > 1 || lacksToken {
		w.Reserve = uint16(max(2, t.cfg.Tokens))
	}
	most := min(w.Reserve, maxTimes)
	for next := q.waiters.head.inQueue.next; next != nil && uint16(w.Times) < most && next.request.wantsSame(first); next = next.inQueue.next {
		w.Times++
	}
}

// wantDrop sets that Redis is to have nothing of this host for a lock, as a verdict says.
func (t *Table) wantDrop(w *claim.Want, v *visit, verdict *contest.Verdict) {
	*w = claim.Want{Kind: claim.WantNothing, LeaseMS: t.leaseMS}
	if verdict.LeavesFree {
		w.PassedMS = redisop.MS(redisop.FreeAfter) // Redis leaves it free, too
	}
	if q := v.lock.queue; q != nil {
		w.Ticket = q.contest.Ticket()
	}
}

// maxTimes is for how many waiters one operation asks at most.
const maxTimes = 255

// wantsSame reports whether a request wants what another one does, for as long.
func (r *request) wantsSame(other *request) bool {
	return r.permits == other.permits && r.capacity == other.capacity && r.lease == other.lease && r.leaseMS == other.leaseMS
}

// giveBackAt is when Redis is to get back what no client here wants: idle permits, or a place; never: there is nothing.
func (t *Table) giveBackAt(v *visit, m *many) int64 {
	l, q := v.lock, v.lock.queue
	isIdle := l.claim.Permits() > m.units
	switch {
	case !isIdle:
		m.idleSince = 0
	case m.idleSince == 0:
		m.idleSince = v.Now
	}
	hasPlace := q != nil && q.contest.HasPlace()
	switch {
	case hasPlace && l.waiting() == 0, isIdle && (hasPlace || l.memory.HostsWait() || q != nil && len(q.confirms) > 0):
		return v.Now
	case isIdle:
		return m.idleSince + handBackDelay
	}
	return moment.Never
}

// onPermitsAsked notes that a Take of permits is sent.
func (t *Table) onPermitsAsked(now int64, l *lock, op *redisop.Op) {
	t.lastNum = op.HoldID
	t.needMany(l).met = 0
	if l.queue != nil {
		l.queue.contest.OnPermitsAsked(now, op)
	}
}

// onPermits takes in what became of an operation on a semaphore. False: it is what it is for any lock.
func (t *Table) onPermits(now int64, l *lock, op *claim.InFlight, r *redisop.Result) bool {
	c, q, isHeld := &l.claim, l.queue, l.holders.isHeld()
	isTake := op.Kind == redisop.Take
	if q != nil && isTake {
		q.contest.OnPermitsResult(op.HoldID, r)
	}
	if q != nil && r.Outcome > redisop.HeldByOther {
		q.contest.OnPermitsUnknown()
	}
	switch {
	case r.Outcome == redisop.Differs:
		// A claim or a place has a number that this host has not used yet: another program has made it. It expires.
		c.OnOverwritten()
		c.Retry(now + int64(t.cfg.RetryAfter))
		t.onRedisError(l, "Redis has a later claim of this host on the semaphore, which this host did not make: delete it, or wait until it expires")
	case op.Kind == redisop.Drop:
		return false
	case r.Outcome == redisop.Done && op.Kind == redisop.Check:
		known := c.Permits()
		c.OnChecked(now)
		if h := t.checked(l); h != nil {
			c.SetRenewAt(t.nextCheck(now, h))
		}
		if r.Permits > known {
			c.OnOverwritten()
		}
	case r.Outcome == redisop.Done:
		t.onPermitted(now, l, op, r)
	case r.Outcome == redisop.HeldByOther && r.Field == "":
		t.onWanted(now, l, op, r)
	case r.Outcome == redisop.KeyMissing && !(isHeld && op.Since.Has(claim.DataMayBeLost)):
		l.forgetClaim(claim.Absent)
		t.doubt(l) // it may have some
		t.loseHolds(now, l, protocol.Deleted, "")
		if op.Count == 0 {
			c.Retry(now + int64(t.cfg.RetryAfter)) // something has the name that is none of this host's semaphores
		}
	case r.Outcome == redisop.NotSent && isTake:
		c.OnPermitsKept(op)
		return false
	case isTake && (r.Outcome == redisop.Refused || r.Outcome == redisop.Retryable || r.Outcome == redisop.NotSynced):
		if r.Outcome == redisop.NotSynced {
			c.OnUnknown(now, op)
		} else {
			c.OnPermitsKept(op)
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

// onPermitted notes how many permits Redis has for this host, after a Take or a Renew.
func (t *Table) onPermitted(now int64, l *lock, op *claim.InFlight, r *redisop.Result) {
	m, c := t.needMany(l), &l.claim
	known := max(op.Count, c.Permits())
	isRestored := c.State() == claim.Restored
	if op.Kind == redisop.Take {
		came := r.Permits - min(r.Permits, op.Count)
		m.came, m.met = came-min(came, m.met), 0
		if l.queue != nil {
			l.queue.contest.OnPermitsGranted()
		}
		l.memory.NoteHosts(r.Waiting > 0)
	}
	if op.Count = r.Permits; r.Permits == 0 {
		l.forgetClaim(claim.Absent)
		return
	}
	op.Unassigned = op.Unassigned && !l.holders.isHeld()
	t.confirm(now, l, op, r.Sent, r.Token)
	if op.Kind == redisop.Renew && (r.Permits > known || isRestored) {
		// What is beyond may be taken by an operation that was sent before, and is executed later. A predecessor may
		// have left a place.
		c.OnOverwritten()
	}
}

// onWanted notes that too few permits are free: this host has those that it was to keep.
func (t *Table) onWanted(now int64, l *lock, op *claim.InFlight, r *redisop.Result) {
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
	isAlone := r.Permits == op.Count && r.Rank == 0 // and waits for its own clients
	l.memory.NoteHosts(r.Rank > 0)
	if q == nil {
		return
	}
	isListening := t.shardOf(l).isListening
	q.contest.OnPermitsWanted(&t.contests, now, r, op.SentAt, isListening && (r.IsQueued || isAlone), op.Since.Has(claim.LockMayBeFree))
	for q.firstTries() && q.waiters.head.request.since <= op.SentAt && q.waiters.head.request.permits >= op.Want {
		req := q.waiters.head.request
		t.endRequest(req)
		t.refuseAcquire(l, req.session, req.id, protocol.Timeout, tooFewPermits)
	}
	switch {
	case q.firstTries():
		q.contest.TryNow(now)
	case !op.Has(redisop.Enqueue) && l.waiting() > 0 && isListening:
		q.contest.TryBy(now)
	}
}

// onAdmitted takes the permits that this host's place was for.
func (t *Table) onAdmitted(now int64, l *lock, msg *redisop.Message) {
	c, q := &l.claim, l.queue
	isLive := q != nil && q.contest.IsLive(msg.Ticket)
	mayAdd := c.State() == claim.Confirmed || !c.State().IsOurs() && !l.holders.isHeld()
	switch {
	case c.IsBusy() && (c.InFlight().Kind == redisop.Take || c.IsDropping()):
		// If that is executed, its result is of all that this host has.
		if c.IsDropping() && t.routes != nil {
			c.Note(claim.TransferReceived) // it may be in flight at another shard than made the admission
		}
	case !c.IsBusy() && isLive && mayAdd && l.kind() == redisop.KindPermits && q.contest.IsProof(msg):
		t.stats.Handoffs[HandoffTransfer]++
		m := t.needMany(l)
		m.came += uint32(msg.Units)
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
