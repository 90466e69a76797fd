// Package redisop has what a sidecar and Redis say to each other about locks, as values:
// operations, their results, and messages of other sidecars. The lock table makes operations and
// takes results and messages. The store executes operations. The table never waits for one.
//
// An operation is declarative: it says what Redis shall have for one lock afterwards, and on
// what condition. Executed twice it changes nothing more, apart from drawing further tokens.
// So an operation whose result is unknown is sent again, or followed by another, without
// harm.
//
// All of them have one rule of ownership: a key is this sidecar's if it has one field, of
// this sidecar's uuid, with a hold number that is not above HoldID. A lower number never
// replaces a higher one, so an operation that is executed late does no harm either.
//
// Of a semaphore (KindPermits), a sidecar owns its claim, which has a number too, and the permits of
// all its holds: Count. Each operation but Renew and Check has a new number. A Take keeps Count permits,
// and asks for Want more, for each of up to Times waiters. If these are not free, then with Enqueue the
// sidecar waits for them, and has no others than Count; unless it would wait for itself alone. With
// RequireExisting, it has lost its holds if it has less than Count; otherwise it gets these back if they are
// free. A Drop gives back all.
package redisop

// OpKind says what Redis shall have for a lock.
type OpKind uint8

const (
	NoOp OpKind = iota

	// Take: the field HoldID with Count, and a lease of LeaseMS, if the key is free or this
	// sidecar's. Reserve tokens are drawn. With RequireExisting a missing key is not set: a
	// Take then moves a lock that this sidecar has to a later hold, and never takes a free
	// one. With Enqueue, a Take that finds another owner has a ticket in the lock's queue
	// afterwards: Ticket, if that stands there, or else HoldID. With InOrder, a free key
	// goes to the first of the queue, if there is one. With Arrived, the ticket stands before
	// those that arrived later; and if the Take is pipelined after a Drop, that passes the key
	// on to the first of all tickets, this one among them. If the Drop leaves the key free for
	// a moment, so does the Take: the result is HeldByOther with LeftFree.
	Take

	// Renew: the same, if the key is this sidecar's. No token is drawn.
	Renew

	// Check: no change. The result says whether the key has the field HoldID with Count.
	Check

	// Arrive: no change. The result says what time it was in Redis, and when the first of the
	// queue arrived.
	Arrive

	// Drop: no field of this sidecar, if the key has one, and no Ticket in the queue. The lock
	// goes to the first of the queue that receives that; or else the key is deleted and the
	// unlock message is published, also if there was no key: when a key expires, Redis
	// notifies no waiter.
	Drop
)

// NoUser is the User of an Op for a lock that counts for no user.
const NoUser = int64(-1)

// Op is one operation on one lock. When many locks are renewed there are thousands: the fields
// are in an order that leaves no gaps.
type Op struct {
	Name     string
	User     int64  // as whose the lock counts, by uid; NoUser: it counts for no user
	HoldID   uint64 // hold number; only grows
	Asked           // Take. Drop: a Ticket that is given up, and CanWait
	Count    uint32 // entries of the hold; 1 or more. Of permits: that the host keeps. Of a read/write lock: the Mode that it keeps
	LeaseMS  uint32 // time to live of the key, ms
	PassedMS uint32 // Drop: for how long the lock has passed from owner to owner without having been free, ms
	Shard    Shard  // that has the lock
	Kind     OpKind
	Of       LockKind
}

// Asked is how a Take asks for a lock.
type Asked struct {
	Ticket  uint64 // with Enqueue: that may stand in the queue already; 0: none
	Arrived uint64 // with Enqueue and InOrder: when the request arrived, by Redis's clock, µs; 0: now. Of permits: 0: as the place has it; ArrivesNow
	Reserve uint16 // tokens to draw; 0 draws none

	// Of permits:
	Want     uint16 // that the first waiter asks for; 0: there is none. Of a read/write lock: the Mode that it asks for
	Capacity uint16 // that its request names
	Times    uint8  // how many waiters ask for as many; 1 or more. Of a read/write lock: the queues in which the host waits: ReadersQueue, WritersQueue

	Flags
}

