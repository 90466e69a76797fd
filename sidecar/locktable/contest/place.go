package contest

import "github.com/locksidecar/locksidecar/sidecar/redisop"

// The place of this host in the queue of a lock is a ticket, with which it waits for a transfer.
//
// A ticket is a hold number that a Take put into the queue, because another host had the lock.
// When a sidecar releases the lock, Redis writes the first ticket into the key as the field of
// its new owner, and publishes that to the owner. So a host can come to own a lock at a moment at
// which it sends nothing. What makes that safe:
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
//   - A message that a host does not accept makes its claim uncertain: it asks Redis.
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

// onTakeSent notes a Take with Enqueue.
func (p *Place) onTakeSent(now int64, op *redisop.Op) {
	if p.live() == 0 {
		*p = Place{phase: placeAsked, ticket: op.HoldID, since: now, validSince: now, arrived: op.Arrived}
	}
}

// onTakeResult notes the result of a Take with Enqueue. id is its hold number, and arrived its
// Arrived.
func (p *Place) onTakeResult(id, arrived uint64, r *redisop.Result) {
	switch {
	case r.Outcome == redisop.HeldByOther && r.IsQueued:
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
		*p = Place{phase: placeQueued, ticket: r.Ticket, since: since, validSince: r.Sent, rank: int32(r.Rank), conn: r.Conn, arrived: arrived}
	case r.Outcome == redisop.Unknown:
	case r.Outcome == redisop.Done, r.Outcome == redisop.HeldByOther, p.ticket == id:
		*p = Place{}
	}
}

// onDropSent notes that a Drop is sent, which gives the ticket up.
func (p *Place) onDropSent() {
	if p.phase != placeNone {
		p.phase = placeLeaving
	}
}

// onDropResult notes the result of that Drop.
func (p *Place) onDropResult(r *redisop.Result) {
	if p.phase == placeLeaving && (r.Outcome == redisop.Done || r.Outcome == redisop.NotALock || r.Outcome == redisop.Refused) {
		*p = Place{}
	}
}

// Ticket returns the ticket that this host has, or may have, in the queue; 0: none. It may be given up.
func (c *Contest) Ticket() uint64 { return c.place.ticket }

// HasPlace reports whether this host has, or may have, a ticket in the queue.
func (c *Contest) HasPlace() bool { return c.place.phase != placeNone }

// IsLive reports whether a ticket is the one that may be transferred to this host.
func (c *Contest) IsLive(ticket uint64) bool { return c.place.live() == ticket }

// IsProof reports whether a message, which says that the lock passed to the live ticket, proves
// that: the server that answered last that the ticket stands has executed the transfer.
func (c *Contest) IsProof(m *redisop.Message) bool {
	return c.place.isQueued() && c.place.conn.IsSame(m.Conn)
}

// OnTakeSent notes that a Take with Enqueue is sent.
func (c *Contest) OnTakeSent(now int64, op *redisop.Op) {
	c.order.onTakeSent(now, op, &c.place)
	c.place.onTakeSent(now, op)
}

// OnTakeResult takes the result of a Take with Enqueue, as far as it is about the ticket. id is the
// hold number of the Take.
func (c *Contest) OnTakeResult(id uint64, r *redisop.Result) {
	c.place.onTakeResult(id, c.order.asked, r)
}

// OnTransferred notes that the lock passed to the ticket, which IsProof of it. It returns when the
// Take was sent to which Redis answered last that the ticket stands: the lease began later.
func (c *Contest) OnTransferred(wasOurs bool, m *redisop.Message) (validSince int64) {
	nextTry := c.nextTry
	c.OnAcquired(wasOurs)
	validSince = c.place.validSince
	c.order.served = c.place.served()
	if m.Of == redisop.KindReadWrite {
		c.asked.of &^= m.Units
	}
	if c.place.queues &^= uint8(m.Units); c.place.queues == 0 {
		c.place = Place{}
	} else {
		c.nextTry = nextTry // the host waits for the other mode of a read/write lock, too
	}
	c.memory.hostsWait = m.Waiting > 0
	return validSince
}

// OnTransferredInFlight notes that the lock passed to the live ticket while an operation is in flight:
// if that is a Take, it finds the lock as this ticket's.
func (c *Contest) OnTransferredInFlight() { c.order.toServe = c.place.served() }

// OnTransferUnproved notes a message which says that the lock passed to the live ticket, and does not
// prove it.
func (c *Contest) OnTransferUnproved() { c.place.mayHaveLock = true }

// OnRequeue notes a message which says that a ticket left the queue. Older sidecars do not name the
// ticket. isBusy: as in View.
func (c *Contest) OnRequeue(now int64, m *redisop.Message, isBusy bool) {
	if c.place.isQueued() && (!m.NamesTicket || m.Ticket == c.place.ticket) && !isBusy {
		c.place = Place{}
		c.TryBy(now)
	}
}

// OnMoved notes that another shard has the lock. What the one before says of the ticket proves nothing any
// more.
func (c *Contest) OnMoved(now int64, isListening bool) {
	c.OnUp(now, isListening)
	c.place.conn = redisop.Conn{}
}

// OnUp notes that Redis can be asked again. Messages from before are lost.
func (c *Contest) OnUp(now int64, isListening bool) {
	if !isListening {
		c.place = Place{} // a transfer would reach no connection, so Redis passes it on
	}
	c.remote.isKnown = false // what was learned before counts no more
	c.order.retryAt, c.order.isDenied = 0, false
	c.TryBy(now)
}
