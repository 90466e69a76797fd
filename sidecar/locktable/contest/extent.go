package contest

import "github.com/locksidecar/locksidecar/sidecar/redisop"

// What this host has asked Redis for of a semaphore or a read/write lock, and where it waits.

// OnExtentAsked notes that a Take is sent.
func (c *Contest) OnExtentAsked(now int64, op *redisop.Op) {
	waits, of := op.Has(redisop.Enqueue), op.Capacity
	if op.Of == redisop.KindReadWrite {
		waits, of = op.Times != 0, uint16(op.Times)
	}
	c.asked, c.order.asked = asked{op.Want, of}, op.Arrived
	if waits && c.place.live() == 0 {
		c.place = Place{phase: placeAsked, ticket: op.HoldID, since: now, validSince: now}
	}
	if op.Of == redisop.KindReadWrite {
		c.place.queues |= op.Times
	}
}

// OnExtentResult takes the result of that Take, as far as it is about the place. id is its hold number. queues is where the host
// was to wait for a read/write lock: it waits there still for what it has not got.
func (c *Contest) OnExtentResult(id uint64, queues uint8, r *redisop.Result) {
	p := &c.place
	if queues != 0 && r.Outcome == redisop.Done {
		c.asked.of &^= uint16(r.Permits)
	}
	isQueued := r.Outcome == redisop.HeldByOther && r.IsQueued
	if isQueued {
		queues = r.Queues
	} else if queues &^= uint8(r.Permits); queues != 0 && r.Outcome == redisop.Done {
		isQueued = true
	}
	switch {
	case isQueued:
		since := p.since
		if c.order.asked != 0 || p.phase == placeNone {
			since = r.Sent
		}
		*p = Place{phase: placeQueued, ticket: id, since: since, validSince: r.Sent, rank: int32(r.Rank), conn: r.Conn, queues: queues}
	case r.Outcome == redisop.Unknown:
	case r.Outcome == redisop.Done, r.Outcome == redisop.HeldByOther, p.ticket == id:
		*p = Place{}
	}
}

// OnExtentUnknown notes that the last Take has no result that counts: Redis is asked again as soon as it can be.
func (c *Contest) OnExtentUnknown() { c.asked = asked{} }

// OnExtentGranted notes that a Take has got what it asked for; or, if it asked for nothing, that it was executed.
func (c *Contest) OnExtentGranted(s *Shared, now int64) {
	if c.OnAcquired(false); c.place.isQueued() { // it waits for the other mode of a read/write lock
		c.nextTry = now + s.refreshPause()
	}
}

// Queues is in which queues of a read/write lock this host may stand.
func (c *Contest) Queues() uint8 { return c.place.queues }
