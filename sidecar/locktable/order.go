package locktable

import (
	"slices"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

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
type order struct {
	fair     int     // waiters that want it
	newcomer *waiter // the first waiter whose arrival is not known, as those behind it; nil: there is none
	asked    uint64  // the arrival that the last Take carried; 0: none
	toServe  served  // who is served if that Take gets the lock
	served   served
	retryAt  int64 // no Arrive before, because the last one failed
	isDenied bool  // Redis refused the last one: arrivals cannot be known before a Take is executed
}

// served says which waiters may get the lock that this host has, without a look at the queue in
// Redis: no ticket in it arrived before them.
type served struct {
	until int64  // those that came here until then, by this host's clock; 0: none
	upTo  uint64 // those that arrived until then, by Redis's clock, µs
}

func (s *served) includes(r *request) bool {
	return s.until != 0 && r.since <= s.until || r.arrived != 0 && r.arrived <= s.upTo
}

// wantsOrder reports whether an acquire waits in order.
func (t *Table) wantsOrder(req *protocol.Acquire) bool {
	return req.WaitMS != 0 && (req.Fair || slices.ContainsFunc(t.cfg.Fair, func(p NamePattern) bool { return p.Matches(req.Name) }))
}

// isInOrder reports whether the lock is in order. A host that cannot listen has no place in the
// queue, and keeps no order.
func (t *Table) isInOrder(l *lock) bool {
	return l.queue != nil && l.queue.order.fair > 0 && t.redis.isListening
}

// isServed reports whether no other host waits before the first waiter, as far as the order
// matters. If Redis cannot be asked, no other host could get the lock.
func (t *Table) isServed(l *lock, first *waiter) bool {
	return !t.isInOrder(l) || !t.redis.isUp() || first.isTrying() && !first.request.isFair || l.queue.order.served.includes(first.request)
}

// arrive notes the arrival of all waiters that came until an operation was sent.
func (q *queue) arrive(sentAt int64, arrived uint64) {
	o := &q.order
	for o.newcomer != nil && o.newcomer.request.since <= sentAt {
		o.newcomer.request.arrived = arrived
		o.newcomer = o.newcomer.inQueue.next
	}
}

// mustMove reports whether the ticket stands in the queue for a waiter that is gone.
func (q *queue) mustMove() bool {
	first := q.waiters.head.request
	return q.place.isQueued() && first.arrived != 0 && first.arrived != q.place.arrived
}

// standsForAnother reports whether the ticket stands in the queue, or may, for a waiter that is
// gone, and the first waiter came after it, so that its arrival has to be asked for.
func (q *queue) standsForAnother() bool {
	first := q.waiters.head
	return q.place.live() != 0 && !first.isTrying() && first.request.arrived == 0 && first.request.since > q.place.since && !q.order.isDenied
}

// onTakeSent notes a Take for the queue. p is the place before it.
func (o *order) onTakeSent(now int64, op *redisop.Op, p *place) {
	o.asked = op.Arrived
	switch {
	case p.mayHaveLock || op.Arrived == 0 && op.Ticket != 0:
		o.toServe = p.served() // it gets the lock for those only for whom the ticket stands
	case op.Arrived != 0:
		o.toServe = served{upTo: op.Arrived}
	default:
		o.toServe = served{until: now}
	}
}

// onAcquired notes that a Take got the lock for this host. Its ticket, or none, was the first. If no
// other waits, all requests that came here before it was sent are before any that arrives later.
func (o *order) onAcquired(op *inFlight, r *redisop.Result) {
	o.served = served{until: op.sentAt}
	if op.enqueue {
		o.served = o.toServe
	}
	if r.Waiting == 0 {
		o.served.until = op.sentAt
	}
}

// endPause has Redis asked for arrivals without waiting for retryAt.
func (o *order) endPause() { o.retryAt, o.isDenied = 0, false }

// onArrived takes the result of an Arrive.
func (t *Table) onArrived(now int64, l *lock, op *inFlight, r *redisop.Result) {
	q := l.queue
	if r.Outcome != redisop.Done {
		if q != nil { // it says nothing of the lock
			q.order.retryAt, q.order.isDenied = now+int64(t.cfg.RetryAfter), r.Outcome == redisop.Refused
		}
		return
	}
	isOurs := l.claim.state.isOurs() && l.claim.op.kind != redisop.Drop // which may have passed it on since
	if isOurs && r.FirstArrived != 0 {
		l.rivals.areWaiting = true
	}
	if q == nil {
		return
	}
	q.order.isDenied = false
	q.arrive(op.sentAt, r.Arrived)
	if isOurs {
		upTo := r.Arrived
		if r.FirstArrived != 0 {
			upTo = min(upTo, r.FirstArrived)
		}
		q.order.served.upTo = upTo // it may be less than before, if Redis's clock was set back
	}
}
