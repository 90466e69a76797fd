package sidecar

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/sidecar/state"
)

// identify finds out who is at the other end: the process that called connect,
// whoever has the socket by now. The pidfd is −1 where the process cannot be watched.
// highest is the highest number among the descriptors of the connection.
func (c *conn) identify() (highest int, err error) {
	var cred *unix.Ucred
	failed := c.raw.Control(func(fd uintptr) {
		highest = int(fd)
		if cred, err = unix.GetsockoptUcred(highest, unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			err = fmt.Errorf("reading the peer's credentials: %w", err)
			return
		}
		c.peer.PID, c.peer.UID = int64(cred.Pid), int64(cred.Uid)
		var e error
		if c.pidfd, e = unix.GetsockoptInt(highest, unix.SOL_SOCKET, unix.SO_PEERPIDFD); e != nil {
			c.pidfd = -1
			if cred.Pid > 0 && !isResourceExhausted(e) && !errors.Is(e, unix.ESRCH) {
				// Linux before 6.5. The pid may have been reused since connect; then
				// the session ends with the connection only.
				if c.pidfd, e = unix.PidfdOpen(int(cred.Pid), 0); e != nil {
					c.pidfd = -1
				}
			}
		}
		// What cannot be watched at all is served all the same, but nobody goes
		// unwatched for want of a descriptor.
		if isResourceExhausted(e) {
			err = e
		}
	})
	if failed != nil {
		err = failed
	}
	return max(highest, c.pidfd), err
}

// found is what there is of a process that was seen before.
type found uint8

const (
	ended     found = iota // the process is gone, even if another one has its pid
	watched                // it lives, and there is a pidfd that shows its end
	unwatched              // it may live, and there are too few descriptors to watch it
	unproven               // a process has its pid, and nothing shows which one
)

// reopen looks for the process that had this pid when it was seen before. The pidfd, −1
// unless it is watched, is below the given number.
func reopen(pid int64, was state.Process, below uint64) (pidfd int, f found) {
	fd, err := unix.PidfdOpen(int(pid), 0)
	switch {
	case errors.Is(err, unix.ESRCH):
		return -1, ended
	case isResourceExhausted(err):
		return -1, unwatched
	case err != nil:
		return -1, unproven
	}
	switch f = compare(was, processOf(fd, pid)); {
	case hasEnded(fd): // if the client lived, no other process could have its pid
		f = ended
	case f == watched && uint64(fd) >= below:
		f = unwatched
	}
	if f != watched {
		unix.Close(fd)
		return -1, f
	}
	return fd, f
}

// compare reports whether a pid is still that of the same process.
func compare(was, now state.Process) found {
	switch {
	case was.Pidfd != 0 && now.Pidfd != 0:
		if was.Pidfd != now.Pidfd {
			return ended
		}
		return watched
	case was.Start != 0 && now.Start != 0:
		if was.Start != now.Start {
			return ended
		}
		return watched
	}
	return unproven
}

// processOf returns what distinguishes the process that has this pid, and this pidfd if
// there is one, from later ones.
func processOf(pidfd int, pid int64) state.Process {
	if pidfd < 0 {
		return state.Process{Start: startOf(pid)}
	}
	p := state.Process{Pidfd: inodeOf(pidfd), Start: startOf(pid)}
	if hasEnded(pidfd) {
		p.Start = 0 // it may be that of another process, which has the pid by now
	}
	return p
}

// inodeOf is the inode number of a pidfd; 0: before Linux 6.9 all pidfds have the same.
func inodeOf(pidfd int) uint64 {
	var fs unix.Statfs_t
	var st unix.Stat_t
	if unix.Fstatfs(pidfd, &fs) != nil || fs.Type != unix.PID_FS_MAGIC || unix.Fstat(pidfd, &st) != nil {
		return 0
	}
	return st.Ino
}

// hasEnded reports whether the process of a pidfd has ended.
func hasEnded(pidfd int) bool {
	over := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(over, 0)
	return n == 1 && err == nil
}

// startOf is when a process started, in clock ticks since boot; 0: not known.
func startOf(pid int64) uint64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The second field, the name, stands in parentheses and may contain anything.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	const starttime = 22 - 3 // proc(5) counts from 1; two are cut off
	if len(fields) <= starttime {
		return 0
	}
	n, _ := strconv.ParseUint(fields[starttime], 10, 64)
	return n
}
