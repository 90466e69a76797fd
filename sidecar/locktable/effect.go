package locktable

import (
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// EffectKind says what the caller of the table has to do.
type EffectKind uint8

const (
	Granted     EffectKind = iota + 1 // answer Session's request ID: Token, Hold, Count, Deadline, End, IsShared, Permits, Capacity
	Released                          // answer: Count (no effect if the request had no ID)
	Refusal                           // answer: Code, Msg
	Canceled                          // answer to a cancel: WasWaiting
	Forced                            // answer to a force_release: Name; Hold: the newest of Count
	Claimed                           // answer to a claim: IsLast
	Confirmed                         // answer to a confirm
	Downgraded                        // answer to a downgrade: Hold, Deadline
	Lost                              // event to Session: Hold, Reason, WasClaimed; Msg: what Redis has instead, if it is Stolen
	KeepLost                          // for the log: a kept hold has ended, Reason, and what Redis has instead, Msg
	Lease                             // event to Session: Deadline
	Redis                             // carry out Op and bring back its one Result
	Closed                            // Session, which was closed, has nothing left: a successor need not know it
	Subscribe                         // listen on the channel of Name
	Unsubscribe                       // stop listening
	LongHold                          // for operators: a hold that isLong was released: Name, Hold, Since, Count: waiters, Peer
	CutShort                          // for operators: a hold was released that was about to be lost: Name, Hold, Since
	Crashed                           // for operators: Session ended with a hold: Name, Hold, Since, Count: waiters, Peer
)

// Effect is one thing the table wants done. Effects are values in the order in
// which they must happen.
type Effect struct {
	Kind       EffectKind
	WasWaiting bool   // Canceled: the request waited, and is refused as canceled
	IsLast     bool   // Claimed: no further claim follows
	WasClaimed bool   // Lost: the client had claimed the hold
	IsShared   bool   // of a read/write lock: the hold is a shared one
	Permits    uint16 // of a semaphore: of the hold
	Capacity   uint16 // Granted: what its request named
	Count      uint32
	Session    SessionID
	ID         uint64
	Hold       uint64
	Token      uint64
	Deadline   int64 // CLOCK_BOOTTIME, ns
	End        int64 // the same, when max_hold will have passed; 0: never
	Since      int64 // Granted: when the request came, unless it is a re-entry; Lost, LongHold, CutShort, Crashed: when the hold was granted; 0: not known
	Code       protocol.Code
	Reason     protocol.Reason
	Msg        string
	Name       string     // of the lock: Granted, Lost, KeepLost, Forced, LongHold, CutShort, Crashed, Subscribe, Unsubscribe, and the Refusal of an acquire that reached its lock
	Peer       *Peer      // Lost, LongHold, CutShort, Crashed: the holder; Granted: the one for whose hold the request waited; nil: not known
	Op         redisop.Op // Redis. Subscribe, Unsubscribe: its Shard has the lock, or had it
}
