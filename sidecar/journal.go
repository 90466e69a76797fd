package sidecar

import "github.com/locksidecar/locksidecar/sidecar/state"

// What the loop does with the state file, apart from takeOver. In each round the table
// and the loop store what changed; commitState ends the round, before any effect of it
// leaves the process.

// commitState commits the changes of this round, and logs whether a successor could
// restore all of them.
func (s *Server) commitState() {
	if s.state == nil {
		return
	}
	s.state.Commit(s.table.Unkept())
	switch gap, news := s.state.Gap(); {
	case !news:
	case gap != (state.Gap{}):
		s.log.Error("the state file does not have every lock and client; until it does, a restart of the sidecar ends all locks of this host at their deadlines",
			"file", s.cfg.State, "locks", gap.Locks, "clients", gap.Sessions, "reason", gap.Reason)
	default:
		s.log.Info("the state file has every lock and client again; a restart loses none", "file", s.cfg.State)
	}
}

// stateDue is when retryState has something to do; 0: nothing.
func (s *Server) stateDue() int64 {
	if s.state != nil {
		if at, ok := s.state.RetryAt(); ok {
			return at
		}
	}
	return 0
}

// retryState stores what found no room in the state file.
func (s *Server) retryState(now int64) {
	if at := s.stateDue(); at != 0 && now >= at {
		s.state.Retry(now)
		s.table.KeepAgain() // by the next Effects, in this step
	}
}
