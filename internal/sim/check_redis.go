package sim

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/internal/sim/contract"
	"github.com/locksidecar/locksidecar/internal/sim/invariant"
	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// What tables issue to Redis, and what Redis does.

// onOperation judges an operation before the store gets it.
func (w *world) onOperation(h *host, op redisop.Op) {
	n := nameIndex(op.Name)
	l := &h.locks[n]
	c := &l.hold
	now := h.clock(w.now)
	if n == semaphore {
		w.onPermitsOperation(h, op)
		return
	}
	if !h.conns[op.Shard].up {
		w.violation(invariant.RedisDown, n, "host %d issues an operation while Redis is down", h.index)
	}
	// The effects of inputs before the route may be carried out after it, at the same moment.
	isOfBefore := l.movedAt == w.now && op.Shard == l.movedFrom
	if op.Shard != h.routes[n] && !isOfBefore {
		w.violation(invariant.Routes, n, "host %d sends an operation to shard %d, and was told that shard %d has the lock: %s", h.index, op.Shard, h.routes[n], opString(op))
	}
	if op.Kind == redisop.Arrive {
		if l.arriving != noOp {
			w.violation(invariant.OneOperation, n, "host %d has two Arrives in flight", h.index)
		}
	} else if l.inFlight != noOp || l.dropPending != noOp {
		w.checkPipelined(h, n, op)
	} else if op.Kind == redisop.Take {
		l.pipelinedSince = 0
	}
	w.check.meetIf(TicketMoved, op.Ticket != 0 && op.Kind == redisop.Take && op.Arrived > w.arrivalOf(h, n, op.Ticket))
	w.check.meetIf(KeptForOrphan, c.state == orphaned && op.Kind == redisop.Renew)
	w.check.meetIf(RenewedWhileDisconnected, c.state == away && op.Kind == redisop.Renew)
	w.check.meetIf(AssertedAfterDataLoss, c.state == live && op.Kind == redisop.Take && !op.Has(redisop.RequireExisting) && op.HoldID == c.num)
	h.journal.checkOperation(n, op)
	if c.state == orphaned && op.Kind != redisop.Drop && op.Kind != redisop.Arrive {
		// No client believes in it, and the lease may be shorter than it was.
		until := now + int64(op.LeaseMS)*ms*99/100 - 2*ms
		c.deadline, c.confirmed = min(c.deadline, until), min(c.confirmed, until)
	}
	if isLeased := op.Kind == redisop.Take || op.Kind == redisop.Renew; isLeased && op.HoldID == c.num && c.state != none && now < c.keptUntil {
		if until := now + int64(op.LeaseMS)*ms*99/100 - 2*ms; until+ms < c.keptUntil {
			w.violation(invariant.Keeps, n, "the key of hold %d is given less than its keep, which lasts for %s: %s", c.num, time.Duration(c.keptUntil-now), opString(op))
		}
		w.check.meetIf(KeepRenewed, int64(op.LeaseMS)*ms > h.longest)
	}
	if op.Kind == redisop.Arrive {
		if op.Name == "" || op.HoldID != 0 || op.LeaseMS != 0 {
			w.violation(invariant.RedisSynced, n, "an Arrive that says more than a lock: %s", opString(op))
		}
	} else if op.Count == 0 || op.Kind != redisop.Drop && (op.LeaseMS == 0) != (op.Kind == redisop.Check) {
		w.violation(invariant.RedisSynced, n, "an operation without a count or a lease: %s", opString(op))
	}
	if l.isProtected(now) {
		switch {
		case op.Kind == redisop.Drop:
			w.violation(invariant.HoldsLast, n, "hold %d is given up early: %s", c.num, opString(op))
		case op.HoldID > c.num:
			w.violation(invariant.HoldsLast, n, "hold %d is replaced while it lasts: %s", c.num, opString(op))
		case c.state == unserved && op.Kind == redisop.Renew && op.Count == c.count && now-c.detachedAt > h.longest && !l.unconfirmed &&
			!c.endsWithKeyOf(now, op.LeaseMS):
			w.violation(invariant.HoldsEnd, n, "hold %d of a detached session is renewed: %s", c.num, opString(op))
		}
	}
	switch {
	case op.Kind == redisop.Drop:
		w.checkQuietPause(h, n, op, now)
		l.localGrants = 0
		isLeftFree := l.yielding && h.clock(w.now) < l.droppedAt+yieldBackoff         // since an earlier Drop
		isTired := int64(op.PassedMS)*ms >= l.quietRun(now) && h.someoneWaits(n, now) // it has had no free moment for too long
		l.yielding = l.listeners != 0 || l.waiting > 0 || isLeftFree || isTired
		if l.yieldedAt == 0 || !h.someoneWaits(n, l.yieldedAt) {
			l.yieldedAt = 0
			asksForOrder := h.firstIsAlone(n) && w.wantsOrder(h, n)
			if op.Ticket == 0 && !asksForOrder && l.othersListen() && l.waiting == 0 && h.someoneWaits(n, now) { // else it gives up a place, not the lock
				l.yieldedAt = now
			}
		}
	case op.Kind == redisop.Take && !op.Has(redisop.RequireExisting):
		w.checkQuietPause(h, n, op, now)
		l.localGrants = 0
		if !w.queuesBehind(h, n, op) && now < l.droppedAt+yieldBackoff && l.yieldedAt != 0 && h.someoneWaits(n, l.yieldedAt) {
			w.violation(invariant.Backoff, n, "host %d released the lock for others, and does not back off", h.index)
		}
		l.yielding, l.yieldedAt = false, 0
	}
	w.issue(h, op)
}

