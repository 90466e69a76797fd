package main

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// supervisor ends a command when its lock ends. One goroutine, in run, owns it.
type supervisor struct {
	held      *held
	group     *group
	tty       *terminal // nil: none
	signals   chan os.Signal
	killAfter time.Duration
	maxEnd    time.Time // end of --max-hold; zero: none

	phase      endPhase
	kill       <-chan time.Time // the next SIGKILL is due; nil: none is planned
	exited     bool             // the command has ended; processes of its group may still run
	status     unix.WaitStatus  // of the command, once exited
	lost       error            // the lock ended before the command did; nil: it did not
	isCutShort bool             // SIGTERM was sent because the lease was about to end
	stopped    bool             // a signal stopped the command
	wantTTY    bool             // the command had the terminal, or asked for it
}

// endPhase is how far the supervisor has gone to end the group. In each phase, run returns
// when no process of the group runs.
//
//	           the lock is lost, or about to end
//	notEnding ───────────── SIGTERM ─────────────► terminating
//	    │                                               │
//	    │ the command exited, and killAfter passed      │ the grace passed
//	    └─────────────────── SIGKILL ───────────────────┴──────────► killed
type endPhase uint8

const (
	notEnding   endPhase = iota // the supervisor has sent no signal of its own
	terminating                 // it has sent SIGTERM; SIGKILL follows when kill fires
	killed                      // it has sent SIGKILL; it gives up killWait after that if the command has exited
)

// killWait bounds the wait for processes that the command left behind, after they were
// killed. A process that has another parent than this process or a dead one cannot be
// waited for.
const killWait = 5 * time.Second

// run returns when no process of the group runs.
func (s *supervisor) run() {
	s.wantTTY = s.tty != nil && s.tty.foreground() == s.group.id
	// The command gets up to a quarter of its time to end: more would leave too little of a
	// short lease to work in.
	grace := min(s.killAfter, time.Until(s.deadline())/4)
	warn := time.NewTimer(time.Until(s.deadline()) - grace)
	defer warn.Stop()
	lost := s.held.Done()
	for {
		select {
		case sig := <-s.signals:
			s.forward(sig.(syscall.Signal))

		case ev := <-s.group.events:
			switch ev.kind {
			case groupStopped:
				s.onStopped(ev.status.StopSignal())
			case commandExited:
				s.exited, s.status = true, ev.status
				if s.kill == nil {
					s.kill = time.After(s.killAfter)
				}
			case groupGone:
				return
			}

		case <-warn.C:
			// A renewal may have moved the deadline since the timer was set.
			if left := time.Until(s.deadline()); left > grace {
				warn.Reset(left - grace)
			} else if s.phase == notEnding && !s.exited && s.lost == nil {
				s.lost = locksidecar.ErrLost
				s.isCutShort = time.Until(s.held.Deadline()) <= grace
				printErr("%s ends in %v and is not renewed; ending the command", s.held.what, max(0, left.Round(time.Millisecond)))
				s.terminate(left)
			}

		case <-lost:
			lost = nil
			s.onLost(s.held.Err())

		case <-s.kill:
			if s.phase == killed && s.exited {
				return // see killWait
			}
			s.group.signal(unix.SIGKILL)
			s.phase, s.kill = killed, time.After(killWait)
		}
	}
}

// deadline returns until when the command may run, as far as is known now.
func (s *supervisor) deadline() time.Time {
	end := s.held.Deadline()
	if !s.maxEnd.IsZero() && s.maxEnd.Before(end) {
		end = s.maxEnd
	}
	return end
}

// onLost ends the command because the lock is lost. If the hold ended by its own time, and its deadline has passed,
// the command gets no grace: either SIGTERM was sent before, or this host slept in the meantime. A sidecar that gives
// a hold up before, because Redis refuses to renew it, leaves the time to the deadline.
func (s *supervisor) onLost(err error) {
	var why *locksidecar.LostError
	timedOut := errors.As(err, &why) && (why.Reason == locksidecar.ReasonExpired || why.Reason == locksidecar.ReasonMaxHold)
	if s.exited {
		s.group.signal(unix.SIGKILL)
		return
	}
	if s.lost == nil {
		s.lost = err
		printErr("%v; ending the command", err)
	}
	left := time.Until(s.held.Deadline())
	switch {
	case timedOut && left > 0 && s.killAfter > 0:
		if s.phase == notEnding {
			s.terminate(min(left, s.killAfter))
		}
	case timedOut || s.killAfter == 0:
		s.group.signal(unix.SIGKILL)
	case s.phase == notEnding:
		s.terminate(s.killAfter)
	}
}

// terminate sends the group SIGTERM, and SIGKILL after the grace.
func (s *supervisor) terminate(grace time.Duration) {
	s.phase = terminating
	s.group.signal(unix.SIGTERM)
	s.group.signal(unix.SIGCONT) // a stopped process does not receive SIGTERM
	s.kill = time.After(grace)
}

func (s *supervisor) forward(sig syscall.Signal) {
	if sig == unix.SIGCONT && s.tty != nil {
		// With job control this ends a suspend. One that comes late must not undo the
		// next Ctrl-Z.
		if s.stopped {
			s.continueGroup()
		}
		return
	}
	s.group.signal(sig)
}

// onStopped is called when a signal stopped the command. With a terminal that is job
// control: the shell takes the terminal back only if this process stops, too.
func (s *supervisor) onStopped(by syscall.Signal) {
	s.stopped = true
	if s.tty == nil || s.phase != notEnding {
		return
	}
	if by == unix.SIGTTIN || by == unix.SIGTTOU {
		s.wantTTY = true
		if s.tty.isOurs() {
			s.continueGroup()
			return
		}
	}
	s.tty.suspend(s.signals)
	s.continueGroup()
}

// continueGroup lets a stopped command go on, unless its lock was lost in the meantime.
func (s *supervisor) continueGroup() {
	if err := s.held.Err(); err != nil {
		s.onLost(err)
		return
	}
	s.stopped = false
	if s.tty != nil && s.wantTTY && s.tty.isOurs() {
		s.tty.setForeground(s.group.id)
	}
	s.group.signal(unix.SIGCONT)
}