// Flags are what an operation says with yes or no.
type Flags uint8

const (
	RequireExisting  Flags = 1 << iota // Take: a missing key is not set
	AfterPendingDrop                   // Take: it is pipelined after a Drop of the same lock that has no result yet
	Enqueue                            // Take: a ticket is to stand in the queue if another owner has the key
	InOrder                            // Take with Enqueue: a free key goes to the first of the queue
	CountListeners                     // Take: the subscribers of the lock's channel are counted, also if the lock is this sidecar's then
	CanWait                            // Drop: it is not known that anything waits for the lock
	Yields                             // Take of permits: what the host has beyond Count is for hosts that wait before it; with Ticket: if that stands, or Arrived is given
)

// The queues of a read/write lock. A host may wait in both.
const (
	ReadersQueue = uint8(1) << iota
	WritersQueue
)

// ArrivesNow is later than all arrivals: a place that a host of a semaphore has moves behind all others.
const ArrivesNow = uint64(1) << 53

// Has reports whether a flag is set.
func (f Flags) Has(flag Flags) bool { return f&flag != 0 }

// Set sets a flag, or clears it.
func (f *Flags) Set(flag Flags, is bool) {
	*f &^= flag
	if is {
		*f |= flag
	}
}

// Outcome is what became of an Op.
type Outcome uint8

const (
	// Done: Redis has what the operation says. After a Drop the key has no field of this
	// sidecar, whichever other host has it.
	Done Outcome = iota

	// HeldByOther: the key is not this sidecar's (Field, TTL); nothing was changed. Of permits: Want are not
	// free (Permits); or, with a Field, something else has the key, and nothing was changed.
	HeldByOther

	// KeyMissing: there is no such key, or fewer permits than Count; nothing was changed. Of Renew, Check,
	// and Take with RequireExisting, and of each Take of permits.
	KeyMissing

	// Differs: the key has a field of this sidecar, with another count or a lower number; or, of
	// permits, a claim or a place with a higher number. Nothing was changed. Of Check, and of permits.
	Differs

	// NotALock: the key is of another type (Field says which), or, of a Take, it is a hash that is
	// not a lock; nothing was changed. Of Take and Drop. After a Renew or a Check it is HeldByOther.
	NotALock

	// NotSent: certainly not executed, now or later.
	NotSent

	// Unknown: the connection ended before the result. It may have been executed.
	Unknown

	// Refused: Redis answered with an error that lasts for this key (ACL, wrong type). Not
	// executed.
	Refused

	// Retryable: Redis answered with an error that may pass (LOADING, READONLY, OOM, BUSY,
	// MISCONF…). Not executed.
	Retryable

	// NotSynced: Redis executed it, and too few replicas confirmed that in time: after a failover
	// it may not have been. Of Take, Renew and Drop, if replicas are to confirm.
	NotSynced
)

// String is the kind as traces and tests have it.
func (k OpKind) String() string {
	return [...]string{"none", "take", "renew", "check", "arrive", "drop"}[k]
}

// Outcomes is how many values Outcome has.
const Outcomes = int(NotSynced) + 1

// String is the outcome as operators read it.
func (o Outcome) String() string {
	return [...]string{
		"done", "held_by_other", "key_missing", "differs", "not_a_lock", "not_sent", "unknown", "refused", "retryable", "not_synced",
	}[o]
}

// Listeners is how many connections subscribe to the channel of a lock, this sidecar's included.
// They are counted where it costs nothing or matters: by a Drop, if it publishes, by a Take that
// is refused as one of the first two of the queue or without a ticket, and by one with
// CountListeners. The zero value is Uncounted.
type Listeners struct {
	N     int32 // if they are Counted; or else 0
	State ListenersState
}