// queuesBehind reports whether a Take was pipelined after the Drop of the lock because a sidecar
// recalled it, or because order is wanted: it puts the host into the queue. If the recall and the result of
// the Drop came in one batch of inputs, the checker has noted the result before this Take.
func (w *world) queuesBehind(h *host, n int, op redisop.Op) bool {
	l := &h.locks[n]
	return op.Has(redisop.AfterPendingDrop) && (l.waiting > 0 || w.wantsOrder(h, n) || op.Has(redisop.Enqueue) && l.dropPending == noOp)
}

// checkPipelined judges an operation that is issued while another one is in flight: only a
// Take may be, after one Drop, while no other host is known to wait, and not forever.
func (w *world) checkPipelined(h *host, n int, op redisop.Op) {
	l := &h.locks[n]
	if l.dropPending != noOp || w.ops[l.inFlight].op.Kind != redisop.Drop || op.Kind != redisop.Take || op.Has(redisop.RequireExisting) {
		w.violation(invariant.OneOperation, n, "host %d has two operations in flight", h.index)
	}
	if op.Ticket != 0 {
		w.violation(invariant.OneOperation, n, "the Drop before it could delete the key that the ticket got: %s", opString(op))
	}
	if op.HoldID <= w.ops[l.inFlight].op.HoldID {
		w.violation(invariant.OneOperation, n, "the Drop before it would undo %s", opString(op))
	}
	if before := &w.ops[l.inFlight].op; before.Shard != op.Shard {
		w.violation(invariant.OneOperation, n, "host %d sends %s to shard %d while a Drop is in flight at shard %d", h.index, opString(op), op.Shard, before.Shard)
	}
	now := h.clock(w.now)
	if l.pipelinedSince == 0 {
		l.pipelinedSince = now
	}
	isForOrder := op.Has(redisop.InOrder) && op.Arrived != 0 // perhaps for an acquire whose session has just ended
	queues := op.Has(redisop.Enqueue) && (l.waiting > 0 || w.wantsOrder(h, n) || isForOrder)
	mayBeForNone := l.waiting == 0 && (h.closing > 0 || h.detaching) // the acquire that wants order may be one that ends
	if passed := w.ops[l.inFlight].op.PassedMS; queues && passed >= 100 && op.Arrived == 0 && !mayBeForNone {
		w.violation(invariant.FreeMoments, n, "host %d queues at once for a lock that has not been free for %d ms", h.index, passed)
	}
	if !queues && (now-l.pipelinedSince > quietRun || l.othersListen() || l.waiting > 0) {
		w.violation(invariant.FreeMoments, n, "host %d takes the lock that it releases, since %s; %d are subscribed, %d sidecars wait",
			h.index, time.Duration(now-l.pipelinedSince), l.listeners, l.waiting)
	}
	w.check.meetIf(QueuedBehind, l.waiting > 0)
	l.dropPending, l.inFlight, l.taken = l.inFlight, noOp, contract.Op{}
	w.check.meet(TakePipelined)
}

