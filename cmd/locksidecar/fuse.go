package main

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// fuse is a pipe whose writing end only this process has. When it ends, however that
// happens, the kernel closes that end and signals the owner of the reading end. The
// owner is the command's process group and the signal SIGKILL, so nothing of the
// group goes on without the lock. (PR_SET_PDEATHSIG alone reaches the command
// but not what it has started.)
//
// The reading end must be open in a process that survives this one. That is the guard, a
// process of its own session that does nothing but wait for the end of the pipe. It is not
// the command: shells, sudo and daemons close or reuse descriptors that they do not know,
// by number, and would cut the fuse.
type fuse struct {
	read  int
	write *os.File
	guard int // the pid
}

func newFuse() (*fuse, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	f := &fuse{read: p[0], write: os.NewFile(uintptr(p[1]), "fuse")}
	if err := f.startGuard(); err != nil {
		unix.Close(f.read)
		f.write.Close()
		return nil, err
	}
	return f, nil
}

func (f *fuse) startGuard() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	f.guard, err = syscall.ForkExec("/proc/self/exe", []string{guardName}, &syscall.ProcAttr{
		Dir:   "/",
		Env:   os.Environ(),
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd(), uintptr(f.read)},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("starting the process that guards the command: %w", err)
	}
	return nil
}

// inherit returns the reading end under a number that this process does not use, so that
// the launcher gets it besides the descriptors of the user. The launcher does not pass it
// on. The caller closes it.
func (f *fuse) inherit() (fd int, err error) {
	if fd, err = unix.FcntlInt(uintptr(f.read), unix.F_DUPFD, 10); err != nil {
		return -1, fmt.Errorf("fcntl(F_DUPFD): %w", err)
	}
	return fd, nil
}

// close ends the guard. The group must be gone.
func (f *fuse) close() {
	unix.Close(f.read)
	f.write.Close()
	wait(func() error {
		_, err := unix.Wait4(f.guard, nil, 0, nil)
		return err
	})
}

// guardName is the name by which this program knows that it is the guard of a fuse.
const guardName = "locksidecar-guard"

// guardFuse is the guard. It does not return.
func guardFuse() {
	const fuse = 3
	// What the user has open must not stay open because of the guard.
	_ = unix.CloseRange(fuse+1, math.MaxUint32, 0)
	var b [1]byte
	for {
		if _, err := unix.Read(fuse, b[:]); err != unix.EINTR {
			os.Exit(0)
		}
	}
}

// launcher is the name by which this program knows that it is to arm a fuse and
// become a command.
const launcher = "locksidecar-launch"

// launch is the command line of the launcher.
func launch(fuse int, path string, argv []string) []string {
	return append([]string{launcher, strconv.Itoa(fuse), path}, argv...)
}

// becomeCommand is the other side of launch. It does not return.
func becomeCommand(args []string) {
	fd, err := strconv.Atoi(args[1])
	if err == nil {
		err = arm(fd, unix.Getpgrp())
		unix.CloseOnExec(fd)
	}
	if err != nil {
		complain("cannot tie the command to its lock: %v", err)
		os.Exit(exitCannotRun)
	}
	path, argv := args[2], args[3:]
	err = cannotRun(argv[0], syscall.Exec(path, argv, os.Environ()))
	complain("%v", err)
	os.Exit(exitCode(err))
}

// arm makes group get SIGKILL when the writing end of the pipe is closed.
func arm(read, group int) error {
	if _, err := unix.FcntlInt(uintptr(read), unix.F_SETOWN, -group); err != nil {
		return fmt.Errorf("fcntl(F_SETOWN): %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(read), unix.F_SETSIG, int(unix.SIGKILL)); err != nil {
		return fmt.Errorf("fcntl(F_SETSIG): %w", err)
	}
	flags, err := unix.FcntlInt(uintptr(read), unix.F_GETFL, 0)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(read), unix.F_SETFL, flags|unix.O_ASYNC)
	}
	if err != nil {
		return fmt.Errorf("fcntl(F_SETFL, O_ASYNC): %w", err)
	}
	return nil
}
