// Package peers knows the processes of clients and their users, as the kernel shows them: who has
// connected, whether a process is still the one that it was, when it ends, and which command it runs.
package peers

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/sidecar/state"
)

// Peer is the process that called connect, as the kernel has it.
type Peer struct {
	PID, UID, GID int64
	Pidfd         int // −1: the process cannot be watched
}

// Identify reads which process called connect; another one may have the socket by now. highest is
// the highest number of the descriptors of the connection. The caller closes the pidfd, also if
// there is an error.
func Identify(raw syscall.RawConn) (p Peer, highest int, err error) {
	p.Pidfd = -1
	var cred *unix.Ucred
	failed := raw.Control(func(fd uintptr) {
		highest = int(fd)
		if cred, err = unix.GetsockoptUcred(highest, unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			err = fmt.Errorf("reading the peer's credentials: %w", err)
			return
		}
		p.PID, p.UID, p.GID = int64(cred.Pid), int64(cred.Uid), int64(cred.Gid)
		var e error
		if p.Pidfd, e = unix.GetsockoptInt(highest, unix.SOL_SOCKET, unix.SO_PEERPIDFD); e != nil {
			p.Pidfd = -1
			if cred.Pid > 0 && !IsResourceExhausted(e) && !errors.Is(e, unix.ESRCH) {
				// Linux before 6.5. If the pid was reused since connect, the session
				// ends only with the connection.
				if p.Pidfd, e = unix.PidfdOpen(int(cred.Pid), 0); e != nil {
					p.Pidfd = -1
				}
			}
		}
		// A process that cannot be watched is served all the same. If only a descriptor is
		// missing, the client is refused.
		if IsResourceExhausted(e) {
			err = e
		}
	})
	if failed != nil {
		err = failed
	}
	return p, max(highest, p.Pidfd), err
}

// State is the state of a process that had a session before a restart.
type State uint8

const (
	Ended     State = iota // the process has ended, even if another one has its pid
	Watched                // it runs, and there is a pidfd that reports its end
	Unwatched              // it may run, and there are too few descriptors to watch it
	Unproven               // a process has its pid, and it is not known which one
	Executed               // it runs, and has executed another program since
)

// Find looks for the process that had this pid before the restart. The pidfd is −1 unless
// the process is watched; its number is less than below.
func Find(pid int64, was state.Process, below uint64) (pidfd int, f State) {
	fd, err := unix.PidfdOpen(int(pid), 0)
	switch {
	case errors.Is(err, unix.ESRCH):
		return -1, Ended
	case IsResourceExhausted(err):
		return -1, Unwatched
	case err != nil:
		return -1, Unproven
	}
	now := ProcessOf(fd, pid)
	switch f = Compare(was, now); {
	case hasEnded(fd): // while the client ran, no other process could have its pid
		f = Ended
	case f == Watched && isAnother(was.Program, now.Program):
		f = Executed
	case f == Watched && uint64(fd) >= below:
		f = Unwatched
	}
	if f != Watched {
		unix.Close(fd)
		return -1, f
	}
	return fd, f
}

// Compare compares what identifies a process before the restart and now.
func Compare(was, now state.Process) State {
	switch {
	case was.Pidfd != 0 && now.Pidfd != 0:
		if was.Pidfd != now.Pidfd {
			return Ended
		}
		return Watched
	case was.Start != 0 && now.Start != 0:
		if was.Start != now.Start {
			return Ended
		}
		return Watched
	}
	return Unproven
}

// ProcessOf returns what distinguishes the process with this pid, and with this pidfd if there
// is one, from later processes with the same pid.
func ProcessOf(pidfd int, pid int64) (p state.Process) {
	p.Start, p.Program = readProcess(pid)
	if pidfd < 0 {
		return p
	}
	if p.Pidfd = pidfdInode(pidfd); hasEnded(pidfd) {
		p.Start, p.Program = 0, state.Program{} // another process may have the pid by now
	}
	return p
}

