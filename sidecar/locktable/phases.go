package locktable

import (
	"fmt"
	"unicode/utf8"
)

// SessionID names a session; the caller never reuses one.
type SessionID uint64

// Peer is what operators see of the process behind a session.
type Peer struct {
	PID, UID int64
	Cmd      string
	Client   string
}

func (p Peer) String() string {
	if p.PID == 0 {
		return "a process that is not visible from here"
	}
	if p.Cmd == "" {
		return fmt.Sprintf("pid %d", p.PID)
	}
	return fmt.Sprintf("pid %d (%s)", p.PID, commandInSentence(p.Cmd))
}

// OfUser describes the process, and its user by the uid at the end: what shows it to people has the names.
func (p Peer) OfUser() string {
	switch {
	case p.PID == 0:
		return fmt.Sprintf("a process that is not visible from here of uid %d", p.UID)
	case p.Cmd == "":
		return fmt.Sprintf("pid %d of uid %d", p.PID, p.UID)
	}
	return fmt.Sprintf("pid %d (%s) of uid %d", p.PID, p.Cmd, p.UID)
}

// commandInSentence cuts a command line to 64 bytes, with an ellipsis: the sentence about a wait
// cycle names several processes, and an error has room for 1,024 bytes.
func commandInSentence(cmd string) string {
	const most, ellipsis = 64, "…"
	if len(cmd) <= most {
		return cmd
	}
	end := most - len(ellipsis)
	for !utf8.RuneStart(cmd[end]) {
		end--
	}
	return cmd[:end] + ellipsis
}

// SessionPhase is where a session is in its life. The table and its caller have the same
// phases; what only one of them can tell apart is marked. The journal has it, like Mode.
//
//	restored            Open
//	   ▼                 │
//	absent ──Resume──▶ claiming ──last claim──▶ serving ──bye──▶ leaving ──▶ ended
//	   │  ◀─connection──┘                       │    │                        ▲
//	   │       ended                            │    └─process ended──▶ draining
//	   │ it does not come back                  │ it breaks the protocol      ▲
//	   ▼                                        ▼                             │
//	givenUp                                 unserved ─────────────────────────┘
//	   └───────────────its process ended, or it holds nothing─────────────────┘
type SessionPhase uint8

const (
	// SessionServing: its client is connected, or the sidecar has not noticed that it is
	// not. Its watchdog holds are renewed.
	SessionServing SessionPhase = iota

	// SessionAbsent: it is from the journal, and its client has not come back since the
	// restart. Its watchdog holds are renewed.
	SessionAbsent

	// SessionClaiming: its client is back, and has not claimed all its holds yet.
	SessionClaiming

	// SessionLeaving (the caller's): its client said bye, and is answered at the end of the
	// step.
	SessionLeaving

	// SessionDraining (the caller's): its process ended, and what it sent last is being read.
	SessionDraining

	// SessionGivenUp: its client did not come back. Its holds are not renewed.
	SessionGivenUp

	// SessionUnserved: its client broke the protocol, but lives. Its holds are not renewed.
	SessionUnserved

	// SessionEnded: its client died, or left. Its holds are released, each after its crash
	// delay.
	SessionEnded
)

// IsOver reports whether the session is not served any more.
func (p SessionPhase) IsOver() bool { return p >= SessionGivenUp }

// IsAway reports whether the session's client has not claimed its holds since a restart.
func (p SessionPhase) IsAway() bool { return p == SessionAbsent || p == SessionClaiming }

// requestPhase says what a request waits for.
//
//	         wait_ms has passed, and Redis has returned nothing
//	waiting ────────────────────────────────────────────────────▶ trying
//
// wait_ms 0 begins in trying. A grant, a refusal, a cancel and the end of its session end
// both.
type requestPhase uint8

const (
	requestWaiting requestPhase = iota // for the lock
	requestTrying                      // for the next result of Redis only
)

// LeaseKind says what ends a hold that is not released. It never changes. The journal has
// it, like Mode.
type LeaseKind uint8

const (
	WatchdogLease LeaseKind = iota // it is renewed for as long as its client is served
	FixedLease                     // it ends leaseMS after the grant
)

// HoldPhase is where a hold is between its grant and its end. Its release, max_hold, a
// force-release and its loss in Redis end it in every phase. If its keep lasts, it is kept
// instead of ended: by its release, by max_hold, at its deadline, and by the end of its session.
// The journal has it, like Mode.
//
//	       session unserved
//	 ┌───────────────────────────────▶ unserved ──────┐
//	 │                                     ▲          │ session ended,
//	live ◀──renewed──  unrenewable ────────┘          │ with a crash delay
//	 │  └──renewal ──▶   │   │                        ▼
//	 │     refused       │   └─────session ended─▶ crashDelayed
//	 │                   │ a quarter of a lease       ▲
//	 │                   ▼ is left                    │
//	 │                givenUp                         │
//	 └───────session ended, with a crash delay────────┘
type HoldPhase uint8

const (
	// HoldLive: its client is served, or may resume its session.
	HoldLive HoldPhase = iota

	// HoldUnrenewable: Redis refused to renew it. It is tried again until giveUpAt.
	HoldUnrenewable

	// HoldUnserved: its session is not served any more. It is not renewed, and ends at its
	// deadline, unless its session ends before.
	HoldUnserved

	// HoldCrashDelayed: its client died. It is renewed, if its lease is the watchdog's, and
	// ends at endAt.
	HoldCrashDelayed

	// HoldGivenUp: its client was notified of the loss, or cannot come back for it. Until its
	// deadline no other client gets the lock. Also from HoldLive: see giveUpForOthers.
	HoldGivenUp

	// HoldKept: it has ended for its client, and excludes others until its deadline, which is the
	// end of its keep. Redis has its field until then without a renewal, also if this host dies.
	HoldKept
)

// IsOrphan reports whether no session has the hold any more.
func (p HoldPhase) IsOrphan() bool { return p >= HoldCrashDelayed }

// shardPhase is whether a Redis can be asked.
//
//	never reached ──Up──▶ up ◀──Up── down ──┐ Down: another reason
//	      │                │          ▲ ▲   │
//	      └──────Down──────┴──────────┘ └───┘
type shardPhase uint8

const (
	shardNeverReached shardPhase = iota // neither Up nor Down was called
	shardUp
	shardDown
)
