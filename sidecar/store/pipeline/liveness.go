package pipeline

import (
	"math"
	"time"
)

// The end of a connection is noticed at once, because other hosts may reconnect to a Redis that lost the locks before
// this one does. A connection that ends without a packet is found by a ping, while it owes nothing, and was silent for
// so long.
const idlePing = 5 * time.Second

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
	// idle: every command is answered. After idlePing, Redis is asked for its role.
	idle liveness = iota

	// owing: a command has no answer yet.
	owing

	// overdue: no reply came in time, as far as this process knows. It may have been this host that slept, or a
	// long step of the loop that kept the reader. So a second check, with no reply left unread, must find the same.
	overdue

	// dead: the connection is cut. No command is made any more. It has no end.
	dead
)

// setLiveness leaves a dead connection dead.
func (m *Machine) setLiveness(l liveness) {
	if m.liveness != dead {
		m.liveness = l
	}
}

// checkLiveness finds out whether the connection is overdue, at the second check, and has it pinged when it has been
// idle for long. heardAt is when Redis last sent anything; hasUnread: some of it was not taken in yet. It is to be
// called again at next, or when a command is sent on an idle connection.
func (m *Machine) checkLiveness(now, heardAt int64, hasUnread bool) (next int64, isDead bool) {
	if heardAt > m.lastReply {
		m.lastReply = heardAt
		if m.liveness == overdue {
			m.liveness = owing
		}
	}
	if m.liveness == idle && now >= m.lastReply+int64(idlePing) {
		m.ping(now)
	}
	patience := int64(m.cfg.Timeout)
	quiet := now - m.lastReply
	switch {
	case m.liveness == dead:
		return math.MaxInt64, false
	case m.liveness == idle && quiet >= patience:
		return m.lastReply + int64(idlePing), false
	case m.liveness == idle: // a command may be sent at any time
		return m.lastReply + min(patience, int64(idlePing)), false
	case quiet < patience:
		return m.lastReply + patience, false
	case m.liveness == owing, hasUnread:
		m.liveness = overdue
		return now + patience/8, false
	}
	return math.MaxInt64, true
}
