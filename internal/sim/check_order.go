package sim

import (
	"github.com/locksidecar/locksidecar/internal/sim/invariant"
	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Strict order: in a world without faults and without other programs, in which all acquires
// that wait want it, they are granted in the order in which they arrived at Redis, over all
// hosts. An acquire arrives when Redis executes the first operation for its lock that was sent
// after the acquire came.
//
// A fixed lease or a keep that ends in Redis before the release arrives there, because it is not longer than some
// ways to Redis, frees a lock for which its host has no place in the queue.

// isOrdered reports whether the world is such a one.
func (p *plan) isOrdered() bool {
	return p.isLossless() && p.fair == 1 && p.redissonClients == 0 && !p.fixedLease && p.keep == 0 && p.oneScriptPerBatch && !p.batchedInputs
}

// checkNewTicket checks that a new ticket stands behind all others, whatever Redis's clock says. A
// host could starve behind those that come later otherwise. In strict order, the ticket is as old as
// its request.
func (w *world) checkNewTicket(h *host, n int, o *operation, reply *redis.Reply) {
	isNew := reply.Outcome == redisop.HeldByOther && reply.Ticket != 0 && reply.Ticket == o.op.HoldID
	if o.op.Kind != redisop.Take || !isNew || o.op.Arrived != 0 {
		return
	}
	tickets := w.redis.names[n].queue.Tickets
	for _, behind := range tickets[min(int(reply.Rank)+1, len(tickets)):] {
		if behind.Owner != redis.Owner(h.index) { // it may have given up one of its own
			w.violation(invariant.NewTickets, n, "the new ticket %d of host %d is number %d of %d in the queue", reply.Ticket, h.index, reply.Rank+1, len(tickets))
		}
	}
}

// noteArrival notes, for the acquires of a host, that Redis has executed an operation. A Take
// that is done is the arrival of those that came before it as long as the lock stays there: the
// table does not know its time, so that they arrive again with a later operation.
func (w *world) noteArrival(h *host, n int, o *operation, reply *redis.Reply) {
	if w.isOrdered(n) && o.op.Kind == redisop.Drop {
		w.forgetArrivals(h, n)
	}
	isKnown := reply.Arrived != 0
	if isTaken := o.op.Kind == redisop.Take && reply.Outcome == redisop.Done && (!o.op.Has(redisop.RequireExisting) || o.op.Has(redisop.Enqueue)); !w.isOrdered(n) || !isKnown && !isTaken {
		return
	}
	for i := range h.sessions {
		for j := range h.sessions[i].requests {
			q := &h.sessions[i].requests[j]
			if q.kind != reqAcquire || int(q.name) != n || q.arrived > o.sentAt || q.isArrivalKnown {
				continue
			}
			if q.reached, q.isArrivalKnown = w.time(o.node), isKnown; q.reachedFirst == 0 {
				q.reachedFirst = q.reached
			}
		}
	}
}

// forgetArrivals notes that the lock leaves a host: the acquires whose arrival its table does not know
// have not arrived until its next operation.
func (w *world) forgetArrivals(h *host, n int) {
	for i := range h.sessions {
		for j := range h.sessions[i].requests {
			if q := &h.sessions[i].requests[j]; q.kind == reqAcquire && int(q.name) == n && !q.isArrivalKnown {
				q.reached = 0
			}
		}
	}
}

// checkOrder checks that no other acquire that still waits arrived at Redis before the one that
// is granted.
func (w *world) checkOrder(h *host, n int, q *request) {
	if !w.isOrdered(n) || !q.waits(h.clock(w.now)) { // a try, or one that goes on as a try
		return
	}
	for _, g := range w.hosts {
		now := g.clock(w.now)
		for i := range g.sessions {
			for j := range g.sessions[i].requests {
				p := &g.sessions[i].requests[j]
				if p.kind != reqAcquire || int(p.name) != n || p.isUnheard || p.reached == 0 || q.reached != 0 && p.reached >= q.reachedFirst || !p.waits(now) {
					continue
				}
				w.violation(invariant.StrictOrder, n, "out of order: host %d grants what arrived at %d, and request %d of session %d on host %d arrived at %d",
					h.index, q.reachedFirst, p.id, g.sessions[i].id, g.index, p.reached)
			}
		}
	}
	w.check.meetIf(GrantedInOrder, q.reached != 0)
	w.check.meetIf(HandedOverInOrder, h.locks[n].localGrants > 0)
}

// wantsOrder reports whether an acquire on the host waits for the lock in strict order, as far as
// its table may know: some may be of a session that was closed.
func (w *world) wantsOrder(h *host, n int) bool {
	if w.plan.fair > 0 && (h.closing > 0 || h.detaching) {
		return true
	}
	for i := range h.sessions {
		for j := range h.sessions[i].requests {
			if q := &h.sessions[i].requests[j]; q.kind == reqAcquire && int(q.name) == n && q.acquire.Fair && q.acquire.WaitMS != 0 {
				return true
			}
		}
	}
	return false
}
