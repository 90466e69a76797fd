package contest

import "github.com/locksidecar/locksidecar/sidecar/redisop"

// Strict order between hosts. A lock is in order while a request waits for it here that wants it:
// then its waiters get it in the order in which they arrived at Redis, over all hosts.
//
// A request arrives when Redis executes the first operation for its lock that was sent after
// the request came: a Take that finds another owner, or an Arrive, which does nothing else. The
// result says what Redis's clock was. All that came in between have the same arrival, and stay
// in their order.
//
// This host has one ticket in the queue in Redis, however many wait here. It stands there with
// the arrival of the first waiter:
//
//   - The Take that is pipelined after a Drop carries the arrival of the next waiter. The script
//     puts that into the queue before it passes the lock on, so the lock comes back at once if
//     no other host waits before that waiter.
//   - If the first waiter is gone, the ticket moves to the arrival of the next. If that is not
//     known, an Arrive finds it out first: the ticket gets the lock for no request that arrived
//     later than the one for which it stands.
//
// Between two such releases, the lock passes from waiter to waiter of this host as long as it is
// known that no other host waits before them: see served.

// isServed reports whether no other host waits before the first waiter, as far as the order
// matters. If Redis cannot be asked, no other host could get the lock.
func (c *Contest) isServed(v *View) bool {
	return !v.isInOrder() || !v.IsReachable || v.First.Tries && !v.First.IsFair || c.order.served.includes(&v.First)
}

// mustMove reports whether the ticket stands in the queue for a waiter that is gone.
func (c *Contest) mustMove(first *Waiter) bool {
	return c.place.isQueued() && first.Arrived != 0 && first.Arrived != c.place.arrived
}

// standsForAnother reports whether the ticket stands in the queue, or may, for a waiter that is
// gone, and the first waiter came after it, so that its arrival has to be asked for.
func (c *Contest) standsForAnother(first *Waiter) bool {
	return c.place.live() != 0 && !first.Tries && first.Arrived == 0 && first.Since > c.place.since && !c.order.isDenied
}

// onTakeSent notes a Take for the queue. p is the place before it.
func (o *order) onTakeSent(now int64, op *redisop.Op, p *Place) {
	o.asked = op.Arrived
	switch {
	case p.mayHaveLock || op.Arrived == 0 && op.Ticket != 0:
		o.toServe = p.served() // the ticket gets the lock only for the requests that it stands for
	case op.Arrived != 0:
		o.toServe = served{upTo: op.Arrived}
	default:
		o.toServe = served{until: now}
	}
}

// OnTaken notes that a Take, sent at a time, got the lock for this host. Its ticket, or none, was the
// first. If no other waits, all requests that came here before it was sent are before any that
// arrives later. enqueue: as in redisop.Op.
func (c *Contest) OnTaken(sentAt int64, enqueue bool, r *redisop.Result) {
	o := &c.order
	o.served = served{until: sentAt}
	if enqueue {
		o.served = o.toServe
	}
	if r.Waiting == 0 {
		o.served.until = sentAt
	}
}

// OnArriveFailed notes that an Arrive has no result that says when requests arrived. No other is
// sent before retryAt.
func (c *Contest) OnArriveFailed(r *redisop.Result, retryAt int64) {
	c.order.retryAt, c.order.isDenied = retryAt, r.Outcome == redisop.Refused
}

// OnArrived takes the result of an Arrive. isOurs: Redis has the lock for this host, and no Drop in
// flight may have passed it on.
func (c *Contest) OnArrived(r *redisop.Result, isOurs bool) {
	c.order.isDenied = false
	if isOurs {
		upTo := r.Arrived
		if r.FirstArrived != 0 {
			upTo = min(upTo, r.FirstArrived)
		}
		c.order.served.upTo = upTo // it may be less than before, if Redis's clock was set back
	}
}
