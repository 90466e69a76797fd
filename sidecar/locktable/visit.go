package locktable

import (
	"github.com/locksidecar/locksidecar/sidecar/locktable/claim"
	"github.com/locksidecar/locksidecar/sidecar/locktable/contest"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// visit returns a visit to a lock. Another one ends it.
func (t *Table) visit(now int64, l *lock) *visit {
	v := &t.visiting
	v.Alarm, v.lock, v.hasMore, v.lingerUntil, v.isDecided, v.grants = moment.At(now), l, false, 0, false, 0
	return v
}

// onChange notes that the lock has changed, so that what was decided is out of date.
func (v *visit) onChange() { v.lingerUntil, v.isDecided = 0, false }

// decide returns what the contest decides about the lock as it is. Precondition: no local client
// has it, or the holds admit the first waiter.
func (t *Table) decide(v *visit) *contest.Verdict {
	if v.isDecided {
		return &v.verdict
	}
	l, w := v.lock, &v.view
	c, s, q := &l.claim, t.shardOf(l), l.queue
	*w = contest.View{Now: v.Now}
	w.IsReachable, w.IsListening, w.MayLinger = s.isUp(), s.isListening, t.mayLinger(l)
	w.Claim, w.IsBusy, w.IsDropping, w.IsReleasing = viewOf(c.State()), c.IsBusy(), c.IsDropping(), c.IsReleasing()
	w.DropPassedMS, w.CameAt, w.BusySince, w.Grants = int64(c.InFlight().PassedMS), c.CameAt(), c.BusySince(), c.Grants()
	w.LingerUntil, w.LingerLatest = c.LingerUntil(), c.ValidUntil()-moment.MS(c.LeaseMS())/3
	w.IsSpare, w.IsBeside = c.IsSpare(), l.holders.isHeld()
	if v.lingerUntil != 0 {
		w.IsReleased, w.LingerUntil = true, v.lingerUntil
	}
	var contested *contest.Contest
	if q != nil {
		contested = &q.contest
		w.Waiting, w.WantsOrder, w.HasNewcomer, w.HasConfirms = l.waiting(), q.fair > 0, q.newcomer != nil, len(q.confirms) > 0
		if first := q.waiters.head; first != nil {
			r := first.request
			w.First = contest.Waiter{Tries: first.isTrying(), IsFair: r.isFair, IsAlone: r.isAlone, Since: r.since, Arrived: r.arrived, Permits: r.permits, Capacity: r.capacity, Mode: r.mode.inRedis(), IsOfPhase: r.isOfPhase}
			w.IsCovered = !v.hasMore && l.holders.admits(r.mode) && t.isCovered(v.Now, l, r) // what is left for Work is not granted in this visit
		}
	}
	if l.kind().HasMany() {
		m := t.needMany(l)
		w.Of, w.BusySince = l.kind(), 0 // there are no free moments for others
		w.IsIdle, w.CameForFirst = c.Extent() > t.neededOf(l), m.came >= uint32(w.First.Permits)
		w.Fits = m.units+uint32(w.First.Permits) <= uint32(w.First.Capacity)
		w.IsExclusive, w.Queues = c.Extent() == uint32(redisop.ExclusiveMode), q.modes()
	}
	t.contests.Decide(&v.verdict, &v.Alarm, &l.memory, contested, w)
	v.isDecided = true
	return &v.verdict
}

// mayLinger reports whether a lock may linger: another sidecar that wants it can say so.
func (t *Table) mayLinger(l *lock) bool {
	s := t.shardOf(l)
	return s.isUp() && s.isListening && !t.isStopping
}

// isInOrder reports whether the waiters of a lock get it in strict order.
func (t *Table) isInOrder(l *lock) bool {
	return l.queue != nil && l.queue.fair > 0 && t.shardOf(l).isListening
}

// viewOf is what the contest has to know of the state of a claim.
func viewOf(s claim.State) contest.ClaimState {
	switch {
	case s == claim.Absent:
		return contest.Absent
	case s.IsOurs():
		return contest.Ours
	}
	return contest.Unsure
}

// cool has a lock not linger, because another host wants it, or for another reason.
func (t *Table) cool(l *lock) {
	t.contests.Cool(l.name, &l.memory)
	l.claim.EndLinger()
}

// linger has a hot lock linger, or be yielded, that its owner released, who had it since then.
func (t *Table) linger(v *visit, since int64) {
	l := v.lock
	until := t.contests.OnReleased(l.name, &l.memory, v.Now, v.Now-since)
	if !l.memory.IsHot() || l.waiting() > 0 {
		return
	}
	v.lingerUntil = until
	switch verdict := t.decide(v); verdict.Do {
	case contest.Linger:
		l.claim.Linger(until)
	case contest.Yield:
		t.needQueue(l).contest.Accept(verdict)
	}
}

// isCovered reports whether the claim covers a request: with a token for it, and with
// validity that is long enough to be worth having. A lease that was acquired for it may have
// spent up to two thirds on the way; one that it inherits has to be as long as its own. A keep
// begins when the lease does, which may be a moment before the grant; an inherited claim, and one
// whose key may have another expiry by now, has to be valid for all of it.
func (t *Table) isCovered(now int64, l *lock, r *request) bool {
	c := &l.claim
	m := t.manyOf(l)
	if !c.HasTokens() || !t.hasExtentFor(l, r) {
		return false
	}
	lease, left := t.leaseOf(r.lease, r.leaseMS), c.ValidUntil()-now
	if r.lease == WatchdogLease && l.holders.isHeld() {
		left = t.validUntil(l) - now
	}
	isOwn := c.IsMadeFor(t.leaseToTake(r))
	if m != nil && m.askedAt >= r.since && m.askedMS >= t.leaseToTake(r) {
		isOwn = true // beside others
	}
	switch {
	case !isOwn && left < moment.MS(r.keepMS):
		return false
	case r.lease == WatchdogLease || isOwn:
		return left >= moment.MS(lease)/3
	}
	return left >= claim.Validity(lease)
}

// hasExtentFor reports whether the extent of the claim suffices for a request, too.
func (t *Table) hasExtentFor(l *lock, r *request) bool {
	switch l.kind() {
	case redisop.KindPermits:
		return t.hasPermitsFor(l, r)
	case redisop.KindReadWrite:
		return l.claim.Extent() >= uint32(r.mode.inRedis())
	}
	return true
}

// hasPermitsFor reports whether the claim has permits for a request. Those that came when a larger capacity was named may be
// too many for one that names less: Redis counts those of all hosts.
func (t *Table) hasPermitsFor(l *lock, r *request) bool {
	m, units := t.manyOf(l), t.unitsOf(l)+uint32(r.permits)
	if l.claim.Extent() < units || units > uint32(r.capacity) {
		return false
	}
	return m == nil || m.came >= uint32(r.permits) || r.capacity >= m.capacities.largest()
}

// leaseToTake is the lease that Redis is given for a request: from the grant on, it has the lock
// for all of the keep, so that the lock stays held if this host dies.
func (t *Table) leaseToTake(r *request) uint32 {
	return max(t.leaseOf(r.lease, r.leaseMS), claim.LeaseKeeping(moment.MS(r.keepMS)))
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
