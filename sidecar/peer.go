package sidecar

import (
	"fmt"
	"net"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// peerOf reads who is at the other end of a connection: the process that called
// connect, whoever has the socket by now. pidfd is −1 where the process cannot be
// watched (it is in a pid namespace that is not visible from here).
func peerOf(c *net.UnixConn) (p locktable.Peer, pidfd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return p, -1, err
	}
	pidfd = -1
	var sockErr error
	err = raw.Control(func(fd uintptr) {
		cred, e := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if e != nil {
			sockErr = fmt.Errorf("reading the peer's credentials: %w", e)
			return
		}
		p.PID, p.UID = int64(cred.Pid), int64(cred.Uid)
		if fd, e := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD); e == nil {
			pidfd = fd
		} else if cred.Pid > 0 {
			// Linux before 6.5. The pid may have been reused since connect; then
			// the session ends with the connection only.
			if fd, e := unix.PidfdOpen(int(cred.Pid), 0); e == nil {
				pidfd = fd
			}
		}
	})
	if err == nil {
		err = sockErr
	}
	if p.PID > 0 {
		p.Cmd = commandOf(p.PID)
	}
	return p, pidfd, err
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
