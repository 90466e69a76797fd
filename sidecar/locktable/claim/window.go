package claim

import "github.com/locksidecar/locksidecar/sidecar/redisop"

// Windows has the windows that no claim has.
type Windows struct{ free []*window }

// maxFreeWindows is as many as there are in flight when a hundred thousand locks, which were
// acquired within two seconds, are renewed: 512 KiB.
const maxFreeWindows = 8192

// Open gives a claim a window of its own.
func (p *Windows) Open(c *Claim) {
	if c.window != &atRest {
		return
	}
	last := len(p.free) - 1
	if last < 0 {
		c.window = new(window)
		return
	}
	c.window, p.free[last] = p.free[last], nil
	p.free = p.free[:last]
}

// Close takes the window from a claim that needs none.
func (p *Windows) Close(c *Claim) {
	w := c.window
	if w == &atRest || !w.IsIdle() || w.retryAt != 0 {
		return
	}
	*w = window{}
	if c.window = &atRest; len(p.free) < maxFreeWindows {
		p.free = append(p.free, w)
	}
}

// RetryAt is the time before which no operation is sent, because the last one failed; 0: it did not.
func (w *window) RetryAt() int64 { return w.retryAt }

// Retry has no operation sent before a time, because the last one failed.
func (c *Claim) Retry(at int64) { c.retryAt = at }

// EndPause has the next operation sent without waiting for the end of that time.
func (w *window) EndPause() {
	if w.retryAt != 0 {
		w.retryAt = 0
	}
}

// IsBusy reports whether an operation is in flight that looks at the key or may change it: any but
// an Arrive.
func (w *window) IsBusy() bool { return w.phase != windowIdle }

// IsIdle reports whether no operation is in flight.
func (w *window) IsIdle() bool { return w.phase == windowIdle && !w.isAsking }

// Awaited is when the operation was sent for whose result a Take waits: an Arrive, too, because a
// Drop and a Take say when requests arrived; and a Drop whose Take has its result already. false: there
// is none.
func (w *window) Awaited() (sent int64, is bool) {
	switch {
	case w.isAsking && (!w.IsBusy() || w.askedAt < w.op.SentAt):
		return w.askedAt, true
	case w.IsBusy():
		return w.op.SentAt, true
	}
	return 0, false
}

// Note notes an event for the operation in flight, if there is one.
func (c *Claim) Note(event Events) {
	if c.IsBusy() {
		c.op.Since |= event
	}
}

// OnTransferInFlight notes that the lock passed to a ticket of this host while an operation is in
// flight. Its result is of the same field, or of what became of it.
func (c *Claim) OnTransferInFlight(passedMS uint32) {
	c.op.PassedMS = passedMS
	if c.op.Kind == redisop.Drop {
		c.Note(TransferReceived) // it may have made the transfer
	}
}

// InFlight is the operation that was sent last, but for an Arrive; of kind NoOp: it has its result.
func (c *Claim) InFlight() *InFlight { return &c.op }

// IsTaking reports whether an operation is in flight that may get the key, or says that this host has it.
func (c *Claim) IsTaking() bool { return c.IsBusy() && c.op.Kind != redisop.Drop }

// IsDropping reports whether the operation that was sent last is a Drop, and has no result.
func (c *Claim) IsDropping() bool { return c.op.Kind == redisop.Drop }

// GivesBack reports whether a Drop in flight gives back a field with that number.
func (c *Claim) GivesBack(id uint64) bool {
	switch c.phase {
	case windowOne:
		return c.op.Kind == redisop.Drop && id <= c.op.HoldID
	case windowDropAndTake:
		return id < c.op.HoldID // what the Take made is live
	}
	return false
}

// IsReleasing reports whether a Drop is the one operation in flight, after which a Take may be sent to
// the same shard: the claim would be in doubt if another one had the lock since (OnMoved).
func (c *Claim) IsReleasing() bool {
	return c.phase == windowOne && c.op.Kind == redisop.Drop && c.state.IsOurs()
}

// MayStep reports whether an operation may be sent: none is in flight, or a Drop, after which a Take
// may be pipelined.
func (c *Claim) MayStep() bool { return !c.IsBusy() || c.IsReleasing() }

// AskedAt is when the Arrive in flight was sent; 0: none is in flight.
func (w *window) AskedAt() int64 { return w.askedAt }
