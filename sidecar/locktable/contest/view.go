package contest

import "github.com/locksidecar/locksidecar/sidecar/redisop"

// View is all that a decision about a lock depends on, apart from what the contest and the memory
// of the lock know.
type View struct {
	Now int64

	IsReachable bool // Redis can be asked; otherwise no other host could get the lock
	IsListening bool // this host receives messages of other sidecars: it may stand in queues, and locks may linger
	MayLinger   bool // the sidecar does not stop, and Redis and other sidecars can reach it

	// What local clients want.
	Waiting     int // waiters
	First       Waiter
	WantsOrder  bool // a waiter wants strict order
	HasNewcomer bool // the arrival of a waiter is not known
	HasConfirms bool // clients wait until Redis has executed a release

	// What Redis has for this host.
	Claim        ClaimState
	IsBusy       bool  // an operation is in flight that looks at the key or may change it
	IsDropping   bool  // the operation sent last is a Drop, and has no result
	IsReleasing  bool  // a Drop is the one operation in flight
	DropPassedMS int64 // its PassedMS
	CameAt       int64 // when the lock came to this host: its turn began
	Grants       int   // in this turn; 2: two or more
	BusySince    int64 // since when the key has had no free moment, whichever host had it; 0: it is not known
	LingerUntil  int64 // it is kept until then although no local client wants it; 0: it is not
	LingerLatest int64 // and no longer than this, because of its lease
	IsSpare      bool  // it is confirmed, with a token for the next client
	IsReleased   bool  // its owner has just released it, and it may linger from now on
	IsBeside     bool  // local clients have holds, which admit the first waiter
	IsCovered    bool  // it suffices for a grant to the first waiter: with a token, and for long enough

	Of           redisop.LockKind
	IsIdle       bool // the claim is more than what local clients have
	Fits         bool // the clients of this host have so few that the first waiter may get its permits
	CameForFirst bool // so many permits as the first waiter wants came for the waiters of this host

	// Of a read/write lock:
	IsExclusive bool  // the claim is that of a writer
	Queues      uint8 // where local clients wait
}

// Waiter is the first waiter of a lock.
type Waiter struct {
	Tries   bool // it waits for the next result of Redis only
	IsFair  bool // it wants strict order
	IsAlone bool // when it came, no other client here held the lock or waited for it
	Since   int64
	Arrived uint64 // by Redis's clock, µs; 0: it is not known

	Permits, Capacity uint16       // of a semaphore
	Mode              redisop.Mode // of a read/write lock
	IsOfPhase         bool         // it reads, and came before the read phase that is under way
}

// ClaimState is what Redis has for this host under the name.
type ClaimState uint8

const (
	Absent ClaimState = iota // no field
	Unsure                   // perhaps a field
	Ours                     // the field of this host
)

// isInOrder reports whether the waiters get the lock in strict order. A host that is not listening
// has no place in the queue, and keeps no order.
func (v *View) isInOrder() bool { return v.WantsOrder && v.IsListening }

// Do is what the table does about a lock that no local client has.
type Do uint8

const (
	// Drop: the lock is given back. No local client wants it; or it does not suffice for the first
	// waiter, and Redis cannot be asked for what is missing while a ticket stands that is given up.
	Drop Do = iota

	// Linger: no local client wants the lock. It stays this host's in Redis for now.
	Linger

	// Grant: the first waiter gets the lock.
	Grant

	// Yield: the lock is given back, or is being given back, before a local client gets it again.
	Yield

	// Ask: Redis is asked for the lock, or for what the claim lacks for the first waiter.
	Ask
)

// Verdict is what the table does about a lock that no local client has, or about its next waiter beside holds, and how.
type Verdict struct {
	Do         Do
	LeavesFree bool // of a lock that is given back: Redis leaves the lock free for a moment, although hosts wait
	EndsTurn   bool // of Yield: this host has had the lock for long enough
	Yields     bool // of a lock that is given back: this host yields when the Drop is sent

	// Of Ask. The table adds how many tokens are drawn, and whether subscribers are counted.
	redisop.Asked
	NotBefore int64 // no Take before, unless the key is this host's
	ArriveAt  int64 // from when Redis is asked when the waiters arrived; never: that is known
}
