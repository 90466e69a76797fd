package locktable

import "github.com/locksidecar/locksidecar/sidecar/redisop"

// place is what this host has in the queue of a lock in Redis, as far as it knows: a ticket,
// with which it waits for a transfer.
//
// A ticket is a hold number that a Take put into the queue, because another host had the lock.
// When a sidecar releases the lock, Redis writes the first ticket into the key as the field of
// its new owner, and tells that owner. So a host can come to own a lock at a moment at which
// it sends nothing. What makes that safe:
//
//   - A ticket is used once: it is made by one Take, and is in the queue at most once.
//   - A transfer counts only if the server that executed it is the one at the other end of
//     this connection, and that server answered over this connection that the ticket stands.
//     After a change of roles, a former master passes on the messages of its new one, whose
//     script saw no receiver, and gave the lock to the next ticket.
//   - The validity of a transfer counts from the last Take to which Redis answered that the
//     ticket stands. The ticket was in the queue after that Take was sent, so the transfer, and
//     with it the lease of the key, began later. No clock but this host's is used.
//   - A ticket that is given up is dead when the Drop is sent that removes it. If it was
//     transferred before, the Drop passes the lock on.
//   - What a host is told and does not accept makes its claim uncertain: it asks Redis.
//
// Messages and results come over one connection, in the order in which Redis made them.
//
//	        a Take with Enqueue is sent              Redis: it stands
//	none ─────────────────────────────────▶ asked ──────────────────────▶ queued ◀─┐ the same,
//	 ▲                                        │                           │ │   └──┘ asked again
//	 └──────────────────────────────────────◀─┴──◀────────────────────────┘ │
//	 ▲  the lock is this host's, or the ticket is not in the queue          │
//	 │                                                                      │ a Drop is sent
//	 └───────────────────◀──── leaving ◀────────────────────────────────────┘
//	     the Drop is done
type place struct {
	phase      placePhase
	ticket     uint64       // it may stand in the queue; 0: of placeNone
	since      int64        // when the Take was sent that made it
	validSince int64        // a transfer of the ticket happens after this
	rank       int32        // tickets before it, at the last result
	conn       redisop.Conn // that this result came over; not known: there was none, or its server is not known
	arrived    uint64       // it stands in the queue as of a request that arrived then, by Redis's clock, µs

	// mayHaveLock: a message says that the lock passed to the ticket, and does not prove it. The
	// next Take finds out.
	mayHaveLock bool
}

type placePhase uint8

const (
	placeNone    placePhase = iota // Redis has no ticket of this host
	placeAsked                     // a Take was sent that makes the ticket, and has no result
	placeQueued                    // the ticket stands, or was transferred
	placeLeaving                   // it is given up, and dead
)

// isQueued reports whether Redis has answered that the ticket stands.
func (p *place) isQueued() bool { return p.phase == placeQueued }

// live is the ticket that may be transferred to this host; 0: none.
func (p *place) live() uint64 {
	if p.phase == placeLeaving {
		return 0
	}
	return p.ticket
}

// isProof reports whether a message, which says that the lock passed to the live ticket, proves
// that: the server that answered last that the ticket stands has executed the transfer.
func (p *place) isProof(m *redisop.Message) bool { return p.isQueued() && p.conn.IsSame(m.Conn) }

// isRemovedBy reports whether a message says that the ticket left the queue. Older sidecars do not
// name the ticket.
func (p *place) isRemovedBy(m *redisop.Message) bool {
	return p.isQueued() && (!m.NamesTicket || m.Ticket == p.ticket)
}

// served returns which waiters may get the lock when the ticket does: those that arrived no later than
// the one for which it stands, or, if its arrival is not known, those that came before the ticket.
func (p *place) served() served {
	if p.arrived != 0 {
		return served{upTo: p.arrived}
	}
	return served{until: p.since}
}

// onTakeSent notes a Take with Enqueue.
func (p *place) onTakeSent(now int64, op *redisop.Op) {
	if p.live() == 0 {
		*p = place{phase: placeAsked, ticket: op.HoldID, since: now, validSince: now, arrived: op.Arrived}
	}
}

// onTakeResult notes the result of a Take with Enqueue. id is its hold number, and arrived its
// Arrived.
func (p *place) onTakeResult(id, arrived uint64, r *redisop.Result) {
	switch {
	case r.Outcome == redisop.HeldByOther && r.Ticket != 0:
		since := p.since
		if r.Ticket != p.ticket {
			since = r.Sent
		}
		switch {
		case arrived != 0:
		case r.Ticket == id:
			arrived = r.Arrived
		default:
			arrived = p.arrived
		}
		*p = place{phase: placeQueued, ticket: r.Ticket, since: since, validSince: r.Sent, rank: r.Rank, conn: r.Conn, arrived: arrived}
	case r.Outcome == redisop.Unknown:
	case r.Outcome == redisop.Done, r.Outcome == redisop.HeldByOther, p.ticket == id:
		*p = place{}
	}
}

