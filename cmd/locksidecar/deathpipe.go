package main

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// deathPipe kills the command's process group when this process ends, also by kill -9.
//
// Only this process has the write end of the pipe. When it ends, the kernel closes the
// write end and signals the owner of the read end (fcntl F_SETOWN): the owner is the
// process group, and the signal is SIGKILL. PR_SET_PDEATHSIG alone would reach the command,
// and not the processes that the command has started.
//
// The kernel sends the signal only if the read end is open in a process that survives this
// one. That is the guard, a process in a session of its own, which only waits for the end of
// the pipe. The command itself cannot be the guard: shells, sudo and daemons close or reuse
// descriptors by number. If the guard ends before the pipe is closed (the OOM killer, an
// operator), keepGuard starts another one: the read end stays armed while this process has
// it open.
type deathPipe struct {
	readEnd  int
	writeEnd *os.File
	closing  chan struct{} // closed by close
	ended    chan struct{} // closed when keepGuard has returned
}

// guardPause is the least time between two starts of a guard.
const guardPause = time.Second

func newDeathPipe() (*deathPipe, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	f := &deathPipe{
		readEnd: p[0], writeEnd: os.NewFile(uintptr(p[1]), "death pipe"),
		closing: make(chan struct{}), ended: make(chan struct{}),
	}
	guard, err := f.startGuard()
	if err != nil {
		unix.Close(f.readEnd)
		f.writeEnd.Close()
		return nil, err
	}
	go f.keepGuard(guard)
	return f, nil
}

func (f *deathPipe) startGuard() (pid int, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	pid, err = syscall.ForkExec("/proc/self/exe", []string{guardName}, &syscall.ProcAttr{
		Dir:   "/",
		Env:   os.Environ(),
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd(), uintptr(f.readEnd)},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, fmt.Errorf("starting the process that guards the command: %w", err)
	}
	return pid, nil
}

// keepGuard starts another guard whenever one ends, until close.
func (f *deathPipe) keepGuard(pid int) {
	defer close(f.ended)
	for {
		started := time.Now()
		if pid > 0 {
			// ECHILD if group.waitRemaining reaped it: then it has ended, too.
			retryEINTR(func() error {
				_, err := unix.Wait4(pid, nil, 0, nil)
				return err
			})
		}
		select {
		case <-f.closing:
		case <-time.After(time.Until(started.Add(guardPause))):
		}
		if f.isClosing() { // both may be ready: close ends the guard
			return
		}
		next, err := f.startGuard()
		switch {
		case err == nil:
			printErr("the process %s has ended; started another one (pid %d)", guardName, next)
		case pid > 0:
			printErr("the process %s has ended, and no other one can be started: %v; trying again; until then a kill of this program leaves processes of the command running", guardName, err)
		}
		pid = next
	}
}

func (f *deathPipe) isClosing() bool {
	select {
	case <-f.closing:
		return true
	default:
		return false
	}
}

// dupReadEnd returns a duplicate of the read end that a child inherits. Its number is free in
// this process, so it takes the place of no descriptor of the user. It is closed when the
// launcher becomes the command. The caller closes it, too.
func (f *deathPipe) dupReadEnd() (fd int, err error) {
	if fd, err = unix.FcntlInt(uintptr(f.readEnd), unix.F_DUPFD, 10); err != nil {
		return -1, fmt.Errorf("fcntl(F_DUPFD): %w", err)
	}
	return fd, nil
}

// close ends the guard. Precondition: no process of the group runs, because it would get
// SIGKILL.
func (f *deathPipe) close() {
	close(f.closing)
	f.writeEnd.Close()
	<-f.ended // a guard that is being started ends at once
	unix.Close(f.readEnd)
}

// guardName is argv[0] of a guard.
const guardName = "locksidecar-guard"

// runGuard is the main function of a guard. It does not return.
func runGuard() {
	const readEnd = 3
	closeInherited(readEnd + 1)
	var b [1]byte
	for {
		if _, err := unix.Read(readEnd, b[:]); err != unix.EINTR {
			os.Exit(0)
		}
	}
}

// closeInherited closes the descriptors from first on that this process inherited: a guard must
// not keep files of the user open. Only they lack the flag close-on-exec. The Go runtime may have
// opened descriptors of its own by now, all with the flag; without them it crashes.
func closeInherited(first int) {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return // /proc was there a moment ago: this program was started from /proc/self/exe
	}
	for _, entry := range list {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil || fd < first {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
}

// launcher is argv[0] of this program between fork and exec of the command: it arms the
// death pipe and becomes the command.
const launcher = "locksidecar-launch"

// launcherArgs returns the command line of the launcher.
func launcherArgs(readEnd int, path string, argv []string) []string {
	return append([]string{launcher, strconv.Itoa(readEnd), path}, argv...)
}

// runLauncher is the main function of the launcher; args are those of launcherArgs. It does
// not return.
func runLauncher(args []string) {
	fd, err := strconv.Atoi(args[1])
	if err == nil {
		err = arm(fd, unix.Getpgrp())
		unix.CloseOnExec(fd)
	}
	if err != nil {
		printErr("cannot tie the command to its lock: %v", err)
		os.Exit(exitCannotRun)
	}
	path, argv := args[2], args[3:]
	err = cannotRun(argv[0], syscall.Exec(path, argv, os.Environ()))
	printErr("%v", err)
	os.Exit(exitCode(err))
}

// arm has the kernel send SIGKILL to the group when the write end of the pipe is closed.
func arm(readEnd, group int) error {
	if _, err := unix.FcntlInt(uintptr(readEnd), unix.F_SETOWN, -group); err != nil {
		return fmt.Errorf("fcntl(F_SETOWN): %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(readEnd), unix.F_SETSIG, int(unix.SIGKILL)); err != nil {
		return fmt.Errorf("fcntl(F_SETSIG): %w", err)
	}
	flags, err := unix.FcntlInt(uintptr(readEnd), unix.F_GETFL, 0)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(readEnd), unix.F_SETFL, flags|unix.O_ASYNC)
	}
	if err != nil {
		return fmt.Errorf("fcntl(F_SETFL, O_ASYNC): %w", err)
	}
	return nil
}
