package main

import (
	"fmt"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// group is a command and what it starts, as far as that stays in its process
// group. It cannot outlive this process.
type group struct {
	id     int             // of the process group, and of the command
	events chan groupEvent // in order; groupGone is the last

	// mu makes sure that a signal is never sent to a number that somebody else
	// may have: whoever reaps a member holds it, and sets gone before letting go.
	mu   sync.Mutex
	gone bool
}

type groupEvent struct {
	kind   groupEventKind
	status unix.WaitStatus
}

type groupEventKind int

const (
	groupStopped  groupEventKind = iota // the command was, by status.StopSignal
	commandExited                       // others of the group may run on; they got SIGTERM
	groupGone                           // nobody is left
)

// startGroup starts the command. It gets the terminal at once if it may have it.
func startGroup(path string, argv, env []string, tty *terminal) (*group, error) {
	g := &group{events: make(chan groupEvent, 1)}
	started := make(chan error)
	go g.parent(path, argv, env, tty, started)
	return g, <-started
}

// parent stays on one thread as long as the command lives, because the command
// is killed when the thread that forked it ends (PR_SET_PDEATHSIG).
func (g *group) parent(path string, argv, env []string, tty *terminal, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	// What the command leaves behind becomes our child, so that we can wait for it.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		started <- fmt.Errorf("prctl(PR_SET_CHILD_SUBREAPER): %w", err)
		return
	}
	fuse, err := newFuse()
	if err != nil {
		started <- err
		return
	}
	read, err := fuse.inherit()
	if err != nil {
		fuse.close()
		started <- err
		return
	}
	sys := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if tty != nil && tty.forCommand() {
		sys.Foreground, sys.Ctty = true, tty.fd()
	}
	// Not the command itself, but this program, which becomes the command once
	// the fuse is armed: before that, the command could start others that a kill
	// of this process would not reach.
	pid, err := syscall.ForkExec("/proc/self/exe", launch(read, path, argv), &syscall.ProcAttr{
		Env:   env,
		Files: []uintptr{0, 1, 2},
		Sys:   sys,
	})
	unix.Close(read)
	if err != nil {
		fuse.close()
		started <- err
		return
	}
	g.id = pid
	started <- nil
	g.waitCommand()
	g.waitRest()
	fuse.close()
	g.events <- groupEvent{kind: groupGone}
}

// waitCommand reports stops and the end of the command.
func (g *group) waitCommand() {
	for {
		var info unix.Siginfo
		if !wait(func() error {
			return unix.Waitid(unix.P_PID, g.id, &info, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT, nil)
		}) {
			return
		}
		var status unix.WaitStatus
		g.mu.Lock()
		if info.Code != cldStopped {
			// While the command is a zombie, the number is surely its group's.
			_ = unix.Kill(-g.id, unix.SIGTERM)
			_ = unix.Kill(-g.id, unix.SIGCONT)
		}
		pid, err := unix.Wait4(g.id, &status, unix.WUNTRACED|unix.WNOHANG, nil)
		g.checkGone()
		g.mu.Unlock()
		switch {
		case err != nil || pid == 0: // it was continued in the meantime
		case status.Stopped():
			g.events <- groupEvent{groupStopped, status}
		default:
			g.events <- groupEvent{commandExited, status}
			return
		}
	}
}

// waitRest returns when the group is empty. It reaps whoever became our child
// since, in the group or not.
func (g *group) waitRest() {
	for {
		g.mu.Lock()
		gone := g.gone
		g.mu.Unlock()
		if gone || !wait(func() error {
			return unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil)
		}) {
			return
		}
		g.mu.Lock()
		_, _ = unix.Wait4(-1, nil, unix.WNOHANG, nil)
		g.checkGone()
		g.mu.Unlock()
	}
}

// checkGone is called with mu held, after somebody was reaped.
func (g *group) checkGone() {
	if !g.gone {
		g.gone = unix.Kill(-g.id, 0) == unix.ESRCH
	}
}

// wait repeats what a signal interrupts; false: there is nobody to wait for.
func wait(f func() error) bool {
	for {
		err := f()
		if err != unix.EINTR {
			return err == nil
		}
	}
}

func (g *group) signal(sig syscall.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.gone {
		// EPERM: the command changed its user. It then has to be ended by them.
		_ = unix.Kill(-g.id, sig)
	}
}

const cldStopped = 5 // CLD_STOPPED of signal.h
