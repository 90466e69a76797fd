package peers

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// GroupsOf returns the supplementary groups that the peer had when it connected.
func GroupsOf(raw syscall.RawConn) (groups []int64, err error) {
	list := make([]uint32, 32)
	read := func(fd uintptr) (size uint32, errno unix.Errno) {
		size = uint32(4 * len(list))
		_, _, errno = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&list[0])), uintptr(unsafe.Pointer(&size)), 0)
		return size, errno
	}
	var size uint32
	var errno unix.Errno
	failed := raw.Control(func(fd uintptr) {
		if size, errno = read(fd); errno == unix.ERANGE {
			list = make([]uint32, size/4)
			size, errno = read(fd)
		}
	})
	switch {
	case failed != nil:
		return nil, failed
	case errno != 0:
		return nil, fmt.Errorf("getsockopt SO_PEERGROUPS: %w", errno)
	}
	for _, g := range list[:size/4] {
		groups = append(groups, int64(g))
	}
	return groups, nil
}

// CgroupOf returns the path of a process's cgroup in the unified hierarchy, or else in systemd's
// own one of cgroups version 1; "": it cannot be read, or it may be that of another process, which has
// the pid by now.
func CgroupOf(pidfd int, pid int64) string {
	if pidfd < 0 {
		return ""
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil || hasEnded(pidfd) {
		return ""
	}
	return cgroupIn(string(b))
}

// cgroupIn returns the path in the contents of /proc/PID/cgroup.
func cgroupIn(text string) (path string) {
	for line := range strings.Lines(text) {
		// The third field is a path, in which a user may choose what stands.
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) < 3 {
			continue
		}
		switch {
		case fields[1] == "name=systemd":
			path = fields[2] // in the hybrid layout, units are here
		case fields[0] == "0" && fields[1] == "" && path == "":
			path = fields[2]
		}
	}
	return strings.TrimSuffix(path, " (deleted)")
}