// firstIsAlone reports whether the first of those that wait came after all grants: also in the step in which the hold ended.
func (h *host) firstIsAlone(n int) bool {
	first := h.first(n)
	return first != nil && (!first.obstructed || h.worldTime(first.arrived) >= h.locks[n].endedAt-1)
}

// checkQuietPause checks that a lock which is released although local clients wait stays
// free for a moment.
func (w *world) checkQuietPause(h *host, n int, op redisop.Op, now int64) {
	l := &h.locks[n]
	if op.Kind == redisop.Drop {
		isForOrder := int64(op.PassedMS)*ms <= quietRun && w.wantsOrder(h, n) // it is released to ask who is first
		// Of the inputs that a table takes in before it is killed, an acquire may come after the release.
		l.pausing = l.localGrants > 1 && l.waiting == 0 && !l.othersListen() && h.someoneWaits(n, now) && !isForOrder && !h.firstIsAlone(n) && !h.dying
		l.pauseSince = now
		return
	}
	if l.pausing && !w.queuesBehind(h, n, op) && h.someoneWaits(n, l.pauseSince) && now < l.droppedAt+quietPause && !h.triesFirst(n, now) {
		w.violation(invariant.FreeMoments, n, "host %d released the lock for a moment, and takes it %s later", h.index, time.Duration(now-l.droppedAt))
	}
	w.check.meetIf(PausedForPollers, l.pausing)
	l.pausing = false
}

// arrivalOf returns when the request of a ticket arrived, µs; MaxUint64: there is no such ticket.
func (w *world) arrivalOf(h *host, n int, num uint64) uint64 {
	for _, t := range w.redis.names[n].queue.Tickets {
		if int(t.Owner) == h.index && t.Num == num {
			return uint64(t.Time)
		}
	}
	return math.MaxUint64
}

// first returns the oldest acquire of the lock here that has no answer, or nil.
func (h *host) first(n int) (first *request) {
	for i := range h.sessions {
		for j := range h.sessions[i].requests {
			if q := &h.sessions[i].requests[j]; q.kind == reqAcquire && int(q.name) == n && (first == nil || q.arrival < first.arrival) {
				first = q
			}
		}
	}
	return first
}

// triesFirst reports whether the oldest acquire of the lock here does not wait.
func (h *host) triesFirst(n int, now int64) bool {
	first := h.first(n)
	return first != nil && !first.waits(now)
}

