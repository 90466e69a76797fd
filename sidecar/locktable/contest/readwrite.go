package contest

import "github.com/locksidecar/locksidecar/sidecar/redisop"

// The contest for a read/write lock. Read phases and write phases alternate, on this host and between hosts. While a writer
// waits on any host, no new reader gets the lock, but those that came before the read phase began (K8).
//
// A host has one place among the readers and one among the writers, for its first waiter of each mode. They have one ticket.

// decideForReadWrite decides about a read/write lock for which local clients wait.
func (c *Contest) decideForReadWrite(w *Verdict, s *Shared, v *View) {
	isTurn, isOurs := c.isTurnOf(s, v), v.Claim == Ours && !v.IsDropping
	switch {
	case c.place.phase == placeLeaving:
		w.Do = Drop
		return
	case isOurs && v.IsCovered && isTurn:
		w.Do = Grant
		return
	}
	w.Do, w.NotBefore, w.ArriveAt = Ask, c.nextTry, never
	if w.Set(redisop.Enqueue, c.mayEnqueue(v)); w.Has(redisop.Enqueue) {
		w.Times = v.Queues
	}
	w.Set(redisop.Yields, isOurs && !isTurn)
	isNew := uint16(w.Times)&^c.asked.of != 0 || w.Times == 0 && c.asked.want != uint16(v.First.Mode) // Redis was not asked for that
	if v.IsIdle || isNew || c.asked == (asked{}) {
		w.NotBefore = v.Now
	}
}

// isTurnOf reports whether the first waiter may get the lock with the claim that this host has. Local readers follow a local writer.
func (c *Contest) isTurnOf(s *Shared, v *View) bool {
	switch {
	case !c.memory.hostsWait || !v.IsReachable:
		return true
	case v.First.Mode == redisop.ExclusiveMode:
		return v.Grants == 0 || v.Now-v.CameAt < s.turn()
	}
	return v.First.IsOfPhase || v.IsExclusive
}
