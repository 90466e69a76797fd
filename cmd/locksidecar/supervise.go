package main

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// supervisor sees to it that a command runs only while its lock is held. One
// goroutine, in run, owns it.
type supervisor struct {
	lock      *locksidecar.Lock
	group     *group
	tty       *terminal // nil: none
	signals   chan os.Signal
	killAfter time.Duration
	maxEnd    time.Time // end of --max-hold; zero: none

	stopped bool // the command is, by a signal
	wantTTY bool // it had the terminal, or asked for it
	ending  bool // SIGTERM was sent
	killed  bool // SIGKILL was
	kill    <-chan time.Time
	status  unix.WaitStatus // of the command, once exited
	exited  bool
	lost    error // why the command was ended before it ended
}

// killWait bounds the wait for what the command left behind once it was killed:
// a process that was reparented to neither us nor a dead process is not ours to
// wait for.
const killWait = 5 * time.Second

// run returns when nothing of the group runs any more.
func (s *supervisor) run() {
	s.wantTTY = s.tty != nil && s.tty.foreground() == s.group.id
	// A command may use up to a quarter of what it was promised to end; more
	// would leave too little of a short lease to work in.
	grace := min(s.killAfter, time.Until(s.deadline())/4)
	warn := time.NewTimer(time.Until(s.deadline()) - grace)
	defer warn.Stop()
	lost := s.lock.Done()
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
			// Renewals move the end while this timer runs.
			if left := time.Until(s.deadline()); left > grace {
				warn.Reset(left - grace)
			} else if !s.ending && !s.exited && s.lost == nil {
				s.lost = locksidecar.ErrLost
				printErr("the lock %q ends in %v and is not renewed; ending the command", s.lock.Name(), max(0, left.Round(time.Millisecond)))
				s.terminate(left)
			}

		case <-lost:
			lost = nil
			s.onLost(s.lock.Err())

		case <-s.kill:
			if s.killed && s.exited {
				return // see killWait
			}
			s.group.signal(unix.SIGKILL)
			s.killed, s.kill = true, time.After(killWait)
		}
	}
}

// deadline is until when the command may run, as far as is known now.
func (s *supervisor) deadline() time.Time {
	end := s.lock.Deadline()
	if !s.maxEnd.IsZero() && s.maxEnd.Before(end) {
		end = s.maxEnd
	}
	return end
}

// onLost is called when the lock is lost. If its time is over, so is the time to
// end: it was announced, or this host slept through it.
func (s *supervisor) onLost(err error) {
	var why *locksidecar.LostError
	over := errors.As(err, &why) && (why.Reason == locksidecar.ReasonExpired || why.Reason == locksidecar.ReasonMaxHold)
	if s.exited {
		s.group.signal(unix.SIGKILL)
		return
	}
	if s.lost == nil {
		s.lost = err
		printErr("%v; ending the command", err)
	}
	switch {
	case over || s.killAfter == 0:
		s.group.signal(unix.SIGKILL)
	case !s.ending:
		s.terminate(s.killAfter)
	}
}

// terminate asks the group to end, and makes sure that it has after grace.
func (s *supervisor) terminate(grace time.Duration) {
	s.ending = true
	s.group.signal(unix.SIGTERM)
	s.group.signal(unix.SIGCONT) // a stopped process does not see SIGTERM
	s.kill = time.After(grace)
}

func (s *supervisor) forward(sig syscall.Signal) {
	if sig == unix.SIGCONT && s.tty != nil {
		// Under job control this is the end of a suspend; one that comes late
		// must not undo the next Ctrl-Z.
		if s.stopped {
			s.continueGroup()
		}
		return
	}
	s.group.signal(sig)
}

// onStopped follows a command that was stopped. With a terminal that is job control:
// whoever started us must see us stopped to get the terminal back.
func (s *supervisor) onStopped(by syscall.Signal) {
	s.stopped = true
	if s.tty == nil || s.ending {
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

// continueGroup lets a stopped command go on, unless its lock is gone.
func (s *supervisor) continueGroup() {
	if err := s.lock.Err(); err != nil {
		s.onLost(err)
		return
	}
	s.stopped = false
	if s.tty != nil && s.wantTTY && s.tty.isOurs() {
		s.tty.setForeground(s.group.id)
	}
	s.group.signal(unix.SIGCONT)
}
