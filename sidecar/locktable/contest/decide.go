package contest

import "github.com/locksidecar/locksidecar/sidecar/locktable/moment"

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
		return Verdict{Do: Ask, Pipelined: true}
	case !yields:
		return Verdict{Do: Ask}
	}
	return Verdict{Do: Yield, EndsTurn: endsTurn, LeavesFree: s.isTired(c.memory, v)}
}

// Take returns how Redis is asked for the lock, if a verdict is that it is. pipelined: after the Drop
// in flight.
func (c *Contest) Take(v *View, pipelined bool) Take {
	first, enqueue := &v.First, c.mayEnqueue(v)
	t := Take{
		NotBefore: c.nextTry, Ticket: c.place.live(), Pipelined: pipelined, Enqueue: enqueue,
		OnlyAsk: v.Claim == Absent && !first.Tries && c.mustOnlyAsk(v.Now),
	}
	t.InOrder = enqueue && t.Ticket == 0
	if enqueue && v.isInOrder() {
		t.InOrder, t.Arrived = true, first.Arrived
		t.Arrives, t.ArriveAt = t.Ticket != 0 && v.HasNewcomer, c.order.retryAt
		switch {
		case c.mustMove(first):
			t.NotBefore = min(t.NotBefore, max(v.Now, c.backoffUntil))
		case c.standsForAnother(first):
			t.NotBefore = never // the ticket moves to the arrival of the first waiter before it is used
		}
	}
	if c.isBackingOff(v.Now) && t.NotBefore < c.backoffUntil {
		// The lock is left free. It may be looked at, see lookForPoller.
		t.OnlyAsk = v.Claim == Absent && enqueue && !first.Tries
		if !t.OnlyAsk {
			t.NotBefore = c.backoffUntil
		}
	}
	return t
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
