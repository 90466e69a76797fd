package endpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/sidecar/peers"
	"github.com/locksidecar/locksidecar/sidecar/settings"
)

// lock is the right of one process to serve a socket: an exclusive flock(2) on a file
// beside the socket. The holder of the lock may remove a socket that a dead sidecar left.
//
// Any process that can open a file, even only for reading, can lock it. So only the owner can
// open the file, and the daemon neither follows a symbolic link nor changes a file of another
// program.
//
// Earlier daemons made the file with mode 0644. A process of another user may have such a file
// open and lock it when this process ends; then no sidecar could start. So the daemon replaces
// a file that others can open, while it holds the lock. Two sidecars on one socket still
// exclude each other:
//
//   - Only the holder of the lock replaces the file, and it keeps the lock on the replaced
//     file, too. A sidecar that has opened the replaced file cannot lock it.
//   - A sidecar that has locked a file checks that the file is still at its path, and starts
//     again if it is not. So a lock on a replaced file is worthless after its holder ended.
//
// If a process of another user has the lock already, the daemon names it and stops. The
// process may be in a pid namespace that is not visible here, so only a person can decide
// whether it is a sidecar.
type lock struct {
	fds []int // the locked files: the one at the path is the last
}

func (l *lock) close() {
	for _, fd := range l.fds {
		unix.Close(fd)
	}
	l.fds = nil
}

// renew locks a new file if the locked one is no longer at its path.
func (l *lock) renew(socket string) error {
	var have, now unix.Stat_t
	if err := unix.Fstat(l.fds[len(l.fds)-1], &have); err != nil {
		return err
	}
	if err := unix.Lstat(socket+".lock", &now); err == nil && now.Dev == have.Dev && now.Ino == have.Ino {
		return nil
	}
	again, err := lockSocket(socket)
	if err != nil {
		return err
	}
	l.close()
	l.fds = again.fds
	return nil
}

// lockSocket locks a socket for this process.
func lockSocket(socket string) (*lock, error) {
	path := socket + ".lock"
	for range 100 {
		fd, st, err := openLockFile(path)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
			err = lockError(err, socket, fd, st)
			unix.Close(fd)
			return nil, err
		}
		var now unix.Stat_t
		if err := unix.Lstat(path, &now); err != nil || now.Dev != st.Dev || now.Ino != st.Ino {
			unix.Close(fd) // the file was replaced or removed between open and flock
			continue
		}
		l := &lock{fds: []int{fd}}
		if st.Mode&0o077 != 0 {
			l.replace(path)
		}
		l.writePID()
		return l, nil
	}
	return nil, settings.InUse("lock file %s is replaced again and again; find out by which process, or choose a socket in a directory that only the sidecar's user can write to", path)
}

// openLockFile opens the file, or makes it. A file that the daemon must not write to is an
// error.
func openLockFile(path string) (fd int, st unix.Stat_t, err error) {
	fd, err = unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0o600)
	if err != nil {
		return -1, st, fmt.Errorf("lock file %s %w", path, openError(path, err))
	}
	if err = unix.Fstat(fd, &st); err == nil {
		err = checkLockFile(fd, &st)
	}
	if err != nil {
		unix.Close(fd)
		return -1, st, fmt.Errorf("lock file %s %w", path, err)
	}
	return fd, st, nil
}

var errNotRegular = errors.New("is not a regular file; remove it, or choose another socket")

func errOtherUser(uid uint32) error {
	return fmt.Errorf("belongs to uid %d, and the sidecar runs as uid %d; remove it, run the sidecar as that user, or choose another socket", uid, unix.Geteuid())
}

// openError returns the end of a sentence about the file.
func openError(path string, err error) error {
	var st unix.Stat_t
	switch found := unix.Lstat(path, &st) == nil; {
	case errors.Is(err, unix.ELOOP):
		return errors.New("is a symbolic link, which the sidecar does not follow; remove it, or choose another socket")
	case found && st.Mode&unix.S_IFMT != unix.S_IFREG:
		return errNotRegular
	case found && int(st.Uid) != unix.Geteuid():
		return errOtherUser(st.Uid)
	}
	return fmt.Errorf("cannot be opened: %w; run as the user who owns its directory, or choose another socket", err)
}

