package locktable

import (
	"math"
	"math/bits"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// remoteClaim is what Redis has for this host under one name, as far as this host knows,
// and the operations on it that are in flight. It knows neither clients nor other hosts:
// the lock says in a want what Redis should have, and step returns the operation that
// brings Redis nearer to that.
type remoteClaim struct {
	content
	*window // &atRest: no operation is in flight, and the last one did not fail

	maxHoldID uint64 // largest number that any hold of this lock, or operation on it, had
	renewAt   int64  // when the key is to be renewed (watchdog), or checked (fixed lease)
}

// claimState is what this host knows of its field in Redis.
//
//	          Take sent              Take, Renew done
//	absent ───────────▶ (unknown ──────────────────────────▶ confirmed ◀─┐
//	  ▲                  result)                              │  │       │ done
//	  │                     ▼             result unknown,     │  ▼       │
//	  │◀───────────── uncertain           Check differs ───▶  │ stale ───┘
//	  │   Drop done         ▲                                 ▼
//	  │                     │ hold ended          Redis may have lost its data
//	  │                  inDoubt ◀────────────────────────────┤
//	  │                     │ Take done: confirmed            │
//	  └─────────────────────┴─────────────────────────────────┘
//	    Drop done; or another host, another program or no key was found
//
// restored is confirmed as a predecessor of this process knew it; its first operation
// makes it confirmed. A transfer makes an absent claim confirmed, too, if it is of the ticket
// that stands for this host, and uncertain otherwise: see place.go.
type claimState uint8

const (
	// claimAbsent: Redis has no field of this host. Ended by a Take.
	claimAbsent claimState = iota

	// claimUncertain: an operation with an unknown result may have left a field, and no
	// local hold depends on it. Ended by the result of a Take or a Drop.
	claimUncertain

	// claimInDoubt: Redis may have lost its data, and with it the field of a local hold,
	// or of this host's queue. Ended by the result of a Take, which asserts the hold, or of a
	// Drop.
	claimInDoubt

	// claimRestored: the field of a hold that the predecessor's journal has. This process
	// has no result for it yet. Ended by the first result.
	claimRestored

	// claimStale: the field is there, with a number of entries that is not known.
	// Ended by the result of the next operation, which sets it.
	claimStale

	// claimConfirmed: the field is there, with holdID and count.
	claimConfirmed
)

// isOurs reports whether Redis has a field of this host, until validUntil at least.
func (s claimState) isOurs() bool { return s >= claimRestored }

// isUnsure reports whether Redis may have a field of this host.
func (s claimState) isUnsure() bool { return s == claimUncertain || s == claimInDoubt }

// content is what Redis is known to have under the name.
type content struct {
	nextToken   uint64 // of the tokensLeft that were drawn
	holdID      uint64
	confirmedAt int64 // when the result came that this is from
	validUntil  int64 // the key is this host's until then at least, by the rate of Redis's own clock
	busySince   int64 // since when the key has had no free moment, as far as this host knows, whichever host had it
	cameAt      int64 // when it came to this host: its turn began
	lingerUntil int64 // it is kept until then although no local client wants it; 0: it is not
	count       uint32
	leaseMS     uint32
	grants      uint16 // in this turn, up to maxGrants
	tokensLeft  uint16 // fencing tokens that were drawn from the counter and not granted
	state       claimState
	use         claimUse

	// granted counts the grants since the lock is known, modulo 2^16: see Table.countGrant. It is
	// not about the key, and stands here because nothing else has room for it.
	granted uint16
}

const maxGrants = 1 << 15

// claimUse says whether a hold has had the claim, and what is known of the expiry of an unused one.
type claimUse uint8

const (
	claimUsed          claimUse = iota // a hold has, or had, holdID
	claimUnused                        // it was acquired for the queue, which set its expiry
	claimUnusedDoubted                 // it was acquired for the queue; an operation that was sent later may set another expiry
)

// isTired reports whether the key has had no free moment for QuietTime, or for PollerTime if a
// program may be polling it.
func (c *content) isTired(cfg *Config, r *rivals, now int64) bool {
	return c.busySince != 0 && now-c.busySince >= r.quietTime(cfg, now)
}

func (c *content) hasTokens() bool { return c.tokensLeft > 0 }

func (c *content) takeToken() uint64 {
	c.nextToken++
	c.tokensLeft--
	return c.nextToken - 1
}

// dropTokens forgets the tokens that were drawn: their numbers are never granted.
func (c *content) dropTokens() { c.tokensLeft = 0 }

// window is the operations in flight on one key: none, one, or a Drop and the Take that
// was pipelined after it.
//
//	idle ──send──▶ one ──Take pipelined after a Drop──▶ dropAndTake
//	  ▲             │                                    │        │
//	  │◀──result────┘◀──────────result of the Drop───────┘        │ result of the Take
//	  │                                                           ▼
//	  └◀────────────────────result of the Drop────────────── lateDrop
//
// An Arrive changes nothing, so the operations of a hold are in flight beside it: a renewal that is
// due does not wait for its result. A Drop and a Take for the queue do: they say when requests
// arrived.
//
// A lock has a window of its own from send to the end of the reconcile after which nothing is
// in flight and no failed operation waits. Nearly all of a hundred thousand held locks have none
// at any moment: these share atRest.
type window struct {
	op       inFlight // the operation sent last; NoOp: it has its result
	retryAt  int64    // no operation before, because the last one failed; 0: it did not
	askedAt  int64    // when the Arrive in flight was sent
	phase    windowPhase
	isAsking bool // an Arrive is in flight, beside the operations of phase
}

// atRest is never written.
var atRest window

// openWindow gives a lock a window of its own.
func (t *Table) openWindow(l *lock) {
	if l.claim.window == &atRest {
		l.claim.window = t.windows.get()
	}
}

// closeWindow takes the window from a lock that needs none.
func (t *Table) closeWindow(l *lock) {
	if w := l.claim.window; w != &atRest && w.isIdle() && w.retryAt == 0 {
		*w = window{}
		t.windows.put(w)
		l.claim.window = &atRest
	}
}

// endPause has the next operation sent without waiting for retryAt.
func (w *window) endPause() {
	if w.retryAt != 0 {
		w.retryAt = 0
	}
}

type windowPhase uint8

const (
	windowIdle windowPhase = iota
	windowOne
	windowDropAndTake // a Drop, and after it op, which is a Take
	windowLateDrop    // the Take has its result, the Drop that was sent before it has none yet
)

// isBusy reports whether an operation is in flight that looks at the key or may change it: any but
// an Arrive.
func (w *window) isBusy() bool { return w.phase != windowIdle }

// isIdle reports whether no operation is in flight.
func (w *window) isIdle() bool { return w.phase == windowIdle && !w.isAsking }

// awaited is when the operation was sent for whose result a Take waits: an Arrive, too, because a
// Drop and a Take say when requests arrived. false: there is none.
func (w *window) awaited() (sent int64, is bool) {
	switch {
	case w.isAsking && (w.op.kind == redisop.NoOp || w.askedAt < w.op.sentAt):
		return w.askedAt, true
	case w.op.kind != redisop.NoOp:
		return w.op.sentAt, true
	}
	return 0, false
}

// inFlight is an operation in flight.
type inFlight struct {
	holdID          uint64
	sentAt          int64
	count           uint32
	leaseMS         uint32
	reserve         uint16
	passedMS        uint32 // of a Drop; of a Take: of the transfer that was received since it was sent
	kind            redisop.OpKind
	unassigned      bool // for the queue, not for a hold
	enqueue         bool // see Op.Enqueue
	isDoubted       bool // a transfer was received since it was sent, which it may have made
	mayBeFree       bool // a release was published, or Redis is reached again: a result "another host's" may be out of date
	checkAgain      bool // another program may have changed the key since it was sent
	mayHaveLostData bool // Redis may have lost its data since it was sent
}

// use is what a claim is for that has come with this operation.
func (op *inFlight) use() claimUse {
	if op.unassigned {
		return claimUnused
	}
	return claimUsed
}

// want is what Redis should have under a name.
type want struct {
	kind    wantKind
	holdID  uint64
	count   uint32
	leaseMS uint32 // that the key is to be given now

	// Of wantHold.
	fullLeaseMS uint32 // that the key was given at the grant
	isRenewed   bool
	isChecked   bool
	tokens      int   // local handoffs that there are to be tokens for
	reserveAt   int64 // from when tokens may be reserved; never: there is nothing to reserve them for
	isHot       bool  // tokens are reserved before the last one is granted, and Redis is told of handoffs later

	// Of wantForQueue.
	reserve     uint16 // tokens to draw
	enqueue     bool   // a ticket is to stand in the queue if another host has the lock
	notBefore   int64  // unless the claim is this host's already
	mayPipeline bool   // after a Drop in flight
	onlyAsk     bool   // a free lock is left to the hosts before this one in the queue
	inOrder     bool   // a free lock goes to the first of the queue, if there is one
	arrived     uint64 // see Op.Arrived

	// Of wantNothing.
	passedMS uint32 // at least so long is sent

	// Of wantForQueue and wantNothing.
	ticket uint64 // that may stand in the queue; 0: none

	// Of wantHold, and of wantForQueue with a ticket.
	arrives  bool  // there are waiters whose arrival is not known
	arriveAt int64 // and from then on Redis is asked for it
}

type wantKind uint8

const (
	wantNothing  wantKind = iota // no field of this host
	wantHold                     // the field of a local hold
	wantForQueue                 // a field for the first local waiter, or a ticket
	wantLinger                   // what there is, although no local client wants it
)

// handoffSyncDelay is how long Redis may have an earlier hold of this host than the one that
// a lock was handed over to. To tell it of each handoff would put it on the path again:
// where a lock passes from one process to the next all the time, Redis took part in nine of
// ten handoffs, and they were a third fewer. That another host waits, which the result says,
// is known some milliseconds later.
const handoffSyncDelay = int64(5 * time.Millisecond)

// hotSyncDelay is the same for a lock that lingers between its holds: no other host is known
// to want it, and another sidecar would say so.
const hotSyncDelay = int64(50 * time.Millisecond)

// isReleasing reports whether a Drop is the one operation in flight.
func (c *remoteClaim) isReleasing() bool {
	return c.phase == windowOne && c.op.kind == redisop.Drop && c.state.isOurs()
}

// step returns the operation that brings Redis nearer to what it should have, or NoOp; then
// the alarm has the time from which there will be one. At most one operation is in flight,
// or a Take after a Drop.
func (c *remoteClaim) step(a *alarm, w *want) redisop.Op {
	before := a.next
	op := c.choose(a, w)
	if op.Kind != redisop.NoOp {
		a.next = before // its result comes first
	}
	return op
}

func (c *remoteClaim) choose(a *alarm, w *want) redisop.Op {
	if c.isBusy() && !w.mayPipeline || !a.due(c.retryAt) {
		return redisop.Op{}
	}
	if c.isAsking && w.kind != wantHold {
		return redisop.Op{} // a Drop, and the Take after it, say when the requests arrived that are asked about
	}
	c.endPause()
	switch {
	case w.kind == wantHold:
		op := c.chooseForHold(a, w)
		if op.Kind == redisop.NoOp && c.mayAsk(a, w) {
			op = redisop.Op{Kind: redisop.Arrive}
		}
		return op
	case w.kind == wantForQueue && (c.state.isOurs() || a.due(w.notBefore)):
		return redisop.Op{
			Kind: redisop.Take, HoldID: w.holdID, Count: w.count, LeaseMS: w.leaseMS, Reserve: w.reserve,
			AfterPendingDrop: w.mayPipeline, Enqueue: w.enqueue, Ticket: w.ticket, RequireExisting: w.onlyAsk, InOrder: w.inOrder,
			Arrived: w.arrived,
		}
	case w.kind == wantForQueue && c.mayAsk(a, w):
		return redisop.Op{Kind: redisop.Arrive} // a Take that is due is an arrival, too
	case w.kind == wantNothing && (c.state != claimAbsent || w.ticket != 0):
		return redisop.Op{Kind: redisop.Drop, HoldID: c.maxHoldID, Count: 1, LeaseMS: w.leaseMS, Ticket: w.ticket, PassedMS: max(c.passedMS(a.now), w.passedMS)}
	}
	return redisop.Op{}
}

// mayAsk reports whether Redis is to be asked now when requests arrived.
func (c *remoteClaim) mayAsk(a *alarm, w *want) bool {
	return w.arrives && !c.isAsking && a.due(w.arriveAt)
}

func (c *remoteClaim) chooseForHold(a *alarm, w *want) redisop.Op {
	handedOver := c.holdID != w.holdID && c.state != claimRestored
	// Tokens are reserved early if the operation is needed anyway. The counter may be no
	// counter, or memory short: that must not keep the renewal back; see reserveFailed.
	reserve := uint16(0)
	if a.now >= w.reserveAt && int(c.tokensLeft) < max(1, w.tokens/4) {
		reserve = uint16(w.tokens)
	}
	op := redisop.Op{HoldID: w.holdID, Count: w.count, LeaseMS: w.leaseMS}
	syncDelay := handoffSyncDelay
	if w.isHot {
		syncDelay = hotSyncDelay
	}
	switch {
	case c.state.isUnsure():
		op.Kind, op.Reserve = redisop.Take, reserve // assert it
	case handedOver && a.due(c.confirmedAt+syncDelay), (!c.hasTokens() || w.isHot && reserve > 0) && a.due(w.reserveAt):
		op.Kind, op.Reserve, op.RequireExisting = redisop.Take, reserve, true
	case (c.state == claimStale || c.count != w.count) && !handedOver, w.isRenewed && a.due(c.renewAt),
		c.state == claimRestored, // like a renewal: there may be very many
		// It was acquired for a waiter with a longer lease that is gone: its renewal is not
		// due in time, and the key would outlive a dead sidecar for longer.
		c.leaseMS > w.fullLeaseMS && w.leaseMS <= w.fullLeaseMS:
		op.Kind = redisop.Renew
	case w.isChecked && !handedOver && a.due(c.renewAt):
		op.Kind, op.LeaseMS = redisop.Check, 0
	default:
		return redisop.Op{}
	}
	return op
}

// sent notes an operation that is being sent.
func (c *remoteClaim) sent(now int64, op *redisop.Op, unassigned bool) {
	if op.Kind == redisop.Arrive {
		c.isAsking, c.askedAt = true, now
		return
	}
	c.op = inFlight{
		kind: op.Kind, unassigned: unassigned, holdID: op.HoldID, sentAt: now,
		count: op.Count, leaseMS: op.LeaseMS, reserve: op.Reserve, passedMS: op.PassedMS, enqueue: op.Enqueue,
	}
	c.phase = windowOne
	if op.AfterPendingDrop {
		busySince := c.busySince // the key does not disappear in between
		c.forget(claimUncertain)
		c.busySince = busySince
		c.phase = windowDropAndTake
	}
	c.lingerUntil = 0
	c.maxHoldID = max(c.maxHoldID, op.HoldID)
	if op.Kind == redisop.Take || op.Kind == redisop.Renew {
		// It may shorten the key's life as soon as it is sent.
		c.validUntil = min(c.validUntil, now+validity(op.LeaseMS))
		if c.use == claimUnused {
			c.use = claimUnusedDoubted
		}
	}
}

// answered takes the result of an operation out of the window, and returns the operation.
// pipelined: it was the Drop before a Take, whose result will say more.
func (c *remoteClaim) answered(kind redisop.OpKind) (op inFlight, pipelined bool) {
	switch {
	case kind == redisop.Arrive && c.isAsking:
		op = inFlight{kind: redisop.Arrive, sentAt: c.askedAt}
		c.isAsking, c.askedAt = false, 0
		return op, false
	case kind == redisop.Drop && c.phase == windowDropAndTake:
		c.phase = windowOne
		return op, true
	case kind == redisop.Drop && c.phase == windowLateDrop:
		c.phase = windowIdle
		return op, true
	case kind == redisop.NoOp || c.op.kind != kind:
		panic("locktable: a result that no operation asked for")
	case c.phase == windowDropAndTake:
		c.phase = windowLateDrop
	default:
		c.phase = windowIdle
	}
	op, c.op = c.op, inFlight{}
	return op, false
}

// forget notes that Redis has no field of this host, or that it may have one, which
// nothing more is known of.
func (c *remoteClaim) forget(s claimState) { c.content = content{state: s, granted: c.granted} }

// confirmed notes that Redis has the field as a Take or a Renew wanted it. until is the end
// of its validity.
func (c *remoteClaim) confirmed(now, until int64, op *inFlight, lastToken uint64) {
	if c.state == claimAbsent || c.state == claimUncertain {
		c.cameAt, c.grants = now, 0
	}
	if c.busySince == 0 {
		c.busySince = now - ms(op.passedMS)
	}
	c.state, c.use = claimConfirmed, op.use()
	c.holdID, c.count, c.leaseMS = op.holdID, op.count, op.leaseMS
	c.confirmedAt, c.validUntil = now, until
	if op.kind == redisop.Take && op.reserve > 0 {
		c.nextToken, c.tokensLeft = lastToken-uint64(op.reserve)+1, op.reserve
	}
}

// transferred notes that another sidecar passed the key on to the ticket of this host. until is
// the end of its validity.
func (c *remoteClaim) transferred(now, until int64, m *redisop.Message) {
	c.content = content{
		granted: c.granted,
		state:   claimConfirmed, use: claimUnused, holdID: m.Ticket, count: 1, leaseMS: m.LeaseMS,
		confirmedAt: now, validUntil: until, cameAt: now, busySince: now - ms(m.PassedMS),
		nextToken: m.LastToken - uint64(m.Tokens) + 1, tokensLeft: m.Tokens,
	}
}

// passedMS is for how long the key has had no free moment, ms. The next host adds its turn to
// that. A turn may be shorter than a millisecond, so a part of one is rounded up as often as it
// is large: by where in its millisecond now is.
func (c *content) passedMS(now int64) uint32 {
	if !c.state.isOurs() || c.busySince == 0 {
		return 0
	}
	const ms = int64(time.Millisecond)
	return uint32(min((now-c.busySince+now%ms)/ms, math.MaxUint32))
}

// unknown notes that an operation may have been executed or may yet be. The next one does
// no harm in either case.
func (c *remoteClaim) unknown(now int64, op *inFlight) {
	switch {
	case op.kind == redisop.Drop:
		c.forget(claimUncertain)
	case op.kind == redisop.Check:
		c.renewAt = now
	case c.state == claimAbsent:
		c.state = claimUncertain
	case c.state == claimConfirmed:
		c.state = claimStale
	}
}

// dataLost notes that Redis may have lost its data, and tokens that were drawn before: after
// a restart or a failover. (A FLUSHALL of a Redis that goes on running is not noticed as
// such: the next operation finds no key, see KeyMissing in Table.Result.)
func (c *remoteClaim) dataLost() {
	c.dropTokens()
	if c.isBusy() {
		c.op.mayHaveLostData = true // it may meet the new data
	}
	if c.state.isOurs() {
		c.state = claimInDoubt
	}
}

// noteMayBeFree notes that the operation in flight, if there is one, may find another host's field
// that is gone by the time of its result.
func (c *remoteClaim) noteMayBeFree() {
	if c.isBusy() {
		c.op.mayBeFree = true
	}
}

// validity is how long a lease may be believed in, counted from the moment at
// which the operation was sent: the lease less what two clocks may differ by.
func validity(leaseMS uint32) int64 {
	return ms(leaseMS) - ms(leaseMS)/100 - int64(2*time.Millisecond)
}

// leaseCovering is the shortest lease whose validity is so long.
func leaseCovering(d int64) uint32 {
	const ms = int64(time.Millisecond)
	leaseMS := uint32((max(d, 0) + 2*ms) / ms * 100 / 99)
	for validity(leaseMS) < d {
		leaseMS++
	}
	return leaseMS
}

// leaseKeeping is a lease whose validity is so long at least. It has eight significant bits, so
// that a script renews many locks whose keeps end at different times.
func leaseKeeping(d int64) uint32 {
	lease := leaseCovering(d)
	step := uint32(1) << max(0, bits.Len32(lease)-8)
	return (lease + step - 1) &^ (step - 1)
}

func ms[T uint32 | int64](v T) int64 { return int64(v) * int64(time.Millisecond) }

// shortMillis is a time or a duration in ms, for differences of less than a month.
func shortMillis(ns int64) uint32 { return uint32(ns / int64(time.Millisecond)) }
