package claim

import (
	"fmt"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Claim is what Redis has for this host under one name, as far as this host knows.
type Claim struct {
	content
	*window // &atRest: no operation is in flight, and the last one did not fail

	maxHoldID uint64 // largest number that any hold of this lock, or operation on it, had
	renewAt   int64  // when the key is to be renewed (watchdog), or checked (fixed lease)
}

// State is what this host knows of its field in Redis.
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
// that stands for this host, and uncertain otherwise: see contest/place.go.
type State uint8

const (
	// Absent: Redis has no field of this host. Ended by a Take.
	Absent State = iota

	// Uncertain: an operation with an unknown result may have left a field, and no
	// local hold depends on it. Ended by the result of a Take or a Drop.
	Uncertain

	// InDoubt: Redis may have lost its data, and with it the field of a local hold,
	// or of this host's queue. Ended by the result of a Take, which asserts the hold, or of a
	// Drop.
	InDoubt

	// Restored: the field of a hold that the predecessor's journal has. This process
	// has no result for it yet. Ended by the first result.
	Restored

	// Stale: the field is there, with a number of entries that is not known.
	// Ended by the result of the next operation, which sets it.
	Stale

	// Confirmed: the field is there, with holdID and count.
	Confirmed
)

// IsOurs reports whether Redis has a field of this host, until validUntil at least.
func (s State) IsOurs() bool { return s >= Restored }

// IsUnsure reports whether Redis may have a field of this host.
func (s State) IsUnsure() bool { return s == Uncertain || s == InDoubt }

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
	granted     uint32 // grants since the lock is known, modulo 2^32; not about the key, but there is room here
	tokensLeft  uint16 // fencing tokens that were drawn from the counter and not granted
	state       State
	marks       marks
}

// marks are a use, and how many grants there were in this turn, in one byte: there is no room for two.
type marks uint8

const (
	useMask  marks = 1<<2 - 1
	oneGrant       = useMask + 1

	// manyGrants is what Grants counts up to: more make no difference.
	manyGrants = 2
)

// use says whether a hold has had the claim, and what is known of the expiry of an unused one.
type use uint8

const (
	used          use = iota // a hold has, or had, holdID
	unused                   // it was acquired for the queue, which set its expiry
	unusedDoubted            // it was acquired for the queue; an operation that was sent later may set another expiry
)

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
	op       InFlight // the operation sent last; NoOp: it has its result
	retryAt  int64    // no operation before, because the last one failed; 0: it did not
	askedAt  int64    // when the Arrive in flight was sent
	phase    windowPhase
	isAsking bool // an Arrive is in flight, beside the operations of phase
}

// atRest is never written.
var atRest window

type windowPhase uint8

const (
	windowIdle windowPhase = iota
	windowOne
	windowDropAndTake // a Drop, and after it op, which is a Take
	windowLateDrop    // the Take has its result, the Drop that was sent before it has none yet
)

// InFlight is an operation in flight.
type InFlight struct {
	HoldID     uint64
	SentAt     int64
	Count      uint32
	LeaseMS    uint32
	Reserve    uint16
	Want       uint16
	Had        uint32 // Extent before it was sent
	PassedMS   uint32 // of a Drop; of a Take: of the transfer that was received since it was sent
	Kind       redisop.OpKind
	Queues     uint8 // of a read/write lock: where the host is to wait
	Unassigned bool  // for the queue, not for a hold
	redisop.Flags
	Since Events
}

// Events is what has happened since an operation was sent: its result may be out of date.
type Events uint8

const (
	TransferReceived  Events = 1 << iota // a transfer, which the operation may have made
	LockMayBeFree                        // a release was published, or Redis is reached again
	KeyMayHaveChanged                    // by another program
	DataMayBeLost                        // Redis may have lost its data
	Moved                                // another shard has the lock
)

// Has reports whether an event is among these.
func (e Events) Has(event Events) bool { return e&event != 0 }

// violated panics, because an invariant is violated.
func violated(invariant, format string, args ...any) {
	panic(fmt.Sprintf("locktable: invariant %q is violated: %s; this is a defect of the sidecar, report it", invariant, fmt.Sprintf(format, args...)))
}
