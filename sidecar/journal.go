package sidecar

import (
	"fmt"

	"github.com/locksidecar/locksidecar/sidecar/state"
)

// What the loop does with the state file, apart from restore. In each round the table
// and the loop store what changed; commitState ends the round, before any effect of it
// leaves the process.

// commitState commits the changes of this round, and logs whether a successor could
// restore all of them.
func (l *loop) commitState() {
	if l.state == nil {
		return
	}
	l.state.Commit(l.table.Unstored())
	switch m, hasChanged := l.state.Missing(); {
	case !hasChanged:
	case m != (state.Missing{}):
		why := fmt.Sprintf("the state file %s lacks locks or clients, and a restart of the sidecar would end all locks of this host: %s", l.cfg.State, m.Reason)
		l.troubles.incomplete.Store(&why)
		l.log.Error("the state file does not have every lock and client; until it does, a restart of the sidecar ends all locks of this host at their deadlines",
			"file", l.cfg.State, "locks", m.Locks, "clients", m.Sessions, "reason", m.Reason)
	default:
		l.troubles.incomplete.Store(new(string))
		l.log.Info("the state file has every lock and client again; a restart loses none", "file", l.cfg.State)
	}
}

// stateDue is when retryState has something to do; 0: nothing.
func (l *loop) stateDue() int64 {
	if l.state != nil {
		if at, ok := l.state.RetryAt(); ok {
			return at
		}
	}
	return 0
}

// retryState stores what found no room in the state file.
func (l *loop) retryState(now int64) {
	if at := l.stateDue(); at != 0 && now >= at {
		l.state.Retry(now)
		l.table.RetryJournal() // by the next Effects, in this step
	}
}