// HasExecuted reports whether a process is known to have executed another program. The memory of the
// former one is gone then, with everything that it knew of its locks.
func HasExecuted(pid int64, was state.Program) bool {
	_, now := readProcess(pid)
	return isAnother(was, now)
}

// isAnother reports whether a program is known to be another one: only exec changes these values.
func isAnother(was, now state.Program) bool {
	differ := func(was, now uint16) bool { return was != 0 && now != 0 && was != now }
	return was.Origin == state.Forked && now.Origin == state.Executed ||
		differ(was.Text, now.Text) || differ(was.Stack, now.Stack)
}

// pidfdInode returns the inode number of a pidfd; 0: Linux before 6.9, where all pidfds have the
// same one.
func pidfdInode(pidfd int) uint64 {
	var fs unix.Statfs_t
	var st unix.Stat_t
	if unix.Fstatfs(pidfd, &fs) != nil || fs.Type != unix.PID_FS_MAGIC || unix.Fstat(pidfd, &st) != nil {
		return 0
	}
	return st.Ino
}

// hasEnded reports whether the process of a pidfd has ended.
func hasEnded(pidfd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
	return n == 1 && err == nil
}

// IsEnding reports whether a process that is watched has ended, or is about to: the kernel
// closes the connections of a process before its pidfd reports the end. A process that is not
// watched, pidfd −1, is not known to end. A process whose main thread has ended, and no other, is
// taken for one that ends, so only texts may depend on this.
func IsEnding(pidfd int, pid int64) bool {
	if pidfd < 0 {
		return false
	}
	// The pid is that of this process as long as the pidfd does not report the end. So its flags are
	// read before the second look: if they are another process's, that one finds the end.
	return hasEnded(pidfd) || isExiting(statFields(pid)) || hasEnded(pidfd)
}

// isExiting reports whether the kernel has begun to end the process with these fields.
func isExiting(fields []string) bool {
	const (
		flags     = 9 - statSkipped
		pfExiting = 0x4 // PF_EXITING of linux/sched.h, set before files are closed
	)
	if len(fields) <= flags {
		return false
	}
	n, _ := strconv.ParseUint(fields[flags], 10, 64)
	return n&pfExiting != 0
}

// statSkipped is how much less the index of a field in statFields is than its number in proc(5),
// which counts from 1.
const statSkipped = 3

// statFields returns what /proc/PID/stat has after the name of the process; nil: it cannot be read.
func statFields(pid int64) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return statFieldsIn(b)
}

// statFieldsIn returns the fields after the name, which stands in parentheses and may contain anything.
func statFieldsIn(text []byte) []string {
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
}

// readProcess returns when a process started, in ticks since boot (0: not known), and its program.
func readProcess(pid int64) (start uint64, p state.Program) {
	const (
		flags      = 9 - statSkipped
		starttime  = 22 - statSkipped
		startcode  = 26 - statSkipped
		startstack = 28 - statSkipped

		pfForkNoExec = 0x40 // PF_FORKNOEXEC of linux/sched.h
	)
	fields := statFields(pid)
	if len(fields) <= startstack {
		return 0, p
	}
	number := func(field int) uint64 {
		n, _ := strconv.ParseUint(fields[field], 10, 64)
		return n
	}
	if p.Origin = state.Executed; number(flags)&pfForkNoExec != 0 {
		p.Origin = state.Forked
	}
	// 0: this daemon may not trace the process, or the process is about to end.
	if stack := number(startstack); stack != 0 {
		p.Stack = sum(stack^number(startcode), 12)
	}
	if pages := textPages(pid); pages != 0 {
		p.Text = sum(pages, 10)
	}
	return number(starttime), p
}

// textPages returns how many pages the text of a process's program has; 0: not known.
func textPages(pid int64) uint64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	const text = 3
	fields := strings.Fields(string(b))
	if len(fields) <= text {
		return 0
	}
	n, _ := strconv.ParseUint(fields[text], 10, 64)
	return n
}

// sum returns a sum of n with so many bits, which is not 0.
func sum(n uint64, bits int) uint16 { return uint16(max(n*0x9e3779b97f4a7c15>>(64-bits), 1)) }