// checkResult notes what a table is about to be told.
func (w *world) checkResult(h *host, o *operation) {
	n := int(o.name)
	l := &h.locks[n]
	r := &o.res
	now := h.clock(w.now)
	l.lastRepliedAt = now
	if w.now-o.issuedAt >= tryWithin {
		l.lateReplyAt = now
	}
	if r.Kind == redisop.Arrive {
		if r.Outcome != redisop.Done {
			w.noteTrouble(h, o)
		} else if r.FirstArrived != 0 {
			l.mayYield = true // to that host, if the key was this host's until its lease ended
			l.waiting = max(1, l.waiting)
		}
		return
	}
	l.lastOutcome, l.isOverwritten = r.Outcome, r.Field == overwrittenField
	if r.Outcome == redisop.Refused || r.Outcome == redisop.NotALock {
		l.deniedAt = w.now
	}
	if n == semaphore {
		w.checkPermitsResult(h, o)
		return
	}
	if r.Outcome == redisop.Refused {
		if !strings.Contains(r.Msg, "WRONGTYPE") { // a counter that cannot be drawn from is no reason not to renew
			l.refusedAt = w.now
		}
	} else if r.Outcome >= redisop.NotSent || w.now-o.issuedAt > h.lease/10 {
		w.noteTrouble(h, o)
	}
	if (r.Outcome == redisop.Done || r.Outcome == redisop.HeldByOther) && r.Listeners.State != redisop.Uncounted {
		l.listeners, l.forgotten, l.uncounted = r.Listeners.N, false, false
		if r.Listeners.State != redisop.Counted {
			l.listeners = -1
		}
	}
	switch r.Outcome {
	case redisop.Done:
		w.onDone(h, o)
	case redisop.KeyMissing, redisop.HeldByOther, redisop.NotALock:
		if r.Outcome == redisop.HeldByOther {
			l.otherIssuedAt = h.clock(o.issuedAt)
			l.getsMessage = r.IsQueued && r.Recall != redisop.RecallMissed
			if (l.listeners == 0 || l.forgotten || l.listeners == 1 && l.subscribed) && !l.getsMessage {
				l.rivalUntil = now + rivalMemory
				if o.op.Has(redisop.Enqueue) && !r.LeftFree {
					l.pollerUntil = now + rivalMemory
				}
			}
		}
		if r.LeftFree { // by the Drop before it, also if no replica has confirmed that
			l.freedUntil = max(l.freedUntil, now+yieldBackoff)
		}
		if r.Kind == redisop.Take && r.Outcome == redisop.HeldByOther && !r.LeftFree {
			l.pausing, l.yieldedAt = false, 0 // another program or host has had the moment
		}
		if r.Kind == redisop.Drop {
			break // the Take after it says what became of the key
		}
		if o.at >= w.redis.names[n].lostAt && !o.isOutdated { // else it asserts the hold
			w.check.lossKnown[h.index] |= 1 << n
		}
		first := h.first(n)
		isTry := first != nil && (first.acquire.WaitMS == 0 || !first.waits(now-eps)) // a wait that has just ended may not be known
		// Those before it in the queue have a moment.
		if r.Outcome == redisop.KeyMissing && o.op.Has(redisop.RequireExisting) && o.op.Has(redisop.Enqueue) && !isTry {
			l.freedUntil = max(l.freedUntil, now+yieldBackoff)
		}
		h.revokeTokens(n, true)
		isAsserted := r.Outcome == redisop.KeyMissing && o.isOutdated // at the shard that has the lock now
		if l.hold.state == orphaned && !isAsserted {                  // there is no client to be notified
			w.endHold(h, n)
		}
		l.waiting, l.turnGrants, l.localGrants = 0, 0, 0
	case redisop.Refused:
		w.check.meetIf(DrawRefused, strings.Contains(r.Msg, "WRONGTYPE") && l.hold.state == live)
		if r.Kind == redisop.Drop {
			l.yieldedAt = 0 // it has released nothing
			w.redis.names[n].ghost = true
		}
	}
}