// onDropSent notes that a Drop is sent, which gives the ticket up.
func (p *place) onDropSent() {
	if p.phase != placeNone {
		p.phase = placeLeaving
	}
}

// onDropResult notes the result of that Drop.
func (p *place) onDropResult(r *redisop.Result) {
	if p.phase == placeLeaving && (r.Outcome == redisop.Done || r.Outcome == redisop.NotALock || r.Outcome == redisop.Refused) {
		*p = place{}
	}
}

// Message notes what was published to this host.
func (t *Table) Message(now int64, m redisop.Message) {
	l := t.byName[m.Name]
	switch m.Kind {
	case redisop.Unlocked:
		if l != nil && l.queue != nil {
			t.onUnlocked(now, l)
		}
	case redisop.Transferred:
		if l = t.lockOfMessage(l, &m); l != nil {
			t.onTransferred(now, l, &m)
		}
	case redisop.Recalled:
		if l = t.lockOfMessage(l, &m); l != nil {
			t.onRecalled(l)
		}
	case redisop.Freed:
		if l != nil && l.queue != nil && l.waiting() > 0 {
			l.queue.arbiter.onFreed(&t.policy, now, ms(m.PauseMS), l.queue.firstTries())
		}
	case redisop.Requeue:
		if l != nil && l.queue != nil && l.queue.place.isRemovedBy(&m) && !l.claim.isBusy() {
			l.queue.place = place{}
			l.queue.arbiter.tryBy(now)
		}
	}
	if l != nil {
		t.reconcile(now, l)
	}
}

// strayCells is the room beyond MaxLocks for locks that no client here asked for: those that
// messages are about.
const strayCells = 4096

// lockOfMessage returns the lock of a message that says that Redis has, or had, a field of
// this host; nil: the table does not know it and has no room. An operation of a connection that
// is gone, or of a predecessor, may have made the field.
func (t *Table) lockOfMessage(l *lock, m *redisop.Message) *lock {
	if l == nil && t.cells+Cells(m.Name) <= t.cfg.MaxLocks+strayCells {
		l = t.lockFor(m.Name)
	}
	return l
}

// onTransferred takes a lock that another sidecar passed on to a ticket of this host.
func (t *Table) onTransferred(now int64, l *lock, m *redisop.Message) {
	c, q := &l.claim, l.queue
	isLive := q != nil && q.place.live() == m.Ticket
	switch {
	case c.isBusy() && !isLive && c.isDropping(m.Ticket):
		// It is being given back, if the Drop is executed.
		if c.state == claimAbsent {
			c.state = claimUncertain
		}
	case c.state.isOurs():
		// The key was deleted, and a ticket got it that this host, or its predecessor, had given
		// up: the next operation sets it again.
		if c.state == claimConfirmed {
			c.state = claimStale
		}
		c.lingerUntil = 0
	case c.isBusy():
		// The operation in flight was executed after the transfer. Its result is of the same
		// field, or of what became of it.
		c.op.passedMS = m.PassedMS
		if isLive {
			q.order.toServe = q.place.served() // a Take finds the lock as this ticket's
		}
		c.op.isDoubted = c.op.kind == redisop.Drop // it may have made the transfer
		t.doubt(l)
	case isLive && l.holds == nil && q.place.isProof(m):
		q.arbiter.onAcquired(c.state)
		t.stats.Handoffs[HandoffTransfer]++
		c.transferred(now, q.place.validSince+validity(m.LeaseMS), m)
		c.renewAt = t.renewalAfter(q.place.validSince, ms(m.LeaseMS), c.holdID)
		q.order.served = q.place.served()
		q.place = place{}
		l.rivals.areWaiting = m.Waiting > 0
	default:
		t.doubt(l)
		if isLive {
			q.place.mayHaveLock = true
		}
	}
}

// isDropping reports whether a Drop in flight gives back a field with that number.
func (c *remoteClaim) isDropping(id uint64) bool {
	switch c.phase {
	case windowOne:
		return c.op.kind == redisop.Drop && id <= c.op.holdID
	case windowDropAndTake:
		return id < c.op.holdID // what the Take made is live
	}
	return false
}

// onRecalled notes that another sidecar waits for a lock that Redis has for this host.
func (t *Table) onRecalled(l *lock) {
	c := &l.claim
	switch {
	case c.state.isOurs(): // a Drop in flight passes it on, or has
		l.rivals.areWaiting = true
		t.cool(l)
	case c.isBusy():
		if c.op.kind == redisop.Take {
			l.rivals.areWaiting = true
		}
	default:
		t.doubt(l)
	}
}

// doubt notes that Redis has, or had, a field of this host that the table did not know of. A
// Drop of it is to meet all such fields and tickets.
func (t *Table) doubt(l *lock) {
	c := &l.claim
	if c.state == claimAbsent {
		c.state = claimUncertain
	}
	c.maxHoldID = t.lastNum
	if l.queue != nil {
		l.queue.arbiter.tryBy(t.now)
	}
}
