package claim

import (
	"math"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// HasTokens reports whether there is a token for the next hold.
func (c *content) HasTokens() bool { return c.tokensLeft > 0 }

func (c *content) takeToken() uint64 {
	c.nextToken++
	c.tokensLeft--
	return c.nextToken - 1
}

// DropTokens forgets the tokens that were drawn: their numbers are never granted.
func (c *content) DropTokens() { c.tokensLeft = 0 }

// Reset makes the claim one of which nothing is known: Redis has no field of this host.
func (c *Claim) Reset() { *c = Claim{window: &atRest} }

// State is what this host knows of its field in Redis.
func (c *Claim) State() State { return c.state }

// HoldID is the hold number of the field, as far as it is known.
func (c *Claim) HoldID() uint64 { return c.holdID }

// MaxHoldID is the largest number that any hold of this lock, or operation on it, had.
func (c *Claim) MaxHoldID() uint64 { return c.maxHoldID }

// Extent is what Redis has for this host at least: so many permits of a semaphore, or the [redisop.Mode] of a read/write lock;
// 0: it is not known.
func (c *Claim) Extent() uint32 {
	if c.state != Confirmed {
		return 0
	}
	return c.count
}

// ValidUntil is until when the key is this host's at least.
func (c *Claim) ValidUntil() int64 { return c.validUntil }

// LeaseMS is the lease that the key was given last, ms.
func (c *Claim) LeaseMS() uint32 { return c.leaseMS }

// CameAt is when the lock came to this host: its turn began.
func (c *Claim) CameAt() int64 { return c.cameAt }

// BusySince is since when the key has had no free moment, whichever host had it; 0: it is not known.
func (c *Claim) BusySince() int64 { return c.busySince }

// Grants is the number of grants in this turn; 2: there were two or more.
func (c *content) Grants() int { return int(c.marks / oneGrant) }

// Granted is the number of grants since the lock is known, modulo 2^32.
func (c *content) Granted() uint32 { return c.granted }

func (c *content) use() use { return use(c.marks & useMask) }

func (c *content) setUse(u use) { c.marks = c.marks&^useMask | marks(u) }

// countGrant counts a grant in this turn, and since the lock is known.
func (c *content) countGrant() {
	c.granted++
	if c.Grants() < manyGrants {
		c.marks += oneGrant
	}
}

// LingerUntil is until when the claim is kept although no local client wants it; 0: it is not.
func (c *Claim) LingerUntil() int64 { return c.lingerUntil }

// IsSpare reports whether the next client can have the lock without an operation.
func (c *Claim) IsSpare() bool { return c.state == Confirmed && c.HasTokens() }

// IsMadeFor reports whether the claim was made for a waiter with this lease, and nothing may have
// given the key another lease since.
func (c *Claim) IsMadeFor(leaseMS uint32) bool { return c.use() == unused && c.leaseMS == leaseMS }

// RenewAt is when the key is to be renewed, or checked.
func (c *Claim) RenewAt() int64 { return c.renewAt }

// SetRenewAt sets when the key is to be renewed, or checked.
func (c *Claim) SetRenewAt(at int64) { c.renewAt = at }

// CheckSoon has the key of the current hold renewed or checked now, because another
// program may have changed it. However many messages say so, it is not sooner than
// checkPause after the last time.
func (c *Claim) CheckSoon(now int64) {
	c.renewAt = min(c.renewAt, max(now, c.confirmedAt+checkPause))
	c.Note(KeyMayHaveChanged)
}

const checkPause = int64(10 * time.Millisecond)

// Linger keeps the claim until a time although no local client wants it.
func (c *Claim) Linger(until int64) {
	if c.state != Confirmed || c.IsBusy() {
		violated("Lingering needs a claim", "it is to linger in state %d", c.state)
	}
	c.lingerUntil = until
}

// EndLinger ends the lingering.
func (c *Claim) EndLinger() { c.lingerUntil = 0 }

// Source is how a lock came to the hold that is granted.
type Source uint8

const (
	FromQueue  Source = iota // by a Take or a transfer for it
	FromHold                 // another local hold had it until then
	FromLinger               // it lingered
)

// Grant gives the claim to a new hold, and returns its number and token. The number is that of the
// field, or fresh, which is larger than all before it, if another hold has or had that.
// isShared: other holds have that token, too. Precondition: the claim is this host's, has a token, and no Drop of it is in flight.
func (c *Claim) Grant(fresh uint64, isShared bool) (id, token uint64, source Source) {
	switch {
	case !c.state.IsOurs() || c.op.Kind == redisop.Drop:
		violated("Exclusion", "a hold is granted without a claim, in state %d", c.state)
	case !c.HasTokens():
		violated("Tokens only grow", "a hold is granted without a token")
	case fresh <= c.maxHoldID:
		violated("A lower hold number never replaces a higher one", "%d is granted after %d", fresh, c.maxHoldID)
	}
	id = c.holdID
	if c.use() == used || id != c.maxHoldID {
		id = fresh
		c.maxHoldID = id
	}
	switch {
	case c.use() != used:
		source = FromQueue
	case c.lingerUntil != 0:
		source = FromLinger
	default:
		source = FromHold
	}
	c.lingerUntil = 0
	c.setUse(used)
	c.countGrant()
	if isShared {
		return id, c.nextToken, source
	}
	return id, c.takeToken(), source
}

// LimitTo lowers the validity to the deadline of a hold under the watchdog: the next operation may
// shorten the key's life to it. The key is renewed by a time.
func (c *Claim) LimitTo(until, renewBy int64) {
	if until > c.validUntil {
		violated("Validity is conservative", "a hold is granted until %d; the claim is valid until %d", until, c.validUntil)
	}
	c.validUntil = until
	c.RenewBy(renewBy) // renewAt may have been set for a hold with a fixed lease
}

// RenewBy has the key renewed by a time.
func (c *Claim) RenewBy(at int64) { c.renewAt = min(c.renewAt, at) }

// KnownUntil notes that Redis has the key until a time at least, by an earlier operation: what a
// client was sent of it before a restart, or a keep.
func (c *Claim) KnownUntil(until int64) { c.validUntil = max(c.validUntil, until) }

// Forget notes that Redis has no field of this host, or that it may have one, of which
// nothing more is known.
func (c *Claim) Forget(s State) {
	if s != Absent && s != Uncertain {
		violated("A claim is forgotten as absent or uncertain", "it is forgotten in state %d", s)
	}
	c.content = content{state: s, granted: c.granted}
}

// Confirm notes that Redis has the field as a Take or a Renew wanted it. until is the end
// of its validity.
func (c *Claim) Confirm(now, until int64, op *InFlight, lastToken uint64) {
	if op.Kind != redisop.Take && op.Kind != redisop.Renew {
		violated("Only a Take or a Renew confirms", "operation %d confirms", op.Kind)
	}
	if c.state == Absent || c.state == Uncertain {
		c.cameAt, c.marks = now, 0
	}
	if c.busySince == 0 {
		c.busySince = now - moment.MS(op.PassedMS)
	}
	c.state = Confirmed
	c.setUse(used)
	if op.Unassigned {
		c.setUse(unused)
	}
	c.holdID, c.count, c.leaseMS = op.HoldID, op.Count, op.LeaseMS
	c.confirmedAt, c.validUntil = now, until
	if op.Kind == redisop.Take && op.Reserve > 0 {
		c.nextToken, c.tokensLeft = lastToken-uint64(op.Reserve)+1, op.Reserve
	}
}

// Transfer notes that another sidecar passed the key on to the ticket of this host. until is
// the end of its validity; busySince is as in BusySince. Precondition: Redis had no field of this
// host, as far as it knew, and no operation is in flight.
func (c *Claim) Transfer(now, until, busySince int64, m *redisop.Message) {
	if c.state.IsOurs() || c.IsBusy() {
		violated("A transfer is accepted by a host that waits", "ticket %d is accepted in state %d", m.Ticket, c.state)
	}
	c.content = content{
		granted: c.granted,
		state:   Confirmed, marks: marks(unused), holdID: m.Ticket, count: max(1, uint32(m.Units)), leaseMS: m.LeaseMS,
		confirmedAt: now, validUntil: until, cameAt: now, busySince: busySince,
		nextToken: m.LastToken - uint64(m.Tokens) + 1, tokensLeft: m.Tokens,
	}
}

// BeginTurn notes that the key is this host's in another mode: a turn begins.
func (c *Claim) BeginTurn(now int64) { c.cameAt, c.marks = now, c.marks&useMask }

// Admit notes that this host has further permits, or another mode, of its place. They are valid for as long as the others: the
// Take to which Redis answered last that the place stands was about these, too. Precondition: the claim is confirmed, and no
// operation is in flight.
func (c *Claim) Admit(m *redisop.Message) {
	if c.state != Confirmed || c.IsBusy() {
		violated("A transfer is accepted by a host that waits", "place %d is accepted in state %d", m.Ticket, c.state)
	}
	c.holdID = m.Ticket
	isOtherMode := m.Of == redisop.KindReadWrite && uint32(m.Units) > c.count
	switch {
	case isOtherMode:
		c.count = uint32(m.Units)
	case m.Of == redisop.KindPermits:
		c.count += uint32(m.Units)
	}
	if c.tokensLeft == 0 || isOtherMode {
		c.nextToken, c.tokensLeft = m.LastToken-uint64(m.Tokens)+1, m.Tokens
	}
}

// OnExtentKept notes that an operation that gives something back was not executed: Redis has for this host what it had before.
// ofMode: the extent is a mode. The readers that were granted meanwhile have the next token.
func (c *Claim) OnExtentKept(op *InFlight, ofMode bool) {
	if c.state != Confirmed || c.count >= op.Had {
		return
	}
	if c.count = op.Had; ofMode && c.HasTokens() {
		c.takeToken()
	}
}

// MayBeBack notes that Redis may have a field of this host that the claim does not know of.
func (c *Claim) MayBeBack() {
	if c.state == Absent {
		c.state = Uncertain
	}
}

// Doubt notes that Redis has, or had, a field of this host that the table did not know of. A Drop of
// it is to remove all such fields and tickets, up to the last hold number.
func (c *Claim) Doubt(lastHoldID uint64) {
	c.MayBeBack()
	c.maxHoldID = lastHoldID
}

// OnOverwritten notes that the field was found, or is, with another content than the claim has.
func (c *Claim) OnOverwritten() {
	if c.state == Confirmed {
		c.state = Stale // so that it is set again
	}
}

// OnChecked notes that a Check found the field as the claim has it.
func (c *Claim) OnChecked(now int64) { c.confirmedAt = now }

// OnKeyMissing notes that the key of a local hold is missing because Redis may have lost its data: no
// program deleted it.
func (c *Claim) OnKeyMissing() {
	c.state = InDoubt
	c.DropTokens()
}

// OnUnknown notes that an operation may have been executed or may yet be, or that a failover may
// undo it. The next one does
// no harm in either case.
func (c *Claim) OnUnknown(now int64, op *InFlight) {
	switch {
	case op.Kind == redisop.Drop:
		c.Forget(Uncertain)
	case op.Kind == redisop.Check:
		c.renewAt = now
	case c.state == Absent:
		c.state = Uncertain
	case c.state == Confirmed:
		c.state = Stale
	}
}

// OnDataLost notes that Redis may have lost its data, and tokens that were drawn before: after
// a restart or a failover. (A FLUSHALL of a Redis that goes on running is not noticed as
// such: the next operation finds no key, see KeyMissing in Table.Result.)
func (c *Claim) OnDataLost() {
	c.DropTokens()
	c.Note(DataMayBeLost)
	if c.state.IsOurs() {
		c.state = InDoubt
	}
}

// OnMoved notes that another shard of Redis has the lock, which may lack what the one before had.
func (c *Claim) OnMoved() {
	c.OnDataLost()
	c.Note(Moved)
}

// RestoreLock makes the claim that of a lock in a predecessor's journal.
func (c *Claim) RestoreLock(maxHoldID uint64) { c.state, c.maxHoldID = Uncertain, maxHoldID }

// RestoreHold makes the claim that of a hold in a predecessor's journal, of whose lock it is. Of several,
// it is the claim of all.
func (c *Claim) RestoreHold(now, granted, until int64, isInDoubt bool) {
	if c.state != InDoubt {
		c.state = Restored
	}
	if isInDoubt {
		c.state = InDoubt
	}
	if c.cameAt = now; c.busySince == 0 || granted < c.busySince {
		c.busySince = granted
	}
	c.KnownUntil(until)
}

// PassedMS is for how long the key has had no free moment, ms. The next host adds its turn to
// that. A turn may be shorter than a millisecond, so a part of one is rounded up as often as it
// is large: by where in its millisecond now is.
func (c *content) PassedMS(now int64) uint32 {
	if !c.state.IsOurs() || c.busySince == 0 {
		return 0
	}
	const ms = int64(time.Millisecond)
	return uint32(min((now-c.busySince+now%ms)/ms, math.MaxUint32))
}
