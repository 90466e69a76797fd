package contest

import (
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// turn is how long a turn may last while another sidecar waits: two round trips, so that most of
// the time the lock is in use, and not on its way.
func (s *Shared) turn() int64 {
	twoTrips := min(max(2*s.trip, int64(200*time.Microsecond)), int64(20*time.Millisecond))
	return int64(s.cfg.Turn.Or(time.Duration(twoTrips)))
}

// endsTurn reports whether this host has to yield a lock that it has. A request that does not wait
// is not kept from a lock that no other host is known to want.
func (c *Contest) endsTurn(s *Shared, v *View) bool {
	if !v.IsReachable {
		return false
	}
	isQuiet := !c.areOthersKnown(v.Now)
	return c.isTurnOver(s, v) && !(isQuiet && v.First.Tries)
}

// isTurnOver reports whether this host has had the lock for long enough in a row.
//
// If no other host is known to want it, one handoff is always allowed: the waiter of a holder
// that was killed after hours gets the lock at once. One more hold beside others does not
// postpone when the lock is free. Between sidecars, a lock that is in order has no turns.
func (c *Contest) isTurnOver(s *Shared, v *View) bool {
	cfg := &s.cfg
	hostsWait := c.memory.hostsWait && !v.isInOrder()
	switch had := v.Now - v.CameAt; {
	case v.Grants == 0:
		return false
	case hostsWait && had >= s.turn(), (hostsWait || c.areForeignKnown(v.Now)) && had >= int64(cfg.HandoffTime):
		return true
	}
	return v.Grants >= 2 && !v.IsBeside && s.isTired(c.memory, v)
}

// mayPipeline decides whether a Take may be pipelined after a Drop of the same key, so that
// an acquire right after a release costs one round trip and not two. They may even be
// executed in the other order: a Drop touches no later number.
//
// With a pipelined Take the key never disappears, so no other host can win it. Pipeline only
// while no other host is known to be subscribed, and for QuietTime at most, because a client that
// may not subscribe polls instead. A host whose turn is over pipelines the Take that puts it
// after all others in the queue, unless the lock may be left free by the Drop. yields: its waiters
// are not to get the lock before. If the lock is in order, the Take puts its next waiter to where it
// belongs, and leaves a lock free that the Drop leaves free.
func (c *Contest) mayPipeline(s *Shared, v *View, yields bool) bool {
	if yields {
		isPlaced := v.isInOrder() && v.First.Arrived != 0
		return c.mayEnqueue(v) && (isPlaced || c.memory.hostsWait && v.DropPassedMS < int64(redisop.MS(redisop.FreeAfter)))
	}
	return !c.areOthersKnown(v.Now) && !s.isTired(c.memory, v)
}

// RefusesTries reports whether a request that does not wait is refused because it is the turn of
// another host. While the release that ends this host's turn is in flight, that takes another host
// or a foreign client that is known to want the lock: otherwise the result says whether any does.
// isDropping: as in View.
func (c *Contest) RefusesTries(now int64, isDropping bool) bool {
	if c.phase == yielding && isDropping {
		return c.memory.hostsWait || c.others() > 0 || now < c.foreignUntil
	}
	return c.phase == yielding || c.isBackingOff(now)
}

// IsYielding reports whether this host gives the lock back before a local client gets it again.
func (c *Contest) IsYielding() bool { return c.phase == yielding }

// OnDropSent notes that a Drop is sent, as a verdict says. It gives the ticket up.
func (c *Contest) OnDropSent(v *Verdict) {
	c.place.onDropSent()
	c.order.served = served{}
	if v.Yields {
		c.phase = yielding
	}
}

// OnDropResult takes the result of a Drop as far as it does not depend on what else is in flight.
func (c *Contest) OnDropResult(r *redisop.Result) {
	c.place.onDropResult(r)
}

// OnDropped notes that Redis has executed this host's release. noWait: the first waiter waits for a
// result only.
func (c *Contest) OnDropped(s *Shared, now int64, r *redisop.Result, noWait bool) {
	c.remote.isKnown = false // it was another holder
	isQuiet := !c.areOthersKnown(now)
	switch {
	case !r.Paused && (c.phase != yielding || r.Passed):
		c.nextTry, c.phase = max(now, c.backoffUntil), contending
	case isQuiet && noWait:
		c.leaveFree(now, 0)
	default:
		// By the subscribers, Redis has chosen the pause of the first of the queue.
		c.leaveFree(now, s.freePause(c.areForeignKnown(now) || r.Paused && r.Listeners.MayExist()))
		if isQuiet {
			c.lookForPoller(s, now)
		}
	}
}

// OnClaimForgotten notes that Redis has no field of this host, or that nothing is known of it.
func (c *Contest) OnClaimForgotten(isAbsent bool) {
	c.order.served = served{}
	if isAbsent {
		c.phase = contending // there is nothing to yield
	}
}

// mayEnqueue reports whether a ticket of this host may stand in the queue. A request that does not
// wait needs none.
func (c *Contest) mayEnqueue(v *View) bool {
	return v.IsListening && (c.place.live() != 0 || v.Waiting > 1 || !v.First.Tries)
}
