package main

import (
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal of this process. Only the foreground process group may
// read from it. The command has a group of its own: that becomes the foreground group, and at
// the end the group of this process is it again.
type terminal struct {
	file     *os.File
	ownGroup int // our process group
}

// openTerminal returns nil if this process has no controlling terminal.
func openTerminal() *terminal {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	return &terminal{file: f, ownGroup: unix.Getpgrp()}
}

func (t *terminal) fd() int { return int(t.file.Fd()) }

// foreground returns the foreground process group; 0: the terminal was closed.
func (t *terminal) foreground() int {
	id, err := unix.IoctlGetInt(t.fd(), unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return id
}

func (t *terminal) isOurs() bool { return t.foreground() == t.ownGroup }

// startsInForeground reports whether the command's group is the foreground group from its
// start: this process is a job of its own, and its input is the terminal. As part of a script
// or a pipeline, it shares its group with processes that need Ctrl-C or read from the terminal,
// too. Then the command's group becomes the foreground group when it first reads from the
// terminal, and until then this process forwards the signals of the keyboard.
func (t *terminal) startsInForeground() bool {
	return t.isOurs() && t.ownGroup == os.Getpid() && isTerminal(0) && !isPipe(1)
}

func isTerminal(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}

func isPipe(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO
}

func (t *terminal) setForeground(group int) {
	// From the background, setting the foreground group would stop us.
	signal.Ignore(unix.SIGTTOU)
	_ = unix.IoctlSetPointerInt(t.fd(), unix.TIOCSPGRP, group) // fails if the group has ended, which changes nothing
}

// restore makes this process's group the foreground group again if group is it.
func (t *terminal) restore(group int) {
	if t != nil && t.foreground() == group {
		t.setForeground(t.ownGroup)
	}
}

// suspend stops our process group, as the terminal does on Ctrl-Z, and returns when a SIGCONT
// continues it. It returns at once if the group is orphaned, because the kernel does not stop
// a group that no shell would continue.
func (t *terminal) suspend(signals chan<- os.Signal) {
	// First the other processes of the group, then this thread: so this process gets one
	// signal, and not a second one after it was continued.
	signal.Ignore(unix.SIGTSTP)
	_ = unix.Kill(0, unix.SIGTSTP)
	resetToDefault(unix.SIGTSTP)
	raise(unix.SIGTSTP)
	signal.Notify(signals, unix.SIGTSTP)
}

// resetToDefault gives a signal its default action until the next signal.Notify. signal.Reset
// does not: for a stop signal the runtime keeps its own handler, which does nothing.
func resetToDefault(sig syscall.Signal) {
	const sizeofSigset = 8
	// Large enough for struct sigaction of every architecture; zero is SIG_DFL.
	var action [16]uint64
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig),
		uintptr(unsafe.Pointer(&action)), 0, sizeofSigset, 0, 0)
}

// raise sends this process a signal that takes effect before raise returns. Another thread
// could receive a signal to the whole process a little later.
func raise(sig syscall.Signal) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), sig)
}