// onDone notes an operation that Redis has done.
func (w *world) onDone(h *host, o *operation) {
	n := int(o.name)
	l := &h.locks[n]
	r := &o.res
	now := h.clock(w.now)
	if r.Kind == redisop.Drop {
		isPipelined := l.dropPending != noOp && o == &w.ops[l.dropPending]
		if isPipelined && l.inFlight == noOp {
			return // the result of the Take after it said more
		}
		if !isPipelined || r.Paused { // else the lock was taken again at once
			l.droppedAt = now
			l.yielding = l.yielding || l.waiting > 0 || r.Paused
			l.mayYield = l.mayYield || l.waiting > 0 // until the Take after it is executed
			l.waiting, l.turnGrants = 0, 0
			if r.Passed {
				l.pausing, l.pipelinedSince = false, 0
			}
			if r.Passed || !l.othersListen() {
				l.yieldedAt = 0
			}
		}
		return
	}
	if c := &l.hold; c.num == o.op.HoldID && r.Kind != redisop.Check && l.isProtected(now) {
		lease := int64(o.op.LeaseMS) * ms
		if !c.fixed {
			lease = min(lease, h.lease) // a longer one covers a deadline that was sent before
		}
		c.confirmedBefore, c.confirmedAt = c.confirmed, now
		c.confirmed = r.Sent + lease - lease/100 - 2*ms
	}
	if r.Kind != redisop.Check {
		lease := int64(o.op.LeaseMS) * ms
		l.confirmed = r.Sent + lease - lease/100 - 2*ms
	}
	if r.Kind != redisop.Take {
		return
	}
	w.check.meetIf(GrantedToNone, !h.isObstructed(n, math.MaxUint64))
	l.takenAt = r.Sent
	if o.op.Reserve > 0 && !o.isOutdated {
		l.tokens.add(tokenRange{r.Token - uint64(o.op.Reserve) + 1, r.Token, o.at})
	}
	l.mayYield = l.othersListen() || now < l.rivalUntil
	l.waiting = r.Waiting
	if (!o.op.Has(redisop.RequireExisting) || o.op.Has(redisop.Enqueue)) && o.op.HoldID > l.hold.num && !l.isProtected(now) { // not an assertion
		l.cameAt, l.turnGrants, l.localGrants = now, 0, 0
	}
}

// checkDraw checks that Redis never gives a token twice, nor one that is smaller than any
// before, whatever it has forgotten. made: there was no counter.
func (w *world) checkDraw(n int, first, last uint64, o *operation, made bool) {
	name := &w.redis.names[n]
	if first <= name.drawn {
		floor := uint64(max(o.floor, o.known)) // what the host of this draw must draw above
		if made || o.floor >= redis.MaxToken {
			floor = uint64(o.birth)
		}
		// The slot left the node and came back, and the host of this draw did not learn that before.
		isUnseen := w.plan.cluster && max(o.clockAt, o.movedAt) < name.cameAt
		// The host of this draw has seen none of those that are larger, and Redis, whose
		// clock was set back, has forgotten them. Or they are ahead of its clock, or were when the host
		// read it last, after they were drawn: hundreds were drawn from a new counter in fewer
		// microseconds, or the clock of another node is ahead.
		clock := w.time(o.node)
		isAhead := w.redis.jumpedBack > 0 || int64(name.drawn) > clock ||
			name.drawnAt < o.clockAt && int64(name.drawn) > clock-(w.now-o.clockAt)/µs
		if !name.counterLost || !isAhead && !isUnseen || floor >= name.drawn {
			w.violation(invariant.TokensGrow, n, "Redis gives token %d after %d to a host that knows of %d", first, name.drawn, floor)
		}
		w.check.meet(LowerTokenExcused)
		w.sharers(n, func(n int) {
			w.redis.names[n].granted, w.redis.names[n].restartedAt = 0, w.now
		})
	}
	w.sharers(n, func(n int) {
		w.redis.names[n].drawn, w.redis.names[n].drawnAt, w.redis.names[n].counterLost = last, w.now, false
	})
}

// checkWakeUp is called when a Take gets a free key, or when an operation passes one on. It checks that no host has left the
// lock free for too long, though a client waited there, and the host could know.
func (w *world) checkWakeUp(n int) {
	name := &w.redis.names[n]
	longest := pollInterval + 6*w.slowest + 2*sec
	if w.isFirstNotified(n) && !name.unannounced {
		longest = w.soon()
	}
	for _, g := range w.hosts {
		l := &g.locks[n]
		bound, since := longest, max(name.freedAt, g.troubleOf(n), l.refusedAt, l.endedAt, w.redis.nodes[w.redis.owners[n]].stalledUntil)
		if l.wantsMessages && !l.subscribed && l.deafSince > 0 && !l.getsMessage {
			bound = min(bound, 500*ms+6*w.slowest+sec)
			since = max(since, l.deafSince)
		}
		if g.process != serving || g.suspended || !w.isReached(g, n) || l.hold.state != none || w.now-since <= bound {
			continue
		}
		for i := range g.sessions {
			for j := range g.sessions[i].requests {
				q := &g.sessions[i].requests[j]
				if q.kind == reqAcquire && int(q.name) == n && q.acquire.WaitMS != 0 && g.clock(w.now-bound) > q.arrived {
					w.violation(invariant.WakeUps, n, "lost wake-up: free since %s, session %d of host %d waits since %s, and no host took it",
						clockString(name.freedAt), g.sessions[i].id, g.index, clockString(g.worldTime(q.arrived)))
				}
			}
		}
	}
}

