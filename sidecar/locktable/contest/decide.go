package contest

import (
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Decide decides about a lock that no local client has. c is nil if the lock is not contended. a
// is the time from which a verdict may be another one, although nothing happens.
func (s *Shared) Decide(a *moment.Alarm, m *Memory, c *Contest, v *View) Verdict {
	if v.Waiting > 0 {
		return c.decideForWaiter(s, v)
	}
	if s.lingers(a, m, c, v) {
		return Verdict{Do: Linger}
	}
	return Verdict{Do: Drop, LeavesFree: s.isTired(m, v)}
}

// decideForWaiter decides about a lock for which local clients wait.
func (c *Contest) decideForWaiter(s *Shared, v *View) Verdict {
	isOurs := v.Claim == Ours
	isServed := c.isServed(v)
	mayGrant := isOurs && !v.IsDropping
	endsTurn := mayGrant && c.endsTurn(s, v)
	isYielding := c.phase == yielding && v.IsReachable || endsTurn
	isLeaving := c.place.phase == placeLeaving // the journal has no record of a ticket that is forgotten
	switch yields := isYielding && v.Claim != Absent || isOurs && !isServed; {
	case mayGrant && !yields:
		return Verdict{Do: Grant, GivesBack: isLeaving, LeavesFree: isLeaving && s.isTired(c.memory, v)}
	case isLeaving:
	case v.IsReleasing && c.mayPipeline(s, v, yields):
		return Verdict{Do: Ask, Asked: redisop.Asked{Flags: redisop.AfterPendingDrop}}
	case !yields:
		return Verdict{Do: Ask}
	}
	return Verdict{Do: Yield, EndsTurn: endsTurn, LeavesFree: s.isTired(c.memory, v)}
}

// Ask completes a verdict, if it is that Redis is asked for the lock.
func (c *Contest) Ask(v *View, w *Verdict) {
	first, enqueue := &v.First, c.mayEnqueue(v)
	w.NotBefore, w.ArriveAt, w.Ticket = c.nextTry, never, c.place.live()
	w.Set(redisop.Enqueue, enqueue)
	w.Set(redisop.InOrder, enqueue && w.Ticket == 0) // a free lock goes to the first of the queue, if there is one
	w.Set(redisop.RequireExisting, v.Claim == Absent && !first.Tries && c.mustOnlyAsk(v.Now))
	if enqueue && v.isInOrder() {
		w.Flags, w.Arrived = w.Flags|redisop.InOrder, first.Arrived
		if w.Ticket != 0 && v.HasNewcomer {
			w.ArriveAt = c.order.retryAt
		}
		switch {
		case c.mustMove(first):
			w.NotBefore = min(w.NotBefore, max(v.Now, c.backoffUntil))
		case c.standsForAnother(first):
			w.NotBefore = never // the ticket moves to the arrival of the first waiter before it is used
		}
	}
	if c.isBackingOff(v.Now) && w.NotBefore < c.backoffUntil {
		// The lock is left free. It may be looked at, see lookForPoller.
		onlyLooks := v.Claim == Absent && enqueue && !first.Tries
		if w.Set(redisop.RequireExisting, onlyLooks); !onlyLooks {
			w.NotBefore = c.backoffUntil
		}
	}
}

// ArriveAt returns from when on Redis may be asked when waiters arrived.
func (c *Contest) ArriveAt() int64 { return c.order.retryAt }

// Accept notes that the table does what a verdict about waiters says.
func (c *Contest) Accept(v Verdict) {
	switch {
	case v.Do == Grant:
		c.phase = contending
	case v.EndsTurn:
		c.phase = yielding
	}
}

// IsIdle reports whether nothing is lost if the contest is forgotten. holdsClaim: Redis has the lock
// for this host.
func (c *Contest) IsIdle(a *moment.Alarm, holdsClaim bool) bool {
	isForeignKnown := holdsClaim && a.Now < c.foreignUntil
	return c.place.phase == placeNone && c.sub == unsubscribed && c.phase != yielding && !isForeignKnown &&
		a.Due(c.backoffUntil) // the next client must not end a pause that the contest made
}
