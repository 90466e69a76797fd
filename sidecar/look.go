package sidecar

import (
	"fmt"
	"slices"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/peers"
)

// keepState has a state that another program removed written again.
func (l *loop) keepState(stop <-chan struct{}) {
	if l.state == nil {
		return
	}
	why := l.state.Misplaced()
	if why != "" {
		var err error
		if !l.inLoop(stop, func(int64) { err = l.state.Renew() }) {
			return
		}
		if err == nil {
			l.log.Warn("the state was removed, and is written again; find out which program removed it", "file", l.cfg.State)
			why = ""
		} else {
			why += fmt.Sprintf("; it cannot be written again: %v", err)
		}
	}
	if was := l.troubles.misplaced.Swap(&why); why != "" && *was == "" {
		l.log.Error("a successor will not find the state", "reason", why)
	}
}

// endExecuted ends the absent sessions of processes that have executed another program since their
// clients were connected. While a client is connected, exec closes its connection. It reads /proc, so
// it is called on a goroutine apart from the loop.
func (l *loop) endExecuted(stop <-chan struct{}) {
	var absent []*session
	ok := l.inLoop(stop, func(int64) {
		for _, cl := range l.sessions {
			if cl.phase == locktable.SessionAbsent && cl.pidfd >= 0 {
				absent = append(absent, &session{id: cl.id, peer: cl.peer, process: cl.process})
			}
		}
	})
	if !ok {
		return
	}
	absent = slices.DeleteFunc(absent, func(cl *session) bool {
		return !peers.HasExecuted(cl.peer.PID, cl.process.Program)
	})
	if len(absent) == 0 {
		return
	}
	l.inLoop(stop, func(now int64) {
		for _, found := range absent {
			// A process that ended meanwhile may have given its pid to another one: then it has ended.
			if cl := l.sessions[found.id]; cl != nil && cl.phase == locktable.SessionAbsent && cl.process == found.process {
				l.close(now, cl, executedWhy)
			}
		}
	})
}
