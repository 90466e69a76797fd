package claim

import (
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Want is what Redis should have under a name.
type Want struct {
	Kind    WantKind
	HoldID  uint64
	Count   uint32
	LeaseMS uint32 // that the key is to be given now

	// Of WantHold.
	FullLeaseMS uint32 // that the key was given at the grant
	IsRenewed   bool
	IsChecked   bool
	Tokens      int   // local handoffs that there are to be tokens for
	ReserveAt   int64 // from when tokens may be reserved; never: there is nothing to reserve them for
	IsHot       bool  // tokens are reserved before the last one is granted, and Redis gets to know of handoffs later

	// Of WantForQueue.
	redisop.Asked       // of WantNothing, too: a Ticket that may stand in the queue
	NotBefore     int64 // no Take before, unless the key is this host's
	ArriveAt      int64 // of WantHold, too: from when Redis is asked for arrivals; never: all are known

	// Of WantExtent, which has Count: the extent that the local holds need, IsRenewed, IsChecked, what is asked for the
	// first waiter, and NotBefore: no such Take before; never: there is none.
	GiveBackAt int64 // from when Redis is to get back what the claim has beyond Count; never: that is nothing
	OfMode     bool  // the extent is a mode: a Renew or a Check names the one that Redis has

	// Of WantNothing.
	PassedMS uint32 // at least so long is sent
}

// WantKind says what Redis should have.
type WantKind uint8

const (
	WantNothing  WantKind = iota // no field of this host
	WantHold                     // the field of a local hold
	WantForQueue                 // a field for the first local waiter, or a ticket
	WantLinger                   // what there is, although no local client wants it
	WantExtent                   // the extent that the local holds need, and what the first waiter wants
)

// handoffSyncDelay is how long Redis may have an earlier hold of this host than the one that
// a lock was handed over to. An operation for each handoff would put Redis on the path again:
// where a lock passes from one process to the next all the time, Redis took part in nine of
// ten handoffs, and they were a third fewer. That another host waits, which the result says,
// is known some milliseconds later.
const handoffSyncDelay = int64(5 * time.Millisecond)

// hotSyncDelay is the same for a lock that lingers between its holds: no other host is known
// to want it, and another sidecar would say so.
const hotSyncDelay = int64(50 * time.Millisecond)

// Step returns the operation that makes Redis have what it should have, or NoOp; then
// the alarm has the time from which there will be one. At most one operation is in flight,
// or a Take after a Drop.
func (c *Claim) Step(a *moment.Alarm, w *Want) redisop.Op {
	before := a.Next
	op := c.choose(a, w)
	if op.Kind != redisop.NoOp {
		a.Next = before // its result comes first
	}
	return op
}

func (c *Claim) choose(a *moment.Alarm, w *Want) redisop.Op {
	if c.IsBusy() && !w.Has(redisop.AfterPendingDrop) || !a.Due(c.retryAt) {
		return redisop.Op{}
	}
	if c.isAsking && w.Kind != WantHold {
		return redisop.Op{} // a Drop, and the Take after it, say when the requests arrived that are asked about
	}
	c.EndPause()
	switch {
	case w.Kind == WantHold:
		op := c.chooseForHold(a, w)
		if op.Kind == redisop.NoOp && c.mayAsk(a, w) {
			op = redisop.Op{Kind: redisop.Arrive}
		}
		return op
	case w.Kind == WantExtent:
		return c.chooseExtent(a, w)
	case w.Kind == WantForQueue && (c.state.IsOurs() || a.Due(w.NotBefore)):
		return redisop.Op{Kind: redisop.Take, HoldID: w.HoldID, Count: w.Count, LeaseMS: w.LeaseMS, Asked: w.Asked}
	case w.Kind == WantForQueue && c.mayAsk(a, w):
		return redisop.Op{Kind: redisop.Arrive} // a Take that is due is an arrival, too
	case w.Kind == WantNothing && (c.state != Absent || w.Ticket != 0):
		return redisop.Op{Kind: redisop.Drop, HoldID: c.maxHoldID, Count: 1, LeaseMS: w.LeaseMS, Asked: redisop.Asked{Ticket: w.Ticket}, PassedMS: max(c.PassedMS(a.Now), w.PassedMS)}
	}
	return redisop.Op{}
}

// mayAsk reports whether Redis is to be asked now when requests arrived.
func (c *Claim) mayAsk(a *moment.Alarm, w *Want) bool {
	return !c.isAsking && a.Due(w.ArriveAt)
}

func (c *Claim) chooseForHold(a *moment.Alarm, w *Want) redisop.Op {
	handedOver := c.holdID != w.HoldID && c.state != Restored
	// Tokens are reserved early if the operation is needed anyway. The counter may be no
	// counter, or memory short: that must not keep the renewal back; see reserveFailed.
	reserve := uint16(0)
	if a.Now >= w.ReserveAt && int(c.tokensLeft) < max(1, w.Tokens/4) {
		reserve = uint16(w.Tokens)
	}
	op := redisop.Op{HoldID: w.HoldID, Count: w.Count, LeaseMS: w.LeaseMS}
	syncDelay := handoffSyncDelay
	if w.IsHot {
		syncDelay = hotSyncDelay
	}
	switch {
	case c.state.IsUnsure():
		op.Kind, op.Reserve, op.Flags = redisop.Take, reserve, redisop.CountListeners // assert it
	case handedOver && a.Due(c.confirmedAt+syncDelay), (!c.HasTokens() || w.IsHot && reserve > 0) && a.Due(w.ReserveAt):
		op.Kind, op.Reserve, op.Flags = redisop.Take, reserve, redisop.RequireExisting|redisop.CountListeners
	case (c.state == Stale || c.count != w.Count) && !handedOver, w.IsRenewed && a.Due(c.renewAt),
		c.state == Restored, // like a renewal: there may be very many
		// It was acquired for a waiter with a longer lease that is gone: its renewal is not
		// due in time, and the key would outlive a dead sidecar for longer.
		c.leaseMS > w.FullLeaseMS && w.LeaseMS <= w.FullLeaseMS:
		op.Kind = redisop.Renew
	case w.IsChecked && !handedOver && a.Due(c.renewAt):
		op.Kind, op.LeaseMS = redisop.Check, 0
	default:
		return redisop.Op{}
	}
	return op
}

// chooseExtent chooses for a semaphore or a read/write lock. A renewal comes first: in a Redis that is full it may be all that is
// executed. While it is not known in which mode Redis has a read/write lock for this host, a Take renews it.
func (c *Claim) chooseExtent(a *moment.Alarm, w *Want) redisop.Op {
	op := redisop.Op{Kind: redisop.Take, HoldID: w.HoldID, Count: w.Count, LeaseMS: w.LeaseMS, Asked: w.Asked}
	isHeld, isUnsure := w.Count > 0, c.state.IsUnsure()
	isExact := !w.OfMode || c.state == Confirmed && c.count == w.Count
	op.Set(redisop.RequireExisting, isHeld && !isUnsure)
	switch {
	case isHeld && isUnsure: // the holds are asserted
	case isHeld && (c.state == Restored || w.IsRenewed && a.Due(c.renewAt)):
		if !isExact {
			break
		}
		op.Kind, op.HoldID, op.Asked = redisop.Renew, c.holdID, redisop.Asked{}
		if c.state != Confirmed {
			op.HoldID = c.maxHoldID // an operation whose result is lost may have left its number
		}
	case c.state == Stale, a.Due(w.NotBefore), a.Due(w.GiveBackAt):
	case isHeld && w.IsChecked && a.Due(c.renewAt):
		if isExact {
			op.Kind, op.HoldID, op.Asked, op.LeaseMS = redisop.Check, c.holdID, redisop.Asked{}, 0
		}
	default:
		return redisop.Op{}
	}
	return op
}
