// Package protocol has the frames, messages and error codes that a sidecar and its clients
// exchange. SPEC.md in this directory defines them.
//
// Each message is a struct whose method Append appends it to a buffer as one whole frame.
// [Reader] splits a stream into frames. [RequestDecoder] and [ReplyDecoder] decode the body of
// a frame. Both are strict: whatever SPEC.md forbids is an error, and hostile input costs no
// more memory than its frame.
package protocol

import (
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/internal/rawio"
)

const (
	Version  = 1     // of the protocol, as in hello
	MaxFrame = 65536 // bytes of a frame's body
	MaxDepth = 8     // arrays and maps inside one another in an ignored field

	MaxName    = 512  // bytes of a lock's name
	MaxMessage = 1024 // bytes of an error's msg
	MaxClient  = 128  // bytes of hello's client
	MaxCmd     = 256  // bytes of a row's cmd
	MaxField   = 256  // bytes of a row's remote_field
	MaxWaiters = 16   // waiters of a row, and its holders
	MaxOwners  = 32   // owners, and places in a queue, of the answer to who
	MaxPerHost = 4    // holders of an owner of the answer to who
	MaxShards  = 64   // shards of the answer to status
	MaxReason  = 400  // bytes of a shard's redis
	MaxTicket  = 128  // bytes of a session's ticket
	MaxClaims  = 4096 // holds in one claim

	MaxSlot = 16383 // the last slot of a Redis Cluster

	HelloTimeout = 5 * time.Second // from connect to hello

	MinLeaseMS      = 50
	MaxDurationMS   = 2_592_000_000 // 30 days: the longest wait, lease and max_hold
	MaxCrashDelayMS = 3_600_000     // 1 hour
	MaxKeepMS       = 86_400_000    // 1 day
	MaxPermits      = 65_535        // of a semaphore

	Forever = -1 // Acquire.WaitMS: no limit
)

// Code is the reason why a request failed or a connection is closed. A client may receive codes
// that are not listed here.
type Code string

const (
	BadRequest  Code = "bad_request"
	Timeout     Code = "timeout"
	Deadlock    Code = "deadlock"
	Unavailable Code = "unavailable"
	Denied      Code = "denied"
	Limit       Code = "limit"
	Canceled    Code = "canceled"
	NotHeld     Code = "not_held"
	Unsupported Code = "unsupported"

	// Only of connection errors.
	BadFrame Code = "bad_frame"
	NoHello  Code = "no_hello"
)

// Reason is the reason why a hold was lost.
type Reason string

const (
	Expired   Reason = "expired"
	Deleted   Reason = "deleted"
	Stolen    Reason = "stolen"
	ByForce   Reason = "forced"
	MaxHold   Reason = "max_hold"
	Forgotten Reason = "forgotten"
	CutShort  Reason = "cut_short" // in events, status and metrics only: see Release.CutShort
)

// State of a lock as a LockRow shows it.
const (
	StateHeld      = "held"      // by a session of this sidecar
	StateRemote    = "remote"    // by another host or program, and local waiters wait
	StateBusy      = "busy"      // an operation on Redis is in flight
	StateLingering = "lingering" // kept in Redis for this host for a moment after a release
	StateFree      = "free"      // none of these
)

// Kind of a name as a LockRow shows it; "": a lock.
const (
	KindReadWrite = "rw"      // a read/write lock
	KindPermits   = "permits" // a semaphore
)

// Kind of an event as an EventRow shows it.
const (
	EventGranted  = "granted"       // after a wait
	EventReleased = "released"      // a hold ended that was long, or for which requests waited
	EventCrashed  = "crashed"       // a session ended with a hold
	EventLost     = "lost"          // a hold ended without a release
	EventForced   = "forced"        // a client ended a hold by force
	EventRefused  = "force_refused" // a client was not permitted to end a hold by force
	EventDeadlock = "deadlock"      // a request was refused, because it would have closed a wait cycle
	EventTakeover = "takeover"      // the sidecar was restarted, and continues with the holds of its predecessor

	EventRedisDown     = "redis_down"     // the connection to Redis ended, or cannot be made for another reason than before
	EventRedisDegraded = "redis_degraded" // Redis is connected, and refuses what locks need, or does so for another reason
	EventRedisUp       = "redis_up"       // that has ended
	EventDataLost      = "data_lost"      // Redis may have lost data
	EventSlotsOpen     = "slots_open"     // slots of a Cluster stay open, or others are
	EventSlotsClosed   = "slots_closed"   // none is any more
)

// ConnError is an error after which the connection must be closed: the other side broke a rule
// of SPEC.md §2. A sidecar sends it as Err without an ID and closes the connection.
type ConnError struct {
	Code Code
	Msg  string
}

func (e *ConnError) Error() string { return "protocol: " + e.Msg }

// Reply returns the last frame of the connection.
func (e *ConnError) Reply() Err { return Err{Code: e.Code, Msg: e.Msg} }

// RequestError is an error of one request. The connection stays open, unless the request is a
// hello. ID is 0 for a request without an id, which is not answered.
type RequestError struct {
	ID   uint64
	Op   string // of the request
	Code Code
	Msg  string
}

func (e *RequestError) Error() string { return "protocol: " + e.Msg }

// Reply returns the answer to the request.
func (e *RequestError) Reply() Err { return Err{ID: e.ID, Code: e.Code, Msg: e.Msg} }

// Now reads CLOCK_BOOTTIME, in nanoseconds: the clock of every deadline. All processes
// of a host share it, no program can set it, and it counts while the host is suspended.
func Now() int64 { return rawio.BootTime() }

// CheckName returns an error if SPEC.md does not allow the name of a lock.
func CheckName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("the lock's name is empty; give 1 to %d bytes", MaxName)
	case len(name) > MaxName:
		return fmt.Errorf("the lock's name has %d bytes; at most %d are allowed", len(name), MaxName)
	case !utf8.ValidString(name):
		return fmt.Errorf("the lock's name %.64q is not UTF-8", name)
	}
	for i, r := range name {
		if r < 0x20 || r >= 0x7f && r <= 0x9f {
			return fmt.Errorf("the lock's name has the control character U+%04X at byte %d; none are allowed", r, i)
		}
	}
	return nil
}