// soon is how long it takes at most until a host has done what a message has it do.
func (w *world) soon() int64 { return 16*w.slowest + 20*ms + 2*eps + yieldBackoff }

// isFirstNotified reports whether the first ticket of a queue is notified of all that it has to know.
//
// No host of the queue took part when the key of a sidecar was deleted: none may know that a
// program has it now, until it has asked again. Whatever became of the key of a program, the
// first of the queue listens.
func (w *world) isFirstNotified(n int) bool {
	name := &w.redis.names[n]
	return w.isLossless(n) && (name.takenFromAt == 0 || w.now-name.takenFromAt > pollInterval+sec)
}

// checkFirstListens is called when a foreign client releases a lock. It checks that
// the host of the first ticket is subscribed to the lock's channel.
func (w *world) checkFirstListens(n int) {
	name := &w.redis.names[n]
	if len(name.queue.Tickets) == 0 || !w.isFirstNotified(n) || w.now-max(name.programAt, name.firstSince) <= w.soon() {
		return
	}
	t := name.queue.Tickets[0]
	h := w.hosts[t.Owner]
	if h.process != serving || !h.someoneWaits(n, h.clock(w.now-w.soon())) {
		return
	}
	w.check.meet(FirstListened)
	if !slices.Contains(w.channelAt(w.redis.nodes[w.redis.owners[n]].server, n).Subscribers, int32(h.index)) {
		w.violation(invariant.WakeUps, n, "ticket %d of host %d is the first since %s, a program has the lock since %s, and the host is not subscribed",
			t.Num, h.index, clockString(name.firstSince), clockString(name.programAt))
	}
}

// checkBack checks that a host to which Redis is back asks at once for every lock that a
// client waits for.
func (w *world) checkBack(h *host, s redisop.Shard) {
	now := h.clock(w.now)
	for n := range w.plan.names {
		l := &h.locks[n]
		if h.routes[n] == s && l.hold.state == none && l.inFlight == noOp && l.dropPending == noOp && l.arriving == noOp && now >= max(l.droppedAt+yieldBackoff, l.freedUntil) && h.someoneWaits(n, now) {
			w.violation(invariant.WakeUps, n, "Redis is back, and host %d does not ask for the lock", h.index)
		}
	}
}

// noteMessage is called when a message from another sidecar reaches a host.
func (w *world) noteMessage(h *host, n int, s redisop.Shard, m *redisop.Message) {
	if n == semaphore {
		if m.Kind == redisop.Admitted && m.Of == redisop.KindReadWrite && m.Conn != (redisop.Conn{}) && m.Tokens > 0 {
			h.floor.raise(h.clock(w.now), int64(m.LastToken))
		}
		return
	}
	l := &h.locks[n]
	name := &w.redis.names[n]
	w.expire(n)
	has := int(name.key.Owner) == h.index
	switch m.Kind {
	case redisop.Transferred:
		w.noteKnownAgain(h, n, math.MaxUint64) // also a lock that the table gives back at once
		w.check.meetIf(TransferNotProved, m.Conn == (redisop.Conn{}))
		w.check.meetIf(TransferAheadOfClock, w.hasClocks() && m.Tokens == 0 && m.Conn != (redisop.Conn{}))
		if m.Conn != (redisop.Conn{}) && m.Tokens > 0 {
			l.tokens.add(tokenRange{m.LastToken - uint64(m.Tokens) + 1, m.LastToken, name.passedWith(m.LastToken).at})
			h.floor.raise(h.clock(w.now), int64(m.LastToken))
		}
		if has && name.key.Num == m.Ticket {
			name.ghost = false
		}
		accepted := l.inFlight == noOp && l.dropPending == noOp && l.hold.state == none && h.someoneWaits(n, h.clock(w.now))
		w.check.meetIf(TransferAccepted, accepted)
		w.check.meetIf(TransferDoubted, !accepted)
		l.waiting, l.cameAt, l.turnGrants, l.localGrants = m.Waiting, h.clock(w.now), 0, 0
		l.mayYield = l.othersListen() || h.clock(w.now) < l.rivalUntil
		l.pipelinedSince = 0
	case redisop.Freed:
		l.yielding = true                                                    // the lock is left to others, until the next Take
		l.yieldedAt = 0                                                      // and for this moment, not for that after a Drop in flight
		l.freedUntil = max(l.freedUntil, h.clock(w.now)+int64(m.PauseMS)*ms) // of two such messages, the longer time counts
	case redisop.Recalled:
		w.noteKnownAgain(h, n, math.MaxUint64) // the table gives back a lock of which it knows nothing
		w.check.meet(Recalled)
		w.check.meetIf(RecalledGhost, has && name.ghost && l.inFlight == noOp)
		l.waiting, l.recalledAt = max(1, l.waiting), h.clock(w.now)
	}
}