// checkLockFile returns the end of a sentence about the file if no sidecar of this user made it.
func checkLockFile(fd int, st *unix.Stat_t) error {
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return errNotRegular
	case int(st.Uid) != unix.Geteuid():
		return errOtherUser(st.Uid)
	case st.Nlink > 1:
		return errors.New("has another name, too (a hard link), and may be a file of another program; remove it, or choose another socket")
	}
	if text, ok := readPID(fd, st.Size); !ok {
		return fmt.Errorf("has contents that no sidecar wrote (%q…); remove it, or choose another socket", text)
	}
	return nil
}

// readPID returns the content of a lock file: the pid of the process that locked it last, or
// nothing; false: it has other content.
func readPID(fd int, size int64) (text string, ok bool) {
	var b [16]byte
	n, err := unix.Pread(fd, b[:], 0)
	if err != nil {
		return "", false
	}
	text = strings.TrimSuffix(string(b[:n]), "\n")
	return text, int(size) == n && strings.Trim(text, "0123456789") == ""
}

// writePID writes the pid of this process into the file, for people. The lock does not depend on
// it, so the daemon starts also if the file system is full.
func (l *lock) writePID() {
	fd, text := l.fds[len(l.fds)-1], strconv.Itoa(os.Getpid())+"\n"
	if n, err := unix.Pwrite(fd, []byte(text), 0); err == nil {
		_ = unix.Ftruncate(fd, int64(n))
	}
}

// replace replaces a file that others can open by a new, locked one. If that fails, the old file
// stays, with a mode that keeps others from opening it.
func (l *lock) replace(path string) {
	_ = unix.Fchmod(l.fds[0], 0o600)
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".") // mode 0600
	if err != nil {
		return
	}
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0) // shares the lock with f
	if err == nil {
		if err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err == nil {
			err = unix.Rename(f.Name(), path)
		}
		if err != nil {
			unix.Close(fd)
		}
	}
	if err != nil {
		_ = unix.Unlink(f.Name())
		return
	}
	l.fds = append(l.fds, fd)
}

// lockError returns why flock failed, and which process has the lock.
func lockError(err error, socket string, fd int, st unix.Stat_t) error {
	path := socket + ".lock"
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("locking %s: %w; choose a socket on another file system", path, err)
	}
	pid, ok := flockHolder(&st)
	if !ok {
		text, _ := readPID(fd, st.Size)
		return settings.InUse("a process that is not visible here has locked %s: if it is a sidecar (its pid was %s), it serves %s already: stop it, or choose another socket; if no sidecar runs, remove the file", path, text, socket)
	}
	if uid, ok := userOf(pid); ok && uid != 0 && int(uid) != unix.Geteuid() {
		return settings.InUse("process %d of uid %d %s has locked %s, and is not a sidecar of uid %d; end that process, or remove the file, and start the sidecar again", pid, uid, peers.NameOf(pid), path, unix.Geteuid())
	}
	return settings.InUse("another sidecar (pid %d) serves %s already; stop it, or choose another socket", pid, socket)
}

// flockHolder returns the process that has locked a file with flock(2), if it is visible in the
// pid namespace of this process.
func flockHolder(st *unix.Stat_t) (pid int64, ok bool) {
	b, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0, false
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev)), st.Ino)
	for line := range strings.Lines(string(b)) {
		// "1: FLOCK  ADVISORY  WRITE 4711 08:01:131090 0 EOF"; the line of a process that
		// waits has "->" before FLOCK.
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || f[5] != file {
			continue
		}
		pid, err := strconv.ParseInt(f[4], 10, 64)
		return pid, err == nil && pid > 0
	}
	return 0, false
}

// userOf returns the effective uid of a process.
func userOf(pid int64) (uid uint32, ok bool) {
	var st unix.Stat_t
	err := unix.Stat(fmt.Sprintf("/proc/%d", pid), &st)
	return st.Uid, err == nil
}

// probe reports whether a process listens on a Unix socket, and its pid; 0: not known.
func probe(path string) (pid int64, isOpen bool) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	switch err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EPROTOTYPE): // its queue is full; it is of another type
		return 0, true
	case err != nil:
		return 0, false
	}
	if cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
		pid = int64(cred.Pid)
	}
	return pid, true
}

// awaitExit reports whether a process ends within a second. The kernel closes the descriptors of
// a killed process one after the other: its flock may be released while its socket still
// listens.
func awaitExit(pid int64) bool {
	if pid <= 0 {
		return false
	}
	fd, err := unix.PidfdOpen(int(pid), 0)
	if err != nil {
		return errors.Is(err, unix.ESRCH)
	}
	defer unix.Close(fd)
	const timeoutMS = 1000
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, timeoutMS)
	return n == 1 && err == nil
}