// ListenersState says how subscribers were counted.
type ListenersState uint8

const (
	// Uncounted: that was not wanted.
	Uncounted ListenersState = iota

	// Counted: there are N.
	Counted

	// Uncountable: this user may not count them.
	Uncountable

	// Unpublished: this user may not publish the release, so the number it reaches is unknown.
	Unpublished
)

// CountedListeners returns the number of subscribers that were counted.
func CountedListeners(n int32) Listeners { return Listeners{n, Counted} }

// MayExist reports whether there are subscribers, or may be, as far as was looked.
func (l Listeners) MayExist() bool {
	return l.N > 0 || l.State == Uncountable || l.State == Unpublished
}

// Recall is what became of the message that asks the holder of a lock to release it.
type Recall uint8

const (
	NotRecalled    Recall = iota // none was sent
	RecallReceived               // a connection received it
	RecallMissed                 // no connection did: the holder is a foreign client, or has no connection
)

// Result is the one result that every Op gets. Its fields are in an order that leaves no gaps,
// like those of Op.
type Result struct {
	Name      string
	Sent      int64  // CLOCK_BOOTTIME in ns, read before the operation was written to the socket
	Conn      Conn   // that it came over; not known: Redis does not name the server
	Token     uint64 // Take, Done, Reserve > 0: the last token drawn; the first is Token − Reserve + 1
	TTLMS     int64  // HeldByOther: PTTL of the key, as Redis has it: −1: it does not expire. Of permits: until a claim may expire
	Listeners Listeners
	Kind      OpKind
	Outcome   Outcome
	Shard     Shard // of the Op
	Made      bool  // Take, Done, Reserve > 0: there was no token counter, and now there is one

	// The queue.
	Passed       bool   // Drop, Done: the lock went to the first of the queue
	Paused       bool   // Drop, Done: the lock is free although there is a queue, so that foreign clients can take it
	LeftFree     bool   // Take, HeldByOther: no other has it: it is left free for a moment, by the Drop before it
	Unsynced     bool   // Take, HeldByOther: too few replicas confirmed what was executed before
	IsQueued     bool   // Take, HeldByOther: Ticket stands in the queue
	Queues       uint8  // of a read/write lock: HeldByOther: where the host waits: ReadersQueue, WritersQueue. Done: ReadersQueue: hosts in it may join this phase, and the operation is sent again
	Recall       Recall // Take, HeldByOther with IsQueued
	Rank         uint32 // Take, HeldByOther with IsQueued: tickets before it. Of permits, without: hosts that wait
	Waiting      uint32 // Take, Done, and Drop with Passed: tickets in the queue. Drop of permits: hosts that wait
	Permits      uint32 // of permits: Done: that the host has. HeldByOther: that all hosts have. Of a read/write lock: Done: its Mode. HeldByOther: how many hosts share it
	Ticket       uint64 // Take: HeldByOther with IsQueued: the ticket. Done: the number that the field has, 0: HoldID
	Arrived      uint64 // Take, HeldByOther with IsQueued; and Arrive: Redis's clock when it was executed, µs
	FirstArrived uint64 // Arrive: when the first of the queue arrived, by Redis's clock, µs; 0: no ticket is there

	Field string // HeldByOther, NotALock: the owner field that was found, or a description of what is there
	Msg   string // NotALock, NotSent, Unknown, Refused, Retryable, NotSynced: one sentence for people, says what to do
}

// RenewalGroup returns the renewal group of a hold's lock. Locks with neighbouring hold numbers
// are a group: Redis made their keys one after the other and has them side by side in memory, so
// a script that renews a group has fewer cache misses than a script for as many other locks.
func RenewalGroup(holdID uint64) uint64 { return holdID / RenewalGroupSize }

// RenewalGroupSize is how many hold numbers a renewal group has: as many as one script renews.
const RenewalGroupSize = 128
