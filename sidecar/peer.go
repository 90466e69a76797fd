package sidecar

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/protocol"
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
			if cred.Pid > 0 && !scarce(e) && !errors.Is(e, unix.ESRCH) {
				// Linux before 6.5. The pid may have been reused since connect; then
				// the session ends with the connection only.
				if c.pidfd, e = unix.PidfdOpen(int(cred.Pid), 0); e != nil {
					c.pidfd = -1
				}
			}
		}
		// What cannot be watched at all is served all the same, but nobody goes
		// unwatched for want of a descriptor.
		if scarce(e) {
			err = e
		}
	})
	if failed != nil {
		err = failed
	}
	return max(highest, c.pidfd), err
}

// reopen returns a pidfd of the process that had this pid when it was seen before,
// −1 if it cannot be watched with a descriptor below the given number; and whether it
// is alive, as far as can be seen. started is 0 if the start was not to be seen then.
func reopen(pid int64, started, below uint64) (pidfd int, alive bool) {
	fd, err := unix.PidfdOpen(int(pid), 0)
	switch {
	case errors.Is(err, unix.ESRCH):
		return -1, false
	case err != nil:
		return -1, true
	}
	// The pid is its own as long as the pidfd shows it alive, and was so when the
	// start was read.
	now := startOf(pid)
	over := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(over, 0); n == 1 && err == nil || started != 0 && now != 0 && now != started {
		unix.Close(fd)
		return -1, false
	}
	if uint64(fd) >= below {
		unix.Close(fd)
		return -1, true
	}
	return fd, true
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

// commandOf is the start of a process's command line, printable and valid UTF-8.
func commandOf(pid int64) string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	defer f.Close()
	b := make([]byte, 4*protocol.MaxCmd) // the whole of it may be megabytes
	n, _ := f.Read(b)
	b = b[:n]
	s := strings.Map(func(r rune) rune {
		if r < 0x20 || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(b), "?"))
	s = strings.TrimSpace(s)
	if len(s) > protocol.MaxCmd {
		s = s[:protocol.MaxCmd]
		for !utf8.ValidString(s) {
			s = s[:len(s)-1]
		}
	}
	return s
}
