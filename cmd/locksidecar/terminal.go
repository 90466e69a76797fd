package main

import (
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal of this process. Only its foreground
// process group may read from it; the command has a group of its own, so it is
// given the terminal, and it is taken back at the end.
type terminal struct {
	file *os.File
	own  int // our process group
}

// openTerminal returns nil if there is none.
func openTerminal() *terminal {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	return &terminal{file: f, own: unix.Getpgrp()}
}

func (t *terminal) fd() int { return int(t.file.Fd()) }

// foreground is the process group that has the terminal; 0: it is gone.
func (t *terminal) foreground() int {
	id, err := unix.IoctlGetInt(t.fd(), unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return id
}

func (t *terminal) mine() bool { return t.foreground() == t.own }

// forCommand tells whether the command is to have the terminal from its start:
// if we are a job of our own and it is typed into. As a part of a script or a
// pipeline we share our group with others that want Ctrl-C or read from the
// terminal too. Then the command gets it when it first asks for it, and what is
// typed comes to us and is passed on until then.
func (t *terminal) forCommand() bool {
	return t.mine() && t.own == os.Getpid() && isTerminal(0) && !isPipe(1)
}

func isTerminal(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}

func isPipe(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO
}

func (t *terminal) give(group int) {
	// From the background, setting the foreground group would stop us.
	signal.Ignore(unix.SIGTTOU)
	_ = unix.IoctlSetPointerInt(t.fd(), unix.TIOCSPGRP, group) // the group may have ended: then nobody misses it
}

// takeBack is for the end. It takes nothing from anybody but group.
func (t *terminal) takeBack(group int) {
	if t != nil && t.foreground() == group {
		t.give(t.own)
	}
}

// suspend stops our process group, as the terminal would have done on Ctrl-Z,
// and returns when somebody continues it; at once, if nobody could: the kernel
// does not stop a group that no shell watches over.
func (t *terminal) suspend(signals chan<- os.Signal) {
	// First the others, then this thread, so that this process gets one signal
	// and not a second one after it was continued.
	signal.Ignore(unix.SIGTSTP)
	_ = unix.Kill(0, unix.SIGTSTP)
	setDefault(unix.SIGTSTP)
	raise(unix.SIGTSTP)
	signal.Notify(signals, unix.SIGTSTP)
}

// setDefault gives a signal its default action until the next signal.Notify.
// signal.Reset cannot: for a stop signal the runtime keeps its own handler,
// which then does nothing.
func setDefault(sig syscall.Signal) {
	const sizeofSigset = 8
	// Large enough for struct sigaction of every architecture; zero is SIG_DFL.
	var action [16]uint64
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig),
		uintptr(unsafe.Pointer(&action)), 0, sizeofSigset, 0, 0)
}

// raise sends this process a signal that acts before raise returns. One sent to
// the whole process could be taken by another thread a little later.
func raise(sig syscall.Signal) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), sig)
}
