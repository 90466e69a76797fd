package contest

import (
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Decide sets w to the verdict about a lock that no local client has, or about its next waiter beside holds. c is nil if the lock is not
// contended. a is the time from which the verdict may be another one, although nothing happens.
func (s *Shared) Decide(w *Verdict, a *moment.Alarm, m *Memory, c *Contest, v *View) {
	*w = Verdict{}
	switch {
	case v.Waiting > 0 && v.Of == redisop.KindPermits:
		c.decideForPermits(w, v)
	case v.Waiting > 0 && v.Of == redisop.KindReadWrite:
		c.decideForReadWrite(w, s, v)
	case v.Waiting > 0:
		c.decideForWaiter(w, s, v)
	default:
		s.decideForNobody(w, a, m, c, v)
	}
}

// decideForWaiter decides about a lock for which local clients wait.
func (c *Contest) decideForWaiter(w *Verdict, s *Shared, v *View) {
	isOurs := v.Claim == Ours
	isServed := c.isServed(v)
	mayGrant := isOurs && !v.IsDropping
	endsTurn := mayGrant && c.endsTurn(s, v)
	isYielding := c.phase == yielding && v.IsReachable || endsTurn
	isLeaving := c.place.phase == placeLeaving // the journal has no record of a ticket that is forgotten
	switch yields := isYielding && v.Claim != Absent || isOurs && !isServed; {
	case mayGrant && !yields && v.IsCovered:
		w.Do = Grant
		return
	case mayGrant && !yields && isLeaving:
		w.Do = Drop
	case isLeaving:
		w.Do, w.EndsTurn = Yield, endsTurn
	case v.IsReleasing && c.mayPipeline(s, v, yields):
		w.Flags = redisop.AfterPendingDrop
		c.ask(w, v)
		return
	case !yields:
		c.ask(w, v)
		return
	default:
		w.Do, w.EndsTurn = Yield, endsTurn
	}
	// A client that found the lock in use lets others have it if the Drop is to leave it free for a
	// moment: this host has it, and foreign clients want it; or it has had no free moment for long, also
	// if Redis may have lost it since. A Drop that gives up no more than a ticket leaves nothing to others.
	w.LeavesFree = s.isTired(c.memory, v)
	w.Yields = !v.First.IsAlone && (isOurs && c.areForeignKnown(v.Now) || w.LeavesFree)
}

// ask completes a verdict: Redis is asked for the lock.
func (c *Contest) ask(w *Verdict, v *View) {
	first, enqueue := &v.First, c.mayEnqueue(v)
	w.Do = Ask
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

// Accept notes that the table does what a verdict says about a lock that this host has.
func (c *Contest) Accept(v *Verdict) {
	switch {
	case v.EndsTurn:
		c.phase = yielding
	case v.Do != Yield:
		c.phase = contending
	}
}

// IsIdle reports whether nothing is lost if the contest is forgotten. holdsClaim: Redis has the lock
// for this host.
func (c *Contest) IsIdle(a *moment.Alarm, holdsClaim bool) bool {
	isForeignKnown := holdsClaim && a.Now < c.foreignUntil
	return c.place.phase == placeNone && c.sub == unsubscribed && c.phase != yielding && !isForeignKnown &&
		a.Due(c.backoffUntil) // the next client must not end a pause that the contest made
}