// goneKey is a hold whose key another program deleted, and by when its host looks at the key.
type goneKey struct {
	hold      uint64 // 0: there is none
	since     int64  // world time
	until     int64  // world time
	byMessage bool   // a message of the deletion came
}

// noteDeleted is called when the key of a host's lock is deleted from outside. The next renewal or
// check must find that.
func (w *world) noteDeleted(h *host, n int) {
	l := &h.locks[n]
	c := &l.hold
	if c.state != live || c.num == l.gone.hold {
		return
	}
	lease := h.longest // at a restart, the lease may become shorter or longer
	if c.fixed {
		lease = min(lease, int64(c.leaseMS)*ms)
	}
	// A renewal or check comes a twentieth of the lease late, and half a cell later if many are due.
	l.gone = goneKey{hold: c.num, since: w.now, until: w.now + max(lease/3, 100*ms) + lease/15 + 10*ms + 4*w.slowest + 2*eps}
}

// noteUnlocked is called when a message on the channel of a lock reaches a host. If another
// program has deleted the key of a hold there, its holder must be notified soon.
func (w *world) noteUnlocked(h *host, n int) {
	l := &h.locks[n]
	w.expire(n)
	c := &l.hold
	isNoted := l.gone.hold == c.num && l.gone.byMessage
	if c.state != live || !l.wantsMessages || int(w.redis.names[n].key.Owner) == h.index || isNoted {
		return
	}
	l.gone = goneKey{hold: c.num, since: w.now, until: w.now + 10*ms + 4*w.slowest + 2*eps, byMessage: true}
}

// checkGone finds a hold whose key is gone in Redis, although its host could know.
func (w *world) checkGone(h *host, n int) {
	l := &h.locks[n]
	g := &l.gone
	if g.hold == 0 {
		return
	}
	isElsewhere := l.inFlight != noOp && w.ops[l.inFlight].isOutdated // the operation in flight, at a shard that may not answer soon
	switch c := &l.hold; {
	case c.num != g.hold || c.state != live:
		w.check.meetIf(LossFoundByMessage, g.byMessage)
		w.check.meetIf(LossFoundInTime, !g.byMessage)
		*g = goneKey{}
	case !w.isReached(h, n) || h.connOf(n).late || isElsewhere || max(h.troubleOf(n), l.refusedAt) > g.since-sec || h.resumedAt > g.since || w.plan.slowOps > 0 || int(w.redis.names[n].key.Owner) == h.index:
		*g = goneKey{} // the host could not, or has asserted the hold
	case w.now <= g.until || !g.byMessage && (l.inFlight != noOp || l.dropPending != noOp):
	default:
		w.violation(invariant.Losses, n, "hold %d of session %d on host %d is gone in Redis; its host could know that for %s, and did not look at the key",
			c.num, c.session, h.index, time.Duration(w.now-g.until))
	}
}
