package locktable

// What the table asks of Redis and what Redis answers, as values. The store
// carries operations out; the table never waits for one.

// OpKind is one of the things a sidecar does to a lock in Redis.
type OpKind uint8

const (
	NoOp OpKind = iota

	// Take writes the field num with count and lease if the key is free or has a
	// field of this sidecar with a number not above num, and draws Reserve
	// tokens. With Held it refuses a missing key: it moves a lock that is already
	// ours to a later hold, it never takes a free one.
	Take

	// Keep renews: the key must have a field of this sidecar with a number not
	// above num; it becomes num with count, and its time to live lease.
	Keep

	// Check finds out whether the key has the field num with count. It changes nothing.
	Check

	// Drop deletes the key if its field is of this sidecar with a number not above
	// num, and publishes the unlock message; that too if there is no key any more,
	// for nobody was told of an expiry.
	Drop
)

// Op is one operation on one lock. It is absolute: carried out twice it changes
// nothing more, apart from drawing further tokens.
type Op struct {
	Kind    OpKind
	Name    string
	Num     uint64 // hold number; only grows
	Count   uint32 // entries of the hold; 1 or more
	LeaseMS uint32 // time to live of the key, ms
	Reserve uint16 // Take: tokens to draw; 0 draws none
	Held    bool   // Take: see there
	Behind  bool   // Take: a Drop of the same lock was asked before, behind a Take, and has no answer yet
}

// Outcome is what became of an Op.
type Outcome uint8

const (
	// Done: Redis did it. After a Drop: the key has no field of ours any more,
	// whoever else has it.
	Done Outcome = iota

	// Other: the key is not ours (Field, TTL); nothing was changed.
	Other

	// Missing: there is no such key; nothing was changed. Keep, Check, and Take with
	// Held.
	Missing

	// Differs: the key has a field of this sidecar, with another count or a lower number;
	// nothing was changed. Check.
	Differs

	// NotALock: the key is of another type (Field says which); nothing was changed.
	// Take and Drop. After a Keep or a Check it is Other.
	NotALock

	// Unsent: certainly not carried out, now or later.
	Unsent

	// Unknown: the connection ended before the answer. It may have been carried
	// out.
	Unknown

	// Refused: Redis answered with an error that asking again will not mend for
	// this key (ACL, wrong type). Not carried out.
	Refused

	// Busy: Redis answered with an error that may pass (LOADING, READONLY, OOM,
	// BUSY, MISCONF…). Not carried out.
	Busy
)

// Uncounted: Redis was not asked how many listen. It is asked where it costs nothing or
// matters: by a Drop, which publishes, and by a Take that is refused, that moves a lock,
// or that draws more tokens than the one that its waiter gets.
const Uncounted = int32(-2)

// Result is the one answer that every Op gets.
type Result struct {
	Kind      OpKind
	Name      string
	Outcome   Outcome
	Sent      int64  // CLOCK_BOOTTIME in ns, read before the operation was written to the socket
	Token     uint64 // Take, Done, Reserve > 0: the last token drawn; the first is Token − Reserve + 1
	Made      bool   // Take, Done, Reserve > 0: there was no token counter, and now there is one
	Listeners int32  // subscribers of the lock's channel, this sidecar's included; −1: unknown; or Uncounted
	TTLMS     int64  // Other: PTTL of the key; −1: it has none
	Field     string // Other, NotALock: the owner field that was found, or a description of what is there
	Msg       string // NotALock, Unsent, Unknown, Refused, Busy: one sentence for people, says what to do
}
