package pipeline

// liveness is whether Redis replies to what it is sent.
//
//	      a command is sent           no reply for the timeout
//	idle ───────────────────► owing ──────────────────────────► overdue
//	  ▲                       │   ▲                               │   │
//	  └───────────────────────┘   └───────────────────────────────┘   │ the same at
//	    the last one is answered               a reply                │ the next check
//	                                                                  ▼
//	                   the connection is cut, in every state ───────► dead
type liveness uint8

const (
	// idle: every command is answered. After IdlePing, Redis is asked for its role.
	idle liveness = iota

	// owing: a command has no answer yet.
	owing

	// overdue: no reply came in time, as far as this process knows. It may have been this host that slept, or a
	// long step of the loop that kept the reader. So a second check, with no reply left unread, must find the same.
	overdue

	// dead: the connection is cut. No command is made any more. It has no end.
	dead
)
