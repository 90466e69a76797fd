package claim

import "github.com/locksidecar/locksidecar/sidecar/redisop"

// Send notes an operation that is being sent. unassigned: it is for the queue, not for a hold.
// Precondition: the claim has a window of its own.
func (c *Claim) Send(now int64, op *redisop.Op, unassigned bool) {
	switch {
	case c.window == &atRest:
		violated("The window that claims at rest share is never written", "operation %d", op.Kind)
	case op.Kind == redisop.Arrive && !c.isAsking:
	case op.Kind == redisop.Arrive, c.IsBusy() && !(op.Kind == redisop.Take && op.Has(redisop.AfterPendingDrop) && c.phase == windowOne && c.op.Kind == redisop.Drop):
		violated("One operation in flight", "operation %d is sent during operation %d", op.Kind, c.op.Kind)
	case op.HoldID < c.holdID:
		violated("A lower hold number never replaces a higher one", "operation %d has %d, and Redis has %d", op.Kind, op.HoldID, c.holdID)
	}
	if op.Kind == redisop.Arrive {
		c.isAsking, c.askedAt = true, now
		return
	}
	c.op = InFlight{
		Kind: op.Kind, Unassigned: unassigned, HoldID: op.HoldID, SentAt: now,
		Count: op.Count, LeaseMS: op.LeaseMS, Reserve: op.Reserve, Want: op.Want, Had: c.Extent(), PassedMS: op.PassedMS, Flags: op.Flags,
	}
	if op.Of == redisop.KindReadWrite {
		c.op.Queues = op.Times
	}
	c.phase = windowOne
	if op.Has(redisop.AfterPendingDrop) {
		busySince := c.busySince // the key does not disappear in between
		c.Forget(Uncertain)
		c.busySince = busySince
		c.phase = windowDropAndTake
	}
	c.lingerUntil = 0
	c.maxHoldID = max(c.maxHoldID, op.HoldID)
	if op.Of.HasMany() && op.Kind == redisop.Take {
		c.count = min(c.count, op.Count) // Redis may have no more as soon as it is sent
	}
	if op.Kind == redisop.Take || op.Kind == redisop.Renew {
		// It may shorten the key's life as soon as it is sent.
		c.validUntil = min(c.validUntil, now+Validity(op.LeaseMS))
		if c.use() == unused {
			c.setUse(unusedDoubted)
		}
	}
}

// Answer takes the result of an operation out of the window, and returns the operation.
// pipelined: it was the Drop before a Take, whose result will say more.
func (c *Claim) Answer(kind redisop.OpKind) (op InFlight, pipelined bool) {
	switch {
	case kind == redisop.Arrive && c.isAsking:
		op = InFlight{Kind: redisop.Arrive, SentAt: c.askedAt}
		c.isAsking, c.askedAt = false, 0
		return op, false
	case kind == redisop.Drop && c.phase == windowDropAndTake:
		c.phase = windowOne
		return op, true
	case kind == redisop.Drop && c.phase == windowLateDrop:
		c.phase, c.op = windowIdle, InFlight{}
		return op, true
	case kind == redisop.NoOp || c.op.Kind != kind:
		violated("Each result is of an operation", "a result of kind %d came, and operation %d is in flight", kind, c.op.Kind)
	case c.phase == windowDropAndTake:
		c.phase = windowLateDrop
		op, c.op = c.op, InFlight{SentAt: c.op.SentAt} // the Drop was sent before that
		return op, false
	}
	c.phase = windowIdle
	op, c.op = c.op, InFlight{}
	return op, false
}
