// Package history records what the clients of locks observe, and checks it.
//
// Each process writes a log of its own: one JSON object per line, and one write to a file that
// is opened with O_APPEND per line. So a process that is killed loses at most the line that it
// was about to write. All timestamps are CLOCK_BOOTTIME, which the processes of a host share,
// so the logs of many processes form one history.
//
// The checks do not rely on the locks, the sidecars or Redis. A client believes in a lock from
// the event that records the grant, for as long as that is certain. An operation took effect at
// some time between the timestamps before and after it. So every reported violation happened.
package history

// A Kind is the kind of an event.
type Kind string

// Events of clients. Each belongs to an Op: one acquire, with its hold and its release.
const (
	Invoke   Kind = "invoke"   // about to acquire: Lock, Owner, WaitMS, LeaseMS, MaxHoldMS, AfterOp; of a semaphore Permits, Of
	Grant    Kind = "grant"    // acquired: Token, Until
	Error    Kind = "error"    // not acquired: Err, Maybe, Msg
	Checked  Kind = "check"    // a check returned that the lock is held: Until
	Lost     Kind = "lost"     // the loss was reported to the client: Reason
	Release  Kind = "release"  // about to release; written first, so that the client does not believe in the lock after it
	Released Kind = "released" // the release returned: Err, Reason, Msg
	Write    Kind = "write"    // wrote to the fenced resource: Token, Value, and the answer
)

// Events of the conductor of a run.
const (
	Start   Kind = "start"   // a client process begins: Client, Host
	Kill    Kind = "kill"    // a client process is killed: it may have ended after Before, and has ended at At
	Stop    Kind = "stop"    // SIGSTOP to a client process: it may be stopped from Before on
	Cont    Kind = "cont"    // SIGCONT: it runs again at the latest at At
	Exit    Kind = "exit"    // a client process ended in order
	Fault   Kind = "fault"   // a fault begins at Before: ID, Fault, Target, Effects, Lock
	Mended  Kind = "mended"  // the fault has ended at At: ID
	Applied Kind = "applied" // the resource executed a write of any client: fields as of Write
	End     Kind = "end"     // the run is over
)

// Reasons of a loss, as in the protocol, and the error of a release whose lock was lost.
const (
	Expired   = "expired"
	Deleted   = "deleted"
	Stolen    = "stolen"
	Forced    = "forced"
	MaxHold   = "max_hold"
	Forgotten = "forgotten"

	LostErr = "lost"
)

// An Effect is a consequence that a fault may have, and excuses.
type Effect string

const (
	// LosesData: Redis may have lost all locks, or the one named by Lock. Two clients may
	// believe in a lock until the deadline of the older hold.
	LosesData Effect = "data"
	// Interrupts: renewals and grants may fail during the fault.
	Interrupts Effect = "outage"
	// Forces: an operator ended the hold on Lock.
	Forces Effect = "force"
)

// An Event is one line of a log. Which fields it has depends on its Kind.
type Event struct {
	Kind   Kind   `json:"ev"`
	At     int64  `json:"t"`           // the latest time of the event; for Invoke and Release: the earliest
	Before int64  `json:"b,omitempty"` // the earliest time of the event; 0: not known
	Client string `json:"c,omitempty"` // the process
	Op     int64  `json:"op,omitempty"`

	Lock      string `json:"lock,omitempty"`
	Owner     uint64 `json:"owner,omitempty"` // the owner that may re-enter, unique in the process; 0: none
	WaitMS    int64  `json:"wait,omitempty"`  // limit of the wait; 0: none
	LeaseMS   int64  `json:"lease,omitempty"` // fixed lease; 0: renewed
	MaxHoldMS int64  `json:"maxhold,omitempty"`
	AfterOp   int64  `json:"behind,omitempty"` // Invoke: this Op of the same client is known to wait already
	Permits   int    `json:"permits,omitempty"`
	Of        int    `json:"of,omitempty"` // permits that the semaphore has; 0: Lock is a lock

	Token           uint64 `json:"token,omitempty"`
	Until           int64  `json:"until,omitempty"` // the deadline that the client knows, or a little earlier
	Reason          string `json:"reason,omitempty"`
	Err             string `json:"err,omitempty"`   // kind of error; "": none
	MayHaveHappened bool   `json:"maybe,omitempty"` // Error: it may have taken effect nevertheless
	Msg             string `json:"msg,omitempty"`

	Value     string `json:"value,omitempty"` // Write: a unique value
	Refused   bool   `json:"refused,omitempty"`
	PrevToken uint64 `json:"ptoken,omitempty"` // of the previous accepted write; of a refusal: the larger token
	PrevValue string `json:"pvalue,omitempty"`

	Host    string   `json:"host,omitempty"`
	ID      int      `json:"id,omitempty"`
	Fault   string   `json:"fault,omitempty"`
	Target  string   `json:"target,omitempty"`
	Effects []Effect `json:"effects,omitempty"`
}

// earliest returns the earliest time of the event.
func (e *Event) earliest() int64 {
	if e.Before != 0 {
		return e.Before
	}
	return e.At
}
