// Package history records what the clients of locks saw, and judges it.
//
// Every process writes its own log, one JSON object a line, each line with one
// write to a file opened with O_APPEND: a process that is killed loses at most
// the line it was about to write. All stamps are CLOCK_BOOTTIME, which all
// processes of a host share, so that logs of many processes are one history.
//
// Nothing here trusts the locks, the sidecars or Redis. A belief counts from
// when a client said that it holds a lock, and only for as long as it certainly
// did; an operation lies somewhere between the stamp before it and the stamp
// after it. So whatever Check reports did happen.
package history

// A Kind says what an event tells.
type Kind string

// What clients write. Each but Start belongs to an Op: one acquire, and what
// became of it.
const (
	Invoke   Kind = "invoke"   // about to acquire: Lock, Owner, WaitMS, LeaseMS, MaxHoldMS, Behind
	Grant    Kind = "grant"    // acquired: Token, Until
	Error    Kind = "error"    // not acquired: Err, Maybe, Msg
	Checked  Kind = "check"    // asked, and told that it is held: Until
	Lost     Kind = "lost"     // told that it is lost: Reason
	Release  Kind = "release"  // about to release; written before, so that no belief outlives it
	Released Kind = "released" // the release returned: Err, Reason, Msg
	Write    Kind = "write"    // wrote to the fenced resource: Token, Value, and what it answered
)

// What the conductor of a run writes.
const (
	Start   Kind = "start"   // a client process begins: Client, Host
	Kill    Kind = "kill"    // a client process is killed: after Before it may be dead, at At it is
	Stop    Kind = "stop"    // SIGSTOP to a client process: it may stand from Before on
	Cont    Kind = "cont"    // SIGCONT: it runs again at the latest at At
	Exit    Kind = "exit"    // a client process ended by itself, as it was told to
	Fault   Kind = "fault"   // something is broken from Before on: ID, Fault, Target, Effects, Lock
	Mended  Kind = "mended"  // and works again since At: ID
	Applied Kind = "applied" // the resource carried out a write: as Write, whoever asked
	End     Kind = "end"     // the run is over
)

// Reasons of a loss, as the protocol names them, and the error of a release that
// found its lock lost.
const (
	Expired   = "expired"
	Deleted   = "deleted"
	Stolen    = "stolen"
	Forced    = "forced"
	MaxHold   = "max_hold"
	Forgotten = "forgotten"

	LostErr = "lost"
)

// An Effect is what a fault may excuse.
type Effect string

const (
	// LosesData: Redis may have forgotten locks: all, or the one named by Lock.
	// Two clients may believe in a lock until the older one's deadline.
	LosesData Effect = "data"
	// Interrupts: renewals and grants may not get through while it lasts.
	Interrupts Effect = "outage"
	// Forces: an operator ended the hold on Lock.
	Forces Effect = "force"
)

// An Event is one line of a log. Which fields it has depends on its Kind.
type Event struct {
	Kind   Kind   `json:"ev"`
	At     int64  `json:"t"`           // it happened at the latest now; for Invoke and Release: at the earliest
	Before int64  `json:"b,omitempty"` // it happened at the earliest then; 0: not known
	Client string `json:"c,omitempty"` // the process
	Op     int64  `json:"op,omitempty"`

	Lock      string `json:"lock,omitempty"`
	Owner     uint64 `json:"owner,omitempty"` // who may re-enter, unique in the process; 0: nobody
	WaitMS    int64  `json:"wait,omitempty"`  // how long it waits at most; 0: as long as it takes
	LeaseMS   int64  `json:"lease,omitempty"` // fixed lease; 0: renewed
	MaxHoldMS int64  `json:"maxhold,omitempty"`
	Behind    int64  `json:"behind,omitempty"` // Invoke: this Op of the same client is known to stand in the queue

	Token  uint64 `json:"token,omitempty"`
	Until  int64  `json:"until,omitempty"` // the deadline as the client knows it, or a little less
	Reason string `json:"reason,omitempty"`
	Err    string `json:"err,omitempty"`   // kind of error; "": none
	Maybe  bool   `json:"maybe,omitempty"` // Error: it may have happened nevertheless
	Msg    string `json:"msg,omitempty"`

	Value     string `json:"value,omitempty"` // Write: what was written, never the same twice
	Refused   bool   `json:"refused,omitempty"`
	PrevToken uint64 `json:"ptoken,omitempty"` // of the accepted write before; of a refusal: the token that was in the way
	PrevValue string `json:"pvalue,omitempty"`

	Host    string   `json:"host,omitempty"`
	ID      int      `json:"id,omitempty"`
	Fault   string   `json:"fault,omitempty"`
	Target  string   `json:"target,omitempty"`
	Effects []Effect `json:"effects,omitempty"`
}

// earliest returns the stamp before which the event did not happen.
func (e *Event) earliest() int64 {
	if e.Before != 0 {
		return e.Before
	}
	return e.At
}
