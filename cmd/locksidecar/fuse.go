package main

import (
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// fuse is a pipe whose writing end only we have. When we end, however that
// happens, the kernel closes it and signals the owner of the reading end. The
// owner is the command's process group and the signal SIGKILL, so nothing of the
// group goes on without the lock. (PR_SET_PDEATHSIG alone reaches the command
// but not what it has started.) The reading end must be open in somebody who
// survives us, therefore the command inherits it.
type fuse struct {
	read  int
	write *os.File
}

// fuseFD is far above what scripts and programs use by number.
const fuseFD = 200

func newFuse() (*fuse, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	read, err := unix.FcntlInt(uintptr(p[0]), unix.F_DUPFD, fuseFD)
	if err != nil {
		// A limit of open files below fuseFD.
		if read, err = unix.FcntlInt(uintptr(p[0]), unix.F_DUPFD, 10); err != nil {
			return nil, fmt.Errorf("fcntl(F_DUPFD): %w", err)
		}
	}
	unix.Close(p[0])
	return &fuse{read: read, write: os.NewFile(uintptr(p[1]), "fuse")}, nil
}

// launcher is the name by which this program knows that it is to arm a fuse and
// become a command.
const launcher = "locksidecar-launch"

// launch is the command line of the launcher.
func (f *fuse) launch(path string, argv []string) []string {
	return append([]string{launcher, strconv.Itoa(f.read), path}, argv...)
}

// becomeCommand is the other side of launch. It does not return.
func becomeCommand(args []string) {
	fd, err := strconv.Atoi(args[1])
	if err == nil {
		err = arm(fd, unix.Getpgrp())
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
