package main

import (
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// group is the process group of a command: the command, and the processes that it starts and
// that stay in the group. They do not outlive this process (deathPipe).
type group struct {
	id     int             // of the process group, and of the command
	events chan groupEvent // in order; groupGone is the last

	// mu guards gone. Invariant: while it is not held and gone is false, the number of the
	// group is not used by other processes. A goroutine that reaps a member holds mu until it
	// has updated gone, so signal never reaches a process outside the group.
	mu   sync.Mutex
	gone bool // no process is in the group
}

type groupEvent struct {
	kind   groupEventKind
	status unix.WaitStatus
}

type groupEventKind int

const (
	groupStopped  groupEventKind = iota // a signal, status.StopSignal, stopped the command
	commandExited                       // other processes of the group may still run; they got SIGTERM
	groupGone                           // no process of the group runs
)

// startGroup starts the command, in the foreground of the terminal if startsInForeground.
func startGroup(path string, argv, env []string, tty *terminal) (*group, error) {
	g := &group{events: make(chan groupEvent, 1)}
	started := make(chan error)
	go g.forkAndWait(path, argv, env, tty, started)
	return g, <-started
}

// forkAndWait stays on one thread as long as the command lives, because the command
// is killed when the thread that forked it ends (PR_SET_PDEATHSIG).
func (g *group) forkAndWait(path string, argv, env []string, tty *terminal, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	// Processes that the command leaves behind become our children, so that we can wait for
	// them.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		started <- fmt.Errorf("prctl(PR_SET_CHILD_SUBREAPER): %w", err)
		return
	}
	pipe, err := newDeathPipe()
	if err != nil {
		started <- err
		return
	}
	readEnd, err := pipe.dupReadEnd()
	if err != nil {
		pipe.close()
		started <- err
		return
	}
	sys := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if tty != nil && tty.startsInForeground() {
		sys.Foreground, sys.Ctty = true, tty.fd()
	}
	// The child is this program as launcher, which becomes the command once the death pipe
	// is armed. Before that, a kill of this process would not reach processes that the
	// command starts.
	pid, err := syscall.ForkExec("/proc/self/exe", launcherArgs(readEnd, path, argv), &syscall.ProcAttr{
		Env:   env,
		Files: []uintptr{0, 1, 2},
		Sys:   sys,
	})
	unix.Close(readEnd)
	if err != nil {
		pipe.close()
		started <- err
		return
	}
	g.id = pid
	started <- nil
	g.waitCommand()
	g.waitRemaining()
	pipe.close()
	g.events <- groupEvent{kind: groupGone}
}

// waitCommand reports each stop of the command, and its end, after which it returns. It reaps the processes that
// became our children: as PID 1 of a container, this process is the parent of each process without one.
func (g *group) waitCommand() {
	for {
		var info unix.Siginfo
		if !retryEINTR(func() error {
			return unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT, nil)
		}) {
			return
		}
		var status unix.WaitStatus
		g.mu.Lock()
		if child := pidOf(&info); child != g.id {
			_, _ = unix.Wait4(child, nil, unix.WUNTRACED|unix.WNOHANG, nil)
			g.updateGone()
			g.mu.Unlock()
			continue
		}
		if info.Code != cldStopped {
			// The command is a zombie, so its number cannot be that of another group.
			_ = unix.Kill(-g.id, unix.SIGTERM)
			_ = unix.Kill(-g.id, unix.SIGCONT)
		}
		pid, err := unix.Wait4(g.id, &status, unix.WUNTRACED|unix.WNOHANG, nil)
		g.updateGone()
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

// waitRemaining returns when the group is empty. It reaps every process that became our
// child in the meantime, in the group or not.
func (g *group) waitRemaining() {
	for {
		g.mu.Lock()
		gone := g.gone
		g.mu.Unlock()
		if gone || !retryEINTR(func() error {
			return unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil)
		}) {
			return
		}
		g.mu.Lock()
		_, _ = unix.Wait4(-1, nil, unix.WNOHANG, nil)
		g.updateGone()
		g.mu.Unlock()
	}
}

// updateGone is called after a process was reaped. The caller holds mu.
func (g *group) updateGone() {
	if !g.gone {
		g.gone = unix.Kill(-g.id, 0) == unix.ESRCH
	}
}

// retryEINTR repeats a system call that a signal interrupts; false: it failed otherwise, as
// with ECHILD, when there is no child to wait for.
func retryEINTR(f func() error) bool {
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
		// EPERM: the command runs as another user by now, who has to end it.
		_ = unix.Kill(-g.id, sig)
	}
}

const cldStopped = 5 // CLD_STOPPED of signal.h

// pidOf returns si_pid of what waitid(2) reports. On systems with 64 bits it is the first field of the union, which
// begins at a multiple of 8.
func pidOf(info *unix.Siginfo) int {
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(info), 16)))
}
